"""Archives that go into a sandbox and come out of one, read as what they are: hostile.

The host never unpacks an archive. It reads the headers itself, strictly: only plain files, folders
and links are members; everything else is refused or left out by name. Compressed, sparse or
otherwise clever archives are refused, so the size that is read is the size that is meant.

Three readers, from the most to the least trusting place. Each reads once, from front to back, so
the last two read what a sandbox is still writing (`Stream`):

* `check_snapshot` refuses a snapshot unless every member is restorable. It writes nothing.
* `clean` copies the restorable members of what a sandbox gives to a new archive; the rest is named.
* `unpack` writes plain files, folders and links below a new private folder and follows no link.
"""

from __future__ import annotations

import io
import os
import posixpath
import stat
import tarfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

BLOCK = 512
END = bytes(2 * BLOCK)
CHUNK = 1 << 20
LONGEST_HEADER = 64 << 10
"""Of one extended header. Longer than any path that Linux can open, with room for the rest."""

MOST_DEEP = 100
"""Folders in one another. Many a program that walks a deeper tree falls over, ours included."""

MOST_HOPS = 40
"""Links followed on one way: the kernel gives up there as well."""

MOST_NAMED = 500
"""Of what was left out; more is only counted."""

_KINDS = {b"0": "file", b"\0": "file", b"5": "folder", b"2": "link"}
_ODD = {
    b"1": "a hard link",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a FIFO",
    b"7": "a contiguous file",
    b"S": "a sparse file",
    b"M": "a part of a file",
    b"V": "a volume label",
    b"D": "an incremental listing",
    b"g": "a global header",
}


class ArchiveRefused(Exception):
    """The archive is not one of ours, or not one to be trusted. `member` is the one that tells."""

    def __init__(self, reason: str, member: str | None = None) -> None:
        self.reason = reason
        self.member = member
        super().__init__(reason if member is None else f"{reason} (member {member!r})")


class ArchiveTooBig(ArchiveRefused):
    """It holds more bytes or more files than the limits allow."""


class ArchiveCutShort(ArchiveRefused):
    """It ends before its end. Where a command wrote it, how that ended says more."""

    def __init__(self, member: str | None = None) -> None:
        super().__init__("the archive is cut short", member)


@dataclass(frozen=True)
class Member:
    """One member as its header says, nothing judged yet. `odd` says what it is if not plain.

    Its bytes in the archive, all headers included, are those from `start` to `end`; its content
    begins at `offset`.
    """

    name: str
    kind: str
    odd: str
    mode: int
    size: int
    mtime: int
    target: str
    offset: int
    start: int
    end: int


class Stream:
    """A tar that comes through a pipe: read forwards, and no more of it than `max_bytes`."""

    def __init__(self, pipe: io.BufferedReader, max_bytes: int) -> None:
        self._pipe = pipe
        self._most = max_bytes
        self._position = 0
        self._passed = _room()

    def read(self, size: int) -> bytes:
        return self._counted(self._pipe.read(size))

    def readinto(self, buffer: memoryview) -> int:
        got = self._pipe.readinto(buffer)
        self._count(got)
        return got

    def seek(self, position: int) -> None:
        """Pass over everything before this position. Raises ArchiveCutShort if it ends there."""
        while self._position < position:
            if not self.readinto(self._passed[: min(CHUNK, position - self._position)]):
                raise ArchiveCutShort

    def finish(self) -> None:
        """Pass over what follows the end of the tar, so that its writer can end."""
        while self.readinto(self._passed):
            pass

    def _counted(self, data: bytes) -> bytes:
        self._count(len(data))
        return data

    def _count(self, size: int) -> None:
        self._position += size
        if self._position > self._most:
            raise ArchiveTooBig(f"it is over {self._most} bytes")


Source: TypeAlias = io.BufferedIOBase | Stream


def members(archive: Source) -> Iterator[Member]:
    """Read every header of a plain tar (ustar, pax or GNU long names). Raises ArchiveRefused.

    The content of a member can be read, or left, until the next one is asked for.
    """
    end = None if isinstance(archive, Stream) else archive.seek(0, os.SEEK_END)
    position = start = 0
    long: dict[str, str] = {}
    first = True
    while True:
        archive.seek(position)
        header = archive.read(BLOCK)
        if len(header) < BLOCK:
            raise ArchiveRefused("this is not a tar") if first else ArchiveCutShort
        if header == b"\0" * BLOCK:
            return
        if _checksum(header) != _number(header[148:156]):
            raise ArchiveRefused("this is not a tar" if first else "a header is damaged")
        first = False
        type_flag = header[156:157]
        size = _number(header[124:136])
        data = position + BLOCK
        position = data + -(-size // BLOCK) * BLOCK
        if type_flag in (b"x", b"L", b"K"):
            if size > LONGEST_HEADER:
                raise ArchiveRefused(f"a name or a link is longer than {LONGEST_HEADER} bytes")
            body = archive.read(size)
            if len(body) < size:
                raise ArchiveCutShort
            long.update(_extended(type_flag, body))
            continue
        name = long.pop("path", None) or _ustar_name(header)
        target = long.pop("linkpath", None) or _text(header[157:257])
        stated = long.pop("size", None)
        if stated is not None and (not stated.isdecimal() or int(stated) != size):
            raise ArchiveRefused("two sizes are given", name)
        odd = "a sparse file" if any(key.startswith("GNU.sparse") for key in long) else ""
        long.clear()
        kind = _KINDS.get(type_flag, "")
        if kind != "file":
            # Only a file has content; a size on another kind would hide bytes from one reader.
            if size and kind:
                raise ArchiveRefused("a folder or a link carries content", name)
        elif end is not None and position > end:
            raise ArchiveCutShort(name)
        if kind == "file" and name.endswith("/"):
            kind = "folder"  # the old way of writing one
            if size:
                raise ArchiveRefused("a folder or a link carries content", name)
        if not kind:
            odd = _ODD.get(type_flag, f"of an unknown kind {type_flag!r}")
        yield Member(
            name=name,
            kind=kind,
            odd=odd,
            mode=_number(header[100:108]) & 0o777,
            size=size if kind == "file" else 0,
            mtime=_number(header[136:148]),
            target=target if type_flag in (b"1", b"2") else "",
            offset=data,
            start=start,
            end=position,
        )
        start = position


def _checksum(header: bytes) -> int:
    return sum(header[:148]) + 8 * 32 + sum(header[156:])


def _number(raw: bytes) -> int:
    if raw[:1] in (b"\x80", b"\xff"):
        raise ArchiveRefused("a number is written in a form that no small file needs")
    digits = raw.split(b"\0", 1)[0].strip()
    try:
        return int(digits or b"0", 8)
    except ValueError:
        raise ArchiveRefused("this is not a tar") from None


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _ustar_name(header: bytes) -> str:
    name = _text(header[:100])
    prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _extended(type_flag: bytes, body: bytes) -> dict[str, str]:
    if type_flag == b"L":
        return {"path": _text(body)}
    if type_flag == b"K":
        return {"linkpath": _text(body)}
    records: dict[str, str] = {}
    rest = body
    while rest:
        length, _, _ = rest.partition(b" ")
        if not length.isdigit() or not len(length) + 1 < int(length) <= len(rest):
            raise ArchiveRefused("an extended header is damaged")
        record, rest = rest[len(length) + 1 : int(length)], rest[int(length) :]
        key, separator, value = record.rstrip(b"\n").partition(b"=")
        if not separator or b"\0" in value:
            raise ArchiveRefused("an extended header is damaged")
        records[_text(key)] = value.decode("utf-8", "surrogateescape")
    return records


def plain_name(name: str) -> str:
    """The name without `./` and a trailing slash. Raises ArchiveRefused if it leads outside."""
    if name.startswith("/"):
        raise ArchiveRefused("an absolute path", name)
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ArchiveRefused("a path that climbs out", name)
    return "/".join(parts)


def leads_outside(name: str, target: str) -> bool:
    """Whether a link of that name, followed as it is written, leaves the archive's root."""
    if target.startswith("/"):
        return True
    joined = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    return joined == ".." or joined.startswith("../")


class _Links:
    """The links of a tree, to say where one leads when the others on its way are followed."""

    def __init__(self, targets: Mapping[str, str]) -> None:
        self._targets = targets

    def lead_outside(self, name: str) -> bool:
        """Whether the kernel would leave the archive's root on the way. A loop stays inside."""
        target = self._targets[name]
        pending = list(reversed([*posixpath.dirname(name).split("/"), *target.split("/")]))
        if leads_outside(name, target):
            return True
        here: list[str] = []
        hops = 0
        while pending and hops <= MOST_HOPS:
            part = pending.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if not here:
                    return True
                here.pop()
                continue
            further = self._targets.get("/".join([*here, part]))
            if further is None:
                here.append(part)
                continue
            hops += 1
            if further.startswith("/"):
                return True
            pending.extend(reversed(further.split("/")))
        return False


class _Tree:
    """Which names an archive has made so far: nothing is written twice or through a link."""

    def __init__(self) -> None:
        self.kinds: dict[str, str] = {"": "folder"}

    def problem(self, name: str, kind: str) -> str:
        before = self.kinds.get(name)
        if before is not None and not (before == kind == "folder"):
            return "a name that is there twice"
        if name.count("/") >= MOST_DEEP:
            return f"more than {MOST_DEEP} folders deep"
        parent = posixpath.dirname(name)
        while parent not in self.kinds:
            parent = posixpath.dirname(parent)
        # Above a folder there are only folders: `add` saw to it.
        return "" if self.kinds[parent] == "folder" else "a path through a link or a file"

    def add(self, name: str, kind: str) -> None:
        self.kinds[name] = kind
        parent = posixpath.dirname(name)
        while parent not in self.kinds:
            self.kinds[parent] = "folder"
            parent = posixpath.dirname(parent)


Ranges: TypeAlias = list[tuple[int, int]]
"""Pieces of an archive, from byte to byte."""


def check_snapshot(
    archive: io.BufferedIOBase, parts: Collection[str], *, max_bytes: int, max_files: int
) -> dict[str, Ranges]:
    """The parts that a snapshot holds, each with where its members lie.

    Raises ArchiveRefused for a snapshot with a member that is not restorable.
    """
    tree = _Tree()
    links: dict[str, str] = {}
    present: dict[str, Ranges] = {}
    total = 0
    for member in members(archive):
        if member.odd:
            raise ArchiveRefused(f"it holds {member.odd}", member.name)
        name = plain_name(member.name)
        part = name.partition("/")[0]
        if part not in parts:
            raise ArchiveRefused("a path outside the workspace", member.name)
        if part == name and member.kind != "folder":
            raise ArchiveRefused("a part of the workspace that is not a folder", member.name)
        problem = tree.problem(name, member.kind)
        if problem:
            raise ArchiveRefused(problem, member.name)
        if member.kind == "link":
            links[name] = member.target
        tree.add(name, member.kind)
        ranges = present.setdefault(part, [])
        if ranges and ranges[-1][1] == member.start:
            ranges[-1] = (ranges[-1][0], member.end)
        else:
            ranges.append((member.start, member.end))
        total += member.size
        if total > max_bytes or len(tree.kinds) > max_files:
            raise ArchiveTooBig(
                f"it holds more than {max_bytes} bytes or {max_files} members", member.name
            )
    # Where a link leads is known when all of them are.
    followed = _Links(links)
    for name, target in links.items():
        if followed.lead_outside(name):
            raise ArchiveRefused(f"a link that leads outside, to {target!r}", name)
    return present


class Keeper:
    """What else happens to the members that `clean` could copy. This one keeps them all."""

    def keeps(self, name: str, kind: str) -> bool:
        """Whether this one is copied. Asked in the order of the archive."""
        return True

    def watches(self, name: str, size: int) -> Callable[[memoryview], object] | None:
        """What is to be given the content of this file, piece by piece, while it is copied."""
        return None


def clean(
    archive: Source, out: Writer, *, max_bytes: int, max_files: int, keeper: Keeper
) -> tuple[str, ...]:
    """Copy what can be restored to `out`; returns what was left out, each with its reason.

    Where a link leads is known when all links are, so they follow everything else.
    """
    tree = _Tree()
    links: list[tuple[str, Member]] = []
    left_out: list[str] = []
    room = _room()
    total = 0
    for member in members(archive):
        name = plain_name(member.name)
        if not name:
            continue
        reason = member.odd or tree.problem(name, member.kind)
        if reason:
            left_out.append(f"{shown(name)}: {reason}")
            continue
        tree.add(name, member.kind)
        total += member.size
        if total > max_bytes or len(tree.kinds) > max_files:
            raise ArchiveTooBig(f"more than {max_bytes} bytes or {max_files} files")
        if not keeper.keeps(name, member.kind):
            continue
        if member.kind == "link":
            links.append((name, member))
            continue
        info = header(name, member.kind, member.mode, member.size, member.mtime)
        watching = keeper.watches(name, member.size) if member.kind == "file" else None
        out.add(info, content(archive, member, room), watching)
    followed = _Links({name: member.target for name, member in links})
    for name, member in links:
        if followed.lead_outside(name):
            left_out.append(f"{shown(name)}: a link that leads outside, to {shown(member.target)}")
        else:
            out.add(header(name, "link", member.mode, 0, member.mtime, member.target))
    return named(left_out)


def content(archive: Source, member: Member, room: memoryview) -> Iterator[memoryview]:
    """The content of a member in pieces. Each stands in `room` until the next one is asked for.

    Raises ArchiveCutShort.
    """
    archive.seek(member.offset)
    return _pieces(archive, member.size, room)


def _pieces(source: Source, size: int, room: memoryview) -> Iterator[memoryview]:
    while size > 0:
        got = source.readinto(room[: min(len(room), size)])
        if not got:
            raise ArchiveCutShort
        yield room[:got]
        size -= got


def _room() -> memoryview:
    return memoryview(bytearray(CHUNK))


class Writer:
    """A tar of ours, written from front to back. Knows the size of all it has written."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self.size = 0

    def add(
        self,
        info: tarfile.TarInfo,
        pieces: Iterable[memoryview] = (),
        watching: Callable[[memoryview], object] | None = None,
    ) -> None:
        """One member; the pieces of its content are as long together as its header says."""
        self._write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        for piece in pieces:
            self._write(piece)
            if watching is not None:
                watching(piece)
        self._write(bytes(-self.size % BLOCK))

    def end(self) -> None:
        """No more members."""
        self._write(END)
        self._out.flush()

    def _write(self, data: Any) -> None:
        self._out.write(data)
        self.size += len(data)


def header(
    name: str, kind: str, mode: int, size: int = 0, mtime: int = 0, target: str = ""
) -> tarfile.TarInfo:
    """A header with nothing in it that would differ between two machines."""
    info = tarfile.TarInfo(name)
    info.type = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}[kind]
    info.mode, info.size, info.mtime, info.linkname = mode & 0o777, size, mtime, target
    return info


def unpack(
    archive: Source,
    part: str,
    dest: Path,
    *,
    max_bytes: int,
    max_files: int,
    others: Collection[str] = (),
) -> tuple[int, int, tuple[str, ...]]:
    """Write one part below the new folder `dest`; returns files, bytes and what was left out.

    Members of the parts named in `others` are passed over, as in a snapshot of the whole workspace.
    `dest` must be private to the caller: nobody else may write there meanwhile.
    """
    dest.mkdir(mode=0o700)
    tree = _Tree()
    left_out: list[str] = []
    room = _room()
    total = count = 0
    for member in members(archive):
        name = plain_name(member.name)
        if name == part:
            continue
        if name.partition("/")[0] in others:
            continue
        if not name.startswith(part + "/"):
            raise ArchiveRefused("a path outside the exported part", member.name)
        name = name[len(part) + 1 :]
        reason = member.odd or tree.problem(name, member.kind)
        if not reason:
            total += member.size
            count += member.kind != "folder"
            if total > max_bytes:
                raise ArchiveTooBig(f"more than {max_bytes} bytes", name)
            if len(tree.kinds) > max_files:
                raise ArchiveTooBig(f"more than {max_files} files and folders", name)
            try:
                _write(archive, member, dest, name, room)
            except OSError as failed:
                # A name that this file system cannot hold, for one. A full disk is no such thing.
                if failed.errno in _DISK_TROUBLE:
                    raise
                reason = (failed.strerror or "it cannot be written").lower()
                total -= member.size
                count -= member.kind != "folder"
        if reason:
            left_out.append(f"{shown(name)}: {reason}")
        else:
            tree.add(name, member.kind)
    return count, total, named(left_out)


_DISK_TROUBLE = {28, 122, 30, 5}  # ENOSPC, EDQUOT, EROFS, EIO


def _write(archive: Source, member: Member, dest: Path, name: str, room: memoryview) -> None:
    where = dest / name
    # `tree.problem` has said that no folder on the way is a link: all of them are ours.
    where.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if member.kind == "folder":
        where.mkdir(mode=0o755, exist_ok=True)
    elif member.kind == "link":
        os.symlink(member.target, where)
    else:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        # The owner can read it whatever the agent said, or the export could not be looked at.
        mode = (member.mode | 0o600) & 0o755
        with os.fdopen(os.open(where, flags, mode), "wb") as out:
            for piece in content(archive, member, room):
                out.write(piece)


def pack(tree: Path, out: BinaryIO, *, into: str, max_bytes: int, max_files: int) -> None:
    """Write a host folder as the members of part `into`, links as links, in a fixed order.

    Raises ArchiveRefused for what a sandbox would not give back: a device, a FIFO, a link that
    leads out of the folder.
    """
    links = _Links({name: os.readlink(each) for name, each in walk(tree) if each.is_symlink()})
    total = 0
    writer, room = Writer(out), _room()
    writer.add(header(into, "folder", 0o755))
    for count, (name, entry) in enumerate(walk(tree), 1):
        if name.count("/") >= MOST_DEEP:
            raise ArchiveRefused(f"more than {MOST_DEEP} folders deep", name)
        status = entry.lstat()
        total += status.st_size if stat.S_ISREG(status.st_mode) else 0
        if total > max_bytes or count > max_files:
            raise ArchiveTooBig(f"more than {max_bytes} bytes or {max_files} files", name)
        member = f"{into}/{name}"
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(entry)
            if links.lead_outside(name):
                raise ArchiveRefused(f"a link that leads outside, to {target!r}", name)
            writer.add(header(member, "link", 0o777, 0, int(status.st_mtime), target))
        elif stat.S_ISDIR(status.st_mode):
            writer.add(header(member, "folder", status.st_mode | 0o700, 0, int(status.st_mtime)))
        elif stat.S_ISREG(status.st_mode):
            with entry.open("rb") as opened:
                mode = status.st_mode | 0o600
                info = header(member, "file", mode, status.st_size, int(status.st_mtime))
                writer.add(info, _pieces(opened, status.st_size, room))
        else:
            raise ArchiveRefused("neither a file nor a folder nor a link", name)
    writer.end()


def walk(tree: Path) -> Iterator[tuple[str, Path]]:
    """Every entry below a folder, by name, folders before what they hold. Follows no link."""
    pending = [("", tree)]
    while pending:
        prefix, folder = pending.pop()
        below: list[tuple[str, Path]] = []
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        for entry in entries:
            name = f"{prefix}{entry.name}"
            yield name, Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                below.append((name + "/", Path(entry.path)))
        pending.extend(reversed(below))


def named(left_out: Iterable[str]) -> tuple[str, ...]:
    """The lines in order, each once, and not more of them than somebody would read."""
    lines = sorted(set(left_out))
    more = len(lines) - MOST_NAMED
    return (*lines[:MOST_NAMED], *((f"… and {more} more",) if more > 0 else ()))


def shown(name: str) -> str:
    """A hostile name as plain text on one line, and not longer than a line."""
    text = name if name.isprintable() else ascii(name)
    return text if len(text) <= 200 else f"{text[:200]}… ({len(text)} characters)"
