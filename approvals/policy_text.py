"""The language of policies: the schema, the default that ships, and what is checked before saving.

A policy is Cedar text. Beside Cedar's own grammar four annotations are known:

| annotation | meaning |
| --- | --- |
| `@id("name")` | required, once in the text: the name packets and events give for the rule |
| `@why("…")` | one sentence, shown to those who decide and, in a denial, to the agent |
| `@needs("2")` | on a `permit` that asks or publishes: so many people must approve (1 to 10) |
| `@role("admin")` | on the same: one of them must hold this role |
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import cedarpy

from portal.errors import Refusal
from portal.roles import GRANTS, Permission
from runs.contract.rules import hidden_character

MAX_TEXT = 64_000
MAX_RULES = 200
MAX_NEEDS = 10
RULE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
ANNOTATIONS = ("id", "why", "needs", "role")
DECIDING = {Permission.DECIDE, Permission.PUBLISH, Permission.MANAGE}
ROLES = tuple(role.value for role, granted in GRANTS.items() if granted & DECIDING)

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
    """One thing to mend. `rule` is its name or its place; `line` is None where Cedar gives none."""

    rule: str
    line: int | None
    reason: str
    remedy: str

    def __str__(self) -> str:
        where = f"{self.rule}, line {self.line}" if self.line else self.rule
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
    why: str
    needs: int
    role: str
    source: str


@dataclass(frozen=True)
class Compiled:
    """A checked policy, ready to decide. `rules` is by Cedar's own policy ids."""

    policies: cedarpy.PolicySet
    rules: Mapping[str, Rule]


SCHEMA_HANDLE = cedarpy.Schema.from_str(SCHEMA)
ENTITIES = cedarpy.Entities.from_json_str("[]", SCHEMA_HANDLE)


def check_policy(text: str) -> None:
    """Return if the text may be saved, else raise `PolicyRefused` with all that is wrong."""
    compile_policy(text)


def explain(text: str) -> dict[str, Rule]:
    """Name of each rule → the rule, in the order of the text. Raises `PolicyRefused`."""
    return {rule.id: rule for rule in compile_policy(text).rules.values()}


@lru_cache(maxsize=256)
def compile_policy(text: str) -> Compiled:
    """Parse and check once per text: policies are immutable, and every tool call asks them."""
    if len(text) > MAX_TEXT:
        raise refused("the policy", None, "It is longer than 64,000 characters.", "Shorten it.")
    if hidden := hidden_character(text.replace("\r\n", "\n")):
        raise refused("the policy", None, *hidden)
    try:
        policies = cedarpy.PolicySet.from_str(text)
        parsed = json.loads(cedarpy.policies_to_json_str(text))
    except (ValueError, RecursionError) as error:
        raise refused(
            "the policy", None, f"This is not Cedar: {error}.", "Mend it there."
        ) from None
    problems = [*shape_problems(text, parsed), *schema_problems(text, parsed)]
    if problems:
        raise PolicyRefused(problems)
    statics = parsed["staticPolicies"]
    return Compiled(policies, {key: rule_of(key, each) for key, each in statics.items()})


def refused(rule: str, line: int | None, reason: str, remedy: str) -> PolicyRefused:
    return PolicyRefused([PolicyProblem(rule, line, reason, remedy)])


def rule_of(key: str, policy: Mapping[str, Any]) -> Rule:
    notes = policy.get("annotations", {})
    alone = {"staticPolicies": {key: policy}, "templates": {}, "templateLinks": []}
    return Rule(
        id=notes["id"],
        effect=policy["effect"],
        asks=asks(policy),
        why=(notes.get("why") or "").strip(),
        needs=int(notes.get("needs") or 1),
        role=notes.get("role") or "",
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
    seen: set[str] = set()
    for place, policy in enumerate(statics.values(), start=1):
        found += annotation_problems(text, place, policy, seen)
    return found


def annotation_problems(
    text: str, place: int, policy: Mapping[str, Any], seen: set[str]
) -> list[PolicyProblem]:
    notes: Mapping[str, str | None] = policy.get("annotations", {})
    name = notes.get("id") or ""
    rule, line = name or f"rule {place}", line_of(text, name)
    faults: list[tuple[str, str]] = []
    if not RULE_NAME.fullmatch(name):
        faults.append(("It has no proper name.", 'Put @id("short-name") above it.'))
    elif name in seen:
        faults.append(("The name is taken by an earlier rule.", "Rename one of the two."))
    seen.add(name)
    for each in notes:
        if each not in ANNOTATIONS:
            faults.append((f"@{each} is not known.", f"Known: @{', @'.join(ANNOTATIONS)}."))
    needs, role = notes.get("needs"), notes.get("role")
    if needs is not None and not (needs.isdecimal() and 1 <= int(needs) <= MAX_NEEDS):
        faults.append((f'@needs("{needs}") is not a number of people.', "Write 1 to 10 in quotes."))
    if role is not None and role not in ROLES:
        faults.append((f'@role("{role}") is no role that decides.', f"Write {', '.join(ROLES)}."))
    if (needs is not None or role is not None) and not asks(policy):
        faults.append(
            (
                "@needs and @role have no effect here.",
                'Use them on permit with Action::"ask" or Action::"publish".',
            )
        )
    return [PolicyProblem(rule, line, *fault) for fault in faults]


def asks(policy: Mapping[str, Any]) -> bool:
    """Is this a permit whose scope names exactly an action that people answer?"""
    action = policy["action"]
    named = action.get("entity", {}).get("id") if action.get("op") == "==" else None
    return policy["effect"] == "permit" and named in {"ask", "publish"}


def schema_problems(text: str, parsed: Mapping[str, Any]) -> list[PolicyProblem]:
    """Misspelt facts, unknown actions and comparisons that cannot hold."""
    result = cedarpy.validate_policies(text, SCHEMA_HANDLE)
    if result.validation_passed:
        return []
    everything = {**parsed["staticPolicies"], **parsed.get("templates", {})}
    found = []
    for error in sorted(result.errors, key=lambda each: (each.policy_id, each.error)):
        notes = everything.get(error.policy_id, {}).get("annotations", {})
        name = notes.get("id") or error.policy_id or "the policy"
        reason = error.error.replace(f"for policy `{error.policy_id}`, ", "")
        reason = reason[:1].upper() + reason[1:300]
        found.append(
            PolicyProblem(name, line_of(text, name), f"{reason}.", "Use the facts in the table.")
        )
    return found or [PolicyProblem("the policy", None, "It does not fit the schema.", "Mend it.")]


def line_of(text: str, name: str) -> int | None:
    """Where the rule of that name begins: Cedar's findings carry no position."""
    at = re.search(rf'@id\s*\(\s*"{re.escape(name)}"\s*\)', text) if name else None
    return text.count("\n", 0, at.start()) + 1 if at else None
