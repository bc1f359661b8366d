"""Rows that say more than the page of their packet: whoever wrote them gained nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from approvals import errors
from approvals.demands import MOST_PEOPLE
from approvals.judge import TenantJudge
from approvals.models import Decision, Packet, PolicyVersion
from approvals.states import PacketState, Verdict
from approvals.undo import release_packet, undo_approval
from portal.clock import database_now
from portal.handoff import Job
from portal.roles import Role
from runs.models import ContractVersion, CredentialGrant, Event, Resumption, Run, ToolCall
from runs.states import CallState
from tests import clock
from tests.acceptance.kit import contract_with, give_credential
from tests.approvals import stages
from tests.approvals.stages import SECURITY, TWO_HOURS, asked, in_force, passed, rule, staged
from tests.cast import ASKING, REPAIR
from tests.databases import triggers_off
from tests.walk import Walk, call_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.both_databases]


def written(packet: Packet, **columns: Any) -> Packet:
    """Somebody wrote this into the table."""
    Packet.objects.filter(pk=packet.pk).update(**columns)
    packet.refresh_from_db()
    return packet


def approve_in_the_table(packet: Packet) -> None:
    """All columns as an approval leaves them."""
    now = database_now()
    end = now + timedelta(hours=1)
    written(packet, state="approved", settled_at=now, usable_until=end, held_until=None)
    ToolCall.objects.filter(packet=packet).update(
        state=CallState.APPROVED.value, usable_until=end, answer=""
    )


def go_on(walk: Walk, packet: Packet) -> str:
    """Let the run go on: nothing is sent, and this is why."""
    Run.objects.filter(pk=packet.run_id).update(status="queued", status_at=timezone.now())
    walk.deliver(Job.EXECUTE_RUN, packet.run_id)
    walk.drain()
    assert walk.tracker.requests == []
    last = Event.objects.filter(run=packet.run, facts__why__isnull=False).order_by("seq").last()
    return "" if last is None else str(last.facts["why"])


def test_inv01_a_state_without_answers_is_no_approval(walk: Walk) -> None:
    packet = walk.to_call()
    approve_in_the_table(packet)
    assert go_on(walk, packet) == "not_enough"


def test_inv01_a_state_with_too_few_answers_is_no_approval(walk: Walk) -> None:
    packet = asked(walk, '@needs("2")')
    assert walk.decide(packet).state == PacketState.OPEN
    approve_in_the_table(packet)
    assert go_on(walk, packet) == "not_enough"


def test_inv01_places_that_nobody_filled_are_not_filled(walk: Walk) -> None:
    packet = asked(walk, stages.BOTH)
    walk.decide(packet)
    written(packet, filled=[[walk.cast.ada.user_id, packet.page["gate"]["stages"][0]["route"]]] * 2)
    approve_in_the_table(packet)
    assert go_on(walk, packet) == "not_enough"


def test_inv06_fewer_people_than_the_page_wants_are_not_enough(walk: Walk) -> None:
    packet = written(asked(walk, '@needs("2")'), needed=1)
    assert walk.decide(packet).state == PacketState.OPEN


def test_inv05_a_hold_lasts_as_long_as_the_page_says(walk: Walk) -> None:
    packet = asked(walk, '@hold("15m")')
    walk.decide(packet)
    written(packet, held_until=database_now() - timedelta(seconds=1))
    assert release_packet(packet.pk) is False
    walk.sweep()
    assert walk.fresh(packet).state == PacketState.OPEN
    approve_in_the_table(packet)
    assert go_on(walk, packet) == "not_enough"
    assert call_of(packet).state != CallState.DONE


def test_inv05_a_hold_that_is_over_and_was_not_released_approves_nothing(walk: Walk) -> None:
    packet = asked(walk, '@hold("15m")')
    walk.decide(packet)
    clock.move_on(timedelta(minutes=16))
    approve_in_the_table(packet)
    assert go_on(walk, packet) == "not_enough"


def test_inv05_a_held_approval_is_as_old_as_the_end_of_its_hold(walk: Walk) -> None:
    packet = asked(walk, '@hold("15m")\n@execute("30m")')
    walk.decide(packet)
    walk.let_go(packet)
    assert release_packet(packet.pk)
    clock.move_on(timedelta(minutes=31))
    now = database_now()
    written(packet, settled_at=now, usable_until=now + timedelta(hours=1), valid_seconds=10**6)
    ToolCall.objects.filter(packet=packet).update(usable_until=now + timedelta(hours=1))
    assert go_on(walk, packet) == "approval_ran_out"


def test_inv05_the_end_of_a_hold_that_nobody_voted_for(walk: Walk) -> None:
    packet = asked(walk, '@hold("15m")')
    written(packet, held_until=database_now() - timedelta(seconds=1))
    assert release_packet(packet.pk) is False
    assert (walk.fresh(packet).state, packet.round) == (PacketState.OPEN, 2)


def test_inv05_votes_that_were_undone_do_not_come_back(walk: Walk) -> None:
    packet = asked(walk, '@hold("15m")\n@needs("2")')
    walk.decide(packet)
    walk.decide(packet, walk.cast.bo)
    undo_approval(packet.public_id, member=walk.cast.ada, seen=1, reason="")
    clock.move_on(timedelta(minutes=16))

    written(packet, round=1, held_until=database_now())
    assert release_packet(packet.pk) is False
    written(packet, round=1, held_until=None)
    third = walk.cast.member("Cleo Third", [Role.REVIEWER])
    with pytest.raises(errors.PacketDamaged):
        walk.decide(packet, third)
    approve_in_the_table(packet)
    assert go_on(walk, packet) == "not_enough"


@pytest.mark.parametrize("early", [{"escalated": 7200, "escalate_at": None}, {"opened": True}, {}])
def test_inv06_nobody_stands_in_before_the_page_says(walk: Walk, early: dict[str, Any]) -> None:
    packet = asked(walk, SECURITY, TWO_HOURS)
    now = database_now()
    if "escalated" in early:
        written(packet, **early)
    elif early:
        written(packet, opened_at=now - timedelta(hours=3), escalate_at=now)
    else:
        written(packet, escalate_at=now)
    written(packet, routes=[])
    with pytest.raises((errors.PacketDamaged, errors.CountsForNothing)):
        walk.decide(packet, walk.cast.bo)
    walk.sweep()
    assert not Decision.objects.exists()
    assert not Event.objects.filter(kind="packet.escalated").exists()


def test_inv05_the_time_to_decide_is_the_pages(walk: Walk) -> None:
    packet = passed(asked(walk, '@decide("4h")'), hours=4)
    written(packet, expires_at=database_now() + timedelta(days=1))
    with pytest.raises(errors.PacketExpired):
        walk.decide(packet)
    assert not Decision.objects.exists()


def test_inv05_an_answer_that_came_too_late_is_none(walk: Walk) -> None:
    packet = walk.decide(asked(walk, '@decide("4h")'))
    late = packet.opened_at + timedelta(hours=4)
    with triggers_off(connection):
        Decision.objects.filter(packet=packet).update(decided_at=late)
    end = late + timedelta(hours=1)
    written(packet, settled_at=late, usable_until=end)
    ToolCall.objects.filter(packet=packet).update(usable_until=end)
    clock.move_on(timedelta(hours=4, minutes=1))
    assert go_on(walk, packet) == "not_enough"


def test_inv05_an_approval_is_as_old_as_its_last_answer(walk: Walk) -> None:
    packet = walk.decide(asked(walk, '@execute("30m")'))
    clock.move_on(timedelta(minutes=31))
    now = database_now()
    written(packet, settled_at=now, usable_until=now + timedelta(hours=1), valid_seconds=10**6)
    ToolCall.objects.filter(packet=packet).update(usable_until=now + timedelta(hours=1))
    assert go_on(walk, packet) == "approval_ran_out"


def test_inv01_another_kind_or_effect_than_the_pages(walk: Walk) -> None:
    for columns in ({"kind": "question"}, {"effect": "Nothing much."}):
        packet = written(walk.to_call(), **columns)
        with pytest.raises(errors.PacketDamaged):
            walk.decide(packet, verdict=Verdict.APPROVE, comment="Yes.")


def test_inv05_a_check_that_did_not_pass_blocks_whatever_the_row_says(walk: Walk) -> None:
    packet = walk.to_review([REPAIR[0], REPAIR[-1]], verification=True)  # nothing was repaired
    assert "verification" in packet.blocked
    written(packet, blocked="")
    with pytest.raises(errors.ApprovalBlocked, match="verification"):
        walk.decide(packet)
    assert not Decision.objects.exists()


# --- Rows of runs that approvals are used from ----------------------------------------------------


def test_inv01_a_call_that_waits_is_not_allowed_by_its_row(walk: Walk) -> None:
    packet = walk.to_call()
    ToolCall.objects.filter(packet=packet).update(state=CallState.ALLOWED.value)
    go_on(walk, packet)
    held = TenantJudge().use_up(call_of(packet))
    assert held is not None
    assert held.why == "not_approved"


def test_inv05_a_row_that_policy_did_not_judge_is_judged(walk: Walk) -> None:
    call = call_of(walk.to_call())
    run = walk.run(ASKING, http=True)
    call.pk, call.run, call.state = None, run, CallState.ALLOWED.value
    call.save(force_insert=True)
    walk.drain()
    assert walk.tracker.requests == []
    assert walk.open_packet(run).page["tool"] == "create_issue"


def test_inv01_a_call_that_has_no_packet_is_not_approved_by_its_row(walk: Walk) -> None:
    packet = walk.to_call()
    call = call_of(packet)
    approve_in_the_table(packet)
    written(packet, call=None)
    assert go_on(walk, packet) == "not_approved"
    assert walk.fresh(call).state != CallState.DONE


def test_inv03_an_approval_that_was_used_is_not_used_again_by_a_row(walk: Walk) -> None:
    packet = walk.decide(walk.to_call())
    call = call_of(packet)
    assert TenantJudge().use_up(call) is None
    for state in (CallState.APPROVED, CallState.ALLOWED):
        call.state = state.value
        held = TenantJudge().use_up(call)
        assert held is not None
        assert held.why == "used_already"


@pytest.mark.parametrize("state", ["approved", "used"])
def test_inv01_a_run_does_not_go_on_by_the_row_of_the_question(walk: Walk, state: str) -> None:
    packet = walk.to_call()
    walk.decide(packet)
    walk.new_policy()
    walk.drain()
    asked_first = Resumption.objects.get()
    end = database_now() + timedelta(hours=1)
    Resumption.objects.update(state=state, usable_until=end)
    Run.objects.filter(pk=packet.run_id).update(status="queued", status_at=timezone.now())
    walk.deliver(Job.EXECUTE_RUN, packet.run_id)
    walk.drain()
    assert walk.status(packet.run) == "waiting"
    assert walk.tracker.requests == []
    assert Resumption.objects.exclude(pk=asked_first.pk).get().state == "waiting"


def test_inv01_a_use_of_a_credential_is_the_one_on_the_page(walk: Walk) -> None:
    give_credential(walk, "the-value-" + "x" * 20)
    packet = walk.decide(walk.to_call(text=contract_with(credential="token")))
    grant = packet.credential
    assert grant is not None
    assert TenantJudge().gives(grant) is None
    grant.scope = {**grant.scope, "audience": ["elsewhere.example"]}
    held = TenantJudge().gives(grant)
    assert held is not None
    assert held.why == "scope_changed"
    CredentialGrant.objects.filter(pk=grant.pk).update(scope=grant.scope)
    walk.drain()
    assert walk.tracker.requests == []
    refused = Event.objects.get(run=packet.run, kind="credential.refused")
    assert refused.facts["why"] == "scope_changed"


def test_inv05_a_policy_whose_text_was_changed_allows_nothing(walk: Walk) -> None:
    packet = walk.to_call()
    version = PolicyVersion.objects.get(tenant=walk.cast.acme)
    asks = 'permit (principal, action == Action::"ask", resource)'
    assert asks in version.text
    text = version.text.replace(asks, asks.replace("ask", "do"))
    PolicyVersion.objects.filter(pk=version.pk).update(text=text)
    with pytest.raises(errors.PolicyNowDenies):
        walk.decide(packet)
    assert TenantJudge().in_force(walk.cast.acme.pk) == (0, "")
    run = walk.run(ASKING, http=True)
    walk.drain()
    assert walk.tracker.requests == []
    assert {each.state for each in ToolCall.objects.filter(run=run)} == {CallState.REFUSED}


def test_inv05_demands_are_not_taken_from_a_text_that_was_changed(walk: Walk) -> None:
    staged(walk)
    version = in_force(walk, rule('@needs("2")'))
    run = walk.run(ASKING, http=True)
    walk.drain(until=Job.OPEN_CALL_PACKET)
    text = version.text.replace('@needs("2")', "")
    PolicyVersion.objects.filter(pk=version.pk).update(text=text)
    in_force(walk, "")
    walk.drain()
    assert walk.open_packet(run).needed == MOST_PEOPLE


def test_inv01_a_contract_whose_content_was_changed_is_not_carried_out(walk: Walk) -> None:
    run = walk.run(ASKING, http=True)
    version = run.version
    limits = version.data["limits"] | {"wall_minutes": 1440}
    ContractVersion.objects.update(data=version.data | {"limits": limits})
    walk.drain()
    assert walk.status(run) == "failed"
    assert (run.failure_boundary, run.failure_code) == ("control", "run.contract_changed")
    assert not ToolCall.objects.exists()
