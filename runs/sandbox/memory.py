"""A file system in memory, for the scripted sandbox: folders, files, links and FIFOs, no more.

It resolves paths as a kernel does, link by link, and says the same errors, so that what a test
learns on it holds for a real sandbox.
"""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

MOST_LINKS = 40
LONGEST_NAME = 255


@dataclass
class Node:
    """One entry. `kind` is folder, file, link or fifo; the other fields belong to some of them."""

    kind: str
    mode: int
    data: bytearray = field(default_factory=bytearray)
    target: str = ""
    entries: dict[str, Node] = field(default_factory=dict)


def trouble(number: int, path: str) -> OSError:
    """The error that a kernel gives."""
    return OSError(number, os.strerror(number), path)


class Files:
    """A tree. `writable` says of a resolved path whether anything may change there."""

    def __init__(self, writable: Callable[[str], bool], room: Callable[[str], int]) -> None:
        self.root = Node("folder", 0o755)
        self._writable = writable
        self._room = room
        self.force = False
        """Set while the outer runtime itself fills a part that the agent can only read."""

    # --- Finding --------------------------------------------------------------

    def resolve(self, path: str, *, follow: bool = True) -> tuple[str, Node | None]:
        """Where a path leads, and what is there; nothing there is None if its folder exists."""
        pending = [part for part in reversed(path.split("/")) if part]
        trail: list[tuple[str, Node]] = [("", self.root)]
        hops = 0
        while pending:
            part = pending.pop()
            here = trail[-1][1]
            if here.kind != "folder":
                raise trouble(errno.ENOTDIR, path)
            if part == ".":
                continue
            if part == "..":
                if len(trail) > 1:
                    trail.pop()
                continue
            if len(part.encode("utf-8", "surrogateescape")) > LONGEST_NAME:
                raise trouble(errno.ENAMETOOLONG, path)
            node = here.entries.get(part)
            if node is None:
                if any(rest not in (".", "") for rest in pending):
                    raise trouble(errno.ENOENT, path)
                return f"{_joined(trail)}/{part}", None
            if node.kind == "link" and (follow or pending):
                hops += 1
                if hops > MOST_LINKS:
                    raise trouble(errno.ELOOP, path)
                if node.target.startswith("/"):
                    del trail[1:]
                pending.extend(part for part in reversed(node.target.split("/")) if part)
                continue
            trail.append((part, node))
        return _joined(trail) or "/", trail[-1][1]

    def get(self, path: str, *, follow: bool = True) -> Node:
        """What is there. Raises OSError."""
        node = self.resolve(path, follow=follow)[1]
        if node is None:
            raise trouble(errno.ENOENT, path)
        return node

    def exists(self, path: str, *, follow: bool = True) -> bool:
        try:
            return self.resolve(path, follow=follow)[1] is not None
        except OSError:
            return False

    # --- Changing ---------------------------------------------------------------

    def _place(self, path: str, *, follow: bool) -> tuple[str, Node, str, Node | None]:
        where, node = self.resolve(path, follow=follow)
        if not self.force and not self._writable(where):
            raise trouble(errno.EROFS, path)
        parent, _, name = where.rpartition("/")
        return where, self.get(parent or "/"), name, node

    def make_folder(self, path: str, mode: int = 0o755, *, parents: bool = False) -> None:
        if parents:
            at = ""
            for part in [part for part in path.split("/") if part]:
                at += f"/{part}"
                if not self.exists(at):
                    self.make_folder(at, mode)
                elif self.get(at).kind != "folder":
                    raise trouble(errno.ENOTDIR, path)
            return
        _, parent, name, node = self._place(path, follow=False)
        if node is not None:
            raise trouble(errno.EEXIST, path)
        parent.entries[name] = Node("folder", mode)

    def write(self, path: str, data: bytes, *, mode: int = 0o644, how: str = "replace") -> None:
        """Write a file; `how` is replace, append or new (then the name must be free)."""
        where, parent, name, node = self._place(path, follow=how != "new")
        if how == "new" and node is not None:
            raise trouble(errno.EEXIST, path)
        if node is not None and node.kind == "folder":
            raise trouble(errno.EISDIR, path)
        if node is not None and node.kind != "file":
            raise trouble(errno.ENXIO, path)
        before = len(node.data) if node is not None else 0
        grows = len(data) - (0 if how == "append" else before)
        room = self._room(where)
        if node is None:
            node = parent.entries[name] = Node("file", mode)
        elif how == "replace":
            node.mode = node.mode if not mode & 0o111 else mode
        if how != "append":
            node.data.clear()
        node.data += data if grows <= room else data[: max(0, len(data) - grows + room)]
        if grows > room:
            raise trouble(errno.ENOSPC, path)

    def make_link(self, path: str, target: str) -> None:
        _, parent, name, node = self._place(path, follow=False)
        if node is not None:
            raise trouble(errno.EEXIST, path)
        parent.entries[name] = Node("link", 0o777, target=target)

    def make_fifo(self, path: str) -> None:
        _, parent, name, node = self._place(path, follow=False)
        if node is not None:
            raise trouble(errno.EEXIST, path)
        parent.entries[name] = Node("fifo", 0o644)

    def make_hard_link(self, path: str, source: str) -> None:
        where, node = self.resolve(source, follow=False)
        if node is None:
            raise trouble(errno.ENOENT, source)
        if node.kind == "folder":
            raise trouble(errno.EPERM, source)
        there, parent, name, taken = self._place(path, follow=False)
        if taken is not None:
            raise trouble(errno.EEXIST, path)
        if where.split("/")[:3] != there.split("/")[:3]:
            raise trouble(errno.EXDEV, path)
        parent.entries[name] = node

    def remove(self, path: str, *, recursive: bool = False) -> None:
        _, parent, name, node = self._place(path, follow=False)
        if node is None:
            raise trouble(errno.ENOENT, path)
        if node.kind == "folder" and not recursive:
            raise trouble(errno.EISDIR, path)
        del parent.entries[name]

    def move(self, source: str, dest: str) -> None:
        where, parent, name, node = self._place(source, follow=False)
        if node is None:
            raise trouble(errno.ENOENT, source)
        there, into, as_name, taken = self._place(dest, follow=False)
        if taken is not None and taken.kind == "folder":
            there, into, as_name = f"{there}/{name}", taken, name
        if f"{there}/".startswith(f"{where}/"):
            raise trouble(errno.EINVAL, dest)
        del parent.entries[name]
        into.entries[as_name] = node

    # --- As an archive -------------------------------------------------------------

    def used(self, path: str) -> int:
        """Bytes of content below a folder, each file once."""
        seen: dict[int, int] = {}
        for _, node in self.below(path):
            seen[id(node)] = len(node.data)
        return sum(seen.values())

    def below(self, path: str) -> Iterator[tuple[str, Node]]:
        """Every entry below a folder by its full path, folders before what they hold."""
        pending = [(path, self.get(path))]
        while pending:
            at, folder = pending.pop()
            for name, node in sorted(folder.entries.items()):
                yield f"{at}/{name}", node
            pending.extend(
                (f"{at}/{name}", node)
                for name, node in sorted(folder.entries.items(), reverse=True)
                if node.kind == "folder"
            )

    def write_tar(self, out: BinaryIO, base: str, parts: list[str]) -> None:
        """What `tar` would give of these folders, FIFOs and all."""
        types = {
            "folder": tarfile.DIRTYPE,
            "file": tarfile.REGTYPE,
            "link": tarfile.SYMTYPE,
            "fifo": tarfile.FIFOTYPE,
        }
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as writer:
            for part in parts:
                top = f"{base}/{part}"
                for path, node in [(top, self.get(top)), *self.below(top)]:
                    info = tarfile.TarInfo(path.removeprefix(f"{base}/"))
                    info.type, info.mode = types[node.kind], stat.S_IMODE(node.mode)
                    info.linkname, info.size = node.target, len(node.data)
                    writer.addfile(info, _Reader(node.data) if node.kind == "file" else None)


class _Reader:
    def __init__(self, data: bytearray) -> None:
        self._data = memoryview(bytes(data))

    def read(self, size: int = -1) -> bytes:
        size = len(self._data) if size < 0 else size
        taken, self._data = self._data[:size], self._data[size:]
        return bytes(taken)


def _joined(trail: list[tuple[str, Node]]) -> str:
    return "/".join(name for name, _ in trail)
