"""Read commits, trees and blobs of a repository."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from approvals.tree.errors import GitFailed, ObjectMissing
from approvals.tree.git import GIT_TIMEOUT, IS_OBJECT, checked, command, environment, run


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a tree. `size` is None for a submodule."""

    path: bytes
    mode: str
    blob: str
    size: int | None


def tree_of(bare: Path, commit: str) -> str:
    """The tree of a commit (or of a tree: itself). Raises `ObjectMissing`."""
    line = run(
        bare, "rev-parse", "--verify", "--quiet", f"{checked(commit)}^{{tree}}", ok=(0, 1, 128)
    )
    if not line:
        raise ObjectMissing(name=commit, kind="commit or tree")
    return line.decode().strip()


def list_tree(bare: Path, tree: str) -> tuple[Entry, ...]:
    """Every file of a tree, in git's own order."""
    out = run(bare, "ls-tree", "-r", "-z", "-l", "--full-tree", tree_of(bare, tree))
    entries = []
    for record in out.split(b"\0")[:-1]:
        facts, path = record.split(b"\t", 1)
        mode, _, blob, size = facts.split()
        entries.append(
            Entry(path, mode.decode(), blob.decode(), None if size == b"-" else int(size))
        )
    return tuple(entries)


def read_blob(bare: Path, blob: str, *, max_bytes: int | None = None) -> bytes:
    """The content of one blob; at most `max_bytes` of it. Raises `ObjectMissing`."""
    with open_blobs(bare) as blobs:
        data = blobs.read(blob)
    return data if max_bytes is None else data[:max_bytes]


class Blobs(Mapping[str, bytes]):
    """The blobs of one repository by name, read when asked for and not kept.

    Use `open_blobs`, which ends the process behind it.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def read(self, blob: str) -> bytes:
        """One blob. Raises `ObjectMissing` where there is none of that name."""
        kind, data = self._ask(checked(blob))
        if kind != b"blob":
            raise ObjectMissing(name=blob, kind="file content")
        return data

    def _ask(self, name: str) -> tuple[bytes, bytes]:
        asked, answer = self._pipes()
        asked.write(name.encode() + b"\n")
        asked.flush()
        head = answer.readline().split()
        if len(head) != 3:
            if head[-1:] == [b"missing"]:
                return b"", b""
            raise GitFailed(what="cat-file", code="no answer", detail="the process ended early")
        size = int(head[2])
        data = answer.read(size)
        if len(data) != size or answer.read(1) != b"\n":
            raise GitFailed(what="cat-file", code="a short answer", detail=f"for {name}")
        return head[1], data

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        if self._process.stdin is None or self._process.stdout is None:
            raise GitFailed(what="cat-file", code="no pipes", detail="the process was not started")
        return self._process.stdin, self._process.stdout

    def __getitem__(self, blob: str) -> bytes:
        try:
            return self.read(blob)
        except ObjectMissing:
            raise KeyError(blob) from None

    def __iter__(self) -> Iterator[str]:
        """Nothing: the names to ask for come from the list of changes."""
        return iter(())

    def __len__(self) -> int:
        return 0

    def __contains__(self, blob: object) -> bool:
        return (
            isinstance(blob, str) and bool(IS_OBJECT.fullmatch(blob)) and self._ask(blob)[0] != b""
        )


@contextmanager
def open_blobs(bare: Path) -> Iterator[Blobs]:
    """Read many blobs with one process."""
    process = subprocess.Popen(
        command(bare, ["cat-file", "--batch"]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(bare),
    )
    try:
        yield Blobs(process)
    finally:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(GIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
