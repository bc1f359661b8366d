"""What a policy would have said to a history: counts, links, gaps, and bounded memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from approvals import simulator
from approvals.policy import (
    DEFAULT_POLICY,
    CallFacts,
    Effect,
    Facts,
    PublishFacts,
    decide,
    decide_many,
    decide_publication,
    recalled,
    stored,
)
from approvals.simulator import SHOWN, Past, facts_read, replay, sentence
from tests.core.test_policy import CALL, CANDIDATE

START = datetime(2026, 9, 1, tzinfo=UTC)
WORK = replace(CALL, kind="shell", outward=False)
HTTP = replace(CALL, tool="create_issue", kind="http", outward=True, argument_bytes=1000)
RELAXED = DEFAULT_POLICY + (
    '@id("small-issues") permit (principal, action == Action::"do", resource == '
    'Tool::"create_issue") when { context.argument_bytes < 100 };\n'
    '@id("no-python") forbid (principal, action in Action::"call", resource) '
    'when { context.programs.contains("python3") };\n'
    '@id("big-needs-three") @needs("3") permit (principal, action == Action::"publish", resource) '
    "when { context.files > 10 };\n"
)


def past(
    key: int,
    facts: Facts | None,
    *,
    effect: Effect = "ask",
    answer: str | None = None,
    needed: int = 1,
) -> Past:
    packet = None if answer is None else 1000 + key
    at = START - timedelta(minutes=key)
    return Past("call", key, at, facts, effect, packet, answer or "", needed)


def test_the_sentence_counts_what_it_says_and_what_people_said() -> None:
    small, large = replace(HTTP, argument_bytes=10), HTTP
    history = [
        *(past(key, small, answer="approved") for key in range(12)),
        *(past(20 + key, small, answer="denied") for key in range(2)),
        *(past(100 + key, large, answer="expired") for key in range(190)),
        *(past(300 + key, replace(large, declared=False), answer="approved") for key in range(10)),
    ]
    trial = replay(RELAXED, history)

    assert sentence(trial, "in 90 days") == (
        "Of 214 packets in 90 days it would have allowed 14, asked 190, denied 10; "
        "2 of the 14 were denied by people."
    )
    assert [each.key for each in trial.allowed_denied.shown] == [20, 21]
    assert trial.denied_approved.count == 10
    assert trial.packets["ask"].count == 190
    assert len(trial.packets["ask"].shown) == SHOWN
    assert trial.packets["ask"].more == 190 - SHOWN
    assert trial.packets["ask"].last == trial.packets["ask"].shown[-1].at


@pytest.mark.parametrize(
    ("history", "span", "words"),
    [
        ([], "in 7 days", "No packet in 7 days could be replayed."),
        ([past(1, None, answer="denied")], "in 7 days", "No packet in 7 days could be replayed."),
        (
            [past(1, HTTP, answer="denied")],
            "in 7 days",
            "Of 1 packet in 7 days it would have allowed 0, asked 1, denied 0.",
        ),
        (
            [past(1, replace(HTTP, argument_bytes=1), answer="denied")],
            "in 30 days",
            "Of 1 packet in 30 days it would have allowed 1, asked 0, denied 0; "
            "1 of the 1 was denied by people.",
        ),
    ],
)
def test_small_histories_have_sentences_too(history: list[Past], span: str, words: str) -> None:
    assert sentence(replay(RELAXED, history), span) == words


def test_what_no_person_was_shown_is_told_apart() -> None:
    python = replace(WORK, program="python3", programs=frozenset({"python3"}))
    history = [
        past(1, WORK, effect="allow"),
        past(2, python, effect="allow"),
        past(3, replace(WORK, declared=False), effect="deny"),
        past(4, HTTP, effect="deny"),
        past(5, replace(HTTP, argument_bytes=1), effect="ask"),
    ]
    trial = replay(RELAXED, history)

    assert trial.asked_people == 0
    assert (trial.alone, trial.same) == (5, 2)
    found = {change: [p.key for p in group.shown] for change, group in trial.changed.items()}
    assert {change: keys for change, keys in found.items() if keys} == {
        ("allow", "deny"): [2],
        ("deny", "ask"): [4],
        ("ask", "allow"): [5],
    }


def test_facts_that_were_not_kept_are_counted_and_not_guessed() -> None:
    history = [
        past(1, None, answer="approved"),
        past(2, None, answer="denied"),
        past(3, None, effect="allow"),
        past(4, HTTP, answer="approved"),
    ]
    trial = replay(DEFAULT_POLICY, history)
    assert (trial.packets_without_facts, trial.others_without_facts) == (2, 1)
    assert (trial.without_facts, trial.asked_people, trial.alone) == (3, 1, 0)


def test_other_numbers_of_people_are_told() -> None:
    many = replace(CANDIDATE, files=20)
    history = [
        past(1, many, answer="approved", needed=1),
        past(2, replace(CANDIDATE, files=1), answer="approved", needed=2),
        past(3, many, answer="approved", needed=3),
    ]
    trial = replay(RELAXED, history)
    assert [each.key for each in trial.more.shown] == [1]
    assert [each.key for each in trial.fewer.shown] == [2]


def test_a_rule_that_fails_denies_and_is_said_to_fail() -> None:
    text = DEFAULT_POLICY + (
        '@id("sum") forbid (principal, action in Action::"call", resource) '
        "when { context.cost_cents * 9223372036854775807 > 9223372036854775807 };"
    )
    history = [past(1, HTTP, answer="approved"), past(2, replace(HTTP, cost_cents=3), answer="")]
    trial = replay(text, history)
    assert [each.key for each in trial.failed.shown] == [2]
    assert [each.key for each in trial.packets["deny"].shown] == [2]
    assert "overflow" in trial.error


def test_it_stops_when_time_is_over_and_says_where() -> None:
    history = [past(key, HTTP, answer="approved") for key in range(simulator.PORTION * 2)]
    trial = replay(DEFAULT_POLICY, history, seconds=-1)
    assert trial.asked_people == simulator.PORTION
    assert trial.cut == history[simulator.PORTION - 1].at
    assert replay(DEFAULT_POLICY, history).cut is None


# --- The same verdicts as the judge -------------------------------------------------------------


FACTS = st.builds(
    replace,
    st.sampled_from([CALL, WORK, HTTP]),
    tool=st.sampled_from(["exec_command", "create_issue", "é\n", ""]),
    declared=st.booleans(),
    outward=st.booleans(),
    denied_before=st.booleans(),
    paths_inside=st.booleans(),
    argument_bytes=st.integers(0, 200),
    cost_cents=st.integers(0, 5),
    programs=st.frozensets(st.sampled_from(["python3", "ls"])),
)
CANDIDATES = st.builds(
    replace,
    st.just(CANDIDATE),
    files=st.integers(0, 20),
    secrets=st.integers(0, 1),
    touches_pipeline=st.booleans(),
    approvals=st.integers(1, 3),
)
TEXTS = (
    DEFAULT_POLICY,
    RELAXED,
    RELAXED.replace("context.argument_bytes < 100", "context has port"),
    '@id("a") permit (principal == Agent::"other", action, resource);',
    DEFAULT_POLICY
    + '@id("sum") forbid (principal, action, resource) '
    + "when { context.cost_cents * 9223372036854775807 > 9223372036854775807 };",
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(FACTS, CANDIDATES), max_size=12), st.sampled_from(TEXTS))
def test_a_replay_says_exactly_what_the_judge_says(many: list[Facts], text: str) -> None:
    """Whatever is judged once for several facts, and in one batch, is what each alone is told."""
    alone = [
        decide(text, each) if isinstance(each, CallFacts) else decide_publication(text, each)
        for each in many
    ]
    assert decide_many(text, many) == alone
    assert list(simulator._Judge(text).verdicts([*many, *many])) == [*alone, *alone]


def test_one_that_spoils_the_batch_is_denied_alone() -> None:
    spoilt = replace(WORK, tool="\ud800")
    results = decide_many(DEFAULT_POLICY, [WORK, spoilt, WORK])
    assert [each.effect for each in results] == ["allow", "deny", "allow"]
    assert [bool(each.errors) for each in results] == [False, True, False]


def test_the_facts_a_policy_reads() -> None:
    assert sorted(facts_read(DEFAULT_POLICY) or ()) == [
        *("checks_failed", "checks_missing", "declared", "denied_before", "kind", "outward"),
        *("own_process", "paths_inside", "paths_outside", "secrets", "touches_pipeline"),
    ]
    deep = " && ".join(["context.outward"] * 250)
    text = f'@id("a") permit (principal, action == Action::"do", resource) when {{ {deep} }};'
    assert sorted(facts_read(text) or ()) == ["outward"]
    for whole in ("context == context", "[context].contains(context)"):
        text = f'@id("a") permit (principal, action == Action::"do", resource) when {{ {whole} }};'
        assert facts_read(text) is None


# --- Facts as they are stored ---------------------------------------------------------------------


@pytest.mark.parametrize("facts", [CALL, HTTP, CANDIDATE])
def test_stored_facts_come_back_as_they_were(facts: Facts) -> None:
    again = json.loads(json.dumps(stored(facts)))
    kind: type[Any] = type(facts)
    assert recalled(kind, again) == facts


@pytest.mark.parametrize(
    "change",
    [
        {"port": "443"},
        {"port": True},
        {"declared": 1},
        {"programs": ["ls", 1]},
        {"programs": "ls"},
        {"tool": None},
        {"a_fact_of_tomorrow": 1},
    ],
)
def test_facts_that_are_not_ours_are_not_taken(change: dict[str, object]) -> None:
    assert recalled(CallFacts, {**stored(CALL), **change}) is None


def test_facts_that_lack_one_are_not_completed() -> None:
    data = stored(CALL)
    del data["minutes"]
    assert recalled(CallFacts, data) is None
    assert recalled(CallFacts, None) is None
    assert recalled(PublishFacts, stored(CALL)) is None


# --- Memory -------------------------------------------------------------------------------------


def test_memory_does_not_grow_with_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "REMEMBERED", 500)

    def history(count: int) -> Iterator[Past]:
        return (
            past(key, replace(HTTP, argument_bytes=key), answer="denied") for key in range(count)
        )

    def most(count: int) -> int:
        tracemalloc.start()
        trial = replay(RELAXED, history(count))
        assert trial.asked_people == count
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    most(1000)
    assert most(6000) < most(2000) * 1.5


SIGNED = DEFAULT_POLICY + (
    '@id("large-needs-a-key") @passkey("required") permit (principal, action == Action::"ask", '
    "resource) when { context.argument_bytes > 100 };\n"
)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ([10, 20], ""),
        ([10, 200], "1 of the 2 it asks about would have needed a passkey."),
        ([10, 200, 300], "2 of the 3 it asks about would have needed a passkey."),
        ([200, 300], "All of the 2 it asks about would have needed a passkey."),
        ([200], "The one it asks about would have needed a passkey."),
        ([], ""),
    ],
)
def test_what_takes_a_passkey_is_counted(sizes: list[int], said: str) -> None:
    history = [
        past(at, replace(HTTP, argument_bytes=size), answer="approved")
        for at, size in enumerate(sizes)
    ]
    # What no person was shown needed nobody's passkey, and what policy allows needs none.
    history += [past(90, replace(HTTP, argument_bytes=900)), past(91, WORK, answer="denied")]
    trial = replay(SIGNED, history)
    assert simulator.passkey_sentence(trial) == said
    assert [each.key for each in trial.signed.shown] == [
        at for at, size in enumerate(sizes) if size > 100
    ]
