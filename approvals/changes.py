"""What a candidate changes: paths, modes and blobs as plain data.

A path is bytes here, as it is in git. `spell` gives it the one text form that is stored, digested,
searched and shown; `unspell` reads that form back, so nothing is lost on the way.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from approvals import hidden
from portal.errors import Refusal

NO_MODE = "000000"
FILE, EXECUTABLE, SYMLINK, GITLINK = "100644", "100755", "120000", "160000"
MODE_WORDS = {
    FILE: "file",
    EXECUTABLE: "executable file",
    SYMLINK: "symbolic link",
    GITLINK: "submodule",
}


class Status(StrEnum):
    """The letter of git's raw diff."""

    ADDED = "A"
    DELETED = "D"
    MODIFIED = "M"
    RENAMED = "R"
    TYPE_CHANGED = "T"


class BadPath(Refusal):
    """A stored path that no path can have been spelled as."""

    code = "approvals.bad_path"
    status = 400
    text = "“{spelled}” is not a path this portal wrote. Take the path from the list of files."


@dataclass(frozen=True, slots=True)
class Change:
    """One line of git's raw diff, with sizes and line counts.

    `old_path` is None unless the file was renamed. `added` and `removed` are None for a binary
    file. A size is None where there is no blob on that side (or it is a submodule's commit).
    """

    path: bytes
    old_path: bytes | None
    status: Status
    old_mode: str
    new_mode: str
    old_blob: str
    new_blob: str
    similarity: int | None
    binary: bool
    added: int | None
    removed: int | None
    old_size: int | None
    new_size: int | None

    @property
    def name(self) -> str:
        return spell(self.path)

    @property
    def before(self) -> bytes:
        """The path on the old side."""
        return self.path if self.old_path is None else self.old_path

    @property
    def mode_changed(self) -> bool:
        return NO_MODE not in (self.old_mode, self.new_mode) and self.old_mode != self.new_mode

    @property
    def made_executable(self) -> bool:
        return self.new_mode == EXECUTABLE and self.old_mode != EXECUTABLE

    @property
    def content_changed(self) -> bool:
        return self.old_blob != self.new_blob

    def to_data(self) -> dict[str, Any]:
        """Plain JSON data; the same change always gives the same data."""
        return {
            "path": spell(self.path),
            "old_path": None if self.old_path is None else spell(self.old_path),
            "status": self.status.value,
            "old_mode": self.old_mode,
            "new_mode": self.new_mode,
            "old_blob": self.old_blob,
            "new_blob": self.new_blob,
            "similarity": self.similarity,
            "binary": self.binary,
            "added": self.added,
            "removed": self.removed,
            "old_size": self.old_size,
            "new_size": self.new_size,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Change:
        facts = dict(data)
        facts["path"] = unspell(facts["path"])
        if facts["old_path"] is not None:
            facts["old_path"] = unspell(facts["old_path"])
        facts["status"] = Status(facts["status"])
        return cls(**facts)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something found in the workspace that is not part of the candidate.

    `reason` is a stable word, `text` a sentence. What is `blocking` stands between the candidate
    and its approval: the reviewer would otherwise decide on less than the agent made.
    """

    path: bytes
    reason: str
    text: str
    blocking: bool = False
    count: int = 1

    @property
    def name(self) -> str:
        return spell(self.path)

    def to_data(self) -> dict[str, Any]:
        return {
            "path": spell(self.path),
            "reason": self.reason,
            "text": self.text,
            "blocking": self.blocking,
            "count": self.count,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> LeftOut:
        return cls(**{**data, "path": unspell(data["path"])})


# --- spelling --------------------------------------------------------------------------------


_SPELLED = re.compile(r"\\(?:\\|x([0-9a-f]{2})|u\{([0-9a-f]{1,6})\})")


def spell(path: bytes) -> str:
    r"""`path` as text that shows all of itself and can be read back.

    Readable characters stand for themselves. A backslash is doubled, a byte that is not UTF-8 is
    `\xNN`, and a character that hides (control, bidirectional, zero width) is `\u{202e}`.
    """
    plain = path.decode("utf-8", "surrogateescape").replace("\\", "\\\\")
    if plain.isascii() and plain.isprintable():
        return plain
    out: list[str] = []
    last = 0
    # A tab or a line break is no hidden character in a text, but it is one in a name.
    layout = [(i, i + 1) for i, char in enumerate(plain) if char in "\t\n"]
    for start, end in sorted([*layout, *((m.start, m.end) for m in hidden.marks(plain))]):
        out += [plain[last:start], *map(_spell_char, plain[start:end])]
        last = end
    return "".join([*out, plain[last:]])


def _spell_char(char: str) -> str:
    code = ord(char)
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{{{code:x}}}"


def unspell(spelled: str) -> bytes:
    """The path that `spell` was given. Raises `BadPath` for any other text."""

    def back(match: re.Match[str]) -> str:
        byte, code = match.groups()
        if byte is not None:
            return chr(0xDC00 + int(byte, 16))
        return chr(int(code, 16)) if code is not None else "\\"

    try:
        path = _SPELLED.sub(back, spelled).encode("utf-8", "surrogateescape")
    except (UnicodeEncodeError, ValueError, OverflowError):
        raise BadPath(spelled=spelled) from None
    if spell(path) != spelled:
        raise BadPath(spelled=spelled)
    return path


# --- paths that leave, or mean something else elsewhere ---------------------------------------

# HFS+ drops these before it compares names, so ".g\u200cit" is ".git" on a Mac.
_HFS_IGNORED = dict.fromkeys(
    [*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF]
)
_WINDOWS_DEVICES = re.compile(r"(?i)(con|prn|aux|nul|com[0-9]|lpt[0-9]|conin\$|conout\$)(\..*)?")
MAX_PATH = 4096
MAX_NAME = 255


def is_dot_git(name: bytes) -> bool:
    """Whether some file system would take `name` for `.git`.

    Case-blind file systems, NTFS short names (`git~1`), trailing dots and spaces, alternate data
    streams, and the characters HFS+ ignores are all counted in.
    """
    text = name.decode("utf-8", "surrogateescape").translate(_HFS_IGNORED)
    text = unicodedata.normalize("NFKC", text) if not text.isascii() else text
    text = text.split(":", 1)[0].rstrip(" .").casefold()
    return text in (".git", "git~1")


def unsafe_path(path: bytes) -> str | None:
    """Why a path in a tree cannot be allowed anywhere, or None.

    The rules are git's own (no empty, `.`, `..` or `.git` part) and wider: nothing absolute on any
    system, no NUL, no part that a case-blind or short-name file system reads as `.git`.
    """
    if not path:
        return "is empty"
    if b"\0" in path:
        return "holds a NUL byte"
    if len(path) > MAX_PATH:
        return f"is longer than {MAX_PATH} bytes"
    if path.startswith(b"/"):
        return "is absolute"
    if re.match(rb"[A-Za-z]:", path):
        return "starts with a drive letter"
    parts = path.split(b"/")
    for part in parts:
        if part == b"":
            return "has an empty part"
        if part in (b".", b".."):
            return f"has a “{part.decode()}” part"
        if is_dot_git(part):
            return "reaches into git's own directory"
        if len(part) > MAX_NAME:
            return f"has a part longer than {MAX_NAME} bytes"
    # Elsewhere a backslash separates directories.
    if b"\\" in path:
        for part in path.replace(b"\\", b"/").split(b"/"):
            if part == b".." or is_dot_git(part):
                return "leaves the tree where a backslash separates directories"
    return None


def odd_on_other_systems(path: bytes) -> str | None:
    """Why a path cannot be checked out everywhere, or None. A warning, not a refusal."""
    for part in path.split(b"/"):
        text = part.decode("utf-8", "surrogateescape")
        if _WINDOWS_DEVICES.fullmatch(text):
            return "is a device name on Windows"
        if text != text.rstrip(" ."):
            return "ends in a space or a dot, which Windows drops"
        if set(text) & set('<>:"|?*\\'):
            return "holds a character that Windows does not allow"
    return None


def link_leaves(path: bytes, target: bytes) -> str | None:
    """Why a symbolic link at `path` pointing to `target` leaves the tree, or None.

    Judged by text alone: every `..` must stay inside the tree. Targets through other links are
    judged on those links, which must stay inside too.
    """
    if not target:
        return "points nowhere"
    if b"\0" in target:
        return "has a target with a NUL byte"
    if target.startswith((b"/", b"\\")) or re.match(rb"[A-Za-z]:", target):
        return "points to an absolute path"
    depth = path.count(b"/")
    for part in target.replace(b"\\", b"/").split(b"/"):
        if part in (b"", b"."):
            continue
        if part == b"..":
            depth -= 1
            if depth < 0:
                return "points out of the tree"
            continue
        if is_dot_git(part):
            return "points into git's own directory"
        depth += 1
    return None


def link_cycle_or_escape(links: Mapping[bytes, bytes]) -> dict[bytes, str]:
    """Links of one tree that leave it only together with others, with the reason.

    `a -> b/..` and `b -> c/d` are harmless alone; followed one after the other they may climb out.
    Each link is walked as a file system would walk it, at most 40 links deep (as Linux does).
    """
    bad: dict[bytes, str] = {}
    for path, target in links.items():
        reason = link_leaves(path, target) or _walk(path, links)
        if reason:
            bad[path] = reason
    return bad


def _walk(start: bytes, links: Mapping[bytes, bytes]) -> str | None:
    todo = start.split(b"/")[::-1]
    at: list[bytes] = []
    followed = 0
    while todo:
        part = todo.pop()
        if part in (b"", b"."):
            continue
        if part == b"..":
            if not at:
                return "points out of the tree through another link"
            at.pop()
            continue
        at.append(part)
        target = links.get(b"/".join(at))
        if target is None:
            continue
        followed += 1
        if followed > 40:
            return "is part of a ring of links"
        if target.startswith(b"/"):
            return "points to an absolute path through another link"
        at.pop()
        todo += target.split(b"/")[::-1]
    return None
