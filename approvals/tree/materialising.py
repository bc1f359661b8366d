"""Write a tree out to a directory, never leaving it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from approvals.changes import (
    EXECUTABLE,
    GITLINK,
    SYMLINK,
    link_cycle_or_escape,
    spell,
    unsafe_path,
)
from approvals.tree.errors import MaterialiseRefused
from approvals.tree.reading import Blobs, Entry, list_tree, open_blobs
from approvals.tree.walking import ENTER


def materialise(bare: Path, tree: str, dest: Path, *, source: str = "") -> int:
    """Write a tree into the new directory `dest` for a fresh sandbox; returns the number of files.

    `dest` must not exist or be empty. Every path and link is judged before the first byte is
    written: a path or link that leaves, a name that reads as `.git`, or two paths that this file
    system takes for one, and `MaterialiseRefused` is raised. A submodule becomes an empty
    directory; nothing is fetched. Nothing that is already there is ever written through.

    A link that leaves and that `source` (a commit or tree) already has at the same place is left
    out instead, as it was when the workspace was made.
    """
    entries = list_tree(bare, tree)
    had = {(e.path, e.blob) for e in list_tree(bare, source)} if source else set()
    with open_blobs(bare) as blobs:
        links = {entry.path: blobs.read(entry.blob) for entry in entries if entry.mode == SYMLINK}
        for entry in entries:
            if reason := unsafe_path(entry.path):
                raise MaterialiseRefused(path=spell(entry.path), reason=reason)
        leaving = link_cycle_or_escape(links)
        for entry in entries:
            if entry.path in leaving and (entry.path, entry.blob) not in had:
                raise MaterialiseRefused(path=spell(entry.path), reason=leaving[entry.path])
        entries = tuple(entry for entry in entries if entry.path not in leaving)
        dest.mkdir(parents=True, exist_ok=True)
        if os.listdir(dest):
            raise MaterialiseRefused(path=dest.name, reason="is a directory that is not empty")
        root = os.open(dest, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Links last, so that no file can be written through one.
            for entry in sorted(entries, key=lambda entry: (entry.mode == SYMLINK, entry.path)):
                _place(root, entry, blobs, links)
        finally:
            os.close(root)
    return len(entries)


def _place(root: int, entry: Entry, blobs: Blobs, links: Mapping[bytes, bytes]) -> None:
    *folders, name = entry.path.split(b"/")
    parent = os.dup(root)
    try:
        for folder in folders:
            parent = _step(parent, folder)
        if entry.mode == GITLINK:
            os.mkdir(name, 0o755, dir_fd=parent)
        elif entry.mode == SYMLINK:
            os.symlink(links[entry.path], name, dir_fd=parent)
        else:
            mode = 0o755 if entry.mode == EXECUTABLE else 0o644
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(name, flags, mode, dir_fd=parent), "wb") as out:
                os.fchmod(out.fileno(), mode)
                out.write(blobs.read(entry.blob))
    except FileExistsError:
        raise MaterialiseRefused(
            path=spell(entry.path), reason="meets another path of the same name on this file system"
        ) from None
    except (NotADirectoryError, OSError) as error:
        raise MaterialiseRefused(
            path=spell(entry.path), reason=f"cannot be written here ({error.strerror})"
        ) from None
    finally:
        os.close(parent)


def _step(parent: int, folder: bytes) -> int:
    with suppress(FileExistsError):
        os.mkdir(folder, 0o755, dir_fd=parent)
    child = os.open(folder, ENTER, dir_fd=parent)
    os.close(parent)
    return child
