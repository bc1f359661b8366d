"""What differs between two texts of a policy, line by line."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

AROUND = 3  # unchanged lines that are shown around a change


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
    old, new = before.splitlines(), after.splitlines()
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    rows: list[Row] = []
    shown = 0  # lines of the old text that are shown or counted
    for group in matcher.get_grouped_opcodes(AROUND):
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
    return [*rows, *_gap(len(old) - shown)] if rows else []


def _gap(count: int) -> list[Row]:
    return [Row("gap", skipped=count)] if count else []
