"""What a test packet is once it is over: said to everybody, and written down."""

from __future__ import annotations

from collections.abc import Iterable

from approvals.models import Decision, Packet
from approvals.states import PacketState, Verdict
from portal import audit
from runs import canary as runs_canary
from runs.lifecycle import Draft, append_events, run_facts
from runs.models import Run

CAUGHT = (Verdict.DENY.value, Verdict.REQUEST_CHANGES.value)


def end(packet: Packet, run: Run) -> None:
    """Whatever the answer was, nothing follows: the run behind it is over, and the evidence says
    what it was. Inside the transaction that settled it."""
    told = {"packet": packet.number, "approval": packet.digest, "result": packet.state}
    append_events(run, [Draft("packet.canary", run_facts(run) | told)])
    audit.record(
        "packet.canary",
        tenant=packet.tenant,
        subject=packet,
        digest=packet.digest,
        result=packet.state,
        wrong=(packet.canary or {})["wrong"],
    )
    runs_canary.end(run)


def words(packet: Packet, votes: Iterable[Decision], reader: int) -> str:
    """What this reader is told of a test packet; nothing while it is open."""
    if packet.canary is None or packet.state == PacketState.OPEN:
        return ""
    own = next((each.verdict for each in votes if each.person_id == reader), "")
    wrong = packet.canary["wrong"]
    if own == Verdict.APPROVE:
        return (
            "This was a test packet, and you approved it. It could not have done anything. "
            f"This is what was wrong: {wrong}"
        )
    if own in CAUGHT:
        return f"This was a test packet. You caught it: {wrong}"
    return f"This was a test packet. Nothing could come of it. {wrong}"
