"""Invariant 6 at its edges: whose approval counts, and whose does not any more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from approvals import errors
from approvals.states import PacketState
from portal import people
from portal.models import AuditEntry, Membership, User
from portal.roles import Role
from runs import contracts
from tests.cast import contract_text
from tests.visits import Visitor, address_of, text_of
from tests.walk import Walk


def _removed(walk: Walk) -> None:
    people.remove_member(walk.cast.ada.pk, member=walk.cast.max)


def _demoted(walk: Walk) -> None:
    people.set_roles(walk.cast.ada.pk, [Role.VIEWER], member=walk.cast.max)


def _switched_off(walk: Walk) -> None:
    User.objects.filter(pk=walk.cast.ada.user_id).update(is_active=False)


@pytest.mark.parametrize("change", [_removed, _demoted, _switched_off])
def test_the_first_of_two_approvals_counts_only_while_its_person_may_give_it(
    walk: Walk, change: Callable[[Walk], None]
) -> None:
    third = walk.cast.member("Cy Third", [Role.PUBLISHER])
    packet = walk.to_review(gate="approvals = 2")
    walk.decide(packet, walk.cast.ada)
    change(walk)

    assert walk.decide(packet, walk.cast.bo).state == PacketState.OPEN
    page = text_of(Visitor(third).get(address_of(packet)))
    assert "Yours is the last answer needed" in page
    assert walk.decide(packet, third).state == PacketState.APPROVED


def test_what_a_machine_of_ones_own_wrote_is_ones_own(walk: Walk) -> None:
    """Mona is Olu's machine: it may write a contract, and Olu may not put it in force."""
    cast = walk.cast
    Membership.objects.filter(pk=cast.mona.pk).update(roles=[Role.OPERATOR])
    Membership.objects.filter(pk=cast.olu.pk).update(roles=[Role.OPERATOR, Role.ADMIN])
    mona, olu = (walk.fresh(each) for each in (cast.mona, cast.olu))
    version = contracts.propose_version(contract_text(), "toml", member=mona)

    assert not contracts.may_decide(version, olu)
    with pytest.raises(contracts.OwnVersion):
        contracts.decide_version(version, approve=True, seen=version.digest, member=olu)
    assert contracts.may_decide(version, cast.max)
    decided = contracts.decide_version(version, approve=True, seen=version.digest, member=cast.max)
    assert not decided.self_approved


@pytest.mark.parametrize("owner", ["ada@example.com", "ADA OBI"])
def test_the_owner_a_contract_names_does_not_approve_for_its_agent(walk: Walk, owner: str) -> None:
    text = f'owner = "{owner}"\n{contract_text(verification=False)}'
    packet = walk.to_review(text=text)

    with pytest.raises(errors.OwnRequest):
        walk.decide(packet, walk.cast.ada)
    assert walk.decide(packet, walk.cast.bo).state == PacketState.APPROVED


def test_a_second_person_ends_the_tenant_of_one(walk: Walk) -> None:
    """The only exception to four eyes is being alone, so it ends with that."""
    cast = walk.cast
    cast.acme.one_person = True
    cast.acme.save(update_fields=["one_person"])

    added = people.add_member("Cy Third", "cy@example.com", [Role.PUBLISHER], member=cast.max)

    assert not walk.fresh(cast.acme).one_person
    entry = AuditEntry.objects.get(action="tenant.one_person_ended")
    assert (entry.actor, entry.facts) == (cast.max.user, {"person": added.user_id})


def test_a_machine_of_the_one_person_is_no_second_person(walk: Walk) -> None:
    cast = walk.cast
    cast.acme.one_person = True
    cast.acme.save(update_fields=["one_person"])
    machine = User.objects.create_user("bot@example.com", "Bot")
    User.objects.filter(pk=machine.pk).update(is_machine=True, owner=cast.max.user)

    people.add_member("Bot", "bot@example.com", [Role.OPERATOR], member=cast.max)

    assert walk.fresh(cast.acme).one_person
