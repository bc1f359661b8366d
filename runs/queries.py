"""What the pages of runs and contracts read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.db.models import Count, Max, OuterRef, Q, QuerySet, Subquery, Sum
from django.utils import timezone

from portal import blobs
from portal.models import Tenant
from runs.lifecycle import contract_of, last_checkpoint
from runs.models import (
    Charge,
    Checkpoint,
    ContractVersion,
    Event,
    JobContract,
    Resumption,
    Run,
    ToolCall,
)
from runs.narrate import ANSWERED, JUDGED, SAID, Line, detail_of, shortened, tell
from runs.states import CallState, ResumeState, RunStatus

MICROS = 1_000_000
# The steps of the walk as the run page draws them, with the statuses that stand there.
STEPS: tuple[tuple[str, frozenset[RunStatus]], ...] = (
    ("Asked for", frozenset({RunStatus.QUEUED})),
    ("Agent at work", frozenset({RunStatus.RUNNING, RunStatus.WAITING})),
    ("Collect", frozenset({RunStatus.COLLECTING})),
    ("Check", frozenset({RunStatus.CHECKING})),
    ("Review", frozenset({RunStatus.IN_REVIEW})),
    ("Publish", frozenset({RunStatus.PUBLISHING})),
    ("Receipt", frozenset({RunStatus.PUBLISHED})),
)


def run_list(tenant: Tenant, *, status: str = "", contract: str = "") -> QuerySet[Run]:
    """Runs of a tenant, newest first."""
    runs = Run.objects.filter(tenant=tenant)
    if status == "live":
        runs = runs.filter(ended_at=None)
    elif status:
        runs = runs.filter(status=status)
    if contract:
        runs = runs.filter(version__contract__public_id=contract)
    return runs.select_related("version__contract", "requested_by", "handed_to").order_by("-number")


# --- events ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """An event with its words, as a timeline row."""

    seq: int
    at: Any
    kind: str
    line: Line
    payload: str


def _told(run: Run, events: Iterable[Event]) -> list[Told]:
    """Events with their words; calls with what was asked for, read from their rows in one query."""
    rows = list(events)
    ids = {e.facts.get("call") for e in rows if e.kind in JUDGED}
    calls = {
        call_id: detail_of(kind, arguments)
        for call_id, kind, arguments in ToolCall.objects.filter(
            run=run, call_id__in=ids - {None}
        ).values_list("call_id", "kind", "arguments")
    }
    told: list[Told] = []
    for event in rows:
        line = tell(event.kind, event.facts)
        if event.kind in JUDGED:
            line = replace(line, detail=calls.get(event.facts.get("call"), ""))
        elif event.kind == SAID and event.payload:
            line = replace(line, detail=shortened(_whole_words(run, event)))
        told.append(Told(event.seq, event.at, event.kind, line, event.payload))
    return told


def _whole_words(run: Run, event: Event) -> str:
    try:
        return payload_text(run, event)
    except blobs.BlobRemoved:
        return "(the stored words were removed by retention)"
    except blobs.BlobDamaged:
        return "(the stored words are damaged)"


def newest_events(run: Run, limit: int) -> list[Told]:
    """The latest events, newest first."""
    return _told(run, Event.objects.filter(run=run).order_by("-seq")[:limit])


def events_after(run: Run, seq: int, limit: int) -> list[Told]:
    """Events after `seq`, newest first. At most `limit` of them, and those the oldest ones,

    so that a page that fell behind catches up without a gap.
    """
    rows = list(Event.objects.filter(run=run, seq__gt=seq).order_by("seq")[:limit])
    return _told(run, reversed(rows))


def events_before(run: Run, seq: int, limit: int) -> list[Told]:
    """Older events, newest first."""
    return _told(run, Event.objects.filter(run=run, seq__lt=seq).order_by("-seq")[:limit])


# --- cost ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What a run has cost so far, against its contract's limits."""

    total: Decimal
    limit: Decimal
    currency: str
    kinds: tuple[tuple[str, Decimal], ...]
    tokens: int
    token_limit: int

    @property
    def warn(self) -> Decimal:
        return self.limit * Decimal("0.75")

    @property
    def alarm(self) -> Decimal:
        return self.limit * Decimal("0.93")


_KIND_WORDS = ("model", "compute", "tool", "storage", "egress")


def cost_of(run: Run) -> Cost:
    """Charges of the run, by kind, in money; recorded transcripts cost nothing."""
    contract = contract_of(run)
    sums: dict[str, int] = {}
    tokens = 0
    for kind, unit, micros, quantity in (
        Charge.objects.filter(run=run)
        .values_list("kind", "unit")
        .annotate(money=Sum("micros"), many=Sum("quantity"))
        .values_list("kind", "unit", "money", "many")
    ):
        sums[kind] = sums.get(kind, 0) + int(micros or 0)
        if unit == "tokens":
            tokens += int(quantity or 0)
    kinds = tuple(
        (kind, Decimal(sums.get(kind, 0)) / MICROS) for kind in dict.fromkeys((*_KIND_WORDS, *sums))
    )
    return Cost(
        total=Decimal(sum(sums.values())) / MICROS,
        limit=contract.limits.money,
        currency=contract.limits.currency,
        kinds=kinds,
        tokens=tokens,
        token_limit=contract.limits.tokens,
    )


# --- the run page ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    label: str
    state: str  # past, now, next, or the end it came to
    word: str = ""


def steps_of(run: Run) -> list[Step]:
    """Where the run stands in the walk; an ended run keeps the steps it reached."""
    status = RunStatus(run.status)
    reached = _reached(run, status)
    steps: list[Step] = []
    for at, (label, _) in enumerate(STEPS):
        if at < reached or (at == reached and status is RunStatus.PUBLISHED):
            steps.append(Step(label, "past"))
        elif at == reached:
            steps.append(Step(label, "now" if run.is_live else "end"))
        else:
            steps.append(Step(label, "next"))
    return steps


def _reached(run: Run, status: RunStatus) -> int:
    for at, (_, statuses) in enumerate(STEPS):
        if status in statuses:
            return at
    if status is RunStatus.DENIED or status is RunStatus.EXPIRED:
        return 4 if run.event_seq and _was(run, "run.in_review") else 1
    for at, kind in (
        (5, "run.publishing"),
        (4, "run.in_review"),
        (3, "run.checking"),
        (2, "run.collecting"),
    ):
        if _was(run, kind):
            return at
    return 1 if run.started_at else 0


def _was(run: Run, kind: str) -> bool:
    return Event.objects.filter(run=run, kind=kind).exists()


@dataclass(frozen=True)
class Output:
    """What the last finished command printed."""

    call: ToolCall
    text: str
    lines: int
    cut: int


SHOWN_LINES = 40


def last_output(run: Run, *, whole: bool = False) -> Output | None:
    """The output of the newest finished call, its end unless the whole is wanted."""
    call = (
        ToolCall.objects.filter(
            run=run,
            kind__in=["shell", "stdin", "http", "sql", "python", "patch"],
            state__in=[CallState.DONE, CallState.FAILED],
        )
        .order_by("-acted_at", "-pk")
        .first()
    )
    if call is None:
        return None
    lines = call.result.rstrip("\n").split("\n") if call.result else []
    kept = lines if whole else lines[-SHOWN_LINES:]
    return Output(call, "\n".join(kept), len(lines), len(lines) - len(kept))


def brokered_receipts(run: Run) -> list[dict[str, Any]]:
    """The receipt of every brokered call of the run, oldest first, with its tool and its id."""
    calls = ToolCall.objects.filter(run=run).exclude(receipt={}).order_by("acted_at", "pk")
    return [{"tool": c.tool, "call_id": c.call_id, "receipt": c.receipt} for c in calls]


def blocked_calls(run: Run) -> Sequence[ToolCall]:
    """Calls that policy denied, newest first: what the run wanted and did not get."""
    return list(
        ToolCall.objects.filter(run=run, state=CallState.REFUSED).order_by("-created_at")[:5]
    )


def waiting_calls(run: Run) -> Sequence[ToolCall]:
    """Calls of the run that a person must answer or settle."""
    return list(
        ToolCall.objects.filter(run=run, state__in=[CallState.WAITING, CallState.UNKNOWN])
        .select_related("packet")
        .order_by("pk")
    )


def waiting_to_go_on(run: Run) -> Sequence[Resumption]:
    """What a person is asked about before the run may go on from its checkpoint."""
    return list(
        Resumption.objects.filter(run=run, state=ResumeState.WAITING).select_related(
            "checkpoint", "packet"
        )
    )


@dataclass(frozen=True)
class Held:
    """One of the three kinds of state a run has: what it is now, and what a stop would lose."""

    kind: str
    icon: str
    now: str
    lost: str
    checkpoint: Checkpoint | None = None


def held_by(run: Run) -> tuple[Held, ...]:
    """Conversation, backend session and workspace, kept apart and told apart."""
    last = last_checkpoint(run)
    since = Event.objects.filter(run=run)
    if last is not None:
        since = since.filter(at__gt=last.created_at)
    working = run.lease_token is not None and run.status == RunStatus.RUNNING
    answers = since.filter(kind=ANSWERED).count() if working else 0
    calls = since.filter(kind="call.finished").count() if working else 0
    where = f"{run.provider} {run.sandbox_ref[:24]}, made anew at every resume"
    if run.narrowed:
        where = "none: this run has tools only"
    elif not run.sandbox_ref:
        where = "none: it is made anew at every resume"
    saved = f"saved with checkpoint {last.seq}, encrypted" if last else "nothing saved yet"
    return (
        Held(
            "Conversation",
            "message-square",
            f"in a worker’s memory, {saved}" if working else saved,
            f"{counted(answers, 'answer')} of the model since then" if answers else "nothing",
            last,
        ),
        Held(
            "Backend session",
            "box",
            where,
            "running commands, /tmp, its network" if run.sandbox_ref else "nothing",
        ),
        Held(
            "Workspace",
            "camera",
            f"snapshot of checkpoint {last.seq}"
            if last
            else "none: this run has tools only"
            if run.narrowed
            else f"the source at {run.source_commit[:12]}, no snapshot yet"
            if run.source_commit
            else "not filled yet",
            f"what {counted(calls, 'call')} changed since then" if calls else "nothing",
            last,
        ),
    )


def counted(number: int, one: str) -> str:
    """`1 call`, `2 calls`."""
    return f"{number:,} {one if number == 1 else one + 's'}"


def ends_by(run: Run) -> Any:
    """When the contract's wall time is used up, if the run works on without a break."""
    if RunStatus(run.status) is not RunStatus.RUNNING:
        return None
    left = contract_of(run).limits.wall_minutes * 60 - run.seconds_used
    return run.status_at + timedelta(seconds=max(0, left))


def worked(run: Run) -> timedelta:
    """Time worked so far; waiting for people does not count."""
    seconds = run.seconds_used
    if RunStatus(run.status) is RunStatus.RUNNING and not seconds:
        seconds = (timezone.now() - run.status_at).total_seconds()
    return timedelta(seconds=seconds)


def payload_text(run: Run, event: Event) -> str:
    """The payload of an event, redacted when it was stored."""
    return blobs.get(run.tenant_id, event.payload).decode("utf-8", "replace")


def last_words(run: Run) -> str:
    """What the agent said with its latest answer; empty if it only called tools."""
    events = Event.objects.filter(run=run)
    answered = events.filter(kind=ANSWERED).order_by("-seq").values_list("seq", flat=True).first()
    said = events.filter(kind=SAID, seq__gt=answered or 0).exclude(payload="").order_by("seq")
    return "\n\n".join(_whole_words(run, each) for each in said)


# --- contracts -------------------------------------------------------------------------------


def contract_list(tenant: Tenant) -> QuerySet[JobContract]:
    """Contracts of a tenant by name, each with its version in force, its newest and its runs."""
    in_force = ContractVersion.objects.filter(
        contract=OuterRef("pk"), state=ContractVersion.State.IN_FORCE
    )
    return (
        JobContract.objects.filter(tenant=tenant)
        .annotate(
            in_force=Subquery(in_force.values("number")[:1]),
            newest=Max("versions__number"),
            proposed=Count(
                "versions", filter=Q(versions__state=ContractVersion.State.PROPOSED), distinct=True
            ),
            run_count=Count("versions__runs", distinct=True),
        )
        .order_by("name")
    )


def versions_of(contract: JobContract) -> list[ContractVersion]:
    """Every version, newest first."""
    return list(contract.versions.select_related("author", "decided_by").order_by("-number"))


def versions_in_force(tenant: Tenant) -> list[ContractVersion]:
    """What a run can be started on."""
    return list(
        ContractVersion.objects.filter(tenant=tenant, state=ContractVersion.State.IN_FORCE)
        .select_related("contract")
        .order_by("contract__name")
    )
