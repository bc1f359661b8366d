"""Votes on a packet that was superseded: carried over where nothing changed, else void in words.

A vote is carried to the packet that took the place of the one it was given on, where both have the
same canonical content (`approvals.carry`). It is a decision of its own that names the one it
repeats, and it keeps the digest that its person read. Never carried are:

- votes on a packet that ended in another way than superseded: somebody decided, or time did;
- votes from before such a packet: they were spent on it, even where it was approved in vain;
- votes of an earlier round: the approval that they were was undone;
- signed votes: what a passkey signed names the other digest and packet, so it does not bind;
- votes in another's name: what was handed over may be over, or be for other packets;
- votes of whoever may not approve the new packet, or does not count any more;
- all of them, where they would be enough: opening a packet never approves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from approvals import carry, signing
from approvals.carried import ancestors, replaced, why_not_carried
from approvals.counting import People, quorum_of
from approvals.models import Candidate, Decision, Packet
from approvals.patch import PatchRefused, parse_patch
from approvals.states import PacketState, Verdict
from portal import audit, blobs
from runs.lifecycle import Draft, append_events, run_facts
from runs.models import Run


@dataclass(frozen=True)
class Void:
    """Votes on an earlier packet that count for nothing here, and why."""

    packet: Packet
    votes: int
    why: str


def carry_votes(packet: Packet, run: Run) -> list[Decision]:
    """Carry votes to a packet that was opened just now, in the caller's transaction."""
    found: dict[int, Decision] = {}
    for before in replaced(packet):
        if carry.same(before.page, packet.page):
            for vote in _given(before):
                found.setdefault(vote.person_id, vote)
    if not found:
        return []
    people = People.of(packet.tenant).voters(packet.kind, packet.excluded)
    counting = {person: people[person] for person in found if person in people}
    if quorum_of(packet).reached(counting):
        return []
    return [
        _carry(found[person], packet, run)
        for person in counting
        if not why_not_carried(found[person], packet)
    ]


def settle_votes(packet: Packet, run: Run) -> None:
    """Carry over what can be, and say of the other votes on earlier packets why they are void.

    For a packet that was opened just now, in the caller's transaction.
    """
    carry_votes(packet, run)
    for each in void_votes(packet, diffs=False)[:1]:
        told = {"packet": packet.number, "approval": packet.digest, "from": each.packet.number}
        told |= {"votes": each.votes, "reason": each.why}
        append_events(run, [Draft("packet.votes_void", run_facts(run) | told)])


def _given(packet: Packet) -> Iterator[Decision]:
    """Votes that were given on this very page, by people who read it and in their own name."""
    votes = packet.votes().filter(
        verdict=Verdict.APPROVE,
        carried_from=None,
        on_behalf_of=None,
        digest=packet.digest,
        signature__isnull=True,
    )
    yield from votes.select_related("person", "packet").order_by("decided_at", "pk")


def _carry(vote: Decision, packet: Packet, run: Run) -> Decision:
    carried = Decision.objects.create(
        tenant=packet.tenant,
        packet=packet,
        person=vote.person,
        verdict=vote.verdict,
        digest=vote.digest,
        round=packet.round,
        comment=vote.comment,
        self_approved=vote.self_approved,
        carried_from=vote,
        decided_at=vote.decided_at,
    )
    told = {"from": vote.packet.number, "became": packet.digest}
    facts = {"packet": packet.number, "approval": vote.digest, "by": vote.person.name} | told
    append_events(run, [Draft("packet.vote_carried", run_facts(run) | facts)])
    # Of the person whose vote it is, as the line of that vote was.
    audit.record(
        "packet.vote_carried",
        tenant=packet.tenant,
        subject=packet,
        actor=vote.person,
        digest=vote.digest,
        result=PacketState.OPEN.value,
        comment=vote.comment[:2000],
        round=packet.round,
        self_approved=vote.self_approved,
        source=f"packet:{vote.packet_id}",
        **told,
    )
    return carried


# --- In words -------------------------------------------------------------------------------------


def void_votes(packet: Packet, *, diffs: bool = True) -> list[Void]:
    """Of each packet whose place this one took and that had votes: how many are void, and why.

    Without `diffs` no diff is read, and a candidate is told by its number.
    """
    if packet.supersedes_id is None:
        return []
    there = set(packet.decisions.values_list("carried_from", flat=True))
    found = []
    for before in ancestors(packet):
        given = [
            each for each in _approvals(before) if each.pk not in there and not each.carried_from_id
        ]
        if given:
            found.append(Void(before, len(given), why_void(before, packet, diffs=diffs)))
    return found


def fates(packet: Packet) -> dict[int, str]:
    """Of the votes on a packet that another took the place of: what became of each, by its key."""
    if packet.state != PacketState.SUPERSEDED:
        return {}
    after = packet.successors.order_by("number").first()
    if after is None:
        return {}
    votes = _approvals(packet)
    carried = Decision.objects.filter(carried_from__in=votes).order_by("pk")
    where = dict(carried.values_list("carried_from", "packet__number"))
    if all(each.pk in where for each in votes):
        why = ""
    else:
        why = f"on packet {after.number}: {why_void(packet, after)}"
    return {
        each.pk: f"here; carried over to packet {where[each.pk]}" if each.pk in where else why
        for each in votes
    }


def _approvals(packet: Packet) -> list[Decision]:
    return list(packet.votes().filter(verdict=Verdict.APPROVE))


def why_void(before: Packet, after: Packet, *, diffs: bool = True) -> str:
    """Why votes on an earlier packet count for nothing on a later one, computed from both pages."""
    hunks = hunks_between(before, after) if diffs else ""
    parts = carry.differences(before.page, after.page, hunks)
    if parts:
        return carry.in_one(parts)
    for each in ancestors(after):
        if each.state != PacketState.SUPERSEDED:
            return f"packet {each.number} ended: {each.state.replace('_', ' ')}"
        if each.pk == before.pk:
            break
    if signing.is_demanded(after):
        return f"passkeys signed the digest of packet {before.number}, and this is another one"
    if not carry.same(before.page, after.page):
        return "fewer people are excluded"
    return (
        "their people do not count here, they were given in another’s name, or they alone would "
        "have been enough"
    )


def hunks_between(before: Packet, after: Packet) -> str:
    """What is different in the diffs of two candidates; empty where one cannot be read."""
    old, new = before.candidate, after.candidate
    if old is None or new is None or old.digest == new.digest:
        return ""
    try:
        return carry.changed_hunks(_hunks(old), _hunks(new))
    except (PatchRefused, blobs.BlobDamaged, OSError, ValueError):
        return ""


def _hunks(candidate: Candidate) -> dict[tuple[str, bytes], int]:
    found: dict[tuple[str, bytes], int] = {}
    for file in parse_patch(blobs.get(candidate.tenant_id, candidate.patch_blob)):
        path = (file.new_path or file.old_path or b"").decode("utf-8", "replace")
        for hunk in file.hunks:
            key = path, b"\n".join(hunk.lines)
            found[key] = found.get(key, 0) + 1
    return found
