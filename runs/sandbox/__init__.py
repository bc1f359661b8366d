"""Where model-directed work executes, and never on the application's host.

A `SandboxProvider` makes a `Sandbox`: a workspace with three folders and a way to run commands in
it, confined. Three providers stand behind the protocol: `bubblewrap`, `docker` and `scripted` (in
memory, for tests). One conformance suite in `tests/sandbox/` says what each of them must do.

    /workspace/repo/     the source; commands start here
    /workspace/input/    what the job was given; the agent can only read it
    /workspace/output/   the tray: what the agent offers

Everything that comes out of a sandbox is hostile: output is cut at a limit, an archive is read
member by member and never unpacked with its links followed, and whoever holds a `Sandbox` closes
it, whatever happened, with `close()`.

Nothing here imports the agents SDK, Docker or a web framework; `get_provider` loads the one module
that is asked for.
"""

from __future__ import annotations

import importlib
import io
import threading
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Literal, Protocol, cast

if TYPE_CHECKING:
    from runs.sandbox import archive

WORKSPACE = "/workspace"
"""The workspace as commands see it, in every provider."""

REPO: Literal["repo"] = "repo"
INPUT: Literal["input"] = "input"
OUTPUT: Literal["output"] = "output"
PARTS: tuple[Part, ...]

Part = Literal["repo", "input", "output"]
Boundary = Literal["execution", "recovery"]
ProviderName = Literal["auto", "bubblewrap", "docker", "scripted"]

PARTS = (REPO, INPUT, OUTPUT)

DEFAULT_PACKAGES: tuple[str, ...] = ("pytest",)
"""Python distributions of the portal's own environment that the sandbox's python3 can import."""


@dataclass(frozen=True)
class Limits:
    """What one sandbox may use. A provider enforces all it can; `check()` reports the rest."""

    wall_seconds: int = 1800
    memory_mb: int = 1024
    cpus: float = 1.0
    pids: int = 128
    workspace_mb: int = 256
    tmp_mb: int = 64
    output_bytes: int = 8 << 20
    """Of one command, standard output and error together."""
    file_mb: int = 256


@dataclass(frozen=True)
class SandboxSpec:
    """What a sandbox is made from. `environment` is for plain values: it is no place for secrets.

    `egress_dir` is a host folder with a `proxy.sock`; without it there is no way out at all.
    """

    run_id: str
    tenant: str
    limits: Limits = field(default_factory=Limits)
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    egress_dir: Path | None = None


@dataclass(frozen=True)
class ExecResult:
    """How one command ended. One that timed out or was truncated was killed with its children."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    truncated: bool
    duration_ms: int
    timed_out: bool


@dataclass(frozen=True)
class Taken:
    """What was written of a snapshot. `left_out` names each member that it does not hold, and why.

    Its digest is for whoever reads it back to say.
    """

    size: int
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class SnapshotInfo(Taken):
    """A snapshot that stands in a file of its own, with the digest it has there."""

    sha256: str


@dataclass(frozen=True)
class ExportInfo:
    """What was copied out. `left_out` names each path that was not, and why."""

    files: int
    bytes: int
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class ProviderReport:
    """What `check()` proved. `weaker` names limits that this machine cannot enforce for sure."""

    provider: str
    version: str
    image_digest: str
    isolation: tuple[str, ...]
    weaker: tuple[str, ...] = ()


class SandboxError(Exception):
    """A sandbox failed. `boundary` says whose failure it is, `retry_safe` whether to try again."""

    code: ClassVar[str] = "sandbox.failed"
    boundary: Boundary = "execution"
    retry_safe: bool = False


class SandboxUnavailable(SandboxError):
    """Isolation cannot be had here. The run is refused; nothing weaker is used instead."""

    code = "sandbox.unavailable"
    retry_safe = True

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{reason} {remedy}")


class SandboxLost(SandboxError):
    """The sandbox is gone in the middle of its work, and with it all that no snapshot holds."""

    code = "sandbox.lost"

    def __init__(self, ref: str, reason: str) -> None:
        self.ref = ref
        self.reason = reason
        super().__init__(
            f"The sandbox {ref} is gone: {reason}. Start again from the last snapshot."
        )


FailureReason = Literal[
    "not_found",
    "outside",
    "not_a_file",
    "read_only",
    "no_space",
    "too_big",
    "exists",
    "refused",
    "timed_out",
    "engine",
]


class SandboxOperationFailed(SandboxError):
    """One operation failed; the sandbox stands. `reason` is stable, `detail` is for people."""

    code = "sandbox.operation_failed"

    def __init__(self, operation: str, reason: FailureReason, detail: str) -> None:
        self.operation = operation
        self.reason: FailureReason = reason
        self.detail = detail
        self.retry_safe = reason in ("engine", "timed_out")
        super().__init__(f"The sandbox could not {operation}: {detail}")


class RestoreFailed(SandboxError):
    """A snapshot was not restored: it is not the one that was taken, or not one to be trusted.

    `member` names the member of the archive that was refused, where there is one.
    """

    code = "sandbox.restore_failed"
    boundary = "recovery"

    def __init__(self, reason: str, *, member: str | None = None) -> None:
        self.reason = reason
        self.member = member
        where = "" if member is None else f" (member {member!r})"
        super().__init__(
            f"The snapshot was not restored: {reason}{where}. The run cannot go on from it."
        )


class SnapshotDamaged(RestoreFailed):
    """Its bytes are not those that were stored."""


class Command(Protocol):
    """A command that was started and goes on while others run; made for terminal sessions.

    Its output is one stream, cut at the limit of one command: then it is killed. It ends at the
    latest with the sandbox or at the end of its `lifetime`.
    """

    async def read(self, max_bytes: int = 65536) -> bytes:
        """The next output, waiting for it; b"" at the end."""

    async def write(self, data: bytes) -> None:
        """Type into its terminal; `refused` without one. An ended command takes it in silence."""

    async def wait(self) -> int:
        """Its exit code; 128 + n where signal n ended it. Raises SandboxLost."""

    async def kill(self) -> None:
        """End it with everything it started. Safe to repeat."""


class Sandbox(Protocol):
    """One workspace and the way to work in it. Paths are relative to the workspace."""

    ref: str
    provider: str
    image_digest: str
    limits: Limits

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        workdir: str = "repo",
        stdin: bytes = b"",
    ) -> ExecResult:
        """Run one command to its end. A command that fails is a result, not an error.

        After `timeout` seconds everything that it started is killed. Raises SandboxLost when
        the sandbox is not there any more, also when it was lost while the command ran.
        """

    async def start(
        self,
        argv: Sequence[str],
        *,
        workdir: str = "repo",
        tty: bool = False,
        lifetime: float | None = None,
    ) -> Command:
        """Start a command and leave it running, at most `lifetime` or the sandbox's wall time."""

    async def write(
        self, path: str, data: bytes, *, mode: int = 0o644, exclusive: bool = False
    ) -> None:
        """Write one file of repo/ or output/, making its folders. Never through a link out.

        An `exclusive` write makes the file: `exists` if the name is taken, be it by a link.
        """

    async def read(self, path: str, *, max_bytes: int) -> bytes:
        """One regular file. Raises SandboxOperationFailed, `too_big` if it holds more."""

    async def load(self, tree: Path, into: Part) -> None:
        """Copy a host folder, prepared by the outer runtime, into a part of the workspace.

        Links are copied as links; one that leaves the part is refused, as are devices.
        """

    async def export(
        self, part: Literal["repo", "output"], dest: Path, *, max_bytes: int, max_files: int
    ) -> ExportInfo:
        """Copy regular files, folders and links (as links, never followed) out to a new `dest`.

        What is neither is left out and named. More than the limits: `too_big`, and no `dest`.
        Commands that still run are ended first: what is taken stands still.
        """

    async def snapshot(self, dest: Path) -> SnapshotInfo:
        """Write all three parts to one tar at `dest`, which then appears whole or not at all.

        Commands that still run are ended first, as for `export`.
        """

    async def snapshot_into(self, out: BinaryIO, keeper: archive.Keeper | None = None) -> Taken:
        """Write all three parts to an open file, in another thread, as far as `keeper` keeps them.

        The file is the caller's: what stands in it counts only if this returns.
        """

    async def alive(self) -> bool:
        """Whether a command could be run in it now."""

    async def close(self) -> None:
        """Remove it: no process, container, cgroup or folder is left. Safe to repeat."""

    def sdk_session(self) -> Any:
        """A started session of the agents SDK over this sandbox, for `runs/agent/` alone.

        Its commands, terminals and file operations all go through the methods above. It belongs
        to the sandbox: its own `stop()`, `shutdown()` and `aclose()` end terminals and no more.
        """


class SandboxProvider(Protocol):
    """Makes sandboxes of one kind on this machine."""

    name: str

    def check(self) -> ProviderReport:
        """Prove the isolation by running a canary. Raises SandboxUnavailable."""

    async def create(
        self,
        spec: SandboxSpec,
        *,
        restore: Path | io.BufferedReader | None = None,
        restore_sha256: str | None = None,
    ) -> Sandbox:
        """A fresh workspace, or one with the content of a snapshot, which may be open already.

        A snapshot is used only if its bytes have the given digest and each of its members is a
        plain file, folder or inner link of the three parts. Raises RestoreFailed, and then
        nothing is left behind.
        """

    async def reap(self, alive_run_ids: Container[str]) -> list[str]:
        """Remove what was left by runs that are not alive; returns what was removed.

        Asks about each sandbox after it was found, in another thread. An answer that is looked
        up at that moment misses no run that began meanwhile; a list made before does.

        Touches only what this installation (this data directory) made.
        """


def get_provider(
    name: ProviderName,
    *,
    data_dir: Path,
    packages: Sequence[str] = DEFAULT_PACKAGES,
) -> SandboxProvider:
    """The provider of that name, keeping what it builds under `data_dir`.

    There is one per process and data directory: what `check()` proved is not proved again.

    "auto" is bubblewrap where it can isolate, else Docker where an engine answers, else
    SandboxUnavailable with both reasons; it is never the scripted one.
    """
    if name != "auto":
        return _load(name, data_dir, tuple(packages))
    reasons: list[str] = []
    for candidate in ("bubblewrap", "docker"):
        try:
            provider = _load(candidate, data_dir, tuple(packages))
            provider.check()
        except SandboxUnavailable as unavailable:
            reasons.append(f"{candidate}: {unavailable.reason}")
        else:
            return provider
    raise SandboxUnavailable(
        "No sandbox can be made on this machine (" + "; ".join(reasons) + ").",
        "Install bubblewrap (Debian: apt-get install bubblewrap) or start a Docker engine.",
    )


def without_sandbox(data_dir: Path) -> SandboxProvider:
    """What a run gets that has no sandbox: empty folders in memory, in which nothing runs.

    It can be made where no provider can, and is none that an installation could name.
    """
    return _load("toolless", data_dir, ())


_loaded: dict[tuple[str, Path, tuple[str, ...]], SandboxProvider] = {}
_loading = threading.Lock()


def _load(name: str, data_dir: Path, packages: tuple[str, ...]) -> SandboxProvider:
    # The providers pull in Docker's client or nothing at all; a process that only shows pages
    # should not pay for them, so they are loaded by name and by need.
    with _loading:
        key = (name, data_dir, packages)
        if key not in _loaded:
            module = importlib.import_module(f"runs.sandbox.{name}")
            made = module.Provider(data_dir=data_dir, packages=packages)
            _loaded[key] = cast(SandboxProvider, made)
        return _loaded[key]
