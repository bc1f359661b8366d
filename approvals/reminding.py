"""What happens while nobody decides: reminders, and others who may stand in.

Both are moves of the packet, made once each with its row locked; a sweep finds what is due. Nothing
here approves: reminders change nothing, and whoever stands in is counted as everybody else is.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from approvals import bounds, delegation, mailing, times
from approvals.counting import askable, quorum_of, still_asked
from approvals.effects import tell
from approvals.models import Packet
from approvals.quorum import Fallback, listed, whose_of
from approvals.states import PacketState
from portal import audit
from portal.clock import database_now
from runs.lifecycle import Draft, append_events, locked_run, run_facts
from runs.models import Run


@transaction.atomic(durable=True)
def nudge_packet(packet_id: int) -> bool:
    """Remind of a packet, or let others stand in, if that is due. Safe to repeat."""
    run_id = Packet.objects.values_list("run_id", flat=True).get(pk=packet_id)
    run = locked_run(run_id)
    packet = (
        Packet.objects.select_for_update(no_key=True, of=("self",))
        .select_related("tenant")
        .get(pk=packet_id)
    )
    now = database_now()
    waits = packet.state == PacketState.OPEN and packet.held_until is None
    if not waits or not run.is_live or now >= packet.expires_at:
        return False
    widened, reminded = escalate(packet, run, now), _remind(packet, now)
    if widened or reminded:
        tell(packet)
    return widened or reminded


def _remind(packet: Packet, now: datetime) -> bool:
    """Tell those who may still decide once more; what was missed is not made up for."""
    if packet.remind_at is None or now < packet.remind_at:
        return False
    packet.reminded += 1
    packet.remind_at = times.next_reminder(packet.page["gate"], packet.opened_at, now)
    packet.save(update_fields=["reminded", "remind_at"])
    told = delegation.with_stand_ins(packet, still_asked(packet), now)
    mailing.post(packet, f"reminder {packet.reminded}", told, now)
    audit.record(
        "packet.reminded",
        tenant=packet.tenant,
        subject=packet,
        digest=packet.digest,
        number=packet.reminded,
        people=told,
    )
    return True


def escalate(packet: Packet, run: Run, now: datetime) -> bool:
    """Let those stand in whose time has come, inside a transaction that has the packet locked.

    Whoever answers asks for it first, so that an answer never counts on a step that is not
    written down, and no step waits for the sweep.
    """
    if packet.escalate_at is None or now < packet.escalate_at:
        return False
    gate, before = packet.page["gate"], set(_standing_in(packet))
    opened = bounds.opened_at(packet)
    packet.escalated = times.step_at(gate, opened, now)
    packet.escalate_at = times.next_escalation(gate, opened, packet.escalated)
    if not packet.escalated:
        # The row called it early; the page says when it is due.
        packet.save(update_fields=["escalate_at"])
        return False
    packet.routes = quorum_of(packet).routes
    packet.save(update_fields=["escalated", "escalate_at", "routes"])
    fresh = sorted(set(_standing_in(packet)) - before, key=lambda each: each.name)
    told = [
        person
        for person, routes in askable(packet).items()
        if any(each.route in routes for each in fresh)
    ]
    told = delegation.with_stand_ins(packet, told, now)
    mailing.post(packet, f"escalation {packet.escalated}", told, now)
    to = listed([whose_of(each) for each in fresh])
    facts = {"packet": packet.number, "approval": packet.digest, "to": to}
    append_events(run, [Draft("packet.escalated", run_facts(run) | facts)])
    audit.record(
        "packet.escalated",
        tenant=packet.tenant,
        subject=packet,
        digest=packet.digest,
        after_seconds=packet.escalated,
        moment=now.isoformat(),
        to=[each.route for each in fresh],
        people=told,
    )
    return True


def _standing_in(packet: Packet) -> list[Fallback]:
    return [each for stage in quorum_of(packet).stages for each in stage.fallbacks]
