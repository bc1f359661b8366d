"""Evidence of a tenant's capabilities from its history, the packets behind each number, and the
uses of rules that end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

from django.db.models import Count, Max

from approvals.capability import (
    COLUMNS,
    Answered,
    Capability,
    Column,
    Evidence,
    columns_of,
    gathered,
    suggested_rule,
)
from approvals.history import PORTION, judged_between
from approvals.models import Decision, Packet, PolicyVersion
from approvals.policy import stored_rules
from approvals.simulator import Past
from approvals.states import Verdict
from portal.clock import database_now
from portal.models import Tenant
from runs.models import ToolCall
from runs.states import DONE_ALREADY, CallState

# The page waits for it.
SECONDS = 8.0
SHOWN = 100
LISTED = 50


@dataclass(frozen=True)
class Line:
    """One capability as a page shows it."""

    evidence: Evidence
    numbers: list[tuple[Column, int]]
    advice: str
    why: str


@dataclass
class Report:
    """All of them, those that something can be done about first. `cut`: older ones unread."""

    days: int
    lines: list[Line] = field(default_factory=list)
    more: int = 0
    cut: datetime | None = None


_FIRST = {"promote": 0, "remove": 1, "keep": 2}


def report(tenant: Tenant, days: int) -> Report:
    """The evidence of the last days."""
    scan = _Scan(tenant, days)
    found = gathered(scan)
    lines = [
        Line(each, [(column, each.counts[column]) for column in COLUMNS], *each.advice)
        for each in found.values()
    ]
    lines.sort(key=lambda line: (_FIRST[line.advice], -line.evidence.counts["asked"]))
    return Report(days, lines[:SHOWN], max(0, len(lines) - SHOWN), scan.cut)


def evidence_of(tenant: Tenant, key: str, days: int) -> Evidence | None:
    """The numbers of one capability; None if nothing was asked about it in these days."""
    return gathered(each for each in _Scan(tenant, days) if _key(each[0]) == key).get(key)


@dataclass(frozen=True)
class Behind:
    """The packets behind one number: the newest of them, and how many more there are."""

    capability: Capability
    column: Column
    packets: list[Packet]
    more: int


def behind(tenant: Tenant, key: str, column: Column, days: int) -> Behind | None:
    """The packets that one number counts, newest first; None for an unknown capability."""
    keys: list[int] = []
    what, count = None, 0
    for past, answered in _Scan(tenant, days):
        if past.facts is None or _key(past) != key:
            continue
        what = Capability.of(past.facts)
        if column in columns_of(past.answer, answered):
            count += 1
            if past.packet is not None and len(keys) < LISTED:
                keys.append(past.packet)
    if what is None:
        return None
    found = Packet.objects.filter(tenant=tenant, pk__in=keys).order_by("-opened_at", "-pk")
    packets = list(found.only("number", "public_id", "effect", "state", "opened_at", "settled_at"))
    return Behind(what, column, packets, count - len(packets))


def draft(evidence: Evidence, tenant: Tenant, days: int) -> str:
    """The policy in force with the suggested rule below it, for the editor: it is proposed, tried
    and put in force like any other."""
    in_force = PolicyVersion.objects.filter(
        tenant=tenant, state=PolicyVersion.State.IN_FORCE
    ).first()
    text = in_force.text if in_force else ""
    return f"{text.rstrip()}\n\n{suggested_rule(evidence, days, database_now())}"


def _key(past: Past) -> str:
    return Capability.of(past.facts).key if past.facts is not None else ""


class _Scan:
    """What people were asked in some days, newest first, read portion by portion."""

    def __init__(self, tenant: Tenant, days: int) -> None:
        self._tenant, self._days = tenant, days
        self.cut: datetime | None = None

    def __iter__(self) -> Iterator[tuple[Past, Answered]]:
        now = database_now()
        pasts = judged_between(self._tenant, now - timedelta(days=self._days), now)
        asked = (past for past in pasts if past.packet is not None)
        end = time.monotonic() + SECONDS
        while portion := list(islice(asked, PORTION)):
            answered = _answers(self._tenant, portion)
            for past in portion:
                if past.packet in answered:
                    yield past, answered[past.packet]
            if time.monotonic() > end:
                self.cut = portion[-1].at
                return


def _answers(tenant: Tenant, portion: Iterable[Past]) -> dict[int | None, Answered]:
    keys = [past.packet for past in portion if past.packet is not None]
    by: dict[int, set[int]] = {}
    votes = Decision.objects.filter(tenant=tenant, packet__in=keys, verdict=Verdict.APPROVE)
    for packet, person in votes.values_list("packet", "person"):
        by.setdefault(packet, set()).add(person)
    rows = Packet.objects.filter(tenant=tenant, pk__in=keys)
    return {
        pk: Answered(opened, settled, turn, frozenset(by.get(pk, ())))
        for pk, opened, settled, turn in rows.values_list("pk", "opened_at", "settled_at", "round")
    }


# --- Rules that end -------------------------------------------------------------------------------

USES_DAYS = 90


@dataclass(frozen=True)
class Use:
    """How often a rule that ends let something through, and when last."""

    count: int
    last: datetime | None
    over: bool


_WENT = (CallState.ALLOWED, CallState.ACTING, CallState.DONE, CallState.FAILED, CallState.UNKNOWN)


def uses_of(version: PolicyVersion) -> dict[str, Use]:
    """The uses of each rule of this version that ends, in the last days, by the rule's name."""
    ending = {rule.id: rule.expires for rule in stored_rules(version.text).values() if rule.expires}
    if not ending:
        return {}
    now = database_now()
    calls = (
        ToolCall.objects.filter(
            tenant=version.tenant_id,
            created_at__gte=now - timedelta(days=USES_DAYS),
            state__in=_WENT,
            packet=None,
        )
        .values("rules")
        .annotate(count=Count("pk"), last=Max("created_at"))
        .order_by()
    )
    counts: dict[str, tuple[int, datetime | None]] = dict.fromkeys(ending, (0, None))
    for each in calls:
        for name in set(each["rules"]) & ending.keys() - {DONE_ALREADY}:
            count, last = counts[name]
            counts[name] = (count + each["count"], max(filter(None, (last, each["last"]))))
    return {name: Use(*counts[name], over=now >= ends) for name, ends in ending.items()}
