"""The words of a page, and what somebody means by theirs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from approvals.words import COMMON, LONGEST, MOST, asked_for, leads_nowhere, words_of


def page(effect: str, **more: Any) -> dict[str, Any]:
    """As much of a page as words are taken from."""
    return {
        "effect": effect,
        "contract": {"name": ""},
        "tool": "",
        "target": "",
        "agent": {"name": None},
        "requested_by": "",
    } | more


def meant(typed: str, effect: str) -> bool:
    """Whether a packet with this effect is found by what was typed."""
    words = words_of(page(effect))
    asked = asked_for(typed)
    return bool(asked) and all(any(each.startswith(word) for each in words) for word in asked)


@pytest.mark.parametrize(
    ("typed", "effect"),
    [
        ("create_issue", "through the tool create_issue."),
        ("issue", "through the tool create_issue."),
        ("ISSUE Create", "through the tool create_issue."),
        ("iss cre", "through the tool create_issue."),
        ("issue", "Call the function createIssue"),
        ("createissue", "Call the function createIssue"),
        ("createIssue", "through the tool create_issue."),
        ("createIssue", "Call the function createIssue"),
        ("example.com/v1", "POST https://api.example.com/v1/issues,"),
        ("muller", "for Müller GmbH"),
        ("Müller", "for Muller GmbH"),
        ("STRASSE", "in der Hauptstraße Straße 1"),
        ("fi", "\N{LATIN SMALL LIGATURE FI}le"),
        ("承認", "請求書を承認する"),
        ("한국", "한국어로 보내기"),
        ("issue", "is\N{ZERO WIDTH SPACE}sue"),
        ("9" * 60, "9" * 60),
    ],
)
def test_what_is_found(typed: str, effect: str) -> None:
    assert meant(typed, effect)


@pytest.mark.parametrize(
    ("typed", "effect"),
    [
        ("ssue", "through the tool create_issue."),
        ("issues", "through the tool create_issue."),
        ("issue refund", "through the tool create_issue."),
        ("%", "100% of it"),
        ("_", "create_issue"),
        ("…", "and so on…"),
    ],
)
def test_what_is_not_found(typed: str, effect: str) -> None:
    assert not meant(typed, effect)


def test_a_page_is_found_by_what_its_row_shows() -> None:
    whole = page(
        "Send one request.",
        contract={"name": "nightly-repair"},
        tool="create_issue",
        target="POST https://tracker.example.com/issues",
        agent={"name": "mender"},
        requested_by="Olu Adeyemi",
        arguments={"title": "confidential"},
    )
    words = words_of(whole)
    assert {"nightly", "repair", "issue", "tracker", "mender", "adeyemi", "send"} <= set(words)
    assert "confidential" not in words


def test_words_that_say_less_are_not_asked_for() -> None:
    assert asked_for("is issue create ISSUE") == ("create", "issue")


def test_words_that_packets_are_not_listed_under_lead_nowhere() -> None:
    assert leads_nowhere("requ")
    assert leads_nowhere("request")
    assert not leads_nowhere("requests")
    assert all(asked_for(word) == (word,) for word in COMMON)


@given(st.text(max_size=400), st.text(max_size=60))
def test_whatever_stands_in_a_page_is_found_by_each_of_its_words(effect: str, name: str) -> None:
    words = words_of(page(effect, requested_by=name))
    assert len(words) == len(set(words)) <= MOST
    for word in words:
        assert 0 < len(word) <= LONGEST
        # Nothing that a pattern, or the blank between two words, could be mistaken for.
        assert not set(word) & set(" %_\\")
        assert word.split() == [word]
    if len(words) < MOST:
        for part in asked_for(effect):
            assert any(word.startswith(part) for word in words), part
