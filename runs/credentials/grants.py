"""Uses of credentials: asked for, approved, made, used, taken back. The one writer of their rows.

A use is a row before anything is made for it, and the row is read again after the source answered:
whoever lost the run meanwhile gives nothing out, and what was made is taken back.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F, Q, QuerySet

from portal import audit, live, vault
from portal.clock import database_now
from portal.errors import NotAllowed, NotFound, Refusal
from portal.handoff import Job, enqueue_on_commit
from portal.models import Membership, Tenant
from portal.redact import redact
from portal.roles import Permission
from runs import lifecycle
from runs.credentials.scope import Scope
from runs.credentials.sources import (
    ConfigWrong,
    CredentialSource,
    Minted,
    Secret,
    SourceSpec,
    source_for,
)
from runs.judging import judge
from runs.lifecycle import Draft, LeaseLost, append_events, locked_run, run_facts
from runs.models import Credential, CredentialGrant, Run, ToolCall
from runs.states import CREDENTIALS_HELD, CallState, CredentialState, RunStatus

TAKES_BACK = (Permission.OPERATE, Permission.DECIDE, Permission.MANAGE)
"""Any one of these may take a credential back. Giving needs more than taking."""

SETTLES = (Permission.PUBLISH, Permission.MANAGE)
"""Any one of these may say what became of a secret of which nobody knew whether it was made."""

PUBLICATION = "publication"
SOURCE = "source"

CLAIM_SECONDS = 60
"""How long one worker may take to ask a source to take a secret back."""

FIRST_WAIT, LONGEST_WAIT = 3, 600
"""Seconds between two attempts to take a secret back, at first and at most."""

Origin = CredentialGrant.Origin


class CredentialRefused(Exception):
    """The credential is not given out. The text says why, and is meant for agent and run page.

    `why` is a short name for the evidence.
    """

    def __init__(self, text: str, why: str = "refused") -> None:
        super().__init__(text)
        self.why = why


class CredentialOver(Refusal):
    code = "runs.credential_over"
    text = "This use of “{name}” is over already ({state}). Nothing was changed."


class CredentialBusy(Refusal):
    code = "runs.credential_busy"
    text = "A secret of “{name}” is being made at this moment. Try again when that is done."


@dataclass(frozen=True)
class Use:
    """What somebody wants a credential for: where it is sent, by whom, for which call.

    `actions` narrows what the secret may do, where the source can make it for less.
    """

    name: str
    address: str
    consumer: str
    call_id: str = ""
    actions: tuple[str, ...] = ()


def source_of(row: Credential, *, keyed: bool = True) -> CredentialSource:
    """The source a row describes. Without `keyed` it can say its scope and make nothing.

    Raises `ConfigWrong` and `portal.vault.SealBroken`.
    """
    spec = SourceSpec(
        config=row.config,
        actions=tuple(row.actions),
        audience=tuple(row.audience),
        secret=vault.unseal(bytes(row.sealed)).decode() if keyed else "",
        private_hosts=frozenset(settings.BROKER_PRIVATE_HOSTS),
    )
    return source_for(row.kind, spec)


def uses_of(run: Run) -> list[CredentialGrant]:
    """Every use of a credential by the run, oldest first."""
    uses = CredentialGrant.objects.filter(run=run)
    return list(
        uses.select_related("credential", "ended_by", "settled_by", "packet").order_by("pk")
    )


def held_by(run: Run) -> list[CredentialGrant]:
    """What the run holds now: approved uses, and secrets that may be worth something."""
    held = CredentialGrant.objects.filter(run=run, state__in=sorted(CREDENTIALS_HELD))
    return list(held.select_related("credential").order_by("pk"))


# --- Asking, and the answer ----------------------------------------------------------------------


def request(run: Run, use: Use, call: ToolCall | None = None) -> CredentialGrant | None:
    """File one use that people are asked about, for a locked run in the caller's transaction.

    None where the tenant has no such credential: then there is nothing that could be given.
    """
    row = Credential.objects.filter(tenant_id=run.tenant_id, name=use.name).first()
    if row is None:
        return None
    try:
        scope = source_of(row, keyed=False).scope_for(use.address, use.actions)
    except ConfigWrong:
        return None
    unused = CredentialGrant.objects.filter(
        run=run, credential=row, consumer=use.consumer, call=call, state=CredentialState.APPROVED
    )
    # An earlier approval of the same act is worth nothing once people are asked again.
    for earlier in unused.select_related("credential"):
        _over(run, earlier, CredentialState.ENDED)
    grant = _new(run, row, use, scope, Origin.PACKET, CredentialState.REQUESTED, call=call)
    _tell(run, grant, "requested")
    return grant


def _new(
    run: Run,
    row: Credential,
    use: Use,
    scope: Scope,
    origin: str,
    state: CredentialState,
    *,
    call: ToolCall | None = None,
    max_uses: int | None = 1,
) -> CredentialGrant:
    return CredentialGrant.objects.create(
        tenant_id=run.tenant_id,
        run=run,
        credential=row,
        origin=origin,
        consumer=use.consumer,
        call=call,
        scope=scope.to_data(),
        state=state.value,
        max_uses=max_uses,
        approved_at=database_now() if state is CredentialState.APPROVED else None,
    )


def settle(grant: CredentialGrant, run: Run, state: CredentialState, *, by: str = "") -> None:
    """Store the answer to a request, or that none came, for a locked run in the caller's
    transaction. Approved, it may be used; nothing is made before somebody does."""
    locked = _locked(grant.pk)
    if locked.state != CredentialState.REQUESTED:
        return
    now = database_now()
    locked.state = state.value
    if state is CredentialState.APPROVED:
        locked.approved_at = now
    else:
        locked.ended_at = now
    locked.save(update_fields=["state", "approved_at", "ended_at"])
    _tell(run, locked, state.value, **({"by": by} if by else {}))


def _locked(grant_id: int) -> CredentialGrant:
    found = CredentialGrant.objects.select_for_update(no_key=True, of=("self",))
    return found.select_related("credential").get(pk=grant_id)


def _tell(run: Run, grant: CredentialGrant, word: str, **more: Any) -> None:
    """One line of evidence for one step of a use, without its secret."""
    append_events(run, [Draft(f"credential.{word}", run_facts(run) | facts_of(grant) | more)])


def facts_of(grant: CredentialGrant) -> dict[str, Any]:
    """What every event of a use says of it."""
    scope = grant.minted_scope or grant.scope
    return {
        "operation": grant.consumer,
        "credential": grant.credential.name,
        "credential_scope": scope,
        "origin": grant.origin,
        "call": grant.call.call_id if grant.call is not None else None,
    }


# --- Using ---------------------------------------------------------------------------------------


@transaction.atomic(durable=True)
def begin(run: Run, use: Use) -> CredentialGrant:
    """The row of one use, about to be made or alive already.

    `run` as its worker knows it. Raises `CredentialRefused`, and `LeaseLost` where the run has
    another lease by now.
    """
    locked = locked_run(run.pk)
    if run.lease_token is not None and locked.lease_token != run.lease_token:
        raise LeaseLost
    if not locked.is_live:
        raise CredentialRefused(f"Run {locked.number} has ended ({locked.status}).")
    row = Credential.objects.filter(tenant_id=run.tenant_id, name=use.name).first()
    if row is None:
        raise CredentialRefused(
            f"The tenant has no credential named “{use.name}”. A tenant admin can add it."
        )
    now = database_now()
    if refused := why_not(row, locked, use.address, now):
        raise refused
    try:
        source = source_of(row, keyed=False)
    except ConfigWrong as wrong:
        raise CredentialRefused(f"The credential “{row}” is not set up: {wrong}") from wrong
    grant = _granted(locked, row, use, source)
    if grant.state == CredentialState.LIVE:
        _count_use(locked, grant, now)
        return grant
    _still_within(grant, source, use.address)
    seconds = _lifetime(locked, row)
    if seconds < 1:
        raise CredentialRefused("The run has no time left in which a credential could be used.")
    grant.state, grant.lease = CredentialState.MINTING.value, locked.lease_token
    grant.expires_at = now + timedelta(seconds=seconds)
    grant.save(update_fields=["state", "lease", "expires_at"])
    return grant


def why_not(row: Credential, run: Run, address: str, now: datetime) -> CredentialRefused | None:
    """Why this run may not use the credential at all, or None."""
    if row.retired_at is not None:
        return CredentialRefused(
            f"The credential “{row}” is not in use any more. A tenant admin can propose it anew.",
            "retired",
        )
    if row.expires_at is not None and row.expires_at <= now:
        return CredentialRefused(
            f"The time of the credential “{row}” is over, since {row.expires_at:%Y-%m-%d %H:%M} "
            "UTC. A tenant admin can propose a later end.",
            "expired",
        )
    contract = run.version.contract.name
    if not {"*", contract} & set(row.consumers):
        return CredentialRefused(
            f"The contract “{contract}” is no consumer of the credential “{row}”. A tenant admin "
            "can propose it as one.",
            "not_a_consumer",
        )
    scope = Scope(audience=tuple(row.audience))
    if not scope.sent_to(address):
        return CredentialRefused(
            f"The credential “{row}” may not be sent to {place_of(address)}. "
            "A tenant admin can widen its audience.",
            "wrong_audience",
        )
    return None


def place_of(address: str) -> str:
    """The host an address names."""
    return address.partition("://")[2].partition("/")[0].rpartition("@")[2] or address


def _granted(run: Run, row: Credential, use: Use, source: CredentialSource) -> CredentialGrant:
    """The approval this use rests on: a person's, or the policy's or the contract's."""
    call = None
    if use.call_id:
        call = ToolCall.objects.get(run=run, call_id=use.call_id)
        if call.state != CallState.ACTING:
            raise CredentialRefused(f"The call was not begun: it is {call.state}.")
    mine = CredentialGrant.objects.select_for_update(no_key=True, of=("self",)).filter(
        run=run, consumer=use.consumer, credential=row, call=call
    )
    last = mine.select_related("credential").order_by("-pk").first()
    asked = last is not None and last.origin == Origin.PACKET
    if asked or use.consumer == PUBLICATION or (call is not None and call.usable_until is not None):
        return _approved_by_a_person(run, last)
    scope = source.scope_for(use.address, use.actions)
    if call is None:
        return _new(run, row, use, scope, Origin.CONTRACT, CredentialState.APPROVED)
    return _alive(run, row, use, scope) or _new(
        run, row, use, scope, Origin.POLICY, CredentialState.APPROVED, call=call, max_uses=None
    )


def _approved_by_a_person(run: Run, last: CredentialGrant | None) -> CredentialGrant:
    if last is None or last.approved_at is None:
        raise CredentialRefused("Nobody has approved the use of this credential.", "not_approved")
    if last.ended_by is not None:
        raise CredentialRefused(
            f"The credential “{last.credential}” was taken back by {last.ended_by.name}.",
            "taken_back",
        )
    if (held := judge().gives(last)) is not None:
        raise CredentialRefused(held.words, held.why)
    if last.state == CredentialState.APPROVED:
        return last
    # The same approved act again, after a worker that stopped or to look for its outcome.
    if last.state == CredentialState.MINTING:
        _lost(run, last)
    elif last.state == CredentialState.LIVE:
        end(run, last)
    return CredentialGrant.objects.create(
        tenant_id=last.tenant_id,
        run=run,
        credential=last.credential,
        origin=last.origin,
        consumer=last.consumer,
        call=last.call,
        scope=last.scope,
        state=CredentialState.APPROVED.value,
        max_uses=last.max_uses,
        approved_at=last.approved_at,
    )


def _alive(run: Run, row: Credential, use: Use, scope: Scope) -> CredentialGrant | None:
    """A secret of this stretch of work that policy let be made for the very same thing."""
    soon = database_now() + timedelta(seconds=30)
    found = CredentialGrant.objects.select_for_update(no_key=True, of=("self",)).filter(
        run=run,
        credential=row,
        consumer=use.consumer,
        origin=Origin.POLICY,
        state=CredentialState.LIVE,
        lease=run.lease_token,
        lease__isnull=False,
        expires_at__gt=soon,
    )
    same = found.select_related("credential").order_by("-pk").first()
    return same if same is not None and same.scope == scope.to_data() else None


def _still_within(grant: CredentialGrant, source: CredentialSource, address: str) -> Scope:
    """What may be made: never more than was approved. Raises `CredentialRefused`."""
    approved, now = Scope.from_data(grant.scope), source.scope()
    if not approved.sent_to(address):
        raise CredentialRefused(
            f"Approved was a use of “{grant.credential}” at {', '.join(approved.audience)}, not at "
            f"{place_of(address)}."
        )
    if not source.narrows:
        if more := now.beyond(approved):
            raise CredentialRefused(
                f"The credential “{grant.credential}” reaches further than what was approved: it "
                f"{', '.join(more)}. Nothing was sent; a new approval is needed.",
                "scope_widened",
            )
        return approved
    asked = approved.within(now)
    if approved.actions and not asked.actions:
        raise CredentialRefused(
            f"The credential “{grant.credential}” may not do any more what was approved. "
            "Nothing was sent."
        )
    return asked


def _lifetime(run: Run, row: Credential) -> float:
    """Seconds a secret may live: always shorter than what the run has left."""
    limit = lifecycle.contract_of(run).limits.wall_minutes * 60.0
    left = limit - run.seconds_used if run.status == RunStatus.RUNNING else limit
    return min(row.minutes * 60.0, left - 1)


def mint(grant: CredentialGrant, address: str) -> tuple[CredentialSource, Minted]:
    """Ask the source, outside any transaction. Raises what sources raise."""
    source = source_of(grant.credential)
    return source, source.mint(_still_within(grant, source, address))


@transaction.atomic(durable=True)
def made(grant_id: int, source: CredentialSource, minted: Minted) -> str:
    """Store what was made, sealed, and count its first use; or say why it is given to nobody."""
    run = locked_run(CredentialGrant.objects.values_list("run_id", flat=True).get(pk=grant_id))
    grant = _locked(grant_id)
    now = database_now()
    grant.sealed = vault.seal(
        json.dumps([minted.secret.value, minted.secret.username, dict(minted.handle)]).encode()
    )
    grant.minted_scope, grant.minted_at = minted.scope.to_data(), now
    grant.takes_back = source.takes_back
    if minted.seconds is not None:
        grant.source_ends_at = now + timedelta(seconds=max(0.0, minted.seconds))
    why, grant.why = _why_too_much(run, grant, minted)
    _shorten(grant)
    grant.save(
        update_fields=[
            "sealed",
            "minted_scope",
            "minted_at",
            "takes_back",
            "source_ends_at",
            "expires_at",
            "why",
        ]
    )
    if grant.why:
        _tell(run, grant, "refused", result=grant.why, why=why)
        audit.record(
            "credential.refused",
            tenant=run.tenant,
            subject=grant,
            credential=grant.credential.name,
            why=grant.why,
            approved=grant.scope,
            minted=grant.minted_scope,
        )
        end(run, grant, CredentialState.REFUSED)
        return grant.why
    grant.state = CredentialState.LIVE.value
    grant.save(update_fields=["state"])
    _tell(run, grant, "minted", seconds=_seconds_left(grant, now))
    audit.record(
        "credential.minted",
        tenant=run.tenant,
        subject=grant,
        credential=grant.credential.name,
        scope=grant.minted_scope,
    )
    _count_use(run, grant, now)
    return ""


def _why_too_much(run: Run, grant: CredentialGrant, minted: Minted) -> tuple[str, str]:
    """Why what was made is given to nobody, in short and in words, or two empty texts."""
    name = grant.credential.name
    if more := minted.scope.beyond(Scope.from_data(grant.scope)):
        return "scope_widened", (
            f"The source gave a secret of “{name}” that reaches further than what was approved: it "
            f"{', '.join(more)}. Nothing was sent."
        )
    if not run.is_live or run.lease_token != grant.lease or grant.state != CredentialState.MINTING:
        return "lease_lost", (
            f"The run went on without this worker while a secret of “{name}” was made."
        )
    limit = lifecycle.contract_of(run).limits.wall_minutes * 60.0
    if minted.seconds is not None and minted.seconds >= limit and not grant.takes_back:
        return "outlives_the_run", (
            f"The source gave a secret of “{name}” that outlives the run and cannot be taken back. "
            "Nothing was sent."
        )
    return "", ""


def _shorten(grant: CredentialGrant) -> None:
    """A secret is not used after the source ended it."""
    if grant.source_ends_at is not None and grant.expires_at is not None:
        grant.expires_at = min(grant.expires_at, grant.source_ends_at)


def _seconds_left(grant: CredentialGrant, now: datetime) -> int:
    return int((grant.expires_at - now).total_seconds()) if grant.expires_at is not None else 0


def _count_use(run: Run, grant: CredentialGrant, now: datetime) -> None:
    grant.uses, grant.used_at = grant.uses + 1, now
    grant.save(update_fields=["uses", "used_at"])
    _tell(run, grant, "used", times=grant.uses)


def secret_of(grant: CredentialGrant) -> tuple[Secret, dict[str, str]]:
    """The secret sealed in a row, and what taking it back needs. Raises `SealBroken`."""
    assert grant.sealed is not None  # noqa: S101 - whoever asks has just seen it
    value, username, handle = json.loads(vault.unseal(bytes(grant.sealed)))
    return Secret(value, username), handle


@transaction.atomic(durable=True)
def not_made(grant_id: int, why: str, *, unknown: bool) -> None:
    """The source gave nothing, or nobody knows what it gave."""
    run = locked_run(CredentialGrant.objects.values_list("run_id", flat=True).get(pk=grant_id))
    grant = _locked(grant_id)
    if grant.state != CredentialState.MINTING:
        return
    grant.why = why
    grant.save(update_fields=["why"])
    if unknown:
        _lost(run, grant)
    else:
        _over(run, grant, CredentialState.REFUSED, result=why)


@transaction.atomic(durable=True)
def note_refusal(run_id: int, use: Use, refused: CredentialRefused) -> None:
    """Keep a line of a use that was refused before anything was made."""
    run, why = locked_run(run_id), str(refused)
    facts = {"operation": use.consumer, "credential": use.name, "call": use.call_id or None}
    said = {"result": why, "why": refused.why}
    append_events(run, [Draft("credential.refused", run_facts(run) | facts | said)])
    audit.record(
        "credential.refused",
        tenant=run.tenant,
        subject=run,
        credential=use.name,
        consumer=use.consumer,
        why=why,
    )


# --- Ending --------------------------------------------------------------------------------------


@transaction.atomic(durable=True)
def after_use(grant_id: int) -> bool:
    """One use is over. Returns whether the secret is to be taken back now."""
    run = locked_run(CredentialGrant.objects.values_list("run_id", flat=True).get(pk=grant_id))
    grant = _locked(grant_id)
    if grant.state == CredentialState.LIVE and grant.max_uses is not None:
        end(run, grant)
    return grant.state == CredentialState.REVOKING


def end(run: Run, grant: CredentialGrant, state: CredentialState = CredentialState.ENDED) -> None:
    """End a locked use inside the caller's transaction; what can be taken back will be."""
    if not grant.takes_back or grant.sealed is None:
        _over(run, grant, state)
        return
    grant.state, grant.revoke_at = CredentialState.REVOKING.value, database_now()
    grant.save(update_fields=["state", "revoke_at"])
    enqueue_on_commit(Job.REVOKE_CREDENTIAL, grant.pk)


def _over(run: Run, grant: CredentialGrant, state: CredentialState, **more: Any) -> None:
    grant.state, grant.ended_at = state.value, database_now()
    grant.save(update_fields=["state", "ended_at"])
    _tell(run, grant, state.value, **more)


def _lost(run: Run, grant: CredentialGrant) -> None:
    """Nobody knows whether the source made a secret: say so."""
    grant.why = grant.why or "The worker stopped while the source was asked."
    grant.save(update_fields=["why"])
    _over(run, grant, CredentialState.LOST, result=grant.why)
    audit.record(
        "credential.lost", tenant=run.tenant, subject=grant, credential=grant.credential.name
    )
    live.changed_on_commit(live.queue_topic(run.tenant_id))


@transaction.atomic(durable=True)
def settle_lost(use: CredentialGrant, *, found: bool, note: str, member: Membership) -> None:
    """A person says what they found at the source: no secret, or one that they ended there."""
    if not any(member.may(each) for each in SETTLES):
        raise NotAllowed(permission=SETTLES[0].value)
    run, grant = _both(use.pk)
    if grant.state != CredentialState.LOST or grant.settled_at is not None:
        raise CredentialOver(name=grant.credential.name, state="settled")
    grant.settled_by, grant.settled_at = member.user, database_now()
    grant.settled_note = redact(note)
    grant.save(update_fields=["settled_by", "settled_at", "settled_note"])
    result = "made, and ended at the source" if found else "never made"
    _tell(run, grant, "settled", by=member.user.name, result=result)
    audit.record(
        "credential.settled",
        tenant=run.tenant,
        subject=grant,
        actor=member.user,
        credential=grant.credential.name,
        result=result,
        note=grant.settled_note,
    )
    live.changed_on_commit(live.queue_topic(run.tenant_id))


def unsettled(tenant: Tenant) -> QuerySet[CredentialGrant]:
    """Secrets of which nobody knows whether they were made, oldest first."""
    lost = CredentialGrant.objects.filter(
        tenant=tenant, state=CredentialState.LOST, settled_at=None
    )
    return lost.select_related("credential", "run__version__contract").order_by("ended_at")


@transaction.atomic(durable=True)
def take_back(run: Run, public_id: uuid.UUID, *, member: Membership) -> CredentialGrant:
    """A person ends a use. One that is being taken back already is tried again at once."""
    if not any(member.may(each) for each in TAKES_BACK):
        raise NotAllowed(permission=TAKES_BACK[0].value)
    locked = locked_run(run.pk)
    if locked.tenant_id != member.tenant_id:
        raise NotFound
    found = CredentialGrant.objects.filter(run=locked, public_id=public_id).first()
    if found is None:
        raise NotFound
    grant = _locked(found.pk)
    name = grant.credential.name
    if grant.state == CredentialState.MINTING:
        raise CredentialBusy(name=name)
    if grant.state == CredentialState.REVOKING:
        grant.revoke_at = database_now()
        grant.save(update_fields=["revoke_at"])
        enqueue_on_commit(Job.REVOKE_CREDENTIAL, grant.pk)
        return grant
    if grant.state not in (CredentialState.APPROVED, CredentialState.LIVE):
        raise CredentialOver(name=name, state=grant.state)
    grant.ended_by = member.user
    grant.save(update_fields=["ended_by"])
    _tell(locked, grant, "taken_back", by=member.user.name)
    audit.record(
        "credential.taken_back",
        tenant=locked.tenant,
        subject=grant,
        actor=member.user,
        credential=name,
    )
    end(locked, grant, CredentialState.REVOKED)
    return grant


@transaction.atomic(durable=True)
def end_now(grant_id: int) -> None:
    """End one use whose source is not in use any more."""
    run, grant = _both(grant_id)
    if grant.state in (CredentialState.APPROVED, CredentialState.LIVE):
        end(run, grant)


# --- Taking back ---------------------------------------------------------------------------------


def claim_revoke(grant_id: int) -> CredentialGrant | None:
    """Take the next attempt for this worker, or None if it is not ours to make."""
    now = database_now()
    taken = CredentialGrant.objects.filter(
        pk=grant_id, state=CredentialState.REVOKING, revoke_at__lte=now
    ).update(
        revoke_at=now + timedelta(seconds=CLAIM_SECONDS), revoke_attempts=F("revoke_attempts") + 1
    )
    if taken != 1:
        return None
    return CredentialGrant.objects.select_related("credential").get(pk=grant_id)


@transaction.atomic(durable=True)
def revoked(grant_id: int) -> None:
    """The source confirmed that the secret is worthless."""
    run, grant = _both(grant_id)
    if grant.state != CredentialState.REVOKING:
        return
    refused = grant.why and not grant.uses
    grant.revoke_error = ""
    grant.save(update_fields=["revoke_error"])
    _over(
        run,
        grant,
        CredentialState.REFUSED if refused else CredentialState.REVOKED,
        attempts=grant.revoke_attempts,
    )
    audit.record(
        "credential.revoked", tenant=run.tenant, subject=grant, credential=grant.credential.name
    )


@transaction.atomic(durable=True)
def not_revoked(grant_id: int, why: str) -> None:
    """The source did not confirm it: say so, and plan the next attempt."""
    run, grant = _both(grant_id)
    if grant.state != CredentialState.REVOKING:
        return
    now = database_now()
    first, grant.revoke_error = not grant.revoke_error, why[:500]
    if grant.source_ends_at is not None and grant.source_ends_at <= now:
        grant.save(update_fields=["revoke_error"])
        _over(run, grant, CredentialState.EXPIRED, attempts=grant.revoke_attempts)
        return
    wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(grant.revoke_attempts, 10))
    grant.revoke_at = now + timedelta(seconds=wait)
    grant.save(update_fields=["revoke_error", "revoke_at"])
    if first:
        _tell(run, grant, "revoke_failed", result=grant.revoke_error)
        audit.record(
            "credential.revoke_failed",
            tenant=run.tenant,
            subject=grant,
            credential=grant.credential.name,
            why=grant.revoke_error,
        )


def _both(grant_id: int) -> tuple[Run, CredentialGrant]:
    run = locked_run(CredentialGrant.objects.values_list("run_id", flat=True).get(pk=grant_id))
    return run, _locked(grant_id)


# --- The sweep -----------------------------------------------------------------------------------


def overdue(now: datetime) -> Sequence[int]:
    """End what no worker ends any more, wipe what nobody needs, and say what to take back."""
    dead = Q(lease__isnull=False) & (
        ~Q(run__lease_token=F("lease")) | Q(run__lease_expires_at__lt=now)
    )
    alive = CredentialGrant.objects.filter(
        state__in=(CredentialState.MINTING, CredentialState.LIVE)
    ).filter(dead | Q(expires_at__lte=now) | Q(run__ended_at__isnull=False))
    for grant_id in list(alive.values_list("pk", flat=True)[:500]):
        _end_orphan(grant_id, now)
    CredentialGrant.objects.filter(sealed__isnull=False, run__ended_at__isnull=False).exclude(
        state__in=(CredentialState.MINTING, CredentialState.LIVE, CredentialState.REVOKING)
    ).update(sealed=None)
    due = CredentialGrant.objects.filter(state=CredentialState.REVOKING, revoke_at__lte=now)
    return list(due.values_list("pk", flat=True)[:500])


@transaction.atomic(durable=True)
def _end_orphan(grant_id: int, now: datetime) -> None:
    run, grant = _both(grant_id)
    gone = run.lease_token != grant.lease or run.lease_expires_at is None
    dead = grant.lease is not None and (
        gone or (run.lease_expires_at is not None and run.lease_expires_at < now)
    )
    over = grant.expires_at is not None and grant.expires_at <= now
    if not (dead or over or not run.is_live):
        return
    if grant.state == CredentialState.MINTING:
        _lost(run, grant)
    elif grant.state == CredentialState.LIVE:
        end(run, grant, CredentialState.EXPIRED if over else CredentialState.ENDED)
