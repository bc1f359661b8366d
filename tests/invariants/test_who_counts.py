"""Invariant 6 at its edges: whose approval counts, and whose does not any more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from approvals import errors
from approvals.opening import excluded_people
from approvals.states import PacketState, Verdict
from portal import people
from portal.models import AuditEntry, Membership, User
from portal.roles import Role
from runs import contracts
from runs.models import Run
from tests.cast import contract_text
from tests.visits import Visitor, address_of, text_of
from tests.walk import Walk, parked_call


def _removed(walk: Walk) -> None:
    people.remove_member(walk.cast.ada.pk, member=walk.cast.max)


def _demoted(walk: Walk) -> None:
    people.set_roles(walk.cast.ada.pk, [Role.VIEWER], member=walk.cast.max)


def _switched_off(walk: Walk) -> None:
    User.objects.filter(pk=walk.cast.ada.user_id).update(is_active=False)


def _demoted_here_alone(walk: Walk) -> None:
    """What somebody may do in another tenant counts for nothing here."""
    walk.cast.member("Ada Obi", list(Role), tenant=walk.cast.globex)
    _demoted(walk)


def _made_a_machine(walk: Walk) -> None:
    User.objects.filter(pk=walk.cast.ada.user_id).update(is_machine=True, owner=walk.cast.olu.user)


@pytest.mark.parametrize(
    "change", [_removed, _demoted, _demoted_here_alone, _switched_off, _made_a_machine]
)
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


def test_exactly_requester_author_of_the_contract_and_of_the_rule_are_excluded(walk: Walk) -> None:
    """Each as a person: what a machine asked for, its owner asked for."""
    cast = walk.cast

    def excluded(asked: Membership, wrote: Membership, rule: Membership | None) -> list[int]:
        run = walk.run()
        Run.objects.filter(pk=run.pk).update(requested_by=asked.user)
        run.version.author = wrote.user
        run.version.save(update_fields=["author"])
        run = Run.objects.get(pk=run.pk)
        return excluded_people(run, rule.user if rule is not None else None)

    def keys(*members: Membership) -> list[int]:
        return sorted({each.user_id for each in members})

    assert excluded(cast.olu, cast.vic, None) == keys(cast.olu, cast.vic)
    assert excluded(cast.olu, cast.olu, cast.max) == keys(cast.olu, cast.max)
    assert excluded(cast.vic, cast.bo, cast.aud) == keys(cast.vic, cast.bo, cast.aud)
    assert excluded(cast.mona, cast.vic, None) == keys(cast.olu, cast.vic)
    assert excluded(cast.vic, cast.mona, cast.mona) == keys(cast.olu, cast.vic)


@pytest.mark.parametrize(
    ("owner", "named"),
    [
        ("", []),
        (" ADA@example.com ", ["ada"]),
        ("bo lindqvist", ["bo"]),
        ("Mona Machine", ["olu"]),
        ("nobody@example.com", []),
        ("ada", []),
    ],
)
def test_the_owner_is_whoever_has_that_name_or_address(
    walk: Walk, owner: str, named: list[str]
) -> None:
    run = walk.run(text=f'owner = "{owner}"\n{contract_text(verification=False)}')

    expected = {walk.cast.olu.user_id} | {walk.cast.everyone[each].user_id for each in named}
    assert excluded_people(run, None) == sorted(expected)


@pytest.mark.parametrize("owner", ["ada@example.com", "ADA OBI"])
def test_the_owner_a_contract_names_does_not_approve_for_its_agent(walk: Walk, owner: str) -> None:
    text = f'owner = "{owner}"\n{contract_text(verification=False)}'
    packet = walk.to_review(text=text)

    with pytest.raises(errors.OwnRequest):
        walk.decide(packet, walk.cast.ada)
    assert walk.decide(packet, walk.cast.bo).state == PacketState.APPROVED


def test_whoever_may_not_approve_may_still_hold_back(walk: Walk) -> None:
    text = f'owner = "ada@example.com"\n{contract_text(verification=False)}'
    packet = walk.to_review(text=text)
    assert walk.decide(packet, walk.cast.ada, Verdict.DENY).state == PacketState.DENIED


def test_only_what_is_ones_own_is_labelled_as_self_approved(walk: Walk) -> None:
    """And only a tenant that was declared to have one person lets it through at all."""
    cast = walk.cast
    Membership.objects.filter(pk=cast.olu.pk).update(roles=[Role.OPERATOR, Role.REVIEWER])
    olu = walk.fresh(cast.olu)

    def labelled(member: Membership, verdict: Verdict = Verdict.APPROVE) -> tuple[bool, bool]:
        packet = walk.decide(parked_call(walk), member, verdict)
        (decision,) = packet.decisions.all()
        return decision.self_approved, walk.fresh(packet).self_approved

    assert labelled(cast.ada) == (False, False)
    with pytest.raises(errors.OwnRequest):
        labelled(olu)
    assert labelled(olu, Verdict.DENY) == (False, False)
    cast.acme.one_person = True
    cast.acme.save(update_fields=["one_person"])
    assert labelled(olu) == (True, True)
    assert labelled(olu, Verdict.DENY) == (False, False)
    assert labelled(cast.ada) == (False, False)


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
