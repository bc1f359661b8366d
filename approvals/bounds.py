"""What the row of a packet says beside its page, and how much of that the page allows.

The page is sealed, and its digest is what people approved. The row repeats some of it, so that
lists and sweeps need not read pages, and it moves on: rounds of votes, who stands in, holds. A row
that says more than its page and the evidence of its run do is not believed.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from approvals import times
from approvals.demands import hold_of
from approvals.models import Packet
from approvals.states import Verdict
from approvals.tally import Tally
from portal.clock import database_now
from runs.models import Event


def sealed_times(opened: datetime, expires: datetime) -> dict[str, str]:
    """As a page has them."""
    return {"opened": opened.isoformat(), "expires": expires.isoformat()}


def opened_at(packet: Packet) -> datetime:
    """Since when a packet asks, by its page; pages from before that was sealed say nothing."""
    return _moment(packet, "opened") or packet.opened_at


def decided_until(packet: Packet) -> datetime:
    """Until when it can be decided: as its row says, and never longer than its page does."""
    sealed = _moment(packet, "expires")
    return min(sealed, packet.expires_at) if sealed else packet.expires_at


def _moment(packet: Packet, name: str) -> datetime | None:
    sealed: dict[str, Any] = packet.page.get("time", {})
    return datetime.fromisoformat(sealed[name]) if name in sealed else None


def kept(packet: Packet) -> bool:
    """Whether a row whose page is intact says nothing that this page does not allow."""
    page, gate = packet.page, packet.page["gate"]
    if (page["kind"], page["effect"]) != (packet.kind, packet.effect):
        return False
    # Pages from before this was sealed name nobody.
    if gate.get("excluded", packet.excluded) != packet.excluded:
        return False
    if packet.opened_at != opened_at(packet) or packet.round != _round_told(packet):
        return False
    # Who stands in by now, by the clock and not by the row.
    return not packet.escalated or packet.escalated <= times.step_at(
        gate, opened_at(packet), database_now()
    )


def _round_told(packet: Packet) -> int:
    """The round of votes, by the events of the run: only the end of a hold begins another one."""
    if not hold_of(packet.page["gate"]):
        return 1
    ends = Event.objects.filter(
        run=packet.run_id,
        kind__in=("packet.undone", "packet.hold_ended"),
        facts__packet=packet.number,
    )
    last = ends.order_by("-seq").values_list("facts__round", flat=True).first()
    return 1 if last is None else int(last)


def _released_at(packet: Packet) -> datetime | None:
    """When its hold ended and it took effect, by the events of its run; None if it did not."""
    ends = Event.objects.filter(
        run=packet.run_id, kind="packet.released", facts__packet=packet.number
    )
    found = ends.order_by("-seq").values_list("facts__moment", "at").first()
    if found is None:
        return None
    # Events from before the moment was told are as late as their line.
    told, at = found
    return at if told is None else datetime.fromisoformat(told)


def held_until(packet: Packet, last: datetime) -> datetime:
    """When the hold after the `last` vote is over, and never sooner than the page says."""
    sealed = last + timedelta(seconds=hold_of(packet.page["gate"]))
    return max(sealed, packet.held_until or sealed)


def usable_seconds(packet: Packet) -> int:
    """How long its approval may be used: as its row says, and never longer than its page does."""
    return min(packet.valid_seconds, times.valid_seconds(packet.page["gate"], packet.kind))


def shortfall(packet: Packet) -> str:
    """Why the answers to an approved packet are not the approval its page demands, or nothing.

    Counted as a bundle is counted offline (`approvals.tally`): by people, whose approval was
    looked at when they gave it.
    """
    votes = packet.votes().filter(verdict=Verdict.APPROVE).order_by("decided_at", "pk")
    try:
        tally = Tally.of_page(packet.page)
    except ValueError as error:
        return str(error)
    tally.round, last = packet.round, None
    for vote in votes:
        said = {
            "verdict": vote.verdict,
            "person": vote.person_id,
            "on_behalf_of": vote.on_behalf_of_id,
            "round": vote.round,
            "signature": vote.signature,
            "self_approved": vote.self_approved,
            "at": vote.decided_at.isoformat(),
        }
        for fault in tally.take(said):
            return f"an answer {fault}"
        last = vote.decided_at
    for lack in tally.end(packet.filled):
        return lack
    if not kept(packet):
        return "its row says more than its page"
    if last is None:
        return "nobody approved it"
    settled = packet.settled_at  # none: then it is not approved yet, which is another reason
    if settled is not None and settled < held_until(packet, last):
        return "its hold was not over"
    if hold_of(packet.page["gate"]) and _released_at(packet) is None:
        return "its hold did not end with an approval"
    return ""


def approved_at(packet: Packet, settled: datetime) -> datetime:
    """When an approval took effect: with its last answer, or after the hold that followed."""
    if hold_of(packet.page["gate"]):
        return min(settled, _released_at(packet) or settled)
    given = packet.votes().filter(verdict=Verdict.APPROVE).order_by("-decided_at")
    last = given.values_list("decided_at", flat=True).first()
    return settled if last is None else min(settled, last)
