"""Lines that were taken away in one place and stand, byte for byte, in another.

A reader need not compare them. Only equal lines count: one that was also indented anew is a
changed line, since in some languages that is a change of meaning. Blocks as git's `--color-moved`
takes them: at least twenty letters and digits, here in at least two lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from approvals.diff.rows import MINUS, PLUS, SPACE, RawLine
from approvals.diff.shown import Moved

LEAST_LINES = 2
LEAST_LETTERS = 20
MOST_LINES = 20_000  # of all that changed; above, no move is looked for
MOST_PLACES = 24  # of one line; a line in more places begins no block


@dataclass(frozen=True, slots=True)
class _Place:
    index: int
    number: int
    text: bytes
    run: int  # lines of one change stand in one run


Moves = Mapping[tuple[int, int, int], Moved]  # file, sign and number of the line


def moves(rows: Iterable[tuple[int, RawLine]]) -> dict[tuple[int, int, int], Moved]:
    """What moved where, from the changed and unchanged lines of all files in their order."""
    removed: list[_Place] = []
    added: list[_Place] = []
    run = 0
    for index, row in rows:
        if row.sign == SPACE:
            run += 1
            continue
        number = (row.new_no if row.sign == PLUS else row.old_no) or 0
        (added if row.sign == PLUS else removed).append(_Place(index, number, row.text, run))
        if len(added) + len(removed) > MOST_LINES:
            return {}
    places: dict[bytes, list[int]] = defaultdict(list)
    for at, place in enumerate(removed):
        places[place.text].append(at)
    found: dict[tuple[int, int, int], Moved] = {}
    taken: set[int] = set()
    at = 0
    while at < len(added):
        begins = places.get(added[at].text, [])
        best = (0, 0)
        if 0 < len(begins) <= MOST_PLACES and added[at].text.strip():
            best = max((_length(added, at, removed, begin, taken), -begin) for begin in begins)
        length, begin = best[0], -best[1]
        block = added[at : at + length]
        if length < LEAST_LINES or sum(map(_letters, block)) < LEAST_LETTERS:
            at += 1
            continue
        for new, old in zip(block, removed[begin : begin + length], strict=True):
            found[new.index, PLUS, new.number] = Moved(old.index, old.number)
            found[old.index, MINUS, old.number] = Moved(new.index, new.number)
        taken.update(range(begin, begin + length))
        at += length
    return found


def _length(
    added: list[_Place], at: int, removed: list[_Place], begin: int, taken: set[int]
) -> int:
    """How many lines from the two places on are equal, each in one stretch of its own."""
    length = 0
    while at + length < len(added) and begin + length < len(removed):
        new, old = added[at + length], removed[begin + length]
        # In one change, a line that stays equal did not move: it was aligned with another.
        if new.text != old.text or new.run == old.run or begin + length in taken:
            break
        if length:
            before, earlier = added[at + length - 1], removed[begin + length - 1]
            if not (_next(before, new) and _next(earlier, old)):
                break
        length += 1
    return length


def _next(one: _Place, other: _Place) -> bool:
    return one.index == other.index and one.number + 1 == other.number


def _letters(place: _Place) -> int:
    return sum(byte > 0x7F or chr(byte).isalnum() for byte in place.text)
