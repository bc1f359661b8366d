"""The form of a bundle of evidence: its lines, their kinds, the chains they are in.

`approvals.verify` describes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import IO, Any

from portal.canonical import canonical
from portal.evidence import GENESIS

VERSION = 1
END_TYPE = "application/vnd.imprimatur.bundle-end+json"
STATEMENT_TYPE = "application/vnd.in-toto+json"

# What a line of the audit log says was decided, and the verdict that says so.
VERDICTS = {
    "packet.approved": "approve",
    "packet.denied": "deny",
    "packet.changes_requested": "request_changes",
    "packet.vote_carried": "approve",
}
# What it says of a vote on a superseded packet that counts for the one in its place.
CARRIED = "packet.vote_carried"
SUPERSEDED = "packet.superseded"
# What it says of a packet that ended without a decision.
UNDECIDED = frozenset(
    f"packet.{word}" for word in ("expired", "withdrawn", "cancelled", "superseded")
)
# What it says where an approval that was held is none any more, and votes are given anew.
AGAIN = frozenset({"packet.undone", "packet.hold_ended"})
# What it says of an approval that was held and then took effect.
RELEASED = "packet.released"
# What it says of an approval that is held from now on, and of others who may stand in.
HELD, ESCALATED = "packet.held", "packet.escalated"
# What it says of a packet that is still undecided, and moves on.
MOVES = AGAIN | {RELEASED, HELD, ESCALATED}
# The kind of what stands behind a line of the audit log, by the line's action.
DETAILS = {
    "packet.opened": "packet",
    **dict.fromkeys(VERDICTS, "decision"),
    "candidate.checked": "check",
    "publication.done": "receipt",
}

# No line is longer, however large the page in it; longer ones are not read.
MAX_LINE = 64 * 1024 * 1024
_TAIL = len(',"hash":"') + 64 + len('"}\n')


def framed(kind: str, body: Any) -> bytes:
    """One line of a bundle."""
    written = canonical(body)
    said = hashlib.sha256(written).hexdigest()
    return b'{"%s":%s,"hash":"%s"}\n' % (kind.encode(), written, said.encode())


def taken_apart(line: bytes) -> tuple[str, bytes, str]:
    """Kind, body and hash of a line; the kind is empty if it is none."""
    colon, stop = line.find(b'":', 2, 20), len(line) - _TAIL
    if not line.startswith(b'{"') or not 2 < colon < stop - 2 or not line.endswith(b'"}\n'):
        return "", b"", ""
    if not line.startswith(b',"hash":"', stop):
        return "", b"", ""
    said = line[-67:-3].decode("ascii", "replace")
    return line[2:colon].decode("ascii", "replace"), line[colon + 2 : stop], said


def lines_of(file: IO[bytes]) -> Iterable[bytes]:
    """The lines of a file, none longer than `MAX_LINE`: a longer one comes in pieces, all wrong."""
    return iter(lambda: file.readline(MAX_LINE), b"")


def source_of(decision: Mapping[str, Any]) -> str | None:
    """The packet that a vote is carried over from, as the audit log names it."""
    source = decision.get("carried_from")
    return None if source is None else f"packet:{source}"


def details_of(entry: Mapping[str, Any]) -> str:
    """The kind of the lines that stand behind a line of the audit log, or an empty text."""
    kind = DETAILS.get(str(entry.get("action")), "")
    # A packet that ended by itself was decided by nobody.
    return "" if kind == "decision" and entry.get("actor") is None else kind


@dataclass
class Chain:
    """Where a chain stands."""

    name: str
    seq: int = 0
    hash: str = GENESIS

    def faults(self, body: Mapping[str, Any], said: str) -> Iterable[str]:
        """What is wrong with the next line, and stand behind it."""
        seq, before = body.get("seq"), self.seq
        if type(seq) is not int:
            yield f"a line of the {self.name} has no number"
            return
        if seq == before + 1:
            if body.get("previous") != self.hash:
                yield f"{self.name} {seq} does not follow from {before}: one of them was replaced"
        elif seq > before:
            yield f"{self.name} {span(before + 1, seq - 1)} missing before {seq}"
        else:
            yield f"{self.name} {seq} stands behind {before}: out of order, or twice"
            return
        self.seq, self.hash = seq, said


def span(first: int, last: int) -> str:
    """`5 is`, `5 to 7 are`."""
    return f"{first} is" if first == last else f"{first} to {last} are"
