"""Counting people for stages: against trying every way of seating them, and in words."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from approvals import demands
from approvals.demands import Demands
from approvals.quorum import Fallback, Quorum, Stage

SECURITY = Stage("group:1", "Security", 1)
OWNERS = Stage("group:2", "Owners", 1)
BOTH = Quorum(2, (SECURITY, OWNERS))
ROUTES = ("group:1", "group:2", "group:3", "role:admin")


def most_by_trying(quorum: Quorum, voters: dict[int, frozenset[str]]) -> int:
    """The most seats that can be filled, found by trying every order of people."""
    seats = [stage.route for stage in quorum.stages for _ in range(stage.people)]
    people = [*voters, *([None] * len(seats))]
    return max(
        (
            sum(
                person is not None and seat in voters[person]
                for person, seat in zip(order, seats, strict=True)
            )
            for order in permutations(people, len(seats))
        ),
        default=0,
    )


@st.composite
def quorums(draw: Any) -> Quorum:
    names = draw(st.lists(st.sampled_from(ROUTES), unique=True, max_size=3))
    stages = tuple(Stage(name, name, draw(st.integers(1, 2))) for name in names)
    seats = sum(each.people for each in stages)
    roles = draw(st.sampled_from([(), ("admin",)]))
    return Quorum(max(1, seats + draw(st.integers(0, 1))), stages[:2], roles)


people = st.dictionaries(st.integers(1, 9), st.frozensets(st.sampled_from(ROUTES)), max_size=4)


@given(quorums(), people)
def test_as_many_places_are_filled_as_there_can_be(
    quorum: Quorum, voters: dict[int, frozenset[str]]
) -> None:
    filled = quorum.filled(voters)

    assert len(filled) == most_by_trying(quorum, voters)
    for person, at in filled.items():
        assert quorum.stages[at].route in voters[person]
    for at, stage in enumerate(quorum.stages):
        assert list(filled.values()).count(at) <= stage.people
    enough = (
        most_by_trying(quorum, voters) == quorum.seats
        and len(voters) >= quorum.people
        and all(any(f"role:{role}" in each for each in voters.values()) for role in quorum.roles)
    )
    assert quorum.reached(voters) == enough
    assert bool(quorum.why_not(voters)) is not enough


@given(quorums(), people, st.frozensets(st.sampled_from(ROUTES)))
def test_one_more_person_never_makes_it_worse(
    quorum: Quorum, voters: dict[int, frozenset[str]], routes: frozenset[str]
) -> None:
    more = {**voters, 10: routes}

    assert set(quorum.filled(voters)) <= set(quorum.filled(more))
    if quorum.reached(voters):
        assert quorum.reached(more)
    elif quorum.reached(more):
        assert quorum.helps(10, routes, voters)
    if not quorum.counts(routes):
        assert not quorum.helps(10, routes, voters)
        assert len(quorum.filled(more)) == len(quorum.filled(voters))


def test_three_stages_of_one_need_three_people() -> None:
    quorum = Quorum(3, (SECURITY, OWNERS, Stage("role:admin", "admin", 1)))
    everything = ["group:1", "group:2", "role:admin"]

    assert not quorum.reached({1: everything})
    assert not quorum.reached({1: everything, 2: everything})
    assert quorum.reached({1: everything, 2: everything, 3: everything})


def test_somebody_moves_so_that_another_finds_a_place() -> None:
    ada, bo = ["group:1", "group:2"], ["group:1"]
    assert BOTH.filled({1: ada}) == {1: 0}
    assert BOTH.filled({1: ada, 2: bo}) == {1: 1, 2: 0}
    assert BOTH.helps(2, bo, {1: ada})


@pytest.mark.parametrize(
    ("voters", "said"),
    [
        ({}, "one of Security and one of Owners are"),
        ({1: ["group:1"]}, "one of Owners is"),
        ({1: ["group:1", "group:2"]}, "one of Security or of Owners is"),
        ({1: ["group:1"], 2: ["group:2"]}, ""),
    ],
)
def test_what_is_missing_in_words(voters: dict[int, list[str]], said: str) -> None:
    assert BOTH.wanted("reviewer") == "one of Security and one of Owners"
    assert BOTH.still(voters, "reviewer") == said


def test_more_people_than_the_stages_want() -> None:
    quorum = Quorum(3, (SECURITY,), ("admin",))
    assert quorum.wanted("reviewer") == (
        "one of Security and two more reviewers, among them one with the role admin"
    )
    assert quorum.routes == []  # anybody may be one of the two
    assert BOTH.routes == ["group:1", "group:2"]
    assert quorum.still({1: [], 2: []}, "reviewer") == (
        "one of Security and somebody with the role admin are"
    )


def test_stages_that_want_more_people_than_the_gate_leave_nobody_free() -> None:
    """The stages alone say who counts then, whatever the number of people says."""
    quorum = Quorum(1, (SECURITY, OWNERS))

    assert quorum.free == 0
    assert quorum.routes == ["group:1", "group:2"]
    assert not quorum.counts(["group:3"])
    assert not quorum.reached({1: ["group:1"]})


def test_a_role_that_somebody_must_hold_makes_a_person_count() -> None:
    quorum = Quorum(2, (SECURITY, OWNERS), ("admin",))

    assert quorum.routes == ["group:1", "group:2", "role:admin"]
    assert quorum.counts(["role:admin"])
    assert quorum.helps(3, ["role:admin"], {1: ["group:1"], 2: ["group:2"]})


def test_whoever_approved_already_does_not_help_once_more() -> None:
    assert not BOTH.helps(1, ["group:1", "group:2"], {1: ["group:1"]})
    assert BOTH.helps(2, ["group:1", "group:2"], {1: ["group:1"]})


@pytest.mark.parametrize(
    ("quorum", "voters", "reason"),
    [
        (BOTH, {}, "needs one of Security, and nobody there may approve"),
        (
            BOTH,
            {1: ["group:1", "group:2"]},
            "needs two different people for Security and Owners, and those who may approve overlap",
        ),
        (Quorum(2), {1: []}, "needs two people, and one may approve"),
        (Quorum(1, (), ("admin",)), {1: []}, "holds the role admin"),
    ],
)
def test_why_it_cannot_be_reached(
    quorum: Quorum, voters: dict[int, list[str]], reason: str
) -> None:
    assert reason in quorum.why_not(voters)


@pytest.mark.parametrize(
    ("there", "who"),
    [
        ({}, "nobody there may approve"),
        ({1: ["group:1"], 2: []}, "one person there may approve"),
        ({1: ["group:1"], 2: ["group:1"]}, "two there may approve"),
    ],
)
def test_how_many_may_approve_where_too_few_may(there: dict[int, list[str]], who: str) -> None:
    quorum = Quorum(3, (Stage("group:1", "Security", 3),))
    assert quorum.why_not(there) == f"It needs three of Security, and {who}."
    assert quorum.why_not({each: ["group:1"] for each in (1, 2, 3)}) == ""


def test_how_many_are_wanted_and_missing_in_words() -> None:
    assert Quorum(1).wanted("reviewer") == "one reviewer"
    assert Quorum(11).wanted("reviewer") == "11 reviewers"
    assert Quorum(10).still({}, "reviewer") == "ten reviewers are"
    assert Quorum(2).still({1: []}, "reviewer") == "one reviewer is"
    assert Quorum(2, (SECURITY,)).wanted("reviewer") == "one of Security and one more reviewer"
    assert Quorum(2, (Stage("group:1", "Security", 2),)).still({}, "reviewer") == (
        "two of Security are"
    )
    admin = Quorum(1, (), ("admin",))
    assert admin.still({1: []}, "reviewer") == "somebody with the role admin is"
    assert admin.still({1: ["role:admin"]}, "reviewer") == ""


def test_whoever_stands_in_counts_and_is_told_by_the_party_that_lets_them() -> None:
    stage = Stage("group:1", "Security", 1, (Fallback("group:2", "Owners"),))

    assert stage.routes == ("group:1", "group:2")
    assert stage.takes(["group:1"])
    assert stage.takes(["group:2"])
    assert not stage.takes(["group:3"])
    assert stage.words == "one of Security or of Owners"
    # A member of both needs nobody's place.
    assert stage.stands_in(["group:2", "group:1"]) == ""
    assert stage.stands_in(["group:3", "group:2"]) == "Owners"
    assert stage.stands_in(["group:3"]) == ""


def test_people_stand_in_from_the_second_on_that_their_rule_says() -> None:
    fallback = {"route": "group:2", "name": "Owners", "after_seconds": 60}
    staged = {"route": "group:1", "name": "Security", "people": 1, "fallbacks": [fallback]}
    gate = {"needed": 1, "stages": [staged]}

    assert Quorum.of_gate(gate, 59).routes == ["group:1"]
    assert Quorum.of_gate(gate, 60).routes == ["group:1", "group:2"]
    assert Quorum.of_gate(gate, 61).routes == ["group:1", "group:2"]


# --- What rules say -------------------------------------------------------------------------------


def test_stages_of_all_rules_hold_together() -> None:
    one = demands.read({"stages": "1 of group:security, 2 of role:admin"})
    other = demands.read({"stages": "2 of group:security", "needs": "2", "role": "publisher"})

    both = demands.joined([one, other])

    assert one.people == 3
    assert [(each.kind, each.name, each.people) for each in both.stages] == [
        ("group", "security", 2),
        ("role", "admin", 2),
    ]
    assert (both.people, both.roles) == (4, ("publisher",))
    assert one.words == "needs one of the group security and two with the role admin"
    assert Demands(people=2).words == "needs 2 people"
    assert Demands().words == ""


def test_a_gate_seals_the_groups_key_and_name_and_is_read_from_there() -> None:
    demanded = demands.read({"stages": "1 of group:security, 1 of role:admin"})
    gate = demanded.sealed({"security": (12, "The Security")})

    assert gate["stages"] == [
        {"route": "group:12", "group": "security", "name": "The Security", "people": 1},
        {"route": "role:admin", "name": "admin", "people": 1},
    ]
    quorum = Quorum.of_gate(gate)
    assert quorum.wanted("reviewer") == "one of The Security and one with the role admin"
    assert quorum.routes == ["group:12", "role:admin"]
    # A group that is gone has nobody.
    assert demanded.sealed({})["stages"][0]["route"] == "group:0"
    # A gate that was sealed before there were stages.
    assert Quorum.of_gate({"needed": 2, "valid_minutes": 5}) == Quorum(2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is no stage"),
        (None, "is no stage"),
        ("group:security 1", "is no stage"),
        ("1 of group:Security", "is no stage"),
        ("1 of group:security,", "is no stage"),
        ("0 of group:security", "wants 0 people"),
        ("11 of group:security", "wants 11 people"),
        ("1 of role:viewer", "no role that decides"),
        ("1 of role:admin, 2 of role:admin", "names role:admin twice"),
        ("6 of role:admin, 6 of group:a", "more people than one packet may need"),
    ],
)
def test_stages_that_are_refused(text: str | None, reason: str) -> None:
    ((about, said, remedy),) = demands.faults({"stages": text}, asks=True)
    assert about == "stages"
    assert reason in said
    assert remedy.startswith(("Write", "Use"))


def test_stages_have_no_effect_where_nobody_is_asked() -> None:
    ((about, said, _),) = demands.faults({"stages": "1 of role:admin"}, asks=False)
    assert about == "stages"
    assert "no effect here" in said
