"""Chains of evidence as anybody can check them: from their lines alone.

A line's hash is the SHA-256 of its RFC 8785 JSON without the member `hash`, and `previous` is the
hash of the line before it, or 64 zeros. Checkpoints say, signed, where a chain was at some time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from portal.canonical import digest

GENESIS = "0" * 64
# The media type of a checkpoint.
CHECKPOINT_TYPE = "application/vnd.imprimatur.checkpoint+json"
# The number and the hash of a chain's last line.
End = tuple[int, str]


@dataclass(frozen=True)
class Line:
    """One line of a chain: all that its hash covers, and the hash."""

    body: Mapping[str, Any]
    hash: str

    def follows(self, end: End) -> bool:
        """Whether this is the unchanged next line of a chain that ended there."""
        seq, last = end
        if (self.body.get("seq"), self.body.get("previous")) != (seq + 1, last):
            return False
        try:
            return self.hash == digest(self.body)
        except ValueError:
            return False


def broken_at(lines: Iterable[Line], end: Callable[[], End]) -> int | None:
    """The number of the first line that does not fit, is missing or is one too many, or None.

    `end` says where the chain ends by now. It is asked before and after the lines are read: those
    that come meanwhile are none too many, and must fit as well.
    """
    known_seq, known_hash = end()
    seq, last = 0, GENESIS
    for line in lines:
        changed = seq + 1 == known_seq and line.hash != known_hash
        if changed or not line.follows((seq, last)):
            return seq + 1
        seq, last = seq + 1, line.hash
    if seq < known_seq:
        return seq + 1
    return end()[0] + 1 if seq > end()[0] else None
