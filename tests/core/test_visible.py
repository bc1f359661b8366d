"""Characters that hide are drawn; nothing else is touched, and nothing is lost."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal import visible


@pytest.mark.parametrize(
    ("char", "label", "name"),
    [
        ("\u200b", "U+200B", "U+200B ZERO WIDTH SPACE"),
        ("\u202e", "U+202E", "U+202E RIGHT-TO-LEFT OVERRIDE"),
        ("\x1b", "ESC", "U+001B ESCAPE"),
        ("\r", "CR", "U+000D CARRIAGE RETURN"),
        ("\U000e0041", "U+E0041", "U+E0041 TAG LATIN CAPITAL LETTER A"),
        ("\ue000", "U+E000", "U+E000 unnamed"),
        ("\udc80", "U+DC80", "U+DC80 unnamed"),
        ("\u3164", "U+3164", "U+3164 HANGUL FILLER"),
        ("\ufe0f", "U+FE0F", "U+FE0F VARIATION SELECTOR-16"),
        ("\u2028", "U+2028", "U+2028 LINE SEPARATOR"),
        ("\U0010ffff", "U+10FFFF", "U+10FFFF unnamed"),
    ],
)
def test_what_hides_is_named(char: str, label: str, name: str) -> None:
    before, hidden, after = visible.pieces(f"a{char}b")
    assert (before.text, after.text) == ("a", "b")
    assert hidden == visible.Piece(char, label, name)


@pytest.mark.parametrize("text", ["", "plain", "two\nlines\tand a tab", "čaj, 你好, مرحبا, 1 €"])
def test_what_can_be_seen_stays_in_one_piece(text: str) -> None:
    assert [piece.text for piece in visible.pieces(text)] == ([text] if text else [])
    assert visible.count_hidden(text) == 0


@given(st.text())
def test_nothing_is_lost_or_invented(text: str) -> None:
    pieces = list(visible.pieces(text))
    assert "".join(piece.text for piece in pieces) == text
    assert visible.count_hidden(text) == sum(piece.hidden for piece in pieces)


@given(st.characters(categories=["Cc", "Cf", "Cs", "Co", "Zl", "Zp"]))
def test_every_character_of_a_hiding_category_is_drawn(char: str) -> None:
    assert unicodedata.category(char) in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    assert visible.count_hidden(char) == (0 if char in "\n\t" else 1)
