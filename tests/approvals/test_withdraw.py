"""Whoever asked takes it back: for each kind of packet, and in words of its own for the agent."""

from __future__ import annotations

from functools import partial

import pytest

from approvals import errors
from approvals.models import Packet, Publication
from approvals.opening import open_egress_packet
from approvals.states import PacketState
from approvals.withdraw import withdraw_packet
from portal.errors import BadInput, NotFound
from portal.models import AuditEntry
from runs.models import Event
from runs.network import answer_words
from runs.states import GrantState, RunStatus
from tests.races.crowd import at_once
from tests.runs import test_egress_pages as egress
from tests.visits import Visitor, address_of, text_of
from tests.walk import Walk, call_of, parked_call

WHY = "I named the wrong tracker."


def withdraw(walk: Walk, packet: Packet, reason: str = WHY) -> Packet:
    return withdraw_packet(packet.public_id, member=walk.cast.olu, reason=reason)


def test_inv05_the_agent_hears_that_it_was_withdrawn_and_goes_on(walk: Walk) -> None:
    packet = walk.to_call()
    assert withdraw(walk, packet).state == PacketState.WITHDRAWN
    walk.drain()
    assert call_of(packet).state == "withdrawn"
    assert f"Withdrawn by Olu Adeyemi, who asked for it: {WHY}" in walk.heard(packet.run)
    assert walk.tracker.requests == []
    assert walk.status(packet.run) == RunStatus.IN_REVIEW
    line = AuditEntry.objects.get(action="packet.withdrawn")
    assert (line.actor_id, line.facts["reason"]) == (walk.cast.olu.user_id, WHY)
    assert Event.objects.get(kind="packet.withdrawn").facts["by"] == "Olu Adeyemi"


def test_inv05_a_withdrawn_publication_ends_its_run(walk: Walk) -> None:
    packet = walk.to_review(gate="approvals = 2")
    walk.decide(packet)
    withdraw(walk, packet)
    walk.drain()
    walk.sweep()
    assert walk.fresh(packet).state == PacketState.WITHDRAWN
    assert walk.status(packet.run) == RunStatus.CANCELLED
    assert not Publication.objects.exists()
    with pytest.raises(errors.AlreadySettled):
        walk.decide(packet, walk.cast.bo)


def test_who_may_withdraw_and_with_which_words(walk: Walk) -> None:
    packet = parked_call(walk)
    for member in (walk.cast.ada, walk.cast.max, walk.cast.vic):
        with pytest.raises(errors.NotYours, match="Olu Adeyemi"):
            withdraw_packet(packet.public_id, member=member, reason=WHY)
    with pytest.raises(NotFound):
        withdraw_packet(packet.public_id, member=walk.cast.eve, reason=WHY)
    for reason, refused in (
        ("", errors.NeedsWords),
        ("\u200b", errors.NeedsWords),
        ("a\x00", BadInput),
        ("a" * 2001, errors.WordsTooLong),
    ):
        with pytest.raises(refused):
            withdraw(walk, packet, reason)
    assert call_of(packet).state == "waiting"
    withdraw(walk, packet)
    with pytest.raises(errors.AlreadySettled):
        withdraw(walk, packet)


def test_inv05_a_withdrawn_request_for_network_tells_the_agent_why(walk: Walk) -> None:
    _, lease = egress.at_work(walk)
    grant = egress.asked(walk, lease)
    packet = open_egress_packet(grant.pk)
    assert packet is not None
    withdraw(walk, packet)
    grant.refresh_from_db()
    assert grant.state == GrantState.WITHDRAWN
    words = answer_words(grant, packet.number)
    assert words.startswith("Withdrawn: ")
    assert WHY in words


def test_an_approval_that_is_held_can_be_withdrawn(walk: Walk) -> None:
    walk.hold_policy()
    packet = walk.decide(parked_call(walk))
    assert withdraw(walk, packet).held_until is None
    walk.sweep()
    assert call_of(packet).state == "withdrawn"


@pytest.mark.both_databases
def test_inv03_withdrawing_against_deciding(walk: Walk, database: str) -> None:
    for _ in range(20):
        packet = parked_call(walk)
        withdrawn, decided = at_once(
            [partial(withdraw, walk, packet), partial(walk.decide, packet)]
        )
        state = call_of(packet).state
        if isinstance(withdrawn, Packet):
            assert isinstance(decided, errors.AlreadySettled), decided
            assert state == "withdrawn"
        else:
            assert isinstance(withdrawn, errors.AlreadySettled), withdrawn
            assert state == "approved"


def test_the_page_offers_it_to_whoever_asked_and_to_nobody_else(walk: Walk) -> None:
    packet, olu, ada = parked_call(walk), Visitor(walk.cast.olu), Visitor(walk.cast.ada)
    action = address_of(packet, "withdraw")
    assert action in text_of(olu.get(address_of(packet)))
    assert action not in text_of(ada.get(address_of(packet)))
    assert ada.post(action, reason=WHY).status_code == 403
    assert olu.post(action, reason=" ").status_code == 422
    assert olu.post(action, reason=WHY).status_code == 302
    for visitor in (olu, ada):
        page = text_of(visitor.get(address_of(packet)))
        assert "who asked for it, took it back" in page
        assert WHY in page
        assert action not in page
