"""Whether a vote that a packet carries over from an earlier one rightly counts for it.

Asked when it is carried, when others vote, and where the approval is used: a row that somebody
wrote into the table carries nothing. What may be carried is said in `approvals.carrying`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from approvals import carry, seal, signing
from approvals.models import Decision, Packet
from approvals.states import PacketState, Verdict

MOST_BACK = 50
"""So many packets back a vote is looked for; whoever edits more often begins anew."""


def ancestors(packet: Packet) -> Iterator[Packet]:
    """The packets whose place this one took, the latest first."""
    before = packet.supersedes
    for _ in range(MOST_BACK):
        if before is None:
            return
        yield before
        before = before.supersedes


def replaced(packet: Packet) -> Iterator[Packet]:
    """Those of them that nobody decided: each was superseded by the next, and the last by this one.

    What was approved, even in vain, ends it: the votes before it are spent.
    """
    for before in ancestors(packet):
        if before.state != PacketState.SUPERSEDED:
            return
        yield before


def why_not_carried(source: Decision, packet: Packet) -> str:
    """Why a vote says nothing about `packet`, as the end of a sentence; empty if it does."""
    before = source.packet
    if source.carried_from_id is not None:
        return "it was carried over itself"
    if source.verdict != Verdict.APPROVE:
        return "it is no approval"
    if source.on_behalf_of_id is not None:
        return "it was given in another’s name"
    if source.signature is not None or signing.is_demanded(packet):
        return f"a passkey signed the digest of packet {before.number}, not this one"
    if before.state != PacketState.SUPERSEDED or source.round != before.round:
        return f"packet {before.number} was not superseded with it"
    if all(each.pk != before.pk for each in replaced(packet)):
        return f"this packet did not take the place of packet {before.number}"
    if seal.fault(before.page, before.digest) or source.digest != before.digest:
        return f"it was not given on the page of packet {before.number}"
    if not carry.same(before.page, packet.page):
        return f"this is not the content of packet {before.number}"
    return ""


def faults(
    packet: Packet, votes: Iterable[Decision] | None = None
) -> Iterator[tuple[Decision, str]]:
    """Approvals of a packet that were given on another page and are not rightly carried over.

    `votes` are its answers that count, where the caller has read them, or they are read here.
    """
    for vote in packet.answers() if votes is None else votes:
        if vote.verdict != Verdict.APPROVE:
            continue
        source = vote.carried_from
        if source is None:
            if vote.digest != packet.digest:
                yield vote, "it was made on another page"
        elif (vote.person_id, vote.digest) != (source.person_id, source.digest):
            yield vote, "it is not the vote that it says it repeats"
        elif vote.signature is not None:
            yield vote, "a vote that is carried over has no signature of its own"
        elif vote.on_behalf_of_id is not None:
            yield vote, "a vote that is carried over is its person's own"
        elif why := why_not_carried(source, packet):
            yield vote, why
