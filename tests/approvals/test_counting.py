"""Whose approval counts, told from the rows of now."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from approvals.counting import (
    Asked,
    People,
    askable,
    groups_of,
    hold_still,
    needed_permission,
    quorum_of,
    routes_of,
    seats_of,
    still_asked,
    voters_by_packet,
    voters_of,
    voters_with,
)
from approvals.models import Decision, Group, GroupMember, Packet
from approvals.states import PacketKind, Verdict
from portal.models import Membership, Passkey, Tenant, User
from portal.roles import Permission, Role
from tests.cast import Cast
from tests.walk import Walk, parked_call

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)

DECIDE, PUBLISH = (Permission.DECIDE,), (Permission.PUBLISH,)
EITHER = (Permission.PUBLISH, Permission.DECIDE)


@pytest.mark.parametrize("kind", list(PacketKind))
def test_a_publisher_lets_out_and_a_reviewer_may_hold_back(kind: PacketKind) -> None:
    publication = kind is PacketKind.PUBLICATION
    assert needed_permission(kind, Verdict.APPROVE) == (PUBLISH if publication else DECIDE)
    for verdict in (Verdict.DENY, Verdict.REQUEST_CHANGES):
        assert needed_permission(kind, verdict) == (EITHER if publication else DECIDE)


def packet_wanting(people: int, *stages: str, row: int = 1, escalated: int = 0) -> Packet:
    """Not saved: enough of one to be asked about."""
    sealed = [
        {
            **{"route": route, "name": route, "people": 1},
            "fallbacks": [{"route": "role:admin", "name": "admin", "after_seconds": 60}],
        }
        for route in stages
    ]
    gate = {"needed": people, "stages": sealed}
    return Packet(page={"gate": gate}, needed=row, escalated=escalated, tenant_id=1)


def test_a_packet_wants_never_fewer_people_than_its_row_or_its_page() -> None:
    assert quorum_of(packet_wanting(2)).people == 2
    assert quorum_of(packet_wanting(2, row=3)).people == 3
    assert quorum_of(packet_wanting(3, row=2)).people == 3


def test_those_stand_in_who_do_by_now_or_by_the_time_that_is_asked_about() -> None:
    assert quorum_of(packet_wanting(1, "group:1")).routes == ["group:1"]
    for wanted in (
        quorum_of(packet_wanting(1, "group:1", escalated=60)),
        quorum_of(packet_wanting(1, "group:1"), waited=60),
    ):
        assert wanted.routes == ["group:1", "role:admin"]
    assert quorum_of(packet_wanting(1, "group:1", escalated=60), waited=0).routes == ["group:1"]


@pytest.mark.parametrize(
    ("packet", "locks"),
    [
        (packet_wanting(1), False),
        (packet_wanting(2), True),
        (packet_wanting(1, "group:1"), True),
    ],
)
def test_the_tenant_is_locked_where_it_matters_who_else_counts(
    packet: Packet, locks: bool, cast: Cast
) -> None:
    packet.tenant = cast.acme
    with transaction.atomic(), CaptureQueriesContext(connection) as asked:
        hold_still(packet)
    assert len(asked) == int(locks)


# --- Who belongs to what


def grouped(tenant: Tenant, handle: str, *members: Membership) -> Group:
    made = Group.objects.create(tenant=tenant, handle=handle, name=handle.title())
    for each in members:
        GroupMember.objects.create(tenant=tenant, group=made, membership=each)
    return made


def test_a_member_counts_as_their_groups_and_roles_and_a_machine_as_nothing(cast: Cast) -> None:
    security = grouped(cast.acme, "security", cast.ada, cast.mona)
    owners = grouped(cast.acme, "owners", cast.ada, cast.bo)
    theirs = grouped(cast.globex, "security", cast.eve)

    assert sorted(routes_of(cast.ada)) == sorted(
        [f"group:{security.pk}", f"group:{owners.pk}", "role:publisher", "role:reviewer"]
    )
    assert sorted(routes_of(cast.bo)) == sorted(
        [f"group:{owners.pk}", "role:publisher", "role:reviewer"]
    )
    assert routes_of(cast.mona) == []
    assert groups_of(cast.acme.pk) == {
        "security": (security.pk, "Security"),
        "owners": (owners.pk, "Owners"),
    }
    assert groups_of(cast.globex.pk) == {"security": (theirs.pk, "Security")}


def test_the_people_of_a_tenant_who_could_approve_ask_and_sign(cast: Cast) -> None:
    security = grouped(cast.acme, "security", cast.ada, cast.mona)
    grouped(cast.globex, "owners", cast.member("Ada Obi", [Role.REVIEWER], tenant=cast.globex))
    gone = cast.member("Gus Gone", [Role.REVIEWER])
    User.objects.filter(pk=gone.user_id).update(is_active=False)
    of_a_machine = cast.member("Rob Robot", [Role.OPERATOR])
    User.objects.filter(pk=of_a_machine.user_id).update(is_machine=True, owner=cast.vic.user)
    # Two of one name, and who joined first is the younger account.
    older, younger = (User.objects.create_user(f"abe{n}@example.com", "Abe First") for n in "12")
    for each in (younger, older):
        Membership.objects.create(tenant=cast.acme, user=each, roles=["admin"])
    # An owner says something of machines alone.
    User.objects.filter(pk=cast.olu.user_id).update(owner=cast.max.user)
    for member in (cast.ada, cast.eve):
        Passkey.objects.create(user=member.user, name="Key", credential=f"c{member.pk}")

    with CaptureQueriesContext(connection) as asked:
        people = People.of(cast.acme)

    ada, bo, adm = cast.ada.user_id, cast.bo.user_id, cast.max.user_id
    # Whoever may approve nothing is none of them.
    assert list(people.names.items()) == [
        *((younger.pk, "Abe First"), (older.pk, "Abe First")),
        *((ada, "Ada Obi"), (bo, "Bo Lindqvist"), (adm, "Max Weber")),
    ]
    # SQLite would do so by itself; PostgreSQL gives rows of one name in any order.
    assert any(each["sql"].endswith(', "portal_membership"."id" ASC') for each in asked)
    assert people.routes[ada] == [f"group:{security.pk}", "role:reviewer", "role:publisher"]
    assert people.routes[bo] == ["role:reviewer", "role:publisher"]
    assert set(people.granted) == set(people.names) == set(people.routes)
    assert people.granted[bo] == {Permission.VIEW, Permission.DECIDE, Permission.PUBLISH}
    assert {cast.mona.user_id, gone.user_id, of_a_machine.user_id} & set(people.names) == set()
    # Whoever owns a machine asks for what it asks for.
    assert people.askers == {cast.olu.user_id, cast.vic.user_id}
    assert people.signers == {ada}

    assert people.voters("call") == {each: people.routes[each] for each in (ada, bo)}
    assert people.voters("publication", [ada]) == {bo: people.routes[bo]}
    assert people.signing().voters("call") == {ada: people.routes[ada]}
    assert people.signing().names == people.names


# --- Whose approvals count


def approval(packet: Packet, member: Membership, **more: Any) -> Decision:
    facts = {"verdict": Verdict.APPROVE, "round": packet.round, "decided_at": NOON, **more}
    return Decision.objects.create(
        tenant=packet.tenant, packet=packet, person=member.user, digest=packet.digest, **facts
    )


def test_only_approvals_of_this_round_by_people_who_may_give_them_count(walk: Walk) -> None:
    cast, packet = walk.cast, parked_call(walk)
    assert voters_of(packet) == {}
    security = grouped(cast.acme, "security", cast.ada)
    cleo = cast.member("Cleo Third", [Role.REVIEWER])
    gone = cast.member("Gus Gone", [Role.REVIEWER])
    left = cast.member("Lea Left", [Role.REVIEWER])
    later = NOON + timedelta(minutes=1)

    approval(packet, cast.ada, decided_at=later)
    approval(packet, cleo)
    for nobody in (gone, left, cast.mona, cast.vic, cast.olu, cast.eve):
        approval(packet, nobody)
    approval(packet, cast.bo, verdict=Verdict.DENY)
    approval(packet, cast.bo, round=2)
    User.objects.filter(pk=gone.user_id).update(is_active=False)
    left.delete()

    counted = {
        cleo.user_id: ["role:reviewer"],
        cast.ada.user_id: [f"group:{security.pk}", "role:reviewer", "role:publisher"],
    }
    # The oldest first.
    assert list(voters_of(packet).items()) == list(counted.items())
    # A packet that nobody answered is there, with nobody.
    other = Asked(0, packet.kind)
    both = voters_by_packet(cast.acme, [Asked(packet.pk, packet.kind, packet.excluded), other])
    assert both == {packet.pk: counted, 0: {}}
    assert voters_by_packet(cast.globex, [Asked(packet.pk, packet.kind)])[packet.pk] == {
        cast.eve.user_id: [f"role:{role.value}" for role in Role]
    }
    # Whoever may not let out has not, and whoever is excluded may not.
    for asked, kept in (
        (Asked(packet.pk, "publication"), [cast.ada.user_id]),
        (Asked(packet.pk, packet.kind, [cleo.user_id]), [cast.ada.user_id]),
    ):
        assert list(voters_by_packet(cast.acme, [asked])[packet.pk]) == kept


def test_an_approval_in_anothers_name_fills_the_place_of_whose_right_it_is(walk: Walk) -> None:
    cast, packet = walk.cast, parked_call(walk)
    security = grouped(cast.acme, "security", cast.bo)
    approval(packet, cast.ada, on_behalf_of=cast.bo.user)
    theirs = {cast.bo.user_id: [f"group:{security.pk}", "role:reviewer", "role:publisher"]}

    def counted(*excluded: int) -> dict[int, list[str]]:
        return voters_by_packet(cast.acme, [Asked(packet.pk, packet.kind, excluded)])[packet.pk]

    assert counted() == theirs
    assert counted(cast.ada.user_id) == counted(cast.bo.user_id) == {}
    # That a tenant has one person bends nothing here.
    Tenant.objects.filter(pk=cast.acme.pk).update(one_person=True)
    cast.acme.refresh_from_db()
    assert counted(cast.ada.user_id) == {}
    assert counted() == theirs
    # Neither the one nor the other may lose what they decide with.
    for member in (cast.ada, cast.bo):
        kept = member.roles
        Membership.objects.filter(pk=member.pk).update(roles=["viewer"])
        assert counted() == {}
        Membership.objects.filter(pk=member.pk).update(roles=kept)
    bo = User.objects.filter(pk=cast.bo.user_id)
    for change in ({"is_active": False}, {"is_machine": True, "owner": cast.olu.user}):
        bo.update(**change)
        assert counted() == {}
        bo.update(is_active=True, is_machine=False, owner=None)
    # Whoever acts need not hold the very right that they were handed.
    Membership.objects.filter(pk=cast.ada.pk).update(roles=["publisher"])
    assert counted() == theirs
    # What somebody is in another tenant says nothing here.
    elsewhere = cast.member("Bo Lindqvist", [Role.REVIEWER], tenant=cast.globex)
    grouped(cast.globex, "owners", elsewhere)
    assert counted() == theirs
    cast.bo.delete()
    assert counted() == {}


def test_approvals_of_one_moment_count_in_the_order_in_which_they_came(walk: Walk) -> None:
    packet, other = parked_call(walk), parked_call(walk)
    approval(packet, walk.cast.bo)
    approval(packet, walk.cast.ada)
    approval(other, walk.cast.ada)
    with CaptureQueriesContext(connection) as asked:
        assert list(voters_of(packet)) == [walk.cast.bo.user_id, walk.cast.ada.user_id]
    # SQLite would do so by itself; PostgreSQL gives rows of one moment in any order.
    assert '"decided_at" ASC, "approvals_decision"."id" ASC' in asked[0]["sql"]


def test_a_declared_tenant_of_one_person_counts_its_own(walk: Walk) -> None:
    cast, packet = walk.cast, parked_call(walk)
    approval(packet, cast.ada)
    asked = Asked(packet.pk, packet.kind, [cast.ada.user_id])
    assert voters_by_packet(cast.acme, [asked])[packet.pk] == {}
    cast.acme.one_person = True
    assert list(voters_by_packet(cast.acme, [asked])[packet.pk]) == [cast.ada.user_id]


def test_of_the_only_approval_nothing_more_is_read(walk: Walk) -> None:
    cast, packet = walk.cast, parked_call(walk)
    own, denied = approval(packet, cast.ada), approval(packet, cast.bo, verdict=Verdict.DENY)
    with CaptureQueriesContext(connection) as asked:
        alone = voters_with(packet, [own, denied], cast.ada)
    assert (alone, len(asked)) == ({cast.ada.user_id: ["role:reviewer", "role:publisher"]}, 0)
    cleo = cast.member("Cleo Third", [Role.REVIEWER])
    other = approval(packet, cleo)
    assert list(voters_with(packet, [own, denied, other], cast.ada)) == [
        cast.ada.user_id,
        cleo.user_id,
    ]
    # Where it matters who is in which group, the rows say it.
    packet.page["gate"]["stages"] = [{"route": "group:1", "name": "Security", "people": 1}]
    assert list(voters_with(packet, [own], cast.ada)) == [cast.ada.user_id, cleo.user_id]


def test_evidence_names_who_fills_which_stage_and_nothing_without_stages(walk: Walk) -> None:
    cast, packet = walk.cast, parked_call(walk)
    security = grouped(cast.acme, "security", cast.bo)
    approval(packet, cast.ada)
    approval(packet, cast.bo)
    assert seats_of(packet) == {}
    route = f"group:{security.pk}"
    packet.page["gate"]["stages"] = [{"route": route, "name": "Security", "people": 1}]
    assert seats_of(packet) == {"stages": [[cast.bo.user_id, route]]}


def test_who_can_still_approve_an_open_packet(walk: Walk) -> None:
    cast, packet = walk.cast, parked_call(walk)
    cleo = cast.member("Cleo Third", [Role.REVIEWER])
    dee = cast.member("Dee Fourth", [Role.REVIEWER])
    security = grouped(cast.acme, "security", cast.bo)
    packet.excluded = [dee.user_id]
    everybody = {cast.ada.user_id, cast.bo.user_id, cleo.user_id}
    packet.tenant.one_person = True
    assert set(askable(packet)) == {*everybody, dee.user_id}
    packet.tenant.one_person = False
    assert set(askable(packet)) == set(still_asked(packet)) == everybody
    approval(packet, cleo, verdict=Verdict.DENY)
    assert set(still_asked(packet)) == {cast.ada.user_id, cast.bo.user_id}
    packet.page["gate"]["stages"] = [
        {"route": f"group:{security.pk}", "name": "Security", "people": 1}
    ]
    assert still_asked(packet) == [cast.bo.user_id]
    assert set(askable(packet)) == {cast.ada.user_id, cast.bo.user_id}
    # Whose name somebody decided in has answered, too.
    approval(packet, dee, on_behalf_of=cast.ada.user)
    assert set(askable(packet)) == {cast.bo.user_id}
