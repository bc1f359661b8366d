"""Scenarios E: what a deadline means."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from approvals import closing, deciding, opening, publishing
from approvals.models import Decision
from approvals.states import PacketState, PublicationState
from portal import signin
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


@pytest.mark.both_databases
@pytest.mark.parametrize("minutes", [-10, 10])
def test_E03_a_machine_whose_clock_is_wrong(
    walk: Walk, monkeypatch: pytest.MonkeyPatch, database: str, minutes: int
) -> None:
    """Deadlines are the database's. SQLite has no other clock than its machine's."""
    true_now, skew = timezone.now, timedelta(minutes=minutes)
    monkeypatch.setattr(timezone, "now", lambda: true_now() + skew)
    here = true_now() + (skew if database == "sqlite" else timedelta())

    packet = walk.to_call(gate="expires_minutes = 5")
    assert abs(packet.expires_at - here - timedelta(minutes=5)) < timedelta(minutes=1)
    for page in ("/t/acme/queue/", "/t/acme/runs/", address_of(packet)):
        assert not re.search(r">\s*[-−]\d", text_of(Visitor(walk.cast.ada).get(page))), page
    assert Visitor(walk.cast.ada).decide(packet).status_code == 302
    walk.drain()
    review = walk.open_packet(packet.run)
    walk.decide(review)
    walk.drain()
    assert walk.status(packet.run) == RunStatus.PUBLISHED
    settled = walk.fresh(review)
    assert settled.settled_at is not None
    assert settled.opened_at <= settled.settled_at

    late = walk.to_call(gate="expires_minutes = 5")
    # Five minutes have gone by, on the database's clock alone.
    late.opened_at, late.expires_at = here - timedelta(minutes=6), here - timedelta(seconds=1)
    late.save(update_fields=["opened_at", "expires_at"])
    assert Visitor(walk.cast.ada).decide(late).status_code == 409
    walk.sweep()
    closed = walk.fresh(late)
    assert (closed.state, closed.opened_at <= (closed.settled_at or closed.opened_at)) == (
        PacketState.EXPIRED,
        True,
    )
    assert abs((closed.settled_at or here) - here) < timedelta(minutes=1)


@pytest.mark.both_databases
@pytest.mark.parametrize("minutes", [-10, 10])
def test_E03_a_link_to_sign_in_lasts_as_long_on_every_machine(
    walk: Walk, monkeypatch: pytest.MonkeyPatch, database: str, minutes: int
) -> None:
    link = signin.make_link(walk.cast.ada.user)
    if database == "postgres":
        true_now = timezone.now
        monkeypatch.setattr(timezone, "now", lambda: true_now() + timedelta(minutes=minutes * 60))
    assert Visitor().get(link).status_code == 200
