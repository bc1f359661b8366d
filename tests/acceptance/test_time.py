"""Scenarios E: what a deadline means."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from approvals import closing, deciding, opening, publishing
from approvals.models import Decision
from approvals.states import PacketState, PublicationState
from runs import lifecycle
from runs.states import CallState, RunStatus
from tests.visits import Visitor, address_of, field_of, text_of
from tests.walk import Walk, call_of, parked_call, publication_packets

SECOND = timedelta(seconds=1)


def at(monkeypatch: pytest.MonkeyPatch, moment: datetime) -> None:
    """The database's clock shows this moment."""
    for module in (opening, deciding, closing, publishing, lifecycle):
        monkeypatch.setattr(module, "database_now", lambda: moment)


def test_E01_an_expired_packet_is_approved_before_the_sweep_saw_it(walk: Walk) -> None:
    packet = walk.run_out(walk.to_review())

    answer = Visitor(walk.cast.ada).decide(packet)

    assert answer.status_code == 409
    assert "ran out" in text_of(answer)
    assert walk.fresh(packet).state == PacketState.OPEN  # the sweep's word is not needed
    assert not Decision.objects.exists()
    walk.sweep()
    assert walk.fresh(packet).state == PacketState.EXPIRED
    assert walk.branches() == ["main"]


def test_E02_a_publication_is_approved_in_time_and_carried_out_too_late(walk: Walk) -> None:
    publication = walk.to_publish()
    packet = publication.packet
    packet.usable_until = packet.settled_at
    packet.save(update_fields=["usable_until"])

    walk.drain()

    assert walk.branches() == ["main"]
    assert walk.fresh(publication).error_code == "publication.approval_ran_out"
    old, new = publication_packets(publication.run)
    assert (old.state, new.state) == (PacketState.APPROVED, PacketState.OPEN)
    walk.decide(new)
    walk.drain()
    assert walk.status(publication.run) == RunStatus.PUBLISHED


def test_E02_a_call_is_approved_in_time_and_made_too_late(walk: Walk) -> None:
    packet = walk.to_call()
    walk.decide(packet)
    asked = call_of(packet)
    asked.usable_until = walk.fresh(packet).settled_at
    asked.save(update_fields=["usable_until"])

    walk.drain()

    assert walk.tracker.requests == []
    assert call_of(packet).state == CallState.EXPIRED
    assert "the approval was not used in time" in walk.heard(packet.run)


@pytest.mark.parametrize(("seconds", "accepted"), [(-1, True), (0, False), (1, False)])
def test_E06_exactly_at_the_deadline_of_a_packet(
    walk: Walk, monkeypatch: pytest.MonkeyPatch, seconds: int, accepted: bool
) -> None:
    packet = parked_call(walk)
    at(monkeypatch, packet.expires_at + seconds * SECOND)

    answer = Visitor(walk.cast.ada).decide(packet)

    assert (answer.status_code == 302) is accepted
    assert (walk.fresh(packet).state == PacketState.APPROVED) is accepted


@pytest.mark.parametrize(("seconds", "accepted"), [(-1, True), (0, False), (1, False)])
def test_E06_exactly_at_the_end_of_an_approval(
    walk: Walk, monkeypatch: pytest.MonkeyPatch, seconds: int, accepted: bool
) -> None:
    publication = walk.to_publish()
    until = publication.packet.usable_until
    assert until is not None
    at(monkeypatch, until + seconds * SECOND)

    walk.drain()

    assert (walk.fresh(publication).state == PublicationState.DONE) is accepted
    assert (len(walk.branches()) == 2) is accepted


def test_BUG27_the_buttons_go_off_by_themselves(walk: Walk) -> None:
    packet = parked_call(walk)
    ada = Visitor(walk.cast.ada)
    before = ada.get(address_of(packet))
    assert field_of(before, "seen") == packet.digest
    assert f'data-until="{packet.expires_at.isoformat()}"' in text_of(before) or (
        "data-expires" in text_of(before) or "datetime=" in text_of(before)
    )

    walk.run_out(packet)

    for page in (ada.get(address_of(packet)), ada.get(address_of(packet, "state"), htmx=True)):
        assert field_of(page, "seen") is None
        assert "time to decide is over" in text_of(page)
    assert ada.decide(packet).status_code == 409
