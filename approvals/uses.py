"""Use up what a person approved, once, in the transaction of the act itself.

The same questions for every kind of packet, asked where its effect is about to begin: is this
approval for this act, is it whole, was it given to this very page, is it in time, is it unused?
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from approvals import bounds, carried, seal, signing, times
from approvals.models import Packet
from approvals.states import PacketKind, PacketState


@dataclass(frozen=True)
class Void:
    """Why an approval carries nothing: a short name for the evidence, and a sentence."""

    why: str
    words: str


_FAULTS = {
    seal.Fault.SHAPE_MISSING: "does not say in which form it was sealed.",
    seal.Fault.SHAPE_UNKNOWN: "was sealed in a form that this version does not know.",
    seal.Fault.PAGE_CHANGED: "changed after it was approved.",
}


def why_void(
    packet: Packet,
    kind: PacketKind,
    now: datetime,
    *,
    unused: bool = True,
    in_time: bool = True,
) -> Void | None:
    """Why `packet` does not approve an act of this kind at `now`, or None.

    An act that used the approval up itself and is begun again leaves `unused` out, and `in_time`
    where it may be finished late.
    """
    name = f"Packet {packet.number}"
    if packet.canary is not None:
        return Void("test_packet", f"{name} is a test packet. It approves nothing.")
    if packet.kind != kind:
        return Void("other_kind", f"{name} is about something else ({packet.kind}).")
    if packet.state != PacketState.APPROVED:
        return Void("not_approved", f"{name} is {packet.state}.")
    if fault := seal.fault(packet.page, packet.digest):
        return Void(fault.value, f"{name} {_FAULTS[fault]}")
    for vote, why in carried.faults(packet):
        if vote.carried_from_id is None:
            words = f"A decision on {name} was made on another page."
            return Void("decision_on_another_page", words)
        return Void("wrongly_carried", f"A vote that {name} carries over does not hold: {why}.")
    for _, why in signing.unsigned(packet):
        return Void("not_signed", f"No passkey signed an approval of {name}: {why}.")
    if lack := bounds.shortfall(packet):
        return Void("not_enough", f"What {name} demands is not there: {lack}.")
    if unused and packet.used_at is not None:
        return Void("used_already", f"{name} was used already.")
    if packet.settled_at is None or now < packet.settled_at:
        return Void("before_approval", f"{name} is not approved yet, by the clock of now.")
    if not in_time:
        return None
    # The row says until when, and no row may say more than the page that was approved.
    approved = bounds.approved_at(packet, packet.settled_at)
    sealed = approved + timedelta(seconds=times.valid_seconds(packet.page["gate"], packet.kind))
    if packet.usable_until is None or now >= min(packet.usable_until, sealed):
        return Void("approval_ran_out", f"The approval of {name} was not used in time.")
    return None


def use_up(packet: Packet, now: datetime) -> None:
    """Write down that a valid approval is used, inside the caller's transaction."""
    packet.used_at = now
    packet.save(update_fields=["used_at"])
