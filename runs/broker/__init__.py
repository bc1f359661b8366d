"""Brokered tools: the outer runtime acts, the sandbox sees only the fields of the answer it may.

Three kinds, all declared in the contract: HTTP requests, reads of a database, and functions of the
team's own. Each call goes through `plan`, which says what exactly would happen, before anybody is
asked, and again immediately before `carry_out` does it. The credential is added there and appears
in no argument, event or result.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from runs.broker import http, own, sql
from runs.broker.answers import BrokerFailed, BrokerRefused, BrokerUnknown, Done, Plan
from runs.contract import BrokeredTool, HttpTool, SqlTool
from runs.models import Run

__all__ = [
    "BrokerFailed",
    "BrokerRefused",
    "BrokerUnknown",
    "Done",
    "Plan",
    "carry_out",
    "plan",
]


def plan(run: Run, tool: BrokeredTool, arguments: Mapping[str, Any]) -> Plan:
    """What the call would do, with the tenant's values of now. Raises `BrokerRefused`."""
    if isinstance(tool, HttpTool):
        return http.plan(run, tool, arguments)
    if isinstance(tool, SqlTool):
        return sql.plan(run, tool, arguments)
    return own.plan(run, tool, arguments)


def carry_out(
    run: Run, tool: BrokeredTool, arguments: Mapping[str, Any], *, call_id: str, target: str
) -> Done:
    """Do what was permitted: the call as `plan` described it, at the place that was `target` then.

    Raises `BrokerRefused` when nothing was sent, `BrokerFailed` when what was sent changes nothing
    and brought nothing, and `BrokerUnknown` when it may have had its effect.
    """
    key = str(uuid.uuid5(run.public_id, call_id))
    if isinstance(tool, HttpTool):
        request = http.prepare(run.tenant_id, tool, arguments)
        _same(request.target, target)
        return http.send(run, tool, request, call_id=call_id, key=key)
    if isinstance(tool, SqlTool):
        query = sql.prepare(run, tool, arguments)
        _same(query.target, target)
        return sql.read(run, tool, query, call_id=call_id)
    _same(own.target_of(own.function_of(run, tool)), target)
    return own.call(run, tool, arguments, call_id=call_id, key=key)


def _same(now: str, then: str) -> None:
    """A value the target is made of may have changed after the permission was used up."""
    if now != then:
        raise BrokerRefused(
            f"The target is not the approved one any more. Approved was {then}. Propose a new call."
        )
