"""The agents SDK's view of a sandbox: its session interface over our `Sandbox`, for any provider.

The SDK's own clients are not used. Whatever the SDK's tools do (run, type, patch, view) becomes a
call of our protocol, so the confinement, the limits and the checks are the same for the model as
for the portal. The session does not own the sandbox: it makes, restores and removes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agents.sandbox import Manifest
from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    InvalidManifestPathError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
)
from agents.sandbox.materialization import MaterializationResult
from agents.sandbox.session import SandboxSessionState
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.pty_output import collect_pty_output
from agents.sandbox.session.pty_types import (
    PTY_PROCESSES_MAX,
    PtyExecUpdate,
    allocate_pty_process_id,
    clamp_pty_yield_time_ms,
    process_id_to_prune_from_meta,
    resolve_pty_write_yield_time_ms,
)
from agents.sandbox.snapshot import NoopSnapshot
from agents.sandbox.types import ExecResult as SdkExecResult
from agents.sandbox.types import User

from runs.sandbox import (
    WORKSPACE,
    Command,
    ExecResult,
    Sandbox,
    SandboxError,
    SandboxLost,
    SandboxOperationFailed,
)

EXEC_SECONDS = 600.0
"""The limit of a command for which the SDK names none."""

LARGEST_FILE = 16 << 20
"""That a tool reads or writes. The SDK's own limit for an image is 10 MB."""


class SessionState(SandboxSessionState):
    """The SDK wants a state it could write down; ours says nothing a restore could use."""

    type: Literal["imprimatur"] = "imprimatur"


@dataclass
class _Terminal:
    """A started command and the output that nobody has taken yet."""

    command: Command
    tty: bool
    last_used: float = field(default_factory=time.monotonic)
    chunks: deque[bytes] = field(default_factory=deque)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    exit_code: int | None = None
    failure: SandboxError | None = None
    pump: asyncio.Task[None] | None = None

    async def carry(self) -> None:
        try:
            while chunk := await self.command.read():
                async with self.lock:
                    self.chunks.append(chunk)
                self.news.set()
            self.exit_code = await self.command.wait()
        except SandboxError as failure:
            self.failure = failure
        finally:
            self.over.set()
            self.news.set()


def session_over(sandbox: Sandbox) -> BaseSandboxSession:
    """A started session over a sandbox that stands."""
    return _Session(sandbox)


class _Session(BaseSandboxSession):
    state: SandboxSessionState

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._terminals: dict[int, _Terminal] = {}
        self.state = SessionState(
            snapshot=NoopSnapshot(id=sandbox.ref),
            manifest=Manifest(root=WORKSPACE),
            workspace_root_ready=True,
        )

    # --- Life: it began before this object and ends after it --------------------

    async def start(self) -> None:
        # Called again before a turn when `running()` says no. There is nothing to start anew: what
        # was in the sandbox is gone, and going on in an empty one would hide that.
        if not await self._sandbox.alive():
            lost = SandboxLost(self._sandbox.ref, "it does not answer")
            raise WorkspaceStartError(path=Path(WORKSPACE), cause=lost) from lost

    async def stop(self) -> None:
        await self.pty_terminate_all()

    async def shutdown(self) -> None:
        await self.pty_terminate_all()

    async def running(self) -> bool:
        return await self._sandbox.alive()

    async def _apply_manifest(
        self, *, only_ephemeral: bool = False, provision_accounts: bool = True
    ) -> MaterializationResult:
        if self.state.manifest.entries or self.state.manifest.users or self.state.manifest.groups:
            raise ValueError("the workspace is filled by the portal, not by an SDK manifest")
        return MaterializationResult(files=[])

    async def persist_workspace(self) -> io.IOBase:
        raise WorkspaceArchiveReadError(
            path=Path(WORKSPACE), context={"reason": "the portal takes the snapshots itself"}
        )

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        raise WorkspaceArchiveWriteError(
            path=Path(WORKSPACE), context={"reason": "the portal restores snapshots itself"}
        )

    # --- Commands ----------------------------------------------------------------

    def _prepare_exec_command(
        self, *command: str | Path, shell: bool | list[str], user: str | User | None
    ) -> list[str]:
        # There is one user in a sandbox, and no sudo to become another.
        return super()._prepare_exec_command(*command, shell=shell, user=None)

    async def _exec_internal(
        self, *command: str | Path, timeout: float | None = None
    ) -> SdkExecResult:
        argv = [str(part) for part in command]
        limit = EXEC_SECONDS if timeout is None else timeout
        async with self._failing(argv):
            result = await self._sandbox.exec(argv, timeout=limit, workdir="")
        if result.timed_out:
            raise ExecTimeoutError(command=argv, timeout_s=limit)
        return _as_sdk(result)

    def supports_pty(self) -> bool:
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        argv = self._prepare_exec_command(*command, shell=shell, user=user)
        async with self._failing(argv):
            started = await self._sandbox.start(argv, workdir="", tty=tty, lifetime=timeout)
        terminal = _Terminal(started, tty)
        terminal.pump = asyncio.create_task(terminal.carry())
        await self._make_room()
        number = allocate_pty_process_id(set(self._terminals))
        self._terminals[number] = terminal
        wait = 10_000 if yield_time_s is None else int(yield_time_s * 1000)
        return await self._update(
            number, terminal, clamp_pty_yield_time_ms(wait), max_output_tokens, argv
        )

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        terminal = self._resolve_pty_session_entry(
            pty_processes=self._terminals, session_id=session_id
        )
        if chars:
            if not terminal.tty:
                raise RuntimeError("stdin is not available for this process")
            async with self._failing(["write_stdin"]):
                await terminal.command.write(chars.encode())
        terminal.last_used = time.monotonic()
        wait = 250 if yield_time_s is None else int(yield_time_s * 1000)
        return await self._update(
            session_id,
            terminal,
            resolve_pty_write_yield_time_ms(yield_time_ms=wait, input_empty=not chars),
            max_output_tokens,
            ["write_stdin"],
        )

    async def pty_terminate_all(self) -> None:
        terminals, self._terminals = list(self._terminals.values()), {}
        for terminal in terminals:
            await _end(terminal)

    async def _make_room(self) -> None:
        if len(self._terminals) < PTY_PROCESSES_MAX:
            return
        known = [
            (number, terminal.last_used, terminal.over.is_set())
            for number, terminal in self._terminals.items()
        ]
        number = process_id_to_prune_from_meta(known)
        if number is not None:
            await _end(self._terminals.pop(number))

    async def _update(
        self,
        number: int,
        terminal: _Terminal,
        wait_ms: int,
        max_output_tokens: int | None,
        argv: Sequence[str],
    ) -> PtyExecUpdate:
        output, tokens, over = await collect_pty_output(
            output_chunks=terminal.chunks,
            output_lock=terminal.lock,
            output_notify=terminal.news,
            is_done=terminal.over.is_set,
            yield_time_ms=wait_ms,
            max_output_tokens=max_output_tokens,
        )
        if not over:
            return PtyExecUpdate(number, output, None, tokens)
        self._terminals.pop(number, None)
        if terminal.failure is not None:
            raise ExecTransportError(
                command=list(argv), cause=terminal.failure
            ) from terminal.failure
        return PtyExecUpdate(None, output, terminal.exit_code, tokens)

    @asynccontextmanager
    async def _failing(self, argv: Sequence[str]) -> AsyncIterator[None]:
        try:
            yield
        except SandboxError as error:
            raise ExecTransportError(command=list(argv), cause=error) from error

    # --- Files -----------------------------------------------------------------------

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        return io.BytesIO(await self._read(path, LARGEST_FILE))

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        return (await self._read(path, LARGEST_FILE))[:max_bytes]

    async def _read(self, path: Path, most: int) -> bytes:
        where = self._named(path)
        try:
            return await self._sandbox.read(where, max_bytes=most)
        except SandboxOperationFailed as failed:
            if failed.reason == "not_found":
                raise WorkspaceReadNotFoundError(path=Path(path), cause=failed) from failed
            self._refuse_path(path, failed)
            raise WorkspaceArchiveReadError(
                path=Path(path), context={"reason": failed.reason}, cause=failed
            ) from failed
        except SandboxError as error:
            raise WorkspaceArchiveReadError(path=Path(path), cause=error) from error

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        await self._write(path, data, exclusive=False)

    async def _write_new_file(
        self, path: Path, data: io.IOBase, *, user: str | User | None = None
    ) -> None:
        await self._write(path, data, exclusive=True)

    async def _write(self, path: Path, data: io.IOBase, *, exclusive: bool) -> None:
        where = self._named(path)
        try:
            await self._sandbox.write(where, _content(data), exclusive=exclusive)
        except SandboxOperationFailed as failed:
            if failed.reason == "exists":
                raise FileExistsError(str(path)) from failed
            self._refuse_path(path, failed)
            raise WorkspaceArchiveWriteError(
                path=Path(path), context={"reason": failed.reason}, cause=failed
            ) from failed
        except SandboxError as error:
            raise WorkspaceArchiveWriteError(path=Path(path), cause=error) from error

    async def mkdir(
        self, path: Path | str, *, parents: bool = False, user: str | User | None = None
    ) -> None:
        # A write makes its folders; the SDK's editor asks for them before each one.
        named = self._named(path)
        if not parents or named not in ("repo", "output", ""):
            await super().mkdir(path, parents=parents)

    def _named(self, path: Path | str) -> str:
        """The path as our protocol takes it: relative to the workspace."""
        return self.normalize_path(path).relative_to(WORKSPACE).as_posix().removeprefix(".")

    def _refuse_path(self, path: Path | str, failed: SandboxOperationFailed) -> None:
        if failed.reason == "outside":
            raise InvalidManifestPathError(
                rel=str(path), reason="escape_root", cause=failed
            ) from failed


def _content(data: io.IOBase) -> bytes:
    content = data.read(LARGEST_FILE + 1)
    content = content.encode() if isinstance(content, str) else bytes(content)
    if len(content) > LARGEST_FILE:
        raise WorkspaceArchiveWriteError(path=Path("."), context={"reason": "too_big"})
    return content


async def _end(terminal: _Terminal) -> None:
    with contextlib.suppress(SandboxError):
        await terminal.command.kill()
    if terminal.pump is not None:
        # It ends by itself: the command's output ends with the command.
        await asyncio.wait({terminal.pump}, timeout=5)
        terminal.pump.cancel()


def _as_sdk(result: ExecResult) -> SdkExecResult:
    return SdkExecResult(stdout=result.stdout, stderr=result.stderr, exit_code=result.exit_code)
