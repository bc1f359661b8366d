"""One stretch of an agent's work: from a start, a resume or a new message to the next rest.

This module and its neighbours are the only ones that import the agents SDK; `runs.agent` loads
it when the first agent runs.

The SDK's traces are switched off when the module is loaded, and the processor that would send
them away is removed: nothing about a run leaves this process except requests to the contract's
own model endpoint.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from agents import (
    Agent,
    RunConfig,
    Runner,
    RunState,
    Tool,
    ToolExecutionConfig,
    set_trace_processors,
    set_tracing_disabled,
)
from agents.items import ToolApprovalItem, TResponseInputItem
from agents.result import RunResult
from agents.run_config import ToolErrorFormatterArgs
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Capability
from agents.sandbox.session import BaseSandboxSession
from pydantic import Field

from runs.agent.arguments import write_object
from runs.agent.conversing import Conversing, plain
from runs.agent.endpoint import EndpointSpeaker
from runs.agent.failures import GateClosed, ModelFailed, classify
from runs.agent.gate import NO_REASON, Closed, Gate, host_failed
from runs.agent.player import PlayerSpeaker
from runs.agent.port import (
    AgentBrief,
    Answer,
    BriefRefused,
    Host,
    Outcome,
    PendingCall,
    RecoveryError,
    StopRun,
)
from runs.agent.speaker import Speaker
from runs.agent.state import START_AGAIN, Kept, check_answers, keep, open_state
from runs.agent.tools import Surroundings, brokered_tools, check_declarations, sandbox_tools
from runs.agent.transcript import TranscriptRefused, load
from runs.sandbox import Sandbox

set_tracing_disabled(True)
set_trace_processors([])

log = logging.getLogger(__name__)

WATCH_EVERY_S = 1.0
"""How often a long call or a long answer is interrupted to ask whether the run must stop."""

BASE_INSTRUCTIONS = """\
You work in a sandbox. Unless you are told otherwise it has no network. Its workspace has three
folders:
- repo/: the source you work on. Commands start here unless you give another workdir.
- input/: files you were given. You can only read them.
- output/: the tray. What you put here, and what you change in repo/, is what you offer.
Paths given to apply_patch and view_image are relative to the workspace, so they begin with
repo/, input/ or output/.

"""
_CHECKED = """\
Every tool call is checked before it happens. Some are refused, with the reason; do not try to
get around a refusal. Some wait for a person; the person's answer reaches you as the tool's output.
Nothing you do is published: a person reviews what you offer first.
"""
BASE_INSTRUCTIONS += _CHECKED
TOOLS_ONLY_INSTRUCTIONS = f"""\
You work without a sandbox: you can neither run commands nor read or change files. You have the
tools you are given and nothing else, and your last answer is what you offer.

{_CHECKED}"""


@dataclass(frozen=True)
class Ids:
    """The SDK's context of a run: ids and nothing else, because it becomes part of its state."""

    run_id: str
    tenant: str

    @staticmethod
    def written(context: Any) -> Mapping[str, Any]:
        """For the SDK, to save."""
        return {"run_id": context.run_id, "tenant": context.tenant}

    @staticmethod
    def read(data: Mapping[str, Any]) -> Ids:
        """For the SDK, to load."""
        return Ids(run_id=str(data["run_id"]), tenant=str(data["tenant"]))


class Workspace(Capability):
    """The sandbox tools as a capability: made anew for the session the SDK binds."""

    type: Literal["workspace"] = "workspace"
    make: Callable[[BaseSandboxSession], list[Tool]] = Field(exclude=True)

    def tools(self) -> list[Tool]:
        """For the SDK."""
        assert self.session is not None  # noqa: S101 - the SDK binds before it asks
        return self.make(self.session)


# ---------------------------------------------------------------------------------------------
# The three ways to begin
# ---------------------------------------------------------------------------------------------


async def start(brief: AgentBrief, sandbox: Sandbox, host: Host) -> Outcome:
    """Begin a run with the task itself. Raises BriefRefused before anything has happened."""
    work = _Work(brief, sandbox, host, Gate(host), turns_used=0)
    return await work.converse([{"role": "user", "content": brief.task_input}])


async def resume(
    brief: AgentBrief,
    sandbox: Sandbox,
    host: Host,
    *,
    state: str,
    answers: Mapping[str, Answer],
) -> Outcome:
    """Go on where calls waited, with an answer to each; or, without answers, between two turns.

    Raises RecoveryError and BriefRefused before anything has happened.
    """
    kept = open_state(brief, state)
    check_answers(kept, answers)
    if kept.step == "finished":
        raise RecoveryError(
            "state_finished",
            "The agent has finished; there is nothing to resume.",
            "Send it a message to make it go on.",
        )
    pending = {entry.call.call_id: entry for entry in kept.pending}
    gate = Gate(host, pending=pending, answers=dict(answers))
    work = _Work(brief, sandbox, host, gate, turns_used=kept.turns_used)
    if kept.conversation is not None:
        return await work.converse(kept.conversation)
    assert kept.run is not None  # noqa: S101 - open_state saw to it
    return await work.answer(kept.run, kept.pending, answers)


async def carry_on(
    brief: AgentBrief, sandbox: Sandbox, host: Host, *, state: str, message: str
) -> Outcome:
    """Send a message to an agent that has finished or stands between two turns.

    Raises RecoveryError and BriefRefused before anything has happened.
    """
    kept = open_state(brief, state)
    if kept.conversation is None:
        raise RecoveryError(
            "state_waiting",
            "Calls of the agent wait for an answer, so it cannot be sent a message.",
            "Resume it with the answers first.",
        )
    work = _Work(brief, sandbox, host, Gate(host), turns_used=kept.turns_used)
    return await work.converse([*kept.conversation, {"role": "user", "content": message}])


# ---------------------------------------------------------------------------------------------
# One stretch
# ---------------------------------------------------------------------------------------------


class _Work:
    """What one stretch of work holds. Used once."""

    def __init__(
        self, brief: AgentBrief, sandbox: Sandbox, host: Host, gate: Gate, *, turns_used: int
    ) -> None:
        check_declarations(brief.tools)
        self.brief = brief
        self.host = host
        self.gate = gate
        self.sandbox = sandbox
        self.speaker = self._speaker()
        self.model = Conversing(
            self.speaker, gate, host, turns_used=turns_used, max_turns=brief.max_turns
        )

    def _speaker(self) -> Speaker:
        brief = self.brief
        if (brief.transcript is None) == (brief.endpoint is None):
            raise BriefRefused(
                "no_model",
                "A run needs either a model endpoint or a recorded transcript.",
                "Set up an endpoint for the tenant, or name a transcript in the contract.",
            )
        if brief.endpoint is not None:
            return EndpointSpeaker(
                brief.endpoint,
                brief.model,
                max_output_tokens=brief.max_output_tokens,
                retrying=self._retrying,
            )
        try:
            transcript = load(brief.transcript or b"")
        except TranscriptRefused as refused:
            raise BriefRefused(
                "transcript",
                f"The recorded transcript cannot be read: {'; '.join(refused.problems[:5])}.",
                "Correct the file.",
            ) from refused
        if transcript.agent != brief.agent_name:
            raise BriefRefused(
                "transcript_agent",
                f"The transcript was recorded for the agent {transcript.agent!r}, and the "
                f"contract names {brief.agent_name!r}.",
                "Use one name in both.",
            )
        return PlayerSpeaker(transcript)

    async def _retrying(self, attempt: int, wait_s: float, code: str) -> None:
        try:
            await self.host.event(
                "model.retry", {"attempt": attempt, "wait_s": round(wait_s, 3), "reason": code}
            )
        except StopRun:
            raise
        except Exception as error:
            self.gate.close(Closed(error=host_failed("event"), cause=error))
            raise GateClosed("the run is stopping") from error

    async def converse(self, conversation: list[dict[str, Any]]) -> Outcome:
        """Go on from a conversation."""

        async def run(agent: SandboxAgent[Ids], config: RunConfig) -> RunResult:
            return await Runner.run(
                agent,
                cast("list[TResponseInputItem]", conversation),
                context=Ids(self.brief.run_id, self.brief.tenant),
                max_turns=None,
                run_config=config,
            )

        return await self._drive(run)

    async def answer(
        self,
        saved: dict[str, Any],
        pending: tuple[PendingCall, ...],
        answers: Mapping[str, Answer],
    ) -> Outcome:
        """Go on from waiting calls."""
        # Turns are counted by us; the number in the SDK's state would be frozen.
        saved = {**saved, "max_turns": None}
        approved = {
            entry.call.call_id: write_object(edited.arguments) if edited else entry.call.raw
            for entry in pending
            if (answer := answers[entry.call.call_id]).approved
            for edited in [answer.edited]
        }
        self.gate.new_turn(approved)

        async def run(agent: SandboxAgent[Ids], config: RunConfig) -> RunResult:
            state = await self._restored(agent, saved, answers)
            return await Runner.run(agent, state, run_config=config)

        return await self._drive(run)

    async def _restored(
        self, agent: SandboxAgent[Ids], saved: dict[str, Any], answers: Mapping[str, Answer]
    ) -> RunState[Ids, Agent[Any]]:
        """The SDK's state with the answers in it."""
        try:
            state = await RunState.from_json(
                agent, saved, context_deserializer=Ids.read, strict_context=True
            )
            waiting = {str(item.call_id): item for item in state.get_interruptions()}
            pending = self.gate.pending
            if set(waiting) != set(pending) or any(
                _written(item) != pending[call_id].call.raw for call_id, item in waiting.items()
            ):
                raise RecoveryError(
                    "call_changed",
                    "The calls that wait are not the ones that were put before people.",
                    START_AGAIN,
                )
            for call_id, item in waiting.items():
                answer = answers[call_id]
                if answer.approved:
                    state.approve(item)
                else:
                    state.reject(item, rejection_message=answer.text or NO_REASON)
        except RecoveryError:
            raise
        except Exception as error:
            raise RecoveryError(
                "state_refused",
                f"The agents SDK refuses the saved state ({type(error).__name__}).",
                START_AGAIN,
            ) from error
        return cast("RunState[Ids, Agent[Any]]", state)

    async def _drive(self, run: Callable[[SandboxAgent[Ids], RunConfig], Any]) -> Outcome:
        """Run the SDK's loop under watch, and say how it ended."""
        watcher = asyncio.create_task(self._watch())
        try:
            agent, config = self._agent()
            result = await run(agent, config)
        except (GateClosed, ModelFailed):
            return self._closed()
        except RecoveryError:
            raise
        except Exception as error:
            if self.gate.closed is None:
                self.gate.close(Closed(error=classify(error), cause=error))
            return self._closed()
        finally:
            watcher.cancel()
            await asyncio.wait({watcher})
            await self.speaker.close()
        return await self._ended(result)

    async def _watch(self) -> None:
        while self.gate.closed is None:
            await asyncio.sleep(WATCH_EVERY_S)
            await self.gate.look()

    def _agent(self) -> tuple[SandboxAgent[Ids], RunConfig]:
        session = self.sandbox.sdk_session()
        around = Surroundings(
            gate=self.gate,
            host=self.host,
            sandbox=self.sandbox,
            session=session,
            custom_tools=self.speaker.custom_tools,
            images=self.speaker.images,
        )
        brief = self.brief

        def make(bound: BaseSandboxSession) -> list[Tool]:
            return sandbox_tools(brief, around, bound)

        agent: SandboxAgent[Ids] = SandboxAgent(
            name=brief.agent_name,
            model=self.model,
            instructions=brief.instructions,
            base_instructions=BASE_INSTRUCTIONS if brief.sandboxed else TOOLS_ONLY_INSTRUCTIONS,
            default_manifest=Manifest(),
            capabilities=[Workspace(make=make)],
            tools=brokered_tools(brief, around),
        )
        config = RunConfig(
            sandbox=SandboxRunConfig(session=session),
            tracing_disabled=True,
            trace_include_sensitive_data=False,
            tool_not_found_behavior="return_error_to_model",
            tool_error_formatter=_no_such_tool,
            tool_execution=ToolExecutionConfig(
                max_function_tool_concurrency=1, pre_approval_tool_input_guardrails=True
            ),
            workflow_name="run",
        )
        return agent, config

    # -- how it ended ---------------------------------------------------------------------------

    async def _ended(self, result: RunResult) -> Outcome:
        """The loop came to a rest by itself."""
        if not result.interruptions:
            output = result.final_output if isinstance(result.final_output, str) else ""
            state = self._between("finished")
            if self.gate.closed is not None:
                return self._closed(output=output, state=state)
            return Outcome("finished", output=output, state=state)
        await self.gate.look()
        pending = self._pending(result)
        saved = result.to_state().to_json(context_serializer=Ids.written, strict_context=True)
        state = keep(
            self.brief,
            Kept(
                step="waiting",
                turns_used=self.model.turns_used,
                pending=pending,
                run=saved,
                conversation=None,
            ),
        )
        if self.gate.closed is not None:
            return self._closed(state=state, pending=pending)
        return Outcome("waiting", pending=pending, state=state)

    def _pending(self, result: RunResult) -> tuple[PendingCall, ...]:
        """The waiting calls, in the order written. Each went through the gate."""
        waiting = self.gate.waiting
        ids = [str(item.call_id) for item in result.interruptions]
        unjudged = [call_id for call_id in ids if call_id not in waiting]
        if unjudged:
            raise RuntimeError(f"calls {unjudged} wait without a verdict")
        return tuple(waiting[call_id] for call_id in self.gate.in_order(ids))

    def _closed(
        self,
        *,
        output: str = "",
        state: str | None = None,
        pending: tuple[PendingCall, ...] = (),
    ) -> Outcome:
        """The gate was closed."""
        closed = self.gate.closed or Closed()
        if state is None:
            state = self._between("between")
        if closed.stop is not None:
            return Outcome(
                "stopped",
                output=output,
                pending=pending,
                state=state,
                stop=closed.stop,
                error=closed.error,
            )
        assert closed.error is not None  # noqa: S101 - a gate is closed by a stop or an error
        if closed.cause is not None and not isinstance(closed.cause, ModelFailed):
            log.error(
                "run %s ended: %s", self.brief.run_id, closed.error.code, exc_info=closed.cause
            )
        keeps = closed.error.code.startswith("model_") or closed.error.retry_safe
        if keeps and closed.error.boundary == "control" and state is not None:
            return Outcome("failed", output=output, error=closed.error, state=state)
        error = closed.error
        if error.retry_safe and self.gate.acted_outside:
            # Without a state a new try begins before that effect, and might repeat it.
            error = replace(
                error,
                retry_safe=False,
                text=f"{error.text} A tool had already taken effect outside the sandbox.",
            )
        return Outcome("failed", output=output, error=error)

    def _between(self, step: Literal["between", "finished"]) -> str | None:
        """The conversation as a state, if the agent stands where it can be gone on from."""
        conversation = self.model.conversation
        if conversation is None:
            return None
        if step == "finished":
            conversation = [*conversation, *self.model.answered]
        elif self.model.answered:
            # The last answer was being worked on when the loop broke off.
            return None
        return keep(
            self.brief,
            Kept(
                step=step,
                turns_used=self.model.turns_used,
                pending=(),
                run=None,
                conversation=plain(cast("list[TResponseInputItem]", conversation)),
            ),
        )


def _written(item: ToolApprovalItem) -> str | None:
    """The arguments of a waiting call as the model wrote them."""
    raw = item.raw_item
    for name in ("arguments", "input"):
        value = raw.get(name) if isinstance(raw, dict) else getattr(raw, name, None)
        if isinstance(value, str):
            return value
    return None


def _no_such_tool(args: ToolErrorFormatterArgs[Any]) -> str | None:
    if args.kind != "tool_not_found":
        return None
    return f"There is no tool {args.tool_name!r}. Nothing was done."
