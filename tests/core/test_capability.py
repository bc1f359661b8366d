"""What numbers speak for a rule, and that the rule is no wider than they are."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from approvals.capability import (
    ENOUGH,
    Answered,
    Capability,
    Evidence,
    gathered,
    suggested_rule,
)
from approvals.policy import DEFAULT_POLICY, CallFacts, check_policy, decide
from approvals.simulator import Past
from tests.core.test_policy import CANDIDATE

READ = CallFacts(
    *("mender", "list_issues", "http", True, True, "acme", "repair-parser"),
    method="GET",
    host="tracker.example",
    port=443,
    argument_bytes=40,
)
NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)


def asked(facts: Any = READ, answer: str = "approved", *, by: int = 1, turn: int = 1) -> Any:
    settled = None if answer in ("open", "expired") else NOW + timedelta(seconds=30)
    past = Past("call", 1, NOW, facts, "ask", 1, answer)
    return past, Answered(NOW, settled, turn, frozenset({by}))


def many(count: int = ENOUGH, **given: Any) -> list[Any]:
    return [asked(by=1 + number % 2, **given) for number in range(count)]


def only(pasts: list[Any]) -> Evidence:
    found = gathered(pasts)
    assert len(found) == 1
    return next(iter(found.values()))


def test_every_answer_is_counted_under_its_own_name() -> None:
    found = only(
        [
            *(asked(answer=each) for each in ("approved", "denied", "changes_requested")),
            *(asked(answer=each) for each in ("expired", "open", "withdrawn", "cancelled")),
            asked(answer="approved", turn=2),
        ]
    )
    assert found.counts == {
        "asked": 8,
        "allowed": 2,
        "denied": 1,
        "changes": 1,
        "expired": 1,
        "undone": 1,
    }
    assert found.median == 30


def test_what_differs_in_a_place_is_another_capability() -> None:
    others = [
        {"agent": "other"},
        {"tool": "other"},
        {"contract": "other"},
        {"method": "HEAD"},
        {"host": "evil.example"},
        {"port": 8443},
        {"credential": "tracker"},
    ]
    pasts = [asked()] + [asked(replace(READ, **each)) for each in others]  # type: ignore[arg-type]
    assert len(gathered(pasts)) == 1 + len(others)
    assert len(gathered([asked(), asked(replace(READ, cost_cents=9, argument_bytes=7))])) == 1


def test_never_refused_narrow_and_only_reading_is_promoted() -> None:
    assert only(many()).advice[0] == "promote"
    assert only(many(facts=replace(READ, kind="sql", method="", host=""))).advice[0] == "promote"


@pytest.mark.parametrize(
    ("pasts", "why"),
    [
        (many(ENOUGH - 1), "Allowed 19 times"),
        ([*many(), asked(answer="denied")], "refused or undid 1"),
        ([*many(), asked(answer="changes_requested")], "refused or undid 1"),
        ([*many(), asked(turn=2)], "refused or undid 1"),
        (many(facts=replace(READ, method="POST")), "cannot be changed back"),
        (many(facts=replace(READ, kind="network", method="")), "cannot be taken back"),
        (many(facts=replace(READ, kind="question", method="", host="")), "is for a person"),
        (many(facts=replace(READ, host="")), "narrowly enough"),
        (many(facts=replace(READ, host="tr\u0430cker.example")), "narrowly enough"),
        (many(facts=replace(READ, tool='a"\n')), "narrowly enough"),
        ([asked() for _ in range(ENOUGH)], "One person alone"),
    ],
)
def test_whatever_else_goes_on_being_asked(pasts: list[Any], why: str) -> None:
    found = only(pasts)
    assert found.advice[0] == "keep"
    assert why in found.advice[1]
    with pytest.raises(ValueError, match="do not speak"):
        suggested_rule(found, 90, NOW)


def test_what_leaves_for_good_is_always_read() -> None:
    found = only(many(facts=CANDIDATE))
    assert found.advice == ("keep", "What leaves for good is always read by a person.")


def test_what_was_only_ever_refused_is_of_no_use() -> None:
    assert only([asked(answer="denied")] * 3).advice[0] == "remove"
    assert only([asked(answer="denied")] * 2).advice[0] == "keep"
    assert only([*[asked(answer="denied")] * 9, asked()]).advice[0] == "keep"


def test_a_suggested_rule_allows_exactly_that_and_ends() -> None:
    found = only(many())
    text = DEFAULT_POLICY + suggested_rule(found, 90, NOW)
    check_policy(text)
    assert '@expires("2027-01-30")' in text

    def effect(facts: CallFacts, now: datetime = NOW) -> str:
        return decide(text, facts, lambda: now).effect

    assert effect(READ) == "allow"
    assert effect(READ, datetime(2027, 1, 30, tzinfo=UTC)) == "ask"
    for other in (
        {"agent": "other"},
        {"tool": "create_issue"},
        {"contract": "other"},
        {"method": "POST"},
        {"host": "evil.example"},
        {"port": 80},
        {"credential": "tracker"},
        {"argument_bytes": 41},
    ):
        assert effect(replace(READ, **other)) == "ask", other
    assert effect(replace(READ, denied_before=True)) == "deny"
    assert effect(replace(READ, declared=False)) == "deny"


def test_names_cannot_end_their_quotes() -> None:
    sly = replace(READ, tool='x" || true || "', contract="back\\slash")
    text = DEFAULT_POLICY + suggested_rule(only(many(facts=sly)), 90, NOW)
    check_policy(text)
    assert decide(text, sly, lambda: NOW).effect == "allow"
    assert decide(text, READ, lambda: NOW).effect == "ask"


def test_a_key_names_one_capability() -> None:
    one, other = Capability.of(READ), Capability.of(replace(READ, port=80))
    assert one.key == Capability.of(replace(READ, cost_cents=5)).key
    assert one.key != other.key
