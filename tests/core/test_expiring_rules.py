"""A rule that ends: it permits until its day, and nothing from then on."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from approvals.policy import (
    DEFAULT_POLICY,
    CallFacts,
    PolicyRefused,
    check_policy,
    decide,
    explain,
)
from approvals.simulator import Past, replay

READ = CallFacts("mender", "list_issues", "http", True, True, "acme", "repair-parser", method="GET")
RULE = """
@id("reads-may-go")
@why("It only reads.")
@expires("2027-01-31")
permit (principal, action == Action::"do", resource)
when { context.method == "GET" };
"""
TEXT = DEFAULT_POLICY + RULE
END = datetime(2027, 1, 31, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def test_it_permits_until_the_last_moment_before_its_day_and_then_a_person_is_asked() -> None:
    before = decide(TEXT, READ, lambda: END - SECOND)
    assert (before.effect, before.rules) == ("allow", ("reads-may-go",))
    for now in (END, END + SECOND, END + timedelta(days=9999)):
        after = decide(TEXT, READ, lambda now=now: now)  # type: ignore[misc]
        assert (after.effect, after.rules) == ("ask", ("outward-needs-a-person",))


def test_without_a_clock_it_is_over() -> None:
    assert decide(TEXT, READ).effect == "ask"


def test_over_and_with_nobody_to_ask_it_is_denied_by_silence() -> None:
    after = decide(RULE, READ, lambda: END)
    assert (after.effect, after.rules) == ("deny", ())
    assert "No rule" in after.reason


def test_another_rule_that_permits_the_same_goes_on() -> None:
    lasting = RULE.replace("reads-may-go", "for-ever").replace('@expires("2027-01-31")\n', "")
    assert decide(TEXT + lasting, READ, lambda: END).rules == ("for-ever",)


def test_it_never_outweighs_what_forbids() -> None:
    assert decide(TEXT, replace(READ, denied_before=True), lambda: END - SECOND).effect == "deny"
    denied = decide(TEXT, replace(READ, declared=False), lambda: END)
    assert denied.rules == ("not-in-contract",)


def test_the_clock_is_not_looked_at_where_no_rule_ends() -> None:
    def clock() -> datetime:
        raise AssertionError("nobody needs to know the time")

    assert decide(DEFAULT_POLICY, READ, clock).effect == "ask"
    assert decide(TEXT, replace(READ, method="POST"), clock).effect == "ask"


def test_people_see_when_it_ends() -> None:
    assert explain(TEXT)["reads-may-go"].expires == END
    assert explain(TEXT)["outward-needs-a-person"].expires is None


@pytest.mark.parametrize(
    ("wrong", "place", "said"),
    [
        ('@expires("31.1.2027")', "line 4, column 1", "is no day"),
        ('@expires("2027-02-30")', "line 4, column 1", "is no day"),
        ('@expires("20270131")', "line 4, column 1", "is no day"),
        ("@expires", "line 4, column 1", "is no day"),
    ],
)
def test_what_is_no_day_is_refused_with_its_place(wrong: str, place: str, said: str) -> None:
    with pytest.raises(PolicyRefused) as refused:
        check_policy(RULE.replace('@expires("2027-01-31")', wrong))
    assert f"reads-may-go, {place}: " in str(refused.value)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "head",
    [
        'permit (principal, action == Action::"ask", resource)',
        'permit (principal, action == Action::"publish", resource)',
        'permit (principal, action in Action::"call", resource)',
        'forbid (principal, action == Action::"do", resource)',
    ],
)
def test_what_would_let_more_through_by_ending_cannot_end(head: str) -> None:
    """A `forbid` that ends would allow, and of what rules demand together less would be left."""
    rule = f'@id("r")\n@why("W.")\n@expires("2027-01-31")\n{head};'
    with pytest.raises(PolicyRefused, match="@expires has no effect here"):
        check_policy(rule)


def test_a_trial_replays_it_as_it_stands_then() -> None:
    past = [Past("call", 1, END - timedelta(days=40), READ, "ask", 7, "approved")]
    assert replay(TEXT, past, now=END - SECOND).packets["allow"].count == 1
    assert replay(TEXT, past, now=END).packets["ask"].count == 1
