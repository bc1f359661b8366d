"""What differs between two texts of a policy, line by line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Any, Literal

AROUND = 3  # unchanged lines that are shown around a change
# Pairs of lines; two longer texts are compared from both ends, and what lies between is replaced.
COMPARED = 4_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """One line, with its numbers in both texts; a `gap` stands for `skipped` unchanged lines."""

    kind: Literal["add", "rem", "ctx", "gap"]
    text: str = ""
    old: int | None = None
    new: int | None = None
    skipped: int = 0


def changes(before: str, after: str) -> list[Row]:
    """The rows to show; none if the texts are alike."""
    if before == after:
        return []
    if before.endswith("\n") and after.endswith("\n"):  # that begins no line of its own
        before, after = before[:-1], after[:-1]
    old, new = before.split("\n"), after.split("\n")
    rows: list[Row] = []
    shown = 0  # lines of the old text that are shown or counted
    for group in _Matcher(old, new).get_grouped_opcodes(AROUND):
        rows += _gap(group[0][1] - shown)
        for tag, start, end, new_start, new_end in group:
            if tag == "equal":
                rows += [
                    Row("ctx", old[at], at + 1, new_start + at - start + 1)
                    for at in range(start, end)
                ]
                continue
            rows += [Row("rem", old[at], at + 1, None) for at in range(start, end)]
            rows += [Row("add", new[at], None, at + 1) for at in range(new_start, new_end)]
        shown = group[-1][2]
    return [*rows, *_gap(len(old) - shown)]


def _gap(count: int) -> list[Row]:
    return [Row("gap", skipped=count)] if count else []


class _Matcher(SequenceMatcher[str]):
    """Compares what lies between the common beginning and the common end, if that is bearable."""

    def __init__(self, old: Sequence[str], new: Sequence[str]) -> None:
        self._head = _alike(old, new)
        self._tail = _alike(old[self._head :][::-1], new[self._head :][::-1])
        self._ends = len(old) - self._tail, len(new) - self._tail
        super().__init__(
            None, old[self._head : self._ends[0]], new[self._head : self._ends[1]], autojunk=False
        )
        self._sizes = len(old), len(new)

    def get_opcodes(self) -> list[tuple[Any, int, int, int, int]]:
        head, (old_end, new_end) = self._head, self._ends
        if (old_end - head) * (new_end - head) > COMPARED:
            between: list[tuple[Any, int, int, int, int]] = [
                ("replace", head, old_end, head, new_end)
            ]
        else:
            between = [
                (tag, a + head, b + head, c + head, d + head)
                for tag, a, b, c, d in super().get_opcodes()
            ]
        first = [("equal", 0, head, 0, head)] if head else []
        last = [("equal", old_end, self._sizes[0], new_end, self._sizes[1])] if self._tail else []
        return [*first, *between, *last]


def _alike(one: Sequence[str], other: Sequence[str]) -> int:
    """How many lines both begin with."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
