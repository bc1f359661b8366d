"""Sizes and types: within the contract's limits, and what the content says it is.

Types come from the bytes, by a fixed list of signatures; the name is only compared with them.
Blocking: more files or bytes than the contract allows; content that reads as two types at once,
which no honest source needs; the antivirus test pattern (the portal has no scanner of its own, but
a checker that lets this pass is not plugged in). Warnings to be acknowledged: native programs,
archives that the check `archives` cannot read, binary content of no known type, a name that says
one type and bytes that say another. A file that can now be executed is a warning.
"""

from __future__ import annotations

import re

from approvals.changes import GITLINK, Status
from approvals.checks.base import CheckResult, Content, Notebook, Subject, is_text

NAME, VERSION = "size_and_type", "portal 1"

# Signature at the start of the content, the type's name, and the endings that agree with it.
_SIGNATURES: tuple[tuple[bytes, str, frozenset[str]], ...] = (
    (b"\x7fELF", "ELF program", frozenset({"", "so", "o", "elf", "bin", "ko"})),
    (b"MZ", "Windows program", frozenset({"exe", "dll", "sys", "pyd", "scr", "com"})),
    (b"\xfe\xed\xfa\xce", "Mach-O program", frozenset({"", "dylib", "o", "so"})),
    (b"\xfe\xed\xfa\xcf", "Mach-O program", frozenset({"", "dylib", "o", "so"})),
    (b"\xcf\xfa\xed\xfe", "Mach-O program", frozenset({"", "dylib", "o", "so"})),
    (b"\xce\xfa\xed\xfe", "Mach-O program", frozenset({"", "dylib", "o", "so"})),
    (b"\xca\xfe\xba\xbe", "Java class or Mach-O program", frozenset({"class", "", "dylib"})),
    (b"\0asm", "WebAssembly program", frozenset({"wasm"})),
    (b"!<arch>\n", "object archive", frozenset({"a", "lib", "deb"})),
    (b"PK\x03\x04", "zip archive", frozenset({
        "zip", "jar", "whl", "docx", "xlsx", "pptx", "odt", "ods", "odp", "apk", "epub", "egg",
        "war", "nupkg", "xpi", "vsix",
    })),
    (b"PK\x05\x06", "empty zip archive", frozenset({"zip", "jar", "whl"})),
    (b"\x1f\x8b", "gzip archive", frozenset({"gz", "tgz", "svgz", "crate", "gem"})),
    (b"BZh", "bzip2 archive", frozenset({"bz2", "tbz2"})),
    (b"\xfd7zXZ\0", "xz archive", frozenset({"xz", "txz"})),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip archive", frozenset({"7z"})),
    (b"Rar!\x1a\x07", "RAR archive", frozenset({"rar"})),
    (b"\x28\xb5\x2f\xfd", "Zstandard archive", frozenset({"zst", "zstd"})),
    (b"MSCF", "cabinet archive", frozenset({"cab"})),
    (b"\xed\xab\xee\xdb", "RPM package", frozenset({"rpm"})),
    (b"\x89PNG\r\n\x1a\n", "PNG image", frozenset({"png"})),
    (b"\xff\xd8\xff", "JPEG image", frozenset({"jpg", "jpeg", "jpe"})),
    (b"GIF87a", "GIF image", frozenset({"gif"})),
    (b"GIF89a", "GIF image", frozenset({"gif"})),
    (b"BM", "bitmap image", frozenset({"bmp", "dib"})),
    (b"\0\0\1\0", "icon", frozenset({"ico"})),
    (b"II*\0", "TIFF image", frozenset({"tif", "tiff", "dng"})),
    (b"MM\0*", "TIFF image", frozenset({"tif", "tiff"})),
    (b"%PDF-", "PDF document", frozenset({"pdf", "ai"})),
    (b"{\\rtf", "RTF document", frozenset({"rtf", "doc"})),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "old Office document", frozenset({
        "doc", "xls", "ppt", "msi", "msg", "vsd",
    })),
    (b"SQLite format 3\0", "SQLite database", frozenset({"db", "sqlite", "sqlite3"})),
    (b"OggS", "Ogg media", frozenset({"ogg", "oga", "ogv", "opus"})),
    (b"ID3", "MP3 audio", frozenset({"mp3"})),
    (b"fLaC", "FLAC audio", frozenset({"flac"})),
    (b"wOFF", "font", frozenset({"woff"})),
    (b"wOF2", "font", frozenset({"woff2"})),
    (b"\0\1\0\0\0", "font", frozenset({"ttf"})),
    (b"OTTO", "font", frozenset({"otf"})),
)  # fmt: skip
# Short signatures that ordinary text may begin with count only where the content is binary.
_SHORT = {b"MZ", b"BM", b"BZh", b"ID3", b"MSCF", b"OTTO", b"OggS"}
PROGRAMS = {
    "ELF program", "Windows program", "Mach-O program", "Java class or Mach-O program",
    "WebAssembly program", "object archive",
}  # fmt: skip
_PACKED = re.compile(r"archive|package")
# Their members are listed by the check `archives`.
READABLE = {
    "tar archive", "zip archive", "empty zip archive", "gzip archive", "bzip2 archive",
    "xz archive",
}  # fmt: skip
_ENDINGS: dict[str, str] = {}
for _magic, _kind, _endings in _SIGNATURES:
    for _ending in _endings:
        _ENDINGS.setdefault(_ending, _kind)
# Endings by which another system runs a file when it is opened, and which no source needs.
_RUNS_WHEN_OPENED = frozenset({
    "scr", "pif", "hta", "lnk", "scf", "cpl", "vbe", "jse", "wsf", "wsh", "url",
})  # fmt: skip
# Assembled here so that no scanner takes this file for what it looks for.
_TEST_PATTERN = b"".join(
    (b"X5O!P%@AP[4\\PZX54(P^)7CC)7}$", b"EICAR-STANDARD", b"-ANTIVIRUS-TEST-FILE!")
)
_MAX_PIXELS = 40_000_000


def check(subject: Subject) -> CheckResult:
    notes = Notebook(NAME, VERSION, subject)
    files = total = binaries = 0
    for content in subject.contents():
        files += 1
        total += len(content.data)
        binaries += not is_text(content.data)
        _content(content, notes)
    files += sum(change.status is Status.DELETED for change in subject.changes)
    files += sum(change.new_mode == GITLINK for change in subject.changes)
    for change in subject.changes:
        if change.made_executable:
            notes.add(
                "warning", "made executable", change.path,
                f"mode {change.old_mode} → {change.new_mode}: it can now be executed",
            )  # fmt: skip
    if files > subject.max_files:
        notes.add(
            "blocking", "too many files", "",
            f"{files:,} files are changed or offered, and the contract allows "
            f"{subject.max_files:,}",
        )  # fmt: skip
    if total > subject.max_bytes:
        notes.add(
            "blocking", "too large", "",
            f"the candidate has {total:,} bytes, and the contract allows {subject.max_bytes:,}",
        )  # fmt: skip
    notes.evidence |= {
        "files": files,
        "bytes": total,
        "binary": binaries,
        "max_files": subject.max_files,
        "max_bytes": subject.max_bytes,
    }
    return notes.result()


def _content(content: Content, notes: Notebook) -> None:
    if content.is_link:
        return
    data, shown = content.data, content.shown
    kind = sniff(data)
    name_ending = ending(content.path)
    if _TEST_PATTERN in data[:4096]:
        notes.add("blocking", "malware marker", shown, "holds the antivirus test pattern")
    if kind in PROGRAMS:
        notes.add(
            "warning", "program", shown,
            f"is a {kind}, {len(data):,} bytes that nobody can read here", acknowledge=True,
        )  # fmt: skip
    elif _PACKED.search(kind) and kind not in READABLE:
        notes.add(
            "warning", "packed", shown,
            f"is a {kind}, {len(data):,} bytes; the diff does not show what is in it",
            acknowledge=True,
        )  # fmt: skip
    elif not kind and not is_text(data):
        notes.add(
            "warning", "unknown binary", shown,
            f"is binary of no known type, {len(data):,} bytes", acknowledge=True,
        )  # fmt: skip
    if other := _contradiction(kind, name_ending, data):
        notes.add("warning", "type against name", shown, other, acknowledge=True)
    if name_ending in _RUNS_WHEN_OPENED and content.before is None:
        notes.add(
            "warning", "runs when opened", shown,
            f"its real ending is “.{name_ending}”, which some systems run when it is opened",
            acknowledge=True,
        )  # fmt: skip
    for second in _second_types(kind, data):
        notes.add(
            "blocking", "two types", shown, f"reads as a {kind or 'text'} and as {second}",
        )  # fmt: skip
    size = picture_size(data)
    if size and size[0] * size[1] > _MAX_PIXELS:
        notes.add(
            "warning", "huge picture", shown,
            f"claims {size[0]:,} by {size[1]:,} pixels in {len(data):,} bytes; no preview is made",
        )  # fmt: skip


def ending(path: bytes) -> str:
    """The real ending of the name, lower case: after the last dot of the bytes as they stand."""
    name = path.rpartition(b"/")[2].decode("utf-8", "replace").rstrip(" .")
    stem, dot, last = name.rpartition(".")
    return last.casefold() if dot and stem else ""


_RIFF = {b"WEBP": "WebP image", b"WAVE": "wave audio", b"AVI ": "AVI video"}


def sniff(data: bytes) -> str:
    """The type that the first bytes say, or an empty word."""
    for magic, kind, _ in _SIGNATURES:
        if data.startswith(magic) and (magic not in _SHORT or not _is_prose(data)):
            return kind
    if data[:4] == b"RIFF" and data[8:12] in _RIFF:
        return _RIFF[data[8:12]]
    if data[4:8] == b"ftyp":
        return "ISO media"
    if data[257:262] == b"ustar":
        return "tar archive"
    return ""


def _is_prose(data: bytes) -> bool:
    head = data[:512]
    return is_text(head) and all(byte >= 32 or byte in b"\t\n\r\f" for byte in head)


_MORE_ENDINGS = {
    "webp": "WebP image",
    "wav": "wave audio",
    "avi": "AVI video",
    "mp4": "ISO media",
    "mov": "ISO media",
    "heic": "ISO media",
    "avif": "ISO media",
    "tar": "tar archive",
}
_AGREE = {kind: endings for _, kind, endings in _SIGNATURES} | {
    "tar archive": frozenset({"tar", "gem", "ova"}),
    "ISO media": frozenset({"mp4", "m4a", "m4v", "mov", "heic", "avif", "3gp"}),
    "WebP image": frozenset({"webp"}),
    "wave audio": frozenset({"wav"}),
    "AVI video": frozenset({"avi"}),
}
# Endings with no signature of their own, or with several.
_LOOSE = frozenset({"", "bin", "dat", "o", "a", "com", "sys", "ai", "lib", "egg", "img", "doc"})


def _contradiction(kind: str, name_ending: str, data: bytes) -> str:
    if not data:
        return ""
    if kind:
        agreed = _AGREE.get(kind, frozenset())
        if name_ending in agreed or name_ending in _LOOSE:
            return ""
        return f"is named “.{name_ending}” and its bytes are a {kind}"
    said = _ENDINGS.get(name_ending) or _MORE_ENDINGS.get(name_ending)
    if said and name_ending not in _LOOSE and name_ending != "db":
        what = "text" if is_text(data) else "something else"
        return f"is named like a {said} and its bytes are {what}"
    return ""


_SCRIPT = re.compile(rb"<script[\s>]|<svg[\s>]|<!doctype html|<html[\s>]|<\?php", re.IGNORECASE)


def _second_types(kind: str, data: bytes) -> list[str]:
    """Further types the same bytes can be read as."""
    found = []
    picture = "image" in kind or kind == "icon"
    if kind not in PROGRAMS and not _PACKED.search(kind):
        directory = data[-(1 << 16) - 22 :].rfind(b"PK\x05\x06") >= 0
        if directory and b"PK\x01\x02" in data:
            found.append("a zip archive")
    if picture and _SCRIPT.search(data):
        found.append("markup or script")
    # The field of a size, read as the start of a comment or of an assignment.
    starts_comment = kind == "GIF image" and data[6:8] in _COMMENT
    if starts_comment or (kind == "bitmap image" and data[2:4] in _COMMENT):
        found.append("a script")
    late = data.find(b"%PDF-", 1, 1024)
    if kind != "PDF document" and late > 0 and b"startxref" in data:
        found.append("a PDF document")
    return found


_COMMENT = (b"/*", b"=1", b"='", b'="', b"=/", b"//")


def picture_size(data: bytes) -> tuple[int, int] | None:
    """Width and height as the header claims them, without decoding anything."""
    if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    if data.startswith((b"GIF87a", b"GIF89a")):
        return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    if data.startswith(b"BM") and len(data) > 26:
        width = int.from_bytes(data[18:22], "little", signed=True)
        height = int.from_bytes(data[22:26], "little", signed=True)
        return abs(width), abs(height)
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg_size(data)
    return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 < len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            high = int.from_bytes(data[at + 5 : at + 7], "big")
            return int.from_bytes(data[at + 7 : at + 9], "big"), high
        if length < 2:
            return None
        at += 2 + length
    return None
