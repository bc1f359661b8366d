"""The output of a running command, bounded: what it prints may be endless, what is kept is not."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import Callable
from typing import TypeAlias

from runs.sandbox import ExecResult, SandboxError

Flow: TypeAlias = Callable[[int], None]
"""Writes a command's input, or reads its output, by a blocking descriptor and in a thread.

It handles its own errors: how it ended is nothing that the command's result would tell.
"""

_PIPE_BYTES = 1 << 20
"""As large as anybody may make one. Each time a pipe is full or empty, two processes take turns."""


def cut_note(limit: int) -> bytes:
    return b"\n[killed: more than %d bytes of output]\n" % limit


class Gathered:
    """All output of one command up to a limit; beyond it the command is killed, once."""

    def __init__(self, limit: int, kill: Callable[[], None]) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.truncated = False
        self._limit = limit
        self._room = limit
        self._kill = kill

    def take(self, chunk: bytes, *, error: bool) -> None:
        kept = chunk[: self._room]
        self._room -= len(kept)
        if error:
            self.stderr += kept
        else:
            self.stdout += kept
        if len(kept) < len(chunk) and not self.truncated:
            self.truncated = True
            self._kill()

    def result(self, code: int, *, began: float, timed_out: bool, note: bytes = b"") -> ExecResult:
        """How the command ended; what the sandbox adds stands at the end of its errors."""
        if self.truncated:
            note += cut_note(self._limit)
        return ExecResult(
            exit_code=code,
            stdout=bytes(self.stdout),
            stderr=bytes(self.stderr) + note,
            truncated=self.truncated,
            duration_ms=int((time.monotonic() - began) * 1000),
            timed_out=timed_out,
        )

    async def drain(self, stream: asyncio.StreamReader | None, *, error: bool) -> None:
        while stream is not None and (chunk := await stream.read(1 << 18)):
            self.take(chunk, error=error)


class Unread:
    """Output of a command left running that nobody has read yet, up to a limit in all."""

    def __init__(self, limit: int, kill: Callable[[], None]) -> None:
        self._limit = limit
        self._room = limit
        self._kill = kill
        self._kept = bytearray()
        self._news = asyncio.Event()
        self._over = asyncio.Event()
        self._code = 0
        self._failure: SandboxError | None = None

    def take(self, chunk: bytes) -> None:
        if self._room <= 0 or not chunk:
            return
        kept = chunk[: self._room]
        self._room -= len(kept)
        self._kept += kept
        if self._room <= 0:
            self._kept += cut_note(self._limit)
            self._kill()
        self._news.set()

    def note(self, words: str) -> None:
        self._kept += f"\n[{words}]\n".encode()
        self._news.set()

    def end(self, code: int, failure: SandboxError | None = None) -> None:
        """The command has ended, and no more output comes."""
        self._code, self._failure = code, failure
        self._over.set()
        self._news.set()

    async def read(self, max_bytes: int) -> bytes:
        while not self._kept and not self._over.is_set():
            self._news.clear()
            await self._news.wait()
        data = bytes(self._kept[:max_bytes])
        del self._kept[:max_bytes]
        return data

    async def ended(self) -> int:
        await self._over.wait()
        if self._failure is not None:
            raise self._failure
        return self._code


class Pipe:
    """A pipe between a command and a flow of ours. `theirs` is the command's end of it."""

    def __init__(self, flow: Flow, *, written: bool) -> None:
        """The flow writes to the command if it is `written`; otherwise it reads."""
        reads, writes = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.fcntl(reads, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self.theirs, self._ours = (reads, writes) if written else (writes, reads)
        self._flow = flow
        self._open = True
        self._flowing: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Let it flow. That ends at the latest when `theirs` is closed, here and in the command."""
        self._flowing = asyncio.ensure_future(asyncio.to_thread(self._run))

    def _run(self) -> None:
        try:
            self._flow(self._ours)
        finally:
            os.close(self._ours)

    def release(self) -> None:
        """Close `theirs` here. Safe to repeat."""
        if self._open:
            self._open = False
            os.close(self.theirs)

    async def end(self) -> None:
        """Wait for the flow. One that never began is given up."""
        self.release()
        if self._flowing is None:
            os.close(self._ours)
        else:
            await asyncio.shield(self._flowing)
