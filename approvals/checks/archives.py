"""Archives: what is in them, and whether unpacking one could do harm.

Nothing is unpacked to a disk, ever. Member names and sizes are read, with a bound on what is
decompressed; a reader behind us unpacks with other tools, so an archive that two tools could read
differently is refused. Blocking: a member whose path leaves or is absolute, a link or hard link
that leaves, a file written through a link, devices, two members of one name, more members or bytes
than the limits, a ratio that only a bomb has, archives in archives beyond two levels, an archive
that is damaged, encrypted, or has bytes before or after it. A harmless one is noted with its
members. The content of the members is not otherwise checked; the note says so.
"""

from __future__ import annotations

import bz2
import io
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from approvals.changes import link_leaves, spell, unsafe_path
from approvals.checks.base import CheckResult, Notebook, Subject
from approvals.checks.size_and_type import sniff

NAME, VERSION = "archives", "portal 1"

MAX_MEMBERS = 5_000
MAX_BYTES = 64 << 20  # of all members together, decompressed
MAX_RATIO = 200  # decompressed to packed, above the first megabyte
MAX_DEPTH = 2
_LISTED = 40
_COMPRESSED = {"gzip archive": "gzip", "bzip2 archive": "bzip2", "xz archive": "xz"}


class _Harmful(Exception):
    """Why the archive must not go on; the text names the member."""


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of an archive."""

    path: bytes
    kind: str  # file, directory, link, hard link, device
    size: int
    executable: bool
    target: bytes
    read: Callable[[], bytes]


@dataclass(slots=True)
class _Budget:
    """What may still be decompressed for one top archive, whatever is nested in it."""

    packed: int
    total: int = 0
    members: int = 0

    def spend(self, count: int) -> None:
        self.total += count
        if self.total > MAX_BYTES:
            raise _Harmful(f"it unpacks to more than {MAX_BYTES:,} bytes")
        if self.total > 1 << 20 and self.total > self.packed * MAX_RATIO:
            raise _Harmful(f"it unpacks to more than {MAX_RATIO} times its size")

    def member(self) -> None:
        self.members += 1
        if self.members > MAX_MEMBERS:
            raise _Harmful(f"it has more than {MAX_MEMBERS:,} members")


def check(subject: Subject) -> CheckResult:
    notes = Notebook(NAME, VERSION, subject)
    count = 0
    for content in subject.contents():
        if content.is_link or not _is_archive(content.data):
            continue
        count += 1
        budget = _Budget(len(content.data))
        try:
            listed = list(_judge(content.data, budget, 1))
        except _Harmful as harm:
            notes.add("blocking", "archive", content.shown, str(harm))
            continue
        shown = ", ".join(listed[:_LISTED])
        more = f" and {len(listed) - _LISTED:,} more" if len(listed) > _LISTED else ""
        notes.add(
            "note", "archive", content.shown,
            f"{budget.members:,} members, {budget.total:,} bytes unpacked, listed but not read: "
            f"{shown}{more}",
        )  # fmt: skip
    notes.evidence["archives"] = count
    return notes.result()


def _is_archive(data: bytes) -> bool:
    kind = sniff(data)
    return kind in _COMPRESSED or kind in ("tar archive", "zip archive", "empty zip archive")


def _judge(data: bytes, budget: _Budget, depth: int) -> Iterator[str]:
    """The members as words. Raises `_Harmful`."""
    if depth > MAX_DEPTH:
        raise _Harmful(f"archives are nested more than {MAX_DEPTH} deep")
    kind = sniff(data)
    if kind in _COMPRESSED:
        inner = _decompress(data, _COMPRESSED[kind], budget)
        if sniff(inner) == "tar archive":
            yield from _members(_tar(inner), budget, depth)
        elif _is_archive(inner):
            yield from _judge(inner, budget, depth + 1)
        else:
            budget.member()
            yield f"one file of {len(inner):,} bytes"
    elif kind == "tar archive":
        yield from _members(_tar(data), budget, depth)
    else:
        yield from _members(_zip(data), budget, depth)


def _members(members: Iterator[Member], budget: _Budget, depth: int) -> Iterator[str]:
    seen: dict[bytes, Member] = {}
    links: set[bytes] = set()
    for member in members:
        budget.member()
        name = spell(member.path)[:200]
        path = member.path.rstrip(b"/")
        # Archives are often made with this in front; it goes nowhere.
        path = path.removeprefix(b"./")
        if path in (b"", b"."):
            continue
        if reason := unsafe_path(path):
            raise _Harmful(f"the path of the member “{name}” {reason}")
        if member.kind == "device":
            raise _Harmful(f"the member “{name}” is a device, socket or pipe")
        if any(link == path or path.startswith(link + b"/") for link in links):
            raise _Harmful(f"the member “{name}” would be written through a link")
        earlier = seen.get(path)
        if earlier and not earlier.kind == member.kind == "directory":
            raise _Harmful(f"two members have the name “{name}”")
        if member.kind in ("link", "hard link"):
            _link(path, member, name)
            links.add(path)
        seen[path] = member
        if member.kind == "file":
            yield f"{name} ({member.size:,} bytes{', executable' if member.executable else ''})"
            content = member.read()
            budget.spend(len(content))
            if _is_archive(content):
                for _ in _judge(content, budget, depth + 1):
                    pass
        elif member.kind != "directory":
            yield f"{name} ({member.kind} to {spell(member.target)[:100]})"
    files = [path for path, member in seen.items() if member.kind != "directory"]
    for path in files:
        parent = path
        while parent := parent.rpartition(b"/")[0]:
            if parent in seen and seen[parent].kind != "directory":
                raise _Harmful(f"“{spell(parent)[:200]}” is a file and a directory")


def _link(path: bytes, member: Member, name: str) -> None:
    # A hard link names its target from the top of the archive, a symbolic one from where it is.
    place = path if member.kind == "link" else b"x"
    if reason := link_leaves(place, member.target):
        raise _Harmful(f"the {member.kind} “{name}” {reason}")


# --- tar -------------------------------------------------------------------------------------


def _tar(data: bytes) -> Iterator[Member]:
    """Members as written, none left away. Raises `_Harmful` for what readers see differently."""
    kinds = {
        tarfile.REGTYPE: "file", tarfile.AREGTYPE: "file", tarfile.CONTTYPE: "file",
        tarfile.DIRTYPE: "directory", tarfile.SYMTYPE: "link", tarfile.LNKTYPE: "hard link",
    }  # fmt: skip
    end = 0
    try:
        with tarfile.open(
            fileobj=io.BytesIO(data), mode="r:", encoding="utf-8", errors="surrogateescape"
        ) as archive:
            while info := archive.next():
                if info.sparse is not None or info.type == tarfile.GNUTYPE_SPARSE:
                    raise _Harmful("it has a sparse member")
                end = max(end, archive.offset)
                if info.size < 0 or info.offset_data + info.size > len(data):
                    raise _Harmful("a member ends outside the archive")
                name = info.name.encode("utf-8", "surrogateescape")
                low, high = info.offset_data, info.offset_data + info.size
                yield Member(
                    path=name,
                    kind=kinds.get(info.type, "device"),
                    size=info.size,
                    executable=bool(info.mode & 0o111),
                    target=info.linkname.encode("utf-8", "surrogateescape"),
                    read=lambda low=low, high=high: data[low:high],  # type: ignore[misc]
                )
    except (tarfile.TarError, ValueError, EOFError, OverflowError) as error:
        raise _Harmful("it is damaged, and tools differ in what they read from it") from error
    if data[end:].strip(b"\0"):
        raise _Harmful("bytes follow its end")


# --- zip -------------------------------------------------------------------------------------


def _zip(data: bytes) -> Iterator[Member]:
    """Members of the central directory, each agreeing with its local header."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (
        zipfile.BadZipFile,
        ValueError,
        struct.error,
        OverflowError,
        NotImplementedError,
    ) as bad:
        raise _Harmful("it is damaged, and tools differ in what they read from it") from bad
    infos = archive.infolist()
    _laid_out(data, archive, infos)
    for info in infos:
        name = info.orig_filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437", "replace")
        if info.flag_bits & 0x1:
            raise _Harmful("it is encrypted, so nobody can review it")
        mode = info.external_attr >> 16 if info.create_system == 3 else 0
        kind = "directory" if name.endswith((b"/", b"\\")) else "file"
        target = b""
        if stat.S_ISLNK(mode):
            kind, target = "link", _inflate(archive, info, 4096)
        elif mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
            kind = "device"
        yield Member(
            path=name,
            kind=kind,
            size=info.file_size,
            executable=bool(mode & 0o111),
            target=target,
            read=lambda info=info: _inflate(archive, info, MAX_BYTES),  # type: ignore[misc]
        )


def _laid_out(data: bytes, archive: zipfile.ZipFile, infos: list[zipfile.ZipInfo]) -> None:
    """Refuse overlapping members, hidden ones, and names that differ between the two lists."""
    declared = sum(info.file_size for info in infos)
    if declared > MAX_BYTES:
        raise _Harmful(f"it says it unpacks to {declared:,} bytes, more than {MAX_BYTES:,}")
    if declared > 1 << 20 and declared > len(data) * MAX_RATIO:
        raise _Harmful(f"it says it unpacks to more than {MAX_RATIO} times its size")
    end = 0
    for info in sorted(infos, key=lambda each: each.header_offset):
        at = info.header_offset
        head = data[at : at + 30]
        if len(head) < 30 or head[:4] != b"PK\x03\x04":
            raise _Harmful("a member has no header where the directory says")
        name_length, extra_length = struct.unpack("<HH", head[26:30])
        local = data[at + 30 : at + 30 + name_length]
        encoded = info.orig_filename.encode(
            "utf-8" if info.flag_bits & 0x800 else "cp437", "replace"
        )
        if local != encoded:
            raise _Harmful("a member has two different names")
        if at < end:
            raise _Harmful("members overlap")
        if at > end and (end == 0 or data[end:at].find(b"PK\x03\x04") >= 0):
            raise _Harmful("bytes stand before or between the members")
        end = at + 30 + name_length + extra_length + info.compress_size
    if data.find(b"PK\x03\x04", end, archive.start_dir) >= 0:
        raise _Harmful("a member is not in the directory")
    if len(archive.comment) + 22 != len(data) - data.rfind(b"PK\x05\x06"):
        raise _Harmful("bytes follow its end")


def _inflate(archive: zipfile.ZipFile, info: zipfile.ZipInfo, most: int) -> bytes:
    if info.file_size > most:
        raise _Harmful(f"a member says it has {info.file_size:,} bytes")
    try:
        with archive.open(info) as source:
            data = source.read(most + 1)
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError,
            NotImplementedError, RuntimeError) as error:  # fmt: skip
        raise _Harmful("a member is damaged, or packed in a way not known here") from error
    if len(data) != info.file_size:
        raise _Harmful("a member has another size than it says")
    return data


# --- compression -----------------------------------------------------------------------------


def _decompress(data: bytes, how: str, budget: _Budget) -> bytes:
    """Decompress one stream (gzip: all members of it) within the budget."""
    out = bytearray()
    rest = data
    while rest:
        one = {"gzip": lambda: zlib.decompressobj(31), "bzip2": bz2.BZ2Decompressor,
               "xz": lzma.LZMADecompressor}[how]()  # fmt: skip
        try:
            rest = _one_stream(one, rest, out, budget)
        except (zlib.error, OSError, lzma.LZMAError, EOFError, MemoryError) as error:
            raise _Harmful("it is damaged, or bytes follow its end") from error
    return bytes(out)


def _one_stream(one: object, data: bytes, out: bytearray, budget: _Budget) -> bytes:
    step = 1 << 18
    if isinstance(one, bz2.BZ2Decompressor | lzma.LZMADecompressor):
        feed = data
        while not one.eof:
            part = one.decompress(feed, step)
            feed = b""
            budget.spend(len(part))
            out += part
            if not part and one.needs_input and not one.eof:
                raise EOFError
        return one.unused_data
    stream = one
    feed = data
    while not stream.eof:  # type: ignore[attr-defined]
        part = stream.decompress(feed, step)  # type: ignore[attr-defined]
        feed = stream.unconsumed_tail  # type: ignore[attr-defined]
        budget.spend(len(part))
        out += part
        if not part and not feed and not stream.eof:  # type: ignore[attr-defined]
            raise EOFError
    unused: bytes = stream.unused_data  # type: ignore[attr-defined]
    return unused
