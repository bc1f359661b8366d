"""The lines of a patch as rows with numbers, one side above the other or both beside each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

from approvals.patch import FilePatch, Hunk

SPACE, PLUS, MINUS = b" +-"


@dataclass(slots=True)
class RawLine:
    sign: int
    old_no: int | None
    new_no: int | None
    text: bytes
    first: bool  # the first line of the file
    open_end: bool = False
    partner: RawLine | None = None
    hunk: Hunk | None = None
    at: int = 0  # position within the hunk's lines

    def number(self, side: str) -> int | None:
        if side == "old":
            return self.old_no if self.sign != PLUS else None
        return self.new_no if self.sign != MINUS else None


@dataclass(slots=True)
class RawPair:
    old: RawLine | None
    new: RawLine | None


@dataclass(slots=True)
class RawHunk:
    number: int
    hunk: Hunk
    skipped: int


Raw = RawHunk | RawLine | RawPair


def after(start: int, count: int) -> int:
    """The line after a hunk side that begins at `start`; one of no lines stands after `start`."""
    return start + count if count else start + 1


def unified(files: Iterable[FilePatch]) -> list[RawHunk | RawLine]:
    """Hunks and lines in the order of the patch."""
    rows: list[RawHunk | RawLine] = []
    number = 0
    for file in files:
        end = 1
        for hunk in file.hunks:
            first = hunk.old_start if hunk.old_count else hunk.old_start + 1
            rows.append(RawHunk(number, hunk, max(0, first - end)))
            end = first + hunk.old_count
            rows += _lines(hunk)
            number += 1
    return rows


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


def split(files: Iterable[FilePatch]) -> list[Raw]:
    """Hunks and pairs of lines, old beside new."""
    rows: list[Raw] = []
    removed: list[RawLine] = []
    added: list[RawLine] = []

    def flush() -> None:
        rows.extend(RawPair(old, new) for old, new in zip_longest(removed, added))
        removed.clear()
        added.clear()

    for row in unified(files):
        if isinstance(row, RawLine) and row.sign != SPACE:
            if row.sign == MINUS and added:
                flush()
            (removed if row.sign == MINUS else added).append(row)
            continue
        flush()
        rows.append(RawPair(row, row) if isinstance(row, RawLine) else row)
    flush()
    return rows
