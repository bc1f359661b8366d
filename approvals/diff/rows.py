"""The lines of a patch as rows with numbers, one side above the other or both beside each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import zip_longest

from approvals.patch import FilePatch, Hunk

SPACE, PLUS, MINUS = b" +-"
_BLANKS = b" \t\r\v\f"


@dataclass(slots=True)
class RawLine:
    """A line of one side, or of both where it is unchanged.

    `was` is the old text of a line that is drawn as unchanged although its blanks changed.
    """

    sign: int
    old_no: int | None
    new_no: int | None
    text: bytes
    first: bool  # the first line of the file
    open_end: bool = False
    partner: RawLine | None = None
    hunk: Hunk | None = None
    at: int = 0  # position within the hunk's lines
    was: bytes | None = None

    def number(self, side: str) -> int | None:
        if side == "old":
            return self.old_no if self.sign != PLUS else None
        return self.new_no if self.sign != MINUS else None


@dataclass(slots=True)
class RawPair:
    old: RawLine | None
    new: RawLine | None


@dataclass(frozen=True, slots=True)
class Gap:
    """Unchanged lines that a patch leaves away: where they begin on each side, and how many."""

    old: int
    new: int
    count: int


@dataclass(slots=True)
class RawHunk:
    number: int
    hunk: Hunk
    gap: Gap


Raw = RawHunk | RawLine | RawPair


def after(start: int, count: int) -> int:
    """The line after a hunk side that begins at `start`; one of no lines stands after `start`."""
    return start + count if count else start + 1


def lines_of(content: bytes) -> list[bytes]:
    """The lines of a file without their line feeds."""
    lines = content.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    return lines


def unified(
    files: Iterable[FilePatch], *, blanks: bool = True, whole: Sequence[bytes] | None = None
) -> list[RawHunk | RawLine]:
    """Hunks and lines in the order of the patch.

    Without `blanks`, lines that differ in blanks only are drawn as unchanged, and a hunk of which
    nothing else is left goes away. With the new file's lines as `whole` there is nothing that is
    not shown.
    """
    rows: list[RawHunk | RawLine] = []
    number = 0
    for file in files:
        old = new = 1
        for hunk in file.hunks:
            lines = _lines(hunk)
            if not blanks:
                lines = _without_blanks(lines)
            if any(line.sign != SPACE for line in lines):
                first = after(hunk.old_start, 0) if not hunk.old_count else hunk.old_start
                gap = Gap(old, new, max(0, first - old))
                if whole is not None:
                    rows += gap_lines(gap, whole)
                    gap = Gap(old, new, 0)
                rows.append(RawHunk(number, hunk, gap))
                rows += lines
                old = after(hunk.old_start, hunk.old_count)
                new = after(hunk.new_start, hunk.new_count)
            number += 1
        if whole is not None and file.hunks:
            rows += gap_lines(Gap(old, new, len(whole) - new + 1), whole)
    return rows


def gap_lines(gap: Gap, whole: Sequence[bytes]) -> Iterator[RawLine]:
    """The lines of a gap, from the new file's lines."""
    for at in range(gap.count):
        text = whole[gap.new - 1 + at]
        yield RawLine(SPACE, gap.old + at, gap.new + at, text, gap.new + at == 1)


def _lines(hunk: Hunk) -> list[RawLine]:
    rows = []
    old_no, new_no = hunk.old_start, hunk.new_start
    last_old, last_new = hunk.old_start + hunk.old_count - 1, hunk.new_start + hunk.new_count - 1
    removed: list[RawLine] = []
    paired = 0
    for at, line in enumerate(hunk.lines):
        sign = line[0]
        if sign == MINUS:
            if paired:
                removed, paired = [], 0
            row = RawLine(sign, old_no, None, line[1:], old_no == 1, hunk=hunk, at=at)
            row.open_end = hunk.old_open and old_no == last_old
            removed.append(row)
            old_no += 1
        elif sign == PLUS:
            row = RawLine(sign, None, new_no, line[1:], new_no == 1, hunk=hunk, at=at)
            row.open_end = hunk.new_open and new_no == last_new
            if paired < len(removed):
                row.partner, removed[paired].partner = removed[paired], row
            paired += 1
            new_no += 1
        else:
            row = RawLine(sign, old_no, new_no, line[1:], new_no == 1, hunk=hunk, at=at)
            row.open_end = hunk.new_open and new_no == last_new
            removed, paired = [], 0
            old_no += 1
            new_no += 1
        rows.append(row)
    return rows


def _without_blanks(lines: Sequence[RawLine]) -> list[RawLine]:
    """The same lines, those that differ in blanks only made one unchanged line each."""
    out: list[RawLine] = []
    removed: list[RawLine] = []
    added: list[RawLine] = []
    for line in [*lines, None]:
        if line is not None and line.sign == MINUS:
            if added:
                out += _paired(removed, added)
                removed, added = [], []
            removed.append(line)
        elif line is not None and line.sign == PLUS:
            added.append(line)
        else:
            out += _paired(removed, added)
            removed, added = [], []
            if line is not None:
                out.append(line)
    return out


def _paired(removed: Sequence[RawLine], added: Sequence[RawLine]) -> Iterator[RawLine]:
    one, other = [_bare(line) for line in removed], [_bare(line) for line in added]
    if not set(one) & set(other):
        yield from removed
        yield from added
        return
    for tag, i, j, k, m in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if tag != "equal":
            left, right = removed[i:j], added[k:m]
            for line in (*left, *right):
                line.partner = None
            for old, new in zip(left, right, strict=False):
                old.partner, new.partner = new, old
            yield from left
            yield from right
            continue
        for old, new in zip(removed[i:j], added[k:m], strict=True):
            yield replace(new, sign=SPACE, old_no=old.old_no, partner=None, was=old.text)


def _bare(line: RawLine) -> tuple[bytes, bool]:
    return line.text.translate(None, _BLANKS), line.open_end


def split(rows: Iterable[RawHunk | RawLine]) -> list[Raw]:
    """Hunks and pairs of lines, old beside new."""
    out: list[Raw] = []
    removed: list[RawLine] = []
    added: list[RawLine] = []

    def flush() -> None:
        out.extend(RawPair(old, new) for old, new in zip_longest(removed, added))
        removed.clear()
        added.clear()

    for row in rows:
        if isinstance(row, RawLine) and row.sign != SPACE:
            if row.sign == MINUS and added:
                flush()
            (removed if row.sign == MINUS else added).append(row)
            continue
        flush()
        out.append(RawPair(row, row) if isinstance(row, RawLine) else row)
    flush()
    return out
