"""Colours of syntax, from well-worn lexers on hostile text: short lines only, against a clock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache

from pygments.lexer import Lexer
from pygments.lexers import find_lexer_class_for_filename
from pygments.token import Comment, Keyword, Name, Number, Operator, String, _TokenType
from pygments.util import ClassNotFound

from approvals.diff.inline import starts_of
from approvals.diff.shown import Colours, SegmentKind

HIGHLIGHT_LINES = 2_000  # of one file; above, its lines stay plain
HIGHLIGHT_CHARS = 400  # of one line; a longer one stays plain
HIGHLIGHT_SECONDS = 1.0

# Lexers work with regular expressions on hostile text, so only well-worn ones are used, on short
# lines, and against a clock.
_LEXERS = {
    "bash", "c", "cmake", "clojure", "cpp", "csharp", "css", "dart", "docker", "elixir", "erlang",
    "go", "graphql", "groovy", "haskell", "hcl", "html", "ini", "java", "javascript", "json", "jsx",
    "kotlin", "less", "lua", "make", "nix", "objective-c", "perl", "php", "powershell",
    "properties", "protobuf", "python", "r", "ruby", "rust", "scala", "scss", "sql", "swift",
    "terraform", "toml", "tsx", "typescript", "xml", "yaml", "zig",
}  # fmt: skip
_KINDS: dict[_TokenType, SegmentKind] = {
    Keyword: "k",
    Operator.Word: "k",
    Name.Tag: "k",
    Name.Function: "fn",
    Name.Class: "fn",
    Name.Builtin: "fn",
    Name.Decorator: "fn",
    String: "st",
    Number: "n",
    Comment: "cm",
}


@lru_cache(maxsize=512)
def lexer_of(file_name: str) -> Lexer | None:
    """The lexer for a file of that name, if it is one of the well-worn."""
    try:
        found = find_lexer_class_for_filename(file_name)
    except ClassNotFound:
        return None
    if found is None or _LEXERS.isdisjoint(found.aliases):
        return None
    return found(stripnl=False, ensurenl=False)


@lru_cache(maxsize=256)
def _kind(token: _TokenType) -> SegmentKind:
    at: _TokenType | None = token
    while at is not None:
        if at in _KINDS:
            return _KINDS[at]
        at = at.parent
    return ""


def lex(lexer: Lexer, lines: Sequence[str], deadline: float) -> list[Colours] | None:
    """Colours for each of `lines`, read as one text; None where time ran out.

    The tokens are asked for without preparation of the text, so that offsets stay true.
    """
    if sum(map(len, lines)) > 200_000:
        return None
    # A very long line can make a lexer slow; it is blanked out, and stays plain.
    text = "".join(
        (line if len(line) <= HIGHLIGHT_CHARS * 4 else " " * len(line)).replace("\r", " ") + "\n"
        for line in lines
    )
    starts = starts_of([line + "\n" for line in lines])
    out: list[Colours] = [[] for _ in lines]
    row = 0
    for count, (offset, token, value) in enumerate(lexer.get_tokens_unprocessed(text)):
        if count % 256 == 0 and time.monotonic() > deadline:
            return None
        kind = _kind(token)
        if not kind:
            continue
        while row + 1 < len(lines) and offset >= starts[row + 1]:
            row += 1
        at, end = offset, offset + len(value)
        line = row
        while at < end and line < len(lines):
            stop = min(end, starts[line + 1] - 1)
            if stop > at:
                out[line].append((at - starts[line], stop - starts[line], kind))
            line += 1
            at = starts[line]
    return out
