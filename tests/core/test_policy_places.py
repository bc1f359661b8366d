"""What a wrong policy is refused with: the place, what stands there, and what may stand there."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from approvals.policy_places import place, statements, tokens
from approvals.policy_text import (
    DEFAULT_POLICY,
    MAX_TOLD,
    VOCABULARY,
    PolicyProblem,
    PolicyRefused,
    check_policy,
    compile_policy,
)

# Stands in a text of these tests where the portal has to point.
HERE = "¦"
DO = (
    '@id("one")\n// context.mthod "is a comment\n'
    'permit (principal, action == Action::"do", resource)\n'
)
ASK = 'permit (principal, action == Action::"ask", resource)'


def refusals(marked: str) -> list[PolicyProblem]:
    """The problems of a marked text, each of which must stand at a mark, in order."""
    places = []
    text = marked
    while (at := text.find(HERE)) >= 0:
        places.append(place(text, at))
        text = text[:at] + text[at + 1 :]
    with pytest.raises(PolicyRefused) as caught:
        check_policy(text)
    problems = list(caught.value.problems)
    assert [(each.line, each.column) for each in problems] == places, problems
    return problems


PASSKEY = '@id("one")\n¦@passkey{}\npermit (principal, action == Action::"ask", resource);'


@pytest.mark.parametrize("said", ["", '("")', '("preferred")', '("Required")', '("required ")'])
def test_a_passkey_is_required_or_not_spoken_of(said: str) -> None:
    (problem,) = refusals(PASSKEY.format(said))
    assert "demands nothing" in problem.reason
    assert '@passkey("required")' in problem.remedy


def test_a_passkey_means_nothing_where_nobody_is_asked() -> None:
    (problem,) = refusals('@id("one")\n¦@passkey("required")\n' + DO.partition("\n")[2] + ";")
    assert "no effect here" in problem.reason


@pytest.mark.parametrize(
    ("marked", "reason", "remedy"),
    [
        (DO + 'when { context.¦methd == "GET" };', "fact `methd`", "mean `method`? Facts: "),
        (DO + 'when { context[¦"methd"] == "GET" };', "fact `methd`", "mean `method`?"),
        (DO + "when { context has ¦methd };", "fact `methd`", "mean `method`?"),
        (DO + 'when { "context.methd" != context.¦hst };', "fact `hst`", "mean `host`?"),
        (DO + "when { false && context.¦branh };", "fact `branh`", "Facts: argument_bytes,"),
        (DO + "when { context.¦files > 3 };", "`files` is no fact of do.", "publish."),
        (DO + 'when { context.port == ¦"x" };', "`port` is a Long", "with a Long."),
        (DO + "when { context.kind != ¦7 };", "`kind` is a String", "with a String."),
        (DO + 'when { principal.¦name == "x" };', "principal has no attributes", "context"),
        (DO + "when { resource has ¦name };", "resource has no attributes", "context"),
        (DO + 'when { resource in ¦Tol::"x" };', "entity type `Tol`", "mean `Tool`?"),
        (DO + "when { resource is ¦A::Tool };", "entity type `A::Tool`", "Agent, Tool, Target"),
        (DO + "when { 1 ¦> < 2 };".replace("¦> <", "> ¦<"), "`<` cannot stand", "missing before"),
        (DO + "when { context.outward ¦context.declared };", "`context` cannot", "missing before"),
        (DO + "when { context.outward };\n¦permt (principal);", "`permt`", "mean `permit`?"),
        (DO + 'when { ¦decmal("1") == 2 };', "`decmal`", "mean `decimal`? Functions:"),
        (DO + 'when { context.programs.¦contain("a") };', "`contain`", "mean `contains`?"),
        (
            '@id("a") ¦@wy("x") permit (principal, action, resource);',
            "@wy is not known",
            "Known: @id, @why,",
        ),
        (
            '@id("a") ¦@needs("0") permit (principal, action == Action::"ask", resource);',
            "not a number of people",
            "1 to 10",
        ),
        ("¦permit (principal, action, resource);", "no proper name", "@id("),
        (DO + 'when { ¦"abc };', "has no end", 'Close it with ".'),
        (DO + "when { context.outward ¦}", "not finished", "semicolon"),
        (
            '@id("a") permit (principal, action == Action::¦"dooo", resource);',
            'no action "dooo"',
            "mean `do`? Actions: do, ask,",
        ),
        (
            '@id("a") permit (principal, action in [Action::"do", Action::¦"publsh"], resource);',
            'no action "publsh"',
            "mean `publish`?",
        ),
        (
            '@id("a") permit (principal, action == ¦Acton::"do", resource);',
            "entity type `Acton` of actions",
            "Action::",
        ),
        (
            '@id("a") permit (principal is ¦Agnt, action, resource);',
            "entity type `Agnt`",
            "mean `Agent`?",
        ),
        (
            '¦@id("a") permit (principal, action == Action::"do", resource == Target::"x");',
            "No action goes with the types",
            "the resource a Tool to do or ask, a Target to publish",
        ),
    ],
)
def test_it_says_where_what_and_what_instead(marked: str, reason: str, remedy: str) -> None:
    (problem,) = refusals(marked)
    assert reason in problem.reason
    assert remedy in problem.remedy
    assert problem.rule in ("one", "a", "rule 1", "rule 2")
    assert f"line {problem.line}, column {problem.column}: " in str(problem)


def test_a_name_that_is_taken_is_pointed_at_where_it_stands_again() -> None:
    one = DO + "when { context.outward };\n"
    (problem,) = refusals(f"{one}{HERE}{one}")
    assert problem.reason == "The name is taken by an earlier rule."


def test_every_mistake_of_a_text_is_named_at_once() -> None:
    both = DO + "when { context.¦hst == context.¦mthod };\n"
    problems = refusals(
        both + '@id("two") forbid (principal, action == Action::¦"x", resource is ¦Y);'
    )
    assert [each.rule for each in problems] == ["one", "one", "two", "two"]


def test_only_the_facts_that_the_head_leaves_open_are_offered() -> None:
    (problem,) = refusals(DO + "when { context.¦x };")
    assert set(problem.remedy.removeprefix("Facts: ").rstrip(".").split(", ")) == set(
        VOCABULARY.facts["do"]
    )
    (problem,) = refusals('@id("a") permit (principal, action, resource) when { context.¦x };')
    assert "branch" in problem.remedy
    assert "programs" in problem.remedy


def test_each_fact_of_the_default_is_missed_when_a_letter_is() -> None:
    for match in re.finditer(r"context\.(\w+)", DEFAULT_POLICY):
        start, end = match.span(1)
        marked = f"{DEFAULT_POLICY[:start]}{HERE}{DEFAULT_POLICY[start : end - 1]}"
        (problem,) = refusals(marked + DEFAULT_POLICY[end:])
        assert f"mean `{match[1]}`" in problem.remedy


def test_what_is_in_force_already_is_not_refused_later() -> None:
    """Saving is stricter than Cedar; deciding is not, or an old version would deny everything."""
    text = DO + "when { context has nonsense };"
    compile_policy(text)
    with pytest.raises(PolicyRefused, match="nonsense"):
        check_policy(text)


def test_a_text_full_of_mistakes_is_answered_at_once() -> None:
    began = time.process_time()
    with pytest.raises(PolicyRefused) as caught:
        check_policy((DO + "when { " + " && ".join(["context.x"] * 200) + " };\n") * 20)
    assert time.process_time() - began < 10
    assert len(caught.value.problems) == MAX_TOLD


def test_a_condition_that_is_too_deep_is_said_to_be() -> None:
    with pytest.raises(PolicyRefused, match="nested too deeply"):
        check_policy(DO + "when { " + " && ".join(["context.outward"] * 3_000) + " };")


DEEP = {
    "brackets": ("(", "true", ")"),
    "lists": ("[", "1", "]"),
    "records": ("{a: ", "1", "}"),
    "calls": ("ip(", "1", ")"),
    "conditions": ("if true then ", "true", " else true"),
    "and": ("", "true", " && true"),
    "or": ("", "context.outward", " || context.outward"),
    "plus": ("", "1", "+1"),
    "attributes": ("", "context", ".a"),
    "indexes": ("", "context", '["a"]'),
    "paths": ("", "context has a", ".a"),
    "methods": ("", "context.programs", ".isEmpty()"),
}


@pytest.mark.parametrize("kind", DEEP)
@pytest.mark.parametrize("times", [130, 60_000])
def test_no_depth_ends_the_process_that_reads_it(kind: str, times: int) -> None:
    """In a process of its own: past the end of the stack there is no error to catch."""
    before, middle, after = DEEP[kind]
    times = min(times, 63_500 // len(before + after))
    condition = before * times + middle + after * times
    program = (
        "import sys; from approvals.policy_text import *\n"
        "try: check_policy(sys.stdin.read())\n"
        "except PolicyRefused: pass"
    )
    asked = DO + "when { " + condition + " };"
    subprocess.run([sys.executable, "-c", program], input=asked, text=True, check=True)


def test_depth_is_counted_in_the_text_and_not_in_what_it_quotes() -> None:
    quoted = "((((" * 100
    check_policy(DO + f'when {{ context.host == "{quoted}" }}; // {quoted}')
    nested = "(" * 60
    (problem,) = refusals(DO + "when { " + nested[:49] + "¦" + nested[49:])
    assert problem.rule == "one"
    check_policy(DO + "when { context.port == 1 };\n" + "".join(_short_rules(180)))


def _short_rules(count: int) -> Iterator[str]:
    for number in range(count):
        head = f'@id("rule-{number}") forbid (principal, action == Action::"do", resource)'
        yield f"{head} when {{ !(context.port == 1 || context.port == 2) }};\n"


def test_a_number_of_people_without_end_is_refused() -> None:
    with pytest.raises(PolicyRefused, match="is not a number of people"):
        check_policy(f'@id("one") @needs("{"1" * 5_000}") {ASK};')


def test_names_with_escapes_are_left_to_cedar() -> None:
    check_policy(DO + r'when { context["too\u{6c}"] == "x" };')


def test_the_schema_is_read_whole() -> None:
    assert set(VOCABULARY.facts) == {"do", "ask", "call", "publish"}
    assert VOCABULARY.facts["do"] == VOCABULARY.facts["call"]
    assert VOCABULARY.facts["do"]["programs"] == "Set<String>"
    assert VOCABULARY.types == ("Agent", "Tool", "Target", "Action")


PIECES = (
    *("permit", "forbid", "context", ".", "has", '"', "kind", "@", "id", "(", ")", "{", "}"),
    *(";", "when", "==", "Action", "::", '"do"', "principal", ",", "is", "//", "\n", "7", "é"),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map(" ".join))
def test_whatever_is_written_gets_an_answer(text: str) -> None:
    try:
        check_policy(text)
    except PolicyRefused as refused:
        lines = text.splitlines() or [""]
        for each in refused.problems:
            if each.column is not None:
                assert 1 <= (each.line or 0) <= len(lines)
                assert 1 <= each.column <= len(lines[(each.line or 0) - 1]) + 1


@given(st.text(max_size=80))
def test_tokens_leave_out_blanks_and_comments_alone(text: str) -> None:
    found = tokens(text)
    for token in found:
        assert text[token.start : token.end] == token.text
    assert sum(map(len, statements(found))) == len(found)
