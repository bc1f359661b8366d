"""What the providers that run real commands share: files, archives and limits over one primitive.

A provider says how one command is run confined (`_run`), how one is started and left running
(`start`), whether the sandbox stands, and how it is removed. Everything else is a command too:
reading and writing go through `inside.py`, whole folders through `tar`, both from the read-only
image and inside the same confinement as the agent, so the host never walks a hostile tree.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import io
import os
import re
import secrets
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

from runs.sandbox import (
    INPUT,
    PARTS,
    REPO,
    WORKSPACE,
    Command,
    ExecResult,
    ExportInfo,
    FailureReason,
    Limits,
    Part,
    RestoreFailed,
    SandboxLost,
    SandboxOperationFailed,
    SandboxSpec,
    SnapshotDamaged,
    SnapshotInfo,
    Taken,
    archive,
    image,
    inside,
)
from runs.sandbox.running import Flow

T = TypeVar("T")

MOST_FILES = 50_000
"""In one part of the workspace."""

COPY_SECONDS = 300.0
FILE_SECONDS = 30.0

_REASONS: Mapping[int, FailureReason] = {
    inside.NOT_FOUND: "not_found",
    inside.OUTSIDE: "outside",
    inside.NOT_A_FILE: "not_a_file",
    inside.READ_ONLY: "read_only",
    inside.NO_SPACE: "no_space",
    inside.EXISTS: "exists",
}
_WORDS: Mapping[FailureReason, str] = {
    "not_found": "there is no such file",
    "outside": "the path leads out of the workspace",
    "not_a_file": "it is not a regular file",
    "read_only": "it may only be read",
    "no_space": "the workspace is full",
    "exists": "it is there already",
}

# A shell in front of every command: it enters the folder, and a program that does not exist ends
# with 127 in every provider instead of each engine's own error.
_ENTER = 'cd -- "$1" || exit 126; shift; exec "$@"'
_RECORD = ("-b", "512")
"""Blocks that tar reads or writes at once: 256 KB and not 10."""

_TAKE = 'chmod -R u+rwX -- "$@" 2>/dev/null; exec tar --format=posix --sort=name '
_TAKE += "--hard-dereference --ignore-failed-read "
_TAKE += "--pax-option=delete=atime,delete=ctime,delete=mtime "
_TAKE += f'{" ".join(_RECORD)} -cf - -- "$@"'
_FILL = (
    *("tar", "-C", WORKSPACE, "--no-same-owner", "--no-overwrite-dir", "-p"),
    *(*_RECORD, "-xf", "-"),
)

_PLAIN = {"PATH": image.INNER_PATH, "LC_ALL": "C.UTF-8"}
"""The environment of our own commands inside: nothing of what a contract asked for."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def owner_mark(data_dir: Path) -> str:
    """What an installation calls what it makes: another one on this machine is not touched."""
    return hashlib.sha256(str(data_dir).encode()).hexdigest()[:10]


def checked_spec(spec: SandboxSpec) -> SandboxSpec:
    """The same spec. Raises SandboxOperationFailed for values that no sandbox can be made from."""
    limits = spec.limits
    if min(limits.wall_seconds, limits.memory_mb, limits.pids, limits.workspace_mb) < 1:
        raise SandboxOperationFailed("be made", "refused", "its limits must be above zero")
    if limits.cpus <= 0 or min(limits.tmp_mb, limits.output_bytes, limits.file_mb) < 1:
        raise SandboxOperationFailed("be made", "refused", "its limits must be above zero")
    for name, value in spec.environment.items():
        if not _NAME.fullmatch(name) or "\0" in value:
            raise SandboxOperationFailed(
                "be made", "refused", f"{name!r} cannot be a name of its environment"
            )
    return spec


def workspace_path(path: str, operation: str) -> str:
    """A path of the workspace, plain. Raises SandboxOperationFailed if it leads outside."""
    relative = path.removeprefix(WORKSPACE + "/") if path.startswith(WORKSPACE) else path
    if path == WORKSPACE:
        relative = ""
    try:
        if "\0" in relative:
            raise archive.ArchiveRefused("a path with a zero byte")
        return archive.plain_name(relative)
    except archive.ArchiveRefused as refused:
        raise SandboxOperationFailed(
            operation, "outside", f"{path!r} is {refused.reason}"
        ) from None


def file_path(path: str, operation: str, *, writing: bool = False) -> str:
    """A path of a file in one of the three parts; in the read-only one only for reading."""
    plain = workspace_path(path, operation)
    part = plain.partition("/")[0]
    if part not in PARTS or part == plain:
        raise SandboxOperationFailed(operation, "outside", f"{path!r} is in no part of it")
    if writing and part == INPUT:
        raise SandboxOperationFailed(operation, "read_only", f"{path!r} may only be read")
    return plain


class ConfinedSandbox(ABC):
    """A sandbox whose commands are real. See `runs.sandbox.Sandbox` for what it promises."""

    provider: str

    def __init__(self, ref: str, spec: SandboxSpec, image_digest: str) -> None:
        self.ref = ref
        self.spec = spec
        self.limits: Limits = spec.limits
        self.image_digest = image_digest
        self._ends = time.monotonic() + spec.limits.wall_seconds
        self._closed = False

    # --- What a provider says ------------------------------------------------

    @abstractmethod
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
        """Run one command confined, and kill all of it at a limit.

        `giving` writes its standard input in place of `stdin`, `taking` reads its standard output,
        of which the result then holds nothing. `as_owner` may write to input/, and runs nothing
        that the agent had a hand in. Raises SandboxLost.
        """

    @abstractmethod
    async def _start(
        self, argv: Sequence[str], *, tty: bool, lifetime: float, environment: Mapping[str, str]
    ) -> Command: ...

    @abstractmethod
    async def _still(self) -> None:
        """End every command that still runs."""

    @abstractmethod
    async def _stands(self) -> str:
        """Why the sandbox is not there any more; an empty string if it is."""

    @abstractmethod
    async def _remove(self) -> None: ...

    # --- What all of them do ---------------------------------------------------

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        workdir: str = REPO,
        stdin: bytes = b"",
    ) -> ExecResult:
        command = self._entering(argv, workdir, "run a command")
        return await self._run(
            command,
            timeout=min(timeout, self._time_left()),
            environment=self._environment(),
            stdin=stdin,
            output_bytes=self.limits.output_bytes,
        )

    async def start(
        self,
        argv: Sequence[str],
        *,
        workdir: str = REPO,
        tty: bool = False,
        lifetime: float | None = None,
    ) -> Command:
        command = self._entering(argv, workdir, "start a command")
        left = self._time_left()
        return await self._start(
            command,
            tty=tty,
            lifetime=left if lifetime is None else min(lifetime, left),
            environment=self._environment("xterm" if tty else "dumb"),
        )

    async def write(
        self, path: str, data: bytes, *, mode: int = 0o644, exclusive: bool = False
    ) -> None:
        operation = f"write {path!r}"
        plain = file_path(path, operation, writing=True)
        if len(data) > self.limits.file_mb << 20:
            raise SandboxOperationFailed(operation, "too_big", "it is over the limit of one file")
        how = "new" if exclusive else "any"
        await self._inside(operation, "write", plain, f"{mode & 0o777:o}", how, stdin=data)

    async def read(self, path: str, *, max_bytes: int) -> bytes:
        operation = f"read {path!r}"
        plain = file_path(path, operation)
        result = await self._inside(operation, "read", plain, str(max_bytes), room=max_bytes + 1)
        if len(result.stdout) > max_bytes:
            raise SandboxOperationFailed(operation, "too_big", f"it is over {max_bytes} bytes")
        return result.stdout

    async def load(self, tree: Path, into: Part) -> None:
        operation = f"load {into}/"
        with tempfile.TemporaryFile() as spool:
            try:
                await asyncio.to_thread(
                    archive.pack,
                    tree,
                    spool,
                    into=into,
                    max_bytes=self.limits.workspace_mb << 20,
                    max_files=MOST_FILES,
                )
            except archive.ArchiveRefused as refused:
                raise as_failure(operation, refused) from refused
            await self._untar(operation, spool, {into: [(0, spool.tell() - len(archive.END))]})

    async def export(
        self, part: Literal["repo", "output"], dest: Path, *, max_bytes: int, max_files: int
    ) -> ExportInfo:
        operation = f"export {part}/"
        building = dest.with_name(f".{dest.name}.{secrets.token_hex(4)}")
        if dest.exists():
            raise SandboxOperationFailed(operation, "exists", f"{dest} is there already")
        await self._still()
        try:
            (files, size, left_out), missed = await self._tar(
                operation,
                [part],
                partial(
                    archive.unpack,
                    part=part,
                    dest=building,
                    max_bytes=max_bytes,
                    max_files=max_files,
                ),
            )
            building.chmod(0o755)
            building.rename(dest)
        finally:
            await asyncio.to_thread(remove_tree, building)
        return ExportInfo(files, size, archive.named({*left_out, *missed}))

    async def snapshot(self, dest: Path) -> SnapshotInfo:
        building = dest.with_name(f".{dest.name}.{secrets.token_hex(4)}")
        try:
            with os.fdopen(
                os.open(building, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b"
            ) as out:
                taken = await self.snapshot_into(out)
                await asyncio.to_thread(os.fsync, out.fileno())
                out.seek(0)
                total = await asyncio.to_thread(hashlib.file_digest, out, "sha256")
            building.rename(dest)
        finally:
            building.unlink(missing_ok=True)
        return SnapshotInfo(taken.size, taken.left_out, total.hexdigest())

    async def snapshot_into(self, out: BinaryIO, keeper: archive.Keeper | None = None) -> Taken:
        await self._still()
        writer = archive.Writer(out)

        def take(stream: archive.Source) -> tuple[str, ...]:
            left_out = archive.clean(
                stream,
                writer,
                max_bytes=len(PARTS) * self.limits.workspace_mb << 20,
                max_files=len(PARTS) * MOST_FILES,
                keeper=keeper or archive.Keeper(),
            )
            writer.end()
            return left_out

        left_out, missed = await self._tar("take a snapshot", PARTS, take)
        return Taken(writer.size, archive.named({*left_out, *missed}))

    async def alive(self) -> bool:
        return not self._closed and self._ends > time.monotonic() and not await self._stands()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # A cancelled run must clean up as well, so the cancellation waits until it is done.
        removal = asyncio.ensure_future(self._remove())
        try:
            await asyncio.shield(removal)
        except asyncio.CancelledError:
            await removal
            raise

    def sdk_session(self) -> Any:
        # The agents SDK takes a second and some sixty megabytes to import. Only the process that
        # drives an agent needs it.
        return importlib.import_module("runs.sandbox.session").session_over(self)

    # --- Helpers ----------------------------------------------------------------

    async def filled(
        self, make: Callable[[], object], snapshot: Path | io.BufferedReader, sha256: str | None
    ) -> None:
        """Make the workspace, and fill it with a snapshot that is verified meanwhile.

        Raises RestoreFailed before anything is written, if it must, and what `make` raises.
        """
        try:
            opening = (
                snapshot.open("rb")
                if isinstance(snapshot, Path)
                else contextlib.nullcontext(snapshot)
            )
        except OSError as failed:
            raise RestoreFailed(f"it cannot be read: {failed.strerror}") from failed
        with opening as opened:
            # Checked and used through one descriptor: what was checked is what is used.
            made, verified = await asyncio.gather(
                asyncio.to_thread(make),
                asyncio.to_thread(self._verified, opened, sha256),
                return_exceptions=True,
            )
            if isinstance(verified, BaseException):
                raise verified
            if isinstance(made, BaseException):
                raise made
            try:
                await self._untar("restore the snapshot", opened, verified)
            except SandboxOperationFailed as failed:
                raise RestoreFailed(failed.detail) from failed

    def _verified(self, opened: io.BufferedReader, sha256: str | None) -> dict[str, archive.Ranges]:
        if sha256 is not None:
            opened.seek(0)
            found = hashlib.file_digest(opened, "sha256").hexdigest()
            if found != sha256:
                raise SnapshotDamaged(f"its digest is {found} and not {sha256}")
        try:
            return archive.check_snapshot(
                opened,
                PARTS,
                max_bytes=len(PARTS) * self.limits.workspace_mb << 20,
                max_files=len(PARTS) * MOST_FILES,
            )
        except archive.ArchiveRefused as refused:
            raise RestoreFailed(refused.reason, member=refused.member) from refused

    async def _tar(
        self, operation: str, parts: Sequence[str], take: Callable[[archive.Source], T]
    ) -> tuple[T, set[str]]:
        """Let `take` read parts of the workspace as the sandbox's tar gives them: unchecked.

        Returns what it returned, and what tar could not read. Nothing of it may be used before.
        """
        most = (len(parts) * self.limits.workspace_mb << 20) + MOST_FILES * 4 * archive.BLOCK
        took: list[T] = []
        trouble: list[Exception] = []

        def taking(descriptor: int) -> None:
            try:
                with open(descriptor, "rb", closefd=False) as pipe:
                    stream = archive.Stream(pipe, most)
                    took.append(take(stream))
                    stream.finish()
            except Exception as error:
                trouble.append(error)

        result = await self._run(
            ["/bin/sh", "-c", f"cd {WORKSPACE} && {_TAKE}", "sh", *parts],
            timeout=COPY_SECONDS,
            environment=_PLAIN,
            taking=taking,
            output_bytes=1 << 20,
        )
        if result.timed_out:
            raise SandboxOperationFailed(operation, "timed_out", "copying took too long")
        failed = result.truncated or result.exit_code not in (0, 1)
        for error in trouble:
            if isinstance(error, archive.ArchiveCutShort) and failed:
                continue  # tar knows why
            if isinstance(error, archive.ArchiveRefused):
                raise as_failure(operation, error) from error
            raise error
        if failed:
            raise SandboxOperationFailed(operation, "engine", _last_words(result))
        complaints = result.stderr.decode(errors="replace").splitlines()
        return took[0], {
            archive.shown(line.removeprefix("tar: "))
            for line in complaints
            if line.startswith("tar: ") and "failure status" not in line
        }

    async def _untar(
        self, operation: str, spool: io.BufferedIOBase, parts: Mapping[str, archive.Ranges]
    ) -> None:
        """Unpack parts of a checked archive, each of which lies in it where its ranges say."""
        theirs = sorted(each for part in parts if part != INPUT for each in parts[part])
        owners = sorted(parts.get(INPUT, ()))
        ended = await asyncio.gather(
            *(
                self._unpacked(operation, spool.fileno(), ranges, as_owner=as_owner)
                for ranges, as_owner in ((theirs, False), (owners, True))
                if ranges
            ),
            return_exceptions=True,
        )
        for end in ended:
            if end is not None:
                raise end

    async def _unpacked(
        self, operation: str, source: int, ranges: archive.Ranges, *, as_owner: bool
    ) -> None:
        missing = "nobody took it"

        def giving(descriptor: int) -> None:
            nonlocal missing
            try:
                _give(source, ranges, descriptor)
                missing = ""
            except OSError as error:
                missing = str(error)

        result = await self._run(
            _FILL,
            timeout=COPY_SECONDS,
            environment=_PLAIN,
            giving=giving,
            output_bytes=1 << 20,
            as_owner=as_owner,
        )
        if result.timed_out:
            raise SandboxOperationFailed(operation, "timed_out", "copying took too long")
        if result.exit_code:
            words = _last_words(result)
            full = "No space left" in words or "File too large" in words
            raise SandboxOperationFailed(
                operation, "no_space" if full else "engine", words or "tar failed"
            )
        if missing:
            # To tar an archive that ends between two members may be a whole one.
            raise SandboxOperationFailed(operation, "engine", f"not all was given: {missing}")

    async def _inside(
        self, operation: str, what: str, plain: str, *more: str, stdin: bytes = b"", room: int = 0
    ) -> ExecResult:
        self._check_open()
        result = await self._run(
            [*_PYTHON, f"{image.HELPERS}/inside.py", what, f"{WORKSPACE}/{plain}", *more],
            timeout=FILE_SECONDS,
            environment=_PLAIN,
            stdin=stdin,
            output_bytes=room + (1 << 16),
        )
        return self._judged(operation, result)

    def _judged(self, operation: str, result: ExecResult) -> ExecResult:
        """What `inside.py` answered. Raises SandboxOperationFailed with its reason."""
        if result.timed_out:
            raise SandboxOperationFailed(operation, "timed_out", "it took too long")
        if result.exit_code:
            reason = _REASONS.get(result.exit_code, "engine")
            words = _WORDS.get(reason) or _last_words(result)
            raise SandboxOperationFailed(operation, reason, words)
        return result

    def _entering(self, argv: Sequence[str], workdir: str, operation: str) -> list[str]:
        if not argv or any("\0" in argument for argument in argv):
            raise SandboxOperationFailed(operation, "refused", "it is empty or has a zero byte")
        folder = workspace_path(workdir, operation)
        return ["/bin/sh", "-c", _ENTER, "sh", f"{WORKSPACE}/{folder}", *argv]

    def _environment(self, terminal: str = "dumb") -> dict[str, str]:
        environment = {
            "PATH": image.INNER_PATH,
            "HOME": image.INNER_HOME,
            "LANG": "C.UTF-8",
            "TERM": terminal,
            "TZ": "UTC",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if self.spec.egress_dir is not None:
            proxy = "http://127.0.0.1:3128"
            for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
                environment[name] = proxy
            environment["no_proxy"] = environment["NO_PROXY"] = "127.0.0.1,localhost"
        return environment | dict(self.spec.environment)

    def _time_left(self) -> float:
        self._check_open()
        left = self._ends - time.monotonic()
        if left <= 0:
            raise SandboxLost(self.ref, f"its time of {self.limits.wall_seconds} s is over")
        return left

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxLost(self.ref, "it was closed")


_PYTHON = ("/usr/bin/python3", "-I", "-S")


def _give(source: int, ranges: archive.Ranges, descriptor: int) -> None:
    """Write pieces of a file to a command as one tar. Raises OSError."""
    for start, end in ranges:
        while start < end:
            sent = os.sendfile(descriptor, source, start, min(end - start, archive.CHUNK))
            if not sent:
                raise OSError("the file has become shorter")
            start += sent
    os.write(descriptor, archive.END)


def as_failure(operation: str, refused: archive.ArchiveRefused) -> SandboxOperationFailed:
    """What it means for an operation that an archive was refused."""
    reason: FailureReason = "too_big" if isinstance(refused, archive.ArchiveTooBig) else "refused"
    return SandboxOperationFailed(operation, reason, str(refused))


def _last_words(result: ExecResult) -> str:
    return archive.shown(result.stderr.decode(errors="replace").strip()[-500:])


def remove_tree(path: Path) -> None:
    """Remove what a stranger filled, without following a link. Absent is fine.

    Raises OSError if something is left. Not shutil.rmtree: it recurses, and a hostile tree can be
    deeper than Python's stack.
    """
    if not os.path.lexists(path):
        return
    for command in (("rm", "-rf"), ("chmod", "-R", "u+rwX"), ("rm", "-rf")):
        subprocess.run([*command, "--", str(path)], capture_output=True, check=False)
        if not os.path.lexists(path):
            return
    raise OSError(f"{path} could not be removed")
