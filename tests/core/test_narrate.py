"""Events in words: each kind says what happened, and an unknown kind is shown, not hidden."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runs.narrate import DETAIL_CHARS, TELLERS, detail_of, tell

ROOT = Path(__file__).parents[2]


def test_every_kind_the_code_writes_has_words() -> None:
    """A kind without words would be shown by its name: right, but not for people."""
    source = "".join(
        path.read_text()
        for app in ("runs", "approvals")
        for path in (ROOT / app).rglob("*.py")
        if "migrations" not in path.parts and path.name != "narrate.py"
    )
    written = set(re.findall(r'(?:Draft\(|\.event\()\s*"([a-z]+\.[a-z_]+)"', source))
    assert {"run.queued", "call.started", "model.answered"} <= written
    assert written - set(TELLERS) == set()


def test_an_unknown_kind_is_shown_by_its_name() -> None:
    line = tell("weather.turned_bad", {"operation": "look_up", "duration_ms": 1500})
    assert (line.head, line.code, line.sub) == ("Weather turned bad", "look_up", "1.5 s")


@pytest.mark.parametrize("kind", sorted(TELLERS))
def test_no_kind_needs_facts(kind: str) -> None:
    """Evidence of an older version may lack facts; its page must still open."""
    assert tell(kind, {}).head


def test_a_denial_names_the_rules() -> None:
    line = tell(
        "call.denied",
        {"operation": "exec_command", "rules": ["never-metadata"], "policy_version": 3},
    )
    assert line.tone == "danger"
    assert line.sub.startswith("rule never-metadata, policy version 3")


def test_a_failure_names_its_boundary_and_whether_a_retry_is_safe() -> None:
    line = tell("run.failed", {"boundary": "execution", "retry_safe": False, "result": "Gone."})
    assert line.text == "Gone."
    assert "boundary execution" in line.sub
    assert "not known to be safe" in line.sub


def test_a_run_is_asked_for_once_and_queues_again() -> None:
    asked = tell("run.queued", {"by": "Olu"})
    assert (asked.head, asked.text) == ("Asked for", "by Olu")
    assert tell("run.queued", {}).head == "In the queue again"


def test_what_is_small_is_not_drawn_as_nothing() -> None:
    assert tell("checkpoint.saved", {"checkpoint": 1, "bytes": 20_481}).sub == "21 kB"
    assert tell("checkpoint.saved", {"checkpoint": 1, "bytes": 1_460_000}).sub == "1.5 MB"
    assert tell("check.finished", {"result": "passed", "duration_ms": 3}).sub == "below 0.1 s"


def test_asked_for_and_confirmed_are_two_moments() -> None:
    asked, confirmed = tell("run.cancel_asked", {"by": "Olu"}), tell("run.cancelled", {})
    assert (asked.head, asked.text) == ("Stop is asked for", "by Olu")
    assert confirmed.head == "Stop is confirmed"


@pytest.mark.parametrize(
    ("kind", "arguments", "words"),
    [
        ("shell", {"cmd": "pytest  -q\n"}, "pytest -q"),
        ("patch", {"files": [{"path": "a.py"}, {"path": "b.py"}]}, "a.py, b.py"),
        ("question", {"question": "Which?", "choices": ["a", "b"]}, "Which?"),
        ("http", {"title": "x", "body": 1}, "body: 1, title: x"),
        ("view", {}, ""),
    ],
)
def test_the_heart_of_a_call(kind: str, arguments: dict[str, object], words: str) -> None:
    assert detail_of(kind, arguments) == words


def test_what_is_cut_is_counted() -> None:
    line = detail_of("shell", {"cmd": "x" * (DETAIL_CHARS + 1234)})
    assert line.endswith("… (1,234 characters more)")
