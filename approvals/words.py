"""The words of a packet, and what somebody who looks for packets means by theirs.

Both sides are read in the same way, so that what is found does not depend on how it was written:
letters of any size, with or without accents, whole names and the words that names are made of.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

# Of a longer word the beginning counts, and a packet has no more words than that.
LONGEST = 40
MOST = 80

# What the portal itself writes into most sentences: too common to lead to a packet. A word may be
# added, but none may leave the list: packets that are there were not listed under it.
# fmt: off
COMMON = frozenset((
    "a", "against", "and", "by", "for", "from", "in", "its", "of", "on", "one", "request", "run",
    "send", "the", "through", "to", "tool",
))
# fmt: on

# In Chinese and Japanese no blanks stand between words: each sign is one.
_SIGNS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_NAMES = re.compile(rf"[{_SIGNS}]|[^\W_{_SIGNS}]+")


def words_of(page: Mapping[str, Any]) -> tuple[str, ...]:
    """By what a packet is found, from the page that was sealed: its effect, target, tool, contract,
    agent and who asked."""
    texts = (
        page["effect"],
        page["contract"]["name"],
        page["tool"],
        page["target"],
        page["agent"]["name"] or "",
        page["requested_by"],
    )
    found: dict[str, None] = {}
    for text in texts:
        for name in _names(text):
            found[name.casefold()[:LONGEST]] = None
            for part in _parts(name):
                found[part] = None
    return tuple(found)[:MOST]


def asked_for(text: str) -> tuple[str, ...]:
    """The words somebody typed, longest first: a packet must have one that begins like each."""
    words = {part for name in _names(text) for part in _parts(name)}
    implied = {
        word for word in words for other in words if word != other and other.startswith(word)
    }
    return tuple(sorted(words - implied, key=lambda word: (-len(word), word)))


def leads_nowhere(word: str) -> bool:
    """Whether packets are not listed under all words that begin like this one."""
    return any(common.startswith(word) for common in COMMON)


def _names(text: str) -> Iterator[str]:
    """What stands between signs and blanks, without accents and without what nobody sees."""
    plain = "".join(
        char
        for char in unicodedata.normalize("NFKD", text)
        if unicodedata.category(char) not in ("Mn", "Cf")
    )
    return (each.group() for each in _NAMES.finditer(plain))


def _parts(name: str) -> Iterator[str]:
    """`createIssue` is two words."""
    begin = 0
    for at in range(1, len(name)):
        if name[at].isupper() and name[at - 1].islower():
            yield name[begin:at].casefold()[:LONGEST]
            begin = at
    yield name[begin:].casefold()[:LONGEST]
