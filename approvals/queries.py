"""What the pages of queue, packets, candidates and publications read."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from approvals import delegation, watching
from approvals import holds as _holds  # noqa: F401 - registers the lookup
from approvals.counting import Asked, needed_permission, routes_of, voters_by_packet
from approvals.models import (
    Candidate,
    Decision,
    Delegation,
    Packet,
    PolicyVersion,
    Publication,
    Receipt,
)
from approvals.quorum import Voters, listed
from approvals.search import FAR, NEAR, Sought, sought
from approvals.standing import Reader, row_sentence
from approvals.states import PacketKind, PacketState, PublicationState, Verdict
from approvals.times import said
from portal.models import Membership, Tenant, User
from runs.models import Event, Run, ToolCall
from runs.narrate import Line, tell
from runs.states import CallState

PAGE = 50
# Numbers beside the navigation are counted this far and no further: "99+".
CAP = 100
# What is said to expire soon, at the head of the queue.
SOON = timedelta(minutes=5)


# --- the queue -------------------------------------------------------------------------------


def kinds_for(member: Membership) -> list[str]:
    """The kinds of packets this member's roles can approve."""
    return [
        kind.value
        for kind in PacketKind
        if any(member.may(each) for each in needed_permission(kind, Verdict.APPROVE))
    ]


def open_packets(tenant: Tenant) -> QuerySet[Packet]:
    """Open packets of one tenant, soonest expiry first: the order of `packet_queue_idx`."""
    return Packet.objects.filter(tenant=tenant, state=PacketState.OPEN).order_by("expires_at", "id")


def mine(packets: QuerySet[Packet], member: Membership) -> QuerySet[Packet]:
    """Those that can use this member's answer: allowed, counts, not excluded, not yet given."""
    if member.user.is_machine:
        return packets.none()
    return packets.filter(_usable(member, member))


def _usable(member: Membership, holder: Membership) -> Q:
    """Packets that can use the answer of this member with the right of `holder`."""
    people = {member.user_id, holder.user_id}
    given = Q(person__in=people) | Q(on_behalf_of__in=people)
    answered = Decision.objects.filter(given, packet=OuterRef("pk"), round=OuterRef("round"))
    usable = Q(kind__in=kinds_for(holder), held_until=None) & ~Q(Exists(answered))
    usable &= Q(routes__open_to=([f"role:{role}" for role in holder.roles], holder.pk))
    if not (member.tenant.one_person and member is holder):
        for person in (member.user.person_id, holder.user.person_id)[: len(people)]:
            usable &= ~Q(excluded__holds=person)
    return usable


def _in_a_name(member: Membership, handed: Delegation) -> Q:
    """Packets that this member may answer with what was handed to them."""
    usable = _usable(member, handed.giver)
    if handed.kinds:
        usable &= Q(kind__in=handed.kinds)
    if handed.tools:
        usable &= Q(heading__tool__in=handed.tools)
    return usable


# On every page, so in one statement; each counted no further than its end of the navigation shows.
_SHELL_COUNTS = """\
WITH own AS ({own})
SELECT
  (SELECT count(*) FROM own),
  (SELECT count(*) FROM own WHERE expires_at <= %s),
  (SELECT count(*) FROM own WHERE reminded > 0),
  (SELECT count(*) FROM approvals_delegation
    WHERE taker_id = %s AND ended_at IS NULL AND begins_at <= %s AND ends_at > %s),
  (SELECT count(*) FROM (SELECT 1 FROM approvals_decision
    WHERE tenant_id = %s AND person_id = %s AND decided_at >= %s
    AND carried_from_id IS NULL LIMIT %s) AS answers),
  (SELECT count(*) FROM (SELECT 1 FROM runs_run
    WHERE tenant_id = %s AND ended_at IS NULL LIMIT %s) AS live),
  (SELECT count(*) FROM (SELECT 1 FROM runs_run
    WHERE tenant_id = %s AND handed_to_id = %s AND handled_at IS NULL LIMIT %s) AS failures),
  (SELECT count(*) FROM (SELECT 1 FROM approvals_publication
    WHERE tenant_id = %s AND state = 'unknown' LIMIT %s) AS publications)
  +
  (SELECT count(*) FROM (SELECT 1 FROM runs_toolcall
    WHERE tenant_id = %s AND state = 'unknown' LIMIT %s) AS calls)
  +
  (SELECT count(*) FROM (SELECT 1 FROM runs_credentialgrant
    WHERE tenant_id = %s AND state = 'lost' AND settled_at IS NULL LIMIT %s) AS secrets)
"""
_NUMBERS = ("queue", "soon", "reminded", "handed_over", "today", "runs", "handed", "unknown")
_NOTHING = "SELECT expires_at, reminded FROM approvals_packet WHERE 1 = 0"


@dataclass(frozen=True)
class _Asker:
    """All of a member that `mine` looks at, by value; equal ones get the same statement."""

    values: tuple[object, ...]
    member: Membership = field(compare=False)

    @classmethod
    def of(cls, member: Membership) -> _Asker:
        user, tenant = member.user, member.tenant
        told = (tenant.pk, tenant.one_person, user.pk, user.person_id, user.is_machine)
        return cls((connection.vendor, *told, member.pk, *member.roles), member)


@lru_cache(maxsize=1024)
def _own(asker: _Asker) -> QuerySet[Packet]:
    return mine(open_packets(asker.member.tenant), asker.member)


def waiting_for(member: Membership, handed: Sequence[Delegation] | None = None) -> QuerySet[Packet]:
    """Open packets that wait for this member, with what others `handed` to them: what they have
    now, unless the caller has read it.

    One's own are kept as a question, not as its answer: putting it takes longer than the database
    needs for it.
    """
    if handed is None:
        handed = delegation.received(member, timezone.now())
    if not handed:
        return _own(_Asker.of(member)).all()
    return open_packets(member.tenant).filter(_all_of(member, handed))


def _all_of(member: Membership, handed: Sequence[Delegation]) -> Q:
    every = _usable(member, member)
    for each in handed:
        every |= _in_a_name(member, each)
    return every


def names_for(
    member: Membership, handed: Sequence[Delegation], packets: Sequence[int]
) -> dict[int, list[str]]:
    """In whose names this member may answer which of these packets."""
    names: dict[int, list[str]] = {}
    for each in handed:
        theirs = Packet.objects.filter(_in_a_name(member, each), pk__in=packets)
        for pk in theirs.values_list("pk", flat=True):
            names.setdefault(pk, []).append(each.giver.user.name)
    return names


@lru_cache(maxsize=1024)
def _own_statement(asker: _Asker) -> tuple[str, tuple[Any, ...]]:
    try:
        return _own(asker).values("expires_at", "reminded")[:CAP].query.sql_with_params()
    except EmptyResultSet:
        # Nothing ever waits for a machine, or for a person whose roles answer nothing.
        return _NOTHING, ()


def shell_counts(member: Membership) -> Mapping[str, int]:
    """Small numbers for the navigation and the head of the queue, each counted to `CAP`.

    `queue` waits for this member, `soon` of that expires within `SOON`, and of `reminded` they were
    told again; `handed_over` is how many members' right to decide they have; `today` this member
    answered; `runs` are under way; `handed` are failures this member has; `unknown` outcomes stand
    on the desk.
    """
    statement, params = _own_statement(_Asker.of(member))
    stored, now = connection.ops.adapt_datetimefield_value, timezone.now()
    here, theirs = (member.tenant_id,), (member.tenant_id, member.user_id)
    values = (
        *(*params, stored(now + SOON)),
        *(member.pk, stored(now), stored(now)),
        *(*theirs, stored(_midnight()), CAP),
        *(*here, CAP),
        *(*theirs, CAP),
        *(*here, CAP),
        *(*here, CAP),
        *(*here, CAP),
    )
    with connection.cursor() as cursor:
        cursor.execute(_SHELL_COUNTS.format(own=statement), values)
        numbers = cursor.fetchone()
    counts = dict(zip(_NUMBERS, numbers, strict=True))
    if counts["handed_over"]:
        # What waits in others' names too. Few people have any, and only they ask twice.
        waiting = waiting_for(member)
        counts |= {
            "queue": waiting[:CAP].count(),
            "soon": waiting.filter(expires_at__lte=now + SOON)[:CAP].count(),
            "reminded": waiting.filter(reminded__gt=0)[:CAP].count(),
        }
    return counts


def _midnight() -> datetime:
    return timezone.localtime().replace(hour=0, minute=0, second=0, microsecond=0)


@dataclass(frozen=True)
class Filters:
    """What the queue is narrowed to."""

    scope: str = "mine"  # mine, all, decided
    kind: str = ""
    text: str = ""

    @classmethod
    def read(cls, wanted: Mapping[str, str], usual: str = "mine") -> Filters:
        """From an address; what makes no sense there falls back to what is usual."""
        scope = wanted.get("show", usual)
        kind = wanted.get("kind", "")
        return cls(
            scope=scope if scope in ("mine", "all", "decided") else usual,
            kind=kind if kind in [k.value for k in PacketKind] else "",
            text=wanted.get("q", "").replace("\x00", "").strip()[:200],
        )

    def of_kind(self, packets: QuerySet[Packet]) -> QuerySet[Packet]:
        return packets.filter(kind=self.kind) if self.kind else packets


# Plain values and not model objects: a queue page must not cost more than its fifty lines.
_ROW_VALUES = (
    "pk", "public_id", "number", "kind", "state", "effect", "opened_at", "expires_at", "settled_at",
    "needed", "blocked", "heading", "held_until", "run__number", "requested_by__name",
    "reminded", "escalated", "canary", "run_id", "run__event_seq", "supersedes__public_id",
)  # fmt: skip
Mark = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Row:
    """One packet as the queue draws it, with everything worked out. Marks: icon, words, tone."""

    pk: int
    public_id: uuid.UUID
    number: int
    kind: str
    state: str
    effect: str
    emphasis: str
    tool: str
    agent: str
    requested_by: str
    run_number: int
    opened_at: datetime
    expires_at: datetime
    settled_at: datetime | None
    needed: int
    approvals: int
    marks: tuple[Mark, ...] = ()
    # Said once it is over, and not before.
    canary: bool = False
    # Where a gate has stages: what is needed and what this reader counts as.
    sentence: str = ""
    # What happened to it after this reader had it open.
    news: str = ""

    @property
    def votes(self) -> str:
        """`Needs 1 of 1`, `Needs 1 more of 2`."""
        left = max(0, self.needed - self.approvals)
        more = " more" if self.approvals else ""
        return f"Needs {left}{more} of {self.needed}"


def _marks(
    kind: str,
    blocked: str,
    heading: Mapping[str, Any],
    *,
    held: bool,
    reminded: int,
    escalated: int,
) -> tuple[Mark, ...]:
    """The facts beside a row, the gravest first."""
    marks: list[Mark] = []
    if escalated:
        marks.append(("users", f"undecided for {said(escalated)}, others may too", "wait"))
    if reminded:
        often = {1: "once", 2: "twice"}.get(reminded, f"{reminded} times")
        marks.append(("hourglass", f"reminded {often}", "wait"))
    if "execute_seconds" in heading:
        marks.append(("clock", f"to be carried out within {said(heading['execute_seconds'])}", ""))
    if held:
        marks.append(("undo-2", "approved, can still be undone", "wait"))
    if blocked:
        marks.append(("ban", "cannot be approved", "danger"))
    if risk := heading.get("risk"):
        grave = risk != "low"
        marks.append(
            (
                "triangle-alert" if grave else "circle-check",
                f"{risk} risk",
                "danger" if grave else "",
            )
        )
    checks = heading["checks"]
    if checks:
        outcomes = list(checks.values())
        passed = outcomes.count("passed")
        if checks.get("hidden_characters", "passed") != "passed":
            marks.append(("eye-off", "hidden characters", "danger"))
        clean = passed == len(outcomes)
        sign, tone = ("circle-check", "") if clean else ("triangle-alert", "wait")
        marks.append((sign, f"{passed} of {len(outcomes)} checks passed", tone))
    added = heading["scopes_added"]
    if added:
        marks.append(("key", f"adds {added} credential scope{'s' if added > 1 else ''}", ""))
    if heading["egress"] != "none":
        marks.append(("globe", "asks for a network rule", "wait"))
    elif kind == PacketKind.CALL:
        marks.append(("globe", "sandbox network stays as it is", ""))
    return tuple(marks)


def rows_of(
    packets: QuerySet[Packet], limit: int = PAGE, reader: Membership | None = None
) -> list[Row]:
    """The first `limit` packets of one tenant as rows, in a few queries whatever their number.

    `reader` is told what they count as, where a gate has stages, and what is new to them.
    """
    found = list(packets.values(*_ROW_VALUES, "tenant_id")[:limit])
    several = [each for each in found if each["needed"] > 1 or "gate" in each["heading"]]
    voters: Mapping[int, Voters] = {}
    reading: Reader | None = None
    if several:
        tenant = Tenant.objects.get(pk=several[0]["tenant_id"])
        # Only here: of most packets one person is wanted, and nothing is counted.
        keys = [each["pk"] for each in several]
        excluded = dict(Packet.objects.filter(pk__in=keys).values_list("pk", "excluded"))
        for each in several:
            each["excluded"] = excluded[each["pk"]]
        asked = [Asked(each["pk"], each["kind"], each["excluded"]) for each in several]
        voters = voters_by_packet(tenant, asked)
        if reader is not None:
            reading = Reader(reader.user.person_id, routes_of(reader))
    news: Mapping[uuid.UUID, str] = {}
    if reader is not None:
        news = watching.news_of_rows([_listed(each) for each in found], reader)
    return [
        Row(
            pk=each["pk"],
            public_id=each["public_id"],
            number=each["number"],
            kind=each["kind"],
            state=each["state"],
            effect=each["effect"],
            emphasis=emphasis_of(each["kind"], each["heading"]["target"]),
            tool=each["heading"]["tool"],
            agent=each["heading"]["agent"],
            requested_by=each["requested_by__name"],
            run_number=each["run__number"],
            opened_at=each["opened_at"],
            expires_at=each["expires_at"],
            settled_at=each["settled_at"],
            needed=each["needed"],
            approvals=len(voters.get(each["pk"], ())),
            marks=_marks(
                each["kind"],
                each["blocked"],
                each["heading"],
                held=each["held_until"] is not None,
                reminded=each["reminded"],
                escalated=each["escalated"],
            ),
            canary=each["canary"] is not None and each["state"] != PacketState.OPEN,
            sentence=row_sentence(each, voters.get(each["pk"], {}), reading),
            news=news.get(each["public_id"], ""),
        )
        for each in found
    ]


def _listed(row: Mapping[str, Any]) -> watching.Listed:
    names = ("public_id", "number", "run_id", "run__event_seq", "supersedes__public_id")
    return watching.Listed(*(row[each] for each in names))


def news_of_shown(member: Membership, shown: Sequence[uuid.UUID]) -> dict[uuid.UUID, str]:
    """Of open packets that this member had open and a page shows: what is new, if anything is.

    Nothing is asked of the database where they had none of them open.
    """
    looks = watching.looks_at(shown, member)
    if not looks:
        return {}
    names = ("public_id", "number", "run_id", "run__event_seq")
    still = open_packets(member.tenant).filter(public_id__in=looks).order_by()
    rows = [watching.Listed(*each) for each in still.values_list(*names)]
    return {each.packet: "" for each in rows} | watching.happened(rows, looks, member)


def emphasis_of(kind: str, target: str) -> str:
    """The name in the effect sentence that stands in italics."""
    return target.partition(" ")[2] or target if kind == PacketKind.CALL else target


@dataclass(frozen=True)
class Group:
    """Rows under one heading."""

    title: str
    rows: list[Row] = field(default_factory=list)


def grouped(rows: Iterable[Row], now: datetime) -> list[Group]:
    """Rows by how soon they expire, in their order."""
    groups = (
        (now + timedelta(minutes=15), Group("Expires within 15 minutes")),
        (now + timedelta(hours=24), Group("Expires within a day")),
        (None, Group("Later")),
    )
    for row in rows:
        for limit, group in groups:
            if limit is None or row.expires_at <= limit:
                group.rows.append(row)
                break
    return [group for _, group in groups if group.rows]


# A place in the queue is the last row's expiry and key, so that a page deep in a long queue costs
# what the first one costs. For that the expiry is compared by itself: of two comparisons joined by
# OR, PostgreSQL reads everything before the place.
Place = tuple[Any, ...]


@dataclass(frozen=True)
class _Order:
    """By what a list is ordered, which is a place in it; what stands up to a place and after it."""

    columns: tuple[str, ...]
    up_to: Callable[[Place], Q]
    after: Callable[[Place], Q]

    def of(self, row: Row) -> Place:
        return tuple(getattr(row, column) for column in self.columns)


_SOONEST = _Order(
    ("expires_at", "pk"),
    lambda place: Q(expires_at__lte=place[0]) & ~Q(expires_at=place[0], id__gt=place[1]),
    lambda place: Q(expires_at__gte=place[0]) & ~Q(expires_at=place[0], id__lte=place[1]),
)
_NEWEST = _Order(
    ("number",), lambda place: Q(number__gte=place[0]), lambda place: Q(number__lt=place[0])
)


def after_cursor(packets: QuerySet[Packet], cursor: str) -> QuerySet[Packet]:
    moment, _, key = cursor.partition("~")
    when = moment_of(moment)
    if when is None or not key.isdecimal() or len(key) > 18:
        return packets
    return packets.filter(_SOONEST.after((when, int(key))))


def moment_of(text: str) -> datetime | None:
    """The moment an address names; None if it has no zone, or no calendar has it."""
    try:
        when = parse_datetime(text)
        return None if when is None or timezone.is_naive(when) else when.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True)
class QueuePage:
    """Rows, and where the next page begins. If common words did not fill the page, so many packets
    were `looked` at for them, and the next page looks further."""

    rows: list[Row]
    next_cursor: str
    looked: int = 0


def queue_page(
    packets: QuerySet[Packet],
    filters: Filters,
    cursor: str,
    reader: Membership,
    handed: Sequence[Delegation] = (),
) -> QueuePage:
    """One page of these open packets from a place on, as `reader` is shown them, who has what
    others `handed` to them."""
    every = after_cursor(filters.of_kind(open_packets(reader.tenant)), cursor)
    packets = after_cursor(filters.of_kind(packets), cursor)
    wanted = sought(filters.text, reader.tenant_id) if filters.text else None
    rows, end, looked = _found(every, packets, _SOONEST, wanted, reader, first=not cursor)
    if names := names_for(reader, handed, [row.pk for row in rows]):
        marked = {pk: ("users", f"for {listed(them)}", "wait") for pk, them in names.items()}
        rows = [
            replace(row, marks=(marked[row.pk], *row.marks)) if row.pk in marked else row
            for row in rows
        ]
    return QueuePage(rows, f"{end[0].isoformat()}~{end[1]}" if end else "", looked)


def decided_page(member: Membership, filters: Filters, before: int) -> QueuePage:
    """Settled packets of the tenant, newest first."""
    packets = Packet.objects.filter(tenant=member.tenant, settled_at__isnull=False)
    if before:
        packets = packets.filter(number__lt=before)
    every = filters.of_kind(packets).order_by("-number")
    wanted = sought(filters.text, member.tenant_id) if filters.text else None
    rows, end, looked = _found(every, every, _NEWEST, wanted, first=not before)
    return QueuePage(rows, str(end[0]) if end else "", looked)


def _found(
    every: QuerySet[Packet],
    packets: QuerySet[Packet],
    order: _Order,
    wanted: Sought | None,
    reader: Membership | None = None,
    *,
    first: bool,
) -> tuple[list[Row], Place | None, int]:
    """Rows of one page, the place where the next one begins, and how many packets were looked at
    if these were not all. `packets` are those of `every` one that may be shown.
    """
    end, looked = None, 0
    if wanted is None:
        rows = rows_of(packets, PAGE + 1, reader)
    elif wanted.keys is not None:
        rows = rows_of(packets.filter(wanted.condition, pk__in=wanted.keys), PAGE + 1, reader)
    else:
        # Words are compared before it is asked whose answer a packet can use, which takes longer.
        meant, rows = every.filter(wanted.condition), []
        for many in (NEAR, FAR - NEAR):
            ends = list(every.values_list(*order.columns)[many - 1 : many + 1])
            near = order.up_to(ends[0]) if len(ends) == 2 else Q()
            rows += rows_of(meant.filter(near) & packets, PAGE + 1 - len(rows), reader)
            if len(rows) > PAGE or not near:
                break
            further = order.after(ends[0])
            every, meant = every.filter(further), meant.filter(further)
        else:
            end, looked = ends[0], FAR
            if first:
                # What was named is shown at once, wherever it is.
                others = meant.filter(pk__in=wanted.named) & packets
                rows += rows_of(others, PAGE - len(rows), reader)
    if len(rows) > PAGE:
        end = order.of(rows[PAGE - 1])
    return rows[:PAGE], end, looked


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer and as much of its packet as a line shows."""

    public_id: uuid.UUID
    number: int
    run_number: int
    effect: str
    state: str
    verdict: str
    comment: str
    decided_at: datetime
    about: Mapping[str, Any] | None = None

    @property
    def canary(self) -> bool:
        """Whether it was a test packet, said once it is over."""
        return self.about is not None and self.state != PacketState.OPEN


def decided_by_me_today(member: Membership) -> list[Answered]:
    """This member's answers since midnight, newest first, ten of them."""
    answers = Decision.objects.filter(
        person=member.user_id,
        tenant=member.tenant_id,
        decided_at__gte=_midnight(),
        carried_from=None,
    ).order_by("-decided_at")
    columns = (
        "packet__public_id", "packet__number", "packet__run__number", "packet__effect",
        "packet__state", "verdict", "comment", "decided_at", "packet__canary",
    )  # fmt: skip
    return [Answered(*each) for each in answers.values_list(*columns)[:10]]


def newcomers(member: Membership, filters: Filters, since: datetime) -> int:
    """Packets of this view that were opened after the page was drawn, counted to `CAP`."""
    packets = open_packets(member.tenant)
    if filters.scope == "mine":
        packets = mine(packets, member)
    # Without the queue's order: the few newest are found by `packet_new_idx`.
    packets = filters.of_kind(packets).filter(opened_at__gt=since).order_by()
    if filters.text:
        if not packets.exists():
            return 0
        packets = packets.filter(sought(filters.text, member.tenant_id).condition)
    return packets[:CAP].count()


def no_longer_open(tenant: Tenant, shown: Sequence[uuid.UUID]) -> list[Row]:
    """Rows a page still shows although they were settled meanwhile."""
    if not shown:
        return []
    gone = Packet.objects.filter(tenant=tenant, public_id__in=shown).exclude(state=PacketState.OPEN)
    return rows_of(gone, len(shown))


def neighbours(packet: Packet, member: Membership) -> tuple[uuid.UUID | None, uuid.UUID | None]:
    """The packets before and after this one among those that wait for this member."""
    own = waiting_for(member).exclude(pk=packet.pk)
    here = packet.expires_at
    following = (
        own.filter(Q(expires_at__gt=here) | Q(expires_at=here, id__gt=packet.pk))
        .values_list("public_id", flat=True)
        .first()
    )
    earlier = (
        own.filter(Q(expires_at__lt=here) | Q(expires_at=here, id__lt=packet.pk))
        .order_by("-expires_at", "-id")
        .values_list("public_id", flat=True)
        .first()
    )
    return earlier, following


def first_waiting(member: Membership, but: Packet) -> tuple[uuid.UUID | None, int]:
    """The next packet to decide after this one was, and how many are left (to `CAP`)."""
    own = waiting_for(member).exclude(pk=but.pk)
    return own.values_list("public_id", flat=True).first(), own[:CAP].count()


# --- one packet ------------------------------------------------------------------------------


def names_of(person_ids: Iterable[int]) -> list[str]:
    return list(
        User.objects.filter(pk__in=list(person_ids)).order_by("name").values_list("name", flat=True)
    )


@dataclass(frozen=True)
class Told:
    """An event with its words."""

    seq: int
    at: datetime
    line: Line


# What a packet's own timeline leaves out: the small steps, which the run's page has.
_SMALL = (
    "call.started",
    "call.finished",
    "call.allowed",
    "model.answered",
    "agent.message",
    "run.claimed",
    "run.released",
)


def timeline_of(packet: Packet, limit: int = 12) -> tuple[list[Told], int]:
    """The run's larger events, oldest first, and how many events there are in all."""
    events = list(
        Event.objects.filter(run_id=packet.run_id).exclude(kind__in=_SMALL).order_by("-seq")[:limit]
    )
    total = Run.objects.values_list("event_seq", flat=True).get(pk=packet.run_id)
    return [Told(e.seq, e.at, tell(e.kind, e.facts)) for e in reversed(events)], int(total)


def discussion_of(packet: Packet) -> list[Decision]:
    """Every answer with words on any packet of the run, oldest first."""
    return list(
        Decision.objects.filter(packet__run_id=packet.run_id, carried_from=None)
        .exclude(comment="")
        .select_related("person", "packet", "packet__candidate")
        .order_by("decided_at")
    )


def withdrawal_of(packet: Packet) -> Mapping[str, Any] | None:
    """Who took a packet back and why (`by`, `reason`), if whoever asked for it did."""
    if packet.state != PacketState.WITHDRAWN:
        return None
    ends = Event.objects.filter(run_id=packet.run_id, kind="packet.withdrawn")
    facts = ends.filter(facts__packet=packet.number).values_list("facts", flat=True).first()
    return facts if facts and "reason" in facts else None


def publication_of(packet: Packet) -> Publication | None:
    return Publication.objects.filter(packet=packet).first()


def receipts_of(candidate: Candidate) -> list[Receipt]:
    return list(candidate.receipts.order_by("pk"))


# --- publications and the desk ---------------------------------------------------------------


def publication_list(tenant: Tenant) -> QuerySet[Publication]:
    return (
        Publication.objects.filter(tenant=tenant)
        .select_related("run__version__contract", "packet")
        .only(
            "public_id", "state", "target", "branch", "commit", "url", "draft", "note", "title",
            "created_at", "done_at", "run__number", "run__public_id",
            "run__version__contract__name", "packet__number", "packet__public_id", "packet__digest",
        )
        .order_by("-pk")
    )  # fmt: skip


def unknown_publications(tenant: Tenant) -> list[Publication]:
    """Publications nobody knows the outcome of, oldest first."""
    return list(
        Publication.objects.filter(tenant=tenant, state=PublicationState.UNKNOWN)
        .select_related("run__version__contract", "packet")
        .order_by("created_at")[:CAP]
    )


def unknown_calls(tenant: Tenant) -> list[ToolCall]:
    """Outward calls nobody knows the outcome of, oldest first."""
    return list(
        ToolCall.objects.filter(tenant=tenant, state=CallState.UNKNOWN)
        .select_related("run__version__contract")
        .order_by("created_at")[:CAP]
    )


# --- policy ----------------------------------------------------------------------------------


def policy_versions(tenant: Tenant) -> list[PolicyVersion]:
    return list(
        PolicyVersion.objects.filter(tenant=tenant)
        .select_related("author", "decided_by", "tenant")
        .order_by("-number")
    )


def policy_against(version: PolicyVersion) -> PolicyVersion | None:
    """What a version is compared with: a proposed one with the version in force, which it would
    replace; any other with the last one before it that was not denied.
    """
    others = PolicyVersion.objects.filter(tenant=version.tenant_id).exclude(pk=version.pk)
    if version.state == PolicyVersion.State.PROPOSED:
        return others.filter(state=PolicyVersion.State.IN_FORCE).first()
    return (
        others.filter(number__lt=version.number)
        .exclude(state__in=[PolicyVersion.State.DENIED, PolicyVersion.State.PROPOSED])
        .order_by("-number")
        .first()
    )
