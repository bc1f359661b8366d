"""The portal as AgentBarrier sees it, in the process of the suite: nothing of ours is imported.

    AGENTBARRIER_DESK=SOCKET python -m agentbarrier verify tests.acceptance.barrier.adapter:create

The suite's probe is a service outside: it listens on this machine, and is reached by what a worker
of the portal sends, or a command in its sandbox. Everything else is asked of the desk
(`tests.acceptance.barrier.desk`) by a socket: it has the database, and people who are signed in.

How a run of the suite is told in the words of the portal:

| the suite | the portal |
| --- | --- |
| an action | a brokered call of the agent, `POST {sentinel}/effects/{action}` |
| it needs no approval | the tenant's policy permits that tool without a person |
| an action that others are delegated by | a request for network, which a person grants |
| an action delegated by it | a command in the sandbox, which nothing but that grant lets out |
| time of a run | what is left of the contract's wall time |
| completed | the agent has finished, and what it offers is put before people |
| unknown | the run waits until somebody says what became of a call |
| reconciliation | a person looks at the service, and says on the desk what is there |
| replay | the same hop of the same run is delivered again, several times |
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from agentbarrier import (  # type: ignore[import-not-found]
    ActionRequest,
    AgentAdapter,
    AmbiguousEffectError,
    AuditEvent,
    AuditReceipt,
    Capability,
    ReconciliationEvidence,
    ReconciliationStatus,
    RunHandle,
    RunOutcome,
    RunStatus,
    action_digest,
)
from agentbarrier.adapter import (  # type: ignore[import-not-found]
    validate_actions,
    validate_timeout,
)

EVERY = 0.1
TOOL = "sentinel_write"


class Service:
    """The service outside: one probe for each action, reached over HTTP."""

    def __init__(self) -> None:
        self._probes: dict[str, Any] = {}
        self._server: asyncio.Server | None = None

    async def address(self) -> str:
        """Where it answers."""
        if self._server is None:
            self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def expect(self, actions: Sequence[Any], probe: Any) -> None:
        """Effects of these actions are that probe's."""
        self._probes |= {action.action_id: probe for action in actions}

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *headers = head.split("\r\n")
            path = urllib.parse.urlsplit(line.split(" ")[1]).path
            action_id = urllib.parse.unquote(path.removeprefix("/effects/"))
            length = next(
                int(each.partition(":")[2])
                for each in headers
                if each.lower().startswith("content-length:")
            )
            arguments = json.loads(await reader.readexactly(length))
            action = ActionRequest(action_id, TOOL, arguments)
            if await self._commit(action, reader):
                writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n")
                writer.write(b"Connection: close\r\n\r\n{}")
                await writer.drain()
        finally:
            writer.close()

    async def _commit(self, action: Any, reader: asyncio.StreamReader) -> bool:
        """Whether the client gets an answer. One that hangs up before the commit ends it."""
        effect = asyncio.ensure_future(self._probes[action.action_id](action))
        gone = asyncio.ensure_future(reader.read())
        await asyncio.wait({effect, gone}, return_when=asyncio.FIRST_COMPLETED)
        try:
            if not effect.done():
                effect.cancel()
            await effect
        except (AmbiguousEffectError, asyncio.CancelledError):
            return False
        finally:
            gone.cancel()
        return True


async def ask(what: str, **given: Any) -> Any:
    """One question to the desk."""
    reader, writer = await asyncio.open_unix_connection(os.environ["AGENTBARRIER_DESK"])
    writer.write(json.dumps({"what": what, **given}).encode() + b"\n")
    answer = json.loads(await reader.readline())
    writer.close()
    if "failed" in answer:
        raise RuntimeError(answer["failed"])
    return answer["answer"]


def written(action: Any) -> dict[str, Any]:
    """An action for the desk."""
    return {
        "id": action.action_id,
        "arguments": dict(action.arguments),
        "gated": action.requires_approval,
        "parent": action.parent_action_id,
    }


class Run(RunHandle):  # type: ignore[misc]
    """One run of the portal."""

    def __init__(self, name: str, run: int, actions: Sequence[Any], probe: Any) -> None:
        self._name, self._run, self._probe = name, run, probe
        self._actions = {action.action_id: action for action in actions}

    async def wait_for_pending(self, timeout_seconds: float) -> tuple[Any, ...]:
        """The actions of all open packets, made of what the packets show."""
        ends = time.monotonic() + timeout_seconds
        while (found := await ask("pending", run=self._run)) is None:
            if time.monotonic() > ends:
                raise TimeoutError("nobody was asked")
            await asyncio.sleep(EVERY)
        return tuple(ActionRequest(each["id"], TOOL, each["arguments"]) for each in found)

    async def approve(self, action_id: str, replacement: Any = None) -> None:
        """A person approves what is open; what is to be replaced is edited by another one first."""
        other = None if replacement is None else dict(replacement.arguments)
        await ask("approve", run=self._run, action=action_id, replacement=other)

    async def reject(self, action_id: str, reason: str | None = None) -> None:
        await ask("reject", run=self._run, action=action_id, reason=reason or "")

    async def cancel(self) -> None:
        """The operator stops the run; back when it has ended."""
        await ask("cancel", run=self._run)
        await self._until({"cancelled"}, 60)

    async def wait(self, timeout_seconds: float) -> Any:
        stands = await self._until(
            {"completed", "cancelled", "timed_out", "failed", "unknown"}, timeout_seconds
        )
        if stands is None:
            return RunOutcome(RunStatus.FAILED, "run did not reach a terminal state in time")
        return RunOutcome(RunStatus(stands["status"]), stands["detail"])

    async def _until(self, wanted: set[str], seconds: float) -> Mapping[str, Any] | None:
        ends = time.monotonic() + seconds
        while True:
            stands: Mapping[str, Any] = await ask("status", run=self._run)
            if stands["status"] in wanted:
                return stands
            if time.monotonic() > ends:
                return None
            await asyncio.sleep(EVERY)

    async def reconcile(self, action_id: str, timeout_seconds: float) -> Any:
        """A person looks at the service, as long as they may, and says at the desk what is so."""
        action = self._actions[action_id]
        try:
            seen = await asyncio.wait_for(self._probe.reconcile(action), timeout_seconds)
        except TimeoutError:
            seen = ReconciliationEvidence(
                action_id,
                ReconciliationStatus.UNAVAILABLE,
                action_digest(action),
                detail=f"looking timed out after {timeout_seconds:g} seconds",
            )
        note = seen.detail or "Looked."
        await ask("settle", run=self._run, action=action_id, found=seen.status.value, note=note)
        return seen

    async def replay(self) -> Any:
        await ask("replay", run=self._run)
        return Run(self._name, self._run, list(self._actions.values()), self._probe)

    async def audit_receipts(self) -> tuple[Any, ...]:
        """The run's events, digests made of what the portal has stored."""
        return tuple(
            AuditReceipt(
                sequence=each["seq"],
                run_id=self._name,
                event=AuditEvent(each["event"]),
                timestamp_ns=each["at_ns"],
                action_id=each["action"],
                action_digest=each["action"]
                and action_digest(ActionRequest(each["action"], TOOL, each["arguments"])),
            )
            for each in await ask("receipts", run=self._run)
        )

    async def close(self) -> None:
        await ask("close", run=self._run)


class Portal(AgentAdapter):  # type: ignore[misc]
    """Real runs of the portal, one for each beginning."""

    name = "imprimatur"
    capabilities = frozenset(Capability)

    def __init__(self) -> None:
        self._service = Service()

    async def begin(
        self,
        *,
        run_id: str,
        actions: Sequence[Any],
        effect: Any,
        timeout_seconds: float | None = None,
    ) -> Any:
        """Queue a run whose agent wants these actions."""
        wanted = validate_actions(actions)
        self._service.expect(wanted, effect)
        run = await ask(
            "begin",
            sentinel=await self._service.address(),
            actions=[written(action) for action in wanted],
            seconds=validate_timeout(timeout_seconds),
        )
        return Run(run_id, run, wanted, effect)


def create() -> Any:
    """For the suite."""
    return Portal()
