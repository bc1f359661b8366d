"""Two versions of a contract, field by field."""

from __future__ import annotations

from typing import Any

from runs.compare import FieldChange, compare

BEFORE: dict[str, Any] = {
    "name": "adder",
    "outcome": "It adds.",
    "tools": {"builtin": ["exec_command"], "http": [{"name": "issue", "url": "/issues"}]},
    "network": {"mode": "off", "allow": []},
}


def test_equal_versions_have_no_changes() -> None:
    assert compare(BEFORE, dict(BEFORE)) == []


def test_changes_that_widen_come_first() -> None:
    after = {
        **BEFORE,
        "outcome": "It adds well.",
        "network": {"mode": "allowlist", "allow": [{"host": "example.com", "port": 443}]},
    }
    changes = compare(BEFORE, after)
    assert [(c.field, c.kind, c.sensitive) for c in changes] == [
        ("network.mode", "changed", True),
        ("network.allow[0].host", "added", True),
        ("network.allow[0].port", "added", True),
        ("outcome", "changed", False),
    ]


def test_a_tool_is_known_by_its_name_and_not_by_its_place() -> None:
    http = [{"name": "search", "url": "/search"}, {"name": "issue", "url": "/issues"}]
    after = {**BEFORE, "tools": {**BEFORE["tools"], "http": http}}
    assert compare(BEFORE, after) == [
        FieldChange("tools.http[search].name", None, "search"),
        FieldChange("tools.http[search].url", None, "/search"),
    ]
