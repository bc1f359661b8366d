"""What rules demand of the clock, and who stands in when: read, joined, sealed, refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf

import pytest

from approvals import demands, times
from approvals.demands import Demands, Fallback, Stage
from approvals.policy import PolicyRefused, check_policy
from approvals.policy_text import DEFAULT_POLICY
from approvals.quorum import Quorum
from approvals.times import Times

GROUPS = {"security": (4, "Security"), "owners": (5, "Owners"), "legal": (6, "Legal")}
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
HOUR = 3600


def noted(*lines: str) -> str:
    """The shipped policy with these annotations on the rule that publishes."""
    name = '@id("publish-after-review")'
    return DEFAULT_POLICY.replace(name, "\n".join([name, *lines]))


def read(**notes: str) -> Demands:
    assert demands.faults(notes, asks=True) == []
    return demands.read(notes)


def test_of_several_rules_the_shortest_time_holds() -> None:
    found = demands.joined(
        [
            read(decide="4h", execute="2h"),
            read(decide="30m"),
            read(execute="1d", remind="10m"),
            read(),
        ]
    )
    assert found.times == Times(decide=1800, execute=2 * HOUR, remind=600)
    sealed = found.sealed({})
    assert sealed == {
        "needed": 1,
        "roles": [],
        "decide_seconds": 1800,
        "execute_seconds": 7200,
        "remind_seconds": 600,
    }
    assert Times.of_gate(sealed) == found.times
    assert Times.of_gate({"needed": 1}) == Times()


@pytest.mark.parametrize("name", ["decide", "execute", "remind"])
@pytest.mark.parametrize("span", ["", "soon", "59s", "15", "31d", "1.5h", "-1m", "15 m", "0m"])
def test_what_is_no_span_is_refused_with_its_place(name: str, span: str) -> None:
    text = noted(f'@{name}("{span}")')
    with pytest.raises(PolicyRefused, match="is no span of time of 1 minute to") as refused:
        check_policy(text)
    (problem,) = refused.value.problems
    assert text.splitlines()[(problem.line or 0) - 1] == f'@{name}("{span}")'


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (['@decide("1h")', '@remind("1h")'], "over before the first reminder"),
        (['@escalate("2h to group:owners")'], "there are no stages"),
        (['@stages("1 of group:a")', '@escalate("2h group:b")'], "names nobody"),
        (['@stages("1 of group:a")', "@escalate"], "names nobody"),
        (['@stages("1 of group:a")', '@escalate("soon to group:b")'], "no span of time"),
        (['@stages("1 of group:a")', '@escalate("31d to group:b")'], "no span of time"),
        (['@stages("1 of group:a")', '@escalate("2h to role:viewer")'], "no role that decides"),
        (['@stages("1 of group:a")', '@escalate("2h to group:a")'], "is the stage itself"),
        (
            ['@stages("1 of group:a")', '@escalate("2h to group:b, 3h to group:b")'],
            "twice",
        ),
        (
            ['@stages("1 of group:a")', '@decide("2h")', '@escalate("2h to group:b")'],
            "are over before somebody",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_with_its_place(lines: list[str], reason: str) -> None:
    text = noted(*lines)
    with pytest.raises(PolicyRefused, match=reason) as refused:
        check_policy(text)
    (problem,) = refused.value.problems
    assert text.splitlines()[(problem.line or 0) - 1] == lines[-1]


@pytest.mark.parametrize("name", ["decide", "execute", "remind", "escalate"])
def test_on_a_rule_that_asks_nobody_they_are_refused(name: str) -> None:
    where = '@id("path-not-allowed")'
    value = "1h to group:a" if name == "escalate" else "1h"
    text = DEFAULT_POLICY.replace(where, f'{where}\n@{name}("{value}")')
    with pytest.raises(PolicyRefused, match=r"have no effect here|there are no stages"):
        check_policy(text)


def test_whoever_stands_in_does_so_after_the_time_and_for_every_stage_of_the_rule() -> None:
    gate = read(
        stages="1 of group:security, 1 of group:legal",
        escalate="2h to group:owners, 1d to group:legal",
    ).sealed(GROUPS)
    assert gate["stages"][0] == {
        "route": "group:4",
        "group": "security",
        "name": "Security",
        "people": 1,
        "fallbacks": [
            {"route": "group:5", "group": "owners", "name": "Owners", "after_seconds": 7200},
            {"route": "group:6", "group": "legal", "name": "Legal", "after_seconds": 86400},
        ],
    }
    # Nobody stands in for the stage they are.
    assert [each["route"] for each in gate["stages"][1]["fallbacks"]] == ["group:5"]
    owner, other = ["group:5"], ["group:5"]
    assert not Quorum.of_gate(gate).counts(owner)
    assert not Quorum.of_gate(gate, waited=7199).counts(owner)
    later = Quorum.of_gate(gate, waited=7200)
    assert later.counts(owner)
    # A person fills one place, standing in as well.
    assert not later.reached({1: owner})
    assert later.reached({1: owner, 2: other})
    assert later.reached({1: owner, 2: ["group:4"]})
    assert later.wanted("reviewer") == "one of Security or of Owners and one of Legal or of Owners"
    assert Quorum.of_gate(gate, waited=inf).routes == ["group:4", "group:5", "group:6"]
    assert demands.stages_in(gate["stages"]) == {
        Stage(
            "group",
            "security",
            1,
            (Fallback(7200, "group", "owners"), Fallback(86400, "group", "legal")),
        ),
        Stage("group", "legal", 1, (Fallback(7200, "group", "owners"),)),
    }


def test_one_rule_lets_nobody_stand_in_where_another_does_not() -> None:
    mild = read(stages="1 of group:security", escalate="2h to group:owners, 3h to group:legal")
    strict = read(stages="2 of group:security", escalate="4h to group:owners")
    (stage,) = demands.joined([mild, strict]).stages
    assert stage == Stage("group", "security", 2, (Fallback(4 * HOUR, "group", "owners"),))
    assert demands.joined([strict, mild]).stages == (stage,)
    (alone,) = demands.joined([mild, read(stages="1 of group:security")]).stages
    assert alone.fallbacks == ()


def test_an_approval_is_valid_as_long_as_the_shorter_of_contract_and_rule_says() -> None:
    assert times.valid_seconds({"valid_minutes": 60}, "call") == 3600
    assert times.valid_seconds({"valid_minutes": 60, "execute_seconds": 1800}, "call") == 1800
    assert times.valid_seconds({"valid_minutes": 10, "execute_seconds": 1800}, "call") == 600
    # The time of a network rule is how long it stays open: it is used as it is approved.
    assert times.valid_seconds({"valid_minutes": 60, "execute_seconds": 60}, "egress") == 3600


def test_reminders_come_at_every_span_and_none_is_made_up_for() -> None:
    gate = {"remind_seconds": HOUR}
    assert times.next_reminder({}, NOON, NOON) is None
    first = times.next_reminder(gate, NOON, NOON)
    assert first == NOON + timedelta(hours=1)
    assert times.next_reminder(gate, NOON, first) == NOON + timedelta(hours=2)
    assert times.next_reminder(gate, NOON, NOON + timedelta(hours=5, minutes=3)) == (
        NOON + timedelta(hours=6)
    )


def test_the_steps_of_an_escalation_come_in_their_order() -> None:
    gate = read(
        stages="1 of group:security", escalate="1d to group:legal, 2h to group:owners"
    ).sealed(GROUPS)
    assert times.steps(gate) == [7200, 86400]
    assert times.next_escalation(gate, NOON, 0) == NOON + timedelta(hours=2)
    assert times.next_escalation(gate, NOON, 7200) == NOON + timedelta(days=1)
    assert times.next_escalation(gate, NOON, 86400) is None
    assert times.step_at(gate, NOON, NOON + timedelta(hours=2, seconds=-1)) == 0
    assert times.step_at(gate, NOON, NOON + timedelta(hours=2)) == 7200
    assert times.step_at(gate, NOON, NOON + timedelta(days=3)) == 86400


def test_spans_and_demands_in_words() -> None:
    assert times.said(1800) == "30 minutes"
    assert times.said(5400) == "1 hour and 30 minutes"
    assert times.said(90) == "1 minute and 30 seconds"
    assert times.said(172800) == "2 days"
    assert read(decide="4h", execute="30m", remind="1h").times.words == [
        "to be decided within 4 hours",
        "to be carried out within 30 minutes of the decision",
        "to be brought up again every hour until it is decided",
    ]
    staged = read(stages="1 of group:security", escalate="2h to group:owners")
    assert staged.fallback_words == "after 2 hours undecided the group owners may fill places too"
    assert times.said(0) == "no time"
    assert times.said(93_784) == "1 day and 2 hours"
    assert read(remind="90m").times.words == [
        "to be brought up again every 1 hour and 30 minutes until it is decided"
    ]


def test_what_no_rule_demands_is_not_sealed() -> None:
    assert Times(decide=60).sealed() == {"decide_seconds": 60}
    assert Times().sealed() == {}
    assert Times().words == []


def test_the_shortest_and_the_longest_span_are_accepted() -> None:
    assert times.read({"decide": "60s", "execute": "60s"}) == Times(60, 60)
    for notes in (
        {"decide": "60s", "execute": "1m"},
        {"decide": "30d", "execute": "7d", "remind": "7d"},
        {"remind": "1m"},
        {"decide": "2h", "remind": "119m"},
    ):
        assert times.faults(notes) == []


def test_of_a_span_that_is_none_only_that_is_said() -> None:
    """An annotation without a text, and one that is too short for its reminders as well."""
    for notes in ({"decide": None}, {"decide": "10s", "remind": "1h"}):
        ((name, reason, remedy),) = times.faults(notes)
        assert (name, remedy) == ("decide", times.REMEDY)
        assert "is no span of time of 1 minute to 30 days" in reason


def test_a_clock_that_is_set_back_moves_no_reminder_before_its_span() -> None:
    gate = {"remind_seconds": HOUR}
    assert times.next_reminder(gate, NOON, NOON - timedelta(minutes=5)) == NOON + timedelta(hours=1)


def test_a_gate_without_stages_or_without_anybody_who_stands_in_has_no_steps() -> None:
    for gate in ({"needed": 1}, read(stages="1 of group:security").sealed(GROUPS)):
        assert times.steps(gate) == []
        assert times.next_escalation(gate, NOON, 0) is None
        assert times.step_at(gate, NOON, NOON + timedelta(days=30)) == 0
