"""Decide several packets at once: only ones of the same shape, whose rules call their risk low.

Nothing here decides by itself. Each packet is settled by `settle_packet`, on the digest that the
page named, in a transaction of its own: a refusal of one is that one's, and the same answers sent
again are the same decisions.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from approvals import canary, confirm, demands, signing
from approvals.deciding import Answer, settle_packet
from approvals.models import Packet
from approvals.seal import intact
from approvals.standing import standing_of
from approvals.states import PacketKind, PacketState, Verdict
from portal.errors import BadInput, Refusal
from portal.models import Membership

LIMIT = 50
"""So many at once: as many as one page of the queue shows."""


@dataclass(frozen=True)
class Picked:
    """One of the packets that were picked, and why it is not among those decided together."""

    packet: Packet
    why: str = ""


@dataclass(frozen=True)
class Wanted:
    """One packet and the digest it was shown with."""

    packet: uuid.UUID
    digest: str


@dataclass(frozen=True)
class Result:
    """What came of one of them. `why` says why nothing was decided on it.

    `told` is what else there is to know: that more people are needed, that it can be undone, or
    that it was a test of attention.
    """

    packet: Packet
    digest: str
    why: str = ""
    told: str = ""


def shape_of(packet: Packet) -> tuple[Any, ...]:
    """What packets have in common that are decided together."""
    page = packet.page
    return (
        packet.kind,
        page.get("tool"),
        tuple(sorted(page.get("policy", {}).get("rules", ()))),
        tuple(sorted(page.get("arguments", {}))),
        page.get("target") if packet.kind == PacketKind.PUBLICATION else None,
    )


def why_alone(packet: Packet, member: Membership) -> str:
    """Why a packet is decided on its own page only; or nothing."""
    gate = packet.page.get("gate", {})
    if packet.state != PacketState.OPEN:
        return f"It is {packet.state.replace('_', ' ')} already."
    if packet.held_until is not None:
        return "It is approved already, and can be undone."
    if packet.kind == PacketKind.QUESTION:
        return "A question wants an answer of its own."
    if signing.is_demanded(packet):
        return "Approving it takes a passkey."
    if gate.get("stages"):
        return "Its rules demand stages."
    if (risk := demands.risk_of(gate)) != "low":
        return f"Its rules do not call its risk low: it is {risk}."
    if packet.blocked:
        return f"It cannot be approved: {packet.blocked}."
    if confirm.typed_word(packet):
        return "Something in it must be seen, and said to be."
    if not intact(packet.page, packet.digest):
        return "Its page no longer fits its digest."
    standing = standing_of(packet, member)
    return "" if standing.may_approve else standing.words


def picked_by(member: Membership, ids: Sequence[uuid.UUID]) -> list[Picked]:
    """These packets of the member's tenant in the order picked, each once.

    The first that can be decided with others says which shape; the rest must have the same.
    Raises `BadInput` for more than `LIMIT`.
    """
    if len(ids) > LIMIT:
        raise BadInput(
            reason=f"{len(ids)} packets were picked; {LIMIT} can be decided at once. Pick fewer."
        )
    found = _packets(member, ids)
    shape: tuple[Any, ...] | None = None
    picked = []
    for packet in (found[each] for each in dict.fromkeys(ids) if each in found):
        why = why_alone(packet, member)
        if not why:
            shape = shape_of(packet) if shape is None else shape
            if shape_of(packet) != shape:
                why = "It is of another shape than the first one."
        picked.append(Picked(packet, why))
    return picked


def _packets(member: Membership, ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, Packet]:
    packets = Packet.objects.filter(tenant=member.tenant, public_id__in=set(ids))
    rows = packets.select_related("tenant", "candidate", "run").prefetch_related(
        "candidate__receipts"
    )
    return {packet.public_id: packet for packet in rows}


def settle_all(
    wanted: Sequence[Wanted], verdict: Verdict, *, comment: str, token: str, member: Membership
) -> list[Result]:
    """Give the same answer to each of them, and say of each what came of it.

    What was seen together is looked at again as sealed: a packet that is not low in risk, or not of
    the shape of the first, is refused here whatever the page showed.
    """
    if len(wanted) > LIMIT:
        raise BadInput(reason=f"{LIMIT} packets can be decided at once. Nothing was decided.")
    if verdict is Verdict.REQUEST_CHANGES:
        raise BadInput(reason="Changes are requested of one packet at a time. Nothing was decided.")
    found = _packets(member, [each.packet for each in wanted])
    shape: tuple[Any, ...] | None = None
    results, done = [], set()
    for each in wanted:
        packet = found.get(each.packet)
        if packet is None or each.packet in done:
            continue
        done.add(each.packet)
        why = _sealed_alone(packet)
        if not why:
            shape = shape_of(packet) if shape is None else shape
            if shape_of(packet) != shape:
                why = "It is of another shape than the first one. Decide it on its own page."
        if why:
            results.append(Result(packet, each.digest, why))
            continue
        answer = Answer(verdict=verdict, seen=each.digest, comment=comment, token=token)
        results.append(_settled(packet, answer, member))
    return results


def _sealed_alone(packet: Packet) -> str:
    """Why a packet may never be decided with others, from what it seals alone."""
    gate = packet.page.get("gate", {})
    if demands.risk_of(gate) != "low" or gate.get("stages") or signing.is_demanded(packet):
        return "It is not of the kind that is decided with others. Decide it on its own page."
    return ""


def _settled(packet: Packet, answer: Answer, member: Membership) -> Result:
    try:
        settled = settle_packet(packet.public_id, answer, member=member).packet
    except Refusal as refusal:
        return Result(packet, answer.seen, str(refusal))
    if settled.held_until is not None:
        told = "Until it takes effect it can be undone."
    elif settled.state == PacketState.OPEN:
        told = "Your answer counts. More are needed."
    else:
        told = canary.words(settled, settled.decisions.all(), member.user_id)
    return Result(packet, answer.seen, told=told)
