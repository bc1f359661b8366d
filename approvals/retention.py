"""What is kept how long: the sweeper that removes bytes of runs that ended long ago, and says so.

Three kinds, each with its own time: snapshots of workspaces, payloads of events, and the blobs of
candidates and receipts. Nothing is removed of a run that is live, that has something unsettled, or
that is under hold; nor any bytes that such a run, or a younger one, refers to as well.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta

from django.db import transaction
from django.db.models import Exists, Max, Model, OuterRef, Q, QuerySet
from django.utils import timezone

from approvals import errors
from approvals.models import (
    Candidate,
    ContentPack,
    Hold,
    Packet,
    Publication,
    Receipt,
    Removal,
    Retention,
)
from approvals.states import PacketState, PublicationState
from portal import audit, blobs, vault
from portal.access import demand
from portal.clock import database_now
from portal.errors import NotFound
from portal.models import Membership, Tenant
from portal.redact import redact
from portal.roles import Permission
from runs.credentials.grants import unsettled
from runs.models import Checkpoint, Event, Recording, Run, ToolCall
from runs.states import CallState

KINDS = ("snapshot", "payload", "blob")
REMOVED = "retention.removed"
FORGOTTEN = "tenant.deleted"
MOST = 2_000
"""Blobs of one tenant that one sweep removes; the next one goes on."""

FRESH_SECONDS = 3600
"""Bytes put so lately may be about to be referred to by a row that is not there yet."""


@dataclass
class Swept:
    """What one sweep removed of one tenant: number and bytes of each kind."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    sizes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))

    @property
    def total(self) -> int:
        """How many blobs."""
        return sum(self.counts.values())


def retention_of(tenant: Tenant) -> Retention:
    """The tenant's times, or the ones every tenant begins with, not stored."""
    return Retention.objects.filter(tenant=tenant).first() or Retention(tenant=tenant)


def kept_runs(tenant: Tenant) -> QuerySet[Run]:
    """Runs of which nothing is removed, however old they are.

    Of a deleted tenant, whose people settle nothing any more, those under hold and those that
    still come to their end.
    """
    held = Hold.objects.filter(tenant=tenant, lifted_at=None).values("run")
    if tenant.deleted_at is not None:
        return Run.objects.filter(Q(ended_at=None) | Q(pk__in=held), tenant=tenant)
    waiting = Packet.objects.filter(tenant=tenant, state=PacketState.OPEN).values("run")
    unknown = ToolCall.objects.filter(tenant=tenant, state=CallState.UNKNOWN).values("run")
    secrets = unsettled(tenant).order_by().values("run")
    unsure = Publication.objects.filter(tenant=tenant, state=PublicationState.UNKNOWN).values("run")
    return Run.objects.filter(
        Q(ended_at=None)
        | Q(handed_to__isnull=False, handled_at=None)
        | Q(pk__in=held)
        | Q(pk__in=waiting)
        | Q(pk__in=unknown)
        | Q(pk__in=unsure)
        | Q(pk__in=secrets),
        tenant=tenant,
    )


@dataclass(frozen=True)
class _Over:
    """What may go: by kind, the runs whose time is over, as a query that asks anew each time.

    `kept` are the runs of which nothing went when this was asked, `newest` the last run there was.
    Of those runs go the bytes that nobody put since `before`, in seconds since the epoch.
    """

    times: tuple[int | None, ...]
    runs: Mapping[str, QuerySet[Run]]
    kept: frozenset[int]
    newest: int
    before: float


@dataclass(frozen=True)
class _Old:
    """One blob that a run refers to whose time is over."""

    kind: str
    run: int
    size: int


# Where rows of a run name bytes in the blob store: kind, model, the way to the run, column, and
# when the row came to be.
_COLUMNS: tuple[tuple[str, type[Model], str, str, str], ...] = (
    ("snapshot", Checkpoint, "run", "snapshot_blob", "created_at"),
    ("payload", Event, "run", "payload", "at"),
    ("payload", ToolCall, "run", "result_blob", "created_at"),
    ("blob", Candidate, "run", "patch_blob", "created_at"),
    ("blob", Candidate, "run", "pack_blob", "created_at"),
    ("blob", ContentPack, "candidate__run", "blob", "created_at"),
    ("blob", Receipt, "candidate__run", "evidence_blob", "created_at"),
)


def sweep_tenant(tenant: Tenant) -> Swept:
    """Remove what the tenant's times allow, write each down, and put the sum into the audit log.

    Holds at most `MOST` digests, however many the tenant has. Safe to repeat and to die in: a
    removal is written down before the bytes go.
    """
    if tenant.deleted_at is not None:
        _forget_conversations(tenant)
    over, swept = _over(tenant), Swept()
    if not over.runs:
        return swept
    removable = _removable(tenant, over)
    if removable and _written_down(tenant, removable, swept, over):
        for sha256 in removable:
            blobs.remove(tenant.pk, sha256, put_before=over.before)
    return swept


def _forget_conversations(tenant: Tenant) -> None:
    """Nobody goes on from a checkpoint of a deleted tenant: its encrypted run state goes too."""
    kept = Checkpoint.objects.filter(tenant=tenant).exclude(unusable=FORGOTTEN)
    kept.exclude(run__in=kept_runs(tenant)).update(unusable=FORGOTTEN, sealed_state=vault.seal(b""))


def forget_recordings(tenant: Tenant) -> None:
    """Remove what a deleted tenant played instead of asking a model."""
    over = _over(tenant)
    for row in Recording.objects.filter(tenant=tenant):
        row.delete()
        if not _still_referred_to(tenant, over, [row.blob]):
            blobs.remove(tenant.pk, row.blob)


def _removable(tenant: Tenant, over: _Over) -> dict[str, _Old]:
    """The first bytes that nothing refers to any more which is kept, `MOST` at the most."""
    with closing(_pages(tenant, over)) as pages:
        for page in pages:
            staying = _still_referred_to(tenant, over, list(page))
            if len(staying) < len(page):
                return {each: old for each, old in page.items() if each not in staying}
    return {}


def _pages(tenant: Tenant, over: _Over) -> Generator[dict[str, _Old]]:
    """What lies in the store of runs whose time is over, in portions of `MOST`."""
    page: dict[str, _Old] = {}
    for kind, run, sha256 in _old_references(tenant, over):
        found = None if sha256 in page else blobs.found(tenant.pk, sha256)
        if found is not None and found.put < over.before:
            page[sha256] = _Old(kind, run, found.size)
        if len(page) == MOST:
            yield page
            page = {}
    if page:
        yield page


def _old_references(tenant: Tenant, over: _Over) -> Iterator[tuple[str, int, str]]:
    """Kind, run and digest of whatever runs refer to whose time is over.

    Without what was removed already, unless the row is younger: then the bytes came again.
    """
    for kind, model, run, column, since in _COLUMNS:
        if kind in over.runs:
            gone = Removal.objects.filter(
                tenant=tenant, sha256=OuterRef(column), removed_at__gte=OuterRef(since)
            )
            rows = model._default_manager.filter(
                ~Exists(gone), **{"tenant": tenant, f"{run}__in": over.runs[kind]}
            )
            for owner, sha256 in rows.exclude(**{column: ""}).values_list(run, column).iterator():
                yield kind, owner, sha256
    if "blob" in over.runs:
        candidates = Candidate.objects.filter(tenant=tenant, run__in=over.runs["blob"])
        for owner, tray in candidates.values_list("run", "tray").iterator():
            for each in tray:
                yield "blob", owner, each["sha256"]


def _still_referred_to(tenant: Tenant, over: _Over, digests: Sequence[str]) -> set[str]:
    """Those of the digests that something refers to which stays."""
    staying = set(
        Recording.objects.filter(tenant=tenant, blob__in=digests).values_list("blob", flat=True)
    )
    for kind, model, run, column, _ in _COLUMNS:
        rows = model._default_manager.filter(**{"tenant": tenant, f"{column}__in": digests})
        if kind in over.runs:
            rows = rows.exclude(**{f"{run}__in": over.runs[kind]})
        staying.update(rows.values_list(column, flat=True).distinct())
    candidates = Candidate.objects.filter(tenant=tenant).exclude(tray=[])
    if "blob" in over.runs:
        candidates = candidates.exclude(run__in=over.runs["blob"])
    wanted = set(digests)
    for tray in candidates.values_list("tray", flat=True).iterator():
        staying.update(wanted.intersection(each["sha256"] for each in tray))
    return staying


def _over(tenant: Tenant) -> _Over:
    """Which runs' time is over, by kind."""
    kept = kept_runs(tenant)
    newest = Run.objects.filter(tenant=tenant).aggregate(newest=Max("pk"))["newest"] or 0
    stays = frozenset(kept.values_list("pk", flat=True))
    now, days = database_now(), _days(tenant)
    ended = Run.objects.filter(tenant=tenant).exclude(pk__in=kept.values("pk"))
    return _Over(
        times=days,
        # Nobody puts anything of a deleted tenant any more.
        before=time.time() - (0 if tenant.deleted_at else FRESH_SECONDS),
        runs={
            kind: ended.filter(ended_at__lt=now - timedelta(days=each))
            for kind, each in zip(KINDS, days, strict=True)
            if each is not None
        },
        kept=stays,
        newest=newest,
    )


def _days(tenant: Tenant) -> tuple[int | None, ...]:
    """How long each of `KINDS` is kept after a run's end; None is for ever."""
    if tenant.deleted_at is not None:
        return (0,) * len(KINDS)
    times = retention_of(tenant)
    return tuple(
        days or None for days in (times.snapshot_days, times.payload_days, times.blob_days)
    )


@transaction.atomic(durable=True)
def _written_down(tenant: Tenant, removable: Mapping[str, _Old], swept: Swept, over: _Over) -> bool:
    """Write every removal down, or nothing if a run came to be kept while they were looked for.

    Whoever places a hold writes to the audit log, and so waits for the tenant's row as well.
    """
    locked = Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
    kept = kept_runs(locked).filter(pk__lte=over.newest).values_list("pk", flat=True)
    if _days(locked) != over.times or not over.kept.issuperset(kept):
        return False
    now = timezone.now()
    Removal.objects.bulk_create(
        Removal(
            tenant=locked,
            run_id=old.run,
            kind=old.kind,
            sha256=sha256,
            size=old.size,
            removed_at=now,
        )
        for sha256, old in removable.items()
    )
    for old in removable.values():
        swept.counts[old.kind] += 1
        swept.sizes[old.kind] += old.size
    gone = [sha256 for sha256, old in removable.items() if old.kind == "snapshot"]
    Checkpoint.objects.filter(tenant=locked, snapshot_blob__in=gone, unusable="").update(
        unusable=REMOVED
    )
    audit.record(
        REMOVED,
        tenant=locked,
        subject=locked,
        removed={kind: count for kind, count in swept.counts.items() if count},
        bytes=sum(swept.sizes.values()),
    )
    return True


# --- Deciding about it ---------------------------------------------------------------------------


@transaction.atomic(durable=True)
def set_times(
    *, snapshot_days: int, payload_days: int, blob_days: int, member: Membership
) -> Retention:
    """An admin says how long. 0 keeps for ever."""
    demand(member, Permission.MANAGE)
    stored, _ = Retention.objects.update_or_create(
        tenant=member.tenant,
        defaults={
            "snapshot_days": snapshot_days,
            "payload_days": payload_days,
            "blob_days": blob_days,
            "changed_by": member.user,
            "changed_at": timezone.now(),
        },
    )
    audit.record(
        "retention.changed",
        tenant=member.tenant,
        subject=stored,
        actor=member.user,
        snapshot_days=snapshot_days,
        payload_days=payload_days,
        blob_days=blob_days,
    )
    return stored


@transaction.atomic(durable=True)
def hold(number: int, why: str, *, member: Membership) -> Hold:
    """Keep all of a run's evidence until the hold is lifted. An auditor or an admin may."""
    _may_hold(member)
    run = Run.objects.filter(tenant=member.tenant, number=number).first()
    if run is None:
        raise NotFound
    if Hold.objects.filter(run=run, lifted_at=None).exists():
        raise errors.HeldAlready(number=number)
    placed = Hold.objects.create(
        tenant=member.tenant,
        run=run,
        why=redact(why)[:2000],
        placed_by=member.user,
        placed_at=timezone.now(),
    )
    audit.record(
        "hold.placed", tenant=member.tenant, subject=run, actor=member.user, why=placed.why
    )
    return placed


@transaction.atomic(durable=True)
def lift(pk: int, *, member: Membership) -> Hold:
    """End a hold. What its run refers to is removed once its time is over."""
    _may_hold(member)
    placed = (
        Hold.objects.select_for_update(no_key=True, of=("self",))
        .select_related("run")
        .filter(pk=pk, tenant=member.tenant, lifted_at=None)
        .first()
    )
    if placed is None:
        raise NotFound
    placed.lifted_by, placed.lifted_at = member.user, timezone.now()
    placed.save(update_fields=["lifted_by", "lifted_at"])
    audit.record("hold.lifted", tenant=member.tenant, subject=placed.run, actor=member.user)
    return placed


def _may_hold(member: Membership) -> None:
    if not member.may(Permission.AUDIT):
        demand(member, Permission.MANAGE)


def holds_of(tenant: Tenant) -> QuerySet[Hold]:
    """Holds that stand, newest first."""
    rows = Hold.objects.filter(tenant=tenant, lifted_at=None)
    return rows.select_related("run", "placed_by").order_by("-placed_at")


def removals_of(tenant: Tenant) -> QuerySet[Removal]:
    """What was removed, newest first."""
    return (
        Removal.objects.filter(tenant=tenant).select_related("run").order_by("-removed_at", "-pk")
    )
