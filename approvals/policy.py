"""From facts to ALLOW, ASK or DENY, with the names of the rules that decided.

Cedar only knows yes and no, so a tool call is put to it twice: may the agent *do* it? If not,
may it *ask* a person? If neither, it is denied. `forbid` wins over `permit`, and silence denies.

**It fails closed.** Text that is no policy, facts that do not fit, an error while a rule is
evaluated (Cedar itself would skip that rule, also when it is a `forbid`): DENY, with the errors
named in the result.

**Facts come from us.** `approvals.facts` makes them from the contract, the run and the call.
Nothing a model writes among its arguments, such as `"confirm": true` or `"approved": true`, is a
fact; arguments show up only as their size, the programs of a command, and whether paths stay
inside.

Facts of a tool call (`context.…`), actions `do` and `ask`, principal `Agent::"name"`, resource
`Tool::"name"`:

| fact | type | meaning |
| --- | --- | --- |
| `tool` | String | the name the agent called |
| `kind` | String | `shell`, `stdin`, `patch`, `view`, `http`, `sql`, `python`, `question`, \
`network`, `credential` |
| `declared` | Bool | the contract names this tool, destination or credential |
| `outward` | Bool | it reaches outside the sandbox, to change something or to read it |
| `tenant` | String | the workspace's short name |
| `contract` | String | the contract's name |
| `network` | String | the contract's network mode: `off`, `allowlist`, `request` |
| `method` | String | `http`: `GET`, `POST`, …; else empty |
| `host` | String | `http`, `sql`, `network`: host name in lower case; else empty |
| `port` | Long | `http`, `sql`, `network`: port; else 0 |
| `minutes` | Long | `network`: for how long it is asked for; else 0 |
| `credential` | String | name of the credential the call would use; else empty |
| `program` | String | `shell`, `stdin`: first word of the command, without folders |
| `programs` | Set | the first word of every part of the command; an aid, no wall (below) |
| `paths_inside` | Bool | every path the call names lies in the workspace; true if it names none |
| `own_process` | Bool | `stdin`: the process was started by this run through a judged call |
| `argument_bytes` | Long | size of the normalised arguments |
| `cost_cents` | Long | cost of the run so far, rounded up |
| `denied_before` | Bool | a person denied the same tool with the same arguments in this run |

A shell has many ways to start a program that `programs` does not see: the wall is the sandbox.

Facts of a candidate, action `publish`, resource `Target::"owner/name or address"`:

| fact | type | meaning |
| --- | --- | --- |
| `tenant`, `contract`, `cost_cents` | | as above |
| `target_kind` | String | `git`, `github` |
| `host` | String | where it would go |
| `branch` | String | the branch it would be merged into |
| `files`, `bytes` | Long | changed files, and the size of their new content |
| `paths_outside` | Long | changed files the contract does not allow |
| `touches_pipeline` | Bool | a changed file is one that build services execute |
| `secrets`, `hidden_characters` | Long | findings of these checks |
| `checks_failed`, `checks_missing` | Long | checks that failed, and that have no result |
| `verification` | String | `passed`, `failed`, `none` |

A candidate is never allowed without a person: `publish` permitted means ASK. The number of people
is the highest `@needs` of the rules that permitted it, and at least what the contract's gate wants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypeVar

import cedarpy

from approvals import demands
from approvals.demands import ONE_PERSON, Demands
from approvals.policy_text import (
    DEFAULT_POLICY,
    ENTITIES,
    SCHEMA_HANDLE,
    Compiled,
    PolicyProblem,
    PolicyRefused,
    Rule,
    check_policy,
    compile_policy,
    explain,
    stored_rules,
)

__all__ = [
    "DEFAULT_POLICY",
    "CallFacts",
    "Facts",
    "PolicyProblem",
    "PolicyRefused",
    "PolicyResult",
    "PublishFacts",
    "Rule",
    "check_policy",
    "decide",
    "decide_many",
    "decide_publication",
    "explain",
    "recalled",
    "stored",
    "stored_rules",
]

Effect: TypeAlias = Literal["allow", "ask", "deny"]
Clock: TypeAlias = Callable[[], datetime]
"""Looked at only where a rule that ends would permit something."""
SILENCE = "No rule of the policy allows this or asks a person about it."
BROKEN = "The policy could not be evaluated, so nothing was allowed."


@dataclass(frozen=True)
class CallFacts:
    """The facts of one tool call; the table above says what each means."""

    agent: str
    tool: str
    kind: str
    declared: bool
    outward: bool
    tenant: str
    contract: str
    network: str = "off"
    method: str = ""
    host: str = ""
    port: int = 0
    minutes: int = 0
    credential: str = ""
    program: str = ""
    programs: frozenset[str] = frozenset()
    paths_inside: bool = True
    own_process: bool = False
    argument_bytes: int = 0
    cost_cents: int = 0
    denied_before: bool = False


@dataclass(frozen=True)
class PublishFacts:
    """The facts of one candidate. `approvals` is the contract's gate, not a fact for rules."""

    agent: str
    target: str
    tenant: str
    contract: str
    target_kind: str
    host: str
    branch: str
    files: int
    bytes: int
    paths_outside: int
    touches_pipeline: bool
    secrets: int
    hidden_characters: int
    checks_failed: int
    checks_missing: int
    verification: str
    cost_cents: int
    approvals: int = 1


Facts: TypeAlias = CallFacts | PublishFacts


def stored(facts: Facts) -> dict[str, Any]:
    """The facts as JSON has them, so that the same question can be asked again one day."""
    data = dict(vars(facts))
    if isinstance(facts, CallFacts):
        data["programs"] = sorted(facts.programs)
    return data


def recalled(kind: type[F], data: object) -> F | None:
    """The facts that were stored so, or None if these are not all of them and no others.

    Facts that were stored before a new one was thought of are not completed by a guess.
    """
    types = _TYPES[kind]
    if not isinstance(data, dict) or data.keys() != types.keys():
        return None
    if any(type(value) is not types[name] for name, value in data.items()):
        return None
    if kind is CallFacts:
        programs = data["programs"]
        if any(type(each) is not str for each in programs):
            return None
        data = {**data, "programs": frozenset(programs)}
    return kind(**data)


F = TypeVar("F", CallFacts, PublishFacts)
_JSON = {"str": str, "bool": bool, "int": int, "frozenset[str]": list}
_TYPES: Mapping[type, Mapping[str, type]] = {
    kind: {each.name: _JSON[str(each.type)] for each in fields(kind)}
    for kind in (CallFacts, PublishFacts)
}


@dataclass(frozen=True)
class PolicyResult:
    """What the policy says and why.

    `rules` are the names of the rules that decided; empty when no rule spoke or nothing could be
    evaluated. `demands` mean something only with `ask`. `errors` is empty unless something was
    broken.
    """

    effect: Effect
    rules: tuple[str, ...]
    reason: str
    demands: Demands = ONE_PERSON
    errors: tuple[str, ...] = ()


def decide(text: str, facts: CallFacts, clock: Clock | None = None) -> PolicyResult:
    """Judge one tool call. Never raises; what is broken is denied.

    Without a clock every rule that ends is over.
    """
    return decide_many(text, [facts], clock)[0]


def decide_publication(text: str, facts: PublishFacts) -> PolicyResult:
    """Judge one candidate: `ask` with the number of people, or `deny`. Never raises."""
    return decide_many(text, [facts])[0]


def decide_many(text: str, many: Sequence[Facts], clock: Clock | None = None) -> list[PolicyResult]:
    """Judge each of these as if it came alone, in the same order. Never raises.

    Cedar answers one batch for all of them, which costs half of as many single questions.
    """
    try:
        compiled = compile_policy(text)
    except PolicyRefused as error:
        return [broken(str(each) for each in error.problems)] * len(many)
    except Exception as error:  # whatever a library raises here, nothing must pass
        return [broken([f"{type(error).__name__}: {error}"[:500]])] * len(many)
    answered = evaluate(compiled, [requests_of(each) for each in many])
    return [
        judged(compiled, facts, answers, errors, clock)
        for facts, (answers, errors) in zip(many, answered, strict=True)
    ]


def requests_of(facts: Facts) -> list[dict[str, Any]]:
    """What Cedar is asked about these facts, in this order."""
    context = stored(facts)
    agent = context.pop("agent")
    if isinstance(facts, CallFacts):
        return [request(agent, action, "Tool", facts.tool, context) for action in ("do", "ask")]
    target, _ = context.pop("target"), context.pop("approvals")
    return [request(agent, "publish", "Target", target, context)]


def judged(
    compiled: Compiled,
    facts: Facts,
    answers: Sequence[cedarpy.AuthzResult],
    errors: Sequence[str],
    clock: Clock | None = None,
) -> PolicyResult:
    """The verdict that follows from Cedar's answers to `requests_of`."""
    if errors:
        return broken(errors)
    if isinstance(facts, PublishFacts):
        rules = named(compiled, answers[0])
        return asked(rules, max(1, facts.approvals)) if answers[0].allowed else denied(rules)
    do, ask = answers
    # Cedar knows no clock, but names every rule that permits: one that is not over is enough.
    if do.allowed and (rules := standing(named(compiled, do), clock)):
        return PolicyResult("allow", ids(rules), why(rules))
    if ask.allowed:
        return asked(named(compiled, ask), least=1)
    refusing = [] if do.allowed else named(compiled, do)
    return denied([*refusing, *named(compiled, ask)])


def request(
    agent: str, action: str, kind: str, resource: str, context: Mapping[str, Any]
) -> dict[str, Any]:
    """Ids as data, not as Cedar text: a tool's name must not be able to end its quotes."""
    return {
        "principal": {"type": "Agent", "id": agent},
        "action": {"type": "Action", "id": action},
        "resource": {"type": kind, "id": resource},
        "context": context,
    }


def evaluate(
    compiled: Compiled, groups: Sequence[list[dict[str, Any]]]
) -> list[tuple[list[cedarpy.AuthzResult], tuple[str, ...]]]:
    """Cedar's answers to each group of requests, and every error that makes them worthless."""
    flat = [each for group in groups for each in group]
    try:
        answers = cedarpy.is_authorized_batch(flat, compiled.policies, ENTITIES, SCHEMA_HANDLE)
        problem = "" if len(answers) == len(flat) else "Cedar did not answer every question."
    except Exception as error:  # whatever a library raises here, the call must not pass
        problem = f"{type(error).__name__}: {error}"[:500]
    if problem and len(groups) > 1:  # one of them spoils the batch: each is asked alone
        return [evaluate(compiled, [group])[0] for group in groups]
    if problem:
        return [([], (problem,))]
    found, at = [], 0
    for group in groups:
        mine = answers[at : at + len(group)]
        at += len(group)
        errors = (str(each)[:500] for answer in mine for each in answer.diagnostics.errors)
        found.append((mine, tuple(dict.fromkeys(errors))))
    return found


def named(compiled: Compiled, answer: cedarpy.AuthzResult) -> list[Rule]:
    """The deciding rules in the order of the text."""
    reasons = set(answer.diagnostics.reasons)
    return [rule for key, rule in compiled.rules.items() if key in reasons]


def standing(rules: Sequence[Rule], clock: Clock | None) -> list[Rule]:
    """Those of the rules that are not over."""
    if all(rule.expires is None for rule in rules):
        return list(rules)
    now = clock() if clock is not None else None
    return [rule for rule in rules if rule.expires is None or (now and now < rule.expires)]


def ids(rules: Sequence[Rule]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(rule.id for rule in rules))


def why(rules: Sequence[Rule]) -> str:
    """The sentences of the rules, or their names where they have none."""
    words = [rule.why or f"The rule {rule.id} says so." for rule in rules]
    return " ".join(dict.fromkeys(words))


def asked(rules: Sequence[Rule], least: int) -> PolicyResult:
    wanted = demands.joined((rule.demands for rule in rules), least=least)
    return PolicyResult("ask", ids(rules), why(rules), wanted)


def broken(errors: Iterable[str]) -> PolicyResult:
    return PolicyResult("deny", (), BROKEN, errors=tuple(errors))


def denied(rules: Sequence[Rule]) -> PolicyResult:
    return PolicyResult("deny", ids(rules), why(rules) or SILENCE)
