"""What of a page a vote is about, and what changed, in words."""

from __future__ import annotations

from typing import Any

import pytest

from approvals import carry

PAGE: dict[str, Any] = {
    "shape": 1,
    "kind": "call",
    "effect": "Send one request.",
    "tool": "create_issue",
    "target": "POST https://tracker.example/",
    "arguments": {"path": "a", "title": "t"},
    "arguments_digest": "0" * 64,
    "policy": {"version": 7, "digest": "p", "rules": ["ask"], "reason": "r", "result": "ask"},
    "contract": {"name": "c", "version": 1},
    "scope": [],
    "cost": {"micros": 1},
    "gate": {"needed": 2, "roles": [], "excluded": [1, 2]},
    "candidate": {"seq": 1, "digest": "d"},
    "receipts": {"paths": {"outcome": "passed", "digest": "x"}},
}


def page(**changes: Any) -> dict[str, Any]:
    return {**PAGE, **changes}


@pytest.mark.parametrize(
    "after",
    [
        page(),
        page(edited={"by": "Bo", "packet": 3}),
        page(candidate={"seq": 2, "digest": "d"}),
        page(gate={"needed": 2, "roles": [], "excluded": [1, 2, 3]}),
    ],
)
def test_what_only_says_which_packet_it_is_is_no_content(after: dict[str, Any]) -> None:
    assert carry.same(PAGE, after)
    assert carry.differences(PAGE, after) == []


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (page(arguments={"path": "b", "title": "t"}), ["argument `path` changed"]),
        (page(arguments={"title": "t"}), ["argument `path` left out"]),
        (page(arguments={**PAGE["arguments"], "n": 1}), ["argument `n` added"]),
        (page(policy={**PAGE["policy"], "version": 8}), ["policy 7 became 8"]),
        (page(policy={**PAGE["policy"], "rules": []}), ["other rules of the policy spoke"]),
        (page(contract={"name": "c", "version": 2}), ["contract version 1 became 2"]),
        (page(contract={"name": "d", "version": 1}), ["the contract changed"]),
        (page(candidate={"seq": 2, "digest": "e"}), ["candidate 1 became 2"]),
        (page(candidate={"seq": 1, "digest": "d", "tree": "t"}), []),
        (
            page(receipts={"paths": {"outcome": "failed", "digest": "y"}}),
            ["check `paths` passed became failed"],
        ),
        (page(receipts={"paths": {"outcome": "passed", "digest": "y"}}), ["checks ran anew"]),
        (page(receipts={}), ["check `paths` passed became missing"]),
        (page(cost={"micros": 2}), ["the cost so far changed"]),
        (page(scope=[{"change": "added"}]), ["the credential scope changed"]),
        (page(target="elsewhere"), ["the target changed"]),
        (page(gate={**PAGE["gate"], "needed": 1}), ["who must decide changed"]),
        (page(gate={**PAGE["gate"], "passkey": "required"}), ["who must decide changed"]),
        (page(something=None), ["“something” changed"]),
        (page(shape=2), ["“shape” changed"]),
    ],
)
def test_everything_else_is_and_has_words(after: dict[str, Any], words: list[str]) -> None:
    assert not carry.same(PAGE, after)
    assert not carry.same(after, PAGE)
    assert carry.content_digest(PAGE) != carry.content_digest(after)
    assert carry.differences(PAGE, after) == words


def test_numbers_and_truth_are_told_apart() -> None:
    assert not carry.same(page(arguments={"path": 1}), page(arguments={"path": True}))
    assert carry.differences(page(arguments={"path": 1}), page(arguments={"path": True})) == [
        "argument `path` changed"
    ]


@pytest.mark.parametrize("excluded", [[1], [1, 3], None, "12", [1, "2"], [True, 2]])
def test_fewer_excluded_people_is_never_the_same(excluded: object) -> None:
    gate = {**PAGE["gate"], "excluded": excluded}
    assert not carry.same(PAGE, page(gate=gate))


@pytest.mark.parametrize("excluded", [None, "12", [1, "2"], [True, 2]])
def test_a_page_that_names_nobody_rightly_gives_no_vote_away(excluded: object) -> None:
    """Whoever was excluded on the earlier page cannot be told, so nothing of it is carried."""
    gate = {**PAGE["gate"], "excluded": excluded}

    assert not carry.same(page(gate=gate), PAGE)
    assert not carry.same(page(gate=gate), page(gate=gate))


@pytest.mark.parametrize("gate", [{"needed": 2, "roles": []}, None, []])
def test_a_page_that_excludes_nobody_it_names_is_never_the_same(gate: object) -> None:
    assert not carry.same(page(gate=gate), page(gate=gate))


def test_several_changes_are_one_sentence_and_the_rest_is_counted() -> None:
    after = page(
        arguments={"path": "b", "title": "t"},
        policy={**PAGE["policy"], "version": 8},
        candidate={"seq": 2, "digest": "e"},
    )
    parts = carry.differences(PAGE, after, "3 of 41 hunks changed")
    assert carry.in_one(parts) == (
        "policy 7 became 8; 3 of 41 hunks changed; argument `path` changed"
    )
    assert carry.in_one(["a", "b", "c"], 2) == "a; b; 1 more"
    assert carry.in_one(["a", "b"], 2) == "a; b"


def test_what_follows_from_the_candidate_is_not_told_again() -> None:
    before = page(arguments={"commit": "a", "tree": "b", "branch": "c", "title": "t"})
    after = page(
        arguments={"commit": "d", "tree": "e", "branch": "f", "title": "u"},
        candidate={"seq": 2, "digest": "e"},
    )
    assert carry.differences(before, after) == ["candidate 1 became 2", "argument `title` changed"]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({("a", b"1"): 1}, {("a", b"1"): 1}, ""),
        ({("a", b"1"): 1}, {("a", b"2"): 1}, "1 of 1 hunk changed"),
        ({("a", b"1"): 1}, {("b", b"1"): 1}, "1 of 1 hunk changed"),
        ({("a", b"1"): 1}, {("a", b"1"): 3, ("a", b"2"): 1}, "3 of 4 hunks changed"),
        ({("a", b"1"): 1, ("a", b"2"): 1}, {("a", b"1"): 1}, "1 hunk left out"),
        ({("a", b"1"): 3}, {("a", b"1"): 1}, "2 hunks left out"),
    ],
)
def test_hunks_are_counted_by_their_lines(before: Any, after: Any, words: str) -> None:
    assert carry.changed_hunks(before, after) == words
