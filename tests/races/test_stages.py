"""Stages while people vote, leave and change groups at the same moment: one truth, no deadlock."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from approvals import errors, groups
from approvals.models import Group, Packet, Publication
from approvals.states import PacketState
from portal import people
from portal.models import AuditEntry, Membership
from portal.roles import Role
from tests.approvals.stages import group, in_force, rule, staged
from tests.races.crowd import at_once
from tests.walk import Walk

pytestmark = pytest.mark.both_databases
REPEATS = 8


def test_both_stages_at_the_same_moment(walk: Walk, database: str) -> None:
    """Whoever comes second closes it, and it is carried out once."""
    staged(walk)
    in_force(walk, rule(action="publish"))
    for _ in range(REPEATS):
        packet = walk.to_review()
        outcomes = at_once(
            [partial(walk.decide, packet, each) for each in (walk.cast.ada, walk.cast.bo)]
        )
        assert all(isinstance(each, Packet) for each in outcomes), outcomes
        settled = walk.fresh(packet)
        assert settled.state == PacketState.APPROVED
        assert sorted(person for person, _ in settled.filled) == sorted(
            [walk.cast.ada.user_id, walk.cast.bo.user_id]
        )
        assert Publication.objects.filter(packet=packet).count() == 1


def test_a_crowd_of_one_stage_never_fills_another(walk: Walk, database: str) -> None:
    crowd = [walk.cast.member(f"Person{number:02}", [Role.REVIEWER]) for number in range(8)]
    staged(walk)
    group(walk, "security", *crowd)
    in_force(walk)
    packet = walk.to_call()

    outcomes = at_once([partial(walk.decide, packet, each) for each in crowd])

    assert all(isinstance(each, Packet) for each in outcomes), outcomes
    assert walk.fresh(packet).state == PacketState.OPEN
    assert walk.decide(packet, walk.cast.bo).state == PacketState.APPROVED


@pytest.mark.parametrize("how", ["group", "role", "tenant"])
def test_the_last_vote_against_the_end_of_the_first_ones_place(
    walk: Walk, database: str, how: str
) -> None:
    """Whichever came first in the log is what counted: never an approval on a place that was gone.

    Ada voted for Security; while Bo gives the last vote she loses her place.
    """
    staged(walk)
    in_force(walk)
    for number in range(REPEATS):
        ada = walk.cast.member(f"Ada{number} Obi", [Role.REVIEWER, Role.PUBLISHER])
        group(walk, "security", ada)
        packet = walk.to_call()
        walk.decide(packet, ada)
        ends: dict[str, Callable[[], object]] = {
            "group": partial(groups.change_group, "security", "Security", [], member=walk.cast.max),
            "role": partial(people.set_roles, ada.pk, [Role.VIEWER], member=walk.cast.max),
            "tenant": partial(people.remove_member, ada.pk, member=walk.cast.max),
        }

        voted, ended = at_once([partial(walk.decide, packet, walk.cast.bo), ends[how]])

        assert isinstance(voted, Packet), voted
        assert not isinstance(ended, Exception), ended
        log = AuditEntry.objects.filter(tenant=walk.cast.acme)
        vote = log.filter(action="packet.approved", actor=walk.cast.bo.user).last()
        gone = log.filter(action__in=["group.changed", "member.roles_changed", "member.removed"])
        last = gone.last()
        assert vote is not None
        assert last is not None
        expected = PacketState.APPROVED if vote.seq < last.seq else PacketState.OPEN
        assert walk.fresh(packet).state == expected
        walk.lose_hops()


def test_two_admins_change_one_group(walk: Walk, database: str) -> None:
    cast = walk.cast
    staged(walk)
    second = cast.member("Mia Second", [Role.ADMIN])

    def change(admin: Membership, member: Membership) -> Group:
        return groups.change_group("security", "Security", [member.pk], member=admin)

    outcomes = at_once([partial(change, cast.max, cast.bo), partial(change, second, cast.vic)])

    assert all(isinstance(each, Group) for each in outcomes), outcomes
    assert Group.objects.get(handle="security").members.count() == 1


def test_one_name_is_one_group(walk: Walk, database: str) -> None:
    second = walk.cast.member("Mia Second", [Role.ADMIN])
    make = [
        partial(groups.make_group, "legal", "Legal", [], member=admin)
        for admin in (walk.cast.max, second)
    ]
    made = [each for each in at_once(make) if isinstance(each, Group)]
    assert len(made) == Group.objects.filter(handle="legal").count() == 1


def test_a_person_counts_once_at_the_same_moment(walk: Walk, database: str) -> None:
    staged(walk)
    group(walk, "owners", walk.cast.ada, walk.cast.bo)
    in_force(walk)
    packet = walk.to_call()
    outcomes = at_once([partial(walk.decide, packet, walk.cast.ada) for _ in range(4)])
    refused = [each for each in outcomes if isinstance(each, errors.AlreadyDecided)]
    assert len(refused) == 3, outcomes
    assert walk.fresh(packet).state == PacketState.OPEN
