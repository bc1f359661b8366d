"""What a model wrote for a declared tool, as it is judged, shown and sent."""

from __future__ import annotations

import pytest

from runs.agent.arguments import ArgumentsRefused, closed, reader

READ = reader(
    closed(
        {
            "required": ["title"],
            "properties": {
                "title": {"type": "string"},
                "urgent": {"type": "boolean", "default": False},
                "labels": {"type": "array", "default": ["new"]},
                "where": {
                    "type": "object",
                    "properties": {"queue": {"type": "string", "default": "support"}},
                },
            },
        }
    )
)


def test_what_was_left_out_stands_there_with_its_default() -> None:
    assert READ('{"title":"a"}') == {"title": "a", "urgent": False, "labels": ["new"]}
    assert READ('{"title":"a","urgent":true,"where":{}}') == {
        "title": "a",
        "urgent": True,
        "labels": ["new"],
        "where": {"queue": "support"},
    }


def test_a_default_is_nobodys_to_change() -> None:
    READ('{"title":"a"}')["labels"].append("old")
    assert READ('{"title":"a"}')["labels"] == ["new"]


@pytest.mark.parametrize(
    "raw",
    [
        "{}",
        '{"title":1}',
        '{"title":"a","titles":"b"}',
        '{"title":"a","title":"b"}',
        '{"title":"a","urgent":NaN}',
        '{"title":"a","urgent":null}',
        '["title"]',
    ],
)
def test_what_does_not_fit_or_can_be_read_in_two_ways_is_refused(raw: str) -> None:
    with pytest.raises(ArgumentsRefused):
        READ(raw)


def test_a_default_that_does_not_fit_its_own_schema_is_sent_to_nobody() -> None:
    wrong = reader(closed({"properties": {"n": {"type": "integer", "default": "one"}}}))
    with pytest.raises(ArgumentsRefused):
        wrong("{}")
    assert wrong('{"n":1}') == {"n": 1}
