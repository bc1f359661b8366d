"""Which vote says something about the packet in the place of its own: each reason by itself."""

from __future__ import annotations

from typing import Any

import pytest

from approvals import carried, seal
from approvals.models import Decision, Packet
from approvals.states import PacketState, Verdict


def packet(pk: int, before: Packet | None = None, **changes: Any) -> Packet:
    """Not saved: superseded, unless said otherwise, and sealed."""
    page = {"tool": "shell", "gate": {"needed": 2, "excluded": [7], **changes.pop("gate", {})}}
    whole, digest = seal.sealed(page)
    facts = {"page": whole, "digest": digest, "state": PacketState.SUPERSEDED, **changes}
    return Packet(pk=pk, number=pk, supersedes=before, **facts)


def vote(on: Packet, **changes: Any) -> Decision:
    return Decision(
        packet=on, **{"verdict": Verdict.APPROVE, "digest": on.digest, "round": 1, **changes}
    )


def row_of(length: int) -> list[Packet]:
    """Packets, each in the place of the one before."""
    made: list[Packet] = []
    for pk in range(1, length + 1):
        made.append(packet(pk, made[-1] if made else None))
    return made


def test_packets_are_looked_for_from_the_latest_back_and_not_for_ever() -> None:
    first, second, third = row_of(3)
    assert list(carried.ancestors(first)) == []
    assert list(carried.ancestors(third)) == [second, first]
    many = row_of(carried.MOST_BACK + 2)
    assert list(carried.ancestors(many[-1])) == many[-2:0:-1]


def test_a_vote_on_the_same_content_counts_from_however_far_back() -> None:
    first = packet(1)
    second = packet(2, first, gate={"needed": 3})
    third = packet(3, second, state=PacketState.OPEN)
    assert carried.why_not_carried(vote(first), third) == ""


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"carried_from_id": 9}, "it was carried over itself"),
        ({"verdict": Verdict.DENY}, "it is no approval"),
        ({"on_behalf_of_id": 9}, "it was given in another’s name"),
        ({"signature": {}}, "a passkey signed the digest of packet 1, not this one"),
        ({"round": 2}, "packet 1 was not superseded with it"),
        ({"digest": "0" * 64}, "it was not given on the page of packet 1"),
    ],
)
def test_a_vote_that_is_no_plain_approval_of_that_page(wrong: dict[str, Any], reason: str) -> None:
    before = packet(1)
    assert carried.why_not_carried(vote(before, **wrong), packet(2, before)) == reason


@pytest.mark.parametrize("state", [each for each in PacketState if each != PacketState.SUPERSEDED])
def test_a_packet_that_ended_in_another_way_leaves_no_votes(state: PacketState) -> None:
    before = packet(1, state=state)
    assert carried.why_not_carried(vote(before), packet(2, before)) == (
        "packet 1 was not superseded with it"
    )


def test_a_packet_that_another_one_took_the_place_of() -> None:
    first, second, third = row_of(3)
    for source, other in ((packet(9), third), (third, second), (second, second)):
        assert carried.why_not_carried(vote(source), other) == (
            f"this packet did not take the place of packet {source.number}"
        )
    assert carried.why_not_carried(vote(first), third) == ""


def test_a_page_that_is_damaged_or_says_something_else() -> None:
    damaged = packet(1)
    damaged.page["tool"] = "another"
    assert carried.why_not_carried(vote(damaged), packet(2, damaged)) == (
        "it was not given on the page of packet 1"
    )
    before = packet(1)
    others: list[dict[str, Any]] = [{"needed": 3}, {"excluded": []}]
    for gate in others:
        assert carried.why_not_carried(vote(before), packet(2, before, gate=gate)) == (
            "this is not the content of packet 1"
        )
    assert carried.why_not_carried(vote(before), packet(2, before, gate={"excluded": [7, 8]})) == ""


def test_where_a_passkey_is_demanded_no_vote_is_carried() -> None:
    gate = {"passkey": "required"}
    before = packet(1, gate=gate)
    assert carried.why_not_carried(vote(before), packet(2, before, gate=gate)) == (
        "a passkey signed the digest of packet 1, not this one"
    )
