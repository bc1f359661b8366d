"""Carry out an approved publication: claim, check again, act once, read back, write the receipt."""

from __future__ import annotations

import logging
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction

from approvals import errors, publication, receipt, scopes, signatures, uses
from approvals.checking import receipt_digest
from approvals.judge import policy_in_force
from approvals.models import Candidate, Packet, Publication, Receipt
from approvals.publishers import Credential as PublishCredential
from approvals.publishers import (
    Found,
    OutcomeUnknown,
    PublicationIntent,
    Published,
    PublishError,
    RateLimited,
)
from approvals.publishers.registry import publisher_for
from approvals.repositories import bare_with_candidate
from approvals.states import PacketKind, PublicationState
from portal import audit, live
from portal.access import demand
from portal.blobs import BlobDamaged
from portal.canonical import digest
from portal.clock import database_now
from portal.errors import NotFound
from portal.handoff import Job, enqueue_on_commit
from portal.models import Membership
from portal.redact import redact
from portal.roles import Permission
from portal.signing import signing_key
from portal.vault import SealBroken
from runs import credentials, lifecycle
from runs.contract import Contract
from runs.folders import working_folder
from runs.lifecycle import Draft, append_events, locked_run, run_facts
from runs.models import Run
from runs.source import SourceRefused
from runs.states import RunStatus

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 6


class NotPrepared(PublishError):
    """The approved bytes, or the credential, are not at hand."""

    code = "publication.not_prepared"
    text = "Nothing was published, because it could not be prepared. {reason}"


class ContentDamaged(NotPrepared):
    """The approved bytes are gone, or are other bytes."""

    code = "publication.artifact_damaged"


class NotPreparedNow(NotPrepared):
    """The same, and it may work later."""

    retry_safe = True


@dataclass(frozen=True)
class Claim:
    """The right to act on one publication. `look` says that an earlier worker may have acted."""

    publication_id: int
    token: uuid.UUID
    look: bool


def publish(publication_id: int) -> str:
    """Carry one publication out; returns one word for the log. Safe to deliver twice or late."""
    claim = _claim(publication_id)
    if claim is None:
        return "skipped"
    mine = Publication.objects.filter(pk=publication_id, lease_token=claim.token)
    with lifecycle.renewing(lambda until: mine.update(lease_expires_at=until)):
        return _carry_out(claim)


def _carry_out(claim: Claim) -> str:
    row = _row(claim.publication_id)
    contract = lifecycle.contract_of(row.run)
    intent = publication.plan(row.run, contract, row.candidate).intent()
    if claim.look:
        # The worker before us died somewhere around the act. Look; act only if a person says so.
        return _settle_by_looking(claim, row, contract, intent)
    try:
        with working_folder("publish") as folder, _credential(row, contract) as credential:
            bare = _prepared(row, contract, folder / "bare.git")
            if not _about_to_send(claim):
                return "lease lost"
            done = publisher_for(contract.target).publish(intent, bare, credential)
    except PublishError as error:
        return _not_done(claim, error)
    except Exception as error:
        logger.exception("publication %s broke", row.pk)
        return _unknown(
            claim,
            f"The portal itself failed ({type(error).__name__}) and does not know how far it got.",
        )
    return _done(claim, done)


def _prepared(row: Publication, contract: Contract, bare: Path) -> Path:
    """The approved objects in a repository of their own. Whatever fails here, nothing was sent."""
    try:
        return bare_with_candidate(row.run, contract, row.candidate, bare)
    except BlobDamaged as damaged:
        raise ContentDamaged(reason=str(damaged)) from damaged
    except (SourceRefused, OSError, subprocess.SubprocessError) as error:
        raise NotPreparedNow(reason=f"{type(error).__name__}: {error}") from error


def _about_to_send(claim: Claim) -> bool:
    """Write down that from here on something may have been sent; False if the lease is lost."""
    mine = Publication.objects.filter(
        pk=claim.publication_id, lease_token=claim.token, state=PublicationState.ACTING
    )
    return mine.update(sent_at=database_now()) == 1


def _row(publication_id: int) -> Publication:
    return Publication.objects.select_related(
        "run", "run__tenant", "run__version", "run__version__contract", "candidate", "packet"
    ).get(pk=publication_id)


@contextmanager
def _credential(row: Publication, contract: Contract) -> Iterator[PublishCredential | None]:
    """What the target gets to see, if the credential is meant for it. Raises `NotPrepared`."""
    if not contract.target.credential:
        yield None
        return
    wanted = scopes.publication_use(contract)
    with ExitStack() as held:
        try:
            secret = held.enter_context(
                credentials.use(
                    row.run,
                    wanted.name,
                    address=wanted.address,
                    consumer=wanted.consumer,
                    actions=wanted.actions,
                )
            )
            credential = PublishCredential(secret.value)
        except (credentials.CredentialRefused, SealBroken, ValueError) as error:
            raise NotPrepared(reason=str(error)) from error
        yield credential


# --- Claiming: the approval is used up here --------------------------------------


@transaction.atomic(durable=True)
def _claim(publication_id: int) -> Claim | None:
    """Use the approval up and take the lease, or end the publication with its reason."""
    now = database_now()
    row = (
        Publication.objects.select_for_update(no_key=True, of=("self",))
        .select_related("packet", "candidate", "run")
        .filter(pk=publication_id)
        .first()
    )
    if row is None:
        return None
    run = locked_run(row.run_id)
    dead = (
        row.state == PublicationState.ACTING
        and row.lease_expires_at is not None
        and row.lease_expires_at < now
    )
    # A worker that died before it sent anything left nothing to look for: it is begun again, and
    # everything is compared again.
    look = dead and row.sent_at is not None
    fresh = row.state == PublicationState.INTENDED and (
        row.not_before is None or row.not_before <= now
    )
    if not (dead or fresh) or run.status != RunStatus.PUBLISHING:
        return None
    packet = Packet.objects.select_for_update(no_key=True).get(pk=row.packet_id)
    if not look:
        reason = _stale(packet, row.candidate, run, row, unsent=dead)
        if reason is not None:
            _fail(row, run, reason.code, reason.text, ask_again=reason.ask_again)
            return None
        if packet.used_at is None:
            uses.use_up(packet, now)
        row.sent_at = None
    row.state, row.acted_at = PublicationState.ACTING.value, now
    row.lease_token = uuid.uuid4()
    row.lease_expires_at = now + timedelta(seconds=settings.RUN_LEASE)
    row.attempts += 1
    row.save(
        update_fields=[
            *("state", "acted_at", "sent_at", "lease_token", "lease_expires_at", "attempts")
        ]
    )
    append_events(
        run,
        [
            Draft(
                "publication.started",
                run_facts(run) | {"approval": packet.digest, "packet": packet.number},
            )
        ],
    )
    return Claim(row.pk, row.lease_token, look)


@dataclass(frozen=True)
class _Stale:
    code: str
    text: str
    ask_again: bool


def _stale(
    packet: Packet, candidate: Candidate, run: Run, row: Publication, *, unsent: bool = False
) -> _Stale | None:
    """Why what was approved may not be done now, or None: all the digest covers, compared.

    `unsent` says that the approval was taken by a worker that died before it sent anything, so
    its time still counts.
    """
    if run.tenant.deleted_at is not None:
        return _Stale(
            "publication.tenant_deleted",
            "The tenant was deleted before anything was sent. Nothing was published.",
            False,
        )
    # The row of the publication is the use of its packet: there is no second one.
    void = uses.why_void(
        packet,
        PacketKind.PUBLICATION,
        database_now(),
        unused=False,
        in_time=packet.used_at is None or unsent,
    )
    if void is not None:
        code = {"page_changed": "packet_changed"}.get(void.why, void.why)
        again = void.why in ("approval_ran_out", "before_approval")
        more = " A new packet asks again." if again else ""
        return _Stale(f"publication.{code}", f"{void.words} Nothing was published.{more}", again)
    page = packet.page
    if publication.candidate_digest(candidate) != page["candidate"]["digest"]:
        return _Stale(
            "publication.candidate_changed",
            "The candidate is not the approved one. Nothing was published.",
            False,
        )
    for name, pinned in page["receipts"].items():
        held = Receipt.objects.filter(candidate=candidate, check_name=name).first()
        if (
            held is None
            or receipt_digest(held) != pinned["digest"]
            or held.input_digest != candidate.digest
        ):
            return _Stale(
                "publication.receipt_changed",
                f"The receipt of {name} is not the approved one. Nothing was published.",
                False,
            )
    contract = lifecycle.contract_of(run)
    if (
        publication.plan(run, contract, candidate).as_page() != page["arguments"]
        or page["target"] != row.target["name"]
        or publication.target_name(contract) != page["target"]
    ):
        return _Stale(
            "publication.target_changed",
            "Target or text are not the approved ones. Nothing was published.",
            False,
        )
    verdict = publication.judge(
        policy_in_force(run.tenant_id), publication.publish_facts(run, contract, candidate)
    )
    if verdict.effect == "deny":
        return _Stale(
            "publication.policy_denies",
            "The policy in force now denies this publication. Nothing was published.",
            False,
        )
    version = policy_in_force(run.tenant_id)
    if version is not None and version.digest != page["policy"]["digest"]:
        return _Stale(
            "publication.policy_changed",
            "The policy changed after the approval. Nothing was published; a new packet asks "
            "again.",
            True,
        )
    return None


# --- Ends -----------------------------------------------------------------------


def _held(claim: Claim) -> tuple[Publication, Run] | None:
    row = (
        Publication.objects.select_for_update(no_key=True, of=("self",))
        .select_related("packet", "candidate")
        .get(pk=claim.publication_id)
    )
    run = locked_run(row.run_id)
    if row.state != PublicationState.ACTING or row.lease_token != claim.token:
        return None
    return row, run


@transaction.atomic(durable=True)
def _done(claim: Claim, done: Published) -> str:
    held = _held(claim)
    if held is None:
        return "lease lost"
    row, run = held
    if done.tree != row.tree or done.commit != row.commit:
        _to_unknown(
            row, run, f"The target holds tree {done.tree:.12}, approved was {row.tree:.12}."
        )
        return "unknown"
    _finish(row, run, url=done.url or "", draft=done.draft, note=done.note)
    return "done"


def _finish(row: Publication, run: Run, *, url: str, draft: bool, note: str) -> None:
    row.done_at, row.url, row.draft = database_now(), url, draft
    row.statement = receipt.sign(_statement(row, run), signing_key())
    _let_go(row, PublicationState.DONE, note, also=("done_at", "url", "draft", "statement"))
    lifecycle.end_run(
        run,
        RunStatus.PUBLISHED,
        result=url or row.branch,
        artifacts=[row.candidate.digest, row.commit],
    )
    audit.record(
        "publication.done",
        tenant=run.tenant,
        subject=row,
        commit=row.commit,
        tree=row.tree,
        url=url,
        note=note,
        receipt=digest(row.statement),
    )
    live.changed_on_commit(live.run_topic(run.pk), live.queue_topic(run.tenant_id))


def _let_go(
    row: Publication,
    state: PublicationState,
    note: str,
    code: str = "",
    *,
    retry_safe: bool | None = None,
    also: Sequence[str] = (),
) -> None:
    """Leave a publication in this state with nobody at work on it, and save it once."""
    row.state, row.note = state.value, note
    row.error_code, row.retry_safe = code, retry_safe
    row.lease_token = row.lease_expires_at = None
    fields = ["state", "note", "error_code", "retry_safe", "lease_token", "lease_expires_at"]
    row.save(update_fields=[*fields, *also])


def _statement(row: Publication, run: Run) -> dict[str, Any]:
    packet = row.packet
    decisions = (
        packet.votes().select_related("person", "carried_from__packet").order_by("decided_at")
    )
    return receipt.statement(
        subject=receipt.subjects(
            name=f"{row.target['name']}@{row.branch}",
            commit=row.commit,
            tree=row.tree,
            changes=row.candidate.changes,
        ),
        predicate={
            "candidate": row.candidate.digest,
            "tenant": run.tenant.slug,
            "run": str(run.public_id),
            "contract": packet.page["contract"],
            "agent": packet.page["agent"],
            "policy": packet.page["policy"],
            "source_commit": row.candidate.base_commit,
            "commit": row.commit,
            "branch": row.branch,
            "url": row.url,
            "packet_digest": packet.digest,
            "receipts": packet.page["receipts"],
            "image_digest": run.image_digest,
            "events_head": run.event_head,
            "decisions": [
                {
                    "person": each.person.name,
                    **({"on_behalf_of": each.on_behalf_of.name} if each.on_behalf_of else {}),
                    "verdict": each.verdict,
                    "digest": each.digest,
                    "at": each.decided_at.isoformat(),
                    "self_approved": each.self_approved,
                    # The fingerprint of the key that signed it; the signature is in the bundle.
                    **({"carried_from": source.packet.number} if source else {}),
                    **({"passkey": signatures.key_of(each.signature)} if each.signature else {}),
                }
                for each in decisions
                for source in [each.carried_from]
            ],
            "published_at": row.done_at.isoformat() if row.done_at else None,
        },
    )


@transaction.atomic(durable=True)
def _not_done(claim: Claim, error: PublishError) -> str:
    held = _held(claim)
    if held is None:
        return "lease lost"
    row, run = held
    text = redact(f"{error} {error.left}".strip())
    if isinstance(error, OutcomeUnknown):
        _to_unknown(row, run, text)
        return "unknown"
    if error.retry_safe and row.attempts < MAX_ATTEMPTS:
        wait = (
            error.retry_after if isinstance(error, RateLimited) else min(300, 5 * 2**row.attempts)
        )
        row.not_before = database_now() + timedelta(seconds=wait)
        _let_go(
            row,
            PublicationState.INTENDED,
            text,
            error.code,
            retry_safe=True,
            also=("not_before",),
        )
        append_events(
            run,
            [
                Draft(
                    "publication.postponed",
                    run_facts(run) | {"result": error.code, "seconds": wait},
                )
            ],
        )
        live.changed_on_commit(live.run_topic(run.pk))
        return "postponed"
    _fail(row, run, error.code, text, ask_again=False, retry_safe=error.retry_safe)
    return "failed"


@transaction.atomic(durable=True)
def _unknown(claim: Claim, text: str) -> str:
    held = _held(claim)
    if held is None:
        return "lease lost"
    _to_unknown(*held, text)
    return "unknown"


def _to_unknown(row: Publication, run: Run, text: str) -> None:
    _let_go(row, PublicationState.UNKNOWN, text, OutcomeUnknown.code, retry_safe=False)
    append_events(
        run,
        [
            Draft(
                "publication.unknown",
                run_facts(run) | {"boundary": "control", "result": text[:500]},
            )
        ],
    )
    audit.record("publication.unknown", tenant=run.tenant, subject=row, note=text[:500])
    live.changed_on_commit(live.run_topic(run.pk), live.queue_topic(run.tenant_id))


def _fail(
    row: Publication, run: Run, code: str, text: str, *, ask_again: bool, retry_safe: bool = False
) -> None:
    _let_go(row, PublicationState.FAILED, text, code, retry_safe=retry_safe)
    append_events(run, [Draft("publication.failed", run_facts(run) | {"result": code})])
    audit.record("publication.failed", tenant=run.tenant, subject=row, code=code)
    if ask_again:
        lifecycle.advance(
            run, RunStatus.IN_REVIEW, Job.OPEN_PUBLICATION_PACKET, row.candidate_id, reason=code
        )
    else:
        lifecycle.end_failed(
            run,
            boundary="control",
            code=code,
            operation="publish",
            text=text,
            retry_safe=retry_safe,
        )


# --- Unknown outcomes --------------------------------------------------------------


def _settle_by_looking(
    claim: Claim,
    row: Publication,
    contract: Contract,
    intent: PublicationIntent,
) -> str:
    try:
        with _credential(row, contract) as credential:
            found = publisher_for(contract.target).look(intent, credential)
    except PublishError as error:
        return _unknown(
            claim,
            "A worker stopped around the act, and looking for the result failed: "
            f"{redact(str(error))}",
        )
    if found is not None and _whole(contract, found, row):
        return _done(claim, _as_published(row, found))
    return _unknown(
        claim,
        "A worker stopped around the act. "
        + ("Only the branch is there. " if found else "Nothing of it is at the target now. ")
        + "It was not tried again; a person settles it.",
    )


def _whole(contract: Contract, found: Found, row: Publication) -> bool:
    """Whether all of the act is there: the branch with our commit, and on a forge its draft."""
    if found.commit != row.commit:
        return False
    return contract.target.kind == "git" or (found.url is not None and found.draft is True)


def _as_published(row: Publication, found: Found) -> Published:
    return Published(
        url=found.url,
        branch=found.branch,
        commit=found.commit,
        tree=row.tree,
        draft=bool(found.draft) or found.url is None,
        note="Found at the target by looking; it was not done twice.",
        number=found.number,
        existed=True,
    )


def reconcile(public_id: uuid.UUID, *, member: Membership) -> str:
    """A person asks to look again. Returns `done`, `absent` or `partial`; acts on nothing."""
    demand(member, Permission.PUBLISH)
    row = _unknown_row(public_id, member)
    contract = lifecycle.contract_of(row.run)
    intent = publication.plan(row.run, contract, row.candidate).intent()
    try:
        with _credential(row, contract) as credential:
            found = publisher_for(contract.target).look(intent, credential)
    except PublishError as error:
        raise errors.LookFailed(reason=redact(str(error))) from error
    if found is None or not _whole(contract, found, row):
        return "partial" if found else "absent"
    with transaction.atomic():
        locked = Publication.objects.select_for_update(no_key=True).get(pk=row.pk)
        if locked.state != PublicationState.UNKNOWN:
            raise errors.NotUnknown(state=locked.state)
        run = locked_run(locked.run_id)
        published = _as_published(locked, found)
        _finish(locked, run, url=published.url or "", draft=published.draft, note=published.note)
    return "done"


def _unknown_row(public_id: uuid.UUID, member: Membership) -> Publication:
    row = (
        Publication.objects.select_related(
            "run", "run__tenant", "run__version", "run__version__contract", "candidate", "packet"
        )
        .filter(tenant_id=member.tenant_id, public_id=public_id)
        .first()
    )
    if row is None:
        raise NotFound
    if row.state != PublicationState.UNKNOWN:
        raise errors.NotUnknown(state=row.state)
    return row


@transaction.atomic(durable=True)
def try_again(public_id: uuid.UUID, *, member: Membership) -> Publication:
    """A person saw that it did not happen, and says: do it now. Same intent, same names."""
    demand(member, Permission.PUBLISH)
    row = _unknown_row(public_id, member)
    locked = Publication.objects.select_for_update(no_key=True).get(pk=row.pk)
    run = locked_run(locked.run_id)
    if locked.state != PublicationState.UNKNOWN:
        raise errors.NotUnknown(state=locked.state)
    locked.state, locked.not_before, locked.note = PublicationState.INTENDED.value, None, ""
    locked.save(update_fields=["state", "not_before", "note"])
    append_events(
        run, [Draft("publication.retry_asked", run_facts(run) | {"by": member.user.name})]
    )
    audit.record("publication.retry_asked", tenant=run.tenant, subject=locked, actor=member.user)
    enqueue_on_commit(Job.PUBLISH, locked.pk)
    return locked


@transaction.atomic(durable=True)
def give_up(public_id: uuid.UUID, *, member: Membership, note: str) -> Publication:
    """A person says that it did not happen and shall not: the run ends as failed."""
    demand(member, Permission.PUBLISH)
    row = _unknown_row(public_id, member)
    locked = (
        Publication.objects.select_for_update(no_key=True, of=("self",))
        .select_related("candidate")
        .get(pk=row.pk)
    )
    run = locked_run(locked.run_id)
    if locked.state != PublicationState.UNKNOWN:
        raise errors.NotUnknown(state=locked.state)
    audit.record(
        "publication.given_up",
        tenant=run.tenant,
        subject=locked,
        actor=member.user,
        note=note[:2000],
    )
    _fail(
        locked,
        run,
        "publication.given_up",
        f"{member.user.name} settled it as not done. {note}".strip(),
        ask_again=False,
    )
    return locked
