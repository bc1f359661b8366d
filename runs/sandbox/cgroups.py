"""What a whole sandbox may use of this machine: its cgroup, where this process may make one."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from runs.sandbox import Limits

_CGROUPS = Path("/sys/fs/cgroup")


class Cgroup:
    """The cgroup of one sandbox: one folder in the one tree of version 2, or three of version 1."""

    def __init__(self, ref: str, folders: Sequence[Path]) -> None:
        self.ref = ref
        self.folders = tuple(folders)

    @staticmethod
    def _trees() -> dict[str, Path]:
        if (_CGROUPS / "cgroup.controllers").exists():
            return {"all": _CGROUPS}
        return {name: _CGROUPS / name for name in ("pids", "memory", "cpu")}

    @classmethod
    def of(cls, mark: str, ref: str) -> Cgroup:
        """The cgroup that a sandbox has or would have."""
        return cls(ref, [tree / f"{mark}-{ref}" for tree in cls._trees().values()])

    @classmethod
    def all_of(cls, mark: str) -> list[Cgroup]:
        """Every cgroup that this installation has made."""
        refs = set()
        for tree in cls._trees().values():
            with contextlib.suppress(OSError):
                refs |= {
                    name.removeprefix(f"{mark}-")
                    for name in os.listdir(tree)
                    if name.startswith(f"{mark}-") and not name.endswith("-canary")
                }
        return [cls.of(mark, ref) for ref in sorted(refs)]

    @classmethod
    def can_be_made(cls, mark: str) -> bool:
        if os.geteuid() != 0:
            return False
        group = cls.of(mark, f"{secrets.token_hex(4)}-canary")
        try:
            group.make(Limits())
        except OSError:
            return False
        finally:
            group.remove()
        return True

    def make(self, limits: Limits) -> None:
        """Make it with the limits. Raises OSError if one of them cannot be set."""
        memory, quota = limits.memory_mb << 20, int(limits.cpus * 100_000)
        if (_CGROUPS / "cgroup.controllers").exists():
            wanted = {
                "pids.max": str(limits.pids),
                "memory.max": str(memory),
                "cpu.max": f"{quota} 100000",
            }
            optional = {"memory.swap.max": "0"}
            for controller in ("+pids", "+memory", "+cpu"):
                with contextlib.suppress(OSError):
                    (_CGROUPS / "cgroup.subtree_control").write_text(controller)
            settings = [(self.folders[0], wanted)]
        else:
            optional = {"memory.memsw.limit_in_bytes": str(memory)}
            settings = [
                (folder, {name: value})
                for folder, (name, value) in zip(
                    self.folders,
                    (
                        ("pids.max", str(limits.pids)),
                        ("memory.limit_in_bytes", str(memory)),
                        ("cpu.cfs_quota_us", str(quota)),
                    ),
                    strict=True,
                )
            ]
        for folder, wanted in settings:
            folder.mkdir()
            for name, value in wanted.items():
                (folder / name).write_text(value)
            for name, value in optional.items():
                if (folder / name).exists():
                    (folder / name).write_text(value)

    def kill(self) -> None:
        for folder in self.folders:
            with contextlib.suppress(OSError):
                for pid in (folder / "cgroup.procs").read_text().split():
                    with contextlib.suppress(OSError):
                        os.kill(int(pid), signal.SIGKILL)

    def remove(self) -> None:
        """Remove it; what was killed in it may need a moment to be gone."""
        for folder in self.folders:
            deadline = time.monotonic() + 10
            while folder.exists():
                try:
                    folder.rmdir()
                except OSError:
                    if time.monotonic() > deadline:
                        break
                    self.kill()
                    time.sleep(0.01)
