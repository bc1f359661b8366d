"""What is kept of an agent between two stretches of work, and when it is not trusted.

The kept state is one JSON text: an envelope of ours around either the SDK's own run state (when
calls wait for people) or the plain conversation (when the agent stands between two turns, or has
finished). The envelope says which SDK and which agent it belongs to, which calls wait, and has a
digest over itself, so that a state which cannot be continued is refused by name before anything
is done with it.

The digest finds damage, not forgery: whoever stores the state keeps it secret and authentic.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, Literal, cast

from runs.agent.port import (
    AgentBrief,
    Answer,
    PendingCall,
    ProposedCall,
    RecoveryError,
    ToolDeclaration,
    Verdict,
)

SDK_VERSION = version("openai-agents")
FORMAT = "imprimatur-agent-state"
VERSION = 1

Step = Literal["waiting", "between", "finished"]

START_AGAIN = "Start the run again from its last checkpoint, or anew."


@dataclass(frozen=True)
class Kept:
    """An opened state. Exactly one of `run` and `conversation` is there."""

    step: Step
    turns_used: int
    pending: tuple[PendingCall, ...]
    run: dict[str, Any] | None
    conversation: list[dict[str, Any]] | None


def keep(brief: AgentBrief, kept: Kept) -> str:
    """Write a state."""
    body = {
        "format": FORMAT,
        "version": VERSION,
        "sdk": SDK_VERSION,
        "run_id": brief.run_id,
        "tenant": brief.tenant,
        "agent": brief.agent_name,
        "agent_version": brief.agent_version,
        "prompt_version": brief.prompt_version,
        "step": kept.step,
        "turns_used": kept.turns_used,
        "pending": [asdict(pending) for pending in kept.pending],
        "run": kept.run,
        "conversation": kept.conversation,
    }
    return json.dumps({**body, "sha256": _digest(body)}, ensure_ascii=False)


def open_state(brief: AgentBrief, state: str) -> Kept:
    """Read a state. Raises RecoveryError, whose code says why it is not trusted."""
    body = _read(state)
    _belongs(brief, body)
    try:
        kept = Kept(
            step=body["step"],
            turns_used=int(body["turns_used"]),
            pending=tuple(_pending(entry) for entry in body["pending"]),
            run=body["run"],
            conversation=body["conversation"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged() from error
    _fits(kept, {tool.name: tool for tool in brief.tools})
    return kept


def check_answers(kept: Kept, answers: Mapping[str, Answer]) -> None:
    """The answers must be for exactly the calls that wait."""
    waiting = {pending.call.call_id for pending in kept.pending}
    unknown = sorted(set(answers) - waiting)
    if unknown:
        raise RecoveryError(
            "answer_unknown",
            f"There is an answer to {', '.join(unknown)}, but no such call waits in this state.",
            "Resume with answers to exactly the calls that wait.",
        )
    missing = sorted(waiting - set(answers))
    if missing:
        raise RecoveryError(
            "answer_missing",
            f"The waiting calls {', '.join(missing)} have no answer.",
            "Resume when every waiting call has been answered.",
        )


def verify_state(brief: AgentBrief, state: str) -> tuple[str, ...]:
    """Ids of the calls that wait in this state. Raises RecoveryError with a named reason.

    Codes: `state_truncated`, `state_damaged`, `state_format`, `sdk_version`, `other_run`,
    `agent_renamed`, `agent_version`, `tool_gone`, `pending_unknown`.
    """
    return tuple(pending.call.call_id for pending in open_state(brief, state).pending)


def _read(state: str) -> dict[str, Any]:
    try:
        body = json.loads(state)
    except (ValueError, RecursionError) as error:
        raise RecoveryError(
            "state_truncated", "The saved state of the agent is not whole.", START_AGAIN
        ) from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise RecoveryError(
            "state_format", "This is not a saved state of an agent of this program.", START_AGAIN
        )
    digest = body.pop("sha256", None)
    if body.get("version") != VERSION:
        raise RecoveryError(
            "state_format",
            f"The saved state has format version {body.get('version')!r}, and this program reads "
            f"version {VERSION}.",
            "Finish the run with the release that paused it, or start it again.",
        )
    if digest != _digest(body):
        raise _damaged()
    return cast("dict[str, Any]", body)


def _belongs(brief: AgentBrief, body: Mapping[str, Any]) -> None:
    if body.get("sdk") != SDK_VERSION:
        raise RecoveryError(
            "sdk_version",
            f"The state was saved by version {body.get('sdk')} of the agents SDK, and version "
            f"{SDK_VERSION} is installed. The format is not kept between versions.",
            "Finish the run with the release that paused it, or start it again.",
        )
    if (body.get("run_id"), body.get("tenant")) != (brief.run_id, brief.tenant):
        raise RecoveryError("other_run", "The state belongs to another run.", START_AGAIN)
    if body.get("agent") != brief.agent_name:
        raise RecoveryError(
            "agent_renamed",
            f"The state was saved by the agent {body.get('agent')!r}, and the contract now names "
            f"{brief.agent_name!r}. Waiting calls hang on that name.",
            "Resume with the contract version that the run was started with.",
        )
    versions = (body.get("agent_version"), body.get("prompt_version"))
    if versions != (brief.agent_version, brief.prompt_version):
        raise RecoveryError(
            "agent_version",
            "The state was saved by another version of the agent or of its prompt.",
            "Resume with the contract version that the run was started with.",
        )


def _fits(kept: Kept, tools: Mapping[str, ToolDeclaration]) -> None:
    """The parts of the envelope say the same."""
    for pending in kept.pending:
        tool = tools.get(pending.call.tool)
        if tool is None or tool.kind != pending.call.kind:
            raise RecoveryError(
                "tool_gone",
                f"A call of the tool {pending.call.tool!r} waits, but the contract does not "
                "declare that tool any more.",
                "Resume with the contract version that the run was started with.",
            )
    if kept.step == "waiting":
        if not isinstance(kept.run, dict) or kept.conversation is not None or not kept.pending:
            raise _damaged()
        listed = [pending.call.call_id for pending in kept.pending]
        if sorted(listed) != sorted(_interruptions(kept.run)):
            raise RecoveryError(
                "pending_unknown",
                "The calls that wait are not the ones the agent stopped at.",
                START_AGAIN,
            )
        if kept.run.get("current_agent", {}).get("name") is None:
            raise _damaged()
    elif kept.step in ("between", "finished"):
        if not isinstance(kept.conversation, list) or kept.run is not None or kept.pending:
            raise _damaged()
    else:
        raise _damaged()


def _interruptions(run: Mapping[str, Any]) -> list[str]:
    step = run.get("current_step") or {}
    data = step.get("data") or {}
    return [
        str((entry.get("raw_item") or {}).get("call_id"))
        for entry in data.get("interruptions") or []
    ]


def _pending(entry: Mapping[str, Any]) -> PendingCall:
    verdict = dict(entry["verdict"])
    verdict["rules"] = tuple(verdict["rules"])
    return PendingCall(ProposedCall(**entry["call"]), Verdict(**verdict))


def _damaged() -> RecoveryError:
    return RecoveryError("state_damaged", "The saved state of the agent is damaged.", START_AGAIN)


def _digest(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
