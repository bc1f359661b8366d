"""A run's life: asked for, claimed, paused, answered, ended. Every write here has one shape."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from math import ceil
from typing import Any

from django.conf import settings
from django.db import DatabaseError, close_old_connections, connection, transaction
from django.db.models import Exists, F, Q, QuerySet, Sum
from django.utils import timezone

from portal import audit, blobs, evidence, live, statements, vault
from portal.access import demand
from portal.canonical import digest
from portal.clock import database_now
from portal.errors import NotFound, Refusal
from portal.evidence import End, Line
from portal.handoff import Job, enqueue_on_commit
from portal.models import Membership, User
from portal.redact import redact
from portal.roles import Permission
from portal.statements import Given, given
from runs import cost
from runs.contract import Contract, contract_from_data, manifest_digest
from runs.models import (
    Charge,
    Checkpoint,
    ContractVersion,
    CredentialGrant,
    EgressGrant,
    Event,
    Resumption,
    Run,
    ToolCall,
)
from runs.snapshots import Saved
from runs.states import (
    ENDED,
    TAKEN_UP,
    CallState,
    CredentialState,
    GrantState,
    ResumeState,
    RunStatus,
    Unclear,
    allowed,
)

logger = logging.getLogger(__name__)


# How many workers may be lost over one run, without a step forward, before it is given up.
MAX_LOST_WORKERS = 5


TOOLS_ONLY = "tools only"


class LeaseLost(Exception):
    """Another worker holds the run now, or the run ended: stop, and write nothing."""


class NotInForce(Refusal):
    code = "runs.not_in_force"
    text = (
        "Version {number} of “{contract}” is not in force, so no run was started. Ask a tenant "
        "admin to approve it, or start the version in force."
    )


class RunEnded(Refusal):
    code = "runs.ended"
    text = "Run {number} has already ended ({status}). Nothing was changed; start a new run."


class CallSettled(Refusal):
    code = "runs.call_settled"
    text = "This call is no longer waiting ({state}). Nothing was changed; reload the page."


@dataclass(frozen=True)
class Lease:
    """The right to write to one run until it is lost. `token` is the fencing token."""

    run_id: int
    token: uuid.UUID


@dataclass(frozen=True)
class Draft:
    """An event that is not stored yet. `payload` is redacted and stored apart."""

    kind: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    payload: str | None = None


# --- Events -----------------------------------------------------------------


def append_events(run: Run, drafts: Sequence[Draft], *, known_secrets: Iterable[str] = ()) -> None:
    """Append to the run's chain inside the caller's transaction. The only writer of events.

    The run's row holds the head of the chain, so that nothing grows with the number of events
    already there. It is moved on from the head that `run` knows, which locks the row; where the
    chain went on since `run` was read, that matches nothing and the head is read anew, locked.
    """
    secrets = tuple(known_secrets)
    now = timezone.now()
    noted = [_noted(run, each, now, secrets) for each in drafts]
    together = _together.get()
    if together is not None and together.run_id == run.pk:
        together.noted += noted
    else:
        _append(run, noted)
    live.changed_on_commit(live.run_topic(run.pk))


@contextmanager
def together(run: Run) -> Iterator[None]:
    """Append all events of this run that come up inside at once, at the end, in their order.

    Inside nobody reads them: they are there when the block is left. Part of one transaction.
    """
    gathered = _Together(run.pk)
    before = _together.set(gathered)
    try:
        yield
    finally:
        _together.reset(before)
    if gathered.noted:
        _append(run, gathered.noted)


@dataclass
class _Together:
    run_id: int
    noted: list[Event] = field(default_factory=list)


_together: ContextVar[_Together | None] = ContextVar("_together", default=None)


def _noted(run: Run, draft: Draft, now: datetime, secrets: tuple[str, ...]) -> Event:
    """The event without its place in the chain."""
    payload = ""
    if draft.payload is not None:
        text = redact(draft.payload, known=secrets)
        payload = blobs.put(run.tenant_id, text.encode("utf-8", "replace"))
    facts = _redacted(dict(draft.facts), secrets)
    return Event(
        tenant_id=run.tenant_id,
        run_id=run.pk,
        at=now,
        kind=draft.kind,
        facts=facts,
        payload=payload,
    )


def _append(run: Run, events: Sequence[Event]) -> None:
    seq, head = run.event_seq, run.event_head
    end = _chained(events, seq, head)
    if not _move_head(run=run.pk, seq=seq, head=head, to_seq=end[0], to_head=end[1]):
        ((seq, head),) = _HEAD.all(run=run.pk)
        end = _chained(events, seq, head)
        _move_head(run=run.pk, seq=seq, head=head, to_seq=end[0], to_head=end[1])
    statements.insert(*events)
    run.event_seq, run.event_head = end


def _chained(events: Sequence[Event], seq: int, head: str) -> tuple[int, str]:
    """Give events their places behind this head: the new one."""
    for event in events:
        seq += 1
        event.seq, event.previous = seq, head
        head = event.hash = digest(event_body(event))
    return seq, head


_HEAD = statements.Query(
    lambda: (
        Run.objects.select_for_update(no_key=True)
        .filter(pk=given("run", Run))
        .values_list("event_seq", "event_head")
    )
)
_move_head = statements.Change(
    lambda: Run.objects.filter(
        pk=given("run", Run),
        event_seq=given("seq", Run, "event_seq"),
        event_head=given("head", Run, "event_head"),
    ),
    event_seq=given("to_seq", Run, "event_seq"),
    event_head=given("to_head", Run, "event_head"),
)


def event_body(event: Event) -> dict[str, Any]:
    """What an event's hash covers."""
    return {
        "run": event.run_id,
        "seq": event.seq,
        "at": event.at.isoformat(),
        "kind": event.kind,
        "facts": event.facts,
        "payload": event.payload,
        "previous": event.previous,
    }


def _redacted(value: Any, secrets: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        return redact(value, known=secrets)
    if isinstance(value, dict):
        return {str(key): _redacted(each, secrets) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(each, secrets) for each in value]
    return value


def event_lines(run: Run) -> Iterator[Line]:
    """The run's chain as evidence that stands for itself, oldest event first."""
    events = Event.objects.filter(run=run).order_by("seq")
    return (Line(event_body(event), event.hash) for event in events.iterator())


def event_chain_broken_at(run: Run) -> int | None:
    """The number of the first event that does not fit or is missing, or None."""

    def end() -> End:
        now = Run.objects.only("event_seq", "event_head").get(pk=run.pk)
        return now.event_seq, now.event_head

    return evidence.broken_at(event_lines(run), end)


# --- Moving a run ------------------------------------------------------------


def _move(run: Run, status: RunStatus, **changes: Any) -> None:
    """Change the status of a locked run, or raise `RunEnded`. Saves only the named fields.

    A lease is the right to one step, so it ends with the step.
    """
    if not allowed(RunStatus(run.status), status):
        raise RunEnded(number=run.number, status=run.status)
    now, lease = timezone.now(), run.lease_token
    run.status, run.status_at = status.value, now
    changes |= {"lease_token": None, "lease_expires_at": None}
    if status in ENDED:
        changes["ended_at"] = now
    for name, value in changes.items():
        setattr(run, name, value)
    statements.store(run, "status", "status_at", *changes)
    _close_grants(run, status, now)
    _close_credentials(run, status, now, lease)
    live.changed_on_commit(live.run_topic(run.pk), live.queue_topic(run.tenant_id))


def _close_grants(run: Run, status: RunStatus, now: datetime) -> None:
    """No network rule outlives its run, and nobody is asked for an agent that has finished.

    Nor is anybody asked whether a run that ended may go on.
    """
    if status not in ENDED and status is not RunStatus.COLLECTING:
        return
    grants = EgressGrant.objects.filter(run=run)
    waiting = grants.filter(state=GrantState.REQUESTED)
    if waiting.update(state=GrantState.WITHDRAWN, ended_at=now):
        enqueue_on_commit(Job.SWEEP_APPROVALS, run.pk)
    if status in ENDED:
        grants.filter(state=GrantState.ACTIVE).update(state=GrantState.ENDED, ended_at=now)
        Resumption.objects.filter(
            run=run, state__in=[ResumeState.WAITING, ResumeState.APPROVED]
        ).update(state=ResumeState.WITHDRAWN, settled_at=now)


def _close_credentials(run: Run, status: RunStatus, now: datetime, lease: uuid.UUID | None) -> None:
    """No secret outlives the stretch of work it was made in, and none its run."""
    if status not in ENDED and lease is None:
        return
    over = {CredentialState.LIVE: CredentialState.ENDED}
    uses = CredentialGrant.objects.filter(run=run)
    if status in ENDED:
        over[CredentialState.REQUESTED] = CredentialState.WITHDRAWN
        over[CredentialState.APPROVED] = CredentialState.ENDED
    else:
        uses = uses.filter(lease=lease)
    for use in uses.filter(state__in=sorted(over)).select_related("credential"):
        if use.takes_back:
            # Who is asked to take it back answers outside of this transaction.
            use.state, use.revoke_at = CredentialState.REVOKING.value, now
            use.save(update_fields=["state", "revoke_at"])
            enqueue_on_commit(Job.REVOKE_CREDENTIAL, use.pk)
            continue
        use.state, use.ended_at = over[CredentialState(use.state)].value, now
        use.save(update_fields=["state", "ended_at"])
        facts = {"operation": use.consumer, "credential": use.credential.name}
        append_events(run, [Draft(f"credential.{use.state}", run_facts(run) | facts)])


def locked_run(run_id: int) -> Run:
    """The run's row, locked until commit. Raises `NotFound`."""
    run = _LOCKED.first(run=run_id)
    if run is None:
        raise NotFound
    return run


def lockable() -> QuerySet[Run]:
    """Runs to be locked, with all that moving one on may touch."""
    return Run.objects.select_for_update(no_key=True, of=("self",)).select_related(
        "tenant", "version", "version__contract"
    )


_LOCKED = statements.Query(lambda: lockable().filter(pk=given("run", Run)))


def held_run(lease: Lease) -> Run:
    """The locked run, if the lease still holds. Raises `LeaseLost`."""
    run = locked_run(lease.run_id)
    if run.lease_token != lease.token:
        raise LeaseLost
    return run


@transaction.atomic(durable=True)
def request_run(version: ContractVersion, *, member: Membership) -> Run:
    """Queue one execution of a contract version that is in force."""
    return queue_run(version, member=member)


def queue_run(
    version: ContractVersion,
    *,
    member: Membership,
    restart_of: Run | None = None,
    narrowed: bool = False,
) -> Run:
    """The same inside the caller's transaction. With `restart_of` it keeps that run's source.

    `narrowed`, it has no sandbox and only the tools of the contract's fallback.
    """
    demand(member, Permission.OPERATE)
    if version.tenant_id != member.tenant_id:
        raise NotFound
    fresh = ContractVersion.objects.select_related("contract").get(pk=version.pk)
    if fresh.state != ContractVersion.State.IN_FORCE:
        raise NotInForce(number=fresh.number, contract=fresh.contract.name)
    run = Run.objects.create(
        tenant=member.tenant,
        number=member.tenant.next_number("run_count"),
        version=fresh,
        requested_by=member.user,
        status_at=timezone.now(),
        narrowed=narrowed,
        restart_of=restart_of,
        source_commit=restart_of.source_commit if restart_of else "",
        source_tree=restart_of.source_tree if restart_of else "",
    )
    again = {"restart_of": restart_of.number} if restart_of else {}
    append_events(run, [Draft("run.queued", run_facts(run) | {"by": member.user.name} | again)])
    audit.record(
        "run.requested",
        tenant=member.tenant,
        subject=run,
        actor=member.user,
        contract_digest=fresh.digest,
        manifest_digest=manifest_of(run),
        **variant_of(run),
    )
    live.changed_on_commit(live.queue_topic(run.tenant_id))
    enqueue_on_commit(Job.EXECUTE_RUN, run.pk)
    return run


def contract_of(run: Run) -> Contract:
    """The contract this run was pinned to, or its tool-only variant."""
    contract = _contract_in(json.dumps(run.version.data))
    return contract.narrowed() if run.narrowed else contract


@lru_cache(maxsize=256)
def _contract_in(data: str) -> Contract:
    """Read and check once per text: versions are immutable, and every call and answer asks them."""
    return contract_from_data(json.loads(data))


def manifest_of(run: Run) -> str:
    """The digest of what the run's fresh workspace holds: less, where it was narrowed."""
    return manifest_digest(contract_of(run)) if run.narrowed else run.version.manifest_digest


def variant_of(run: Run) -> dict[str, str]:
    """How evidence and packets say that a run was narrowed; nothing for every other one."""
    return {"variant": TOOLS_ONLY} if run.narrowed else {}


def run_facts(run: Run) -> dict[str, Any]:
    """The part of the event contract that is the same for a whole run."""
    agent = run.version.data.get("agent", {})
    return {
        "run": str(run.public_id),
        "tenant": run.tenant_id,
        "agent": agent.get("name"),
        "agent_version": agent.get("version"),
        "prompt_version": agent.get("prompt_version"),
        "provider": run.provider or None,
        "image_digest": run.image_digest or None,
        "manifest_digest": manifest_of(run),
        **variant_of(run),
    }


def claim_run(run_id: int) -> Lease | None:
    """Take the run for this worker, or return None if it is not ours to take.

    One UPDATE both asks and answers, so two workers that got the same message
    cannot both win. Same shape as healthchecks' sendalerts, which checks that
    exactly one row changed.
    """
    now = database_now()
    lease = Lease(run_id, uuid.uuid4())
    takeable = Q(status=RunStatus.QUEUED) | Q(status=RunStatus.RUNNING, lease_expires_at__lt=now)
    with transaction.atomic():
        taken = Run.objects.filter(takeable, pk=run_id).update(
            status=RunStatus.RUNNING,
            status_at=now,
            lease_token=lease.token,
            lease_expires_at=now + timedelta(seconds=settings.RUN_LEASE),
            attempts=F("attempts") + 1,
        )
        if taken != 1:
            return None
        run = locked_run(run_id)
        if run.started_at is None:
            Run.objects.filter(pk=run_id).update(started_at=now)
        if _lost_workers(run) >= MAX_LOST_WORKERS:
            _end_as_fatal(run)
            return None
        append_events(run, [Draft("run.claimed", run_facts(run) | {"attempt": run.attempts})])
    return lease


def _lost_workers(run: Run) -> int:
    """How many workers took the run since it was last queued, and never said how it went on."""
    events = Event.objects.filter(run=run)
    queued = events.filter(kind__in=("run.queued", "run.released", "run.taken_up"))
    last = queued.order_by("-seq").values_list("seq", flat=True).first() or 0
    return events.filter(kind="run.claimed", seq__gt=last).count()


def _end_as_fatal(run: Run) -> None:
    """Give a run up that one worker after the other does not survive: others need the workers."""
    end_failed(
        run,
        boundary="control",
        code="runs.workers_lost",
        operation="drive",
        text=(
            f"{MAX_LOST_WORKERS} workers in a row stopped while they worked on this run, so no "
            "other one is given it. Look for what stopped them: the machine's memory, the limits "
            "of the contract, restarts."
        ),
        retry_safe=False,
    )


def beat(lease: Lease, *, seconds: float = 0) -> Run:
    """Renew the lease and add wall time used. Raises `LeaseLost`. Returns the present row."""
    changed = Run.objects.filter(
        pk=lease.run_id, lease_token=lease.token, status=RunStatus.RUNNING
    ).update(
        lease_expires_at=database_now() + timedelta(seconds=settings.RUN_LEASE),
        seconds_used=F("seconds_used") + seconds,
    )
    if changed != 1:
        raise LeaseLost
    return Run.objects.select_related("version", "tenant").get(pk=lease.run_id)


@contextmanager
def holding(run_id: int, status: RunStatus) -> Iterator[bool]:
    """Hold a run for one step after the agent's; yields False if another worker holds it.

    Taking a tray and checking it take minutes at times. Without a lease the sweep would hand
    the same step to one worker after the other, and the reaper would take the sandbox of a
    verification for an orphan. Renewed by a thread while the block runs; moving the run on
    ends it, and so does the block's end.
    """
    now, token = database_now(), uuid.uuid4()
    free = Q(lease_token=None) | Q(lease_expires_at__lt=now)
    taken = Run.objects.filter(free, pk=run_id, status=status).update(
        lease_token=token, lease_expires_at=now + timedelta(seconds=settings.RUN_LEASE)
    )
    if taken != 1:
        yield False
        return
    held = Run.objects.filter(pk=run_id, lease_token=token)
    try:
        with renewing(lambda until: held.update(lease_expires_at=until)):
            yield True
    finally:
        held.update(lease_token=None, lease_expires_at=None)


@contextmanager
def renewing(renew: Callable[[datetime], int]) -> Iterator[None]:
    """Renew a lease from a thread while the block runs.

    `renew` writes the new end and returns how many rows took it; with none the lease is lost,
    and the thread ends.
    """
    over = threading.Event()
    keeper = threading.Thread(target=_renew, args=(renew, over), daemon=True)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join()


def _renew(renew: Callable[[datetime], int], over: threading.Event) -> None:
    try:
        while not over.wait(settings.RUN_HEARTBEAT):
            try:
                if not renew(database_now() + timedelta(seconds=settings.RUN_LEASE)):
                    return
            except DatabaseError:
                # Away for a moment; the lease decides.
                logger.exception("a lease was not renewed")
                connection.close()
    finally:
        connection.close()


@transaction.atomic(durable=True)
def note_start(
    lease: Lease,
    *,
    source_commit: str,
    source_tree: str,
    provider: str,
    image_digest: str,
    sandbox_ref: str,
    transcript_label: str,
    left_out: Sequence[str],
    resumed: bool,
    duration_ms: int,
    answers: Mapping[str, Any],
    going_on: Resumption | None = None,
) -> Run:
    """Write down where this segment works. Raises `LeaseLost`.

    `answers` are those to the questions of a resume, and `going_on` a person's approval of what
    had changed, which is used up here.
    """
    run = held_run(lease)
    if going_on is not None:
        Resumption.objects.filter(pk=going_on.pk).update(state=ResumeState.USED)
    run.source_commit, run.source_tree = source_commit, source_tree
    run.provider, run.image_digest, run.sandbox_ref = provider, image_digest, sandbox_ref
    run.transcript_label = transcript_label
    run.save(
        update_fields=[
            "source_commit",
            "source_tree",
            "provider",
            "image_digest",
            "sandbox_ref",
            "transcript_label",
        ]
    )
    append_events(
        run,
        [
            Draft(
                "sandbox.restored" if resumed else "sandbox.started",
                run_facts(run)
                | {
                    "sandbox": sandbox_ref,
                    "source_commit": source_commit,
                    "left_out": list(left_out)[:50],
                    "duration_ms": duration_ms,
                }
                | dict(answers),
            )
        ],
    )
    return run


@transaction.atomic(durable=True)
def log(lease: Lease, drafts: Sequence[Draft], *, known_secrets: Iterable[str] = ()) -> None:
    """Append events as the holder of the lease. Raises `LeaseLost`."""
    append_events(held_run(lease), drafts, known_secrets=known_secrets)


@transaction.atomic(durable=True)
def charge(lease: Lease, kind: str, what: str, quantity: int, unit: str, micros: int) -> None:
    """Put one cost on the run's tenant and contract. Raises `LeaseLost`."""
    run = held_run(lease)
    Charge.objects.create(
        tenant_id=run.tenant_id,
        run=run,
        kind=kind,
        what=what,
        quantity=quantity,
        unit=unit,
        micros=micros,
        currency=contract_of(run).limits.currency,
    )
    live.changed_on_commit(live.run_topic(run.pk))


@transaction.atomic(durable=True)
def account(lease: Lease, seconds: float) -> None:
    """Add wall time, and charge whatever compute no charge covers yet. Raises `LeaseLost`.

    The run's own seconds are the truth: a worker that died left its heartbeats'
    seconds there, and whoever works next charges them.
    """
    run = held_run(lease)
    run.seconds_used += seconds
    run.save(update_fields=["seconds_used"])
    charged = Charge.objects.filter(run=run, kind="compute").aggregate(total=Sum("quantity"))
    due = ceil(run.seconds_used) - int(charged["total"] or 0)
    if due > 0:
        Charge.objects.create(
            tenant_id=run.tenant_id,
            run=run,
            kind="compute",
            what=run.provider or "sandbox",
            quantity=due,
            unit="seconds",
            micros=cost.unit_micros(settings.UNIT_PRICES, "compute", due),
            currency=contract_of(run).limits.currency,
        )


def spent(run_id: int) -> tuple[int, int]:
    """Millionths of money and model tokens spent so far."""
    money, tokens = _SPENT.first(run=run_id) or (0, 0)
    return int(money), int(tokens or 0)


_SPENT = statements.Query(
    lambda: (
        Charge.objects.filter(run=given("run", Run))
        .values("run")
        .order_by()
        .annotate(money=Sum("micros"), tokens=Sum("quantity", filter=Q(unit="tokens")))
        .values_list("money", "tokens")
    )
)


@dataclass(frozen=True)
class Kept:
    """What a checkpoint is made of. `purpose` says where the agent stands in it."""

    purpose: str
    state: str
    saved: Saved
    sdk_version: str
    agent_name: str
    footing: Mapping[str, Any]


def _keep(run: Run, kept: Kept) -> Checkpoint:
    """The next checkpoint of a locked run, and what it costs. An earlier one is never changed."""
    last = Checkpoint.objects.filter(run=run).order_by("-seq").values_list("seq", flat=True).first()
    checkpoint = Checkpoint.objects.create(
        tenant_id=run.tenant_id,
        run=run,
        seq=(last or 0) + 1,
        purpose=kept.purpose,
        sealed_state=vault.seal(kept.state.encode()),
        state_digest=digest(kept.state),
        snapshot_blob=kept.saved.sha256,
        snapshot_size=kept.saved.size,
        left_out=list(kept.saved.left_out),
        excluded=list(kept.saved.excluded),
        artifacts=list(kept.saved.artifacts),
        source_commit=run.source_commit,
        sdk_version=kept.sdk_version,
        agent_name=kept.agent_name,
        footing=dict(kept.footing),
    )
    Charge.objects.create(
        tenant_id=run.tenant_id,
        run=run,
        kind="storage",
        what=f"checkpoint {checkpoint.seq}",
        quantity=kept.saved.size,
        unit="bytes",
        micros=cost.unit_micros(settings.UNIT_PRICES, "storage", kept.saved.size),
        currency=contract_of(run).limits.currency,
    )
    return checkpoint


def _saved(run: Run, checkpoint: Checkpoint, pending: Sequence[str] = ()) -> Draft:
    return Draft(
        "checkpoint.saved",
        run_facts(run)
        | {
            "checkpoint": checkpoint.seq,
            "purpose": checkpoint.purpose,
            "snapshot": checkpoint.snapshot_blob,
            "bytes": checkpoint.snapshot_size,
            "left_out": checkpoint.left_out[:50],
            "excluded": sum(each["files"] for each in checkpoint.excluded),
            "artifacts": [each["sha256"] for each in checkpoint.artifacts][:50],
            "waiting_calls": list(pending),
        },
    )


@transaction.atomic(durable=True)
def save_checkpoint(
    lease: Lease,
    kept: Kept,
    *,
    pending: Sequence[str],
    output: str,
    enter: RunStatus,
) -> Checkpoint | None:
    """Park the run at a verified checkpoint and hand on, all or nothing.

    `pending` are the call ids that wait for a person; their rows exist already. A stop that
    was asked for while the worker finished comes first: the run ends, and None is returned.
    """
    run = held_run(lease)
    if stopped_instead(run):
        return None
    checkpoint = _keep(run, kept)
    calls = list(ToolCall.objects.filter(run=run, call_id__in=pending))
    if {call.call_id for call in calls} != set(pending):
        raise RuntimeError("a pending call has no row")
    for call in calls:
        call.checkpoint = checkpoint
        call.save(update_fields=["checkpoint"])
        enqueue_on_commit(Job.OPEN_CALL_PACKET, call.pk)
    run.next_input = ""
    run.save(update_fields=["next_input"])
    _move(run, enter, sandbox_ref="", output=output[:100_000])
    append_events(
        run,
        [
            _saved(run, checkpoint, pending),
            Draft(f"run.{enter.value}", run_facts(run)),
        ],
    )
    if enter is RunStatus.COLLECTING:
        enqueue_on_commit(Job.COLLECT_CANDIDATE, run.pk)
    else:
        _wake_if_answered(run)
    return checkpoint


def last_checkpoint(run: Run) -> Checkpoint | None:
    """Where the run goes on from: the newest checkpoint that was not shown to be unusable."""
    return Checkpoint.objects.filter(run=run, unusable="").order_by("-seq").first()


def releases(run: Run) -> int:
    """How often the run was given back to the queue since a person last took it up."""
    events = Event.objects.filter(run=run)
    taken_up = events.filter(kind="run.taken_up").order_by("-seq").values_list("seq", flat=True)
    return events.filter(kind="run.released", seq__gt=taken_up.first() or 0).count()


@transaction.atomic(durable=True)
def release_run(lease: Lease, reason: str) -> None:
    """Give the run back to the queue, for instance because no sandbox is to be had now."""
    run = held_run(lease)
    if stopped_instead(run):
        return
    _move(run, RunStatus.QUEUED, sandbox_ref="")
    append_events(run, [Draft("run.released", run_facts(run) | {"reason": reason})])


@transaction.atomic(durable=True)
def fail_run(
    lease: Lease,
    *,
    boundary: str,
    code: str,
    operation: str,
    text: str,
    retry_safe: bool,
    unusable: Checkpoint | None = None,
    kept: Kept | None = None,
) -> None:
    """End the run as failed, with the boundary named. Raises `LeaseLost`.

    `unusable` is a checkpoint that nothing can go on from, as this failure showed. `kept` is what
    the agent had when it failed, where it can be gone on from.
    """
    run = held_run(lease)
    if kept is not None:
        append_events(run, [_saved(run, _keep(run, kept))])
    if unusable is not None:
        Checkpoint.objects.filter(pk=unusable.pk).update(unusable=code)
    end_failed(
        run,
        boundary=boundary,
        code=code,
        operation=operation,
        text=text,
        retry_safe=retry_safe,
    )


def end_failed(
    run: Run, *, boundary: str, code: str, operation: str, text: str, retry_safe: bool
) -> None:
    """Fail a locked run inside the caller's transaction."""
    _move(
        run,
        RunStatus.FAILED,
        failed_from=run.status,
        failure_boundary=boundary,
        failure_code=code,
        failure_operation=operation,
        failure_text=redact(text)[:4000],
        retry_safe=retry_safe,
        sandbox_ref="",
    )
    _close_calls(run)
    append_events(
        run,
        [
            Draft(
                "run.failed",
                run_facts(run)
                | {
                    "boundary": boundary,
                    "code": code,
                    "operation": operation,
                    "retry_safe": retry_safe,
                    "result": redact(text)[:1000],
                },
            )
        ],
    )
    audit.record("run.failed", tenant=run.tenant, subject=run, boundary=boundary, code=code)
    enqueue_on_commit(Job.SWEEP_APPROVALS, run.pk)


@transaction.atomic(durable=True)
def fail_step(
    run_id: int,
    status: RunStatus,
    *,
    boundary: str,
    code: str,
    operation: str,
    text: str,
    retry_safe: bool = False,
) -> None:
    """Fail a run at a step that no agent works on, if it still stands there."""
    run = locked_run(run_id)
    if RunStatus(run.status) is status:
        end_failed(
            run,
            boundary=boundary,
            code=code,
            operation=operation,
            text=text,
            retry_safe=retry_safe,
        )


def end_run(run: Run, status: RunStatus, **facts: Any) -> None:
    """End a locked run that did not fail, inside the caller's transaction."""
    _move(run, status, sandbox_ref="")
    _close_calls(run)
    append_events(run, [Draft(f"run.{status.value}", run_facts(run) | facts)])
    audit.record(f"run.{status.value}", tenant=run.tenant, subject=run)


def advance(
    run: Run, status: RunStatus, job: Job | None = None, row_id: int | None = None, **facts: Any
) -> None:
    """Move a locked run one step on, inside the caller's transaction, and name the next hop."""
    _move(run, status)
    append_events(run, [Draft(f"run.{status.value}", run_facts(run) | facts)])
    if job is not None and row_id is not None:
        enqueue_on_commit(job, row_id)


def take_up(run: Run, job: Job, row_id: int, **facts: Any) -> None:
    """Let a locked run that failed go on at the step it failed at, in the caller's transaction.

    The one way out of an end, and only a person takes it (`runs.recovery`). Approvals that were
    not used ended with the failure; what was done outside is known and is not done again.
    """
    if RunStatus(run.status) is not RunStatus.FAILED or run.cancel_asked_at is not None:
        raise RunEnded(number=run.number, status=run.status)
    now = timezone.now()
    status = TAKEN_UP[RunStatus(run.failed_from or RunStatus.RUNNING)]
    changes: dict[str, Any] = {
        **{"status": status.value, "status_at": now, "ended_at": None, "failed_from": ""},
        **{"failure_boundary": "", "failure_code": "", "failure_operation": ""},
        **{"failure_text": "", "retry_safe": None},
        **{"handed_to": None, "handed_by": None, "handed_at": None, "handed_note": ""},
        **{"handled_at": None},
    }
    for name, value in changes.items():
        setattr(run, name, value)
    run.save(update_fields=list(changes))
    # The contract's own rules count minutes of work, and go on with it. Whatever people granted
    # beyond it ended with the failure.
    EgressGrant.objects.filter(
        run=run, origin=EgressGrant.Origin.CONTRACT, state=GrantState.ENDED
    ).update(state=GrantState.ACTIVE, ended_at=None)
    append_events(run, [Draft("run.taken_up", run_facts(run) | {"to": status.value} | facts)])
    live.changed_on_commit(live.run_topic(run.pk), live.queue_topic(run.tenant_id))
    enqueue_on_commit(job, row_id)


def _close_calls(run: Run) -> None:
    """No call of an ended run waits any longer. One that may have acted is left to a person."""
    calls = ToolCall.objects.filter(run=run)
    for call in calls.filter(state__in=[CallState.WAITING, CallState.APPROVED]).order_by("pk"):
        facts = {"operation": call.tool, "call": call.call_id, "why": call.state}
        call.state = CallState.CANCELLED.value
        call.save(update_fields=["state"])
        append_events(run, [Draft("call.cancelled", run_facts(run) | facts)])
    for call in calls.filter(state=CallState.ACTING, outward=True):
        _leave_unknown(call, run)


def _leave_unknown(call: ToolCall, run: Run) -> None:
    """Nobody here knows whether this call acted; a person will say."""
    call.state = CallState.UNKNOWN.value
    call.save(update_fields=["state"])
    facts = {"operation": call.tool, "call": call.call_id, "boundary": "execution"}
    append_events(run, [Draft("call.unknown", run_facts(run) | facts)])


@transaction.atomic(durable=True)
def ask_cancel(run: Run, *, member: Membership) -> Run:
    """Ask for a stop. A parked run ends at once, a running one when its worker sees it."""
    demand(member, Permission.OPERATE)
    locked = locked_run(run.pk)
    if locked.tenant_id != member.tenant_id:
        raise NotFound
    if not locked.is_live:
        raise RunEnded(number=locked.number, status=locked.status)
    if RunStatus(locked.status) is RunStatus.PUBLISHING:
        raise RunEnded(number=locked.number, status="being published")
    _ask_stop(locked, member.user, {"by": member.user.name})
    if RunStatus(locked.status) is not RunStatus.RUNNING:
        _cancel(locked, by=member.user.name)
    return locked


@transaction.atomic(durable=True)
def stop_run(run_id: int, reason: str) -> bool:
    """Stop a run because nothing of its tenant goes on; whether it has ended with that.

    One that a worker holds ends when the worker sees it, one that is published with its
    publication.
    """
    run = locked_run(run_id)
    status = RunStatus(run.status)
    if not run.is_live or status is RunStatus.PUBLISHING:
        return not run.is_live
    _ask_stop(run, None, {"reason": reason})
    alive = run.lease_expires_at is not None and run.lease_expires_at >= database_now()
    if status is RunStatus.RUNNING and alive:
        return False
    _cancel(run, reason=reason)
    return True


def _ask_stop(run: Run, person: User | None, facts: Mapping[str, str]) -> None:
    if run.cancel_asked_at is not None:
        return
    run.cancel_asked_at, run.cancel_asked_by = timezone.now(), person
    run.save(update_fields=["cancel_asked_at", "cancel_asked_by"])
    append_events(run, [Draft("run.cancel_asked", run_facts(run) | dict(facts))])
    audit.record("run.cancel_asked", tenant=run.tenant, subject=run, actor=person)


@transaction.atomic(durable=True)
def confirm_cancel(lease: Lease) -> None:
    """The worker stopped, the sandbox is gone: end the run as cancelled."""
    _cancel(held_run(lease))


def stopped_instead(run: Run) -> bool:
    """End a locked run whose stop was asked for after its worker last looked."""
    if run.cancel_asked_at is None:
        return False
    _cancel(run)
    return True


def _cancel(run: Run, **facts: str) -> None:
    end_run(run, RunStatus.CANCELLED, **facts)
    enqueue_on_commit(Job.SWEEP_APPROVALS, run.pk)


# --- Tool calls ---------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """What policy said about a call, as it is stored."""

    state: CallState
    rules: tuple[str, ...]
    policy_version: int
    policy_digest: str
    reason: str
    # What policy was told, so that it can be asked again one day; None where it was not asked.
    facts: Mapping[str, Any] | None = None
    # False: there was no policy to ask, or it failed. Nothing is allowed then.
    evaluated: bool = True


@transaction.atomic(durable=True)
def record_call(
    lease: Lease,
    *,
    call_id: str,
    tool: str,
    kind: str,
    outward: bool,
    arguments: Mapping[str, Any],
    target: str,
    judged: Judged,
) -> ToolCall:
    """Write a judged call down once. A replay of the same call meets its earlier row.

    A replay with other arguments, tool or target under the same id is refused
    (`CallState.REFUSED`): an approval covers what was read, not a position.
    """
    run = held_run(lease)
    wanted = digest({"tool": tool, "arguments": arguments, "target": target})
    call = ToolCall.objects.select_for_update(no_key=True).filter(run=run, call_id=call_id).first()
    if call is not None:
        if call.arguments_digest != wanted:
            append_events(
                run,
                [
                    Draft(
                        "call.changed",
                        run_facts(run)
                        | {
                            "operation": tool,
                            "call": call_id,
                            "read": call.arguments_digest,
                            "proposed": wanted,
                        },
                    )
                ],
            )
            call.state = CallState.REFUSED.value
            call.reason = "the arguments are not the ones this call was judged with"
        elif CallState(call.state) in (CallState.ALLOWED, CallState.REFUSED):
            # Judged anew, under the policy of now.
            _rejudge(call, judged)
        return call
    twin = _orphan(run, lease, wanted) if outward else None
    if twin is not None:
        # An earlier worker did exactly this and died before its checkpoint: the model, asked
        # again, proposes it under a new id. One effect: the row goes on under that id.
        twin.call_id = call_id
        twin.save(update_fields=["call_id"])
        append_events(
            run, [Draft("call.recognised", run_facts(run) | {"operation": tool, "call": call_id})]
        )
        return twin
    call = ToolCall.objects.create(
        tenant_id=run.tenant_id,
        run=run,
        call_id=call_id,
        tool=tool,
        kind=kind,
        outward=outward,
        arguments=arguments,
        arguments_digest=wanted,
        target=target,
        state=judged.state.value,
        rules=list(judged.rules),
        policy_version=judged.policy_version,
        policy_digest=judged.policy_digest,
        facts=judged.facts,
        reason=judged.reason,
    )
    word = {CallState.ALLOWED: "allowed", CallState.REFUSED: "denied"}.get(judged.state, "asked")
    append_events(
        run,
        [
            Draft(
                f"call.{word}",
                run_facts(run)
                | {
                    "operation": tool,
                    "call": call_id,
                    "kind": kind,
                    "arguments_digest": wanted,
                    "rules": list(judged.rules),
                    "policy_version": judged.policy_version,
                    "result": judged.reason[:300],
                },
                payload=_arguments_text(arguments),
            )
        ],
    )
    return call


def _orphan(run: Run, lease: Lease, wanted: str) -> ToolCall | None:
    """The same outward call, begun by an earlier worker after the last checkpoint.

    One that is known not to have had its effect is none: proposed again, it is a call of its own.
    """
    effective = [CallState.ACTING, CallState.DONE, CallState.UNKNOWN]
    acted = ToolCall.objects.select_for_update(no_key=True).filter(
        run=run, outward=True, arguments_digest=wanted, state__in=effective
    )
    last = last_checkpoint(run)
    if last is not None:
        acted = acted.filter(acted_at__gt=last.created_at)
    return acted.exclude(acted_lease=lease.token).order_by("pk").first()


def _rejudge(call: ToolCall, judged: Judged) -> None:
    call.state, call.rules = judged.state.value, list(judged.rules)
    call.policy_version, call.policy_digest = judged.policy_version, judged.policy_digest
    call.reason, call.facts = judged.reason, judged.facts
    call.save(
        update_fields=["state", "rules", "policy_version", "policy_digest", "reason", "facts"]
    )


def _arguments_text(arguments: Mapping[str, Any]) -> str:
    return "\n".join(
        f"{key}: {value if isinstance(value, str) else repr(value)}"
        for key, value in arguments.items()
    )


def answer_call(
    call: ToolCall,
    state: CallState,
    *,
    text: str,
    usable_until: datetime | None,
    run: Run | None = None,
) -> None:
    """Store a person's answer inside the caller's transaction; wake the run with the last one.

    The run goes back to the queue exactly when none of its calls waits any
    more, and the row lock on the run makes that happen once. `run` is the call's, where the caller
    has locked it already.
    """
    run = run or locked_run(call.run_id)
    waiting = {"call": call.pk, "run": run.pk}
    if not run.is_live or not _answer(
        **waiting, state=state.value, answer=text, usable_until=usable_until
    ):
        call.refresh_from_db(fields=["state"])
        raise CallSettled(state=call.state)
    call.state, call.answer, call.usable_until = state.value, text, usable_until
    append_events(
        run,
        [
            Draft(
                "call.answered",
                run_facts(run)
                | {"operation": call.tool, "call": call.call_id, "result": state.value},
            )
        ],
    )
    _wake_if_answered(run)


# Nobody else answered: asked and answered in one statement, which locks the call.
_answer = statements.Change(
    lambda: ToolCall.objects.filter(
        pk=given("call", ToolCall), run=given("run", Run), state=CallState.WAITING
    ),
    state=given("state", ToolCall, "state"),
    answer=given("answer", ToolCall, "answer"),
    usable_until=given("usable_until", ToolCall, "usable_until"),
)


def _wake_if_answered(run: Run) -> None:
    """Give a locked, parked run back to the queue when nobody has to answer anything any more.

    Asked by whoever parks it too: a person may settle a call while its worker still tidies up.
    """
    if RunStatus(run.status) is RunStatus.WAITING and not _STILL_ASKED.all(run=run.pk):
        advance(run, RunStatus.QUEUED, Job.EXECUTE_RUN, run.pk)


def _asked(run: Run | Given) -> QuerySet[ToolCall]:
    """The calls a person must answer or settle before the run can go on.

    A waiting call without a checkpoint is none of them: its worker stopped before it could park,
    no packet will ever ask about it, and the agent proposes it again.
    """
    parked = Q(state=CallState.WAITING, checkpoint__isnull=False)
    return ToolCall.objects.filter(parked | Q(state=CallState.UNKNOWN), run=run)


_STILL_ASKED = statements.Query(
    lambda: Run.objects.filter(
        Exists(_asked(given("run", Run)))
        | Exists(Resumption.objects.filter(run=given("run", Run), state=ResumeState.WAITING)),
        pk=given("run", Run),
    ).values_list("pk")
)


_OTHER_ARGUMENTS = "Refused: these are not the arguments that were judged. Propose a new call."

_ACTED = frozenset({CallState.ACTING.value, CallState.DONE.value, CallState.FAILED.value})


@dataclass(frozen=True)
class Held:
    """Why a call does not begin: a short name for the evidence, and words for the agent."""

    why: str
    words: str


class NotJudged(RuntimeError):
    """Somebody wants to begin a call that policy was never asked about."""


@transaction.atomic(durable=True)
def begin_call(
    lease: Lease,
    call_id: str,
    wanted: str,
    objection: Callable[[ToolCall], Held | None] = lambda call: None,
) -> tuple[bool, str, ToolCall]:
    """Immediately before the act: may it happen now? `(go, words for the agent, row)`.

    Uses an approval up: the row goes from approved to acting in this
    transaction, so a second begin never gets through. Arguments are compared
    again by digest, the deadline by the clock of now, and `objection` is asked
    in here too: why a permission given earlier no longer holds, or nothing.
    Whatever holds a call back leaves a line that names it. Raises `NotJudged`.
    """
    run = held_run(lease)
    call = ToolCall.objects.select_for_update(no_key=True).filter(run=run, call_id=call_id).first()
    if call is None:
        raise NotJudged(f"call {call_id!a} of run {run.number} was never judged")
    state = CallState(call.state)
    if call.arguments_digest != read_digest(call):
        return _hold_back(
            run,
            call,
            Held("call_changed", _OTHER_ARGUMENTS),
        )
    if call.arguments_digest != wanted:
        return _hold_back(
            run,
            call,
            Held("arguments_changed", _OTHER_ARGUMENTS),
        )
    if call.state in _ACTED and (call.outward or call.acted_lease == lease.token):
        if state in (CallState.DONE, CallState.FAILED):
            return _hold_back(run, call, Held("done_already", call.result))
    elif call.state in _ACTED:
        # An earlier worker did this inside a workspace that is gone; the workspace was
        # restored to the state before, so the same call belongs to it again.
        state = CallState.ALLOWED
    if state in (CallState.ACTING, CallState.UNKNOWN) and call.outward:
        _leave_unknown(call, run)
        return False, "", call
    if state is CallState.APPROVED:
        if call.usable_until is None or database_now() >= call.usable_until:
            call.state = CallState.EXPIRED.value
            call.save(update_fields=["state"])
            append_events(
                run,
                [Draft("call.expired", run_facts(run) | {"operation": call.tool, "call": call_id})],
            )
            return (
                False,
                "Expired: the approval was not used in time. Propose a new call if it is "
                "still needed.",
                call,
            )
    elif state is not CallState.ALLOWED:
        words = f"Refused ({state.value}): {call.answer or call.reason}"
        return _hold_back(run, call, Held(state.value, words))
    held = objection(call)
    if held is not None:
        return _hold_back(run, call, held)
    call.state, call.acted_at, call.acted_lease = (
        CallState.ACTING.value,
        timezone.now(),
        lease.token,
    )
    call.save(update_fields=["state", "acted_at", "acted_lease"])
    facts = {"operation": call.tool, "call": call_id, "arguments_digest": wanted}
    append_events(run, [Draft("call.started", run_facts(run) | facts)])
    return True, "", call


def read_digest(call: ToolCall) -> str:
    """What an approval of a call covers, computed from its row as it is stored now."""
    return digest({"tool": call.tool, "arguments": call.arguments, "target": call.target})


def _hold_back(run: Run, call: ToolCall, held: Held) -> tuple[bool, str, ToolCall]:
    facts = {"operation": call.tool, "call": call.call_id, "why": held.why}
    append_events(run, [Draft("call.held_back", run_facts(run) | facts)])
    return False, held.words, call


@transaction.atomic(durable=True)
def finish_call(
    lease: Lease,
    call_id: str,
    *,
    ok: bool,
    output: str,
    exit_code: int | None,
    duration_ms: int,
    known_secrets: Iterable[str] = (),
    receipt: Mapping[str, Any] | None = None,
) -> None:
    """Write the result of an act down, and the receipt of one that was brokered.

    Raises `LeaseLost`. The receipt's `result` is the SHA-256 of what the agent was told, which is
    the event's payload.
    """
    run = held_run(lease)
    text = redact(output, known=known_secrets)
    call = ToolCall.objects.select_for_update(no_key=True).get(run=run, call_id=call_id)
    call.state = (CallState.DONE if ok else CallState.FAILED).value
    call.result, call.exit_code, call.duration_ms = text[:20_000], exit_code, duration_ms
    if receipt:
        told = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        call.receipt = {**receipt, "result": told}
    call.save(update_fields=["state", "result", "exit_code", "duration_ms", "receipt"])
    append_events(
        run,
        [
            Draft(
                "call.finished",
                run_facts(run)
                | {
                    "operation": call.tool,
                    "call": call_id,
                    "result": "done" if ok else "failed",
                    "exit_code": exit_code,
                    "duration_ms": duration_ms,
                }
                | ({"receipt": call.receipt} if call.receipt else {}),
                payload=text,
            )
        ],
        known_secrets=known_secrets,
    )


@transaction.atomic(durable=True)
def mark_unknown(lease: Lease, call_id: str, words: str) -> None:
    """The act may have happened and nobody can tell: say so, and never try it again blindly."""
    run = held_run(lease)
    call = ToolCall.objects.select_for_update(no_key=True).get(run=run, call_id=call_id)
    call.state, call.result = CallState.UNKNOWN.value, words[:2000]
    call.save(update_fields=["state", "result"])
    append_events(
        run,
        [
            Draft(
                "call.unknown",
                run_facts(run)
                | {
                    "operation": call.tool,
                    "call": call_id,
                    "boundary": "execution",
                    "result": words[:300],
                },
            )
        ],
    )
    live.changed_on_commit(live.queue_topic(run.tenant_id))


@transaction.atomic(durable=True)
def settle_unknown_call(call: ToolCall, *, happened: bool, note: str, member: Membership) -> None:
    """A person says what became of a call whose outcome is unknown; the run goes on."""
    demand(member, Permission.PUBLISH)
    note = redact(note)
    run = locked_run(call.run_id)
    if run.tenant_id != member.tenant_id:
        raise NotFound
    locked = ToolCall.objects.select_for_update(no_key=True).get(pk=call.pk)
    if CallState(locked.state) is not CallState.UNKNOWN:
        raise CallSettled(state=locked.state)
    locked.state = (CallState.DONE if happened else CallState.FAILED).value
    locked.settled_by = member.user
    locked.result = (
        f"A person confirmed that it {'happened' if happened else 'did not happen'}. {note}".strip()
    )
    locked.save(update_fields=["state", "settled_by", "result"])
    append_events(
        run,
        [
            Draft(
                "call.settled",
                run_facts(run)
                | {
                    "operation": locked.tool,
                    "call": locked.call_id,
                    "result": locked.state,
                    "by": member.user.name,
                },
            )
        ],
    )
    audit.record(
        "call.settled",
        tenant=run.tenant,
        subject=locked,
        actor=member.user,
        happened=happened,
        note=note,
    )
    _wake_if_answered(run)


@transaction.atomic(durable=True)
def note_unclear_call(call: ToolCall, *, found: Unclear, note: str, member: Membership) -> None:
    """A person looked and cannot say what became of a call. It stays unknown, and that is told."""
    demand(member, Permission.PUBLISH)
    note = redact(note)
    run = locked_run(call.run_id)
    if run.tenant_id != member.tenant_id:
        raise NotFound
    locked = ToolCall.objects.select_for_update(no_key=True).get(pk=call.pk)
    if CallState(locked.state) is not CallState.UNKNOWN:
        raise CallSettled(state=locked.state)
    facts = {
        "operation": locked.tool,
        "call": locked.call_id,
        "result": found.value,
        "by": member.user.name,
    }
    append_events(run, [Draft("call.unclear", run_facts(run) | facts)])
    audit.record(
        "call.unclear",
        tenant=run.tenant,
        subject=locked,
        actor=member.user,
        found=found.value,
        note=note,
    )


@transaction.atomic(durable=True)
def park_unknown(lease: Lease) -> None:
    """Nobody knows whether a call acted: park the run until a person settles it."""
    run = held_run(lease)
    if stopped_instead(run):
        return
    _move(run, RunStatus.WAITING, sandbox_ref="")
    append_events(run, [Draft("run.waiting", run_facts(run) | {"reason": "outcome unknown"})])
    _wake_if_answered(run)


def request_changes(run: Run, words: str) -> None:
    """Send a locked run back to its agent with a reviewer's words, in the caller's transaction."""
    run.next_input = words
    run.save(update_fields=["next_input"])
    advance(run, RunStatus.QUEUED, Job.EXECUTE_RUN, run.pk, reason="changes requested")


# --- The sweep ---------------------------------------------------------------


def overdue_runs(now: datetime) -> list[int]:
    """Runs whose next hop is late: queued and not claimed, or running on a dead lease."""
    late = now - timedelta(seconds=2 * settings.SWEEP_SECONDS)
    return list(
        Run.objects.filter(
            Q(status=RunStatus.QUEUED, status_at__lt=late)
            | Q(status=RunStatus.RUNNING, lease_expires_at__lt=now)
        )
        .order_by("status_at")
        .values_list("pk", flat=True)[:100]
    )


def runs_to_collect(now: datetime) -> list[int]:
    """Runs that finished and whose tray nobody takes."""
    late = now - timedelta(seconds=2 * settings.SWEEP_SECONDS)
    free = Q(lease_token=None) | Q(lease_expires_at__lt=now)
    return list(
        Run.objects.filter(free, status=RunStatus.COLLECTING, status_at__lt=late).values_list(
            "pk", flat=True
        )[:500]
    )


def fail_stuck_steps(now: datetime) -> list[int]:
    """Fail runs whose tray or candidate no worker gets done with; returns their keys.

    A step that breaks in our own code is tried again by the sweep. Much longer than any step may
    take, it will not get better by itself, and somebody has to hear of it.
    """
    long_ago = now - timedelta(seconds=2 * settings.RUN_HARD_LIMIT)
    steps = (RunStatus.COLLECTING, RunStatus.CHECKING)
    stuck = Run.objects.filter(status__in=steps, status_at__lt=long_ago)
    found = list(stuck.values_list("pk", "status")[:500])
    for run_id, status in found:
        fail_step(
            run_id,
            RunStatus(status),
            boundary="control",
            code="runs.stuck",
            operation=status,
            text=(
                f"The run stood at “{status}” for more than {2 * settings.RUN_HARD_LIMIT // 60} "
                "minutes and was tried again all the time. The log of the workers has the details."
            ),
            retry_safe=True,
        )
    return [run_id for run_id, _ in found]


class LiveRuns:
    """The public ids of runs that a worker holds, also to verify: only their sandboxes may exist.

    Looked up at every question. A run is claimed before its sandbox is made, so whoever asks
    about a sandbox that is there already is never told of a run too late. A lease that ran out
    counts for as long again: a busy worker may be late with it and still hold the run.
    """

    def __contains__(self, public_id: object) -> bool:
        try:
            wanted = uuid.UUID(str(public_id))
        except ValueError:
            return False
        try:
            late = database_now() - timedelta(seconds=settings.RUN_LEASE)
            return Run.objects.filter(public_id=wanted, lease_expires_at__gte=late).exists()
        finally:
            close_old_connections()  # asked in threads that nobody else tidies up after
