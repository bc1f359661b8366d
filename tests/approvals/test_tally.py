"""A bundle shows whether those who approved a packet were enough, and may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from django.utils import timezone

from approvals import bundle, errors
from approvals.models import Decision, Packet
from approvals.tally import Tally
from approvals.undo import release_packet
from approvals.verifier import verified
from portal import audit
from portal.dsse import key_id
from portal.models import Membership
from portal.signing import signing_key
from tests.approvals.stages import in_force, rule, staged
from tests.walk import Walk

pytestmark = pytest.mark.django_db(transaction=True)


def problems(walk: Walk) -> str:
    keys = [key_id(signing_key().public_key())]
    report = verified(bundle.exported(walk.cast.acme), keys)
    return "\n".join(map(str, report.problems))


def write(packet: Packet, member: Membership, result: str, **facts: Any) -> None:
    """An approval that nobody gave: written into the table, and told in the log."""
    Decision.objects.create(
        tenant=packet.tenant,
        packet=packet,
        person=member.user,
        verdict="approve",
        digest=packet.digest,
        decided_at=timezone.now(),
    )
    audit.record(
        "packet.approved",
        tenant=packet.tenant,
        subject=packet,
        actor=member.user,
        digest=packet.digest,
        result=result,
        comment="",
        self_approved=False,
        **facts,
    )


def test_inv14_a_bundle_of_stages_and_holds_adds_up(walk: Walk) -> None:
    staged(walk)
    in_force(walk, rule('@stages("1 of group:security, 1 of group:owners")\n@hold("1m")'))
    packet = walk.to_call()
    walk.decide(packet)
    held = walk.decide(packet, walk.cast.bo)
    assert held.held_until is not None
    walk.let_go(held)
    assert release_packet(held.pk)
    packet.refresh_from_db()
    assert (packet.state, problems(walk)) == ("approved", "")


def test_inv14_too_few_who_approved_are_found_offline(walk: Walk) -> None:
    in_force(walk, rule('@needs("2")'))
    packet = walk.to_call()
    write(packet, walk.cast.ada, "approved")
    assert "it needed two people, and one person approved it" in problems(walk)


@pytest.mark.parametrize(
    ("seats", "lack"),
    [
        ([], "one of Owners, and nobody filled that"),
        ([["ada", "security"], ["ada", "owners"]], "one person fills two places"),
        ([["ada", "security"], ["max", "owners"]], "somebody fills a place who did not approve"),
        ([["ada", "security"], ["bo", "security"]], "one of Owners, and nobody filled that"),
        ("nonsense", "one of Security, and nobody filled that"),
    ],
)
def test_inv14_stages_that_were_not_filled_are_found_offline(
    walk: Walk, seats: object, lack: str
) -> None:
    both = dict(zip(("security", "owners"), staged(walk), strict=True))
    in_force(walk)
    packet = walk.to_call()
    walk.decide(packet)
    if isinstance(seats, list):
        seats = [
            [getattr(walk.cast, who).user.pk, f"group:{both[handle].pk}"] for who, handle in seats
        ]
    write(packet, walk.cast.bo, "approved", stages=seats)
    assert lack in problems(walk)


def test_inv06_an_approval_of_ones_own_is_found_offline(walk: Walk) -> None:
    in_force(walk, rule('@needs("1")'))
    packet = walk.to_call()
    asker = Membership.objects.get(tenant=packet.tenant, user=packet.requested_by)
    write(packet, asker, "approved")
    assert "is an approval of somebody who may not give one" in problems(walk)


def test_inv06_who_may_not_approve_is_sealed(walk: Walk) -> None:
    """Taking a name off the row does not make its person somebody else."""
    packet = walk.to_call()
    assert packet.page["gate"]["excluded"] == packet.excluded
    Packet.objects.filter(pk=packet.pk).update(excluded=[])
    with pytest.raises(errors.PacketDamaged):
        walk.decide(packet)


@pytest.mark.parametrize(
    "gate",
    [
        None,
        {},
        [],
        {"needed": "x"},
        {"needed": 1, "stages": 7},
        {"needed": 1, "stages": [{}]},
        {"needed": float("inf")},
        {"needed": 1, "excluded": 5},
    ],
)
def test_a_gate_that_cannot_be_read_is_said_to_be_none(gate: object) -> None:
    with pytest.raises(ValueError, match="does not say who must approve it"):
        Tally.of_page({"gate": gate})


@pytest.mark.parametrize("person", [None, "7", [7], {}, True, 7.0])
def test_an_approval_of_no_person_is_no_approval(person: object) -> None:
    tally = Tally.of_page({"gate": {"needed": 1}})
    given: Mapping[str, object] = {"verdict": "approve", "person": person}
    assert list(tally.take(given)) == ["is nobody's"]
    assert list(tally.end(None)) == ["it needed one person, and nobody approved it"]
