"""Pair the complete list of changes with the patch, and hand out what is asked for.

`Diff` pairs the list of changes (from git's raw diff, so it is complete) with the patch. The list
is ready at once; a file's rows are made when its part of the page is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from approvals import hidden
from approvals.changes import Change, Status
from approvals.diff.errors import DiffBroken, NoSuchLines
from approvals.diff.moves import MOST_LINES, Moves, moves
from approvals.diff.paint import Painter
from approvals.diff.rows import (
    Gap,
    Raw,
    RawHunk,
    RawLine,
    RawPair,
    after,
    gap_lines,
    lines_of,
    split,
    unified,
)
from approvals.diff.segments import masks_of, path_segments, stretches_of
from approvals.diff.shown import Around, FileHead, FileView, LinePart, Masks, Options, Row, Totals
from approvals.diff.words import change_words, line_ending_words
from approvals.patch import FILE_START, FilePatch, parse_patch
from portal import visible

PAGE_ROWS = 400
UNIFIED = Options()
JUDGED_CHARS = 10_000  # of one line
JUDGED_MARKS = 10_000  # of one file


class Diff:
    """The changes of a candidate and the patch that shows them.

    `changes` and `data` come from the same two trees (`tree.list_changes`, `tree.patch`). Raises
    `DiffBroken` where the two disagree: the list judges.
    `masks` name what a check took for a secret; it is not shown, only its place and length.
    """

    def __init__(
        self,
        changes: Sequence[Change],
        data: bytes,
        *,
        masks: Masks | None = None,
    ) -> None:
        self.changes = tuple(changes)
        self._data = data
        self._masks = masks or {}
        self._spans = _assign(self.changes, _sections(data))
        self._heads: dict[int, FileHead] = {}
        self._files: dict[int, tuple[FilePatch, ...]] = {}
        self._hidden: tuple[tuple[int, int], ...] | None = None
        self._moves: Moves | None = None

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
        """The sections of one change: one, or two where its type changed."""
        if index not in self._files:
            low, high = self._spans[index]
            files = parse_patch(self._data[low:high])
            _agree(self.changes[index], files)
            self._files[index] = files
        return self._files[index]

    def view(
        self,
        index: int,
        options: Options = UNIFIED,
        *,
        start: int = 0,
        count: int = PAGE_ROWS,
        highlight: bool = True,
        contents: Mapping[str, bytes] | None = None,
    ) -> FileView:
        """Rows `start` to `start + count` of one file, fewer where the page would grow too large.

        With `contents` (by git's name) colours come from the whole file, which keeps strings over
        many lines right; without, from the lines of each hunk. `options.whole` needs the new
        content among them. Raises `NoSuchLines`.
        """
        head = self.head(index)
        rows = self._rows(index, options, contents or {})
        if start < 0 or (start and start >= len(rows)):
            raise NoSuchLines
        painter = self._painter(index, highlight, contents or {})
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
            rows=tuple(out),
            start=start,
            next_start=at if at < len(rows) else None,
            total=len(rows),
            plain_because=painter.plain_because,
            unmarked=painter.unmarked,
            options=options,
            tail=head.hunks if at >= len(rows) and self._has_tail(index, options) else None,
        )

    def around(
        self, index: int, number: int, options: Options, new: bytes, *, shown: int, count: int
    ) -> Around:
        """Unchanged lines before hunk `number` (from 0), beyond the `shown` nearest ones.

        `new` is the new content of the file. The number after the last hunk's stands for what
        follows it. Raises `NoSuchLines`.
        """
        lines = lines_of(new)
        rows = unified(self.files(index), blanks=options.blanks)
        hunks = [row for row in rows if isinstance(row, RawHunk)]
        raw = next((row for row in hunks if row.number == number), None)
        if raw is not None:
            gap = raw.gap
        elif hunks and number == self.head(index).hunks:
            last = hunks[-1].hunk
            old = after(last.old_start, last.old_count)
            at = after(last.new_start, last.new_count)
            gap = Gap(old, at, len(lines) - at + 1)
        else:
            raise NoSuchLines
        left = gap.count - shown
        if shown < 0 or count < 1 or left < 0 or gap.new - 1 + gap.count > len(lines):
            raise NoSuchLines
        count = min(count, left)
        skip = left - count if raw is not None else shown
        part = Gap(gap.old + skip, gap.new + skip, count)
        painter = self._painter(index, True, {self.changes[index].new_blob: new})
        wanted: list[Raw] = list(gap_lines(part, lines))
        if options.mode == "split":
            wanted = split(gap_lines(part, lines))
        left -= count
        heading = None
        if raw is not None:
            heading = replace(painter.hunk_row(raw), skipped=left)
        return Around(
            head=self.head(index),
            number=number,
            rows=tuple(painter.row(row) for row in wanted),
            hunk=heading,
            shown=shown + count,
            left=left,
            options=options,
        )

    def _rows(self, index: int, options: Options, contents: Mapping[str, bytes]) -> Sequence[Raw]:
        whole = None
        if options.whole and self.changes[index].new_blob in contents:
            whole = lines_of(contents[self.changes[index].new_blob])
        rows = unified(self.files(index), blanks=options.blanks, whole=whole)
        return split(rows) if options.mode == "split" else rows

    def _has_tail(self, index: int, options: Options) -> bool:
        """Whether something may follow the last hunk: a new or deleted file is shown to its end."""
        return self.head(index).lasting and not options.whole

    def _painter(self, index: int, highlight: bool, contents: Mapping[str, bytes]) -> Painter:
        head = self.head(index)
        return Painter(
            head.change, index, head.lines, highlight, contents, self._masks, self.moves()
        )

    def moves(self) -> Moves:
        """Which lines only moved. Empty where too many changed to look for them."""
        if self._moves is None:
            counted = sum((each.added or 0) + (each.removed or 0) for each in self.changes)
            self._moves = {} if counted > MOST_LINES else moves(self._lines())
        return self._moves

    def _lines(self) -> Iterator[tuple[int, RawLine]]:
        for index in range(len(self)):
            for row in unified(self.files(index)):
                if isinstance(row, RawLine):
                    yield index, row

    def row_of(
        self, index: int, side: str, options: Options, contents: Mapping[str, bytes] | None = None
    ) -> int:
        """The number of the row that shows a line. `side` as in `whole_line`.

        Raises `NoSuchLines`, as for an unchanged line of which the patch has nothing.
        """
        wanted, number = _side(side)
        for at, raw in enumerate(self._rows(index, options, contents or {})):
            each = (raw.old, raw.new) if isinstance(raw, RawPair) else (raw,)
            for line in each:
                if isinstance(line, RawLine) and line.number(wanted) == number:
                    return at
        raise NoSuchLines

    def whole_line(self, index: int, side: str, *, offset: int = 0, size: int = 20_000) -> LinePart:
        """A part of one line in full, for lines the page had to cut. Raises `NoSuchLines`.

        `side` is `Line.side`: `old-12` or `new-12`.
        """
        wanted, number = _side(side)
        if offset < 0:
            raise NoSuchLines
        size = min(size, 20_000)
        for raw in unified(self.files(index)):
            if isinstance(raw, RawLine) and raw.number(wanted) == number:
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

    # --- heads ---

    def _make_head(self, index: int) -> FileHead:
        change = self.changes[index]
        files = self.files(index)
        lines = sum(len(hunk.lines) for file in files for hunk in file.hunks)
        hunks = sum(len(file.hunks) for file in files)
        loud, quiet = self._count_hidden()[index]
        words = [*change_words(change), *line_ending_words(files)]
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


def _side(side: str) -> tuple[str, int]:
    match = re.fullmatch(r"(old|new)-(\d{1,9})", side)
    if match is None:
        raise NoSuchLines
    return match[1], int(match[2])


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
) -> list[tuple[int, int]]:
    """Give each change its sections, in order: two for a changed type, one otherwise."""
    spans = []
    at = 0
    for change in changes:
        wanted = 2 if change.status is Status.TYPE_CHANGED else 1
        if at + wanted > len(sections):
            raise DiffBroken(reason=f"“{change.name}” has no section")
        spans.append((sections[at][0], sections[at + wanted - 1][1]))
        at += wanted
    if at != len(sections):
        raise DiffBroken(reason=f"{len(sections) - at} sections have no change")
    return spans


def _agree(change: Change, files: Sequence[FilePatch]) -> None:
    """Raise `DiffBroken` unless the sections say what git's raw diff says."""
    first, last = files[0], files[-1]
    expected = {
        "path": (change.path, last.path),
        "old path": (change.before, first.old_path if first.old_path is not None else first.path),
        "lines added": (change.added or 0, sum(file.added for file in files)),
        "lines removed": (change.removed or 0, sum(file.removed for file in files)),
        "binary": (change.binary, any(file.binary for file in files)),
    }
    if change.content_changed:
        expected["old blob"] = (change.old_blob, first.old_blob or change.old_blob)
        expected["new blob"] = (change.new_blob, last.new_blob or change.new_blob)
    for what, (listed, shown) in expected.items():
        if listed != shown:
            raise DiffBroken(reason=f"“{change.name}”: its {what} differs")
