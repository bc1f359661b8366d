"""Which words differ within a line that was changed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from approvals.diff.shown import Span

WORDS = re.compile(r"\w+|[ \t]+|[^\w \t]")


def common_ends(old: str, new: str) -> tuple[int, int]:
    """How many characters two strings share at their start and, beyond that, at their end."""
    head = _shared(old, new)
    room = min(len(old), len(new)) - head
    tail = min(
        room, _shared(old[: -room - 1 : -1] if room else "", new[: -room - 1 : -1] if room else "")
    )
    return head, tail


def _shared(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def word_spans(old: str, new: str) -> tuple[list[Span], list[Span]]:
    """Where two lines differ, word by word: spans of the old one, and of the new one."""
    one, other = WORDS.findall(old), WORDS.findall(new)
    starts, other_starts = starts_of(one), starts_of(other)
    left: list[Span] = []
    right: list[Span] = []
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag != "equal":
            _extend(left, (starts[i], starts[j]))
            _extend(right, (other_starts[k], other_starts[m]))
    return left, right


def starts_of(words: Sequence[str]) -> list[int]:
    """Where each word begins, and where the last one ends."""
    out = [0]
    for word in words:
        out.append(out[-1] + len(word))
    return out


def _extend(spans: list[Span], span: Span) -> None:
    if span[0] == span[1]:
        return
    if spans and spans[-1][1] == span[0]:
        spans[-1] = (spans[-1][0], span[1])
    else:
        spans.append(span)
