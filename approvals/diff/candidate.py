"""Pair the complete list of changes with the patch, and hand out what is asked for.

`Diff` pairs the list of changes (from git's raw diff, so it is complete) with the patch. The list
is ready at once; a file's rows are made when its part of the page is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from approvals import hidden
from approvals.changes import Change, Status
from approvals.diff.errors import DiffBroken, NoSuchLines
from approvals.diff.paint import Painter
from approvals.diff.rows import SPACE, RawLine, after, split, unified
from approvals.diff.segments import masks_of, path_segments, stretches_of
from approvals.diff.shown import (
    FileHead,
    FileView,
    Line,
    LinePart,
    Masks,
    Mode,
    Row,
    Totals,
)
from approvals.diff.words import change_words, line_ending_words
from approvals.patch import FILE_START, FilePatch, parse_patch
from portal import visible

PAGE_ROWS = 400
JUDGED_CHARS = 10_000  # of one line
JUDGED_MARKS = 10_000  # of one file


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
        rows = unified(self.files(index)) if mode == "unified" else split(self.files(index))
        if start < 0 or (start and start >= len(rows)):
            raise NoSuchLines
        painter = Painter(self.changes[index], head.lines, highlight, blobs or {}, self._masks)
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
        for raw in unified(self.files(index)):
            if isinstance(raw, RawLine) and raw.number(match[1]) == int(match[2]):
                text = hidden.decode(raw.text)
                if offset and offset >= len(text):
                    raise NoSuchLines
                end = min(len(text), offset + size)
                masks = masks_of(self.changes[index], raw, self._masks)
                stretches = stretches_of(text, [], (), [(offset, end)], raw.first, masks)
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
        low = after(before.new_start, before.new_count) if before else 1
        old = after(before.old_start, before.old_count) if before else 1
        if hunk < len(hunks):
            ahead = hunks[hunk]
            high = ahead.new_start if ahead.new_count else ahead.new_start + 1
        else:
            high = len(lines) + 1
        skip = max(0, high - low - count) if hunk < len(hunks) else 0
        high = high if hunk < len(hunks) else min(high, low + count)
        change = self.changes[index]
        painter = Painter(change, 0, True, {change.new_blob: new_blob}, self._masks)
        return tuple(
            painter.line(RawLine(SPACE, old + n - low, n, lines[n - 1], n == 1))
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
        words = [*change_words(change), *line_ending_words(files)]
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
            for raw in unified(self.files(index)):
                if isinstance(raw, RawLine) and _ODD_BYTE.search(raw.text):
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
