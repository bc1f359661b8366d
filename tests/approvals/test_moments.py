"""To the microsecond: when a packet can be decided, and when its approval can be used."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from approvals import errors, uses
from approvals.closing import expire_packet
from approvals.deciding import Answer, still_decidable
from approvals.models import Packet
from approvals.states import PacketKind, PacketState, Verdict
from portal.clock import database_now
from portal.errors import Refusal
from portal.roles import Role
from runs import lifecycle
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


def test_each_thing_that_stands_against_an_answer_has_its_own_name(walk: Walk) -> None:
    packet = parked_call(walk)
    page, now = packet.page, packet.opened_at

    def why(
        verdict: Verdict = Verdict.APPROVE, seen: str = "", at: datetime = now, **changes: Any
    ) -> type[Refusal] | None:
        row = Packet.objects.select_related("run").get(pk=packet.pk)
        for name, value in changes.items():
            setattr(row, name, value)
        try:
            still_decidable(row, Answer(verdict, seen or row.digest), row.run, at)
        except Refusal as refusal:
            return type(refusal)
        return None

    assert why() is None
    for state in PacketState:
        expected = None if state is PacketState.OPEN else errors.AlreadySettled
        assert why(state=state.value) is expected
    assert why(held_until=now) is errors.PacketHeld
    assert why(at=packet.expires_at - MOMENT) is None
    assert why(at=packet.expires_at) is errors.PacketExpired
    assert why(seen="0" * 64) is errors.PacketChanged
    assert why(page={**page, "tool": "another"}) is errors.PacketDamaged
    assert why(page={**page, "shape": 99}) is errors.PacketOfOtherShape
    without = {name: each for name, each in page.items() if name != "shape"}
    assert why(page=without) is errors.PacketWithoutShape
    # Whatever is wrong with it, it can be held back.
    assert why(Verdict.DENY, page=without) is None
    lifecycle.ask_cancel(packet.run, member=walk.cast.olu)
    assert why() is errors.RunOver


def test_whoever_comes_too_late_is_told_who_came_last(walk: Walk) -> None:
    third = walk.cast.member("Cy Third", [Role.PUBLISHER])
    packet = walk.to_review(gate="approvals = 2")
    walk.decide(packet, walk.cast.ada)
    walk.decide(packet, walk.cast.bo, Verdict.DENY)
    with pytest.raises(errors.AlreadySettled, match="denied by Bo Lindqvist"):
        walk.decide(packet, third)


def test_each_thing_that_voids_an_approval_has_its_own_name(walk: Walk) -> None:
    packet = walk.decide(parked_call(walk))
    page, now = packet.page, packet.settled_at
    assert now is not None

    def why(**changes: Any) -> str:
        row = Packet.objects.get(pk=packet.pk)
        for name, value in changes.items():
            setattr(row, name, value)
        void = uses.why_void(row, PacketKind.CALL, now)
        return void.why if void is not None else ""

    assert why() == ""
    for state in PacketState:
        expected = "" if state is PacketState.APPROVED else "not_approved"
        assert why(state=state.value) == expected
    without = {name: each for name, each in page.items() if name != "shape"}
    assert why(page=without) == "shape_missing"
    assert why(page={**page, "shape": 99}) == "shape_unknown"
    assert why(page={**page, "tool": "another"}) == "page_changed"
    assert why(used_at=now) == "used_already"
    assert why(settled_at=None) == "before_approval"
    assert why(usable_until=None) == "approval_ran_out"


def test_a_row_that_says_longer_than_its_page_does_not_make_it_longer(walk: Walk) -> None:
    packet = walk.decide(parked_call(walk))
    assert packet.usable_until is not None
    assert packet.settled_at is not None
    end = packet.usable_until
    packet.usable_until += timedelta(days=365)
    assert uses.why_void(packet, PacketKind.CALL, end - MOMENT) is None
    void = uses.why_void(packet, PacketKind.CALL, end)
    assert void is not None
    assert void.why == "approval_ran_out"
