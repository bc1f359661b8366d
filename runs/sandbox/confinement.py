"""How bubblewrap confines one command, and the proof that it does so on this machine.

The proof is a real launch with a canary, not a look for the program: a kernel or a container around
us may forbid what bubblewrap needs, and then it is better to know before an agent runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runs.sandbox import INPUT, PARTS, WORKSPACE, Limits, SandboxUnavailable, image, seccomp
from runs.sandbox.cgroups import Cgroup

MARK = "IMPRIMATUR_SANDBOX"
"""In the environment of each bwrap process (and of nothing inside it): which sandbox it serves."""

_PROC_READ_ONLY = (
    *("sys", "sysrq-trigger", "irq", "bus", "fs", "driver", "dynamic_debug", "pressure"),
    "mtrr",
)
_PROC_HIDDEN = (
    *("acpi", "asound", "scsi", "kcore", "keys", "key-users", "kmsg", "latency_stats"),
    *("sched_debug", "timer_list", "timer_stats"),
)

# Limits of the process, then bubblewrap in its place. $1 the cgroups to join or -, $2 512-byte
# blocks of one file, $3 kilobytes of data or -, $4 processes or -, $5 the terminal or -.
# Shells differ in the letter for processes: dash has -p, bash and others have -u.
_LAUNCH = r"""
set -e
if [ "$1" != - ]; then for group in $1; do echo $$ > "$group/cgroup.procs"; done; fi
ulimit -c 0; ulimit -n 1024; ulimit -f "$2"
if [ "$3" != - ]; then ulimit -d "$3"; fi
if [ "$4" != - ]; then ulimit -u "$4" 2>/dev/null || ulimit -p "$4"; fi
if [ "$5" != - ]; then exec 0<>"$5" 1>&0 2>&0; fi
shift 5
exec "$@"
"""

_CANARY = r"""
test -e "$1" && echo "sees: $1"
test -r /etc/shadow && echo "sees: /etc/shadow"
test "$(id -u)" = 0 && echo "is: root"
test -w /proc/sys/kernel/core_pattern && echo "writes: /proc/sys"
test -w /usr && echo "writes: /usr"
grep -q '^CapEff:.0*$' /proc/self/status || echo "has: capabilities"
grep -q '^NoNewPrivs:.1$' /proc/self/status || echo "may: gain privileges"
test "$2" = 0 || grep -q '^Seccomp:.2$' /proc/self/status || echo "lacks: the system call filter"
test "$(grep -c : /proc/net/dev)" = 1 || echo "has: a network device"
python3 -I -S -c '
import socket, sys
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), 2)
    print("reaches: the host on its loopback address")
except OSError:
    pass
' "$3"
echo ISOLATED
"""


@dataclass(frozen=True)
class Found:
    """A bwrap that isolates, what it isolates with, and what it cannot do here."""

    program: Path
    version: str
    image: image.Image
    filter: bytes | None
    cgroups: bool
    sized: bool

    @property
    def weaker(self) -> tuple[str, ...]:
        return (
            *(() if self.cgroups else ("memory and processes are bounded per process only",)),
            *(() if self.cgroups else ("processor time is not shared out",)),
            *(() if self.sized else ("the workspace's size is watched, not enforced",)),
            *(() if self.filter else ("no system call filter for this machine",)),
        )


# --- Proof --------------------------------------------------------------------


def prove(programs: Sequence[Path], built: image.Image, home: Path, mark: str) -> Found:
    reasons = []
    for program in programs:
        try:
            return _proved(program, built, home, mark)
        except _NotIsolated as not_isolated:
            reasons.append(f"{program}: {not_isolated}")
    if not reasons:
        raise SandboxUnavailable(
            "bubblewrap is not installed.",
            "Install it (Debian: apt-get install bubblewrap), or start a Docker engine.",
        )
    raise SandboxUnavailable(
        f"bubblewrap cannot isolate here: {'; '.join(reasons)}{_kernel_hint()}.",
        "Let this user make user namespaces (see the named kernel setting, or the settings of the "
        "container this runs in), or start a Docker engine.",
    )


class _NotIsolated(Exception):
    pass


def _kernel_hint() -> str:
    for name, bad in (
        ("user/max_user_namespaces", "0"),
        ("kernel/unprivileged_userns_clone", "0"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1"),
    ):
        with contextlib.suppress(OSError):
            if Path("/proc/sys", name).read_text().strip() == bad:
                return f" ({name.replace('/', '.')} is {bad})"
    return ""


def _proved(program: Path, built: image.Image, home: Path, mark: str) -> Found:
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as failed:
        raise _NotIsolated(f"it does not run ({failed})") from failed
    found = Found(
        program=program,
        version=said.stdout.strip(),
        image=built,
        filter=seccomp.compiled(),
        cgroups=Cgroup.can_be_made(mark),
        sized=_canmount(home),
    )
    with (
        tempfile.TemporaryDirectory(dir=home.parent) as place,
        tempfile.NamedTemporaryFile(dir=home.parent) as canary,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        make_folders(Path(place))
        command = ["/bin/sh", "-c", _CANARY, "sh", canary.name]
        command += ["0" if found.filter is None else "1", str(listener.getsockname()[1])]
        with launching(
            found, Path(place), Limits(), "-", command, {"PATH": image.INNER_PATH}, "canary"
        ) as (argv, fds):
            try:
                ran = subprocess.run(
                    argv,
                    pass_fds=fds,
                    capture_output=True,
                    timeout=30,
                    env={MARK: "canary"},
                    cwd="/",
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as failed:
                raise _NotIsolated(str(failed)) from failed
    lines = ran.stdout.decode(errors="replace").split("\n")
    if ran.returncode or lines != ["ISOLATED", ""]:
        words = [ran.stderr.decode(errors="replace").strip()[:300]]
        found_out = [line for line in lines + words if line not in ("", "ISOLATED")]
        raise _NotIsolated("; ".join(found_out) or "no answer")
    return found


def _canmount(home: Path) -> bool:
    """Whether this process may mount a sized tmpfs, which is the quota of a workspace."""
    if os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory(dir=home.parent) as place:
        try:
            mount(Path(place), 1, 16)
        except subprocess.CalledProcessError:
            return False
        unmount(Path(place))
    return True


def mount(place: Path, megabytes: int, files: int) -> None:
    options = f"size={megabytes}m,nr_inodes={files},mode=0755,nosuid,nodev"
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "imprimatur", place],
        check=True,
        capture_output=True,
        env={"PATH": image.SEARCH},
    )


def unmount(place: Path) -> None:
    # Lazily: a process that is on its way out must not keep the folder.
    subprocess.run(
        ["umount", "-l", place], capture_output=True, env={"PATH": image.SEARCH}, check=False
    )


# --- How one command is launched -----------------------------------------------


def _memory_file(data: bytes) -> int:
    fd = os.memfd_create("imprimatur", os.MFD_CLOEXEC)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


@contextlib.contextmanager
def launching(
    found: Found,
    folder: Path,
    limits: Limits,
    groups: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    ref: str,
    *,
    egress: Path | None = None,
    as_owner: bool = False,
    terminal: str = "-",
    status_fd: int | None = None,
    full: bool = False,
) -> Iterator[tuple[list[str], list[int]]]:
    """The command line of one launch and the descriptors it needs, open for as long as the block.

    The options travel in a descriptor: the environment of a sandbox must neither show in the list
    of processes nor be the environment of the shell and the bwrap outside of it.
    """
    options = [
        *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"),
        *("--uid", str(image.AGENT_UID), "--gid", str(image.AGENT_UID)),
        *("--hostname", "sandbox", "--cap-drop", "ALL", "--clearenv"),
        *("--ro-bind", str(found.image.root), "/", "--proc", "/proc"),
    ]
    for name in _PROC_READ_ONLY:
        if os.path.exists(f"/proc/{name}"):
            options += ["--ro-bind", f"/proc/{name}", f"/proc/{name}"]
    for name in _PROC_HIDDEN:
        if os.path.isdir(f"/proc/{name}"):
            options += ["--ro-bind", str(found.image.root / "home"), f"/proc/{name}"]
        elif os.path.exists(f"/proc/{name}"):
            options += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    options += [
        *("--dev", "/dev", "--size", str(16 << 20), "--tmpfs", "/dev/shm"),  # noqa: S108
        *("--bind", str(folder / "tmp"), image.INNER_HOME),
    ]
    for part in PARTS:
        how = "--ro-bind" if part == INPUT and not as_owner else "--bind"
        options += [how, str(folder / "work" / part), f"{WORKSPACE}/{part}"]
    if egress is not None:
        options += ["--ro-bind", str(egress), "/egress"]
        forward = ["/usr/bin/python3", "-I", "-S", f"{image.HELPERS}/forward.py"]
        command = [*forward, "/egress/proxy.sock", *command]
    # The devices' folder is a file system in memory that nothing bounds.
    options += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORKSPACE]
    for name, value in environment.items():
        options += ["--setenv", name, value]
    fds = []
    try:
        if found.filter is not None:
            fds.append(_memory_file(found.filter))
            options += ["--seccomp", str(fds[-1])]
        if status_fd is not None:
            options += ["--json-status-fd", str(status_fd)]
        fds.append(_memory_file(b"".join(option.encode() + b"\0" for option in options)))
        bounded = groups != "-"
        argv = [
            *("/bin/sh", "-c", _LAUNCH, "sh", groups),
            "0" if full else str(min(limits.file_mb, limits.workspace_mb) * 2048),
            "-" if bounded else str(limits.memory_mb * 1024),
            "-" if bounded else str(_processes_of_this_user() + limits.pids),
            terminal,
            *(str(found.program), "--args", str(fds[-1]), "--", *command),
        ]
        passed = fds if status_fd is None else [*fds, status_fd]
        yield argv, passed
    finally:
        for fd in fds:
            os.close(fd)


def _processes_of_this_user() -> int:
    """How many tasks this user has: the kernel counts them all against RLIMIT_NPROC."""
    me = os.getuid()
    total = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == me:
                    total += len(os.listdir(f"/proc/{entry.name}/task"))
    return total


# --- What a sandbox stands on --------------------------------------------------


def make_folders(folder: Path) -> None:
    for name in (*(f"work/{part}" for part in PARTS), "tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)


def kill_marked(ref: str) -> None:
    """Kill the bwrap processes of one sandbox, whoever started them; what is inside dies too."""
    mark = f"{MARK}={ref}".encode()
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if mark in Path(entry.path, "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
