"""Policy: what the default says, that it fails closed, and that no argument talks it round."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from approvals import policy
from approvals.facts import MAX_COUNT, call_facts, programs_of, touches_pipeline
from approvals.policy import (
    DEFAULT_POLICY,
    CallFacts,
    PolicyRefused,
    PublishFacts,
    check_policy,
    decide,
    decide_publication,
    explain,
)
from approvals.policy_text import SCHEMA
from runs.contract import EXAMPLE, contract_from_data, parse_contract

CONTRACT = parse_contract(EXAMPLE, "toml")
CALL = CallFacts("mender", "exec_command", "shell", True, False, "acme", "repair-parser")
CANDIDATE = PublishFacts(
    agent="mender",
    target="team/parser",
    tenant="acme",
    contract="repair-parser",
    target_kind="github",
    host="api.github.com",
    branch="main",
    files=3,
    bytes=900,
    paths_outside=0,
    touches_pipeline=False,
    secrets=0,
    hidden_characters=0,
    checks_failed=0,
    checks_missing=0,
    verification="passed",
    cost_cents=12,
)


def facts(tool: str, kind: str, arguments: dict[str, Any] | None = None, **more: Any) -> CallFacts:
    return call_facts(
        CONTRACT, tenant="acme", tool=tool, kind=kind, arguments=arguments or {}, **more
    )


def verdict(tool: str, kind: str, arguments: dict[str, Any] | None = None, **more: Any) -> Any:
    result = decide(DEFAULT_POLICY, facts(tool, kind, arguments, **more))
    assert not result.errors
    return result.effect, result.rules


# --- The shipped default ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "kind", "arguments", "effect", "rules"),
    [
        ("exec_command", "shell", {"cmd": "pytest"}, "allow", ("work-in-workspace",)),
        (
            "apply_patch",
            "patch",
            {"files": [{"action": "update", "path": "repo/a.py", "move_to": None}]},
            "allow",
            ("work-in-workspace",),
        ),
        (
            "apply_patch",
            "patch",
            {"files": [{"path": "../../etc/x"}]},
            "deny",
            ("outside-workspace",),
        ),
        ("apply_patch", "patch", {"files": [{"path": "/etc/x"}]}, "deny", ("outside-workspace",)),
        (
            "apply_patch",
            "patch",
            {"files": [{"path": "a", "move_to": "../b"}]},
            "deny",
            ("outside-workspace",),
        ),
        ("apply_patch", "patch", {}, "deny", ("outside-workspace",)),
        ("tracker_create_issue", "http", {"title": "x"}, "ask", ("outward-needs-a-person",)),
        ("ask_person", "question", {"question": "?"}, "ask", ("question-to-a-person",)),
        # Not in the contract: not declared, or declared as another kind.
        ("view_image", "view", {"path": "a.png"}, "deny", ("not-in-contract",)),
        ("write_stdin", "stdin", {"command": "sh"}, "deny", ("not-in-contract",)),
        ("tracker_delete", "http", {}, "deny", ("not-in-contract",)),
        ("exec_command", "http", {}, "deny", ("not-in-contract",)),
        ("tracker_create_issue", "shell", {}, "deny", ("not-in-contract",)),
        ("packages.example.com", "network", {}, "deny", ("not-in-contract",)),
    ],
)
def test_the_default_policy(
    tool: str, kind: str, arguments: dict[str, Any], effect: str, rules: tuple[str, ...]
) -> None:
    assert verdict(tool, kind, arguments) == (effect, rules)


def test_stdin_goes_only_to_a_process_of_this_run() -> None:
    tools = {"builtin": ["exec_command", "write_stdin"]}
    data = {name: each for name, each in CONTRACT.to_data().items() if name != "fallback"}
    contract = contract_from_data({**data, "tools": tools})

    def judged(arguments: dict[str, Any]) -> str:
        made = call_facts(
            contract, tenant="acme", tool="write_stdin", kind="stdin", arguments=arguments
        )
        return decide(DEFAULT_POLICY, made).effect

    assert judged({"session_id": 1, "chars": "ls\n", "command": "python3 -i"}) == "allow"
    assert judged({"session_id": 1, "chars": "ls\n"}) == "deny"


def test_what_a_person_denied_is_not_asked_again() -> None:
    assert verdict("tracker_create_issue", "http", denied_before=True) == (
        "deny",
        ("denied-before",),
    )
    reason = decide(DEFAULT_POLICY, replace(CALL, denied_before=True)).reason
    assert reason == "A person has denied exactly this call in this run. Do something else."


def test_outward_shell_is_never_just_done() -> None:
    """A fact that says "outward" outweighs the kind."""
    assert decide(DEFAULT_POLICY, replace(CALL, outward=True)).effect == "ask"


@settings(max_examples=120)
@given(
    words=st.dictionaries(
        st.sampled_from(
            ["confirm", "confirmed", "approved", "effect", "allow", "policy", "declared", "sudo"]
        ),
        st.sampled_from([True, "true", "yes", "allow", 1, {"effect": "allow"}, ["approved"]]),
        min_size=1,
    )
)
def test_no_argument_of_the_model_changes_the_verdict(words: dict[str, Any]) -> None:
    """`"confirm": true` is the model's word, not a person's."""
    for tool, kind in (("tracker_create_issue", "http"), ("tracker_delete", "http")):
        assert verdict(tool, kind, words) == verdict(tool, kind)
    changed = {
        each.name
        for each in fields(CallFacts)
        if getattr(facts("tracker_create_issue", "http", words), each.name)
        != getattr(facts("tracker_create_issue", "http"), each.name)
    }
    assert changed == {"argument_bytes"}


# --- Candidates ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "effect", "needs", "rules"),
    [
        ({}, "ask", 1, ("publish-after-review",)),
        ({"approvals": 3}, "ask", 3, ("publish-after-review",)),
        ({"touches_pipeline": True}, "ask", 2, ("publish-after-review", "pipeline-needs-two")),
        ({"checks_failed": 1}, "ask", 2, ("publish-after-review", "failed-check-needs-two")),
        ({"touches_pipeline": True, "approvals": 4}, "ask", 4, None),
        ({"approvals": 0}, "ask", 1, None),
        ({"secrets": 1}, "deny", 1, ("secret-in-candidate",)),
        ({"paths_outside": 1}, "deny", 1, ("path-not-allowed",)),
        ({"checks_missing": 1}, "deny", 1, ("check-missing",)),
        ({"secrets": 2, "checks_missing": 1}, "deny", 1, ("check-missing", "secret-in-candidate")),
    ],
)
def test_candidates_under_the_default_policy(
    change: dict[str, Any], effect: str, needs: int, rules: tuple[str, ...] | None
) -> None:
    result = decide_publication(DEFAULT_POLICY, replace(CANDIDATE, **change))
    assert (result.effect, result.demands.people) == (effect, needs)
    assert rules is None or result.rules == rules
    assert not result.errors


def test_no_policy_lets_a_candidate_pass_without_a_person() -> None:
    """Even the widest rule there can be only means that a person is asked."""
    widest = '@id("all") permit (principal, action, resource);'
    assert decide_publication(widest, CANDIDATE).effect == "ask"
    assert decide_publication(widest, CANDIDATE).demands.people == 1
    assert decide(widest, CALL).effect == "allow"


def test_who_must_be_among_those_who_approve() -> None:
    text = """
    @id("ops") @needs("2") @role("admin")
    permit (principal, action == Action::"ask", resource) when { context.kind == "shell" };
    @id("also") @needs("3") @role("publisher")
    permit (principal, action == Action::"ask", resource) when { context.tenant == "acme" };
    """
    result = decide(text, CALL)
    assert (result.effect, result.demands.people) == ("ask", 3)
    assert result.demands.roles == ("admin", "publisher")
    assert result.rules == ("ops", "also")


# --- Fails closed -------------------------------------------------------------------------------

ALLOW = '@id("yes") permit (principal, action in Action::"call", resource);\n'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "permit (principal, action, resource);",
        ALLOW + ALLOW,
        ALLOW + '@id("x") forbid (principal, action == Action::"do", resource) '
        "when { context.knd == 1 };",
        '@id("t") permit (principal == ?principal, action, resource);',
        ALLOW + "// \u202e\n",
        ALLOW + "// " + "x" * 70_000,
    ],
)
def test_text_that_is_no_policy_denies_and_says_so(text: str) -> None:
    for result in (decide(text, CALL), decide_publication(text, CANDIDATE)):
        assert result.effect == "deny"
        assert result.errors
        assert result.reason == policy.BROKEN
    with pytest.raises(PolicyRefused):
        check_policy(text)


def test_a_rule_that_errs_denies_although_another_permits() -> None:
    """Cedar would skip the forbid that overflows; skipping a forbid is not failing closed."""
    text = ALLOW + (
        '@id("sum") forbid (principal, action in Action::"call", resource) '
        "when { context.cost_cents * 9223372036854775807 > 9223372036854775807 };"
    )
    check_policy(text)
    assert decide(text, replace(CALL, cost_cents=1)).effect == "allow"

    result = decide(text, replace(CALL, cost_cents=3))

    assert (result.effect, result.rules) == ("deny", ())
    assert "overflow" in result.errors[0]


@pytest.mark.parametrize(
    "change",
    [
        {"declared": "yes"},
        {"cost_cents": 1.5},
        {"cost_cents": 2**70},
        {"host": None},
        {"programs": frozenset({1})},
        {"tool": "\ud800"},
    ],
)
def test_facts_that_do_not_fit_deny(change: dict[str, Any]) -> None:
    result = decide(ALLOW, replace(CALL, **change))
    assert (result.effect, result.rules) == ("deny", ())
    assert result.errors


def test_silence_denies() -> None:
    result = decide('@id("n") permit (principal, action == Action::"publish", resource);', CALL)
    assert (result.effect, result.rules, result.errors) == ("deny", (), ())
    assert result.reason == policy.SILENCE


def test_forbid_wins_and_is_named() -> None:
    text = ALLOW + (
        '@id("no-curl") @why("Nothing to fetch here.") '
        'forbid (principal, action == Action::"do", resource) '
        'when { context.programs.contains("curl") };'
    )
    asked = decide(text, facts("exec_command", "shell", {"cmd": "true && curl x"}))
    assert asked.effect == "ask", "doing is forbidden, asking is not"

    both = text.replace('action == Action::"do"', 'action in Action::"call"')
    denied = decide(both, facts("exec_command", "shell", {"cmd": "true && curl x"}))
    assert (denied.effect, denied.rules) == ("deny", ("no-curl",))
    assert denied.reason == "Nothing to fetch here."
    assert decide(both, facts("exec_command", "shell", {"cmd": "true"})).effect == "allow"


@pytest.mark.parametrize("name", ['x"', "a\nb", 'x" || true', "é", "x" * 5_000, ""])
def test_names_are_data_and_not_policy(name: str) -> None:
    text = f'@id("one") permit (principal == Agent::"mender", action, resource == Tool::"{"t"}");'
    text = text.replace(", action,", ', action == Action::"do",')
    assert decide(text, replace(CALL, tool="t")).effect == "allow"
    assert decide(text, replace(CALL, tool=name)).effect == "deny"
    assert decide(text, replace(CALL, tool="t", agent=name)).effect == "deny"


# --- Saving -------------------------------------------------------------------------------------


def problems(text: str) -> list[tuple[str, int | None, str]]:
    with pytest.raises(PolicyRefused) as caught:
        check_policy(text)
    for each in caught.value.problems:
        assert each.remedy.endswith(".")
        assert str(each) in str(caught.value)
    return [(each.rule, each.line, each.reason) for each in caught.value.problems]


def test_a_misspelt_fact_is_caught_with_its_rule_and_line() -> None:
    text = ALLOW + (
        '@id("typo")\nforbid (principal, action == Action::"do", resource)\n'
        'when { context.knd == "shell" };'
    )
    ((rule, line, reason),) = problems(text)
    assert (rule, line) == ("typo", 4)
    assert "knd" in reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("permit (principal, action, resource);", "no proper name"),
        ('@id("A B") permit (principal, action, resource);', "no proper name"),
        ('@id("a") @wy("x") permit (principal, action, resource);', "@wy is not known"),
        (
            '@id("a") @needs("two") permit (principal, action == Action::"ask", resource);',
            "not a number of people",
        ),
        (
            '@id("a") @needs("0") permit (principal, action == Action::"ask", resource);',
            "not a number of people",
        ),
        (
            '@id("a") @role("viewer") permit (principal, action == Action::"ask", resource);',
            "no role that decides",
        ),
        (
            '@id("a") @needs("2") permit (principal, action == Action::"do", resource);',
            "no effect here",
        ),
        (
            '@id("a") @needs("2") forbid (principal, action == Action::"ask", resource);',
            "no effect here",
        ),
        ('@id("a") permit (principal, action == Action::"doo", resource);', 'no action "doo"'),
        ('@id("a") permit (principal == ?principal, action, resource);', "template"),
        (
            '@id("a") permit (principal, action == Action::"do", resource) '
            'when { context.port == "x" };',
            '`port` is a long, and is compared with "x"',
        ),
        ("", "0 rules"),
    ],
)
def test_policies_that_are_not_saved(text: str, reason: str) -> None:
    found = problems(text)
    assert any(reason.lower() in each[2].lower() for each in found), found


def test_the_default_can_be_saved_and_explained() -> None:
    check_policy(DEFAULT_POLICY)
    rules = explain(DEFAULT_POLICY)

    assert next(iter(rules)) == "not-in-contract"
    assert all(rule.why for rule in rules.values())
    assert rules["pipeline-needs-two"].demands.people == 2
    assert {rule.effect for rule in rules.values()} == {"permit", "forbid"}
    assert [name for name, rule in rules.items() if rule.asks] == [
        *("outward-needs-a-person", "question-to-a-person", "publish-after-review"),
        *("pipeline-needs-two", "failed-check-needs-two"),
    ]
    for name, rule in rules.items():
        check_policy(rule.source)
        assert explain(rule.source)[name] == replace(rule, source=explain(rule.source)[name].source)


def test_table_schema_and_dataclasses_name_the_same_facts() -> None:
    """A fact nobody can look up is a fact nobody uses rightly."""
    document = policy.__doc__ or ""
    call = set(asdict(CALL)) - {"agent"}
    candidate = set(asdict(CANDIDATE)) - {"agent", "target", "approvals"}
    for name in call | candidate:
        assert f"`{name}`" in document, name
        assert f"{name}: " in SCHEMA, name


# --- Facts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "programs"),
    [
        ("ls", ("ls",)),
        ("cd x && A=1 /usr/bin/curl y | sh", ("cd", "curl", "sh")),
        ("echo $(id)", ("echo", "id")),
        ("a; b & c || d\ne", ("a", "b", "c", "d", "e")),
        ("`id`", ("id",)),
        ("X=1 Y=2", ()),
        ("", ()),
        ("# only a comment", ()),
        ("'unclosed quote", ("'unclosed",)),
        ("(cd a; make)", ("cd", "make")),
        ("x" * 30_000, ("x" * 100,)),
    ],
)
def test_programs_of_a_command(command: str, programs: tuple[str, ...]) -> None:
    assert programs_of(command) == programs


@settings(max_examples=150)
@given(st.text(max_size=200))
def test_any_command_has_programs_and_a_verdict(command: str) -> None:
    made = facts("exec_command", "shell", {"cmd": command})
    assert decide(DEFAULT_POLICY, made).effect == "allow"


def test_an_address_is_the_contracts() -> None:
    """Arguments fill the path; host, method and credential are not theirs to choose."""
    arguments = {"project": "x", "host": "evil.example", "method": "DELETE", "url": "http://evil"}
    made = facts(
        "tracker_create_issue",
        "http",
        arguments,
        bases={"tracker": "https://tracker.acme.example:8443/api"},
        cost=Decimal("0.123"),
    )
    assert (made.method, made.host, made.port) == ("POST", "tracker.acme.example", 8443)
    assert (made.credential, made.cost_cents, made.outward) == ("tracker-token", 13, True)
    assert facts("tracker_create_issue", "http").host == "", "no address until the tenant has one"


@pytest.mark.parametrize(
    ("path", "fine"),
    [
        ("repo/a", True),
        (".", True),
        ("/workspace/repo/a", True),
        ("/workspace", True),
        ("/workspace2/a", False),
        ("repo/../../a", False),
        ("repo/../a", True),
        ("", False),
        (None, False),
        (7, False),
        ("a\x00b", False),
    ],
)
def test_paths_inside(path: Any, fine: bool) -> None:
    assert facts("apply_patch", "patch", {"files": [{"path": path}]}).paths_inside is fine
    assert facts("view_image", "view", {"path": path}).paths_inside is fine


def test_what_cannot_be_measured_counts_as_huge() -> None:
    assert facts("exec_command", "shell", {"x": float("nan")}).argument_bytes == MAX_COUNT
    assert facts("exec_command", "shell", cost=Decimal("NaN")).cost_cents == MAX_COUNT
    assert facts("exec_command", "shell", cost=Decimal("1e30")).cost_cents == MAX_COUNT


@pytest.mark.parametrize(
    ("path", "pipeline"),
    [
        (".github/workflows/ci.yml", True),
        (".GitHub/Workflows/x", True),
        ("Jenkinsfile", True),
        (".gitlab-ci.yml", True),
        ("docs/.github/workflows/ci.yml", False),
        ("src/jenkinsfile.py", False),
    ],
)
def test_files_that_build_services_execute(path: str, pipeline: bool) -> None:
    assert touches_pipeline(["README.md", path]) is pipeline
