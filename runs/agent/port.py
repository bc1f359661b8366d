"""What the rest of the product and the agent say to each other.

Nothing here knows a framework or the agents SDK, so a web process, a Celery worker at start and a
plain test may all import it. `AgentBrief` says what to run, `Host` is what the outer runtime does
for the agent, `Outcome` is how one stretch of work ended.

One stretch of work is one call of `start`, `resume` or `carry_on`. It ends in exactly one way:

* `finished`: the agent gave its last answer; `state` lets `carry_on` give it another message.
* `waiting`: at least one call needs a person; `state` and `pending` are the checkpoint.
* `stopped`: the host asked for it, or the turns are spent (then `error` says so). `state` is there
  when the agent stood between two turns, and `resume` without answers goes on from it; with
  `pending`, calls wait in it.
* `failed`: `error` names whose failure it is and whether a retry is safe. `state` is there when
  only the model failed: the agent then stands between two turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

ToolKind = Literal[
    "shell", "stdin", "patch", "view", "http", "sql", "python", "question", "network"
]
"""What a call does: the first four kinds touch the sandbox, the others leave it."""

SANDBOX_KINDS: frozenset[ToolKind] = frozenset({"shell", "stdin", "patch", "view"})
OUTER_KINDS: frozenset[ToolKind] = frozenset({"http", "sql", "python"})
"""Declared in the contract and carried out by the outer runtime at once."""
BROKERED_KINDS: frozenset[ToolKind] = OUTER_KINDS | {"question", "network"}

BUILTIN_TOOLS: Mapping[str, ToolKind] = {
    "exec_command": "shell",
    "write_stdin": "stdin",
    "apply_patch": "patch",
    "view_image": "view",
}
"""The names of the built-in tools as the model sees them. A declaration may not take one of these
names for another kind."""

ASK_PERSON = "ask_person"
REQUEST_NETWORK = "request_network"

Effect = Literal["allow", "ask", "deny"]
Boundary = Literal["control", "execution", "recovery"]
StopReason = Literal["cancelled", "timed_out", "budget", "lease_lost"]
Status = Literal["finished", "waiting", "stopped", "failed"]
Wire = Literal["responses", "chat_completions"]


@dataclass(frozen=True)
class ToolDeclaration:
    """One tool the agent may use. A tool that is not declared does not exist for the model.

    `parameters` is a JSON schema of type object; it is used by the brokered kinds only, the
    built-in ones bring their own.
    """

    name: str
    kind: ToolKind
    description: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    outward: bool = False


@dataclass(frozen=True)
class ModelEndpoint:
    """Where the model answers. `api_key` never reaches the saved state, an event or the sandbox."""

    base_url: str
    api_key: str = field(repr=False)
    timeout_s: float = 120.0
    wire: Wire = "responses"
    max_retries: int = 4
    """How often one model call is tried again after 429, 5xx or a broken connection."""
    max_retry_wait_s: float = 30.0
    """A server's Retry-After longer than this ends the run as safe to retry, it is not slept."""


@dataclass(frozen=True)
class AgentBrief:
    """All that one run's agent is made of. Exactly one of `transcript` and `endpoint` is given."""

    run_id: str
    tenant: str
    agent_name: str
    agent_version: str
    prompt_version: str
    model: str
    instructions: str
    task_input: str
    tools: tuple[ToolDeclaration, ...]
    max_turns: int
    max_output_tokens: int | None = None
    sandboxed: bool = True
    """False: no tool of it works in a workspace, and it is told so."""
    transcript: bytes | None = field(default=None, repr=False)
    endpoint: ModelEndpoint | None = None


@dataclass(frozen=True)
class ProposedCall:
    """A tool call the model asks for, before anything happened.

    `arguments` are the ones that will be executed, normalised: defaults filled in, a patch broken
    into its files, a write to a process carrying that process' command. `raw` is what the model
    wrote. By kind:

    * shell: `cmd`, and the other arguments of the tool (`workdir`, `tty`, …)
    * stdin: `session_id`, `chars`, `command` (the command of the process written to)
    * patch: `files`: list of `{action, path, move_to}`, and `patch` (its text)
    * view: `path`
    * http, sql, python: the declared parameters
    * question: `question`, `choices`
    * network: `host`, `port`, `purpose`, `expected_response`, `minutes`, `methods`, `path`,
      `wait_seconds`
    """

    call_id: str
    tool: str
    kind: ToolKind
    arguments: Mapping[str, Any]
    raw: str


@dataclass(frozen=True)
class Verdict:
    """What policy says about a call. `reason` of a denial is the text the model gets."""

    effect: Effect
    rules: tuple[str, ...]
    policy_version: int
    reason: str


@dataclass(frozen=True)
class Begun:
    """May this call be executed now? When not, `result` is what the model is told instead."""

    proceed: bool
    result: str | None = None


@dataclass(frozen=True)
class Brokered:
    """What came of a call that the outer runtime carried out. `text` is what the model is told;
    `ok` is false where nothing was done, or nothing came of it."""

    text: str
    ok: bool = True


@dataclass(frozen=True)
class Edited:
    """Arguments that a person put in the place of the model's. `words` tell the model how."""

    arguments: Mapping[str, Any]
    words: str


@dataclass(frozen=True)
class Answer:
    """A person's answer to one pending call.

    To a question: `approved` and `text`, the chosen answer. To any other call: `approved`, or not
    and `text`, the words the model is told. With `edited`, exactly those arguments were approved:
    the model's own are never executed.
    """

    approved: bool
    text: str = ""
    edited: Edited | None = None


@dataclass(frozen=True)
class UsageDelta:
    """What one model response cost, in addition to all before."""

    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    model: str


@dataclass(frozen=True)
class PendingCall:
    """A call that waits for a person, with the verdict that made it wait."""

    call: ProposedCall
    verdict: Verdict


@dataclass(frozen=True)
class RunError:
    """Whose failure it was. `text` is safe to show: no payload, no credential.

    `retry_safe`: the same again, from `Outcome.state` or else from the last checkpoint, can do no
    harm and may well succeed.
    """

    boundary: Boundary
    code: str
    text: str
    retry_safe: bool


@dataclass(frozen=True)
class Outcome:
    """How one stretch of work ended. `state` is JSON text and must be stored as a secret."""

    status: Status
    output: str = ""
    pending: tuple[PendingCall, ...] = ()
    state: str | None = field(default=None, repr=False)
    error: RunError | None = None
    stop: StopReason | None = None


class StopRun(Exception):
    """Raised by a `Host` method to end the stretch of work as `stopped`."""

    def __init__(self, reason: StopReason, text: str = "") -> None:
        super().__init__(text or reason)
        self.reason: StopReason = reason
        self.text = text


class RecoveryError(Exception):
    """A saved state cannot be trusted or used. `code` names why, `remedy` what to do next."""

    boundary: Boundary = "recovery"

    def __init__(self, code: str, text: str, remedy: str) -> None:
        super().__init__(f"{text} {remedy}")
        self.code = code
        self.text = text
        self.remedy = remedy


class BriefRefused(Exception):
    """The brief cannot make an agent: a bad transcript, a tool schema that is none, no model."""

    boundary: Boundary = "control"

    def __init__(self, code: str, text: str, remedy: str) -> None:
        super().__init__(f"{text} {remedy}")
        self.code = code
        self.text = text
        self.remedy = remedy


class Host(Protocol):
    """The outer runtime. Every method may raise `StopRun`; any other exception fails the run
    closed, with the boundary control."""

    async def judge(self, call: ProposedCall) -> Verdict:
        """Ask policy about one call. Called for every call before it happens, and possibly more
        than once for the same call: it must have no effect but its record.

        Not called again for a call that a person answered: `begin` is where an approval meets the
        policy of the day. *ask* for a write to a running process denies it, since the process
        would be gone when the answer comes; *allow* for a question asks it. A network request
        never waits: filing it changes nothing, so the host answers *allow* or *deny*, and a
        person is asked about the rule while the agent goes on.
        """

    async def begin(self, call: ProposedCall) -> Begun:
        """Called immediately before execution, once per execution, with the arguments that will
        be executed. For an approved call it uses the approval up; it must refuse arguments other
        than those approved, and a call that has begun before."""

    async def finished(
        self, call: ProposedCall, *, ok: bool, output: str, exit_code: int | None, duration_ms: int
    ) -> None:
        """Called after a call that `begin` let through, with what the model will be told."""

    async def broker(self, call: ProposedCall) -> Brokered:
        """Execute a tool of `OUTER_KINDS`, or a `network` one, in the outer runtime.

        A stop waits for the first, so they must have time-outs of their own. A `network` tool
        may be cancelled at any moment, and must then leave what it has done as it is.
        """

    async def event(self, kind: str, facts: Mapping[str, Any], payload: str | None = None) -> None:
        """Record one line. `facts` hold no payload; `payload` is redacted by the host."""

    async def charge(self, usage: UsageDelta) -> None:
        """Count one model response. Raises `StopRun("budget")` when the budget is spent."""

    async def stop_asked(self) -> StopReason | None:
        """Must the agent stop? Asked between turns and calls, and by a watcher during long ones."""
