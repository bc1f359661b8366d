"""Make characters that hide visible.

Text from an agent, a tool or a repository may hold characters that take no room, turn the
reading order round or steer a terminal. A page that shows such text shows each of them as its
code point, where it stands, so that what a person reads is what the bytes say.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

# Blank or ignorable although their category says letter, mark or symbol: combining grapheme
# joiner, Hangul fillers, Khmer inherent vowels, Mongolian selectors, braille blank, variation
# selectors.
_BLANKS = (
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
    + "".join(map(chr, range(0xFE00, 0xFE10)))
    + "".join(map(chr, range(0xE0100, 0xE01F0)))
)
_HIDING_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
_LAYOUT = "\n\t"

# Control characters have no name in the Unicode tables; these are the ones met in practice.
_CONTROL_NAMES = {
    0x00: ("NUL", "NULL"),
    0x07: ("BEL", "BELL"),
    0x08: ("BS", "BACKSPACE"),
    0x0B: ("VT", "LINE TABULATION"),
    0x0C: ("FF", "FORM FEED"),
    0x0D: ("CR", "CARRIAGE RETURN"),
    0x0E: ("SO", "SHIFT OUT"),
    0x0F: ("SI", "SHIFT IN"),
    0x1B: ("ESC", "ESCAPE"),
    0x7F: ("DEL", "DELETE"),
    0x85: ("NEL", "NEXT LINE"),
    0x9B: ("CSI", "CONTROL SEQUENCE INTRODUCER"),
}


def _hides(char: str) -> bool:
    return char not in _LAYOUT and (
        char in _BLANKS or unicodedata.category(char) in _HIDING_CATEGORIES
    )


def _pattern() -> re.Pattern[str]:
    """One character class of ranges over all of Unicode.

    The private planes are two ranges, so walking the planes that hold anything else suffices.
    """
    ranges: list[tuple[int, int]] = []
    for code in [*range(0x32000), *range(0xE0000, 0xE0200)]:
        if not _hides(chr(code)):
            continue
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1] = (ranges[-1][0], code)
        else:
            ranges.append((code, code))
    ranges.append((0xF0000, 0x10FFFF))
    body = "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges)
    return re.compile(f"[{body}]")


_HIDDEN = _pattern()


@dataclass(frozen=True)
class Piece:
    """A stretch of plain text, or one hidden character with what to show in its place."""

    text: str
    label: str = ""
    name: str = ""

    @property
    def hidden(self) -> bool:
        return bool(self.label)


def describe(char: str) -> tuple[str, str]:
    """The short label and the full name of one character: `U+200B`, `U+200B ZERO WIDTH SPACE`."""
    code = f"U+{ord(char):04X}"
    label, name = _CONTROL_NAMES.get(ord(char), (code, ""))
    return label, f"{code} {name or unicodedata.name(char, 'unnamed')}"


def pieces(text: str) -> Iterator[Piece]:
    """Split `text` into plain stretches and single hidden characters, nothing left out."""
    last = 0
    for match in _HIDDEN.finditer(text):
        if match.start() > last:
            yield Piece(text[last : match.start()])
        label, name = describe(match.group())
        yield Piece(match.group(), label, name)
        last = match.end()
    if last < len(text):
        yield Piece(text[last:])


def hides(text: str) -> bool:
    """Whether anything in `text` is drawn as a code point."""
    return not (text.isascii() and text.isprintable()) and _HIDDEN.search(text) is not None


def says_something(text: str) -> bool:
    """Whether there is anything in `text` that can be read."""
    return any(each.text.strip() for each in pieces(text) if not each.hidden)


def count_hidden(text: str) -> int:
    return sum(1 for _ in _HIDDEN.finditer(text))
