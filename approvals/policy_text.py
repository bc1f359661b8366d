"""The language of policies: the schema, the default that ships, and what is checked before saving.

A policy is Cedar text. Beside Cedar's own grammar these annotations are known:

| annotation | meaning |
| --- | --- |
| `@id("name")` | required, once in the text: the name packets and events give for the rule |
| `@why("…")` | one sentence, shown to those who decide and, in a denial, to the agent |
| `@needs("2")` | on a `permit` that asks or publishes: so many people must approve (1 to 10) |
| `@role("admin")` | on the same: one of them must hold this role |
| `@stages("1 of group:security, 2 of role:admin")` | on the same: all of these stages must be \
filled, each by so many people of a group or with a role; a person fills one place |
| `@hold("15m")` | on the same: so long after the last approval nothing happens, and whoever may \
decide can undo it (`s`, `m`, `h`, `d`; up to 7 days) |
| `@passkey("required")` | on the same: each of them signs the packet's digest with a passkey |
| `@decide("4h")` | on the same: so long it may be decided, then it expires (up to 30 days) |
| `@execute("30m")` | on the same: so long after it took effect an approval may be used (up to \
7 days) |
| `@remind("1h")` | on the same: as often as that those who may decide are told again |
| `@escalate("2h to group:owners, 1d to role:reviewer")` | beside `@stages`: who may fill their \
places too after so long without a decision |
| `@expires("2027-01-31")` | on a `permit` that allows without a person: from the beginning of \
that day, UTC, it permits nothing |
| `@risk("low")` | on the same: several packets may be decided at once where all rules that spoke \
say so; `@risk("high")`: approving wants the target's name typed, or a passkey |

What all rules that spoke demand holds together: the most people, every role, every stage, and of \
one group or role the most people that one of them wants; the longest hold, the shortest times; a \
passkey where one rule does. Of a stage that several want only those stand in whom each of them \
lets, after the longer time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from functools import lru_cache
from typing import Any, ClassVar, Literal

import cedarpy

from approvals import demands, policy_places
from approvals.demands import Demands
from approvals.policy_places import Fault, Token, Vocabulary
from portal.errors import Refusal
from runs.contract.rules import hidden_character

MAX_TEXT = 64_000
MAX_RULES = 200
MAX_TOLD = 50  # of what is wrong, at once
RULE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
ANNOTATIONS = ("id", "why", "expires", *demands.ANNOTATIONS)

SCHEMA = """
entity Agent;
entity Tool;
entity Target;

action "call";
action "do", "ask" in ["call"] appliesTo {
  principal: [Agent], resource: [Tool],
  context: {
    tool: String, kind: String, declared: Bool, outward: Bool,
    tenant: String, contract: String, network: String,
    method: String, host: String, port: Long, minutes: Long, credential: String,
    program: String, programs: Set<String>, paths_inside: Bool, own_process: Bool,
    argument_bytes: Long, cost_cents: Long, denied_before: Bool,
  },
};
action "publish" appliesTo {
  principal: [Agent], resource: [Target],
  context: {
    tenant: String, contract: String, target_kind: String, host: String, branch: String,
    files: Long, bytes: Long, paths_outside: Long, touches_pipeline: Bool,
    secrets: Long, hidden_characters: Long, checks_failed: Long, checks_missing: Long,
    verification: String, cost_cents: Long,
  },
};
"""

DEFAULT_POLICY = """\
// The policy every workspace begins with. It allows work inside the sandbox, asks a person
// about everything that would reach outside it, and denies whatever is left.

@id("not-in-contract")
@why("The contract does not name this.")
forbid (principal, action in Action::"call", resource)
unless { context.declared };

@id("outside-workspace")
@why("The path is outside the workspace.")
forbid (principal, action in Action::"call", resource)
unless { context.paths_inside };

@id("denied-before")
@why("A person has denied exactly this call in this run. Do something else.")
forbid (principal, action in Action::"call", resource)
when { context.denied_before };

@id("work-in-workspace")
@why("It happens inside the sandbox and touches nothing outside it.")
permit (principal, action == Action::"do", resource)
when { ["shell", "patch", "view"].contains(context.kind) && !context.outward };

@id("talk-to-own-process")
@why("It is typed into a process that this run started in the sandbox.")
permit (principal, action == Action::"do", resource)
when { context.kind == "stdin" && context.own_process && !context.outward };

@id("outward-needs-a-person")
@why("It reaches outside the sandbox.")
permit (principal, action == Action::"ask", resource)
when { context.outward || ["http", "network", "credential"].contains(context.kind) };

@id("question-to-a-person")
@why("It is a question to a person.")
permit (principal, action == Action::"ask", resource)
when { context.kind == "question" };

@id("publish-after-review")
@why("A person reads every candidate before it leaves.")
permit (principal, action == Action::"publish", resource);

@id("pipeline-needs-two")
@why("It changes files that a build service would execute.")
@needs("2")
permit (principal, action == Action::"publish", resource)
when { context.touches_pipeline };

@id("failed-check-needs-two")
@why("A check failed.")
@needs("2")
permit (principal, action == Action::"publish", resource)
when { context.checks_failed > 0 };

@id("check-missing")
@why("A check has no result yet.")
forbid (principal, action == Action::"publish", resource)
when { context.checks_missing > 0 };

@id("secret-in-candidate")
@why("The candidate contains something that looks like a secret.")
forbid (principal, action == Action::"publish", resource)
when { context.secrets > 0 };

@id("path-not-allowed")
@why("The candidate changes a path the contract does not allow.")
forbid (principal, action == Action::"publish", resource)
when { context.paths_outside > 0 };
"""


@dataclass(frozen=True)
class PolicyProblem:
    """One thing to mend. `rule` is its name or its place; line and column count from 1."""

    rule: str
    line: int | None
    reason: str
    remedy: str
    column: int | None = None

    def __str__(self) -> str:
        where = f"{self.rule}, line {self.line}" if self.line else self.rule
        where += f", column {self.column}" if self.column else ""
        return f"{where}: {self.reason} {self.remedy}"


class PolicyRefused(Refusal):
    """The text cannot be a policy. `problems` says why."""

    code: ClassVar[str] = "approvals.policy_refused"
    status: ClassVar[int] = 422
    text: ClassVar[str] = "The policy was not saved. {reasons}"

    def __init__(self, problems: Sequence[PolicyProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__(reasons="\n".join(str(each) for each in problems))


@dataclass(frozen=True)
class Rule:
    """One rule as people are shown it. `source` is its Cedar text, written in one way."""

    id: str
    effect: Literal["permit", "forbid"]
    asks: bool  # permitted once a person has approved it
    publishes: bool  # and that lets a candidate out
    why: str
    demands: Demands
    source: str
    # From then on it permits nothing. It is for rules that permit without a person alone: where
    # rules demand something together, the end of one would make less of it.
    expires: datetime | None = None


@dataclass(frozen=True)
class Compiled:
    """A checked policy, ready to decide. `rules` is by Cedar's own policy ids."""

    policies: cedarpy.PolicySet
    rules: Mapping[str, Rule]


def vocabulary() -> Vocabulary:
    """The words of the schema, read from its text, so that there is one list of them."""
    facts: dict[str, dict[str, str]] = {}
    for names, context in re.findall(
        r"action ([^;{]+?)(?: in [^;{]+?)? appliesTo \{.*?context: \{(.*?)\n  \}", SCHEMA, re.DOTALL
    ):
        known = dict(re.findall(r"(\w+): (Set<String>|\w+),", context))
        facts |= dict.fromkeys(re.findall(r'"(\w+)"', names), known)
    for names, group in re.findall(r'action ([^;{]+?) in \["(\w+)"\] appliesTo', SCHEMA):
        facts[group] = facts[re.findall(r'"(\w+)"', names)[0]]
    return Vocabulary(
        facts=facts,
        types=(*re.findall(r"^entity (\w+);", SCHEMA, re.MULTILINE), "Action"),
    )


VOCABULARY = vocabulary()
SCHEMA_HANDLE = cedarpy.Schema.from_str(SCHEMA)
ENTITIES = cedarpy.Entities.from_json_str("[]", SCHEMA_HANDLE)


def check_policy(text: str) -> None:
    """Return if the text may be saved, else raise `PolicyRefused` with all that is wrong.

    Stricter than `compile_policy`: `context has x` of a fact that does not exist is sound Cedar,
    and never what its author meant. A version that is in force already goes on.
    """
    compile_policy(text)
    if problems := misspelt(text):
        raise PolicyRefused(problems)


def explain(text: str) -> dict[str, Rule]:
    """Name of each rule → the rule, in the order of the text. Raises `PolicyRefused`."""
    return {rule.id: rule for rule in compile_policy(text).rules.values()}


def stored_rules(text: str) -> dict[str, Rule]:
    """The same of a text that was taken once; none if it cannot be read any more.

    What an earlier version of Cedar or of the portal took, a later one may refuse. Whatever such a
    policy is asked is denied, and its tenant must still be able to see it and to propose another.
    """
    try:
        return explain(text)
    except PolicyRefused:
        return {}


@lru_cache(maxsize=256)
def compile_policy(text: str) -> Compiled:
    """Parse and check once per text: policies are immutable, and every tool call asks them."""
    if len(text) > MAX_TEXT:
        raise refused("the policy", None, "It is longer than 64,000 characters.", "Shorten it.")
    if hidden := hidden_character(text.replace("\r\n", "\n")):
        raise refused("the policy", None, *hidden)
    if (start := policy_places.too_deep(text)) is not None:
        raise nested(text, start)
    try:
        policies = cedarpy.PolicySet.from_str(text)
        parsed = json.loads(cedarpy.policies_to_json_str(text))
    except RecursionError:
        raise nested(text) from None
    except ValueError as error:
        start, reason, remedy = policy_places.grammar_fault(text, str(error), complaint)
        line, column = policy_places.place(text, start)
        raise PolicyRefused(
            [PolicyProblem(name_at(text, start), line, reason, remedy, column)]
        ) from None
    problems = [*shape_problems(text, parsed), *schema_problems(text)]
    if problems:
        raise PolicyRefused(problems[:MAX_TOLD])
    statics = parsed["staticPolicies"]
    try:
        return Compiled(policies, {key: rule_of(key, each) for key, each in statics.items()})
    except ValueError:
        # Cedar reads rules as JSON less deeply than it writes them.
        raise nested(text) from None


def nested(text: str, start: int | None = None) -> PolicyRefused:
    """The refusal of a text in which a condition lies too deep, at this place if it is known."""
    line, column = (None, None) if start is None else policy_places.place(text, start)
    name = "the policy" if start is None else name_at(text, start)
    remedy = "Make several rules of it, or compare with a list: [1, 2].contains(context.port)."
    reason = "A condition is nested too deeply."
    return PolicyRefused([PolicyProblem(name, line, reason, remedy, column)])


def refused(rule: str, line: int | None, reason: str, remedy: str) -> PolicyRefused:
    return PolicyRefused([PolicyProblem(rule, line, reason, remedy)])


def rule_of(key: str, policy: Mapping[str, Any]) -> Rule:
    notes = policy.get("annotations", {})
    alone = {"staticPolicies": {key: policy}, "templates": {}, "templateLinks": []}
    return Rule(
        id=notes["id"],
        effect=policy["effect"],
        asks=asks(policy),
        publishes=asks(policy) and policy["action"]["entity"]["id"] == "publish",
        why=(notes.get("why") or "").strip(),
        demands=demands.read(notes),
        expires=end_of(notes["expires"]) if "expires" in notes else None,
        source=cedarpy.policies_from_json_str(json.dumps(alone)).strip(),
    )


def shape_problems(text: str, parsed: Mapping[str, Any]) -> list[PolicyProblem]:
    """What Cedar itself does not mind: names, annotations, templates, the number of rules."""
    statics: Mapping[str, Any] = parsed["staticPolicies"]
    found: list[PolicyProblem] = []
    if parsed.get("templates"):
        found.append(
            PolicyProblem(
                "the policy", None, "It has a template (?principal or ?resource).", "Write it out."
            )
        )
    if not 1 <= len(statics) <= MAX_RULES:
        found.append(
            PolicyProblem(
                "the policy", None, f"It has {len(statics)} rules.", f"Write 1 to {MAX_RULES}."
            )
        )
    rules = policy_places.statements(policy_places.tokens(text))
    seen: set[str] = set()
    for key, policy in statics.items():
        number = int(key.removeprefix("policy"))  # Cedar counts them so
        found += annotation_problems(text, number, rules[number], policy, seen)
    return found


def annotation_problems(
    text: str, number: int, rule: Sequence[Token], policy: Mapping[str, Any], seen: set[str]
) -> list[PolicyProblem]:
    notes: Mapping[str, str | None] = policy.get("annotations", {})
    name = notes.get("id") or ""
    faults: list[tuple[str, str, str]] = []
    if not RULE_NAME.fullmatch(name):
        faults.append(("id", "It has no proper name.", 'Put @id("short-name") above it.'))
    elif name in seen:
        faults.append(("id", "The name is taken by an earlier rule.", "Rename one of the two."))
    seen.add(name)
    for each in notes:
        if each not in ANNOTATIONS:
            known = f"Known: @{', @'.join(ANNOTATIONS)}."
            faults.append((each, f"@{each} is not known.", known))
    faults += demands.faults(notes, asks=asks(policy))
    if "expires" in notes:
        faults += [("expires", *fault) for fault in expiry_faults(notes["expires"], policy)]
    found = []
    for about, reason, remedy in faults:
        line, column = policy_places.place(text, policy_places.annotation(rule, about))
        problem = PolicyProblem(name or f"rule {number + 1}", line, reason, remedy, column)
        found.append(problem)
    return found


def end_of(day: str | None) -> datetime | None:
    """The beginning of the day `2027-01-31`, UTC; None for anything else."""
    try:
        found = date.fromisoformat(day or "")
    except ValueError:
        return None
    return datetime.combine(found, time(), UTC) if found.isoformat() == day else None


def expiry_faults(day: str | None, policy: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is wrong with a rule's end: reason and remedy."""
    action = policy["action"]
    does = action.get("op") == "==" and action.get("entity", {}).get("id") == "do"
    found = []
    if end_of(day) is None:
        found.append((f'@expires("{day or "":.40}") is no day.', 'Write one as "2027-01-31".'))
    if policy["effect"] != "permit" or not does:
        reason = "@expires has no effect here: it ends what is permitted without a person."
        found.append((reason, 'Use it on permit with action == Action::"do".'))
    return found


def asks(policy: Mapping[str, Any]) -> bool:
    """Is this a permit whose scope names exactly an action that people answer?"""
    action = policy["action"]
    named = action.get("entity", {}).get("id") if action.get("op") == "==" else None
    return policy["effect"] == "permit" and named in {"ask", "publish"}


def schema_problems(text: str) -> list[PolicyProblem]:
    """Misspelt facts, unknown actions and types, and comparisons that cannot hold."""
    result = cedarpy.validate_policies(text, SCHEMA_HANDLE)
    if result.validation_passed:
        return []
    said: dict[str, list[str]] = {}
    for error in result.errors:
        reason = error.error.replace(f"for policy `{error.policy_id}`, ", "")
        said.setdefault(error.policy_id, []).append(reason)
    rules = policy_places.statements(policy_places.tokens(text))
    found: list[PolicyProblem] = []
    for number, rule in enumerate(rules):
        reasons = said.pop(f"policy{number}", [])  # Cedar counts them so
        faults = policy_places.faults(rule, VOCABULARY, MAX_TOLD)
        faults += foreign_facts(rule, reasons)
        name = policy_places.name_of(rule) or f"rule {number + 1}"
        found += [located(text, name, fault) for fault in faults]
        for reason, remedy in sorted(unexplained(reasons, faults)):
            line, column = policy_places.place(text, rule[0].start)
            found.append(PolicyProblem(name, line, reason, remedy, column))
    return found or [PolicyProblem("the policy", None, "It does not fit the schema.", "Mend it.")]


def misspelt(text: str) -> list[PolicyProblem]:
    """Words that the schema does not know, wherever they stand."""
    found: list[PolicyProblem] = []
    for number, rule in enumerate(policy_places.statements(policy_places.tokens(text)), start=1):
        name = policy_places.name_of(rule) or f"rule {number}"
        faults = policy_places.faults(rule, VOCABULARY, MAX_TOLD)
        found += [located(text, name, fault) for fault in faults]
    return found[:MAX_TOLD]


def located(text: str, rule: str, fault: Fault) -> PolicyProblem:
    line, column = policy_places.place(text, fault.start)
    return PolicyProblem(rule, line, fault.reason, fault.remedy, column)


_NOT_FOUND = re.compile(r'attribute `(.+)` in context for Action::"(.+)" not found')


def foreign_facts(rule: Sequence[Token], said: Sequence[str]) -> list[Fault]:
    """Facts that exist, and not for every action that the rule's head leaves open."""
    known = VOCABULARY.types_of_facts
    lacking: dict[str, list[str]] = {}
    for match in filter(None, map(_NOT_FOUND.fullmatch, said)):
        if match[1] in known:
            lacking.setdefault(match[1], []).append(match[2])
    found = []
    for at, name in policy_places.facts_named(rule):
        actions = lacking.pop(name, None)
        if actions:
            has = [action for action, facts in VOCABULARY.facts.items() if name in facts]
            reason = f"`{name}` is no fact of {' or '.join(sorted(actions))}."
            remedy = f"Name its action in the rule’s head: {', '.join(sorted(has))}."
            found.append(Fault("fact", name, rule[at].start, reason, remedy))
    return found


def unexplained(said: Sequence[str], faults: Sequence[Fault]) -> set[tuple[str, str]]:
    """What Cedar says of a rule and no fault has told with its place, and what to do about it."""
    about = {fault.about for fault in faults}
    names = {fault.name for fault in faults}
    left = set()
    for reason in said:
        match = _NOT_FOUND.fullmatch(reason)
        if (match and match[1] in names) or about & {*TOLD.get(reason.split(" `")[0], ())}:
            continue
        if "attribute" in about and reason.startswith("attribute "):
            continue
        if reason.startswith(("the types ", "unexpected type")) and "value" in about:
            continue
        if reason.startswith(NO_ACTION):
            # It follows from an unknown word, and would only hide it.
            if not faults:
                left.add(("No action goes with the types in this rule’s head.", HEADS))
            continue
        words = reason.replace("__cedar::internal::", "")[:300]
        left.add((f"{words[:1].upper()}{words[1:]}.", "Use the facts in the table."))
    return left


TOLD = {"unrecognized action": ["action"], "unrecognized entity type": ["type"]}
NO_ACTION = "unable to find an applicable action"
HEADS = "The principal is an Agent; the resource a Tool to do or ask, a Target to publish."


def complaint(text: str) -> str:
    """What Cedar says against a text, or nothing."""
    try:
        cedarpy.PolicySet.from_str(text)
    except (ValueError, RecursionError) as error:
        return str(error)
    return ""


def name_at(text: str, start: int) -> str:
    """The name of the rule that this place belongs to, or its number."""
    rules = policy_places.statements(policy_places.tokens(text))
    number = next((n for n, rule in enumerate(rules) if start < rule[-1].end), len(rules) - 1)
    return (policy_places.name_of(rules[number]) or f"rule {number + 1}") if rules else "the policy"
