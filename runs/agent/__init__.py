"""Agents: what runs one, in the words of `runs.agent.port`.

The agents SDK takes about 100 MB and more than a second to load, and most processes never run an
agent. So this package names what it offers and loads the module behind it on first use; a Celery
worker is small until its first run. This is the one place where that is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from runs.agent.port import AgentBrief, Answer, Host, Outcome
from runs.agent.state import SDK_VERSION, verify_state
from runs.sandbox import Sandbox

__all__ = ["SDK_VERSION", "carry_on", "resume", "start", "verify_state"]


async def start(brief: AgentBrief, sandbox: Sandbox, host: Host) -> Outcome:
    """Begin a run with the task itself. Raises BriefRefused before anything has happened."""
    return await (await _stretch()).start(brief, sandbox, host)  # type: ignore[no-any-return]


async def resume(
    brief: AgentBrief,
    sandbox: Sandbox,
    host: Host,
    *,
    state: str,
    answers: Mapping[str, Answer],
) -> Outcome:
    """Go on where calls waited, with an answer to exactly those; or between two turns with none.

    Raises RecoveryError and BriefRefused before anything has happened.
    """
    return await (await _stretch()).resume(  # type: ignore[no-any-return]
        brief, sandbox, host, state=state, answers=answers
    )


async def carry_on(
    brief: AgentBrief, sandbox: Sandbox, host: Host, *, state: str, message: str
) -> Outcome:
    """Send a message to an agent that has finished or stands between two turns.

    Raises RecoveryError and BriefRefused before anything has happened.
    """
    return await (await _stretch()).carry_on(  # type: ignore[no-any-return]
        brief, sandbox, host, state=state, message=message
    )


async def _stretch() -> Any:
    # In a thread: the caller's loop renews the run's lease meanwhile.
    return await asyncio.to_thread(import_module, "runs.agent.stretch")
