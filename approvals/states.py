"""The statuses of packet and publication, and the moves between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class PacketKind(StrEnum):
    """What a packet asks for."""

    CALL = "call"  # one tool call of a running agent
    QUESTION = "question"  # the agent asks a person something
    EGRESS = "egress"  # one network rule for a run that goes on meanwhile
    RESUME = "resume"  # a run may go on although something it stands on changed
    PUBLICATION = "publication"  # let a candidate out


KIND_WORDS: Mapping[str, str] = {
    PacketKind.CALL.value: "Tool call",
    PacketKind.QUESTION.value: "Question",
    PacketKind.EGRESS.value: "Network",
    PacketKind.RESUME.value: "Going on",
    PacketKind.PUBLICATION.value: "Publication",
}
"""As people read them."""


class PacketState(StrEnum):
    """Where a packet stands. The ends are different words on purpose."""

    OPEN = "open"
    APPROVED = "approved"
    DENIED = "denied"
    CHANGES_REQUESTED = "changes_requested"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"


class Verdict(StrEnum):
    """One person's answer."""

    APPROVE = "approve"
    DENY = "deny"
    REQUEST_CHANGES = "request_changes"


class PublicationState(StrEnum):
    """Where a publication stands."""

    INTENDED = "intended"
    ACTING = "acting"
    DONE = "done"
    UNKNOWN = "unknown"
    FAILED = "failed"


def after(state: PacketState, verdict: Verdict, *, reached: bool) -> PacketState | None:
    """The state after one more answer, or None where no answer is possible any more.

    `reached`: those who approved, this answer included, are enough.
    """
    if state is not PacketState.OPEN:
        return None
    if verdict is Verdict.DENY:
        return PacketState.DENIED
    if verdict is Verdict.REQUEST_CHANGES:
        return PacketState.CHANGES_REQUESTED
    return PacketState.APPROVED if reached else PacketState.OPEN
