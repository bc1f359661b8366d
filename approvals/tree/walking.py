"""Find every file of a hostile directory, through handles that follow no link."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from approvals.changes import (
    EXECUTABLE,
    FILE,
    SYMLINK,
    LeftOut,
    is_dot_git,
    spell,
    unsafe_path,
)
from approvals.tree.errors import TreeRefused

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
ENTER = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """What a directory may hold before it is refused as a whole."""

    files: int = 50_000
    total_bytes: int = 512 << 20
    file_bytes: int = 64 << 20
    depth: int = 100


@dataclass(frozen=True, slots=True)
class Found:
    """One file or link found in a directory; `name` is the last part, `parent` an open handle."""

    path: bytes
    mode: str
    size: int
    parent: int
    name: bytes

    def content(self) -> Iterator[bytes]:
        """Its bytes. Only while the walk stands on it."""
        if self.mode == SYMLINK:
            yield os.readlink(self.name, dir_fd=self.parent)
            return
        handle = _open(self.name, self.parent)
        try:
            while chunk := os.read(handle, _CHUNK):
                yield chunk
        finally:
            os.close(handle)


def _open(name: bytes, parent: int) -> int:
    """Open a regular file for reading, never through a link."""
    try:
        return os.open(name, _READ, dir_fd=parent)
    except PermissionError:
        # The agent took its own right to read away; the copy is ours, so it can be given back.
        os.chmod(name, 0o600, dir_fd=parent)
        return os.open(name, _READ, dir_fd=parent)


def walk(root: Path, limits: TreeLimits, left_out: list[LeftOut]) -> Iterator[Found]:
    """Every regular file and link under `root`, sorted, no link followed.

    What cannot be part of a tree is added to `left_out`. Raises `TreeRefused` at a limit.
    """
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield from _walk(handle, b"", limits, left_out, 0)
    finally:
        os.close(handle)


def _walk(
    parent: int, prefix: bytes, limits: TreeLimits, left_out: list[LeftOut], depth: int
) -> Iterator[Found]:
    if depth > limits.depth:
        raise TreeRefused(
            reason=f"“{spell(prefix)[:200]}” lies more than {limits.depth} directories deep",
            remedy="Ask the agent to remove it.",
        )
    for name in sorted(os.fsencode(entry) for entry in os.listdir(parent)):
        path = prefix + name
        if is_dot_git(name):
            left_out.append(_repository(path, depth))
            continue
        if reason := unsafe_path(path):
            raise TreeRefused(
                reason=f"the path “{spell(path)[:200]}” {reason}",
                remedy="Ask the agent to rename or remove it.",
            )
        facts = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISDIR(facts.st_mode):
            child = _enter(name, parent)
            try:
                yield from _walk(child, path + b"/", limits, left_out, depth + 1)
            finally:
                os.close(child)
        elif stat.S_ISREG(facts.st_mode):
            mode = EXECUTABLE if facts.st_mode & stat.S_IXUSR else FILE
            yield Found(path, mode, facts.st_size, parent, name)
        elif stat.S_ISLNK(facts.st_mode):
            yield Found(path, SYMLINK, facts.st_size, parent, name)
        else:
            left_out.append(
                LeftOut(path, "special", "a device, socket or pipe is no content", blocking=True)
            )


def _enter(name: bytes, parent: int) -> int:
    try:
        return os.open(name, ENTER, dir_fd=parent)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=parent)
        return os.open(name, ENTER, dir_fd=parent)


def _repository(path: bytes, depth: int) -> LeftOut:
    if path == b".git":
        return LeftOut(path, "own repository", "the workspace's own git directory is no content")
    if depth and path.endswith(b"/.git"):
        text = "a repository inside the repository: its history and settings cannot be reviewed"
        return LeftOut(path, "nested repository", text, blocking=True)
    text = "some file systems read this name as git's own directory"
    return LeftOut(path, "reads as .git", text, blocking=True)
