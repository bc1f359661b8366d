"""Whose failure it was.

The class of an exception alone does not tell: the same one may come from the sandbox, from a
restore, or from the SDK around a model call. So each place says in which phase it was, and only
then the chain of causes is looked at.

`retry_safe` says: doing the same again as it is can do no harm and may well succeed.
"""

from __future__ import annotations

from collections.abc import Iterator

from agents.exceptions import AgentsException
from agents.sandbox.errors import SandboxError as SdkSandboxError

from runs.agent.gate import Ran
from runs.agent.port import RunError
from runs.sandbox import Sandbox, SandboxError, SandboxLost


class ModelFailed(AgentsException):
    """The model gave no usable answer. Carries the error to report."""

    def __init__(self, error: RunError) -> None:
        super().__init__(error.text)
        self.error = error


class GateClosed(AgentsException):
    """Raised where the model would be asked next, after the gate was closed."""


async def sandbox_failure(tool: str, error: BaseException, sandbox: Sandbox) -> Ran | RunError:
    """An execution raised. Tell the model when the sandbox stands, else end the run."""
    if not any(isinstance(cause, SandboxLost) for cause in causes(error)):
        try:
            alive = await sandbox.alive()
        except Exception:
            alive = False
        if alive:
            told = f"The tool {tool} failed in the sandbox: {described(error)}"
            return Ran(told=told, text=told, ok=False)
    return sandbox_lost()


def sandbox_lost() -> RunError:
    """What the agent did since the last checkpoint is gone."""
    return RunError(
        "execution",
        "sandbox_lost",
        "The sandbox was lost while the agent worked, and what was done since the last checkpoint "
        "with it. The run can start again from there.",
        retry_safe=True,
    )


def classify(error: BaseException) -> RunError:
    """An exception that nothing else explained, from around the SDK's loop."""
    chain = list(causes(error))
    # What the sandbox itself said comes first: the SDK's word for it is further out and vaguer.
    for cause in chain:
        if isinstance(cause, ModelFailed):
            return cause.error
        if isinstance(cause, SandboxLost):
            return sandbox_lost()
        if isinstance(cause, SandboxError):
            return RunError(
                cause.boundary, cause.code.replace(".", "_"), str(cause), cause.retry_safe
            )
    for cause in chain:
        if isinstance(cause, SdkSandboxError):
            code = str(getattr(cause.error_code, "value", cause.error_code))
            return RunError(
                "execution", f"sandbox_{code}", "The sandbox failed around the agent.", False
            )
    name = type(error).__name__
    return RunError(
        "control",
        "agent_failed",
        f"The agent's loop failed ({name}). The server log has the cause.",
        retry_safe=False,
    )


def described(error: BaseException) -> str:
    """One line about an error of the sandbox. The agent sees it, so it holds no traceback."""
    chain = list(causes(error))
    for cause in chain:
        if isinstance(cause, SandboxError):
            return str(cause)
    for cause in chain:
        if isinstance(cause, SdkSandboxError):
            code = str(getattr(cause.error_code, "value", cause.error_code))
            return f"{cause.message} ({code})"
    return type(error).__name__


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The exception and what it came from, each once."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
