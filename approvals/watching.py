"""What one reader of a packet is told of the moment: who else looks, and what is new to them.

Nothing here is evidence and nothing here decides. It lies in the cache, for days at most, and a
page without it is only less talkative.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.cache import cache
from django.db.models import Q
from django.utils.dateparse import parse_datetime
from redis.exceptions import RedisError

from approvals.models import Packet
from approvals.quorum import listed
from approvals.states import PacketState
from portal import live, presence
from portal.models import Membership
from portal.roles import Permission
from runs.models import Event
from runs.narrate import tell

REMEMBERED = 14 * 86400
NAMED = 3
SHOWN = 6


def others_here(packet: Packet, member: Membership) -> str:
    """`Ada Obi and Bo Lindqvist`: who else of the tenant has this packet open and may see it."""
    keys = presence.here(live.packet_topic(packet.pk)) - {member.user_id}
    if not keys:
        return ""
    found = Membership.objects.filter(
        tenant_id=packet.tenant_id, user_id__in=keys, user__is_active=True
    ).select_related("user")
    names = sorted(each.user.name for each in found if each.may(Permission.VIEW))
    more = len(names) - NAMED
    return listed(names if more <= 0 else [*names[:NAMED], f"{more} more"])


# --- What is new ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """How far somebody has seen a packet: the run's last event, and the packet's state."""

    seq: int
    state: str
    # Whether they had opened it before.
    again: bool = True

    @property
    def mark(self) -> str:
        """As an address carries it."""
        return f"{self.seq}-{self.state}{'' if self.again else '-first'}"


_MARK = re.compile(r"([0-9]{1,9})-([a-z_]{1,20})(-first)?")


def look_of(mark: str) -> Look | None:
    """What `Look.mark` made; None for anything else."""
    found = _MARK.fullmatch(mark)
    return Look(int(found[1]), found[2], found[3] is None) if found else None


def looked(packet: Packet, member: Membership) -> Look:
    """How far this person had seen the packet before now; from now on they have seen this."""
    now, before = Look(packet.run.event_seq, packet.state), None
    with suppress(RedisError):  # without it the page says only what is new from here on
        before = look_of(cache.get(_key(packet.public_id, member)) or "")
    saw(packet, member)
    return before or Look(now.seq, now.state, again=False)


def saw(packet: Packet, member: Membership) -> None:
    """This person has seen the packet as it is now."""
    look = Look(packet.run.event_seq, packet.state)
    with suppress(RedisError):
        cache.set(_key(packet.public_id, member), look.mark, REMEMBERED)


def _key(packet: uuid.UUID, member: Membership) -> str:
    return f"look:{packet}:{member.user_id}"


@dataclass(frozen=True)
class Change:
    """One thing that happened to a packet, in a few words."""

    words: str
    at: datetime | None


@dataclass(frozen=True)
class News:
    """What happened since: the last few of it, and how many more there were."""

    changes: list[Change]
    earlier: int
    again: bool


@dataclass(frozen=True)
class Listed:
    """As much of an open packet in a list as `news_of_rows` needs."""

    packet: uuid.UUID
    number: int
    run: int
    seq: int
    supersedes: uuid.UUID | None = None


def looks_at(packets: Iterable[uuid.UUID], member: Membership) -> dict[uuid.UUID, Look]:
    """How far this person has seen which of these packets; nothing of those they never opened."""
    keys = {_key(each, member): each for each in packets}
    try:
        found = cache.get_many(keys) if keys else {}
    except RedisError:
        return {}
    looks = {keys[key]: look_of(mark) for key, mark in found.items()}
    return {packet: look for packet, look in looks.items() if look is not None}


def news_of_rows(rows: Iterable[Listed], member: Membership) -> dict[uuid.UUID, str]:
    """The last thing that happened to each of these packets after this person had it open.

    Nothing of what is as they saw it. The cache is asked once, and the database once where any of
    their runs went on.
    """
    shown = list(rows)
    asked = {key for each in shown for key in (each.packet, each.supersedes) if key is not None}
    return happened(shown, looks_at(asked, member), member)


def happened(
    rows: Iterable[Listed], looks: Mapping[uuid.UUID, Look], member: Membership
) -> dict[uuid.UUID, str]:
    """The same, of somebody whose looks are known."""
    news: dict[uuid.UUID, str] = {}
    later = Q()
    by_run: dict[int, list[Listed]] = {}
    for row in rows:
        look = looks.get(row.packet)
        if look is None:
            if row.supersedes in looks:
                news[row.packet] = "it took the place of one that you had open"
        elif row.seq > look.seq:
            later |= Q(run=row.run, seq__gt=look.seq)
            by_run.setdefault(row.run, []).append(row)
    if not by_run:
        return news
    events = Event.objects.filter(later, kind__startswith="packet.").order_by("run", "seq")
    for run, seq, kind, facts in events.values_list("run_id", "seq", "kind", "facts"):
        for row in by_run[run]:
            new = facts.get("packet") == row.number and seq > looks[row.packet].seq
            if new and _is_told(kind, facts, member):
                news[row.packet] = _words(kind, facts)
    return news


def _is_told(kind: str, facts: Mapping[str, Any], member: Membership) -> bool:
    """Not what the reader did; and what a test packet was stands in a notice of its own."""
    return facts.get("by") != member.user.name and kind != "packet.canary"


_ENDS = {
    PacketState.SUPERSEDED.value: "a newer packet took its place",
    PacketState.WITHDRAWN.value: "it was withdrawn",
    PacketState.CANCELLED.value: "its run was stopped",
    PacketState.EXPIRED.value: "its time to decide ran out",
}


def news_of(packet: Packet, member: Membership, since: Look) -> News | None:
    """What happened to the packet after that look, oldest first; not what the reader did.

    As far as the packet was read: what comes while a page is made is told by the next look, or it
    would be told here and not count as seen.
    """
    events = [
        each
        for each in Event.objects.filter(
            run_id=packet.run_id,
            seq__gt=since.seq,
            seq__lte=packet.run.event_seq,
            kind__startswith="packet.",
        ).order_by("seq")
        if each.facts.get("packet") == packet.number
    ]
    changes = [
        Change(_words(each.kind, each.facts), each.at)
        for each in events
        if _is_told(each.kind, each.facts, member)
    ]
    # Not every end has an event of its own.
    told = any(each.kind == f"packet.{packet.state}" for each in events)
    if packet.state != since.state and packet.state in _ENDS and not told:
        changes.append(Change(_ENDS[packet.state], packet.settled_at))
    if not changes:
        return None
    return News(changes[-SHOWN:], max(0, len(changes) - SHOWN), since.again)


def _words(kind: str, facts: Mapping[str, Any]) -> str:
    word, by = kind.partition(".")[2], facts.get("by") or "the portal"
    match word:
        case "approved":
            return f"{by} approved"
        case "denied":
            return f"{by} denied it"
        case "changes_requested":
            return f"{by} asked for changes"
        case "held":
            until = parse_datetime(str(facts.get("until", "")))
            return f"it is held until {until:%H:%M:%S} UTC" if until else "it is held"
        case "undone":
            return f"{by} undid the approval, and all votes are void"
        case "hold_ended":
            return "the approval did not last, and all votes are void"
        case "released":
            return "it took effect"
        case "withdrawn" if "by" in facts:
            return f"{by} withdrew it"
        case _ if word in _ENDS:
            return _ENDS[word]
    line = tell(kind, facts)
    return f"{line.head[:1].lower()}{line.head[1:]}"
