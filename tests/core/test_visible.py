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


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "Ada Obi",
        "Zoë Ångström",
        "\u0639\u0644\u06cc\u200c\u0631\u0636\u0627",  # Persian: Ali-Reza
        "\u0645\u0647\u0631\u064a\u064e\u200c\u0646\u0627",  # a vowel sign before the non-joiner
        "\u0dc1\u0dca\u200d\u0dbb\u0dd3",  # Sinhala: Sri
        "\u0930\u093e\u091c\u094d\u200c\u0915\u0941\u092e\u093e\u0930",  # Devanagari: Rajkumar
    ],
)
def test_a_name_may_be_spelled_with_joiners(name: str) -> None:
    assert not visible.hides_in_name(name)
    assert [each for each in visible.pieces_of_name(name) if each.hidden] == []
    assert visible.spelled(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "A\u200cda",  # no script that needs it
        "A\u200dda",
        "\u200c\u0639\u0644\u06cc",  # at the beginning
        "\u0639\u0644\u06cc\u200c",  # at the end
        "\u0639\u0644\u06cc\u200c \u0631\u0636\u0627",  # before a blank
        "\u0639\u0644\u06cc\u200c\u200c\u0631\u0636\u0627",  # two
        "\u0639\u0644\u06cc\u200d\u0631\u0636\u0627",  # a joiner between letters that join anyway
        "\u0631\u0636\u0627\u200c\u0646",  # after a letter that never joins the next
        "\u0639\u0644\u06cc\u200cReza",  # between two scripts
        "\u0dc1\u0dca\u200dr",
        "\u0915\u200d\u0930",  # no virama
        "\u094d\u200d\u0930",  # a virama on nothing
        "\u0639\u0644\u06cc\u202e\u0631\u0636\u0627",  # no joiner at all
        "Ada\u200b Obi",
    ],
)
def test_a_joiner_elsewhere_in_a_name_hides(name: str) -> None:
    assert visible.hides_in_name(name)
    assert "".join(each.text for each in visible.pieces_of_name(name)) == name
    assert "[U+20" in visible.spelled(name)


@given(st.text(alphabet="a \u200c\u200d\u0639\u0627\u064e\u0915\u094d\u0dca\u0dbb\u202e"))
def test_a_joiner_that_is_let_stand_has_letters_on_both_sides(name: str) -> None:
    at = 0
    for piece in visible.pieces_of_name(name):
        if piece.text in ("\u200c", "\u200d") and not piece.hidden:
            assert name[at + 1].isalpha()
            assert any(char.isalpha() for char in name[:at])
        at += len(piece.text)
