"""What a person sees of a candidate: every change, and its lines when asked for.

`Diff` pairs the list of changes (from git's raw diff, so it is complete) with the patch. The list
is ready at once; a file's rows are made when its part of the page is asked for. Everything handed
out is plain data, split into segments with a kind; templates escape it. No HTML is made here.

* A path, a line or a section heading is a tuple of `Segment`s. A hidden character is a segment of
  its own with its code point as text, so nothing raw reaches a page.
* What is cut is counted: long lines (`cut` segments, `Diff.whole_line` has the rest), long files
  (`FileView.next_start`), unchanged lines between hunks (`HunkRow.skipped`).
* The page and the check `view` read the same lines: `patch.apply` of them gives the stored bytes.
* Attributes and file names of the candidate never hide a change; whitespace is only left away
  where the reader asked for it, and then the lines left away are counted.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import pairwise, zip_longest
from typing import Literal

from pygments.lexer import Lexer
from pygments.lexers import find_lexer_class_for_filename
from pygments.token import Comment, Keyword, Name, Number, Operator, String, _TokenType
from pygments.util import ClassNotFound

from approvals import hidden
from approvals.changes import EXECUTABLE, GITLINK, MODE_WORDS, SYMLINK, Change, Status
from approvals.patch import FILE_START, FilePatch, Hunk, parse_patch
from portal import visible
from portal.errors import Refusal

PAGE_ROWS = 400
LINE_CHARS = 2_000  # of one line on the page
PAGE_CHARS = 400_000  # of all lines of one view
PAGE_SEGMENTS = 40_000
HIGHLIGHT_LINES = 2_000  # of one file; above, its lines stay plain
HIGHLIGHT_CHARS = 400  # of one line; a longer one stays plain
HIGHLIGHT_SECONDS = 1.0
WORD_TOKENS = 400  # of one line; a longer one gets no word marks
WORD_WORK = 60_000  # pairs of equal tokens walked through for one view
JUDGED_CHARS = 10_000  # of one line
JUDGED_MARKS = 10_000  # of one file
GAP = 60  # blanks inside a line that may push the rest out of sight

SegmentKind = Literal[
    "", "k", "st", "n", "cm", "fn", "hid", "byte", "cr", "gap", "rtl", "cut", "mask",
]  # fmt: skip
Mode = Literal["unified", "split"]
_SPACE, _PLUS, _MINUS = b" +-"


class DiffBroken(Refusal):
    """The patch and the list of changes do not describe the same thing."""

    code = "approvals.diff_broken"
    status = 500
    text = (
        "The patch does not match the list of changes ({reason}), so it is not shown. "
        "Nothing can be approved on it; take the candidate again."
    )


class NoSuchLines(Refusal):
    """A file, hunk or line that this diff does not have."""

    code = "approvals.no_such_lines"
    status = 404
    text = "This diff has no such lines. Open the candidate again from its page."


# --- what is handed out ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mask:
    """Characters `start` to `end` of one line of a blob, not to be shown. Line 0 is every line."""

    line: int
    start: int
    end: int


Masks = Mapping[str, Sequence[Mask]]  # by the name of the blob


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of text of one kind.

    `hid` and `byte` stand for characters that cannot be seen: `text` is the label to draw and
    `title` the full name. `cr` is a carriage return at a line's end, `gap` a long run of blanks,
    `rtl` right-to-left text to be isolated, `cut` the words that say how much is not shown, `mask`
    stands for a value that a check took for a secret. The rest are colours of syntax, or plain.
    """

    text: str
    kind: SegmentKind = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Segments that stand together; `changed` ones are the words that differ within a line."""

    segments: tuple[Segment, ...]
    changed: bool = False


@dataclass(frozen=True, slots=True)
class HunkRow:
    """The heading of a hunk: where it is, and how many unchanged lines before it are not shown."""

    number: int
    old_range: str
    new_range: str
    section: tuple[Segment, ...]
    skipped: int
    kind: Literal["hunk"] = "hunk"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of one side (or of both, where it is unchanged)."""

    kind: Literal["ctx", "add", "rem"]
    old_no: int | None
    new_no: int | None
    stretches: tuple[Stretch, ...]
    sign: str
    open_end: bool = False  # no line feed at the end of the file
    cut: int = 0  # characters not shown
    note: str = ""

    @property
    def side(self) -> str:
        """The side and line number that `Diff.whole_line` takes."""
        return f"old-{self.old_no}" if self.kind == "rem" else f"new-{self.new_no}"


@dataclass(frozen=True, slots=True)
class SplitRow:
    """Old and new side by side; a side is None where there is nothing opposite."""

    old: Line | None
    new: Line | None
    kind: Literal["pair"] = "pair"


Row = HunkRow | Line | SplitRow


@dataclass(frozen=True, slots=True)
class FileHead:
    """One changed path, before any line of it is looked at.

    `words` say in plain words what happened to it. `hidden` counts characters that cannot be seen
    and are not at home where they stand; `quiet` those that are. `lines` counts all lines of all
    hunks. `cut` says why the file's lines are not all on the first page, or is empty.
    """

    index: int
    change: Change
    path: tuple[Segment, ...]
    old_path: tuple[Segment, ...]
    words: tuple[str, ...]
    added: int
    removed: int
    hidden: int
    quiet: int
    lines: int
    hunks: int
    cut: str
    whitespace_only: int = 0

    @property
    def name(self) -> str:
        return self.change.name

    @property
    def empty(self) -> bool:
        """There is no line to show: a mode, a rename, a binary file."""
        return self.lines == 0


@dataclass(frozen=True, slots=True)
class FileView:
    """Some rows of one file. `next_start` is where the next view begins, None at the end."""

    head: FileHead
    mode: Mode
    rows: tuple[Row, ...]
    start: int
    next_start: int | None
    total: int
    plain_because: str = ""  # why there is no syntax colour
    unmarked: int = 0  # pairs of lines without word marks, for their length


@dataclass(frozen=True, slots=True)
class LinePart:
    """A part of one line that is too long for the page."""

    segments: tuple[Segment, ...]
    offset: int
    next_offset: int | None
    total: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over all files; the numbers in the head of the page."""

    files: int
    added: int
    removed: int
    binary: int
    hidden: int
    hidden_files: int


# --- the diff of one candidate ---------------------------------------------------------------


class Diff:
    """The changes of a candidate and the patch that shows them.

    `changes` and `data` come from the same two trees (`tree.list_changes`, `tree.patch`). Raises
    `DiffBroken` where the two disagree: the list judges. With `partial` the patch was made without
    whitespace, so a file may have fewer lines in it than the list counts, or no section at all.
    `masks` name what a check took for a secret; it is not shown, only its place and length.
    """

    def __init__(
        self,
        changes: Sequence[Change],
        data: bytes,
        *,
        partial: bool = False,
        masks: Masks | None = None,
    ) -> None:
        self.changes = tuple(changes)
        self._data = data
        self._partial = partial
        self._masks = masks or {}
        self._spans = _assign(self.changes, _sections(data), data, partial)
        self._heads: dict[int, FileHead] = {}
        self._files: dict[int, tuple[FilePatch, ...]] = {}
        self._hidden: tuple[tuple[int, int], ...] | None = None

    def __len__(self) -> int:
        return len(self.changes)

    def heads(self, start: int = 0, count: int | None = None) -> tuple[FileHead, ...]:
        """The files from `start` on, in git's order."""
        stop = len(self) if count is None else min(len(self), start + count)
        return tuple(self.head(index) for index in range(start, stop))

    def head(self, index: int) -> FileHead:
        """One file of the list. Raises `NoSuchLines`."""
        if not 0 <= index < len(self):
            raise NoSuchLines
        if index not in self._heads:
            self._heads[index] = self._make_head(index)
        return self._heads[index]

    def find(self, path: bytes) -> int:
        """The number of the file at `path`. Raises `NoSuchLines`."""
        for index, change in enumerate(self.changes):
            if change.path == path:
                return index
        raise NoSuchLines

    def totals(self) -> Totals:
        counted = self._count_hidden()
        return Totals(
            files=len(self),
            added=sum(change.added or 0 for change in self.changes),
            removed=sum(change.removed or 0 for change in self.changes),
            binary=sum(change.binary for change in self.changes),
            hidden=sum(loud for loud, _ in counted),
            hidden_files=sum(loud > 0 for loud, _ in counted),
        )

    def files(self, index: int) -> tuple[FilePatch, ...]:
        """The sections of one change: one, none (partial), or two where its type changed."""
        if index not in self._files:
            low, high = self._spans[index]
            files = parse_patch(self._data[low:high])
            _agree(self.changes[index], files, self._partial)
            self._files[index] = files
        return self._files[index]

    def view(
        self,
        index: int,
        mode: Mode = "unified",
        *,
        start: int = 0,
        count: int = PAGE_ROWS,
        highlight: bool = True,
        blobs: Mapping[str, bytes] | None = None,
    ) -> FileView:
        """Rows `start` to `start + count` of one file, fewer where the page would grow too large.

        With `blobs` (contents by name) colours come from the whole file, which keeps strings over
        many lines right; without, from the lines of each hunk. Raises `NoSuchLines`.
        """
        head = self.head(index)
        rows = _unified(self.files(index)) if mode == "unified" else _split(self.files(index))
        if start < 0 or (start and start >= len(rows)):
            raise NoSuchLines
        painter = _Painter(self.changes[index], head.lines, highlight, blobs or {}, self._masks)
        out: list[Row] = []
        at = start
        for at in range(start, min(len(rows), start + count)):
            if out and painter.full:
                break
            out.append(painter.row(rows[at]))
        else:
            at = min(len(rows), start + count)
        return FileView(
            head=head,
            mode=mode,
            rows=tuple(out),
            start=start,
            next_start=at if at < len(rows) else None,
            total=len(rows),
            plain_because=painter.plain_because,
            unmarked=painter.unmarked,
        )

    def whole_line(self, index: int, side: str, *, offset: int = 0, size: int = 20_000) -> LinePart:
        """A part of one line in full, for lines the page had to cut. Raises `NoSuchLines`.

        `side` is `Line.side`: `old-12` or `new-12`.
        """
        match = re.fullmatch(r"(old|new)-(\d{1,9})", side)
        if match is None or offset < 0:
            raise NoSuchLines
        size = min(size, 20_000)
        for raw in _unified(self.files(index)):
            if isinstance(raw, _RawLine) and raw.number(match[1]) == int(match[2]):
                text = hidden.decode(raw.text)
                if offset and offset >= len(text):
                    raise NoSuchLines
                end = min(len(text), offset + size)
                masks = _masks_of(self.changes[index], raw, self._masks)
                stretches = _stretches(text, [], (), [(offset, end)], raw.first, masks)
                segments = tuple(s for stretch in stretches for s in stretch.segments)
                return LinePart(
                    tuple(s for s in segments if s.kind != "cut"),
                    offset,
                    end if end < len(text) else None,
                    len(text),
                )
        raise NoSuchLines

    def between(
        self, index: int, hunk: int, new_blob: bytes, *, count: int = PAGE_ROWS
    ) -> tuple[Line, ...]:
        """The unchanged lines before hunk number `hunk` (from 0), the last `count` of them.

        `new_blob` is the new content of the file. One past the last hunk gives what follows it.
        """
        hunks = [h for file in self.files(index) for h in file.hunks]
        if not 0 <= hunk <= len(hunks) or not hunks:
            raise NoSuchLines
        lines = new_blob.split(b"\n")
        if lines[-1] == b"":
            lines.pop()
        before = hunks[hunk - 1] if hunk else None
        low = _after(before.new_start, before.new_count) if before else 1
        old = _after(before.old_start, before.old_count) if before else 1
        if hunk < len(hunks):
            ahead = hunks[hunk]
            high = ahead.new_start if ahead.new_count else ahead.new_start + 1
        else:
            high = len(lines) + 1
        skip = max(0, high - low - count) if hunk < len(hunks) else 0
        high = high if hunk < len(hunks) else min(high, low + count)
        change = self.changes[index]
        painter = _Painter(change, 0, True, {change.new_blob: new_blob}, self._masks)
        return tuple(
            painter.line(_RawLine(_SPACE, old + n - low, n, lines[n - 1], n == 1))
            for n in range(low + skip, high)
            if n <= len(lines)
        )

    # --- heads ---

    def _make_head(self, index: int) -> FileHead:
        change = self.changes[index]
        files = self.files(index)
        lines = sum(len(hunk.lines) for file in files for hunk in file.hunks)
        hunks = sum(len(file.hunks) for file in files)
        loud, quiet = self._count_hidden()[index]
        words = [*change_words(change), *_line_ending_words(files)]
        counted = (change.added or 0) + (change.removed or 0)
        shown = sum(file.added + file.removed for file in files)
        return FileHead(
            index=index,
            change=change,
            path=path_segments(change.path),
            old_path=path_segments(change.old_path) if change.old_path is not None else (),
            words=tuple(words),
            added=change.added or 0,
            removed=change.removed or 0,
            hidden=loud,
            quiet=quiet,
            lines=lines,
            hunks=hunks,
            cut=f"{lines:,} lines, shown {PAGE_ROWS} at a time" if lines > PAGE_ROWS else "",
            whitespace_only=counted - shown if self._partial else 0,
        )

    def _count_hidden(self) -> tuple[tuple[int, int], ...]:
        """Loud and quiet hidden characters of each change, path included."""
        if self._hidden is None:
            self._hidden = tuple(
                self._hidden_in(index, change, *span)
                for index, (change, span) in enumerate(zip(self.changes, self._spans, strict=True))
            )
        return self._hidden

    def _hidden_in(self, index: int, change: Change, low: int, high: int) -> tuple[int, int]:
        marks = hidden.marks(hidden.decode(change.path), look_alikes=True)
        many = 0
        body = self._data.find(b"\n@@ ", low, high)
        if body >= 0 and _ODD_BYTE.search(self._data, body, high):
            for raw in _unified(self.files(index)):
                if isinstance(raw, _RawLine) and _ODD_BYTE.search(raw.text):
                    text = hidden.decode(raw.text).removesuffix("\r")
                    if len(text) > JUDGED_CHARS or len(marks) > JUDGED_MARKS:
                        # Too many to look at each where it stands: all count as loud.
                        many += visible.count_hidden(text)
                    else:
                        marks += hidden.marks(text, at_start=raw.first, look_alikes=True)
        loud = many + sum(mark.loud for mark in marks)
        return loud, sum(not mark.loud and mark.kind != "blank" for mark in marks)


# Anything but printable ASCII, a tab, and a carriage return right before the line feed.
_ODD_BYTE = re.compile(rb"[^\t\r\x20-\x7e\n]|\r(?!\n)")


def _sections(data: bytes) -> list[tuple[int, int]]:
    """Where each file of the patch begins and ends.

    No line of a hunk and no line of encoded binary data can begin with the words looked for.
    """
    starts = []
    at = 0 if data.startswith(FILE_START) else -1
    while at >= 0:
        starts.append(at)
        following = data.find(b"\n" + FILE_START, at)
        at = following + 1 if following >= 0 else -1
    if data and (not starts or starts[0] != 0):
        raise DiffBroken(reason="the patch does not begin with a file")
    return list(pairwise([*starts, len(data)]))


def _assign(
    changes: Sequence[Change],
    sections: Sequence[tuple[int, int]],
    data: bytes,
    partial: bool,
) -> list[tuple[int, int]]:
    """Give each change its sections, in order: two for a changed type, one otherwise."""
    spans = []
    at = 0
    for change in changes:
        wanted = 2 if change.status is Status.TYPE_CHANGED else 1
        if partial and not _is_about(data, sections[at : at + 1], change):
            spans.append((0, 0))
            continue
        if at + wanted > len(sections):
            raise DiffBroken(reason=f"“{change.name}” has no section")
        spans.append((sections[at][0], sections[at + wanted - 1][1]))
        at += wanted
    if at != len(sections):
        raise DiffBroken(reason=f"{len(sections) - at} sections have no change")
    return spans


def _is_about(data: bytes, section: Sequence[tuple[int, int]], change: Change) -> bool:
    return bool(section) and any(
        file.path == change.path for file in parse_patch(data[section[0][0] : section[0][1]])
    )


def _agree(change: Change, files: Sequence[FilePatch], partial: bool) -> None:
    """Raise `DiffBroken` unless the sections say what git's raw diff says."""
    if not files and partial:
        return
    first, last = files[0], files[-1]
    expected = {
        "path": (change.path, last.path),
        "old path": (change.before, first.old_path if first.old_path is not None else first.path),
        "lines added": (change.added or 0, sum(file.added for file in files)),
        "lines removed": (change.removed or 0, sum(file.removed for file in files)),
        "binary": (change.binary, any(file.binary for file in files)),
    }
    if partial:
        del expected["lines added"], expected["lines removed"]
    if change.content_changed:
        expected["old blob"] = (change.old_blob, first.old_blob or change.old_blob)
        expected["new blob"] = (change.new_blob, last.new_blob or change.new_blob)
    for what, (listed, shown) in expected.items():
        if listed != shown:
            raise DiffBroken(reason=f"“{change.name}”: its {what} differs")


# --- words -----------------------------------------------------------------------------------


def change_words(change: Change) -> tuple[str, ...]:
    """What happened to a file, in plain words. The two paths of a rename stand elsewhere."""
    words = []
    kind_before = MODE_WORDS.get(change.old_mode, f"mode {change.old_mode}")
    kind_now = MODE_WORDS.get(change.new_mode, f"mode {change.new_mode}")
    match change.status:
        case Status.ADDED:
            words.append(f"new {kind_now}")
        case Status.DELETED:
            words.append(f"{kind_before} deleted")
        case Status.TYPE_CHANGED:
            words.append(f"was a {kind_before}, is now a {kind_now}")
        case Status.RENAMED:
            alike = change.similarity if change.similarity is not None else 0
            words.append(
                "renamed, content unchanged" if alike == 100 else f"renamed, {alike} % alike"
            )
        case Status.MODIFIED:
            pass
    if change.mode_changed and change.status is not Status.TYPE_CHANGED:
        effect = "can now be executed" if change.new_mode == EXECUTABLE else "no longer executable"
        words.append(f"mode {change.old_mode} → {change.new_mode}, {effect}")
    if GITLINK in (change.old_mode, change.new_mode):
        moved = " → ".join(
            blob[:12]
            for mode, blob in (
                (change.old_mode, change.old_blob), (change.new_mode, change.new_blob)
            )
            if mode == GITLINK
        )  # fmt: skip
        words.append(f"submodule at {moved}; its content is not part of the candidate")
    if change.binary:
        words.append(f"binary, {_sizes(change)}")
    return tuple(words)


def _sizes(change: Change) -> str:
    sizes = [f"{size:,}" for size in (change.old_size, change.new_size) if size is not None]
    return " → ".join(sizes) + " bytes"


def _line_ending_words(files: Sequence[FilePatch]) -> list[str]:
    """Name a change of line ends, and how much else changed with it."""
    words = []
    for file in files:
        if not any(b"\r" in line for hunk in file.hunks for line in hunk.lines):
            continue
        removed: Counter[bytes] = Counter()
        added: Counter[bytes] = Counter()
        for hunk in file.hunks:
            for line in hunk.lines:
                if line[0] != _SPACE:
                    (removed if line[0] == _MINUS else added)[line[1:]] += 1
        same = removed & added  # moved lines are no change of their ends
        removed, added = removed - same, added - same
        bare_removed, bare_added = _bare(removed), _bare(added)
        ends_only = (bare_removed & bare_added).total()
        if ends_only:
            to_crlf = sum(n for line, n in added.items() if line.endswith(b"\r"))
            from_crlf = sum(n for line, n in removed.items() if line.endswith(b"\r"))
            turn = "LF → CRLF" if to_crlf >= from_crlf else "CRLF → LF"
            rest = max(removed.total(), added.total()) - ends_only
            words.append(
                f"line ends {turn} on {ends_only:,} {_plural('line', ends_only)} "
                f"with no other change; {rest:,} {_plural('line', rest)} changed otherwise"
            )
    return words


def _bare(lines: Counter[bytes]) -> Counter[bytes]:
    out: Counter[bytes] = Counter()
    for line, count in lines.items():
        out[line.rstrip(b"\r")] += count
    return out


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


# --- rows before they are painted ------------------------------------------------------------


@dataclass(slots=True)
class _RawLine:
    sign: int
    old_no: int | None
    new_no: int | None
    text: bytes
    first: bool  # the first line of the file
    open_end: bool = False
    partner: _RawLine | None = None
    hunk: Hunk | None = None
    at: int = 0  # position within the hunk's lines

    def number(self, side: str) -> int | None:
        if side == "old":
            return self.old_no if self.sign != _PLUS else None
        return self.new_no if self.sign != _MINUS else None


@dataclass(slots=True)
class _RawPair:
    old: _RawLine | None
    new: _RawLine | None


@dataclass(slots=True)
class _RawHunk:
    number: int
    hunk: Hunk
    skipped: int


_Raw = _RawHunk | _RawLine | _RawPair


def _after(start: int, count: int) -> int:
    return start + count if count else start + 1


def _unified(files: Iterable[FilePatch]) -> list[_RawHunk | _RawLine]:
    rows: list[_RawHunk | _RawLine] = []
    number = 0
    for file in files:
        end = 1
        for hunk in file.hunks:
            first = hunk.old_start if hunk.old_count else hunk.old_start + 1
            rows.append(_RawHunk(number, hunk, max(0, first - end)))
            end = first + hunk.old_count
            rows += _lines(hunk)
            number += 1
    return rows


def _lines(hunk: Hunk) -> list[_RawLine]:
    rows = []
    old_no, new_no = hunk.old_start, hunk.new_start
    last_old, last_new = hunk.old_start + hunk.old_count - 1, hunk.new_start + hunk.new_count - 1
    removed: list[_RawLine] = []
    paired = 0
    for at, line in enumerate(hunk.lines):
        sign = line[0]
        if sign == _MINUS:
            if paired:
                removed, paired = [], 0
            row = _RawLine(sign, old_no, None, line[1:], old_no == 1, hunk=hunk, at=at)
            row.open_end = hunk.old_open and old_no == last_old
            removed.append(row)
            old_no += 1
        elif sign == _PLUS:
            row = _RawLine(sign, None, new_no, line[1:], new_no == 1, hunk=hunk, at=at)
            row.open_end = hunk.new_open and new_no == last_new
            if paired < len(removed):
                row.partner, removed[paired].partner = removed[paired], row
            paired += 1
            new_no += 1
        else:
            row = _RawLine(sign, old_no, new_no, line[1:], new_no == 1, hunk=hunk, at=at)
            row.open_end = hunk.new_open and new_no == last_new
            removed, paired = [], 0
            old_no += 1
            new_no += 1
        rows.append(row)
    return rows


def _split(files: Iterable[FilePatch]) -> list[_Raw]:
    rows: list[_Raw] = []
    removed: list[_RawLine] = []
    added: list[_RawLine] = []

    def flush() -> None:
        rows.extend(_RawPair(old, new) for old, new in zip_longest(removed, added))
        removed.clear()
        added.clear()

    for row in _unified(files):
        if isinstance(row, _RawLine) and row.sign != _SPACE:
            if row.sign == _MINUS and added:
                flush()
            (removed if row.sign == _MINUS else added).append(row)
            continue
        flush()
        rows.append(_RawPair(row, row) if isinstance(row, _RawLine) else row)
    flush()
    return rows


# --- painting --------------------------------------------------------------------------------

Span = tuple[int, int]
Colours = list[tuple[int, int, SegmentKind]]


@dataclass(slots=True)
class _Painter:
    """Turns raw rows into segments, within the bounds of one page."""

    change: Change
    lines: int
    highlight: bool
    blobs: Mapping[str, bytes]
    masks: Masks
    chars: int = 0
    segments: int = 0
    word_work: int = 0
    unmarked: int = 0
    plain_because: str = ""
    _deadline: float = 0.0
    _hunks: dict[int, tuple[list[Colours], list[Colours]]] = field(default_factory=dict)
    _marks: dict[int, tuple[list[Span], list[Span]]] = field(default_factory=dict)
    _whole: dict[str, list[Colours] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + HIGHLIGHT_SECONDS
        if self.highlight and self.lines > HIGHLIGHT_LINES:
            self.highlight = False
            self.plain_because = f"more than {HIGHLIGHT_LINES:,} lines"
        elif self.highlight and self.change.new_mode in (SYMLINK, GITLINK):
            self.highlight = False

    @property
    def full(self) -> bool:
        return self.chars >= PAGE_CHARS or self.segments >= PAGE_SEGMENTS

    def row(self, raw: _Raw) -> Row:
        if isinstance(raw, _RawHunk):
            return self._hunk_row(raw)
        if isinstance(raw, _RawLine):
            return self.line(raw)
        old = self.line(raw.old) if raw.old is not None else None
        new = old if raw.new is raw.old else self.line(raw.new) if raw.new is not None else None
        return SplitRow(old, new)

    def _hunk_row(self, raw: _RawHunk) -> HunkRow:
        hunk = raw.hunk
        return HunkRow(
            number=raw.number,
            old_range=_range(hunk.old_start, hunk.old_count),
            new_range=_range(hunk.new_start, hunk.new_count),
            # The heading repeats some earlier line, which may be one that must not be shown.
            section=()
            if self.change.old_blob in self.masks
            else segments_of(hidden.decode(hunk.section)[:200]),
            skipped=raw.skipped,
        )

    def line(self, raw: _RawLine) -> Line:
        text = hidden.decode(raw.text)
        changed: Sequence[Span] = ()
        if raw.partner is not None:
            changed = self._changed(raw, raw.partner)
        shown = _window(text, changed)
        colours = self._colours(raw) if len(text) <= HIGHLIGHT_CHARS else []
        masks = _masks_of(self.change, raw, self.masks)
        stretches = _stretches(text, colours, changed, shown, raw.first, masks)
        on_page = sum(high - low for low, high in shown)
        self.chars += on_page
        self.segments += sum(len(stretch.segments) for stretch in stretches)
        gap = _gap(text)
        return Line(
            kind="add" if raw.sign == _PLUS else "rem" if raw.sign == _MINUS else "ctx",
            old_no=raw.old_no,
            new_no=raw.new_no,
            stretches=stretches,
            sign="+" if raw.sign == _PLUS else "\N{MINUS SIGN}" if raw.sign == _MINUS else "",
            open_end=raw.open_end,
            cut=len(text) - on_page,
            note=f"text stands after {gap} blanks" if gap else "",
        )

    # --- words within a line ---

    def _changed(self, raw: _RawLine, partner: _RawLine) -> Sequence[Span]:
        old, new = (partner, raw) if raw.sign == _PLUS else (raw, partner)
        key = id(new)
        if key not in self._marks:
            self._marks[key] = self._compare(hidden.decode(old.text), hidden.decode(new.text))
        return self._marks[key][raw.sign == _PLUS]

    def _compare(self, old: str, new: str) -> tuple[list[Span], list[Span]]:
        head, tail = _common(old, new)
        if old == new:
            return [], []
        middle = [(head, len(old) - tail)], [(head, len(new) - tail)]
        old_words = _WORDS.findall(old[head : len(old) - tail])
        new_words = _WORDS.findall(new[head : len(new) - tail])
        if max(len(old), len(new)) > LINE_CHARS:
            return middle
        # What the comparison walks through: every pair of equal words.
        counted = Counter(new_words)
        work = len(new_words) + sum(counted[word] for word in old_words)
        if max(len(old_words), len(new_words)) > WORD_TOKENS or self.word_work + work > WORD_WORK:
            self.unmarked += 1
            return [], []
        self.word_work += work
        left, right = _word_spans(old, new)
        # Where little stays, marks are noise: the whole line changed.
        kept = len(old) - sum(high - low for low, high in left)
        return (left, right) if kept * 3 >= len(old.strip()) and kept > 1 else ([], [])

    # --- colours ---

    def _colours(self, raw: _RawLine) -> Colours:
        if not self.highlight:
            return []
        name = self.change.before if raw.sign == _MINUS else self.change.path
        lexer = _lexer(name.rpartition(b"/")[2].decode("utf-8", "replace"))
        if lexer is None:
            return []
        if time.monotonic() > self._deadline:
            self.highlight, self.plain_because = False, "colouring took too long"
            return []
        blob = self.change.old_blob if raw.sign == _MINUS else self.change.new_blob
        number = raw.old_no if raw.sign == _MINUS else raw.new_no
        whole = self._whole_file(lexer, blob)
        if whole is not None and number is not None and number <= len(whole):
            return whole[number - 1]
        if raw.hunk is None:
            return []
        key = id(raw.hunk)
        if key not in self._hunks:
            self._hunks[key] = self._hunk_sides(lexer, raw.hunk)
        return self._hunks[key][raw.sign != _MINUS][raw.at]

    def _whole_file(self, lexer: Lexer, blob: str) -> list[Colours] | None:
        if blob not in self._whole:
            data = self.blobs.get(blob)
            self._whole[blob] = None
            if data is not None and len(data) <= 256 << 10 and data.count(b"\n") <= HIGHLIGHT_LINES:
                lines = [hidden.decode(line) for line in data.split(b"\n")]
                self._whole[blob] = _lex(lexer, lines, self._deadline)
        return self._whole[blob]

    def _hunk_sides(self, lexer: Lexer, hunk: Hunk) -> tuple[list[Colours], list[Colours]]:
        """Colours of each line of the hunk, as part of the old and of the new text."""
        out: list[list[Colours]] = []
        for other in (_PLUS, _MINUS):
            at = [i for i, line in enumerate(hunk.lines) if line[0] != other]
            found = _lex(lexer, [hidden.decode(hunk.lines[i][1:]) for i in at], self._deadline)
            colours: list[Colours] = [[] for _ in hunk.lines]
            for i, line in zip(at, found or (), strict=False):
                colours[i] = line
            out.append(colours)
        return out[0], out[1]


def _range(start: int, count: int) -> str:
    if count == 0:
        return "no line"
    return f"{start}" if count == 1 else f"{start}\N{EN DASH}{start + count - 1}"


def _gap(text: str) -> int:
    """The longest run of blanks inside a line that something follows, if it is long enough."""
    found = _GAP.search(text)
    return found.end() - found.start() if found else 0


_GAP = re.compile(rf"(?<=\S)[ \t\u00a0]{{{GAP},}}(?=[^ \t\u00a0\r])")
_WORDS = re.compile(r"\w+|[ \t]+|[^\w \t]")


def _common(old: str, new: str) -> tuple[int, int]:
    """How many characters two strings share at their start and, beyond that, at their end."""
    head = _shared(old, new)
    room = min(len(old), len(new)) - head
    tail = min(
        room, _shared(old[: -room - 1 : -1] if room else "", new[: -room - 1 : -1] if room else "")
    )
    return head, tail


def _shared(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _word_spans(old: str, new: str) -> tuple[list[Span], list[Span]]:
    one, other = _WORDS.findall(old), _WORDS.findall(new)
    starts, other_starts = _starts(one), _starts(other)
    left: list[Span] = []
    right: list[Span] = []
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag != "equal":
            _extend(left, (starts[i], starts[j]))
            _extend(right, (other_starts[k], other_starts[m]))
    return left, right


def _starts(words: Sequence[str]) -> list[int]:
    out = [0]
    for word in words:
        out.append(out[-1] + len(word))
    return out


def _extend(spans: list[Span], span: Span) -> None:
    if span[0] == span[1]:
        return
    if spans and spans[-1][1] == span[0]:
        spans[-1] = (spans[-1][0], span[1])
    else:
        spans.append(span)


def _window(text: str, changed: Sequence[Span]) -> list[Span]:
    """Which parts of a line are shown: all of it, or its start and what changed."""
    if len(text) <= LINE_CHARS:
        return [(0, len(text))]
    if not changed:
        return [(0, LINE_CHARS)]
    low = max(0, changed[0][0] - LINE_CHARS // 4)
    high = min(len(text), low + LINE_CHARS)
    return [(0, high)] if low < 200 else [(0, 100), (low, high)]


# --- segments --------------------------------------------------------------------------------


def segments_of(text: str, *, at_start: bool = False) -> tuple[Segment, ...]:
    """Any text from outside as segments in which nothing can hide."""
    stretches = _stretches(text, [], (), [(0, len(text))], at_start, ())
    return tuple(segment for stretch in stretches for segment in stretch.segments)


def path_segments(path: bytes) -> tuple[Segment, ...]:
    """A path as segments; a line break or tab in it is shown by its code point."""
    out: list[Segment] = []
    for part in re.split("([\t\n])", hidden.decode(path)):
        if part in _IN_NAMES:
            out.append(Segment(_IN_NAMES[part][:6], "hid", _IN_NAMES[part]))
        else:
            out += segments_of(part)
    return tuple(out)


# A text may hold these two, a name should not.
_IN_NAMES = {"\t": "U+0009 CHARACTER TABULATION", "\n": "U+000A LINE FEED"}
_RIGHT_TO_LEFT = re.compile(
    f"{hidden.RIGHT_TO_LEFT.pattern}+(?:[ .,:;!?-]*{hidden.RIGHT_TO_LEFT.pattern}+)*"
)


def _stretches(
    text: str,
    colours: Colours,
    changed: Sequence[Span],
    shown: Sequence[Span],
    at_start: bool,
    masks: Sequence[Span],
) -> tuple[Stretch, ...]:
    if text.isascii() and text.isprintable() and len(text) < GAP and not (changed or masks):
        # The common line: nothing to mark but colours.
        return (Stretch(tuple(_coloured(text, 0, len(text), colours))),) if text else ()
    special = _specials(text, at_start, shown)
    if masks:
        # Marks of changed words would tell apart what a mask hides.
        changed = [span for span in changed if not any(_meet(span, mask) for mask in masks)]
        special = [part for part in special if not any(_meet(part[:2], mask) for mask in masks)]
        special += [(low, high, _hidden_value(high - low)) for low, high in masks]
        special.sort(key=lambda part: part[0])
    out: list[Stretch] = []
    last = 0
    for low, high in shown:
        if low > last:
            out.append(Stretch((_cut(low - last),)))
        edges = sorted({low, high, *(e for span in changed for e in span if low < e < high)})
        for start, end in pairwise(edges):
            is_changed = any(a <= start and end <= b for a, b in changed)
            segments = tuple(_pieces(text, start, end, colours, special))
            if segments:
                out.append(Stretch(segments, is_changed))
        last = high
    if last < len(text):
        out.append(Stretch((_cut(len(text) - last),)))
    return tuple(out)


def _meet(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _hidden_value(length: int) -> Segment:
    return Segment(
        f"value not shown, {length:,} characters", "mask", "a check took it for a secret"
    )


def _masks_of(change: Change, raw: _RawLine, masks: Masks) -> list[Span]:
    """What must not be shown of one line: masks of either side where the line is on both."""
    spans: set[Span] = set()
    for blob, number in ((change.old_blob, raw.old_no), (change.new_blob, raw.new_no)):
        for mask in masks.get(blob, ()):
            if mask.line == 0 and number is not None:
                spans.add((0, max(1, len(raw.text))))
            elif mask.line == number:
                spans.add((mask.start, mask.end))
    out: list[Span] = []
    for low, high in sorted(spans):
        if out and low <= out[-1][1]:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return out


def _cut(count: int) -> Segment:
    return Segment(f"{count:,} characters not shown", "cut")


def _specials(text: str, at_start: bool, shown: Sequence[Span]) -> list[tuple[int, int, Segment]]:
    """Parts of a line that are drawn as something of their own, in order, without overlap."""
    out: list[tuple[int, int, Segment]] = []
    if text.endswith("\r"):
        last = len(text) - 1
        out.append((last, last + 1, Segment("CR", "cr", "U+000D CARRIAGE RETURN")))
    if found := _GAP.search(text):
        blanks = found.group()
        out.append((*found.span(), Segment(blanks, "gap", f"{len(blanks)} blanks")))
    if text.isascii() and text.isprintable():
        return out
    low, high = shown[0][0], shown[-1][1]
    part = text[low:high]
    marks = [
        mark
        for mark in hidden.marks(part, at_start=at_start and low == 0, look_alikes=True)
        if not (mark.label == "CR" and low + mark.end == len(text))
    ]
    for start, end, segment in _grouped(marks):
        out.append((low + start, low + end, segment))
    taken = {i for start, end, _ in out for i in range(start, end)} if marks else set()
    out += [
        (low + m.start(), low + m.end(), Segment(m.group(), "rtl"))
        for m in _RIGHT_TO_LEFT.finditer(part)
        if not taken.intersection(range(low + m.start(), low + m.end()))
    ]
    return sorted(out, key=lambda item: item[0])


def _grouped(marks: Sequence[hidden.Mark]) -> Iterator[tuple[int, int, Segment]]:
    """Marks as segments; a long run of them is one segment that counts."""
    run: list[hidden.Mark] = []
    for mark in [*marks, None]:
        if run and (mark is None or mark.start != run[-1].end):
            if len(run) > 12:
                first = " ".join(m.label for m in run[:4])
                names = ", ".join(m.name for m in run[:40])
                text = f"{first} … {len(run):,} hidden characters"
                yield run[0].start, run[-1].end, Segment(text, "hid", names)
            else:
                for m in run:
                    kind: SegmentKind = "byte" if m.kind == "byte" else "hid"
                    yield m.start, m.end, Segment(m.label, kind, m.name)
            run = []
        if mark is not None:
            run.append(mark)


def _pieces(
    text: str,
    start: int,
    end: int,
    colours: Colours,
    special: Sequence[tuple[int, int, Segment]],
) -> Iterator[Segment]:
    at = start
    for low, high, segment in special:
        if high <= at:
            continue
        if low >= end:
            break
        if low > at:
            yield from _coloured(text, at, low, colours)
        if low >= start:
            yield segment
        at = high
    if at < end:
        yield from _coloured(text, at, end, colours)


def _coloured(text: str, start: int, end: int, colours: Colours) -> Iterator[Segment]:
    at = start
    first = max(0, bisect_right(colours, start, key=lambda c: c[0]) - 1) if colours else 0
    for low, high, kind in colours[first:]:
        if high <= at:
            continue
        if low >= end:
            break
        if low > at:
            yield Segment(text[at:low])
        yield Segment(text[max(low, at) : min(high, end)], kind)
        at = min(high, end)
    if at < end:
        yield Segment(text[at:end])


# --- colours of syntax -----------------------------------------------------------------------

# Lexers work with regular expressions on hostile text, so only well-worn ones are used, on short
# lines, and against a clock.
_LEXERS = {
    "bash", "c", "cmake", "clojure", "cpp", "csharp", "css", "dart", "docker", "elixir", "erlang",
    "go", "graphql", "groovy", "haskell", "hcl", "html", "ini", "java", "javascript", "json", "jsx",
    "kotlin", "less", "lua", "make", "nix", "objective-c", "perl", "php", "powershell",
    "properties", "protobuf", "python", "r", "ruby", "rust", "scala", "scss", "sql", "swift",
    "terraform", "toml", "tsx", "typescript", "xml", "yaml", "zig",
}  # fmt: skip
_KINDS: dict[_TokenType, SegmentKind] = {
    Keyword: "k",
    Operator.Word: "k",
    Name.Tag: "k",
    Name.Function: "fn",
    Name.Class: "fn",
    Name.Builtin: "fn",
    Name.Decorator: "fn",
    String: "st",
    Number: "n",
    Comment: "cm",
}


@lru_cache(maxsize=512)
def _lexer(file_name: str) -> Lexer | None:
    try:
        found = find_lexer_class_for_filename(file_name)
    except ClassNotFound:
        return None
    if found is None or _LEXERS.isdisjoint(found.aliases):
        return None
    return found(stripnl=False, ensurenl=False)


@lru_cache(maxsize=256)
def _kind(token: _TokenType) -> SegmentKind:
    at: _TokenType | None = token
    while at is not None:
        if at in _KINDS:
            return _KINDS[at]
        at = at.parent
    return ""


def _lex(lexer: Lexer, lines: Sequence[str], deadline: float) -> list[Colours] | None:
    """Colours for each of `lines`, read as one text; None where time ran out.

    The tokens are asked for without preparation of the text, so that offsets stay true.
    """
    if sum(map(len, lines)) > 200_000:
        return None
    # A very long line can make a lexer slow; it is blanked out, and stays plain.
    text = "".join(
        (line if len(line) <= HIGHLIGHT_CHARS * 4 else " " * len(line)).replace("\r", " ") + "\n"
        for line in lines
    )
    starts = _starts([line + "\n" for line in lines])
    out: list[Colours] = [[] for _ in lines]
    row = 0
    for count, (offset, token, value) in enumerate(lexer.get_tokens_unprocessed(text)):
        if count % 256 == 0 and time.monotonic() > deadline:
            return None
        kind = _kind(token)
        if not kind:
            continue
        while row + 1 < len(lines) and offset >= starts[row + 1]:
            row += 1
        at, end = offset, offset + len(value)
        line = row
        while at < end and line < len(lines):
            stop = min(end, starts[line + 1] - 1)
            if stop > at:
                out[line].append((at - starts[line], stop - starts[line], kind))
            line += 1
            at = starts[line]
    return out
