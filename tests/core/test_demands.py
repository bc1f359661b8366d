"""What rules demand of people: every annotation read, refused, joined, sealed and said."""

from __future__ import annotations

from typing import Any

import pytest

from approvals import demands
from approvals.demands import Demands, Fallback, Stage
from approvals.times import Times

DAY = 86_400
GROUPS = {"security": (4, "Security"), "owners": (5, "Owners")}
ROLES = "Write reviewer, publisher, admin."
EVERYTHING = {
    **{"needs": "3", "role": "admin", "stages": "1 of group:security, 1 of role:publisher"},
    **{"escalate": "2h to group:owners, 1d to role:admin", "hold": "15m", "passkey": "required"},
    **{"risk": "high", "decide": "2d", "execute": "1h", "remind": "3h"},
}


def read(**notes: str) -> Demands:
    assert demands.faults(notes, asks=True) == []
    return demands.read(notes)


def said(**notes: str | None) -> list[tuple[str, str, str]]:
    return demands.faults(notes, asks=True)


def test_a_rule_without_annotations_wants_one_person_and_nothing_else() -> None:
    assert read() == Demands() == demands.ONE_PERSON
    assert demands.joined([]) == Demands()
    assert Demands().sealed(GROUPS) == {"needed": 1, "roles": []}
    assert Demands().words == Demands().fallback_words == ""


def test_all_that_a_rule_demands_is_sealed_and_read_from_the_gate_again() -> None:
    fallbacks = (Fallback(7200, "group", "owners"), Fallback(DAY, "role", "admin"))
    demanded = read(**EVERYTHING)
    assert demanded == Demands(
        people=3,
        roles=("admin",),
        stages=(
            Stage("group", "security", 1, fallbacks),
            Stage("role", "publisher", 1, fallbacks),
        ),
        hold=900,
        passkey=True,
        risk="high",
        times=Times(2 * DAY, 3600, 3 * 3600),
    )
    gate = demanded.sealed(GROUPS)
    assert {name: each for name, each in gate.items() if name != "stages"} == {
        **{"needed": 3, "roles": ["admin"], "hold_seconds": 900, "passkey": "required"},
        **{"risk": "high", "decide_seconds": 2 * DAY, "execute_seconds": 3600},
        "remind_seconds": 3 * 3600,
    }
    assert gate["stages"][1] == {
        **{"route": "role:publisher", "name": "publisher", "people": 1},
        "fallbacks": [
            {"route": "group:5", "group": "owners", "name": "Owners", "after_seconds": 7200},
            {"route": "role:admin", "name": "admin", "after_seconds": DAY},
        ],
    }
    assert demands.of_gate(gate) == demanded
    assert demands.stages_in(gate["stages"]) == frozenset(demanded.stages)
    assert demanded.stages[0].parties == [
        ("group", "security"),
        ("group", "owners"),
        ("role", "admin"),
    ]


def test_a_gate_that_is_older_than_a_demand_has_none_of_it() -> None:
    assert demands.of_gate({"needed": 1}) == Demands()
    assert demands.hold_of({}) == 0
    bare = {"needed": 2, "stages": [{"route": "role:admin", "name": "admin", "people": 2}]}
    assert demands.of_gate(bare) == Demands(people=2, stages=(Stage("role", "admin", 2),))


@pytest.mark.parametrize(
    ("gate", "risk"),
    [
        ({}, "normal"),
        ({"risk": "low"}, "low"),
        ({"risk": "high"}, "high"),
        ({"risk": "none"}, "high"),
        ({"risk": None}, "high"),
    ],
)
def test_a_risk_that_is_none_of_ours_counts_as_high(gate: dict[str, Any], risk: str) -> None:
    assert demands.risk_of(gate) == risk


def test_of_several_rules_the_most_people_the_longest_hold_and_the_highest_risk_hold() -> None:
    mild = read(needs="2", hold="2m", risk="low", role="admin")
    strict = read(needs="3", hold="1h", risk="high", role="publisher", passkey="required")
    plain = read()

    every = demands.joined([mild, strict, plain])
    assert (every.people, every.hold, every.risk) == (3, 3600, "high")
    assert every.passkey
    assert every.roles == ("admin", "publisher")
    assert demands.joined([plain, strict, mild]) == every
    # Low is what every one of them must say.
    assert demands.joined([mild, mild]).risk == "low"
    assert demands.joined([mild, plain]).risk == "normal"
    assert not demands.joined([mild, plain]).passkey
    assert demands.joined([plain], least=4).people == 4


def test_demands_in_words() -> None:
    assert read(needs="2", role="admin").words == (
        "needs 2 people and one with the role admin among them"
    )
    assert read(needs="3", stages="1 of group:security").words == (
        "needs one of the group security and 3 people in all"
    )
    assert read(stages="2 of role:admin").words == "needs two with the role admin"
    staged = read(stages="1 of group:security", escalate="2h to group:owners, 1d to role:admin")
    assert staged.fallback_words == (
        "after 2 hours undecided the group owners and after 1 day undecided people with the role "
        "admin may fill places too"
    )
    assert read(stages="1 of group:security").fallback_words == ""


@pytest.mark.parametrize(
    "notes",
    [
        {"needs": "1"},
        {"needs": "10"},
        {"hold": "1s"},
        {"hold": "7d"},
        {"stages": "10 of group:security"},
        {"stages": "1 of group:security, 9 of role:reviewer"},
        {"stages": "1 of group:security", "escalate": "1m to role:admin, 30d to group:owners"},
        # Whoever is one stage may stand in for the other one.
        {"stages": "1 of group:a, 1 of group:b", "escalate": "2h to group:a"},
        {"stages": "1 of group:a", "decide": "2h", "escalate": "119m to group:b"},
        {"risk": "low"},
        {"risk": "high"},
    ],
)
def test_the_least_and_the_most_that_may_be_demanded_are_accepted(notes: dict[str, str]) -> None:
    assert demands.faults(notes, asks=True) == []


@pytest.mark.parametrize(
    ("name", "text", "reason", "remedy"),
    [
        *(
            ("needs", text, f'@needs("{text}") is not a number of people.', "Write 1 to 10 in")
            for text in ("", "0", "11", "-1", "two", "1234567890")
        ),
        *(
            ("role", text, f'@role("{text}") is no role that decides.', ROLES)
            for text in ("", "viewer", "Admin")
        ),
        *(
            ("hold", text, f'@hold("{text}") is no span of time up to 7 days.', "Write a number")
            for text in ("", "0s", "soon", "8d", "604801s")
        ),
        *(
            ("passkey", text, f'@passkey("{text}") demands nothing.', 'Write @passkey("required")')
            for text in ("", "optional")
        ),
        *(
            ("risk", text, f'@risk("{text}") is no risk.', 'Write @risk("low") or @risk("high")')
            for text in ("", "normal", "none")
        ),
        ("stages", "11 of group:a", "@stages: “11 of group:a” wants 11 people.", "Write 1 to 10."),
        ("stages", "", "@stages: “” is no stage.", "Write @stages("),
        ("stages", "1 of role:viewer", "@stages: viewer is no role that decides.", ROLES),
    ],
)
def test_what_demands_nothing_or_too_much_is_refused(
    name: str, text: str, reason: str, remedy: str
) -> None:
    ((about, why, instead),) = said(**{name: text})
    assert (about, why) == (name, reason)
    assert instead.startswith(remedy)
    if not text:
        # Written without a text at all it is refused in the same words.
        assert said(**{name: None}) == said(**{name: ""})


@pytest.mark.parametrize("name", demands.ANNOTATIONS)
def test_where_nobody_is_asked_every_demand_is_refused(name: str) -> None:
    notes = {name: EVERYTHING[name]} | ({"stages": "1 of group:a"} if name == "escalate" else {})
    (fault,) = demands.faults(notes, asks=False)
    assert fault[0] in notes
    assert fault[1].endswith("have no effect here.")
    assert demands.faults({}, asks=False) == []


@pytest.mark.parametrize(
    ("escalate", "more", "reason"),
    [
        ("59s to group:b", {}, "@escalate: “59s” is no span of time of 1 minute to 30 days."),
        ("soon to group:b", {}, "@escalate: “soon” is no span of time of 1 minute to 30 days."),
        ("2h to role:viewer", {}, "@escalate: viewer is no role that decides."),
        ("2h to group:b, 2h to group:a", {}, "@escalate: group:a is the stage itself."),
        ("2h to group:b, 3h to group:b", {}, "@escalate names group:b twice."),
        # One that comes too late is enough.
        (
            "1h to group:c, 2h to group:b",
            {"decide": "2h"},
            "@escalate: the 2 hours to decide are over before somebody may stand in.",
        ),
    ],
)
def test_who_cannot_stand_in_is_refused(escalate: str, more: dict[str, str], reason: str) -> None:
    ((about, why, _),) = said(stages="1 of group:a", escalate=escalate, **more)
    assert (about, why) == ("escalate", reason)


def test_an_escalation_is_refused_once_where_it_or_its_stages_are_wrong() -> None:
    for text in ("", None):
        ((about, why, _),) = said(stages="1 of group:a", escalate=text)
        assert (about, why) == ("escalate", "@escalate: “” names nobody.")
    ((about, why, _),) = said(escalate="2h to group:b")
    assert about == "escalate"
    assert why.startswith("@escalate stands where there are no stages")
