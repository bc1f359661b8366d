"""The one door through which every tool call of an agent passes.

The rule of the door, for each call and in the order the model wrote them:

1. Arguments that cannot be read with certainty are refused; the model is told why.
2. `Host.judge` decides: *deny* gives the model the reason, *ask* leaves the call undone and ends
   the stretch of work after the turn, *allow* lets it pass.
3. `Host.begin` is awaited immediately before execution, with the arguments that will be executed,
   also for a call a person approved. It may give the model a recorded result instead.
4. After execution `Host.finished` gets what the model is told.

Sibling calls of one turn are judged each on its own: one that policy allows runs although another
one waits for a person, and one that needs a person never runs because a sibling was allowed.
No two calls run at the same time.

Tools never raise. What must end the run (a stop, a lost sandbox, an error of the host) closes the
gate: from then on nothing is executed any more, and the next time the model would be asked the
run ends. So the conversation always stays complete, and can be continued when that makes sense.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from runs.agent.arguments import write_object
from runs.agent.port import (
    OUTER_KINDS,
    Answer,
    Begun,
    Edited,
    Host,
    PendingCall,
    ProposedCall,
    RunError,
    StopReason,
    StopRun,
    Verdict,
)

NOT_EXECUTED = "This call was not executed: the run is stopping."
CUT_SHORT = (
    "This call was cut short because the run is stopping. What it had done by then is not known."
)
STDIN_CANNOT_WAIT = (
    "Writing this to a running process needs a person's approval, and the process would not "
    "survive the wait. Nothing was written. Run a command that has its input with it instead."
)
NO_REASON = "A person refused this call and gave no reason."


@dataclass(frozen=True)
class Ran:
    """What came out of an execution. `told` goes to the model, `text` is the same as text."""

    told: Any
    text: str
    ok: bool = True
    exit_code: int | None = None


@dataclass(frozen=True)
class Closed:
    """Why the gate was closed: a stop that was asked for, or an error."""

    stop: StopReason | None = None
    error: RunError | None = None
    cause: BaseException | None = None


T = TypeVar("T")
Action = Callable[[], Awaitable[Ran]]
Explain = Callable[[BaseException], Awaitable["Ran | RunError"]]
"""Turns an exception of an execution into something to tell the model, or into the run's end."""


@dataclass
class _Known:
    """A verdict, and the very call it was given on."""

    call: ProposedCall
    verdict: Verdict


@dataclass
class Gate:
    """The door of one stretch of work. Lives in one process and one event loop."""

    host: Host
    pending: Mapping[str, PendingCall] = field(default_factory=dict)
    answers: Mapping[str, Answer] = field(default_factory=dict)
    closed: Closed | None = None
    waiting: dict[str, PendingCall] = field(default_factory=dict)
    acted_outside: bool = False
    """Did a call that the outer runtime carries out begin in this stretch of work?"""
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    _verdicts: dict[str, _Known] = field(default_factory=dict)
    _turn: dict[str, str] = field(default_factory=dict)
    _settled: dict[str, asyncio.Event] = field(default_factory=dict)

    # -- the turn -----------------------------------------------------------------------------

    def new_turn(self, calls: Mapping[str, str]) -> None:
        """These calls, with their arguments as written, will come here, and in this order."""
        self._turn = dict(calls)
        self._settled = {call_id: asyncio.Event() for call_id in calls}

    def edited(self, call_id: str) -> Edited | None:
        """What a person put in the place of the arguments of a call that waited."""
        answer = self.answers.get(call_id)
        return answer.edited if answer is not None else None

    def raw_of(self, call_id: str) -> str | None:
        """The arguments of a call of this turn as the model wrote them."""
        return self._turn.get(call_id)

    def in_order(self, call_ids: Collection[str]) -> list[str]:
        """These calls of the turn in the order written."""
        return [call_id for call_id in self._turn if call_id in call_ids]

    def settle(self, call_id: str) -> None:
        """Nothing more will happen for this call in this turn: the next one may begin."""
        if call_id in self._settled:
            self._settled[call_id].set()

    async def _my_turn(self, call_id: str) -> None:
        """Wait for the earlier calls of the turn, so that calls happen in the order written."""
        for earlier in self._turn:
            if earlier == call_id:
                return
            await self._settled[earlier].wait()

    # -- stopping -----------------------------------------------------------------------------

    def close(self, closed: Closed) -> None:
        """End the run as soon as possible. The first reason stays."""
        if self.closed is None:
            self.closed = closed
        self._stopping.set()

    async def look(self) -> None:
        """Ask the host whether to stop."""
        try:
            reason = await self.host.stop_asked()
        except StopRun as stop:
            reason = stop.reason
        except Exception as error:
            self.close(Closed(error=host_failed("stop_asked"), cause=error))
            return
        if reason is not None:
            self.close(Closed(stop=reason))

    async def or_stop(self, work: Awaitable[T]) -> T:
        """Await `work`, but cancel it and raise `Interrupted` when the gate closes meanwhile."""
        task = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Interrupted
            if task.cancelled():
                raise RuntimeError("what was awaited was cancelled from within")
            return task.result()
        finally:
            stopping.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    # -- one call -----------------------------------------------------------------------------

    async def judge(self, call: ProposedCall) -> Verdict:
        """Policy's verdict. Whatever goes wrong while asking denies the call and ends the run."""
        known = self._verdicts.get(call.call_id)
        if known is not None and known.call == call:
            return known.verdict
        if self.closed is None:
            await self.look()
        if self.closed is not None:
            return Verdict("deny", (), 0, NOT_EXECUTED)
        try:
            verdict = await self.host.judge(call)
        except StopRun as stop:
            self.close(Closed(stop=stop.reason))
            return Verdict("deny", (), 0, NOT_EXECUTED)
        except Exception as error:
            self.close(Closed(error=host_failed("judge"), cause=error))
            return Verdict("deny", (), 0, NOT_EXECUTED)
        if call.kind == "question" and verdict.effect == "allow":
            # There is nothing to execute without a person: an allowed question is asked.
            verdict = replace(verdict, effect="ask")
        if call.kind == "stdin" and verdict.effect == "ask":
            # The process would be gone by the time a person has answered.
            verdict = replace(verdict, effect="deny", reason=STDIN_CANNOT_WAIT)
        self._verdicts[call.call_id] = _Known(call, verdict)
        return verdict

    async def needs_person(self, call: ProposedCall) -> bool:
        """Must this call wait? Remembers it as waiting when it must."""
        if (await self.judge(call)).effect != "ask":
            return False
        self.waiting[call.call_id] = PendingCall(call, self._verdicts[call.call_id].verdict)
        self.settle(call.call_id)
        return True

    async def execute(self, call: ProposedCall, action: Action, explain: Explain) -> Any:
        """Let the call pass or not; what the model is told about it. Never raises an error."""
        try:
            await self._my_turn(call.call_id)
            async with self._one_at_a_time:
                return await self._pass(call, action, explain)
        finally:
            self.settle(call.call_id)

    async def _pass(self, call: ProposedCall, action: Action, explain: Explain) -> Any:
        refusal = await self._refusal(call)
        if refusal is not None:
            return refusal
        await self.look()
        if self.closed is not None:
            return NOT_EXECUTED
        begun = await self._begin(call)
        if begun is None:
            return NOT_EXECUTED
        if not begun.proceed:
            return begun.result if begun.result is not None else NOT_EXECUTED
        outside = call.kind in OUTER_KINDS
        self.acted_outside = self.acted_outside or outside
        started = time.monotonic()
        # A request of the outer runtime is short and bounded. Cut off in the middle, nobody would
        # know whether it took effect, so a stop waits for it.
        work = action() if outside else self.or_stop(action())
        ran = _told(await self._run(work, explain), self.edited(call.call_id))
        duration_ms = round((time.monotonic() - started) * 1000)
        try:
            await self.host.finished(
                call,
                ok=ran.ok,
                output=ran.text,
                exit_code=ran.exit_code,
                duration_ms=duration_ms,
            )
        except StopRun as stop:
            self.close(Closed(stop=stop.reason))
        except Exception as error:
            self.close(Closed(error=host_failed("finished"), cause=error))
        return ran.told

    async def _refusal(self, call: ProposedCall) -> str | None:
        """Why the call may not even begin, or None."""
        pending = self.pending.get(call.call_id)
        if pending is not None:
            answer = self.answers.get(call.call_id)
            if answer is None or not answer.approved:
                return (answer.text if answer is not None else "") or NO_REASON
            if _approved(pending.call, answer.edited) != call:
                self.close(
                    Closed(
                        error=RunError(
                            "recovery",
                            "call_changed",
                            "A call is not the one that was approved. Nothing was executed.",
                            retry_safe=False,
                        )
                    )
                )
                return NOT_EXECUTED
            return None
        verdict = await self.judge(call)
        if verdict.effect == "allow":
            return None
        if verdict.effect == "deny":
            return verdict.reason or "Policy refused this call."
        # A call that needs a person only comes this far when it was let through by mistake.
        return "This call needs a person's approval and has none. It was not executed."

    async def _begin(self, call: ProposedCall) -> Begun | None:
        try:
            return await self.host.begin(call)
        except StopRun as stop:
            self.close(Closed(stop=stop.reason))
        except Exception as error:
            self.close(Closed(error=host_failed("begin"), cause=error))
        return None

    async def _run(self, work: Awaitable[Ran], explain: Explain) -> Ran:
        try:
            return await work
        except Interrupted:
            return Ran(told=CUT_SHORT, text=CUT_SHORT, ok=False)
        except StopRun as stop:
            self.close(Closed(stop=stop.reason))
            return Ran(told=CUT_SHORT, text=CUT_SHORT, ok=False)
        except Exception as error:
            explained = await explain(error)
            if isinstance(explained, Ran):
                return explained
            self.close(Closed(error=explained, cause=error))
            return Ran(told=explained.text, text=explained.text, ok=False)


def _approved(proposed: ProposedCall, edited: Edited | None) -> ProposedCall:
    """The call that people approved: the model's, or with the arguments a person gave it."""
    if edited is None:
        return proposed
    return replace(proposed, arguments=dict(edited.arguments), raw=write_object(edited.arguments))


def _told(ran: Ran, edited: Edited | None) -> Ran:
    """What came of a call, after the words that it was not the one the model wrote."""
    if edited is None or not isinstance(ran.told, str):
        return ran
    return replace(ran, told=f"{edited.words}\n\n{ran.told}", text=f"{edited.words}\n\n{ran.text}")


class Interrupted(Exception):
    """The gate closed while something was awaited; that something was cancelled."""


def host_failed(method: str) -> RunError:
    """The outer runtime itself failed: nothing may go on."""
    return RunError(
        "control",
        f"host_{method}_failed",
        f"The portal failed in its step '{method}', so the run was ended before anything else "
        "could happen. The server log has the cause.",
        retry_safe=method in ("judge", "stop_asked"),
    )
