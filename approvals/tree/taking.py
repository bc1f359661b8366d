"""Take a directory as a tree against its base, and say what was left out."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from approvals.changes import (
    EXECUTABLE,
    FILE,
    GITLINK,
    SYMLINK,
    Change,
    LeftOut,
    link_cycle_or_escape,
    spell,
)
from approvals.tree.difference import list_changes
from approvals.tree.errors import TreeRefused
from approvals.tree.git import run
from approvals.tree.reading import Entry, list_tree, open_blobs, tree_of
from approvals.tree.walking import Found, TreeLimits, walk
from approvals.tree.writing import moved, store, write_tree

if TYPE_CHECKING:
    from hashlib import _Hash

# What well-known tools write beside the source and can write again. Only new files are concerned.
_CACHES = {
    b"__pycache__",
    b".pytest_cache",
    b".mypy_cache",
    b".ruff_cache",
    b".hypothesis",
    b".tox",
    b".nox",
}
_CACHE_SUFFIXES = (b".pyc", b".pyo")


@dataclass(frozen=True, slots=True)
class TakenTree:
    """A tree in the repository, and what it is against its base."""

    tree: str
    base_commit: str
    base_tree: str
    changes: tuple[Change, ...]
    left_out: tuple[LeftOut, ...]
    files: int
    total_bytes: int


def build_tree(
    exported: Path, bare: Path, base_commit: str, *, limits: TreeLimits | None = None
) -> TakenTree:
    """Take `exported` as a tree against `base_commit` and write its objects into `bare`.

    Writes objects only: no ref, no index, nothing outside the object store, and nothing at all in
    `exported` beyond giving its owner back the right to read. Safe to repeat and to run twice at
    once. Raises `TreeRefused`, `ObjectMissing` or `GitFailed`.
    """
    limits = limits or TreeLimits()
    base_tree = tree_of(bare, base_commit)
    base = {entry.path: entry for entry in list_tree(bare, base_tree)}
    left_out: list[LeftOut] = []
    taking = _Taking(limits, base, hashlib.sha1 if len(base_tree) == 40 else hashlib.sha256)
    for found in walk(exported, limits, left_out):
        taking.add(found)
    ignored = _ignored(bare, base, [path for path in taking.entries if path not in base])
    left_out += _summary(ignored)
    for path in ignored:
        taking.entries.pop(path)
    _keep_absent(bare, base, taking.entries)
    fresh = {
        blob: path
        for path, (_, blob) in taking.entries.items()
        if blob not in taking.known and path in taking.sizes
    }
    store(bare, exported, limits, fresh)
    tree = write_tree(bare, taking.entries)
    return TakenTree(
        tree=tree,
        base_commit=base_commit,
        base_tree=base_tree,
        changes=list_changes(bare, base_tree, tree),
        left_out=tuple(sorted(left_out, key=lambda item: (item.path, item.reason))),
        files=len(taking.entries),
        total_bytes=sum(taking.sizes.get(path, 0) for path in taking.entries),
    )


def unchanged(bare: Path, base_commit: str) -> TakenTree:
    """The base itself, of a run that had no workspace to change. Raises as `build_tree` does."""
    base_tree = tree_of(bare, base_commit)
    return TakenTree(
        tree=base_tree,
        base_commit=base_commit,
        base_tree=base_tree,
        changes=(),
        left_out=(),
        files=0,
        total_bytes=0,
    )


@dataclass(slots=True)
class _Taking:
    """What the walk has gathered so far."""

    limits: TreeLimits
    base: Mapping[bytes, Entry]
    algorithm: Callable[[bytes], _Hash]
    entries: dict[bytes, tuple[str, str]] = field(default_factory=dict)
    sizes: dict[bytes, int] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    total: int = 0

    def __post_init__(self) -> None:
        self.known = {entry.blob for entry in self.base.values() if entry.mode != GITLINK}

    def add(self, found: Found) -> None:
        if found.size > self.limits.file_bytes:
            raise TreeRefused(
                reason=f"“{spell(found.path)[:200]}” has {found.size:,} bytes and the limit for "
                f"one file is {self.limits.file_bytes:,}",
                remedy="Ask the agent to leave it out, or raise the limit.",
            )
        self.total += found.size
        if len(self.entries) >= self.limits.files or self.total > self.limits.total_bytes:
            raise TreeRefused(
                reason=f"the workspace holds more than {self.limits.files:,} files or "
                f"{self.limits.total_bytes:,} bytes",
                remedy="Ask the agent to remove what it does not offer, or raise the limit.",
            )
        blob, size = _hash(found, self.algorithm)
        self.entries[found.path] = (found.mode, blob)
        self.sizes[found.path] = size


def _hash(found: Found, algorithm: Callable[[bytes], _Hash]) -> tuple[str, int]:
    """Git's name for the content as it is now, and its true length."""
    body = algorithm(b"blob %d\0" % found.size)
    size = 0
    for chunk in found.content():
        body.update(chunk)
        size += len(chunk)
    if size != found.size:
        raise moved(found.path)
    return body.hexdigest(), size


def _keep_absent(
    bare: Path, base: Mapping[bytes, Entry], entries: dict[bytes, tuple[str, str]]
) -> None:
    """Carry over what a workspace is never given: the source's submodules and links out of it."""
    absent = {
        path: entry
        for path, entry in base.items()
        if path not in entries and entry.mode in (GITLINK, SYMLINK)
    }
    if any(entry.mode == SYMLINK for entry in absent.values()):
        leaving = _leaving(bare, base.values())
    for path, entry in absent.items():
        if entry.mode == SYMLINK and path not in leaving:
            continue
        inside = path + b"/"
        if any(other.startswith(inside) for other in entries):
            continue
        # A file where a directory of the path was: the entry has no place any more.
        if any(path.startswith(other + b"/") for other in entries):
            continue
        entries[path] = (entry.mode, entry.blob)


def _leaving(bare: Path, entries: Iterable[Entry]) -> dict[bytes, str]:
    with open_blobs(bare) as blobs:
        links = {entry.path: blobs.read(entry.blob) for entry in entries if entry.mode == SYMLINK}
    return link_cycle_or_escape(links)


def _ignored(bare: Path, base: Mapping[bytes, Entry], new: Sequence[bytes]) -> dict[bytes, str]:
    """Which new paths the source commit's own ignore files, or our list of caches, leave out."""
    ignored = {path: "tool cache" for path in new if _is_cache(path)}
    rest = [path for path in new if path not in ignored]
    rules = [
        entry
        for path, entry in base.items()
        if entry.mode in (FILE, EXECUTABLE) and path.rpartition(b"/")[2] == b".gitignore"
    ]
    if not rest or not rules:
        return ignored
    with tempfile.TemporaryDirectory(prefix="ignore-") as folder, open_blobs(bare) as blobs:
        for entry in rules:
            target = os.path.join(os.fsencode(folder), entry.path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "xb") as out:
                out.write(blobs.read(entry.blob))
        out_bytes = run(
            bare,
            "-c", "core.bare=false",
            "check-ignore", "--no-index", "-z", "--stdin",
            data=b"".join(b"./" + path + b"\0" for path in rest),
            extra={"GIT_WORK_TREE": folder},
            ok=(0, 1),
        )  # fmt: skip
    for path in out_bytes.split(b"\0")[:-1]:
        ignored[path.removeprefix(b"./")] = "ignored"
    return ignored


def _is_cache(path: bytes) -> bool:
    return path.endswith(_CACHE_SUFFIXES) or not _CACHES.isdisjoint(path.split(b"/")[:-1])


_LEFT_OUT_TEXT = {
    "ignored": "new, and ignored by the source's own .gitignore",
    "tool cache": "new, and only a cache that a tool can write again",
}


def _summary(ignored: Mapping[bytes, str]) -> list[LeftOut]:
    """One line for each directory and reason, so that a thousand cache files are one line."""
    groups: dict[tuple[bytes, str], list[bytes]] = {}
    for path, reason in ignored.items():
        groups.setdefault((path.rpartition(b"/")[0], reason), []).append(path)
    lines = []
    for (folder, reason), paths in groups.items():
        shown = paths[0] if len(paths) == 1 else (folder + b"/" if folder else b"./")
        lines.append(LeftOut(shown, reason, _LEFT_OUT_TEXT[reason], count=len(paths)))
    return lines
