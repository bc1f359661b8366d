"""Counting an approval from evidence alone: one answer after another, each with what is wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from approvals.carry import content_digest
from approvals.quorum import Quorum, Stage
from approvals.tally import Tally

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
STAGES = [
    {"route": "group:4", "name": "Security", "people": 1},
    {"route": "role:admin", "name": "admin", "people": 2},
]
SECOND = "is the second approval of one person"
OTHER_ROUND = "is of another round of votes than its packet is in"
NOT_FOLLOWING = "begins a round of votes that does not follow"
NOT_THEIRS = "is an approval of somebody who may not give one"
LATE = "came after the time to decide"
NEVER_GIVEN = "is carried over, and was never given"
OTHER_CONTENT = "is carried over to a page of other content"
TAKES_A_PASSKEY = "is carried over, though a passkey must sign it"


def page(**gate: Any) -> dict[str, Any]:
    return {"tool": "shell", "gate": {"needed": 1, "excluded": [7], **gate}}


def tally(**gate: Any) -> Tally:
    return Tally.of_page(page(**gate))


def taken(tally: Tally, person: object = 1, **more: object) -> list[str]:
    return list(tally.take({"verdict": "approve", "person": person, **more}))


# --- The page


def test_a_page_says_what_it_demands() -> None:
    sealed = page(needed=3, stages=STAGES, passkey="required", hold_seconds=60)
    sealed["time"] = {"opened": NOON.isoformat(), "expires": NOON.isoformat()}

    found = Tally.of_page(sealed)

    assert found == Tally(
        Quorum(3, (Stage("group:4", "Security", 1), Stage("role:admin", "admin", 2))),
        passkey=True,
        held=True,
        content=content_digest(sealed),
        excluded=[7],
        opened=NOON,
        expires=NOON,
        hold_seconds=60,
        fallbacks={"Security": [], "admin": []},
        about={"kind": None, "tool": "shell"},
    )
    # Nobody has answered, and votes are of the first round.
    assert (found.round, found.approved, found.heard) == (1, {}, set())


def test_a_page_that_is_older_than_a_demand_has_none_of_it() -> None:
    found = Tally.of_page({"gate": {"needed": 1}})
    assert (found.passkey, found.held, found.excluded, found.expires) == (False, False, None, None)


@pytest.mark.parametrize(
    "wrong",
    [
        *({}, {"gate": None}, {"gate": [1]}, {"gate": "a"}, {"gate": 1}, {"gate": {}}),
        {"gate": {"needed": "many"}},
        {"gate": {"needed": None}},
        {"gate": {"needed": float("inf")}},
        {"gate": {"needed": 1, "excluded": 7}},
        {"gate": {"needed": 1, "stages": [{"route": "group:4"}]}},
        {"gate": {"needed": 1, "stages": ["group:4"]}},
        {"gate": {"needed": 1}, "time": {}},
        {"gate": {"needed": 1}, "time": {"expires": "noon"}},
        {"gate": {"needed": 1, "more": 2**53 + 1}},
    ],
)
def test_a_page_that_does_not_say_who_must_approve_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^its page does not say who must approve it$"):
        Tally.of_page(wrong)


# --- Answers


def test_people_who_approve_are_counted_once() -> None:
    counted = tally(needed=2)
    assert taken(counted, 1) == []
    assert taken(counted, 1) == [SECOND]
    assert counted.approved == {1: 1}
    assert list(counted.end(None)) == ["it needed two people, and one person approved it"]
    assert taken(counted, 2) == []
    assert list(counted.end(None)) == []


@pytest.mark.parametrize("verdict", ["deny", "request_changes", None])
def test_only_approvals_approve(verdict: str | None) -> None:
    counted = tally()
    assert taken(counted, verdict=verdict, person=None) == []
    assert counted.approved == {}
    assert list(counted.end(None)) == ["it needed one person, and nobody approved it"]


@pytest.mark.parametrize("person", [None, "1", True, 1.0])
def test_an_approval_names_a_person(person: object) -> None:
    counted = tally()
    assert taken(counted, person) == ["is nobody's"]
    assert (counted.approved, counted.heard) == ({}, set())


def test_whoever_decides_and_whose_name_it_is_are_one_person() -> None:
    counted = tally(needed=2)
    assert taken(counted, 1, on_behalf_of=2) == []
    # The place is the one's whose right it was; the other one filled it.
    assert counted.approved == {2: 1}
    assert taken(counted, 2) == [SECOND]
    assert taken(counted, 1) == [SECOND]
    assert taken(counted, 3, on_behalf_of=1) == [SECOND]
    assert taken(counted, 4, on_behalf_of=None) == []
    # What is no key is nobody's name.
    assert taken(counted, 5, on_behalf_of="6") == []
    assert taken(counted, 6) == []


def test_an_approval_is_of_the_round_that_its_packet_is_in() -> None:
    counted = tally(hold_seconds=60)
    assert taken(counted, 1, round=2) == [OTHER_ROUND]
    assert taken(counted, 2, round=1) == []
    # Lines from before there were rounds are of the first one.
    assert taken(counted, 3) == []

    assert list(counted.begin_again(2)) == []
    assert (counted.round, counted.approved, counted.heard) == (2, {}, set())
    assert taken(counted, 1) == [OTHER_ROUND]
    assert taken(counted, 2, round=2) == []
    assert counted.approved == {1: 1, 2: 2}


@pytest.mark.parametrize("counted", [1, 3, 0, None, "2"])
def test_a_round_follows_the_one_before(counted: object) -> None:
    assert list(tally(hold_seconds=60).begin_again(counted)) == [NOT_FOLLOWING]


def test_only_what_was_held_can_be_undone() -> None:
    assert list(tally().begin_again(2)) == [NOT_FOLLOWING]


def test_after_a_round_that_is_none_no_round_follows() -> None:
    counted = tally(hold_seconds=60)
    assert list(counted.begin_again("two")) == [NOT_FOLLOWING]
    assert list(counted.begin_again(2)) == [NOT_FOLLOWING]


def test_an_approval_comes_in_time() -> None:
    sealed = page(needed=3)
    sealed["time"] = {"opened": NOON.isoformat(), "expires": NOON.isoformat()}
    counted = Tally.of_page(sealed)
    before, after = NOON - timedelta(seconds=1), NOON + timedelta(seconds=1)
    assert taken(counted, 1, at=before.isoformat()) == []
    assert taken(counted, 2, at=NOON.isoformat()) == [LATE]
    assert taken(counted, 3, at=after.isoformat()) == [LATE]
    # A time that cannot be read, or compared, is not in time.
    assert taken(counted, 4, at="before noon") == [LATE]
    assert taken(counted, 5, at="2026-05-04T11:00:00") == [LATE]
    assert taken(counted, 6) == [LATE]
    assert taken(tally(), 1, at="before noon") == []


def test_a_passkey_signs_where_one_is_demanded() -> None:
    assert taken(tally(passkey="required")) == ["takes a passkey, and has none"]
    assert taken(tally(passkey="required"), signature="ab") == []
    assert taken(tally(), signature=None) == []


def test_nobody_approves_their_own() -> None:
    assert taken(tally(), 7) == [NOT_THEIRS]
    assert taken(tally(), 7, self_approved=False) == [NOT_THEIRS]
    assert taken(tally(), 1, on_behalf_of=7) == [NOT_THEIRS]
    assert taken(tally(), 7, on_behalf_of=1) == [NOT_THEIRS]
    # A tenant of one person says of its decisions that they are; in another's name nobody can.
    assert taken(tally(), 7, self_approved=True) == []
    assert taken(tally(), 7, self_approved=1) == [NOT_THEIRS]
    assert taken(tally(), 7, on_behalf_of=1, self_approved=True) == [NOT_THEIRS]
    assert taken(Tally.of_page({"gate": {"needed": 1}}), 7) == []


# --- Votes that are carried over


def given(**gate: Any) -> tuple[object, Tally]:
    """The digest of an earlier packet, and that 1 approved it."""
    before = tally(**gate)
    assert taken(before, 1, signature="ab") == []
    return "d1", before


def test_a_vote_is_carried_over_to_the_same_content() -> None:
    assert list(tally().takes_over("d1", given(), 1)) == []
    # More people may be excluded since, and none of those who were may approve by now.
    assert list(tally(excluded=[7, 8]).takes_over("d1", given(), 1)) == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"digest": "d2"}, ["is carried over from a page that it was not given on"]),
        ({"person": 2}, [NEVER_GIVEN]),
        ({"person": "1"}, [NEVER_GIVEN]),
        ({"person": None}, [NEVER_GIVEN]),
        ({"after": tally(needed=2)}, [OTHER_CONTENT]),
        ({"after": tally(excluded=[])}, [OTHER_CONTENT]),
        ({"after": tally(excluded=[8])}, [OTHER_CONTENT]),
        ({"after": tally(passkey="required")}, [TAKES_A_PASSKEY, OTHER_CONTENT]),
        ({"earlier": given(passkey="required")}, [TAKES_A_PASSKEY, OTHER_CONTENT]),
    ],
)
def test_a_vote_that_is_not_rightly_carried_over(wrong: dict[str, Any], told: list[str]) -> None:
    after = wrong.get("after", tally())
    earlier, digest = wrong.get("earlier", given()), wrong.get("digest", "d1")
    assert list(after.takes_over(digest, earlier, wrong.get("person", 1))) == told


def test_a_vote_that_another_gave_in_ones_name_is_not_carried_over() -> None:
    before = tally()
    assert taken(before, 2, on_behalf_of=1) == []
    assert list(tally().takes_over("d1", ("d1", before), 1)) == [NEVER_GIVEN]


def test_pages_that_say_nothing_of_exclusion_are_compared_by_their_content() -> None:
    old = Tally.of_page({"tool": "shell", "gate": {"needed": 1}})
    assert list(old.takes_over("d1", ("d1", Tally(Quorum(), content=old.content)), 1)) == [
        NEVER_GIVEN
    ]
    assert list(tally().takes_over("d1", ("d1", old), 1)) == [NEVER_GIVEN]
    assert list(old.takes_over("d1", given(), 1)) == [OTHER_CONTENT]


# --- The end


def approved_by(*people: int) -> Tally:
    counted = tally(needed=3, stages=STAGES)
    for person in people:
        assert taken(counted, person) == []
    return counted


def test_every_place_is_filled_by_somebody_who_approved_it() -> None:
    counted = approved_by(1, 2, 3)
    assert list(counted.end([[1, "group:4"], [2, "role:admin"], [3, "role:admin"]])) == []


@pytest.mark.parametrize(
    ("seats", "told"),
    [
        (
            [[1, "group:4"], [1, "role:admin"], [2, "role:admin"]],
            ["one person fills two places"],
        ),
        (
            [[4, "group:4"], [2, "role:admin"], [3, "role:admin"]],
            ["somebody fills a place who did not approve it"],
        ),
        (
            [[1, "group:4"], [2, "role:admin"]],
            ["it needed two with the role admin, and one person filled that"],
        ),
        (
            [[2, "role:admin"], [3, "role:admin"]],
            ["it needed one of Security, and nobody filled that"],
        ),
    ],
)
def test_places_that_are_not_rightly_filled(seats: object, told: list[str]) -> None:
    assert list(approved_by(1, 2, 3).end(seats)) == told


@pytest.mark.parametrize(
    "seats",
    [None, {}, "seats", [None], [[1]], [[1, "group:4", 2]], [[[1], "group:4"]], [[1, None]]],
)
def test_what_names_no_seats_fills_none(seats: object) -> None:
    assert list(approved_by(1, 2, 3).end(seats)) == [
        "it needed one of Security, and nobody filled that",
        "it needed two with the role admin, and nobody filled that",
    ]


def test_too_few_people_and_too_few_places_are_both_told() -> None:
    assert list(approved_by(1, 2).end([[1, "group:4"], [2, "role:admin"]])) == [
        "it needed three people, and two people approved it",
        "it needed two with the role admin, and one person filled that",
    ]


def test_without_stages_nobody_needs_a_place() -> None:
    counted = tally()
    assert taken(counted) == []
    assert list(counted.end([[9, "group:9"]])) == []
