"""Where a call would have its effect, as a person reads it and an approval covers it."""

from __future__ import annotations

from runs import broker
from runs.agent.port import OUTER_KINDS, ProposedCall
from runs.contract import Contract
from runs.models import Run
from runs.network import asked_by_call

REFUSED = "refused: "
"""Begins the target of a call that cannot be made; what follows says why."""


def target_of(run: Run, contract: Contract, call: ProposedCall) -> tuple[str, bool]:
    """The target, and whether the call reaches outside."""
    tool = contract.brokered_tool(call.tool)
    if call.kind in OUTER_KINDS and tool is not None:
        try:
            return broker.plan(run, tool, call.arguments).target, True
        except broker.BrokerRefused as refused:
            return f"{REFUSED}{refused}", True
    if call.kind == "question":
        return "a person of this tenant", False
    if call.kind == "network":
        # Asking changes nothing outside; what may come of it is a rule, judged on its own.
        return asked_by_call(call)[0].place, False
    return "the sandbox", False
