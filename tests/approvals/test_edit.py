"""Edit: a person changes the arguments of a call that waits, and others decide on them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from approvals import errors
from approvals.deciding import whole
from approvals.editing import edit_packet
from approvals.models import Decision, Packet
from approvals.policies import decide_policy, propose_policy
from approvals.policy_text import DEFAULT_POLICY
from approvals.states import PacketState, Verdict
from portal.errors import NotAllowed, NotFound
from portal.models import AuditEntry, Membership
from portal.roles import Role
from runs.editing import ArgumentsWrong
from runs.models import Event, ToolCall
from runs.states import CallState
from tests.approvals import stages
from tests.cast import REPAIR, call, contract_text
from tests.visits import Visitor, address_of, text_of
from tests.walk import Walk

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.both_databases]

OTHER = {"title": "The adder subtracts, says a person"}
# A rule that asks about every command, so that one in the sandbox waits.
ASK_SHELL = """
@id("ask-shell") @why("A command.")
permit (principal, action == Action::"ask", resource) when { context.kind == "shell" };
"""


def commands_ask(walk: Walk) -> None:
    """From now on a command in the sandbox waits for a person."""
    text = DEFAULT_POLICY.replace('["shell", "patch", "view"]', '["patch", "view"]') + ASK_SHELL
    version = propose_policy(text, member=walk.cast.max)
    decide_policy(version, approve=True, seen=version.digest, member=stages.second_admin(walk))


def edit(
    walk: Walk,
    packet: Packet,
    arguments: dict[str, Any] | str,
    member: Membership | None = None,
    seen: str = "",
) -> Packet:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    who = member or walk.cast.bo
    return edit_packet(packet.public_id, member=who, seen=seen or packet.digest, text=text)


def test_what_is_executed_is_what_was_edited_and_the_agent_is_told(walk: Walk) -> None:
    first = walk.to_call()
    second = edit(walk, first, OTHER)
    walk.decide(second, walk.cast.ada)
    walk.drain()
    assert [json.loads(each.body)["title"] for each in walk.tracker.requests] == [OTHER["title"]]
    heard = walk.heard(first.run)
    assert "Edited: Bo" in heard
    assert "The adder subtracts, says a person" in heard
    row = ToolCall.objects.get(run=first.run, call_id="file")
    assert (row.state, row.arguments, row.proposed) == (
        CallState.DONE,
        OTHER,
        {"title": "The adder subtracts"},
    )
    assert row.edited_by == walk.cast.bo.user
    assert row.result.startswith("Edited: Bo")


def test_a_new_packet_takes_the_place_and_both_say_so(walk: Walk) -> None:
    first = walk.to_call()
    second = edit(walk, first, OTHER)
    first = walk.fresh(first)
    assert first.state == PacketState.SUPERSEDED
    assert (second.state, second.supersedes, second.edited_by) == (
        PacketState.OPEN,
        first,
        walk.cast.bo.user,
    )
    assert first.page["arguments"] == {"title": "The adder subtracts"}
    assert whole(first)
    assert second.page["arguments"] == OTHER
    assert second.page["edited"] == {
        "by": walk.cast.bo.user.name,
        "person": walk.cast.bo.user.pk,
        "packet": first.number,
        "digest": first.digest,
        "proposed": {"title": "The adder subtracts"},
    }
    assert whole(second)
    entry = AuditEntry.objects.get(action="packet.edited")
    assert entry.actor_id == walk.cast.bo.user_id
    assert (entry.facts["digest"], entry.facts["became"]) == (first.digest, second.digest)
    event = Event.objects.get(kind="packet.edited").facts
    assert (event["packet"], event["became"]) == (first.number, second.number)
    assert event["by"] == walk.cast.bo.user.name


def test_the_editor_does_not_approve_but_may_deny(walk: Walk) -> None:
    second = edit(walk, walk.to_call(), OTHER)
    with pytest.raises(errors.OwnRequest):
        walk.decide(second, walk.cast.bo)
    walk.decide(second, walk.cast.bo, Verdict.DENY)
    walk.drain()
    assert "Denied by Bo" in walk.heard(second.run)
    assert "Yours were not used" in walk.heard(second.run)
    assert walk.tracker.requests == []


def test_an_editor_stays_excluded_whatever_others_edit_later(walk: Walk) -> None:
    second = edit(walk, walk.to_call(), OTHER)
    third = edit(walk, second, {"title": "Yet another"}, walk.cast.ada)
    for who in (walk.cast.bo, walk.cast.ada):
        with pytest.raises(errors.OwnRequest):
            walk.decide(third, who)
    other = walk.cast.member("Cleo Third", [Role.REVIEWER])
    walk.decide(third, other)
    walk.drain()
    assert json.loads(walk.tracker.requests[0].body)["title"] == "Yet another"


def test_the_only_person_of_a_tenant_edits_and_is_labelled(walk: Walk) -> None:
    first = walk.to_call()
    walk.cast.acme.one_person = True
    walk.cast.acme.save(update_fields=["one_person"])
    second = edit(walk, first, OTHER, walk.cast.ada)
    walk.decide(second, walk.cast.ada)
    assert walk.fresh(second).self_approved


def test_the_old_packet_cannot_be_decided_any_more(walk: Walk) -> None:
    first = walk.to_call()
    second = edit(walk, first, OTHER)
    with pytest.raises(errors.AlreadySettled):
        walk.decide(first, walk.cast.ada)
    with pytest.raises(errors.PacketChanged):
        walk.decide(second, walk.cast.ada, seen=first.digest)
    assert not Decision.objects.exists()


def test_an_edit_from_a_stale_page_changes_nothing(walk: Walk) -> None:
    first = walk.to_call()
    second = edit(walk, first, OTHER)
    with pytest.raises(errors.PacketChanged):
        edit(walk, second, {"title": "x"}, walk.cast.ada, seen=first.digest)
    with pytest.raises(errors.AlreadySettled):
        edit(walk, first, {"title": "x"}, walk.cast.ada)
    assert walk.fresh(second).state == PacketState.OPEN


def test_an_edit_sent_twice_is_one(walk: Walk) -> None:
    first = walk.to_call()
    assert edit(walk, first, OTHER) == edit(walk, first, OTHER)
    assert Packet.objects.count() == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "title"),
        ("{", "not one valid JSON object"),
        ("[]", "one JSON object"),
        ('{"title": "a", "title": "b"}', "given twice"),
        ('{"title": 3}', "title"),
        ('{"title": "a", "more": 1}', "more"),
        ('{"title": "a\\u0000"}', "NUL"),
        ('{"title": NaN}', "NaN"),
        (" " * 200_001, "200,001 characters"),
    ],
)
def test_arguments_are_read_as_strictly_as_the_agents(walk: Walk, text: str, problem: str) -> None:
    first = walk.to_call()
    with pytest.raises(ArgumentsWrong, match=problem):
        edit(walk, first, text)
    assert walk.fresh(first).state == PacketState.OPEN
    assert Packet.objects.count() == 1


def test_the_same_arguments_are_no_edit(walk: Walk) -> None:
    first = walk.to_call()
    with pytest.raises(errors.NothingEdited):
        edit(walk, first, ' {"title":\n "The adder subtracts"} ')


def test_policy_that_denies_refuses_the_edit(walk: Walk) -> None:
    first = walk.to_call()
    walk.new_policy(deny_http=True)
    with pytest.raises(errors.EditDenied, match="No service may be called"):
        edit(walk, first, OTHER)
    assert walk.fresh(first).state == PacketState.OPEN
    row = ToolCall.objects.get(run=first.run, call_id="file")
    assert row.proposed is None


def test_policy_that_would_allow_it_still_leaves_it_to_people(walk: Walk) -> None:
    rule = """
@id("short-is-fine") @why("It is short.")
permit (principal, action == Action::"do", resource)
when { context.kind == "http" && context.argument_bytes < 20 };
@id("long-needs-two") @why("It is long.") @needs("2")
permit (principal, action == Action::"ask", resource)
when { context.kind == "http" && context.argument_bytes >= 20 };
"""
    text = DEFAULT_POLICY.replace(
        'context.outward || ["http", "network", "credential"]', '["network", "credential"]'
    )
    version = propose_policy(text + rule, member=walk.cast.max)
    admin = stages.second_admin(walk)
    decide_policy(version, approve=True, seen=version.digest, member=admin)
    first = walk.to_call()
    assert first.needed == 2
    second = edit(walk, first, {"title": "x"})
    assert (second.state, second.needed) == (PacketState.OPEN, 2)
    assert second.page["policy"]["rules"] == ["short-is-fine", "long-needs-two"]
    assert "allow this by itself" in second.page["policy"]["reason"]
    assert ToolCall.objects.get(packet=second).state == CallState.WAITING


def test_what_was_demanded_before_the_edit_is_demanded_whatever_rules_are_called_now(
    walk: Walk,
) -> None:
    """By now the policy knows that rule no more, and would allow the call."""
    stages.staged(walk)
    notes = f'{stages.BOTH}\n@hold("5m")\n@execute("30m")\n@passkey("required")\n@risk("high")'
    stages.in_force(walk, stages.rule(notes))
    first = walk.to_call()
    free = """
@id("anything-goes") @why("We trust it.")
permit (principal, action == Action::"do", resource) when { context.kind == "http" };
"""
    text = DEFAULT_POLICY.replace(
        'context.outward || ["http", "network", "credential"]', '["network", "credential"]'
    )
    version = propose_policy(text + free, member=walk.cast.max)
    admin = stages.second_admin(walk)
    decide_policy(version, approve=True, seen=version.digest, member=admin)

    second = edit(walk, first, OTHER)

    before, now = first.page["gate"], second.page["gate"]
    assert now["stages"] == before["stages"]
    for name in ("needed", "hold_seconds", "execute_seconds", "passkey", "risk"):
        assert now[name] == before[name]
    with pytest.raises(errors.NeedsPasskey):
        walk.decide(second, walk.cast.ada)


def test_true_is_not_one(walk: Walk) -> None:
    """Python says they are equal; what is sealed and sent are other bytes."""
    strict = 'title = { type = "string", maxLength = 200 }'
    text = contract_text(http=True, verification=False)
    assert strict in text
    loose = text.replace(strict, "title = {}")
    steps = [[call("file", "create_issue", title=1)], *REPAIR[1:]]
    run = walk.run(steps, text=loose)
    walk.drain()
    first = walk.open_packet(run)
    for same in ('{"title": 1}', '{"title": 1.0}'):
        with pytest.raises(errors.NothingEdited):
            edit(walk, first, same)
    second = edit(walk, first, '{"title": true}')
    assert second.page["arguments"]["title"] is True
    with pytest.raises(errors.AlreadySettled):  # no repetition of that edit
        edit(walk, first, '{"title": 1}', seen=first.digest)


def test_a_command_is_edited_and_runs_as_edited(walk: Walk) -> None:
    commands_ask(walk)
    steps = [[call("go", "exec_command", cmd="echo one > ../output/said.txt")], *REPAIR[1:]]
    first = walk.to_call(steps)
    arguments = first.page["arguments"]
    second = edit(walk, first, arguments | {"cmd": "echo two > ../output/said.txt"})
    assert second.page["arguments"] == arguments | {"cmd": "echo two > ../output/said.txt"}
    walk.decide(second, walk.cast.ada)
    walk.step()
    row = ToolCall.objects.get(run=first.run, call_id="go")
    assert (row.state, row.exit_code) == (CallState.DONE, 0)
    assert row.result.startswith("Edited: Bo")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"cmd": ""}, "cmd"),
        ({"workdir": "../../etc"}, "outside the workspace"),
        ({"workdir": "/etc"}, "outside the workspace"),
        ({"yield_time_ms": 600_001}, "yield_time_ms"),
        ({"max_output_tokens": 25_001}, "max_output_tokens"),
        ({"tty": "yes"}, "tty"),
        ({"sudo": True}, "sudo"),
    ],
)
def test_a_command_stays_within_the_limits(
    walk: Walk, change: dict[str, Any], problem: str
) -> None:
    commands_ask(walk)
    first = walk.to_call([[call("go", "exec_command", cmd="echo one")], *REPAIR[1:]])
    with pytest.raises(ArgumentsWrong, match=problem):
        edit(walk, first, first.page["arguments"] | change)


def test_what_cannot_be_edited_says_what_to_do(walk: Walk) -> None:
    review = walk.to_review()
    with pytest.raises(errors.NotEditable, match="Request changes instead"):
        edit(walk, review, {}, walk.cast.bo)


def test_only_people_who_may_decide_edit(walk: Walk) -> None:
    first = walk.to_call()
    for who in (walk.cast.olu, walk.cast.max):
        with pytest.raises(NotAllowed):
            edit(walk, first, OTHER, who)
    machine = walk.cast.mona
    machine.roles = [Role.REVIEWER]
    machine.save(update_fields=["roles"])
    with pytest.raises(errors.MachineMayNotDecide):
        edit(walk, first, OTHER, machine)
    with pytest.raises(NotFound):
        edit(walk, first, OTHER, walk.cast.eve)


def test_what_is_held_over_or_out_of_time_is_not_edited(walk: Walk) -> None:
    walk.hold_policy()
    held = walk.to_call()
    walk.decide(held, walk.cast.ada)
    with pytest.raises(errors.PacketHeld):
        edit(walk, held, OTHER)
    late = walk.run_out(walk.to_call())
    with pytest.raises(errors.PacketExpired):
        edit(walk, late, OTHER)


def test_a_row_that_was_changed_behind_the_edit_executes_nothing(walk: Walk) -> None:
    second = edit(walk, walk.to_call(), OTHER)
    walk.decide(second, walk.cast.ada)
    ToolCall.objects.filter(packet=second).update(arguments={"title": "Another"})
    walk.drain()
    assert walk.tracker.requests == []
    assert "call.held_back" in walk.kinds(second.run)


def test_the_agents_own_arguments_are_never_executed_after_an_edit(walk: Walk) -> None:
    """Whoever puts the agent's arguments back without asking anybody executes nothing."""
    second = edit(walk, walk.to_call(), OTHER)
    walk.decide(second, walk.cast.ada)
    ToolCall.objects.filter(packet=second).update(proposed=None)
    walk.drain()
    assert walk.tracker.requests == []
    assert walk.fresh(second).used_at is None


def test_a_worker_that_died_in_between_executes_the_edited_call_once(walk: Walk) -> None:
    second = edit(walk, walk.to_call(), OTHER)
    walk.decide(second, walk.cast.ada)
    walk.lose_hops()
    walk.sweep()
    assert [json.loads(each.body)["title"] for each in walk.tracker.requests] == [OTHER["title"]]


# --- The page -------------------------------------------------------------------------------------


def test_the_form_shows_changes_first_and_then_makes_the_edit(walk: Walk) -> None:
    first = walk.to_call()
    bo, address = Visitor(walk.cast.bo), address_of(first, "edit")
    page = text_of(bo.get(address))
    assert "The adder subtracts" in page
    assert "whoever edits never approves" in page
    text = json.dumps(OTHER)
    looked = bo.post(address, seen=first.digest, text=text, do="look")
    assert "What you change" in text_of(looked)
    assert Packet.objects.count() == 1
    made = bo.post(address, seen=first.digest, text=text, do="edit")
    second = Packet.objects.get(supersedes=first)
    assert (made.status_code, made["Location"]) == (302, address_of(second))
    shown = text_of(bo.get(address_of(second)))
    assert "What the agent wrote, and what would run" in shown
    assert "You asked for this, edited it" in shown
    old = text_of(bo.get(address_of(first)))
    assert f"Bo Lindqvist edited it: packet {second.number} asks in its place" in old
    assert f"Packet {second.number} followed this one" in old
    assert "no longer fits its digest" not in old
    assert bo.get(address)["Location"] == address_of(first)


def test_a_refused_edit_keeps_the_text_and_says_why(walk: Walk) -> None:
    first = walk.to_call()
    bo, address = Visitor(walk.cast.bo), address_of(first, "edit")
    wrong = bo.post(address, seen=first.digest, text='{"title": 3, "kept": "words"}')
    assert wrong.status_code == 422
    assert "kept" in text_of(wrong)
    assert "do not fit this tool" in text_of(wrong)
    edit(walk, first, {"title": "Ada was first"}, walk.cast.ada)
    late = bo.post(address, seen=first.digest, text=json.dumps(OTHER))
    assert late.status_code == 409
    assert OTHER["title"] in text_of(late)
    assert "What you wrote is kept below" in text_of(late)
    assert Packet.objects.count() == 2


def test_a_packet_that_is_not_edited_says_so_on_its_form(walk: Walk) -> None:
    review = walk.to_review()
    answer = Visitor(walk.cast.bo).get(address_of(review, "edit"))
    assert answer.status_code == 400
    assert "Request changes instead" in text_of(answer)
