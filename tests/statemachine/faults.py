"""Faults put into the portal on purpose: each breaks one promise, and the machine must find it.

Each is the smallest change that a tired person could make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeAlias

import pytest

from approvals import (
    closing,
    counting,
    deciding,
    effects,
    judge,
    opening,
    publishing,
    undo,
    uses,
    withdraw,
)
from approvals.models import Decision, Packet
from approvals.quorum import Quorum
from approvals.states import PacketState, Verdict
from portal import audit
from portal.models import AuditEntry, Membership
from runs import lifecycle
from runs.models import ToolCall
from runs.states import CallState

Fault: TypeAlias = Callable[[pytest.MonkeyPatch], None]


def nobody_is_excluded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(opening, "excluded_people", lambda run, author: [])


def the_requester_may_approve(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deciding, "_four_eyes", lambda packet, answer, member, holder: False)


def every_approval_is_called_ones_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deciding, "_four_eyes", lambda packet, answer, member, holder: True)


def the_author_of_the_rule_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = opening.excluded_people
    patch.setattr(opening, "excluded_people", lambda run, author: real(run, None))


def rows_are_counted_and_not_people(patch: pytest.MonkeyPatch) -> None:
    def voters(packet: Packet) -> Mapping[int, list[str]]:
        gave = Decision.objects.filter(packet=packet, verdict=Verdict.APPROVE)
        return {each.pk: [] for each in gave}

    patch.setattr(counting, "voters_of", voters)


def a_lost_role_still_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(counting, "_may", lambda granted, kind: True)


def one_approval_is_always_enough(patch: pytest.MonkeyPatch) -> None:
    _quorum_with(patch, people=1)


def the_role_of_the_rule_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    _quorum_with(patch, roles=())


def _quorum_with(patch: pytest.MonkeyPatch, **changed: Any) -> None:
    real = counting.quorum_of
    patch.setattr(deciding, "quorum_of", lambda packet: replace(real(packet), **changed))


def machines_decide(patch: pytest.MonkeyPatch) -> None:
    real = deciding._may_decide

    def may_decide(packet: Packet, answer: Any, member: Membership, holder: Membership) -> None:
        member.user.is_machine = False
        real(packet, answer, member, holder)

    patch.setattr(deciding, "_may_decide", may_decide)


def expiry_approves(patch: pytest.MonkeyPatch) -> None:
    real = closing.close_packet

    def close(packet: Packet, run: Any, state: PacketState, **named: Any) -> None:
        real(packet, run, PacketState.APPROVED if state is PacketState.EXPIRED else state, **named)

    patch.setattr(closing, "close_packet", close)


def an_expired_call_goes_ahead(patch: pytest.MonkeyPatch) -> None:
    real = lifecycle.answer_call

    def answer(call: Any, state: CallState, **named: Any) -> None:
        real(call, CallState.APPROVED if state is CallState.EXPIRED else state, **named)

    patch.setattr(lifecycle, "answer_call", answer)


def the_time_to_decide_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    real = deciding.still_decidable

    def still(packet: Packet, answer: Any, run: Any, now: Any) -> None:
        real(packet, answer, run, min(now, packet.expires_at - timedelta(seconds=1)))

    patch.setattr(deciding, "still_decidable", still)


def any_digest_will_do(patch: pytest.MonkeyPatch) -> None:
    real = deciding.still_decidable

    def still(packet: Packet, answer: Any, run: Any, now: Any) -> None:
        real(packet, replace(answer, seen=packet.digest), run, now)

    patch.setattr(deciding, "still_decidable", still)


def a_use_is_not_marked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(uses, "use_up", lambda packet, now: None)


def an_approval_is_good_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(uses, "why_void", lambda *given, **named: None)


def a_policy_of_now_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deciding, "demand_allowed", lambda packet, run, votes: None)


def an_act_is_tried_again_blindly(patch: pytest.MonkeyPatch) -> None:
    real = publishing.Claim
    patch.setattr(publishing, "Claim", lambda key, token, look: real(key, token, False))


def a_call_is_made_again(patch: pytest.MonkeyPatch) -> None:
    """Whatever was begun counts as approved and unused, the call and its packet."""
    real = lifecycle.begin_call

    def begin(lease: Any, call_id: str, *given: Any) -> Any:
        begun = ToolCall.objects.filter(run_id=lease.run_id, call_id=call_id)
        again = begun.filter(state=CallState.ACTING)
        Packet.objects.filter(call__in=again).update(used_at=None)
        again.update(state=CallState.APPROVED)
        return real(lease, call_id, *given)

    patch.setattr(lifecycle, "begin_call", begin)


def a_late_worker_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lifecycle, "held_run", lambda lease: lifecycle.locked_run(lease.run_id))


def a_stopped_run_keeps_its_calls(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lifecycle, "_close_calls", lambda run: None)


def denied_is_called_expired(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(effects, "_words_for_agent", lambda *given: "Expired: nobody decided in time.")


def anybody_of_any_tenant_decides(patch: pytest.MonkeyPatch) -> None:
    real = deciding.locked_packet

    def locked(public_id: Any, member: Membership) -> Any:
        tenant = Packet.objects.only("tenant_id").get(public_id=public_id).tenant_id
        return real(public_id, Membership(tenant_id=tenant, user=member.user))

    patch.setattr(deciding, "locked_packet", locked)


def a_decision_is_not_logged(patch: pytest.MonkeyPatch) -> None:
    real = audit.record

    def record(action: str, **facts: Any) -> Any:
        # A line that nobody stored.
        return AuditEntry(seq=0) if action == "packet.approved" else real(action, **facts)

    patch.setattr(audit, "record", record)


def a_changed_policy_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    """What was approved under one version is published under another."""
    patch.setattr(publishing, "_stale", lambda *given, **named: None)


def a_packet_is_not_looked_at_where_its_call_begins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(judge.TenantJudge, "use_up", lambda self, call: None)


def a_hold_is_no_hold(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deciding, "hold_of", lambda gate: 0)


def an_undone_vote_still_counts(patch: pytest.MonkeyPatch) -> None:
    def new_round(packet: Packet) -> None:
        packet.held_until = None
        packet.save(update_fields=["held_until"])

    patch.setattr(undo, "_new_round", new_round)


def whoever_left_still_counts_after_a_hold(patch: pytest.MonkeyPatch) -> None:
    people = Quorum()
    patch.setattr(undo, "quorum_of", lambda packet: replace(people, people=0))


def policy_is_not_asked_after_a_hold(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(undo, "demand_allowed", lambda packet, run, votes: None)


def an_old_page_undoes(patch: pytest.MonkeyPatch) -> None:
    real = deciding.locked_packet

    def locked(public_id: Any, member: Membership) -> Any:
        run, packet = real(public_id, member)
        packet.round -= 1
        return run, packet

    patch.setattr(undo, "locked_packet", locked)


def anybody_withdraws(patch: pytest.MonkeyPatch) -> None:
    real = deciding.locked_packet

    def locked(public_id: Any, member: Membership) -> Any:
        run, packet = real(public_id, member)
        packet.requested_by_id = member.user_id
        return run, packet

    patch.setattr(withdraw, "locked_packet", locked)


def a_withdrawn_call_is_called_denied(patch: pytest.MonkeyPatch) -> None:
    real = withdraw._carry_out
    patch.setattr(withdraw, "_carry_out", lambda packet, run, words: real(packet, run, "Denied."))


def a_person_fills_every_stage(patch: pytest.MonkeyPatch) -> None:
    _quorum_with(patch, stages=(), people=1)


def whoever_is_in_no_group_may_answer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deciding, "_counts", lambda packet, member: None)


FAULTS: Mapping[Fault, tuple[str, int]] = {
    nobody_is_excluded: ("whoever asked", 6),
    the_requester_may_approve: ("whoever asked", 6),
    every_approval_is_called_ones_own: ("a question is answered", 6),
    the_author_of_the_rule_is_forgotten: ("whoever wrote the rule", 6),
    rows_are_counted_and_not_people: ("the first of two leaves", 6),
    a_lost_role_still_counts: ("the first of two loses the role", 6),
    one_approval_is_always_enough: ("two are needed", 6),
    the_role_of_the_rule_is_forgotten: ("a role must be among them", 6),
    machines_decide: ("who may not", 6),
    expiry_approves: ("a question expires", 5),
    an_expired_call_goes_ahead: ("a call expires", 5),
    the_time_to_decide_is_not_looked_at: ("a call expires", 6),
    any_digest_will_do: ("other digests", 6),
    a_use_is_not_marked: ("a question is answered", 1),
    an_approval_is_good_for_ever: ("a publication comes too late", 1),
    a_policy_of_now_is_not_asked: ("the rules forbid the approval", 6),
    an_act_is_tried_again_blindly: ("a publisher dies before the act", 4),
    a_call_is_made_again: ("the worker of a call dies after", 1),
    a_late_worker_goes_on: ("one worker after the other is lost", 3),
    a_stopped_run_keeps_its_calls: ("a question of a stopped run", 5),
    denied_is_called_expired: ("a call is denied", 5),
    anybody_of_any_tenant_decides: ("who may not", 6),
    a_decision_is_not_logged: ("a question is answered", 14),
    a_changed_policy_is_not_noticed: ("the rules change before it leaves", 1),
    a_hold_is_no_hold: ("a hold is over", 5),
    an_undone_vote_still_counts: ("a hold is undone", 6),
    whoever_left_still_counts_after_a_hold: ("the one who approved leaves in the hold", 5),
    policy_is_not_asked_after_a_hold: ("the rules forbid it in the hold", 5),
    an_old_page_undoes: ("a hold is undone", 6),
    anybody_withdraws: ("a call is withdrawn", 6),
    a_withdrawn_call_is_called_denied: ("a call is withdrawn", 5),
    a_person_fills_every_stage: ("one of each group", 6),
    whoever_is_in_no_group_may_answer: ("one of each group", 6),
    a_packet_is_not_looked_at_where_its_call_begins: ("a question is answered", 1),
}
"""Each fault with a path that meets it, and the law that it breaks there first."""
