"""The tools of an agent as the SDK wants them, each behind the gate.

A tool here is made of three things: how its arguments are read into a `ProposedCall`, what it
does, and the schema the model sees. `_Guard` puts the gate between the second and everything else;
no tool reaches the sandbox or the host in any other way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from agents import CustomTool, FunctionTool, Tool, ToolGuardrailFunctionOutput, ToolInputGuardrail
from agents.editor import ApplyPatchOperation
from agents.run_context import RunContextWrapper
from agents.sandbox.apply_patch import WorkspaceEditor
from agents.sandbox.capabilities.tools import (
    ExecCommandTool,
    SandboxApplyPatchTool,
    ViewImageTool,
    WriteStdinTool,
)
from agents.sandbox.errors import ApplyPatchError, InvalidManifestPathError
from agents.sandbox.errors import SandboxError as SdkSandboxError
from agents.sandbox.session import BaseSandboxSession
from agents.tool import ToolOutputImage
from agents.tool_context import ToolContext
from agents.tool_guardrails import ToolInputGuardrailData
from pydantic import BaseModel, ValidationError

from runs.agent.arguments import (
    ArgumentsRefused,
    SchemaRefused,
    can_be_strict,
    checker,
    closed,
    read_object,
    reader,
    write_object,
)
from runs.agent.failures import described, sandbox_failure
from runs.agent.gate import Gate, Ran
from runs.agent.port import (
    BROKERED_KINDS,
    BUILTIN_TOOLS,
    OUTER_KINDS,
    AgentBrief,
    BriefRefused,
    Host,
    ProposedCall,
    RunError,
    ToolDeclaration,
)
from runs.egress.asking import DESCRIPTION, SCHEMA, AskRefused, read_ask
from runs.sandbox import Sandbox, SandboxOperationFailed

WORKDIR = "repo"
EXEC_WAIT_MS = 10_000
EXEC_MAX_WAIT_MS = 600_000
STDIN_WAIT_MS = 250
OUTPUT_TOKENS = 10_000
MAX_OUTPUT_TOKENS = 25_000
MAX_BROKERED_CHARS = 200_000
MAX_IMAGE_CHARS = 3_000_000
MAX_CHOICES = 20

_EXITED = re.compile(r"^Process exited with code (-?\d+)$", re.MULTILINE)
_RUNNING = re.compile(r"^Process running with session ID (\d+)$", re.MULTILINE)
_PATCH_ACTIONS = {"create_file": "add", "update_file": "update", "delete_file": "delete"}

Read: TypeAlias = Callable[[str], "tuple[dict[str, Any], str]"]
"""Raw text to the arguments that will be executed, and the text the tool itself is given."""

Do: TypeAlias = Callable[[ToolContext[Any], ProposedCall, str], Awaitable[Ran]]

QUESTION_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "question": {"type": "string", "minLength": 1, "maxLength": 4000},
        "choices": {
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": 500},
            "minItems": 2,
            "maxItems": MAX_CHOICES,
        },
    },
    "required": ["question", "choices"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Surroundings:
    """What tools work with."""

    gate: Gate
    host: Host
    sandbox: Sandbox
    session: BaseSandboxSession
    custom_tools: bool
    """Does the model take tools whose argument is plain text? (Only the Responses wire does.)"""
    images: bool
    """Can the model be given an image?"""


def sandbox_tools(
    brief: AgentBrief, around: Surroundings, session: BaseSandboxSession
) -> list[Tool]:
    """The declared tools that work in the sandbox, in the order declared."""
    processes: dict[int, str] = {}
    makers: dict[str, Callable[[ToolDeclaration], Tool | None]] = {
        "shell": lambda tool: _exec_command(tool, around, session, processes),
        "stdin": lambda tool: _write_stdin(tool, around, session, processes),
        "patch": lambda tool: _apply_patch(tool, around, session),
        "view": lambda tool: _view_image(tool, around, session),
    }
    made = [makers[tool.kind](tool) for tool in brief.tools if tool.kind in makers]
    return [tool for tool in made if tool is not None]


def brokered_tools(brief: AgentBrief, around: Surroundings) -> list[Tool]:
    """The declared tools that the outer runtime or a person carries out."""
    made: list[Tool] = []
    for tool in brief.tools:
        if tool.kind in OUTER_KINDS:
            made.append(_outer(tool, around))
        elif tool.kind == "question":
            made.append(_question(tool, around))
        elif tool.kind == "network":
            made.append(_network(tool, around))
    return made


def check_declarations(tools: Sequence[ToolDeclaration]) -> None:
    """Raise `BriefRefused` when the declarations cannot be the tools of one agent."""
    seen: set[str] = set()
    for tool in tools:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", tool.name):
            raise BriefRefused(
                "tool_name",
                f"The tool name {tool.name!r} cannot be used.",
                "Use letters, digits, '_' and '-', at most 64 of them, beginning with a letter.",
            )
        if tool.name in seen:
            raise BriefRefused(
                "tool_twice", f"The tool {tool.name!r} is declared twice.", "Name it once."
            )
        seen.add(tool.name)
        builtin = BUILTIN_TOOLS.get(tool.name)
        if (builtin or tool.kind) != tool.kind or (
            tool.kind in BUILTIN_TOOLS.values() and builtin is None
        ):
            raise BriefRefused(
                "tool_kind",
                f"The tool {tool.name!r} cannot be of kind {tool.kind!r}.",
                "The built-in tools are " + ", ".join(sorted(BUILTIN_TOOLS)) + ".",
            )
        if tool.kind in OUTER_KINDS:
            try:
                closed(tool.parameters)
            except SchemaRefused as refused:
                raise BriefRefused(
                    "tool_parameters",
                    f"The tool {tool.name!r}: {refused}.",
                    "Correct the parameters in the contract.",
                ) from refused


# ---------------------------------------------------------------------------------------------
# The guard
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Guard:
    """One tool's way through the gate."""

    declaration: ToolDeclaration
    around: Surroundings
    read: Read
    do: Do

    def propose(self, raw: str, call_id: str) -> tuple[ProposedCall, str]:
        """Raises ArgumentsRefused."""
        arguments, text = self.read(raw)
        declaration = self.declaration
        return ProposedCall(call_id, declaration.name, declaration.kind, arguments, raw), text

    async def needs_person(self, raw: str, call_id: str) -> bool:
        """For the SDK, before it executes. Unreadable arguments are refused at execution."""
        try:
            call, _ = self.propose(raw, call_id)
        except ArgumentsRefused:
            return False
        return await self.around.gate.needs_person(call)

    async def invoke(self, context: ToolContext[Any], raw: str) -> Any:
        """For the SDK, to execute: what the model wrote, or a person in its place."""
        call_id = context.tool_call_id
        edited = self.around.gate.edited(call_id)
        if edited is not None:
            raw = write_object(edited.arguments)
        try:
            call, text = self.propose(raw, call_id)
        except ArgumentsRefused as refused:
            return self.refuse(call_id, refused)
        return await self.around.gate.execute(
            call, lambda: self.do(context, call, text), self.explain
        )

    def refuse(self, call_id: str, refused: ArgumentsRefused) -> str:
        self.around.gate.settle(call_id)
        return str(refused)

    async def explain(self, error: BaseException) -> Ran | RunError:
        """A sandbox that lives tells the model what failed; one that is gone ends the run."""
        if self.declaration.kind in BROKERED_KINDS:
            return RunError(
                "control",
                "host_broker_failed",
                f"The portal failed while it carried out the tool {self.declaration.name!r}. "
                "Whether it took effect is not known.",
                retry_safe=False,
            )
        return await sandbox_failure(self.declaration.name, error, self.around.sandbox)

    def function_tool(
        self, schema: Mapping[str, Any], *, strict: bool = False, otherwise: str = ""
    ) -> FunctionTool:
        """The tool for the SDK. `otherwise` describes it where the declaration does not."""

        async def needs_approval(
            _: RunContextWrapper[Any], __: dict[str, Any], call_id: str
        ) -> bool:
            raw = self.around.gate.raw_of(call_id)
            return True if raw is None else await self.needs_person(raw, call_id)

        async def readable(data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
            # The SDK asks a person about arguments that are not JSON; the model is to be told.
            try:
                self.propose(data.context.tool_arguments, data.context.tool_call_id)
            except ArgumentsRefused as refused:
                text = self.refuse(data.context.tool_call_id, refused)
                return ToolGuardrailFunctionOutput.reject_content(text)
            return ToolGuardrailFunctionOutput.allow()

        return FunctionTool(
            name=self.declaration.name,
            description=self.declaration.description or otherwise,
            params_json_schema=dict(schema),
            on_invoke_tool=self.invoke,
            strict_json_schema=strict,
            needs_approval=needs_approval,
            tool_input_guardrails=[ToolInputGuardrail(readable, name="readable_arguments")],
        )


def _checked(model: type[BaseModel], raw: str) -> dict[str, Any]:
    """Arguments of a built-in tool: its own checks, and no name it does not know."""
    given = read_object(raw)
    unknown = sorted(set(given) - set(model.model_fields))
    if unknown:
        raise ArgumentsRefused(
            f"Unknown arguments: {', '.join(unknown)}. Known are "
            f"{', '.join(model.model_fields)}. Nothing was done."
        )
    try:
        return model.model_validate(given, strict=True).model_dump()
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in problem['loc']) or 'arguments'}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False)[:5]
        )
        raise ArgumentsRefused(f"{problems}. Nothing was done.") from error


def _inside(session: BaseSandboxSession, path: str) -> str:
    """A path of the workspace, relative to it and without detours."""
    if "\0" in path:
        raise ArgumentsRefused("A path cannot hold a NUL character. Nothing was done.")
    root = session.state.manifest.root.rstrip("/")
    try:
        resolved = session.normalize_path(path).as_posix()
    except (InvalidManifestPathError, ValueError) as error:
        raise ArgumentsRefused(
            f"The path {path!r} is outside the workspace. Nothing was done."
        ) from error
    if resolved == root:
        return "."
    if not resolved.startswith(f"{root}/"):
        raise ArgumentsRefused(f"The path {path!r} is outside the workspace. Nothing was done.")
    return resolved[len(root) + 1 :]


# ---------------------------------------------------------------------------------------------
# In the sandbox
# ---------------------------------------------------------------------------------------------


def _exec_command(
    declaration: ToolDeclaration,
    around: Surroundings,
    session: BaseSandboxSession,
    processes: dict[int, str],
) -> Tool:
    inner = ExecCommandTool(session=session)
    terminals = session.supports_pty()

    def read(raw: str) -> tuple[dict[str, Any], str]:
        arguments = _checked(inner.args_model, raw)
        given = read_object(raw)
        arguments["workdir"] = _inside(session, arguments["workdir"] or WORKDIR)
        # Without terminals the wait is the hard limit of the command.
        default = EXEC_WAIT_MS if terminals else EXEC_MAX_WAIT_MS
        wait = given.get("yield_time_ms", default)
        arguments["yield_time_ms"] = min(wait, EXEC_MAX_WAIT_MS)
        arguments["max_output_tokens"] = _output_tokens(arguments["max_output_tokens"])
        return arguments, write_object(arguments)

    async def do(context: ToolContext[Any], call: ProposedCall, text: str) -> Ran:
        output = str(await inner.on_invoke_tool(context, text))
        ran = _ran_command(output)
        running = _RUNNING.search(_header(output))
        if running is not None:
            processes[int(running.group(1))] = call.arguments["cmd"]
        return ran

    return _Guard(declaration, around, read, do).function_tool(
        inner.params_json_schema, otherwise=inner.description
    )


def _write_stdin(
    declaration: ToolDeclaration,
    around: Surroundings,
    session: BaseSandboxSession,
    processes: dict[int, str],
) -> Tool | None:
    if not session.supports_pty():
        return None
    inner = WriteStdinTool(session=session)

    def read(raw: str) -> tuple[dict[str, Any], str]:
        arguments = _checked(inner.args_model, raw)
        command = processes.get(arguments["session_id"])
        if command is None:
            raise ArgumentsRefused(
                f"There is no running process with session id {arguments['session_id']}. "
                "Processes end when a run is paused. Nothing was done."
            )
        arguments["yield_time_ms"] = min(arguments["yield_time_ms"], EXEC_MAX_WAIT_MS)
        arguments["max_output_tokens"] = _output_tokens(arguments["max_output_tokens"])
        text = write_object(arguments)
        return {**arguments, "command": command}, text

    async def do(context: ToolContext[Any], call: ProposedCall, text: str) -> Ran:
        return _ran_command(str(await inner.on_invoke_tool(context, text)))

    return _Guard(declaration, around, read, do).function_tool(
        inner.params_json_schema, otherwise=inner.description
    )


def _view_image(
    declaration: ToolDeclaration, around: Surroundings, session: BaseSandboxSession
) -> Tool:
    inner = ViewImageTool(session=session)

    def read(raw: str) -> tuple[dict[str, Any], str]:
        arguments = _checked(inner.args_model, raw)
        arguments["path"] = _inside(session, arguments["path"])
        return arguments, write_object(arguments)

    async def do(context: ToolContext[Any], call: ProposedCall, text: str) -> Ran:
        output = await inner.on_invoke_tool(context, text)
        if not isinstance(output, ToolOutputImage):
            return Ran(told=str(output), text=str(output), ok=False)
        if not around.images:
            told = "This model cannot be shown images."
            return Ran(told=told, text=told, ok=False)
        url = output.image_url or ""
        if len(url) > MAX_IMAGE_CHARS:
            told = "The image is larger than 2 MB. Make a smaller copy and look at that."
            return Ran(told=told, text=told, ok=False)
        kind = url.partition(";")[0].removeprefix("data:")
        return Ran(told=output, text=f"[{kind}, {len(url) * 3 // 4} bytes]")

    return _Guard(declaration, around, read, do).function_tool(
        inner.params_json_schema, otherwise=inner.description
    )


def _apply_patch(
    declaration: ToolDeclaration, around: Surroundings, session: BaseSandboxSession
) -> Tool:
    inner = SandboxApplyPatchTool(session=session)
    editor = WorkspaceEditor(session)

    def operations(patch: str) -> list[ApplyPatchOperation]:
        try:
            parsed = inner.parse_custom_input(patch)
        except (ValueError, RecursionError) as error:
            raise ArgumentsRefused(
                f"The patch cannot be read: {error}. Nothing was done."
            ) from error
        for operation in parsed:
            operation.path = _file(session, operation.path)
            if operation.move_to is not None:
                operation.move_to = _file(session, operation.move_to)
            if operation.type == "create_file":
                operation.diff = _ended(operation.diff or "")
        return parsed

    def read_patch(patch: str) -> tuple[dict[str, Any], str]:
        files = [
            {
                "action": _PATCH_ACTIONS[operation.type],
                "path": operation.path,
                "move_to": operation.move_to,
            }
            for operation in operations(patch)
        ]
        return {"files": files, "patch": patch}, patch

    def read_wrapped(raw: str) -> tuple[dict[str, Any], str]:
        given = read_object(raw)
        patch = given.get("patch")
        if set(given) != {"patch"} or not isinstance(patch, str):
            raise ArgumentsRefused("Give exactly one argument, 'patch', a text. Nothing was done.")
        return read_patch(patch)

    async def do(context: ToolContext[Any], call: ProposedCall, text: str) -> Ran:
        done: list[str] = []
        todo = operations(text)
        for operation in todo:
            try:
                result = await editor.apply_operation(operation)
            except (SdkSandboxError, SandboxOperationFailed) as error:
                if not isinstance(error, ApplyPatchError) and not await around.sandbox.alive():
                    raise
                told = "\n".join(
                    [
                        *done,
                        f"The patch failed at {operation.path}: {described(error)}",
                        f"{len(done)} of {len(todo)} operations were carried out.",
                    ]
                )
                return Ran(told=told, text=told, ok=False)
            done.append(result.output or f"Done: {operation.path}")
        return Ran(told="\n".join(done), text="\n".join(done))

    if not around.custom_tools:
        schema = {
            "type": "object",
            "properties": {"patch": {"type": "string", "description": inner.description}},
            "required": ["patch"],
            "additionalProperties": False,
        }
        return _Guard(declaration, around, read_wrapped, do).function_tool(
            schema, strict=True, otherwise="Change files with a patch."
        )

    guard = _Guard(declaration, around, read_patch, do)

    async def needs_approval(_: RunContextWrapper[Any], raw: str, call_id: str) -> bool:
        return await guard.needs_person(raw, call_id)

    return CustomTool(
        name=declaration.name,
        description=inner.description,
        format=inner.format,
        on_invoke_tool=guard.invoke,
        needs_approval=needs_approval,
    )


def _ended(diff: str) -> str:
    """A new file's lines, with the last one ended: the SDK would leave its line break out."""
    return diff if diff.endswith("\n+\n") else f"{diff}+\n"


def _file(session: BaseSandboxSession, path: str) -> str:
    inside = _inside(session, path)
    if inside == ".":
        raise ArgumentsRefused("The workspace itself is no file. Nothing was done.")
    return inside


def _ran_command(output: str) -> Ran:
    header = _header(output)
    exited = _EXITED.search(header)
    code = int(exited.group(1)) if exited is not None else None
    running = _RUNNING.search(header) is not None
    return Ran(told=output, text=output, ok=running or code == 0, exit_code=code)


def _header(output: str) -> str:
    """What the tool itself wrote, before anything a command could have printed."""
    return output.partition("\nOutput:\n")[0]


def _output_tokens(wanted: int | None) -> int:
    return OUTPUT_TOKENS if wanted is None else min(wanted, MAX_OUTPUT_TOKENS)


# ---------------------------------------------------------------------------------------------
# Outside the sandbox
# ---------------------------------------------------------------------------------------------


def _outer(declaration: ToolDeclaration, around: Surroundings) -> Tool:
    schema = closed(declaration.parameters)
    whole = reader(schema)

    def read(raw: str) -> tuple[dict[str, Any], str]:
        arguments = whole(raw)
        return arguments, write_object(arguments)

    async def do(context: ToolContext[Any], call: ProposedCall, text: str) -> Ran:
        answer = await around.host.broker(call)
        text = answer.text
        if len(text) > MAX_BROKERED_CHARS:
            text = f"{text[:MAX_BROKERED_CHARS]}\n[cut at {MAX_BROKERED_CHARS} characters]"
        return Ran(told=text, text=text, ok=answer.ok)

    guard = _Guard(declaration, around, read, do)
    return guard.function_tool(schema, strict=can_be_strict(schema))


def _network(declaration: ToolDeclaration, around: Surroundings) -> Tool:
    schema = closed(SCHEMA)
    check = checker(schema)

    def read(raw: str) -> tuple[dict[str, Any], str]:
        given = read_object(raw)
        problem = check(given)
        if problem is not None:
            raise ArgumentsRefused(problem)
        try:
            asked = read_ask(given)
        except AskRefused as refused:
            raise ArgumentsRefused(f"{refused} Nothing was asked.") from None
        arguments = asked.arguments() | {"wait_seconds": given.get("wait_seconds", 0)}
        return arguments, write_object(arguments)

    async def do(context: ToolContext[Any], call: ProposedCall, text: str) -> Ran:
        answer = await around.host.broker(call)
        return Ran(told=answer.text, text=answer.text, ok=answer.ok)

    return _Guard(declaration, around, read, do).function_tool(schema, otherwise=DESCRIPTION)


def _question(declaration: ToolDeclaration, around: Surroundings) -> Tool:
    check = checker(QUESTION_PARAMETERS)

    def read(raw: str) -> tuple[dict[str, Any], str]:
        arguments = read_object(raw)
        problem = check(arguments)
        if problem is not None:
            raise ArgumentsRefused(problem)
        choices = [choice.strip() for choice in arguments["choices"]]
        if len(set(choices)) != len(choices) or not all(choices):
            raise ArgumentsRefused("The choices must differ and not be empty. Nothing was asked.")
        return {"question": arguments["question"], "choices": choices}, raw

    async def do(context: ToolContext[Any], call: ProposedCall, text: str) -> Ran:
        # Only reached after a person's answer: a question is never let through without one.
        answer = around.gate.answers[call.call_id].text
        return Ran(told=answer, text=answer)

    schema = json.loads(json.dumps(QUESTION_PARAMETERS))
    return _Guard(declaration, around, read, do).function_tool(
        schema, otherwise="Ask a person a question with choices, and wait for the answer."
    )
