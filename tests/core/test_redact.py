"""What has the shape of a secret is never stored. The samples are put together here."""

from __future__ import annotations

import base64
import time

import pytest

from portal.redact import MASK, forms, redact

LETTERS = "Ab1" * 12
SAMPLES = {
    **{f"gh{kind}": f"gh{kind}_{LETTERS}" for kind in "pousr"},
    "github_pat": f"github_{'pat'}_{LETTERS}",
    "glpat": f"gl{'pat'}-{LETTERS}",
    "sk": f"s{'k'}-{LETTERS}",
    "akia": "AK" + "IA" + "Z" * 16,
    "asia": "AS" + "IA" + "Z" * 16,
    "slack": f"xo{'xb'}-{LETTERS}",
    "jwt": ".".join(("ey" + "J" + LETTERS, LETTERS, LETTERS)),
    "key": "\n".join(
        ("-----BEGIN " + "RSA PRIVATE KEY-----", LETTERS, "-----END RSA PRIVATE KEY-----")
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_secret_of_known_shape_is_masked(name: str) -> None:
    assert redact(f"found {SAMPLES[name]} there") == f"found {MASK} there"


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        (f"Authorization: Bearer {LETTERS}", f"Authorization: Bearer {MASK}"),
        ("push to https://me:word@forge.example", f"push to https://{MASK}@forge.example"),
        ("a\x00b", "a\N{REPLACEMENT CHARACTER}b"),
        ("https://forge.example/path", "https://forge.example/path"),
        ("a" * 64, "a" * 64),
    ],
)
def test_the_rest_stays(text: str, stored: str) -> None:
    assert redact(text) == stored


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("x-{}", "x-[redacted]"),
        ("{},{}", "[redacted],[redacted]"),
        ("{}.{}", "[redacted].[redacted]"),
        ("a.{}", "a.[redacted]"),
        ("eyJshort.{}", "eyJshort.[redacted]"),
    ],
)
def test_web_tokens_are_found_in_what_stands_around_them(text: str, stored: str) -> None:
    assert redact(text.replace("{}", SAMPLES["jwt"])) == stored


@pytest.mark.parametrize(
    "part", ["ey" + "Jaaaaaaaa-", "ey" + "Jaaaaaaaa.bbbbbbbb-", "://a:b", "AKI"]
)
def test_a_text_made_of_beginnings_is_read_at_once(part: str) -> None:
    """An agent may print it, and everything else of the worker waits."""
    began = time.process_time()
    redact(part * (1_500_000 // len(part)))
    assert time.process_time() - began < 10


def test_a_secret_of_signs_among_many_signs_is_looked_for_at_once() -> None:
    """Whoever keeps the secret chooses it, and whoever writes the transcript chooses the text."""
    secret = "-" * 24 + "AbcdEfgh1" + "_" * 24
    began = time.process_time()
    assert redact("-" * 20_000 + secret + "_" * 20_000, known=[secret]).count(MASK) == 1
    redact("-_" * 20_000, known=[secret])
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    "spelled",
    [
        *("a/word&more", "a%2Fword%26more", "YS93b3JkJm1vcmU=", "erom&drow/a"),
        *(
            "a /wo\nrd& more",
            "a-/-w-o-r-d-&-m-o-r-e",
            "e.r.o.m.&.d.r.o.w./.a",
            "612f776f7264266d6f7265",
        ),
    ],
)
def test_a_known_secret_is_masked_however_it_is_spelled(spelled: str) -> None:
    assert redact(f"<{spelled}>", known=["a/word&more"]) == f"<{MASK}>"


LONG = "q7" + "Zx4/Lm9+" * 4


@pytest.mark.parametrize(
    "text",
    [
        LONG[:16] + " and then " + LONG[16:],
        base64.b64encode(f"user:{LONG}".encode()).decode(),
        base64.urlsafe_b64encode(f"Bearer {LONG}!".encode()).decode(),
        LONG.encode().hex().upper()[:40],
        LONG[::-1][3:20],
    ],
)
def test_no_long_piece_of_a_known_secret_is_left(text: str) -> None:
    masked = redact(f"<{text}>", known=[LONG])
    assert MASK in masked
    spelled = [form for form in forms(LONG) if len(form) > 20]
    left = [form[at : at + 12] for form in spelled for at in range(len(form) - 12)]
    assert not [piece for piece in left if piece in masked]


def test_words_are_no_pieces() -> None:
    """A secret that is made of words does not take the words out of everything."""
    text = "the correct horse, and batteries for the staple: 1, 2, 3, 4, 5, 6"
    assert redact(text, known=["correct-horse-battery-staple", "123456"]) == text


def test_a_known_secret_is_found_in_a_long_text_at_once() -> None:
    text = "Lorem ipsum, 4711. " * 50_000
    begun = time.monotonic()
    assert redact(text + LONG, known=[LONG, LONG[::-1]]) == text + MASK
    assert time.monotonic() - begun < 10


def test_what_nothing_can_store_is_replaced() -> None:
    assert (
        redact("a\0b\ud800c\ud83d\ude00d")
        == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c\U0001f600d"
    )
