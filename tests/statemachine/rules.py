"""The texts of policy that come into force, and what each demands in the words of the reference."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from approvals.policy_text import DEFAULT_POLICY
from tests.statemachine.reference import Rules, Wants
from tests.walk import NO_HTTP

STRICT = """
@id("two-for-plain")
@why("It is plain.")
@needs("2")
permit (principal, action == Action::"ask", resource)
when { context.tool == "plain" || context.kind == "network" };

@id("an-admin-for-sealed")
@why("It uses a secret.")
@role("admin")
permit (principal, action == Action::"ask", resource)
when { context.tool == "sealed" };

@id("two-to-publish")
@why("It leaves.")
@needs("2")
permit (principal, action == Action::"publish", resource);
"""
HELD = """
@id("held-for-minutes")
@why("It can be undone.")
@hold("10m")
permit (principal, action == Action::"ask", resource)
when { context.tool == "plain" || context.kind == "network" };

@id("held-to-publish")
@why("It leaves.")
@hold("10m")
permit (principal, action == Action::"publish", resource);
"""
STAGED = """
@id("one-of-each")
@why("Both must know.")
@stages("1 of group:security, 1 of group:owners")
permit (principal, action == Action::"ask", resource)
when { context.tool == "plain" };
"""
TWO, LATER = Wants(2), Wants(hold=timedelta(minutes=10))
BOTH_GROUPS = Wants(groups=("security", "owners"))
RULES: Mapping[str, Rules] = {
    "usual": Rules(DEFAULT_POLICY),
    "strict": Rules(
        DEFAULT_POLICY + STRICT,
        {"plain": TWO, "network": TWO, "publish": TWO, "sealed": Wants(1, "admin")},
    ),
    "held": Rules(DEFAULT_POLICY + HELD, {"plain": LATER, "network": LATER, "publish": LATER}),
    "staged": Rules(DEFAULT_POLICY + STAGED, {"plain": BOTH_GROUPS}),
    "shut": Rules(DEFAULT_POLICY + NO_HTTP, denies=frozenset({"plain", "sealed"})),
}
