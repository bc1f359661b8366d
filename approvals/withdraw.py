"""Whoever asked takes the question back before it is answered."""

from __future__ import annotations

import uuid

from django.db import transaction

from approvals import errors
from approvals.closing import close_packet
from approvals.deciding import locked_packet, still_member
from approvals.models import Packet
from approvals.states import PacketKind, PacketState
from portal.errors import BadInput
from portal.models import Membership
from portal.visible import says_something
from runs import grants, lifecycle
from runs.lifecycle import Draft, append_events, run_facts
from runs.models import Run
from runs.states import CallState, GrantState, RunStatus

REASON_LIMIT = 2000

# A question whether a run goes on is withdrawn by stopping the run.
CAN_BE_WITHDRAWN = frozenset(PacketKind) - {PacketKind.RESUME}


@transaction.atomic(durable=True)
def withdraw_packet(public_id: uuid.UUID, *, member: Membership, reason: str) -> Packet:
    """End an open packet, held ones included, by the word of the person who asked for it.

    The agent is told that it was withdrawn, which is no denial; with a publication its run ends,
    cancelled. Votes so far stay in the record. Raises `NotYours`, `AlreadySettled`, `RunOver`,
    `NeedsWords`, `WordsTooLong`, `BadInput`, `NotFound`.
    """
    run, packet = locked_packet(public_id, member)
    present = still_member(member)
    if PacketState(packet.state) is not PacketState.OPEN:
        raise errors.AlreadySettled(
            number=packet.number, state=packet.state.replace("_", " "), by=""
        )
    if packet.requested_by_id != present.user_id:
        raise errors.NotYours(number=packet.number, by=packet.requested_by.name)
    if packet.kind not in CAN_BE_WITHDRAWN:
        raise BadInput(reason="This asks whether the run goes on. Stop the run on its own page.")
    if not run.is_live:
        raise errors.RunOver(number=run.number, state=run.status, packet=packet.number)
    if len(reason) > REASON_LIMIT:
        raise errors.WordsTooLong(length=f"{len(reason):,}", limit=f"{REASON_LIMIT:,}")
    if "\x00" in reason:
        raise BadInput(reason="The reason holds a NUL character. Remove it; nothing was withdrawn.")
    if not says_something(reason):
        raise errors.NeedsWords
    close_packet(packet, run, PacketState.WITHDRAWN, by=present.user, reason=reason)
    told = {"packet": packet.number, "by": present.user.name, "reason": reason}
    append_events(run, [Draft("packet.withdrawn", run_facts(run) | told)])
    _carry_out(packet, run, f"Withdrawn by {present.user.name}, who asked for it: {reason}")
    return packet


def _carry_out(packet: Packet, run: Run, words: str) -> None:
    """Let whatever waits for the answer know that none comes."""
    if packet.canary is not None:
        return
    if packet.call is not None:
        lifecycle.answer_call(
            packet.call, CallState.WITHDRAWN, text=words, usable_until=None, run=run
        )
    elif packet.egress is not None:
        by = packet.requested_by.name
        grants.settle(packet.egress, run, grants.Settled(GrantState.WITHDRAWN, words, by))
    else:
        lifecycle.end_run(run, RunStatus.CANCELLED, by=packet.requested_by.name)
