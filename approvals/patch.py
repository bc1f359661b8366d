"""Read a patch, byte for byte, or refuse it.

One strict reader serves the page, the checks and any patch from elsewhere, so that no two of them
can see different things. It works on bytes: a line ends at a line feed and nowhere else, whatever
the encoding; paths are bytes. Where readers are known to differ (counts that lie, text between
files, two names for one file, combined diffs), the patch is refused with the line.

`unidiff` was tried and left out: it decodes first and splits lines at carriage returns, keeps
quoted paths quoted, and takes text that is no patch for an empty one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from approvals.changes import MODE_WORDS, NO_MODE, SYMLINK, link_leaves, spell, unsafe_path
from portal.errors import Refusal

FILE_START = b"diff --git "
_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(?: (.*))?")
_INDEX = re.compile(rb"([0-9a-f]{4,64})\.\.([0-9a-f]{4,64})(?: ([0-7]{6}))?")
_MODE = re.compile(rb"[0-7]{6}")
_BINARY_PART = re.compile(rb"(?:literal|delta) \d+")
_BASE85 = re.compile(rb"[A-Za-z][0-9A-Za-z!#$%&()*+;<=>?@^_`{|}~-]+")
_ESCAPES = {
    ord("a"): 7, ord("b"): 8, ord("t"): 9, ord("n"): 10, ord("v"): 11, ord("f"): 12,
    ord("r"): 13, ord('"'): 34, ord("\\"): 92,
}  # fmt: skip
_SPACE, _PLUS, _MINUS, _BACKSLASH = b" +-\\"


class PatchRefused(Refusal):
    """A patch that cannot be read in exactly one way, or that must not be applied."""

    code = "approvals.patch_refused"
    status = 422
    text = (
        "The patch was refused at line {line}: {reason}. Nothing of it was applied or left away. "
        "Ask for a patch as git diff prints it."
    )


@dataclass(frozen=True, slots=True)
class Hunk:
    """A run of lines. Each line keeps its first byte: space, plus or minus.

    `old_open` and `new_open` say that the last line of that side has no line feed at its end.
    """

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    section: bytes
    lines: tuple[bytes, ...]
    old_open: bool
    new_open: bool


@dataclass(frozen=True, slots=True)
class FilePatch:
    """What one section of a patch says about one file. A side that does not exist has no path."""

    line: int
    old_path: bytes | None
    new_path: bytes | None
    old_mode: str
    new_mode: str
    old_blob: str
    new_blob: str
    similarity: int | None
    renamed: bool
    binary: Literal["", "data", "no data"]
    hunks: tuple[Hunk, ...]
    added: int
    removed: int

    @property
    def path(self) -> bytes:
        path = self.new_path if self.new_path is not None else self.old_path
        return path if path is not None else b""


def read_patch(data: bytes) -> tuple[FilePatch, ...]:
    """Read a patch from elsewhere and refuse what must not be applied.

    Beyond `parse_patch`: no path leaves the tree, no path is written through a link or file that
    the patch itself makes, no link that leaves, no path twice, no mode that git does not keep, and
    no binary file without its bytes.
    """
    files = parse_patch(data)
    seen: dict[bytes, FilePatch] = {}
    for file in files:
        for path in (file.old_path, file.new_path):
            if path is not None and (reason := unsafe_path(path)):
                _refuse(file.line, f"the path “{spell(path)}” {reason}")
        for mode in (file.old_mode, file.new_mode):
            if mode not in ("", NO_MODE) and mode not in MODE_WORDS:
                _refuse(
                    file.line, f"“{spell(file.path)}” has the mode {mode}, which git does not keep"
                )
        if file.new_mode == SYMLINK and file.hunks:
            target = b"".join(sides(file.hunks[-1])[1])
            if reason := link_leaves(file.path, target):
                _refuse(file.line, f"the link “{spell(file.path)}” {reason}")
        if file.binary == "no data":
            _refuse(file.line, f"“{spell(file.path)}” is binary and its bytes are not in the patch")
        earlier = seen.get(file.path)
        replaced = earlier and earlier.new_path is None and file.old_path is None
        if earlier and not replaced:
            _refuse(file.line, f"“{spell(file.path)}” comes twice, first at line {earlier.line}")
        seen[file.path] = file
    made = {path: file for path, file in seen.items() if file.new_path is not None}
    for path, file in made.items():
        parent = path
        while (parent := parent.rpartition(b"/")[0]) in made or parent:
            if parent in made:
                what = "a link" if made[parent].new_mode == SYMLINK else "a file"
                _refuse(file.line, f"“{spell(path)}” lies below “{spell(parent)}”, which is {what}")
    return files


def parse_patch(data: bytes) -> tuple[FilePatch, ...]:
    """Every file of a patch, in order. Raises `PatchRefused`.

    Takes what `git diff` prints and plain unified diffs. A patch holds nothing but files: mail
    headers, a message, a signature or anything else around them is refused, since a message may
    hold a second diff and readers differ in which one they take.
    """
    if not data:
        return ()
    reader = _Reader(data)
    files = []
    while reader.at < len(reader.lines):
        files.append(reader.file())
    return tuple(files)


def _refuse(line: int, reason: str) -> NoReturn:
    raise PatchRefused(line=line, reason=reason)


def unquote(token: bytes) -> bytes | None:
    """The path inside git's quotes, or None where the quoting is not git's."""
    if len(token) < 2 or token[:1] != b'"' or token[-1:] != b'"':
        return None
    out = bytearray()
    body = iter(range(1, len(token) - 1))
    for i in body:
        byte = token[i]
        if byte == ord('"'):
            return None
        if byte != ord("\\"):
            out.append(byte)
            continue
        if i + 1 >= len(token) - 1:
            return None
        following = token[i + 1]
        if following in _ESCAPES:
            out.append(_ESCAPES[following])
            next(body)
        elif re.fullmatch(rb"[0-3][0-7]{2}", token[i + 1 : i + 4]):
            out.append(int(token[i + 1 : i + 4], 8))
            for _ in range(3):
                next(body)
        else:
            return None
    return bytes(out)


def _quoted_end(text: bytes) -> int:
    """Where the quoted token at the start of `text` ends, or 0."""
    i = 1
    while i < len(text):
        if text[i] == ord("\\"):
            i += 2
        elif text[i] == ord('"'):
            return i + 1
        else:
            i += 1
    return 0


@dataclass(slots=True)
class _Head:
    """The extended header lines of one file."""

    old_mode: str = ""
    new_mode: str = ""
    old_blob: str = ""
    new_blob: str = ""
    similarity: int | None = None
    moved_from: bytes | None = None
    moved_to: bytes | None = None
    renamed: bool = False
    created: bool = False
    deleted: bool = False
    seen: set[bytes] = field(default_factory=set)


class _Reader:
    """A cursor over the lines of one patch."""

    def __init__(self, data: bytes) -> None:
        self.lines = data.split(b"\n")
        self.at = 0
        if self.lines[-1] == b"":
            self.lines.pop()
        else:
            _refuse(len(self.lines), "the last line has no end, so something may be cut off")

    def line(self) -> bytes:
        return self.lines[self.at] if self.at < len(self.lines) else b""

    def starts(self, prefix: bytes) -> bool:
        return self.at < len(self.lines) and self.lines[self.at].startswith(prefix)

    def fail(self, reason: str) -> NoReturn:
        _refuse(self.at + 1, reason)

    # --- one file ---

    def file(self) -> FilePatch:
        if self.starts(FILE_START):
            return self._git_file()
        if self.starts(b"--- "):
            return self._plain_file()
        if self.starts(b"diff --cc ") or self.starts(b"diff --combined "):
            self.fail("a combined diff of a merge cannot be shown as a diff against one source")
        self.fail("text stands where a file must begin")

    def _git_file(self) -> FilePatch:
        line = self.at + 1
        header = self.lines[self.at][len(FILE_START) :]
        self.at += 1
        head = self._head()
        old_path, new_path = self._git_names(header, head, line)
        binary: Literal["", "data", "no data"] = ""
        hunks: tuple[Hunk, ...] = ()
        if self.starts(b"--- "):
            shown_old, shown_new = self._marker_names(prefixed=True)
            expected = (None if head.created else old_path, None if head.deleted else new_path)
            # An old git and plain tools leave the creation line away and say /dev/null only here.
            if (shown_old, shown_new) != expected:
                _refuse(line, "the names in the first line and in the --- and +++ lines differ")
            hunks = self._hunks()
            if not hunks:
                self.fail("--- and +++ without a hunk")
        elif self.starts(b"Binary files ") and self.line().endswith(b" differ"):
            binary = "no data"
            self.at += 1
        elif self.line() == b"GIT binary patch":
            binary = "data"
            self._skip_binary()
        if self.at < len(self.lines) and not self.starts(FILE_START):
            self._not_a_start()
        return self._made(line, old_path, new_path, head, binary, hunks)

    def _not_a_start(self) -> NoReturn:
        if self.line()[:1] in (b" ", b"+", b"-"):
            self.fail("more lines follow than the hunk header says")
        self.fail("text stands between two files")

    def _plain_file(self) -> FilePatch:
        line = self.at + 1
        old_path, new_path = self._marker_names(prefixed=False)
        if old_path is None and new_path is None:
            _refuse(line, "neither side is a file")
        hunks = self._hunks()
        if not hunks:
            self.fail("--- and +++ without a hunk")
        if self.at < len(self.lines):
            following = self.lines[self.at + 1] if self.at + 1 < len(self.lines) else b""
            if not (self.starts(b"--- ") and following.startswith(b"+++ ")):
                self._not_a_start()
        both = old_path is not None and new_path is not None
        if both and old_path != new_path:
            _refuse(line, "the names in the --- and +++ lines differ")
        head = _Head(created=old_path is None, deleted=new_path is None)
        return self._made(line, old_path, new_path, head, "", hunks)

    @staticmethod
    def _made(
        line: int,
        old_path: bytes | None,
        new_path: bytes | None,
        head: _Head,
        binary: Literal["", "data", "no data"],
        hunks: tuple[Hunk, ...],
    ) -> FilePatch:
        added = removed = 0
        for hunk in hunks:
            context = hunk.old_count + hunk.new_count - len(hunk.lines)
            added += hunk.new_count - context
            removed += hunk.old_count - context
        return FilePatch(
            line=line,
            old_path=None if head.created else old_path,
            new_path=None if head.deleted else new_path,
            old_mode=NO_MODE if head.created else head.old_mode,
            new_mode=NO_MODE if head.deleted else head.new_mode or head.old_mode,
            old_blob=head.old_blob,
            new_blob=head.new_blob,
            similarity=head.similarity,
            renamed=head.renamed,
            binary=binary,
            hunks=hunks,
            added=added,
            removed=removed,
        )

    # --- headers ---

    def _head(self) -> _Head:
        head = _Head()
        while self.at < len(self.lines):
            line = self.lines[self.at]
            for word, read in _HEADERS.items():
                if line.startswith(word):
                    if word in head.seen:
                        self.fail(f"“{word.decode().strip()}” comes twice")
                    head.seen.add(word)
                    if not read(head, line[len(word) :]):
                        self.fail(f"“{word.decode().strip()}” is not as git writes it")
                    break
            else:
                break
            self.at += 1
        if head.created and head.deleted:
            self.fail("the file is created and deleted at once")
        if (head.moved_from is None) != (head.moved_to is None):
            self.fail("a rename or copy names only one side")
        return head

    def _git_names(self, header: bytes, head: _Head, line: int) -> tuple[bytes, bytes]:
        """Both names, taken from where they are unambiguous and checked against the first line."""
        if head.moved_from is not None and head.moved_to is not None:
            old, new = head.moved_from, head.moved_to
        elif self.starts(b"--- "):
            at = self.at
            shown_old, shown_new = self._marker_names(prefixed=True)
            self.at = at
            first = shown_old if shown_old is not None else shown_new
            second = shown_new if shown_new is not None else shown_old
            if first is None or second is None:
                _refuse(line, "neither side is a file")
            old, new = first, second
        else:
            same = self._same_name(header)
            if same is None:
                _refuse(line, "the first line names no file, or two")
            old = new = same
        if not self._header_says(header, old, new):
            _refuse(line, "the first line names other files than the lines below it")
        if old != new and head.moved_from is None:
            _refuse(line, "two names without a rename or copy")
        return old, new

    @staticmethod
    def _same_name(header: bytes) -> bytes | None:
        if header.startswith(b'"'):
            path = unquote(header[: _quoted_end(header)])
            return None if path is None or not path.startswith(b"a/") else path[2:]
        half, odd = divmod(len(header) - 1, 2)
        if odd or not header.startswith(b"a/"):
            return None
        return header[2:half] if header[half : half + 3] == b" b/" else None

    @staticmethod
    def _header_says(header: bytes, old: bytes, new: bytes) -> bool:
        if header == b"a/" + old + b" b/" + new:
            return True
        if header.startswith(b'"'):
            end = _quoted_end(header)
            first, rest = unquote(header[:end]), header[end:]
        else:
            first, rest = b"a/" + old, header[2 + len(old) :]
            if not header.startswith(first):
                return False
        if first != b"a/" + old or rest[:1] != b" ":
            return False
        second = rest[1:]
        return (unquote(second) if second.startswith(b'"') else second) == b"b/" + new

    def _marker_names(self, *, prefixed: bool) -> tuple[bytes | None, bytes | None]:
        old = self._marker(b"--- ", b"a/", prefixed)
        if not self.starts(b"+++ "):
            self.fail("a --- line without a +++ line")
        new = self._marker(b"+++ ", b"b/", prefixed)
        return old, new

    def _marker(self, word: bytes, prefix: bytes, prefixed: bool) -> bytes | None:
        text = self.lines[self.at][len(word) :]
        if text.startswith(b'"'):
            end = _quoted_end(text)
            name = unquote(text[:end])
            if name is None or text[end:] not in (b"", b"\t"):
                self.fail("the quotes around a name are not git's")
        else:
            # Git ends a name with spaces in it by a tab; plain diffs put a date behind one.
            name, tab, date = text.partition(b"\t")
            if prefixed and tab and date:
                self.fail("text stands behind a name")
        self.at += 1
        if name == b"/dev/null":
            return None
        if name.startswith(prefix):
            return name[len(prefix) :]
        if prefixed:
            self.at -= 1
            self.fail(f"a name does not begin with {prefix.decode()}")
        return name

    # --- hunks ---

    def _hunks(self) -> tuple[Hunk, ...]:
        hunks: list[Hunk] = []
        old_end = new_end = 0
        while self.starts(b"@@"):
            hunk = self._hunk()
            if hunks and (hunk.old_start < old_end or hunk.new_start < new_end):
                self.fail("hunks overlap or are out of order")
            if hunks and (hunks[-1].old_open or hunks[-1].new_open):
                self.fail("a hunk follows the end of the file")
            old_end = hunk.old_start + hunk.old_count
            new_end = hunk.new_start + hunk.new_count
            hunks.append(hunk)
        return tuple(hunks)

    def _hunk(self) -> Hunk:
        match = _HUNK.fullmatch(self.lines[self.at])
        if match is None:
            if self.lines[self.at].startswith(b"@@@"):
                self.fail("a combined diff of a merge cannot be shown as a diff against one source")
            self.fail("a hunk header is not as git writes it")
        if any(part is not None and len(part) > 9 for part in match.groups()[:4]):
            self.fail("a line number is too large to be one")
        old_start, new_start = int(match[1]), int(match[3])
        old_count = 1 if match[2] is None else int(match[2])
        new_count = 1 if match[4] is None else int(match[4])
        if (old_start == 0 and old_count) or (new_start == 0 and new_count):
            self.fail("a hunk has lines before the first one")
        start = self.at + 1
        self.at = start
        lines: list[bytes] = []
        old_left, new_left = old_count, new_count
        old_open = new_open = False
        source, end = self.lines, len(self.lines)
        while old_left or new_left:
            if self.at >= end:
                self.fail("the patch ends inside a hunk")
            line = source[self.at]
            sign = line[0] if line else 0
            if sign == _SPACE:
                old_left -= 1
                new_left -= 1
                if old_open or new_open:
                    self.fail("a line follows the end of the file")
            elif sign == _PLUS:
                new_left -= 1
                if new_open:
                    self.fail("a line follows the end of the file")
            elif sign == _MINUS:
                old_left -= 1
                if old_open:
                    self.fail("a line follows the end of the file")
            elif sign == _BACKSLASH and lines:
                old_open, new_open = self._open(lines[-1], old_open, new_open)
                self.at += 1
                continue
            else:
                self.fail("a line in a hunk begins with none of space, plus and minus")
            if old_left < 0 or new_left < 0:
                self.fail("a hunk has other lines than its header says")
            lines.append(line)
            self.at += 1
        if self.at < end and source[self.at].startswith(b"\\ ") and lines:
            old_open, new_open = self._open(lines[-1], old_open, new_open)
            self.at += 1
        if not any(line[0] != _SPACE for line in lines):
            self.at = start - 1
            self.fail("a hunk changes nothing")
        return Hunk(
            old_start, old_count, new_start, new_count, match[5] or b"", tuple(lines),
            old_open, new_open,
        )  # fmt: skip

    def _open(self, last: bytes, old_open: bool, new_open: bool) -> tuple[bool, bool]:
        if not self.lines[self.at].startswith(b"\\ "):
            self.fail("a line in a hunk begins with none of space, plus and minus")
        sign = last[0]
        if (old_open and sign != _PLUS) or (new_open and sign != _MINUS):
            self.fail("the end of the file is marked twice")
        return old_open or sign != _PLUS, new_open or sign != _MINUS

    def _skip_binary(self) -> None:
        """Pass over the two encoded sides. Their bytes are in the repository already."""
        self.at += 1
        for side in (0, 1):
            if not _BINARY_PART.fullmatch(self.line()):
                if side:
                    return
                self.fail("the binary data is not as git writes it")
            self.at += 1
            while self.at < len(self.lines) and self.lines[self.at]:
                if not _BASE85.fullmatch(self.lines[self.at]):
                    self.fail("the binary data is not as git writes it")
                self.at += 1
            if self.at >= len(self.lines):
                self.fail("the binary data ends early")
            self.at += 1


# --- extended headers: each reads its rest and says whether it is right ------------------------


def _name(rest: bytes) -> bytes | None:
    return unquote(rest) if rest.startswith(b'"') else rest or None


def _old_mode(head: _Head, rest: bytes) -> bool:
    head.old_mode = rest.decode("latin-1")
    return bool(_MODE.fullmatch(rest))


def _new_mode(head: _Head, rest: bytes) -> bool:
    head.new_mode = rest.decode("latin-1")
    return bool(_MODE.fullmatch(rest))


def _created(head: _Head, rest: bytes) -> bool:
    head.created = True
    return _new_mode(head, rest)


def _deleted(head: _Head, rest: bytes) -> bool:
    head.deleted = True
    return _old_mode(head, rest)


def _moved_from(head: _Head, rest: bytes) -> bool:
    head.renamed = True
    head.moved_from = _name(rest)
    return head.moved_from is not None


def _moved_to(head: _Head, rest: bytes) -> bool:
    head.moved_to = _name(rest)
    return head.moved_to is not None


def _copied_from(head: _Head, rest: bytes) -> bool:
    head.moved_from = _name(rest)
    return head.moved_from is not None


def _similarity(head: _Head, rest: bytes) -> bool:
    match = re.fullmatch(rb"(\d{1,3})%", rest)
    head.similarity = int(match[1]) if match else None
    return match is not None


def _dissimilarity(head: _Head, rest: bytes) -> bool:
    return re.fullmatch(rb"\d{1,3}%", rest) is not None


def _index(head: _Head, rest: bytes) -> bool:
    match = _INDEX.fullmatch(rest)
    if match is None:
        return False
    head.old_blob, head.new_blob = match[1].decode(), match[2].decode()
    if match[3] and not head.old_mode:
        head.old_mode = match[3].decode()
    return True


_HEADERS = {
    b"old mode ": _old_mode,
    b"new mode ": _new_mode,
    b"new file mode ": _created,
    b"deleted file mode ": _deleted,
    b"rename from ": _moved_from,
    b"rename to ": _moved_to,
    b"copy from ": _copied_from,
    b"copy to ": _moved_to,
    b"similarity index ": _similarity,
    b"dissimilarity index ": _dissimilarity,
    b"index ": _index,
}


# --- the other direction ---------------------------------------------------------------------


def apply(file: FilePatch, old: bytes) -> bytes:
    """What `old` becomes by the lines of `file`. Raises `PatchRefused` where they do not fit.

    Used to prove that the lines on the page and the stored bytes are the same thing.
    """
    source = _split(old)
    out: list[bytes] = []
    at = 0
    for hunk in file.hunks:
        start = hunk.old_start - 1 if hunk.old_count else hunk.old_start
        if start < at or start > len(source):
            _refuse(file.line, "a hunk lies outside the file")
        out += source[at:start]
        at = start
        removed, added = sides(hunk)
        if source[at : at + len(removed)] != removed:
            _refuse(file.line, "the lines to be removed are not those of the file")
        at += len(removed)
        out += added
    out += source[at:]
    return b"".join(out)


def sides(hunk: Hunk) -> tuple[list[bytes], list[bytes]]:
    """The old and the new lines of a hunk, each with its line feed where it has one."""
    old = [line[1:] + b"\n" for line in hunk.lines if line[0] != _PLUS]
    new = [line[1:] + b"\n" for line in hunk.lines if line[0] != _MINUS]
    if hunk.old_open and old:
        old[-1] = old[-1][:-1]
    if hunk.new_open and new:
        new[-1] = new[-1][:-1]
    return old, new


def _split(data: bytes) -> list[bytes]:
    lines: Sequence[bytes] = data.split(b"\n")
    whole = [line + b"\n" for line in lines[:-1]]
    return [*whole, lines[-1]] if lines[-1] else whole
