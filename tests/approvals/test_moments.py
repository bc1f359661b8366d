"""To the microsecond: when a packet can be decided, and when its approval can be used."""

from __future__ import annotations

from datetime import timedelta

import pytest

from approvals import errors, uses
from approvals.closing import expire_packet
from approvals.states import PacketKind, PacketState
from portal.clock import database_now
from tests.acceptance.vectors.stage import Clock
from tests.walk import Walk, parked_call

MOMENT = timedelta(microseconds=1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The database's clock, to be set."""
    made = Clock(database_now())
    made.install(monkeypatch)
    return made


def test_a_packet_is_decided_before_its_end_and_expires_at_it(walk: Walk, clock: Clock) -> None:
    packet, other = parked_call(walk), parked_call(walk)

    clock.now = packet.expires_at - MOMENT
    assert not expire_packet(packet.pk)
    assert walk.decide(packet).state == PacketState.APPROVED

    clock.now = other.expires_at
    with pytest.raises(errors.PacketExpired):
        walk.decide(other)
    assert expire_packet(other.pk)
    assert walk.fresh(other).state == PacketState.EXPIRED
    assert not expire_packet(other.pk)


def test_an_approval_is_used_from_its_moment_to_its_end(walk: Walk, clock: Clock) -> None:
    packet = walk.decide(parked_call(walk))
    approved, end = packet.settled_at, packet.usable_until
    assert approved is not None
    assert end is not None

    def why(moment: object, **named: bool) -> str:
        void = uses.why_void(packet, PacketKind.CALL, moment, **named)  # type: ignore[arg-type]
        return void.why if void is not None else ""

    assert [why(approved - MOMENT), why(approved)] == ["before_approval", ""]
    assert [why(end - MOMENT), why(end)] == ["", "approval_ran_out"]
    assert why(end, in_time=False) == ""

    uses.use_up(packet, approved)
    assert walk.fresh(packet).used_at == approved
    assert [why(approved), why(approved, unused=False)] == ["used_already", ""]


def test_an_approval_is_for_an_act_of_its_own_kind(walk: Walk) -> None:
    packet = walk.decide(parked_call(walk))
    assert packet.settled_at is not None
    for kind in PacketKind:
        void = uses.why_void(packet, kind, packet.settled_at)
        assert (void.why if void else "") == ("" if kind is PacketKind.CALL else "other_kind")
