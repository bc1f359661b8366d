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


def _joining_letters() -> tuple[frozenset[str], frozenset[str]]:
    """Arabic letters that join the next one, and those that join the one before.

    A letter that joins has forms of its own for it, which Unicode keeps for old encodings.
    """
    onward: set[str] = set()
    back: set[str] = set()
    for code in [*range(0xFB50, 0xFE00), *range(0xFE70, 0xFEFD)]:
        form, *bases = unicodedata.decomposition(chr(code)).split()[:3] or [""]
        if len(bases) != 1:
            continue
        letter = chr(int(bases[0], 16))
        if form in ("<initial>", "<medial>"):
            onward.add(letter)
        if form in ("<medial>", "<final>"):
            back.add(letter)
    return frozenset(onward), frozenset(back)


_JOINS_NEXT, _JOINS_BEFORE = _joining_letters()
_NON_JOINER, _JOINERS = "\u200c", "\u200c\u200d"
_VIRAMA = 9  # the combining class of signs that take a letter's vowel away


def _spells(text: str, at: int) -> bool:
    """Whether the character at `at` is a joiner that its word is spelled with.

    The rules of RFC 5892 (appendix A.1 and A.2), with a letter of the same script on both sides:
    either joiner after a virama, a non-joiner between Arabic letters that join without it. There
    it changes what is drawn; anywhere else it only hides.
    """
    before, after = text[:at], text[at + 1 : at + 2]
    bare = before
    while bare and unicodedata.category(bare[-1]) == "Mn":
        bare = bare[:-1]
    if text[at] not in _JOINERS or not bare or not after.isalpha():
        return False
    if unicodedata.combining(before[-1]) == _VIRAMA:
        return bare[-1].isalpha() and _script(bare[-1]) == _script(after)
    return text[at] == _NON_JOINER and bare[-1] in _JOINS_NEXT and after in _JOINS_BEFORE


def _script(letter: str) -> str:
    """`DEVANAGARI`, `SINHALA`: the first word of the letter's name says it."""
    return unicodedata.name(letter, "").partition(" ")[0]


def pieces_of_name(name: str) -> Iterator[Piece]:
    """`pieces` of a person's name, in which the joiners it is spelled with are plain."""
    at = 0
    for piece in pieces(name):
        yield Piece(piece.text) if piece.hidden and _spells(name, at) else piece
        at += len(piece.text)


def hides_in_name(name: str) -> bool:
    """Whether anything in a person's name is drawn as a code point."""
    return hides(name) and any(piece.hidden for piece in pieces_of_name(name))


def spelled(name: str) -> str:
    """A person's name for plain text: what hides in it is written as `[U+200B]`."""
    return "".join(
        f"[{piece.label}]" if piece.hidden else piece.text for piece in pieces_of_name(name)
    )


def hides(text: str) -> bool:
    """Whether anything in `text` is drawn as a code point."""
    return not (text.isascii() and text.isprintable()) and _HIDDEN.search(text) is not None


def says_something(text: str) -> bool:
    """Whether there is anything in `text` that can be read."""
    return any(each.text.strip() for each in pieces(text) if not each.hidden)


def count_hidden(text: str) -> int:
    return sum(1 for _ in _HIDDEN.finditer(text))
