"""Make an agent's words harmless where a forge would act on them.

A pull request's text is not only read: it pings people, closes issues, loads
images, starts bots. Words that came from an agent may do none of that. They
stay readable, and every character that hides is written out.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from approvals.publishers import (
    BODY_LIMIT,
    MESSAGE_LIMIT,
    TITLE_LIMIT,
    IntentRefused,
    body_marker,
    message_trailer,
)

# A zero-width space as an entity: seen in the source, unseen on the page. A
# backslash alone does not stop a mention or an issue reference, because forges
# look for those in the rendered text.
_GAP = "&#8203;"

_LINE_END = re.compile(r"\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_SYNTAX = re.compile(
    r"""(?P<acts>[@#!]|(?<=gh)-|://|(?<=www)\.)|[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]""",
    re.IGNORECASE,
)

# The same in plain text, where no entity helps: a visible space is put between.
_PLAIN_ACTIVE = re.compile(r"@(?=\w)|[#!](?=\d)|(?<=\bgh)-(?=\d)|(?<=www)\.", re.IGNORECASE)
_SKIPS_CI = re.compile(r"\[([^\[\]\n]*\b(?:skip|no)\b[^\[\]\n]*)\]", re.IGNORECASE)
_SKIPS_CHECKS = re.compile(r"\b(skip-checks):", re.IGNORECASE)

# Letters and marks that print as nothing, beside the categories for control and format.
_BLANK_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u2800\u3164\uffa0")
_HIDING = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    """Write every character that does not show as `[U+XXXX]`; keep line ends and spaces."""
    return "".join(f"[U+{ord(c):04X}]" if _hides(c) else c for c in text)


def _hides(character: str) -> bool:
    if character in "\n ":
        return False
    point = ord(character)
    return (
        unicodedata.category(character) in _HIDING
        or character in _BLANK_LETTERS
        or 0xFE00 <= point <= 0xFE0F
        or 0xE0100 <= point <= 0xE01EF
    )


def safe_markdown(text: str) -> str:
    """Markdown that renders as exactly these words and does nothing else.

    No mark-up, HTML, image, link, mention, issue reference, closing keyword or
    bot command of the text survives; line breaks and indentation do. The result
    is longer than the text; `compose_body` keeps the whole under the limit.
    """
    lines = visible(_lines(text)).split("\n")
    return "\n".join(_safe_markdown_line(line) for line in lines)


def _lines(text: str) -> str:
    return _LINE_END.sub("\n", text).replace("\t", "    ")


def _safe_markdown_line(line: str) -> str:
    words = line.lstrip(" ")
    # Four leading spaces would make a code block, in which a backslash shows.
    indent = "&nbsp;" * (len(line) - len(words))
    return indent + _SYNTAX.sub(_escaped, words).rstrip(" ")


def _escaped(match: re.Match[str]) -> str:
    first, *rest = (f"\\{c}" for c in match[0])
    return first + (_GAP if match["acts"] else "") + "".join(rest)


def safe_plain(text: str) -> str:
    """Plain text for a commit message or a title, with the same promise.

    What would act is broken by a space that shows (`@ someone`, `# 12`), and
    words that would switch a pipeline off lose their brackets.
    """
    text = visible(_lines(text))
    text = _SKIPS_CI.sub(r"(\1)", text)
    text = _SKIPS_CHECKS.sub(r"\1 :", text)
    text = text.replace("://", ": //")
    return _PLAIN_ACTIVE.sub(r"\g<0> ", text)


def safe_line(text: str, limit: int = TITLE_LIMIT) -> str:
    """The same as one line of at most `limit` characters, for a title."""
    line = safe_plain(" ".join(_lines(text).split()))
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def compose_body(*, verified: str, agent_text: str, marker: str, limit: int = BODY_LIMIT) -> str:
    """A pull request's body: the marker, the portal's own words, then the agent's as a quote.

    `verified` is Markdown of the portal and goes in as it is. The agent's words
    are cut to what room is left, and the cut is counted on the page.
    """
    head = f"{body_marker(marker)}\n{verified.strip()}\n"
    if len(head) > limit - 1_000:
        raise IntentRefused(
            reason=f"the portal's part of the body alone has {len(head)} characters",
            remedy="Shorten the title or the outcome in the contract.",
        )
    if not agent_text.strip():
        return head
    head += "\n**Written by the agent, not verified by the portal:**\n\n"
    return head + _cut(agent_text.strip(), _quoted_markdown, limit - len(head))


def compose_message(*, subject: str, marker: str, agent_text: str = "") -> str:
    """A commit message: one subject line, the agent's words as a quote, and the trailer.

    The quote keeps a line of the agent from being taken for a trailer, such as
    a sign-off or a co-author.
    """
    head = safe_line(subject) + "\n\n"
    tail = message_trailer(marker) + "\n"
    if not agent_text.strip():
        return head + tail
    room = MESSAGE_LIMIT - len(head) - len(tail) - 1
    return f"{head}{_cut(agent_text.strip(), _quoted_plain, room)}\n{tail}"


def _quoted_markdown(text: str) -> str:
    return "".join(f"> {line}".rstrip() + "\n" for line in safe_markdown(text).split("\n"))


def _quoted_plain(text: str) -> str:
    return "".join(f"> {line}".rstrip() + "\n" for line in safe_plain(text).split("\n"))


def _cut(text: str, render: Callable[[str], str], room: int) -> str:
    """Render as much of the text as fits, and say how much does not."""
    whole = render(text) if len(text) <= room else ""
    if whole and len(whole) <= room:
        return whole
    low, high = 0, min(len(text), room)
    while low < high:
        middle = (low + high + 1) // 2
        if len(_with_count(text, middle, render)) <= room:
            low = middle
        else:
            high = middle - 1
    return _with_count(text, low, render)


def _with_count(text: str, kept: int, render: Callable[[str], str]) -> str:
    left_out = len(text) - kept
    return f"{render(text[:kept])}\n({left_out} more characters are in the portal.)\n"
