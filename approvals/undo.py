"""The hold before an approval takes effect: it is undone, or it is over."""

from __future__ import annotations

import uuid
from typing import Any

from django.db import transaction

from approvals import bounds, delegation, errors
from approvals.counting import (
    hold_still,
    needed_permission,
    quorum_of,
    seats_of,
    voters_of,
)
from approvals.deciding import (
    damage,
    demand_allowed,
    lockable,
    locked_packet,
    still_member,
    whole,
)
from approvals.effects import end_packet, note_hold, tell
from approvals.models import Packet
from approvals.states import PacketState, Verdict
from portal.clock import database_now
from portal.errors import BadInput, NotAllowed, Refusal
from portal.models import Membership, Tenant
from runs.lifecycle import locked_run

REASON_LIMIT = 500


def _new_round(packet: Packet) -> None:
    """The votes so far are void: everybody who may decide is asked anew."""
    packet.held_until, packet.round = None, packet.round + 1
    packet.save(update_fields=["held_until", "round"])


@transaction.atomic(durable=True)
def undo_approval(public_id: uuid.UUID, *, member: Membership, seen: int, reason: str) -> Packet:
    """Take an approval back while it is held; the packet is open again, and all votes are void.

    Anybody may who could have denied it, somebody excluded from approving as well; and whoever
    gave an approval, in whosever name, and that other (`delegation.whoever_undoes`). `seen` is the
    round of votes that the page showed: a click that was meant for an earlier hold undoes no later
    one. Raises `NothingHeld`, `NotAllowed`, `NotFound`, `BadInput`, `WordsTooLong`.
    """
    run, packet = locked_packet(public_id, member)
    # Roles, and what was handed over, change under this lock.
    Tenant.objects.select_for_update(no_key=True).only("pk").get(pk=packet.tenant_id)
    present = still_member(member)
    if packet.held_until is None or packet.round != seen:
        raise errors.NothingHeld(number=packet.number, state=packet.state.replace("_", " "))
    if present.user.is_machine:
        raise errors.MachineMayNotDecide
    holder = delegation.whoever_undoes(packet, present)
    if holder is None:
        raise NotAllowed(permission=needed_permission(packet.kind, Verdict.DENY)[0].value)
    if len(reason) > REASON_LIMIT:
        raise errors.WordsTooLong(length=f"{len(reason):,}", limit=f"{REASON_LIMIT:,}")
    if "\x00" in reason:
        raise BadInput(reason="The reason holds a NUL character. Remove it; nothing was undone.")
    _new_round(packet)
    note_hold(
        *(packet, run, "undone"),
        by=present.user,
        behalf=None if holder == present.user else holder,
        reason=reason,
        round=packet.round,
        # By the clock that rights begin and end by, as a hold's own end.
        moment=database_now().isoformat(),
    )
    tell(packet)
    return packet


@transaction.atomic(durable=True)
def release_packet(packet_id: int) -> bool:
    """Let a held approval take effect once its time has come. Safe to repeat.

    Everything is asked again that was asked of the last vote: whoever may not approve any more, or
    a policy that denies by now, ends the hold, and the votes are void.
    """
    run_id = Packet.objects.values_list("run_id", flat=True).get(pk=packet_id)
    run = locked_run(run_id)
    packet = lockable(Packet.objects.filter(pk=packet_id)).get()
    now = database_now()
    if packet.held_until is None or now < packet.held_until or not run.is_live:
        return False
    last = (
        packet.votes()
        .filter(verdict=Verdict.APPROVE)
        .select_related("person")
        .order_by("-decided_at")
        .first()
    )
    if last is not None and now < bounds.held_until(packet, last.decided_at):
        return False
    try:
        if last is None:
            raise errors.TooFewNow(number=packet.number)
        if not whole(packet):
            raise damage(packet)(number=packet.number)
        hold_still(packet)
        if not quorum_of(packet).reached(voters_of(packet)):
            raise errors.TooFewNow(number=packet.number)
        demand_allowed(packet, run, packet.answers())
    except Refusal as refusal:
        _new_round(packet)
        note_hold(packet, run, "hold_ended", reason=str(refusal), round=packet.round)
        tell(packet)
        return False
    seats: dict[str, Any] = seats_of(packet)
    note_hold(packet, run, "released", moment=now.isoformat(), **seats)
    end_packet(
        packet,
        run,
        PacketState.APPROVED,
        last.comment,
        last.person,
        now,
        self_approved=packet.votes().filter(self_approved=True).exists(),
    )
    tell(packet)
    return True
