"""Parts for tests of the agent: a host that decides by a function, a sandbox in memory."""

from __future__ import annotations

import io
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agents.sandbox import Manifest
from agents.sandbox.errors import PtySessionNotFoundError, WorkspaceReadNotFoundError
from agents.sandbox.session import BaseSandboxSession, SandboxSessionState
from agents.sandbox.session.pty_types import PtyExecUpdate
from agents.sandbox.snapshot import NoopSnapshot
from agents.sandbox.types import ExecResult as SdkExecResult

from runs.agent.port import (
    AgentBrief,
    Answer,
    Begun,
    Brokered,
    ModelEndpoint,
    ProposedCall,
    StopReason,
    StopRun,
    ToolDeclaration,
    UsageDelta,
    Verdict,
)
from runs.sandbox import Limits

SHELL = ToolDeclaration("exec_command", "shell", "Run a command.")
STDIN = ToolDeclaration("write_stdin", "stdin", "Write to a running process.")
PATCH = ToolDeclaration("apply_patch", "patch", "Change files.")
VIEW = ToolDeclaration("view_image", "view", "Look at an image.")
ASK = ToolDeclaration("ask_person", "question", "Ask a person.")
NOTIFY = ToolDeclaration(
    "notify_team",
    "http",
    "Send a message to the team.",
    {
        "type": "object",
        "properties": {"text": {"type": "string"}, "urgent": {"type": "boolean"}},
        "required": ["text"],
        "additionalProperties": False,
    },
    outward=True,
)
TOOLS = (SHELL, STDIN, PATCH, VIEW, ASK, NOTIFY)

Decide = Callable[[ProposedCall], str]


def ask_outward(call: ProposedCall) -> str:
    """The usual policy: inside the sandbox all is allowed, everything else needs a person."""
    return "ask" if call.kind in ("http", "question") else "allow"


@dataclass
class RecordingHost:
    """A host that writes down what it was told, and keeps approvals as the portal does."""

    decide: Decide = ask_outward
    broker_answer: str | Callable[[ProposedCall], Awaitable[str]] = "delivered"
    approvals: dict[str, ProposedCall] = field(default_factory=dict)
    """What people approved, by call id; used up by `begin`."""
    used: dict[str, str | None] = field(default_factory=dict)
    log: list[tuple[str, str]] = field(default_factory=list)
    judged: list[ProposedCall] = field(default_factory=list)
    begun: list[ProposedCall] = field(default_factory=list)
    done: list[tuple[ProposedCall, bool, str, int | None]] = field(default_factory=list)
    brokered: list[ProposedCall] = field(default_factory=list)
    events: list[tuple[str, dict[str, Any], str | None]] = field(default_factory=list)
    charges: list[UsageDelta] = field(default_factory=list)
    stop: StopReason | None = None
    budget: int | None = None

    async def judge(self, call: ProposedCall) -> Verdict:
        self.judged.append(call)
        self.log.append(("judge", call.call_id))
        effect = self.decide(call)
        assert effect in ("allow", "ask", "deny")
        return Verdict(effect, ("a-rule",), 7, f"{effect}: {call.tool}")  # type: ignore[arg-type]

    async def begin(self, call: ProposedCall) -> Begun:
        self.log.append(("begin", call.call_id))
        if call.call_id in self.used:
            return Begun(False, self.used[call.call_id] or "This call has begun before.")
        if self.decide(call) == "ask":
            approved = self.approvals.get(call.call_id)
            if approved is None or approved.arguments != call.arguments:
                return Begun(False, "No approval covers this call.")
        self.used[call.call_id] = None
        self.begun.append(call)
        return Begun(True)

    async def finished(
        self, call: ProposedCall, *, ok: bool, output: str, exit_code: int | None, duration_ms: int
    ) -> None:
        self.log.append(("finished", call.call_id))
        self.used[call.call_id] = output
        self.done.append((call, ok, output, exit_code))

    async def broker(self, call: ProposedCall) -> Brokered:
        self.log.append(("broker", call.call_id))
        self.brokered.append(call)
        if callable(self.broker_answer):
            return Brokered(await self.broker_answer(call))
        return Brokered(self.broker_answer)

    async def event(self, kind: str, facts: Mapping[str, Any], payload: str | None = None) -> None:
        self.events.append((kind, dict(facts), payload))

    async def charge(self, usage: UsageDelta) -> None:
        self.charges.append(usage)
        spent = sum(charge.input_tokens + charge.output_tokens for charge in self.charges)
        if self.budget is not None and spent > self.budget:
            raise StopRun("budget")

    async def stop_asked(self) -> StopReason | None:
        return self.stop

    def approve(self, *calls: ProposedCall) -> None:
        self.approvals.update({call.call_id: call for call in calls})

    def ran(self) -> list[str]:
        """Ids of the calls that were executed, in order."""
        return [call.call_id for call in self.begun]


Execute = Callable[[str], Awaitable[tuple[int, bytes]]]


async def echo(command: str) -> tuple[int, bytes]:
    """A shell that only says what it was told to run."""
    return 0, f"ran: {command}\n".encode()


class MemorySession(BaseSandboxSession):
    """The SDK's session over a dict of files and a function that runs commands."""

    def __init__(self, execute: Execute, *, terminals: bool) -> None:
        self.state = SandboxSessionState(
            type="memory", snapshot=NoopSnapshot(id="memory"), manifest=Manifest(root="/workspace")
        )
        self.execute = execute
        self.terminals = terminals
        self.files: dict[str, bytes] = {}
        self.commands: list[str] = []
        self.typed: list[tuple[int, str]] = []
        self.open: set[int] = set()

    def supports_pty(self) -> bool:
        return self.terminals

    async def running(self) -> bool:
        return True

    async def start(self) -> None:
        self.state.workspace_root_ready = True

    async def exec(self, *command: str | Path, **_: Any) -> SdkExecResult:
        self.commands.append(str(command[0]))
        code, output = await self.execute(str(command[0]))
        return SdkExecResult(stdout=output, stderr=b"", exit_code=code)

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> Any:
        raise NotImplementedError

    async def pty_exec_start(
        self, *command: str | Path, tty: bool = False, **_: Any
    ) -> PtyExecUpdate:
        self.commands.append(str(command[0]))
        code, output = await self.execute(str(command[0]))
        if not tty:
            return PtyExecUpdate(
                process_id=None, output=output, exit_code=code, original_token_count=None
            )
        process = 4000 + len(self.open)
        self.open.add(process)
        return PtyExecUpdate(
            process_id=process, output=output, exit_code=None, original_token_count=None
        )

    async def pty_write_stdin(self, *, session_id: int, chars: str, **_: Any) -> PtyExecUpdate:
        if session_id not in self.open:
            raise PtySessionNotFoundError(session_id=session_id)
        self.typed.append((session_id, chars))
        return PtyExecUpdate(
            process_id=session_id, output=b"typed", exit_code=None, original_token_count=None
        )

    def _key(self, path: Path | str) -> str:
        return self.normalize_path(path).as_posix()

    async def read(self, path: Path, *, user: Any = None) -> io.IOBase:
        if self._key(path) not in self.files:
            raise WorkspaceReadNotFoundError(path=Path(path))
        return io.BytesIO(self.files[self._key(path)])

    async def write(self, path: Path, data: io.IOBase, *, user: Any = None) -> None:
        self.files[self._key(path)] = data.read()

    async def _write_new_file(self, path: Path, data: io.IOBase, *, user: Any = None) -> None:
        if self._key(path) in self.files:
            raise FileExistsError(path)
        self.files[self._key(path)] = data.read()

    async def mkdir(self, path: Path | str, *, parents: bool = False, user: Any = None) -> None:
        return

    async def rm(self, path: Path | str, *, recursive: bool = False, user: Any = None) -> None:
        del self.files[self._key(path)]

    async def same_file(self, left: Path | str, right: Path | str, **_: Any) -> bool:
        return self._key(left) == self._key(right)

    async def persist_workspace(self) -> io.IOBase:
        raise NotImplementedError

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        raise NotImplementedError


class MemorySandbox:
    """As much of a sandbox as the agent touches."""

    ref = "memory"
    provider = "memory"
    image_digest = "sha256:none"
    limits = Limits()

    def __init__(self, execute: Execute = echo, *, terminals: bool = True) -> None:
        self.session = MemorySession(execute, terminals=terminals)
        self.stands = True

    def sdk_session(self) -> Any:
        return self.session

    async def alive(self) -> bool:
        return self.stands


def sandbox(execute: Execute = echo, *, terminals: bool = True) -> Any:
    """A sandbox in memory, typed as loosely as the tests need it."""
    return MemorySandbox(execute, terminals=terminals)


def brief(
    *turns: list[dict[str, Any]],
    tools: tuple[ToolDeclaration, ...] = TOOLS,
    endpoint: ModelEndpoint | None = None,
    **changes: Any,
) -> AgentBrief:
    """A run driven by a transcript of these turns, or by an endpoint."""
    made = AgentBrief(
        run_id="run-1",
        tenant="acme",
        agent_name="repairer",
        agent_version="1",
        prompt_version="1",
        model="a-model",
        instructions="Repair it.",
        task_input="The test fails. Repair it.",
        tools=tools,
        max_turns=20,
        transcript=None if endpoint is not None else recorded(*turns),
        endpoint=endpoint,
    )
    return replace(made, **changes)


def recorded(*turns: list[dict[str, Any]], **more: Any) -> bytes:
    """A transcript file of these turns, each a list of steps."""
    return json.dumps(
        {
            "format": "imprimatur-transcript",
            "version": 1,
            "label": "A test",
            "model": "recorded-model",
            "agent": "repairer",
            "turns": [{"steps": steps} for steps in turns],
            **more,
        }
    ).encode()


def calls(*items: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A step of calls."""
    usage = {"input_tokens": 100, "cached_tokens": 10, "output_tokens": 5}
    return {"output": list(items), "usage": usage, **more}


def call(identifier: str, tool: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "call", "id": identifier, "tool": tool, "arguments": arguments}


def raw(identifier: str, tool: str, text: str) -> dict[str, Any]:
    return {"type": "call", "id": identifier, "tool": tool, "raw": text}


def say(text: str, **more: Any) -> dict[str, Any]:
    """A step that only speaks."""
    return calls({"type": "message", "text": text}, **more)


def yes(text: str = "") -> Answer:
    return Answer(approved=True, text=text)


def no(text: str) -> Answer:
    return Answer(approved=False, text=text)
