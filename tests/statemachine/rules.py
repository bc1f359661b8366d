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
KEYED = """
@id("two-with-keys")
@why("It must be theirs.")
@needs("2")
@passkey("required")
permit (principal, action == Action::"ask", resource)
when { context.tool == "plain" };

@id("a-key-to-publish")
@why("It leaves.")
@passkey("required")
@risk("high")
permit (principal, action == Action::"publish", resource);
"""
TIMED = """
@id("little-time")
@why("It is urgent.")
@decide("30m")
@execute("5m")
@remind("10m")
permit (principal, action == Action::"ask", resource)
when { context.tool == "plain" || context.kind == "network" };

@id("little-time-to-publish")
@why("It is urgent.")
@execute("5m")
permit (principal, action == Action::"publish", resource);
"""
RELIEVED = """
@id("owners-or-others-later")
@why("Somebody must know.")
@stages("1 of group:owners")
@escalate("10m to group:security")
permit (principal, action == Action::"ask", resource)
when { context.tool == "plain" };
"""
GRAVE = """
@id("grave")
@why("It cannot be undone.")
@risk("high")
permit (principal, action == Action::"ask", resource)
when { context.tool == "plain" || context.kind == "network" };

@id("grave-to-publish")
@why("It leaves.")
@risk("high")
permit (principal, action == Action::"publish", resource);
"""
EASY = """
@id("easy")
@why("It harms nobody.")
@risk("low")
permit (principal, action == Action::"ask", resource)
when { context.tool == "plain" || context.kind == "network" };
"""
HURRY = Wants(
    decide=timedelta(minutes=30), execute=timedelta(minutes=5), remind=timedelta(minutes=10)
)
HIGH, LOW = Wants(risk="high"), Wants(risk="low")
LATER_SECURITY = Wants(groups=("owners",), relief=("security", timedelta(minutes=10)))
# Risk is low only where each rule that spoke says so.
EASILY = (
    DEFAULT_POLICY.replace(
        '@id("outward-needs-a-person")', '@id("outward-needs-a-person")\n@risk("low")'
    )
    + EASY
)
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
    "keyed": Rules(
        DEFAULT_POLICY + KEYED,
        {"plain": Wants(2, passkey=True), "publish": Wants(passkey=True, risk="high")},
    ),
    "timed": Rules(
        DEFAULT_POLICY + TIMED,
        {"plain": HURRY, "network": HURRY, "publish": Wants(execute=timedelta(minutes=5))},
    ),
    "relieved": Rules(DEFAULT_POLICY + RELIEVED, {"plain": LATER_SECURITY}),
    "grave": Rules(DEFAULT_POLICY + GRAVE, {"plain": HIGH, "network": HIGH, "publish": HIGH}),
    "easy": Rules(EASILY, {"plain": LOW, "network": LOW, "sealed": LOW}),
    "shut": Rules(DEFAULT_POLICY + NO_HTTP, denies=frozenset({"plain", "sealed"})),
}
