"""A sandbox in memory, for tests: a small shell over a small file system, and no process at all.

It keeps the same promises as the real ones as far as they can be kept without a kernel, and the
conformance suite holds it to them. It isolates by having nothing to escape with; it is no place
for an agent that is to do real work.
"""

from __future__ import annotations

import asyncio
import errno
import io
import secrets
import signal
import threading
import time
import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from runs.sandbox import (
    INPUT,
    PARTS,
    WORKSPACE,
    Command,
    ExecResult,
    ProviderReport,
    SandboxError,
    SandboxLost,
    SandboxOperationFailed,
    SandboxSpec,
    archive,
    image,
    inside,
    shell,
)
from runs.sandbox.base import ConfinedSandbox, as_failure, checked_spec, workspace_path
from runs.sandbox.memory import Files
from runs.sandbox.running import Flow, Gathered, Unread

T = TypeVar("T")

NAME = "scripted"
DIGEST = "sha256:" + "0" * 64
"""There is no image."""

_CODES = {
    errno.ENOENT: inside.NOT_FOUND,
    errno.ENOTDIR: inside.NOT_A_FILE,
    errno.EISDIR: inside.NOT_A_FILE,
    errno.ENXIO: inside.NOT_A_FILE,
    errno.ELOOP: inside.NOT_A_FILE,
    errno.EROFS: inside.READ_ONLY,
    errno.ENOSPC: inside.NO_SPACE,
    errno.EEXIST: inside.EXISTS,
}

_standing: weakref.WeakSet[ScriptedSandbox] = weakref.WeakSet()
"""Every sandbox of this process that was not closed: what `reap` looks through."""

_lock = threading.Lock()


class Provider:
    """Makes sandboxes in this process's memory; they end with it."""

    name = NAME

    def __init__(self, *, data_dir: Path, packages: Sequence[str] = ()) -> None:
        self.data_dir = data_dir

    def check(self) -> ProviderReport:
        return ProviderReport(
            provider=NAME,
            version="1",
            image_digest=DIGEST,
            isolation=("no process, no network and no file of this machine is used",),
        )

    async def create(
        self,
        spec: SandboxSpec,
        *,
        restore: Path | io.BufferedReader | None = None,
        restore_sha256: str | None = None,
    ) -> ScriptedSandbox:
        sandbox = self._empty(checked_spec(spec))
        try:
            if restore is not None:
                await sandbox.filled(lambda: None, restore, restore_sha256)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def _empty(self, spec: SandboxSpec) -> ScriptedSandbox:
        return ScriptedSandbox(spec, self.data_dir)

    async def reap(self, alive_run_ids: Container[str]) -> list[str]:
        removed = []
        with _lock:
            found = list(_standing)
        mine = [sandbox for sandbox in found if sandbox.data_dir == self.data_dir]

        def orphans() -> list[ScriptedSandbox]:
            return [sandbox for sandbox in mine if sandbox.spec.run_id not in alive_run_ids]

        # Who is alive may be a question to the database.
        for sandbox in await asyncio.to_thread(orphans):
            sandbox.lose("it was reaped")
            removed.append(f"sandbox {sandbox.ref} of run {sandbox.spec.run_id}")
        return removed


class ScriptedSandbox(ConfinedSandbox):
    """Files in memory and a shell that knows a few programs (`runs.sandbox.shell`)."""

    provider = NAME

    def __init__(self, spec: SandboxSpec, data_dir: Path) -> None:
        super().__init__(f"scripted-{secrets.token_hex(8)}", spec, DIGEST)
        self.data_dir = data_dir
        self.files = Files(self._writable, self._room)
        self._lost = ""
        self._running: set[_Task] = set()
        self.files.force = True
        for folder in (*(f"{WORKSPACE}/{part}" for part in PARTS), "/tmp", "/etc", "/usr/bin"):  # noqa: S108
            self.files.make_folder(folder, parents=True)
        self.files.make_folder("/proc/net", parents=True)
        self.files.write("/proc/net/dev", b"Inter-| Receive\n face |bytes\n    lo: 0 0 0\n")
        self.files.write("/etc/passwd", b"agent:x:1000:1000:agent:/tmp:/bin/sh\n")
        for program in shell.PROGRAMS:
            self.files.write(f"/usr/bin/{program}", b"", mode=0o755)
        self.files.force = False
        with _lock:
            _standing.add(self)

    def lose(self, reason: str) -> None:
        """Let it be gone, as a container is that somebody killed."""
        self._lost = self._lost or reason
        for task in list(self._running):
            task.kill()
        with _lock:
            _standing.discard(self)

    # --- What ConfinedSandbox asks ----------------------------------------------

    async def _stands(self) -> str:
        return self._lost

    async def _still(self) -> None:
        for task in list(self._running):
            task.kill()
            await task.ended()

    async def _remove(self) -> None:
        await self._still()
        self.lose("it was closed")
        self.files = Files(self._writable, self._room)

    def _entering(self, argv: Sequence[str], workdir: str, operation: str) -> list[str]:
        entering = super()._entering(argv, workdir, operation)
        return [f"{WORKSPACE}/{workspace_path(workdir, operation)}".rstrip("/"), *entering[5:]]

    async def _run(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str],
        stdin: bytes = b"",
        giving: Flow | None = None,
        taking: Flow | None = None,
        output_bytes: int,
        as_owner: bool = False,
    ) -> ExecResult:
        self._check_stands()
        began = time.monotonic()
        gathered = Gathered(output_bytes, lambda: task.kill())
        task = _Task(
            self,
            argv,
            environment,
            shell.Input(bytearray(stdin)),
            lambda data: gathered.take(data, error=False),
            lambda data: gathered.take(data, error=True),
        )
        timed_out = False
        try:
            async with asyncio.timeout(timeout):
                code = await task.ended()
        except TimeoutError:
            timed_out, code = True, 128 + signal.SIGKILL
        finally:
            task.kill()
        if gathered.truncated:
            code = 128 + signal.SIGKILL
        elif not timed_out:
            self._check_stands()
        return gathered.result(code, began=began, timed_out=timed_out)

    async def _start(
        self, argv: Sequence[str], *, tty: bool, lifetime: float, environment: Mapping[str, str]
    ) -> Command:
        self._check_stands()
        return _Started(self, argv, environment, tty, lifetime)

    async def _tar(
        self, operation: str, parts: Sequence[str], take: Callable[[archive.Source], T]
    ) -> tuple[T, set[str]]:
        self._check_open()
        self._check_stands()
        spool = io.BytesIO()
        self.files.write_tar(spool, WORKSPACE, list(parts))
        try:
            return await asyncio.to_thread(take, spool), set()
        except archive.ArchiveRefused as refused:
            raise as_failure(operation, refused) from refused

    async def _untar(
        self, operation: str, spool: io.BufferedIOBase, parts: Mapping[str, archive.Ranges]
    ) -> None:
        self._check_open()
        self._check_stands()
        self.files.force = True
        try:
            for member in archive.members(spool):
                path = f"{WORKSPACE}/{archive.plain_name(member.name)}"
                if member.kind == "folder":
                    self.files.make_folder(path, member.mode, parents=True)
                elif member.kind == "link":
                    self.files.make_link(path, member.target)
                else:
                    spool.seek(member.offset)
                    self.files.make_folder(path.rpartition("/")[0], parents=True)
                    self.files.write(path, spool.read(member.size), mode=member.mode)
        except OSError as failed:
            reason = "no_space" if failed.errno == errno.ENOSPC else "engine"
            raise SandboxOperationFailed(
                operation, "no_space" if reason == "no_space" else "engine", str(failed.strerror)
            ) from failed
        finally:
            self.files.force = False

    async def _inside(
        self, operation: str, what: str, plain: str, *more: str, stdin: bytes = b"", room: int = 0
    ) -> ExecResult:
        self._time_left()
        self._check_stands()
        path = f"{WORKSPACE}/{plain}"
        code, words, data = 0, "", b""
        try:
            if more[-1] == "new":
                parent, _, name = path.rpartition("/")
                path = f"{self._led(parent, missing_is_fine=True)}/{name}"
            else:
                path = self._led(path, missing_is_fine=what == "write")
            if what == "read":
                node = self.files.get(path)
                if node.kind != "file":
                    raise IsADirectoryError(errno.EISDIR, "", path)
                data = bytes(node.data[: int(more[0]) + 1])
            else:
                self.files.make_folder(path.rpartition("/")[0], parents=True)
                how = "new" if more[1] == "new" else "replace"
                self.files.write(path, stdin, mode=int(more[0], 8), how=how)
        except OSError as failed:
            code, words = _CODES.get(failed.errno or 0, inside.OTHER), failed.strerror or ""
        except _Outside:
            code = inside.OUTSIDE
        return self._judged(operation, ExecResult(code, data, words.encode(), False, 0, False))

    # --- Its own ------------------------------------------------------------------

    def _led(self, path: str, *, missing_is_fine: bool) -> str:
        """Where a path leads once its links are followed. Raises `_Outside` and OSError."""
        try:
            where, _ = self.files.resolve(path)
        except FileNotFoundError:
            if not missing_is_fine:
                raise
            parent, _, name = path.rpartition("/")
            where = f"{self._led(parent, missing_is_fine=True)}/{name}"
        if not where.startswith(f"{WORKSPACE}/"):
            raise _Outside
        return where

    def _check_stands(self) -> None:
        if self._lost:
            raise SandboxLost(self.ref, self._lost)

    def _writable(self, path: str) -> bool:
        top = path.split("/")[1:3]
        if top[:1] == [image.INNER_HOME.strip("/")]:
            return len(path.split("/")) > 2
        return (
            len(path.split("/")) > 3
            and top[0] == WORKSPACE.strip("/")
            and top[1] in PARTS
            and top[1] != INPUT
        )

    def _room(self, path: str) -> int:
        """How much a file may still grow: what its part has left, and no file over its limit."""
        if path.startswith(f"{WORKSPACE}/"):
            part = "/".join(path.split("/")[:3])
            return (self.limits.workspace_mb << 20) - self.files.used(part)
        if path.startswith(image.INNER_HOME):
            return (self.limits.tmp_mb << 20) - self.files.used(image.INNER_HOME)
        return 1 << 30


class _Outside(Exception):
    pass


class _Task:
    """A program running on the event loop."""

    def __init__(
        self,
        sandbox: ScriptedSandbox,
        argv: Sequence[str],
        environment: Mapping[str, str],
        stdin: shell.Input,
        out: Callable[[bytes], None],
        error: Callable[[bytes], None],
    ) -> None:
        folder, *command = argv
        self._sandbox = sandbox
        self._killed = False
        self._process = shell.Process(
            sandbox.files,
            {**environment, "PWD": folder},
            folder,
            stdin,
            self._until_killed(out),
            self._until_killed(error),
        )
        self._task = asyncio.create_task(self._work(list(command)))
        sandbox._running.add(self)

    async def _work(self, command: list[str]) -> int:
        try:
            node = self._sandbox.files.resolve(self._process.folder)[1]
            if node is None or node.kind != "folder":
                self._process.complain(f"sh: 1: cd: can't cd to {self._process.folder}")
                return 126
            return await shell.run_program(self._process, command)
        except shell.Cut:
            return 128 + signal.SIGPIPE
        except OSError as failed:
            return self._process.complain(str(failed.strerror))
        finally:
            self._sandbox._running.discard(self)

    def _until_killed(self, take: Callable[[bytes], None]) -> Callable[[bytes], None]:
        def write(data: bytes) -> None:
            if self._killed:
                raise shell.Cut
            take(data)

        return write

    def kill(self) -> None:
        self._killed = True
        self._task.cancel()

    async def ended(self) -> int:
        await asyncio.wait({self._task})
        if self._task.cancelled():
            return 128 + signal.SIGKILL
        return self._task.result()


class _Started:
    """A program left running; see `runs.sandbox.Command`."""

    def __init__(
        self,
        sandbox: ScriptedSandbox,
        argv: Sequence[str],
        environment: Mapping[str, str],
        tty: bool,
        lifetime: float,
    ) -> None:
        self._sandbox = sandbox
        self._tty = tty
        self._stdin = shell.Input(closed=not tty)
        self._unread = Unread(sandbox.limits.output_bytes, lambda: self._task.kill())
        take = self._unread.take
        self._task = _Task(sandbox, argv, environment, self._stdin, take, take)
        self._watcher = asyncio.create_task(self._until_end(lifetime))

    async def read(self, max_bytes: int = 65536) -> bytes:
        return await self._unread.read(max_bytes)

    async def write(self, data: bytes) -> None:
        if not self._tty:
            raise SandboxOperationFailed("type", "refused", "the command has no terminal")
        self._stdin.data += data
        self._stdin.news.set()

    async def wait(self) -> int:
        return await self._unread.ended()

    async def kill(self) -> None:
        self._task.kill()
        await asyncio.shield(self._watcher)

    async def _until_end(self, lifetime: float) -> None:
        failure: SandboxError | None = None
        code = 128 + signal.SIGKILL
        try:
            async with asyncio.timeout(lifetime):
                code = await self._task.ended()
        except TimeoutError:
            self._unread.note(f"killed: its time of {lifetime:g} s is over")
            self._task.kill()
        finally:
            if self._sandbox._lost and not self._sandbox._closed:
                failure = SandboxLost(self._sandbox.ref, self._sandbox._lost)
            self._unread.end(code, failure)
