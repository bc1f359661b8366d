"""Tell which hidden characters matter, and which letters pose as others.

`portal.visible` says what hides. This module says what it is (bidirectional, zero width, tag,
control), whether it is at home where it stands, and which letters of other scripts look like Latin
ones. A character that is at home (the joiner inside an emoji, a non-joiner in Persian) is `quiet`:
it is shown where it could hide something, but it raises no alarm.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from portal import visible

Kind = Literal[
    "bidi", "zero width", "tag", "control", "variation", "blank", "private", "byte", "combining",
    "look-alike",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mark:
    """One character to be shown as its code point, from `start` to `end` of the text."""

    start: int
    end: int
    label: str
    name: str
    kind: Kind
    loud: bool


_BIDI = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0x206A, 0x2070)}
_BIDI_MARKS = {0x200E, 0x200F, 0x061C}
_JOINERS = {0x200C, 0x200D}
_PICTURE = (
    "#*0-9\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u2460-\u24ff\u25a0-\u27bf"
    "\u2900-\u297f\u2b00-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
_TONE = "[\U0001f3fb-\U0001f3ff]"
# A whole emoji: variation selector, skin tone, keycap, joined members, and the three regional
# flags that Unicode recommends (England, Scotland, Wales), which are spelled with tag characters.
_EMOJI = re.compile(
    f"\U0001f3f4\U000e0067\U000e0062(?:\U000e0065\U000e006e\U000e0067"
    f"|\U000e0073\U000e0063\U000e0074|\U000e0077\U000e006c\U000e0073)\U000e007f"
    f"|[{_PICTURE}](?:\ufe0f|\ufe0e)?{_TONE}?\u20e3?"
    f"(?:\u200d[{_PICTURE}]\ufe0f?{_TONE}?)*"
)
# Scripts in which joiners, marks and selectors do their ordinary work.
_JOINING = re.compile(
    "[\u0600-\u06ff\u0700-\u074f\u0750-\u077f\u0860-\u08ff\ufb50-\ufdff\ufe70-\ufefc"
    "\u0900-\u0dff\u1000-\u109f\u1780-\u17ff\u1800-\u18af]"
)
RIGHT_TO_LEFT = re.compile(
    "[\u0590-\u05ff\u0600-\u07bf\u07c0-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff"
    "\U0001e800-\U0001efff]"
)
_MANY_MARKS = re.compile(
    "(?<=[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{3})"
    "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+"
)
_SPACES = "\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_ODD_SPACE = re.compile(f"[{_SPACES}]")


def decode(raw: bytes) -> str:
    """`raw` as UTF-8; each byte that is not becomes a stand-in which `marks` shows by its value."""
    return raw.decode("utf-8", "surrogateescape")


def marks(text: str, *, at_start: bool = False, look_alikes: bool = False) -> list[Mark]:
    """Every character of `text` to be shown by its code point, in order.

    `at_start` says that the text begins a file, where a byte order mark is at home. `look_alikes`
    adds letters that pose as Latin ones inside a word with Latin letters.
    """
    if text.isascii() and text.isprintable():
        return []
    found = list(_hidden(text, at_start))
    if not text.isascii():
        found += [
            Mark(i, i + 1, f"U+{ord(text[i]):04X}", _name(text[i]), "combining", loud=True)
            for m in _MANY_MARKS.finditer(text)
            for i in range(m.start(), m.end())
        ]
        found += [
            Mark(m.start(), m.end(), f"U+{ord(m.group()):04X}", _name(m.group()), "blank", False)
            for m in _ODD_SPACE.finditer(text)
        ]
        if look_alikes:
            found += look_alike_letters(text)
        found.sort(key=lambda mark: mark.start)
    return found


def _hidden(text: str, at_start: bool) -> Iterator[Mark]:
    whole: list[tuple[int, int]] | None = None
    start = 0
    for piece in visible.pieces(text):
        end = start + len(piece.text)
        if piece.hidden:
            if whole is None:
                whole = [m.span() for m in _EMOJI.finditer(text) if m.end() - m.start() > 1]
            if not any(low <= start < high for low, high in whole):
                yield _judge(text, start, piece, at_start)
        start = end


def _judge(text: str, start: int, piece: visible.Piece, at_start: bool) -> Mark:
    code = ord(piece.text)
    label, name, end = piece.label, piece.name, start + 1
    if 0xDC80 <= code <= 0xDCFF:
        byte = code - 0xDC00
        return Mark(
            start, end, f"\\x{byte:02X}", f"byte 0x{byte:02X}, not UTF-8", "byte", loud=False
        )
    before, after = text[start - 1 : start], text[start + 1 : start + 2]
    at_home = bool(_JOINING.match(before)) or bool(_JOINING.match(after))
    if code in _BIDI:
        return Mark(start, end, label, name, "bidi", loud=True)
    if code in _BIDI_MARKS:
        # A mark is the ordinary way to place punctuation in right-to-left prose.
        return Mark(start, end, label, name, "bidi", loud=not RIGHT_TO_LEFT.search(text))
    if code in _JOINERS:
        return Mark(start, end, label, name, "zero width", loud=not at_home)
    if code == 0xFEFF:
        return Mark(start, end, label, name, "zero width", loud=not (at_start and start == 0))
    if 0xE0000 <= code <= 0xE007F:
        return Mark(start, end, label, name, "tag", loud=True)
    if 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF or 0x180B <= code <= 0x180F:
        # One selector after an ideograph picks a written form; a run of them carries a message.
        alone = not _is_selector(before) and not _is_selector(after)
        ideograph = bool(before) and 0x2E80 <= ord(before) <= 0x3FFFF
        return Mark(
            start, end, label, name, "variation", loud=not (alone and (ideograph or at_home))
        )
    if code < 0x20 or 0x7F <= code < 0xA0:
        # Form feeds part old sources into pages, and a line of their own is where they stand.
        quiet = (code == 0x0C and not text.strip("\f\r")) or (
            code == 0x0D and start == len(text) - 1
        )
        return Mark(start, end, label, name, "control", loud=not quiet)
    if unicodedata.category(piece.text) == "Co":
        return Mark(start, end, label, name, "private", loud=False)
    kind: Kind = "zero width" if unicodedata.category(piece.text) == "Cf" else "blank"
    return Mark(start, end, label, name, kind, loud=True)


def _is_selector(char: str) -> bool:
    return bool(char) and (0xFE00 <= ord(char) <= 0xFE0F or 0xE0100 <= ord(char) <= 0xE01EF)


def _name(char: str) -> str:
    return f"U+{ord(char):04X} {unicodedata.name(char, 'unnamed')}"


# --- letters that pose as others --------------------------------------------------------------

# Letters that common fonts draw like a Latin letter, by their Unicode names (so that this file
# itself holds none). Facts as in Unicode's security data, kept to the scripts met in attacks.
_POSING = {
    "CYRILLIC SMALL LETTER": {
        "A": "a", "IE": "e", "O": "o", "ER": "p", "ES": "c", "HA": "x", "U": "y", "DZE": "s",
        "BYELORUSSIAN-UKRAINIAN I": "i", "JE": "j", "SHHA": "h", "KOMI DE": "d", "QA": "q",
        "WE": "w", "PALOCHKA": "l", "STRAIGHT U": "y", "IZHITSA": "v", "YI": "i", "IO": "e",
    },
    "CYRILLIC CAPITAL LETTER": {
        "A": "A", "VE": "B", "IE": "E", "KA": "K", "EM": "M", "EN": "H", "O": "O", "ER": "P",
        "ES": "C", "TE": "T", "U": "Y", "HA": "X", "DZE": "S", "BYELORUSSIAN-UKRAINIAN I": "I",
        "JE": "J", "QA": "Q", "WE": "W", "SHHA": "H", "STRAIGHT U": "Y", "IZHITSA": "V",
    },
    "GREEK SMALL LETTER": {"OMICRON": "o", "NU": "v", "ALPHA": "a", "IOTA": "i", "KAPPA": "k",
                           "RHO": "p", "UPSILON": "u"},
    "GREEK CAPITAL LETTER": {
        "ALPHA": "A", "BETA": "B", "EPSILON": "E", "ZETA": "Z", "ETA": "H", "IOTA": "I",
        "KAPPA": "K", "MU": "M", "NU": "N", "OMICRON": "O", "RHO": "P", "TAU": "T",
        "UPSILON": "Y", "CHI": "X",
    },
    "GREEK LETTER": {"YOT": "j", "LUNATE SIGMA SYMBOL": "c"},
    "ARMENIAN SMALL LETTER": {"OH": "o", "SEH": "u", "HO": "h", "VO": "n", "CO": "g", "ZA": "q"},
    "ARMENIAN CAPITAL LETTER": {"SEH": "U", "OH": "O", "TIWN": "S", "LIWN": "L"},
    "LATIN SMALL LETTER": {"DOTLESS I": "i", "ALPHA": "a", "SCRIPT G": "g", "DOTLESS J": "j",
                           "IOTA": "i"},
    "LATIN LETTER": {"SMALL CAPITAL O": "o", "SMALL CAPITAL C": "c", "SMALL CAPITAL V": "v",
                     "SMALL CAPITAL U": "u", "SMALL CAPITAL W": "w", "SMALL CAPITAL Z": "z",
                     "RETROFLEX CLICK": "l", "DENTAL CLICK": "l"},
    "CHEROKEE LETTER": {"A": "D", "E": "R", "I": "T", "GO": "A", "GU": "J", "HA": "b", "LA": "W",
                        "LU": "M", "SI": "b", "QUV": "E", "DU": "S", "YV": "B", "MI": "H"},
    "COPTIC SMALL LETTER": {"O": "o", "SIMA": "c"},
    "LISU LETTER": {"A": "A", "BA": "B", "CA": "C", "E": "E", "FA": "F", "GA": "G", "HA": "H",
                    "I": "I", "KA": "K", "LA": "L", "MA": "M", "NA": "N", "PA": "P", "SA": "S",
                    "TA": "T", "U": "U", "VA": "V", "XA": "X", "YA": "Y", "ZA": "Z"},
}  # fmt: skip


def _posing_table() -> dict[str, str]:
    table: dict[str, str] = {}
    for prefix, letters in _POSING.items():
        for tail, latin in letters.items():
            try:
                table[unicodedata.lookup(f"{prefix} {tail}")] = latin
            except KeyError:
                continue
    return table


LOOKS_LIKE = _posing_table()
_WORD = re.compile(r"\w+")
_PART = re.compile(r"[^\W\d_]+")
# Scientific names put a Greek letter beside Latin parts on purpose (`rho_max` in one letter).
_GREEK = re.compile("[\u0370-\u03ff]+")


def _styled(char: str) -> str | None:
    """The ASCII letter that a wide, bold or otherwise styled letter stands for."""
    if unicodedata.category(char) not in ("Lu", "Ll"):
        return None
    folded = unicodedata.normalize("NFKC", char)
    return folded if len(folded) == 1 and folded.isascii() and folded.isalpha() else None


def skeleton(word: str) -> str:
    """`word` as a quick reader sees it: each posing or styled letter as the Latin one."""
    return "".join(
        char if char.isascii() else LOOKS_LIKE.get(char) or _styled(char) or char for char in word
    )


def posing_words(text: str, *, code: bool = False) -> Iterator[re.Match[str]]:
    """Words that read as plain ASCII but are not.

    A word counts when it mixes Latin letters with letters that pose as such. A word wholly in
    another script is no finding here, however its letters look (whether it shadows a Latin word
    is for the caller, who knows the other words); nor is one with an honest accent. In `code`,
    styled letters count even alone, since some languages fold them into the plain name.
    """
    if text.isascii():
        return
    for match in _WORD.finditer(text):
        word = match.group()
        if word.isascii() or not skeleton(word).isascii():
            continue
        latin = any("a" <= char <= "z" or "A" <= char <= "Z" for char in word)
        foreign = [part for part in _PART.findall(word) if not part.isascii()]
        if latin:
            if not all(_GREEK.fullmatch(part) for part in foreign):
                yield match
        elif code and any(_styled(char) for part in foreign for char in part):
            yield match


def look_alike_letters(text: str, *, code: bool = False) -> list[Mark]:
    """A mark for each letter inside a posing word that is not what it seems."""
    return [
        Mark(
            i,
            i + 1,
            f"U+{ord(text[i]):04X}",
            f"{_name(text[i])}, looks like “{skeleton(text[i])}”",
            "look-alike",
            loud=True,
        )
        for match in posing_words(text, code=code)
        for i in range(match.start(), match.end())
        if not text[i].isascii()
    ]
