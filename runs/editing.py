"""A person changes the arguments of a call that waits, and the agent is told what ran instead.

The arguments are read as strictly as the agent's own: one JSON object without a name given twice,
the tool's schema, the limits of the portal. Where the worker would still read them in another way,
the call does not begin.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from portal.canonical import canonical, digest
from portal.errors import Refusal
from portal.models import User
from runs.agent.arguments import ArgumentsRefused, checker, closed, read_object, reader
from runs.agent.port import OUTER_KINDS, Edited
from runs.contract import Contract
from runs.lifecycle import Draft, Judged, append_events, run_facts
from runs.models import Run, ToolCall
from runs.states import CallState

EDITABLE = frozenset({"shell", *OUTER_KINDS})
"""Kinds of calls whose arguments say all that happens. A patch is for the agent to write anew."""

LIMIT = 200_000
_SHOWN = 400
_WORKSPACE = "/workspace"
# As the worker bounds them (`runs.agent.tools`).
_LONGEST_WAIT_MS = 600_000
_MOST_TOKENS = 25_000
_SHELL: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "cmd": {"type": "string", "minLength": 1},
        "workdir": {"type": "string", "minLength": 1},
        "shell": {"type": ["string", "null"]},
        "login": {"type": "boolean"},
        "tty": {"type": "boolean"},
        "yield_time_ms": {"type": "integer", "minimum": 0, "maximum": _LONGEST_WAIT_MS},
        "max_output_tokens": {"type": "integer", "minimum": 1, "maximum": _MOST_TOKENS},
    },
    "additionalProperties": False,
}


class ArgumentsWrong(Refusal):
    code = "runs.arguments_wrong"
    status = 422
    text = "{problem} Nothing was changed."


@dataclass(frozen=True)
class Changed:
    """One argument before and after, as JSON; None where it was or is none."""

    name: str
    before: str | None
    after: str | None


def written(arguments: Mapping[str, Any]) -> str:
    """The arguments as a person edits them."""
    return json.dumps(arguments, ensure_ascii=False, indent=2, sort_keys=True)


def read_edited(contract: Contract, call: ToolCall, text: str) -> dict[str, Any]:
    """The arguments a person wrote for a call, normalised. Raises `ArgumentsWrong`."""
    if len(text) > LIMIT:
        raise ArgumentsWrong(
            problem=f"The arguments have {len(text):,} characters; {LIMIT:,} are possible."
        )
    try:
        if call.kind == "shell":
            arguments = _shell(text, call.arguments)
        else:
            tool = contract.brokered_tool(call.tool)
            if tool is None:
                raise ArgumentsWrong(problem=f"The contract declares no tool {call.tool}.")
            arguments = reader(closed(tool.parameters))(text)
        canonical(arguments)
    except (ArgumentsRefused, ValueError) as refused:
        problem = str(refused).removesuffix(" Nothing was done.")
        raise ArgumentsWrong(problem=problem) from refused
    return arguments


def _shell(text: str, before: Mapping[str, Any]) -> dict[str, Any]:
    given = read_object(text)
    if (problem := checker({**_SHELL, "required": sorted(before)})(given)) is not None:
        raise ArgumentsRefused(problem)
    path = posixpath.normpath(posixpath.join(_WORKSPACE, given["workdir"]))
    if path != _WORKSPACE and not path.startswith(f"{_WORKSPACE}/"):
        raise ArgumentsRefused(f"The path {given['workdir']!r} is outside the workspace.")
    return given | {"workdir": posixpath.relpath(path, _WORKSPACE)}


def replace_arguments(
    call: ToolCall,
    run: Run,
    arguments: Mapping[str, Any],
    *,
    target: str,
    judged: Judged,
    by: User,
    facts: Mapping[str, Any],
) -> None:
    """Put a person's arguments in the place of the agent's, both rows locked by the caller.

    The call goes on waiting. What the agent wrote stays in its row, and both are in the evidence.
    """
    if CallState(call.state) is not CallState.WAITING:
        raise ValueError(f"call {call.call_id!a} is {call.state}")
    before = call.arguments_digest
    call.proposed = call.arguments if call.proposed is None else call.proposed
    call.edited_by = by
    call.arguments, call.target = dict(arguments), target
    call.arguments_digest = digest(
        {"tool": call.tool, "arguments": call.arguments, "target": call.target}
    )
    call.rules, call.reason, call.facts = list(judged.rules), judged.reason, judged.facts
    call.policy_version, call.policy_digest = judged.policy_version, judged.policy_digest
    call.save(
        update_fields=[
            *("proposed", "edited_by", "arguments", "target", "arguments_digest", "rules"),
            *("reason", "facts", "policy_version", "policy_digest"),
        ]
    )
    told = {
        "operation": call.tool,
        "call": call.call_id,
        "by": by.name,
        "arguments_before": before,
        "arguments_digest": call.arguments_digest,
        "rules": list(judged.rules),
        "policy_version": judged.policy_version,
        **facts,
    }
    draft = Draft("call.edited", run_facts(run) | told, payload=written(call.arguments))
    append_events(run, [draft])


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Changed]:
    """The arguments that differ, by name."""
    return [
        Changed(name, _json(before, name), _json(after, name))
        for name in sorted({*before, *after})
        if _json(before, name) != _json(after, name)
    ]


def _json(arguments: Mapping[str, Any], name: str) -> str | None:
    if name not in arguments:
        return None
    return json.dumps(arguments[name], ensure_ascii=False, sort_keys=True)


def edited_of(call: ToolCall) -> Edited | None:
    """What a person put in the place of the agent's arguments, with words for the agent."""
    if call.proposed is None:
        return None
    who = call.edited_by.name if call.edited_by is not None else "A person"
    changes = changed(call.proposed, call.arguments)
    if not changes:
        words = f"{who} edited this call, and in the end its arguments are the ones you wrote."
    else:
        lines = [
            f"- {each.name}: {_short(each.before)} became {_short(each.after)}" for each in changes
        ]
        words = "\n".join(
            [f"Edited: {who} changed the arguments of this call. Yours were not used.", *lines]
        )
    return Edited(call.arguments, words)


def _short(value: str | None) -> str:
    if value is None:
        return "nothing"
    if len(value) <= _SHOWN:
        return value
    return f"{value[:_SHOWN]}… ({len(value):,} characters in all)"
