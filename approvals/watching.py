"""What one reader of a packet is told of the moment: who else looks, and what is new to them.

Nothing here is evidence and nothing here decides. It lies in the cache, for days at most, and a
page without it is only less talkative.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.cache import cache
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
    key = f"look:{packet.pk}:{member.user_id}"
    now = Look(packet.run.event_seq, packet.state)
    before = None
    try:
        before = look_of(cache.get(key) or "")
        cache.set(key, now.mark, REMEMBERED)
    except RedisError:
        pass  # then the page says only what is new from here on
    return before or Look(now.seq, now.state, again=False)


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


_ENDS = {
    PacketState.SUPERSEDED.value: "a newer packet took its place",
    PacketState.WITHDRAWN.value: "it was withdrawn",
    PacketState.CANCELLED.value: "its run was stopped",
    PacketState.EXPIRED.value: "its time to decide ran out",
}


def news_of(packet: Packet, member: Membership, since: Look) -> News | None:
    """What happened to the packet after that look, oldest first; not what the reader did."""
    events = [
        each
        for each in Event.objects.filter(
            run_id=packet.run_id, seq__gt=since.seq, kind__startswith="packet."
        ).order_by("seq")
        if each.facts.get("packet") == packet.number
    ]
    changes = [
        Change(_words(each.kind, each.facts), each.at)
        for each in events
        # What a test packet was stands in a notice of its own.
        if each.facts.get("by") != member.user.name and each.kind != "packet.canary"
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
