"""Take secrets and control characters out of text before it is stored."""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from collections.abc import Collection, Iterable, Iterator

MASK = "[redacted]"
# What a secret of known shape looks like, and a part that no such secret is without.
_SHAPES: dict[tuple[str, ...], str] = {
    ("-----BEGIN",): (
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    ),
    ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"): r"\bgh[pousr]_[A-Za-z0-9]{20,}",
    ("github_pat_",): r"\bgithub_pat_[A-Za-z0-9_]{20,}",
    ("glpat-",): r"\bglpat-[A-Za-z0-9_-]{16,}",
    ("sk-",): r"\bsk-[A-Za-z0-9_-]{20,}",
    ("AKIA", "ASIA"): r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    ("xox",): r"\bxox[abposr]-[A-Za-z0-9-]{10,}",
    ("Bearer ",): r"(?<=Bearer )[A-Za-z0-9._~+/=-]{16,}",
    ("://",): r"(?<=://)[^\s/:@]+:[^\s/@]+(?=@)",
}
_SHAPE = re.compile("|".join(_SHAPES.values()), re.DOTALL)
# Looking for a fixed part costs a hundredth of trying every shape at every character.
_PARTS = tuple(part for parts in _SHAPES for part in parts)


def forms(secret: str) -> set[str]:
    """The spellings under which a known secret may turn up."""
    raw = secret.encode()
    return {
        secret,
        urllib.parse.quote(secret, safe=""),
        urllib.parse.quote_plus(secret),
        json.dumps(secret)[1:-1],
        base64.b64encode(raw).decode(),
        base64.urlsafe_b64encode(raw).decode(),
        raw.hex(),
        raw.hex().upper(),
        secret[::-1],
        *_inside_base64(raw),
    }


def _inside_base64(raw: bytes) -> Iterator[str]:
    """How a value looks inside a longer base64 text, at each of the three alignments."""
    if len(raw) < 12:
        return
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw).decode()
        # Characters at the edges also depend on the neighbours.
        head = (0, 2, 3)[shift]
        tail = len(encoded) - ((0, 4, 3)[(shift + len(raw)) % 3])
        yield encoded[head:tail]
        yield encoded[head:tail].translate(_URL_SAFE)


_URL_SAFE = str.maketrans("+/", "-_")
PIECE = 10
"""So many characters of a long secret give it away, whatever stands around them."""


def redact(text: str, *, known: Iterable[str] = ()) -> str:
    """`text` as `printable` has it, without secrets of known shape and without `known` ones.

    A known secret is taken out in any usual spelling, also where something stands between its
    characters, and so are longer pieces of one. A service that spells a secret letter by letter in
    words of its own is beyond this: what it may answer is the contract's to narrow.
    """
    pieces: set[str] = set()
    for secret in known:
        if len(secret) >= 6:
            spelled = sorted(forms(secret), key=len, reverse=True)
            for form in spelled:
                text = text.replace(form, MASK)
            if len(secret) >= PIECE:
                text = _stretched(secret).sub(MASK, text)
            if len(secret) >= 2 * PIECE:
                pieces.update(_pieces(spelled))
    if pieces:
        text = _without(text, pieces)
    text = _without_web_tokens(printable(text))
    for part in _PARTS:
        if part in text:
            return _SHAPE.sub(MASK, text)
    return text


_BEGINNING = "eyJ"  # of a JSON web token
_RUN = re.compile(r"[A-Za-z0-9_-]{11,}")
_REST = re.compile(r"\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}")
_HEAD = re.compile(rf"\b{_BEGINNING}[A-Za-z0-9_-]{{8}}")


def _without_web_tokens(text: str) -> str:
    """`text` with JSON web tokens masked.

    By runs of their characters and not by one expression: a text of many beginnings without an
    end would be read to its end from each of them.
    """
    if _BEGINNING not in text:
        return text
    kept: list[str] = []
    done = 0
    for run in _RUN.finditer(text):
        rest = _REST.match(text, run.end()) if run.start() >= done else None
        head = _HEAD.search(run.group()) if rest is not None else None
        if rest is not None and head is not None:
            kept += [text[done : run.start() + head.start()], MASK]
            done = rest.end()
    return "".join([*kept, text[done:]])


def printable(text: str) -> str:
    """`text` with NULs and half characters replaced: nothing can store them, and nobody reads them.

    JSON spells halves of a character, `"\\ud800"`, so anybody who answers in JSON can send them.
    """
    if text.isascii():
        return text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _stretched(secret: str) -> re.Pattern[str]:
    """The secret, forwards or backwards, with a little between its characters.

    Letters and digits do not count as something between: words would match.
    """
    ways = (secret, secret[::-1])
    return re.compile(
        "|".join(re.escape(each[0]) + "".join(map(_stretched_to, each[1:])) for each in ways)
    )


def _stretched_to(character: str) -> str:
    """What may stand before a character of a secret, and the character.

    Never the character itself: a secret of many dashes, looked for among many dashes, would be
    tried in more ways than anybody can wait for.
    """
    sign = re.escape(character)
    return rf"(?:(?!{sign})[^A-Za-z0-9]){{0,4}}{sign}"


def _pieces(spelled: Iterable[str]) -> Iterator[str]:
    """Every run of `PIECE` characters that looks like nothing but a part of a secret."""
    for form in spelled:
        for at in range(len(form) - PIECE + 1):
            piece = form[at : at + PIECE]
            mixed = piece.lower() != piece != piece.upper()
            if mixed or (re.search("[0-9]", piece) and re.search("[A-Za-z]", piece)):
                yield piece


def _without(text: str, pieces: Collection[str]) -> str:
    """`text` with every run of it that is made of pieces masked."""
    kept: list[str] = []
    done = at = 0
    while at <= len(text) - PIECE:
        if text[at : at + PIECE] not in pieces:
            at += 1
            continue
        end = at + PIECE
        while text[end - PIECE + 1 : end + 1] in pieces and end < len(text):
            end += 1
        kept += [text[done:at], MASK]
        done = at = end
    return "".join([*kept, text[done:]])
