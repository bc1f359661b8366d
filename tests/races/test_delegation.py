"""Deciding in a name while it is taken back, or while the other decides: one voice, one truth."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from approvals import delegation, errors
from approvals.delegation import NotInTheirName, VoiceUsed
from approvals.models import Decision, Packet
from approvals.states import PacketState
from portal import people
from portal.models import AuditEntry
from portal.roles import Role
from tests.approvals.stages import in_force, rule, staged
from tests.approvals.test_delegation import decide, handed
from tests.races.crowd import at_once
from tests.walk import Walk, parked_call

pytestmark = pytest.mark.both_databases
REPEATS = 8


def waiting(walk: Walk) -> Packet:
    packet = parked_call(walk)
    walk.lose_hops()
    return packet


@pytest.mark.parametrize("how", ["ended", "role"])
def test_revoking_against_deciding(walk: Walk, database: str, how: str) -> None:
    """Whichever came first in the log is what holds."""
    cast = walk.cast
    ria = cast.member("Ria Reviewer", [Role.REVIEWER])
    for _ in range(REPEATS):
        given, packet = handed(cast.bo, ria), waiting(walk)
        ends: dict[str, Callable[[], object]] = {
            "ended": partial(delegation.end, given.pk, member=cast.bo),
            "role": partial(people.set_roles, cast.bo.pk, [Role.VIEWER], member=cast.max),
        }
        decided, ended = at_once([partial(decide, packet, ria, cast.bo), ends[how]])
        assert not isinstance(ended, Exception), ended
        log = AuditEntry.objects.filter(tenant=cast.acme)
        over = log.filter(action="delegation.ended").latest("seq")
        vote = log.filter(action="packet.approved", subject=f"packet:{packet.pk}").first()
        if isinstance(decided, Packet):
            assert vote is not None
            assert vote.seq < over.seq
            assert walk.fresh(packet).state == PacketState.APPROVED
        else:
            assert isinstance(decided, NotInTheirName), decided
            assert vote is None
            assert walk.fresh(packet).state == PacketState.OPEN
        people.set_roles(cast.bo.pk, [Role.REVIEWER, Role.PUBLISHER], member=cast.max)
        walk.lose_hops()


def test_two_delegates_of_one_giver(walk: Walk, database: str) -> None:
    cast = walk.cast
    staged(walk)
    in_force(walk, rule('@needs("2")'))
    names = ("Tina Taker", "Tom Taker", "Tess Taker")
    takers = [cast.member(name, [Role.REVIEWER]) for name in names]
    for taker in takers:
        handed(cast.ada, taker)
    for _ in range(REPEATS):
        packet = waiting_for_two(walk)
        outcomes = at_once([partial(decide, packet, taker, cast.ada) for taker in takers])
        refused = [each for each in outcomes if isinstance(each, VoiceUsed)]
        assert len(refused) == len(takers) - 1, outcomes
        assert Decision.objects.filter(packet=packet).count() == 1
        assert walk.fresh(packet).state == PacketState.OPEN


def test_delegate_and_giver(walk: Walk, database: str) -> None:
    cast = walk.cast
    staged(walk)
    in_force(walk, rule('@needs("2")'))
    handed(cast.ada, cast.bo)
    for _ in range(REPEATS):
        packet = waiting_for_two(walk)
        outcomes = at_once(
            [
                partial(decide, packet, cast.ada),
                partial(decide, packet, cast.bo, cast.ada),
            ]
        )
        refused = [each for each in outcomes if isinstance(each, VoiceUsed | errors.AlreadyDecided)]
        assert len(refused) == 1, outcomes
        assert Decision.objects.filter(packet=packet).count() == 1
        assert walk.fresh(packet).state == PacketState.OPEN


def waiting_for_two(walk: Walk) -> Packet:
    packet = walk.to_call()
    walk.lose_hops()
    return packet
