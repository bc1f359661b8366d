"""More faults put in on purpose: in what rules demand, and in who speaks for whom.

Each is the smallest change that a tired person could make (`tests.statemachine.faults`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db.models import QuerySet

from approvals import (
    bounds,
    bulk,
    canaries,
    carried,
    carry,
    carrying,
    counting,
    deciding,
    delegation,
    editing,
    opening,
    reminding,
    signing,
    times,
)
from approvals.counting import People
from approvals.models import Delegation, Packet
from approvals.opening import Edit, packet_of_call
from approvals.quorum import Quorum
from portal import audit, passkeys
from portal.models import Membership, Passkey, Tenant, User
from portal.roles import Permission
from portal.webauthn import Assertion
from runs import canary as runs_canary
from runs import resuming
from runs.models import Resumption, Run, ToolCall
from runs.states import ResumeState
from tests.statemachine.faults import Fault

# --- In another's name ------------------------------------------------------------------------


def _rows(tenant_id: int, **wanted: Any) -> QuerySet[Delegation]:
    rows = Delegation.objects.filter(tenant=tenant_id, giver__user__is_active=True, **wanted)
    return rows.select_related("giver__user", "giver__tenant", "taker__user")


def a_right_is_used_after_its_end(patch: pytest.MonkeyPatch) -> None:
    def in_force(tenant_id: int, now: datetime) -> QuerySet[Delegation]:
        return _rows(tenant_id, ended_at=None, begins_at__lte=now)

    patch.setattr(delegation, "in_force", in_force)


def a_right_is_used_before_it_begins(patch: pytest.MonkeyPatch) -> None:
    def in_force(tenant_id: int, now: datetime) -> QuerySet[Delegation]:
        return _rows(tenant_id, ended_at=None, ends_at__gt=now)

    patch.setattr(delegation, "in_force", in_force)


def a_right_is_used_though_it_was_taken_back(patch: pytest.MonkeyPatch) -> None:
    def in_force(tenant_id: int, now: datetime) -> QuerySet[Delegation]:
        return _rows(tenant_id, begins_at__lte=now, ends_at__gt=now)

    patch.setattr(delegation, "in_force", in_force)


def a_right_is_for_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delegation, "is_for", lambda handed, packet: True)


def a_right_is_handed_on(patch: pytest.MonkeyPatch) -> None:
    real = delegation.holder_of

    def holder(packet: Packet, taker: Membership, giver: int, **named: Any) -> Membership:
        try:
            return real(packet, taker, giver, **named)
        except delegation.NotInTheirName:
            for each in Delegation.objects.filter(taker=taker).select_related("giver__user"):
                return real(packet, each.giver, giver, **named)
            raise

    patch.setattr(delegation, "holder_of", holder)


def both_of_two_speak(patch: pytest.MonkeyPatch) -> None:
    """Whoever gave a right and whoever has it are two people."""
    real = deciding._earlier

    def earlier(packet: Packet, votes: Any, member: Membership, holder: Membership) -> Any:
        return real(packet, [each for each in votes if each.person == member.user], member, member)

    patch.setattr(deciding, "_earlier", earlier)


def whoever_asked_is_let_in_by_another(patch: pytest.MonkeyPatch) -> None:
    real = deciding._four_eyes
    patch.setattr(
        deciding,
        "_four_eyes",
        lambda packet, answer, member, _: real(packet, answer, member, member),
    )


def a_right_outlives_its_giver(patch: pytest.MonkeyPatch) -> None:
    roles = ["reviewer", "publisher"]
    patch.setattr(counting, "_roles_of", lambda tenant, people: dict.fromkeys(people, roles))


def whoever_decides_for_another_needs_no_role(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(counting, "DECIDING", frozenset(Permission))


# --- Edits, and votes that are carried over ---------------------------------------------------


def _edits(patch: pytest.MonkeyPatch, spoil: Callable[[Edit, Run], Edit]) -> None:
    real = packet_of_call

    def opened(run: Run, call: ToolCall, edit: Edit) -> Packet:
        return real(run, call, spoil(edit, run))

    patch.setattr(editing, "packet_of_call", opened)


def an_editor_may_approve(patch: pytest.MonkeyPatch) -> None:
    _edits(patch, lambda edit, run: replace(edit, by=run.requested_by))


def an_earlier_editor_may_approve(patch: pytest.MonkeyPatch) -> None:
    def spoil(edit: Edit, run: Run) -> Edit:
        edit.before.excluded = []
        return edit

    _edits(patch, spoil)


def an_edited_packet_stays_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(editing, "close_packet", lambda *given, **named: None)


def an_edit_is_not_logged(patch: pytest.MonkeyPatch) -> None:
    real = audit.record

    def record(action: str, **facts: Any) -> Any:
        return None if action == "packet.edited" else real(action, **facts)

    patch.setattr(audit, "record", record)


def a_vote_is_carried_to_other_content(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(carry, "same", lambda before, after: True)


def carried_votes_are_enough(patch: pytest.MonkeyPatch) -> None:
    real = counting.quorum_of
    patch.setattr(carrying, "quorum_of", lambda packet: replace(real(packet), people=9))


def whatever_was_voted_is_carried(patch: pytest.MonkeyPatch) -> None:
    """In another's name too, and by whom it is not said."""
    patch.setattr(carrying, "_given", lambda packet: packet.votes().select_related("person"))
    patch.setattr(carrying, "why_not_carried", lambda source, packet: "")


def whoever_left_has_a_vote_carried(patch: pytest.MonkeyPatch) -> None:
    def of(tenant: Tenant) -> People:
        users = User.objects.exclude(is_machine=True).values_list("pk", flat=True)
        held = frozenset(Permission)
        return People(
            dict.fromkeys(users, ""), {each: [] for each in users}, dict.fromkeys(users, held)
        )

    patch.setattr(carrying, "People", SimpleNamespace(of=of))


def a_spent_vote_comes_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(carrying, "replaced", carried.ancestors)
    patch.setattr(carried, "replaced", carried.ancestors)


# --- What rules demand ------------------------------------------------------------------------


def a_passkey_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(signing, "is_demanded", lambda packet: False)


def any_bodys_passkey_will_do(patch: pytest.MonkeyPatch) -> None:
    real = passkeys.take

    def take(user: User, given: Assertion, challenge: str) -> Passkey:
        owner = Passkey.objects.select_related("user").get(credential=given.credential).user
        return real(owner, given, challenge)

    patch.setattr(passkeys, "take", take)


def a_passkey_signs_any_page(patch: pytest.MonkeyPatch) -> None:
    def checked(given: Assertion, **named: Any) -> int:
        return Passkey.objects.get(credential=given.credential).sign_count + 1

    patch.setattr(passkeys, "checked", checked)


def nothing_need_be_typed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deciding, "_acknowledged", lambda packet, answer: 0)


def what_was_denied_before_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(opening, "denied_before", lambda call: [])


def among_others_a_stale_page_decides(patch: pytest.MonkeyPatch) -> None:
    real = bulk._settled
    patch.setattr(
        bulk,
        "_settled",
        lambda packet, answer, member: real(packet, replace(answer, seen=packet.digest), member),
    )


def anything_is_decided_among_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bulk, "_sealed_alone", lambda packet: "")


def all_shapes_are_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bulk, "shape_of", lambda packet: ())


def the_time_to_execute_is_that_of_the_contract(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(times, "valid_seconds", lambda gate, kind: 60 * int(gate["valid_minutes"]))


def the_time_to_decide_is_that_of_the_contract(patch: pytest.MonkeyPatch) -> None:
    hour = timedelta(hours=1)
    patch.setattr(bounds, "decided_until", lambda packet: packet.opened_at + hour)


def nobody_is_reminded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reminding, "_remind", lambda packet, now: False)


def others_stand_in_at_once(patch: pytest.MonkeyPatch) -> None:
    real = counting.quorum_of

    def quorum_of(packet: Packet, waited: float | None = None) -> Quorum:
        return real(packet, timedelta.max.total_seconds())

    for module in (counting, deciding):
        patch.setattr(module, "quorum_of", quorum_of)


def nobody_ever_stands_in(patch: pytest.MonkeyPatch) -> None:
    for module in (reminding, deciding):
        patch.setattr(module, "escalate", lambda packet, run, now: False)


# --- Test packets, and runs that go on --------------------------------------------------------


def a_test_has_a_run_that_works(patch: pytest.MonkeyPatch) -> None:
    real = runs_canary.begin

    def begin(like: Run) -> Run:
        run = real(like)
        Run.objects.filter(pk=run.pk).update(canary=False)
        return run

    patch.setattr(runs_canary, "begin", begin)


def a_test_that_was_approved_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runs_canary, "end", lambda run: None)


def a_test_is_never_told(patch: pytest.MonkeyPatch) -> None:
    real = audit.record

    def record(action: str, **facts: Any) -> Any:
        return None if action == "packet.canary" else real(action, **facts)

    patch.setattr(audit, "record", record)


def a_test_looks_like_anything(patch: pytest.MonkeyPatch) -> None:
    def likeness(tenant: Tenant, now: datetime) -> Packet | None:
        return Packet.objects.filter(tenant=tenant, canary__isnull=True, kind="call").first()

    patch.setattr(canaries, "_likeness", likeness)


def a_run_goes_on_unasked(patch: pytest.MonkeyPatch) -> None:
    def approved(run: Run, wanted: str) -> Resumption | None:
        return Resumption.objects.filter(run=run, state="approved").first()

    patch.setattr(resuming, "approved", approved)


def a_run_goes_on_for_ever(patch: pytest.MonkeyPatch) -> None:
    def approved(run: Run, wanted: str) -> Resumption | None:
        return Resumption.objects.filter(run=run, digest=wanted, state="approved").first()

    patch.setattr(resuming, "approved", approved)


def a_run_goes_on_that_was_not_to(patch: pytest.MonkeyPatch) -> None:
    real = resuming.settle

    def settle(asked: Resumption, run: Run, state: ResumeState, **named: Any) -> None:
        real(asked, run, ResumeState.APPROVED, **named)

    patch.setattr(resuming, "settle", settle)


MORE: Mapping[Fault, tuple[str, int]] = {
    a_right_is_used_after_its_end: ("the right is over", 6),
    a_right_is_used_before_it_begins: ("the right is not there yet", 6),
    a_right_is_used_though_it_was_taken_back: ("the right is taken back", 6),
    a_right_is_for_everything: ("the right is for other tools", 6),
    a_right_is_handed_on: ("the right is never handed on", 6),
    both_of_two_speak: ("somebody decides in another's name", 6),
    whoever_asked_is_let_in_by_another: ("whoever asked is not let in by another", 6),
    a_right_outlives_its_giver: ("whoever gave it leaves", 6),
    whoever_decides_for_another_needs_no_role: ("whoever has it loses the roles", 6),
    an_editor_may_approve: ("an editor stays excluded", 6),
    an_earlier_editor_may_approve: ("an editor stays excluded", 6),
    an_edited_packet_stays_open: ("a call is edited", 5),
    an_edit_is_not_logged: ("a call is edited", 14),
    a_vote_is_carried_to_other_content: ("a vote is void where something changed", 6),
    carried_votes_are_enough: ("carried votes alone are never enough", 6),
    whatever_was_voted_is_carried: ("a vote in another's name is not carried", 6),
    whoever_left_has_a_vote_carried: ("whoever voted leaves before it is carried", 6),
    a_spent_vote_comes_back: ("what was approved in vain carries nothing over", 6),
    a_passkey_is_forgotten: ("passkeys sign", 6),
    any_bodys_passkey_will_do: ("passkeys sign", 6),
    a_passkey_signs_any_page: ("passkeys sign", 6),
    nothing_need_be_typed: ("of high risk the target is typed", 6),
    what_was_denied_before_is_forgotten: ("what was denied before is typed", 6),
    among_others_a_stale_page_decides: ("several are approved at once", 6),
    anything_is_decided_among_others: ("others are never decided at once", 6),
    all_shapes_are_one: ("several are approved at once", 6),
    the_time_to_execute_is_that_of_the_contract: ("there is little time to execute", 1),
    the_time_to_decide_is_that_of_the_contract: ("there is little time to decide", 6),
    nobody_is_reminded: ("there is little time to decide", 5),
    others_stand_in_at_once: ("others stand in later", 6),
    nobody_ever_stands_in: ("others stand in later", 6),
    a_test_has_a_run_that_works: ("nothing comes of a test", 5),
    a_test_that_was_approved_goes_on: ("nothing comes of a test", 5),
    a_test_is_never_told: ("nothing comes of a test", 14),
    a_test_looks_like_anything: ("no test looks like this", 5),
    a_run_goes_on_unasked: ("something else changed", 5),
    a_run_goes_on_for_ever: ("it is too late to go on", 5),
    a_run_goes_on_that_was_not_to: ("a run does not go on", 5),
}
"""Each fault with a path that meets it, and the law that it breaks there first."""
