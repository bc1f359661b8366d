"""Edit: a person changes the arguments of a waiting call, and others decide on what became of it.

The packet that asked about the earlier arguments is superseded: nobody can approve it any more.
A new one asks about the new arguments, judged by the policy of now. It says who edited what, and
whoever did never counts for it, nor for what others make of it later.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from django.db import transaction

from approvals import demands, errors
from approvals.closing import close_packet
from approvals.deciding import Answer, damage, locked_packet, still_decidable, still_member, whole
from approvals.judge import TenantJudge
from approvals.models import Packet
from approvals.opening import Edit, packet_of_call
from approvals.states import PacketKind, PacketState, Verdict
from portal import audit
from portal.canonical import canonical
from portal.clock import database_now
from portal.errors import NotAllowed
from portal.models import Membership
from portal.roles import Permission
from runs import editing, lifecycle
from runs.agent.port import ProposedCall
from runs.contract import Contract
from runs.lifecycle import Draft, Judged, append_events, run_facts
from runs.models import Run, ToolCall
from runs.states import CallState
from runs.targets import REFUSED, target_of

STILL_ASKED = (
    "Policy would allow this by itself. People were asked about the call, so they are asked about "
    "what became of it."
)
_INSTEAD = {
    PacketKind.QUESTION: "A question is not edited. Answer it, or decline to.",
    PacketKind.EGRESS: "A network rule is not edited. Deny it and say what you would open instead.",
    PacketKind.RESUME: "This asks whether the run goes on. Approve or deny it.",
    PacketKind.PUBLICATION: "Candidates are the agent's to change. Request changes instead.",
}


def why_not_editable(packet: Packet) -> str:
    """Why the arguments of a packet cannot be edited, and what to do instead; or nothing."""
    kind = PacketKind(packet.kind)
    if kind in _INSTEAD:
        return _INSTEAD[kind]
    if packet.page.get("tool_kind") not in editing.EDITABLE:
        return "A call of this kind is the agent's to write anew. Request changes instead."
    return ""


@transaction.atomic(durable=True)
def edit_packet(public_id: uuid.UUID, *, member: Membership, seen: str, text: str) -> Packet:
    """Put `text`, one JSON object, in the place of a call's arguments; the packet that asks now.

    Sent twice it is one edit. Raises `NotEditable`, `NothingEdited`, `EditDenied`, `NotAllowed`,
    `runs.editing.ArgumentsWrong`, `NotFound`, and what `settle_packet` raises for a packet that is
    over, held, changed or damaged.
    """
    run, packet = locked_packet(public_id, member)
    present = still_member(member)
    if present.user.is_machine:
        raise errors.MachineMayNotDecide
    if not present.may(Permission.DECIDE):
        raise NotAllowed(permission=Permission.DECIDE.value)
    if reason := why_not_editable(packet):
        raise errors.NotEditable(reason=reason)
    contract = lifecycle.contract_of(run)
    if (done := _done_already(packet, contract, present, text)) is not None:
        return done
    still_decidable(packet, Answer(Verdict.REQUEST_CHANGES, seen), run, database_now())
    if not whole(packet):
        raise damage(packet)(number=packet.number)
    if packet.canary is not None:
        raise errors.NotEditable(reason="No agent waits for this one. Deny it, and say why.")
    call = ToolCall.objects.select_for_update(no_key=True, of=("self",)).get(packet=packet)
    arguments = editing.read_edited(contract, call, text)
    # As bytes: Python takes true for 1.
    if canonical(arguments) == canonical(call.arguments):
        raise errors.NothingEdited(number=packet.number)
    target, judged = _judged(run, contract, call, arguments)
    asked_anyway = judged.state is not CallState.WAITING
    if asked_anyway:
        judged = replace(
            judged, state=CallState.WAITING, rules=_of_both(judged, call), reason=STILL_ASKED
        )
    # The call is the next packet's: this one can act on nothing any more.
    packet.call = None
    packet.save(update_fields=["call"])
    close_packet(packet, run, PacketState.SUPERSEDED, by=present.user, reason="edited")
    told = {"packet": packet.number, "approval": packet.digest}
    editing.replace_arguments(
        call, run, arguments, target=target, judged=judged, by=present.user, facts=told
    )
    # What was demanded of the call before still is, whatever the rules of now call it.
    also = demands.of_gate(packet.page["gate"]) if asked_anyway else None
    following = packet_of_call(run, call, Edit(packet, present.user, also))
    told |= {"became": following.number, "by": present.user.name}
    append_events(run, [Draft("packet.edited", run_facts(run) | told)])
    audit.record(
        "packet.edited",
        tenant=packet.tenant,
        subject=packet,
        actor=present.user,
        digest=packet.digest,
        became=following.digest,
        number=following.number,
        arguments_before=packet.page["arguments_digest"],
        arguments_digest=call.arguments_digest,
    )
    return following


def _done_already(
    packet: Packet, contract: Contract, member: Membership, text: str
) -> Packet | None:
    """What this very edit made, if it was sent before."""
    following = packet.successors.filter(edited_by=member.user).first()
    if following is None or following.call is None:
        return None
    wanted = editing.read_edited(contract, following.call, text)
    same = canonical(following.page["arguments"]) == canonical(wanted)
    return following if same else None


def _of_both(judged: Judged, call: ToolCall) -> tuple[str, ...]:
    """The rules that allow it now, and those that asked before."""
    return tuple(dict.fromkeys([*judged.rules, *call.rules]))


def _judged(
    run: Run, contract: Contract, call: ToolCall, arguments: dict[str, object]
) -> tuple[str, Judged]:
    """Target and verdict of the call with these arguments, as if the agent had proposed it."""
    edited = ProposedCall(
        call_id=call.call_id,
        tool=call.tool,
        kind=call.kind,  # type: ignore[arg-type]
        arguments=arguments,
        raw="",
    )
    target, outward = target_of(run, contract, edited)
    if target.startswith(REFUSED):
        raise editing.ArgumentsWrong(problem=target.removeprefix(REFUSED))
    judged = TenantJudge().judge(run, contract, edited, target=target, outward=outward)
    if judged.state is CallState.REFUSED:
        raise errors.EditDenied(version=judged.policy_version, reason=judged.reason)
    return target, judged
