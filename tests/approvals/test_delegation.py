"""Deciding in another's name: who may, for what, until when; and how both count as one person."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from approvals import bundle, delegation, errors
from approvals.bundle_form import framed, taken_apart
from approvals.confirm import typed_word
from approvals.counting import voters_of
from approvals.deciding import Answer, settle_packet
from approvals.delegation import CannotHandOver, NotInTheirName, VoiceUsed, Wanted
from approvals.models import Decision, Delegation, Packet
from approvals.states import PacketKind, PacketState, Verdict
from approvals.undo import undo_approval
from approvals.verifier import verified
from portal import people
from portal.dsse import key_id
from portal.errors import NotAllowed, NotFound
from portal.handoff import Job
from portal.models import AuditEntry, Membership, Tenant, User
from portal.roles import Role
from portal.signing import signing_key
from runs.models import Event
from tests import clock
from tests.approvals.stages import BOTH, asked, group, in_force, passed, rule, staged
from tests.visits import Visitor, address_of, text_of
from tests.walk import Walk, parked_call


def handed(giver: Membership, taker: Membership, *, days: float = 7, **more: Any) -> Delegation:
    now = timezone.now()
    wanted = Wanted(taker.pk, more.pop("begins_at", now), now + timedelta(days=days), **more)
    return delegation.hand_over(wanted, member=giver)


def decide(
    packet: Packet,
    member: Membership,
    giver: Membership | None = None,
    verdict: Verdict = Verdict.APPROVE,
    **more: Any,
) -> Packet:
    comment = "" if verdict is Verdict.APPROVE else "Not like this."
    behalf = giver.user_id if giver else 0
    typed = typed_word(packet)
    answer = Answer(verdict, packet.digest, comment, typed=typed, behalf=behalf, **more)
    return settle_packet(packet.public_id, answer, member=member).packet


def waiting_for_two(walk: Walk) -> Packet:
    return asked(walk, '@needs("2")')


# --- Deciding in a name -----------------------------------------------------------------------


def test_the_decision_keeps_both_names_everywhere(walk: Walk) -> None:
    packet, cast = asked(walk, BOTH), walk.cast
    dee = Membership.objects.get(user__name="Dee Third")
    people.set_roles(dee.pk, [Role.REVIEWER], member=cast.max)
    handed(cast.bo, dee)
    decide(packet, dee, cast.bo)
    row = Decision.objects.get()
    assert (row.person_id, row.on_behalf_of_id, row.place) == (
        dee.user_id,
        cast.bo.user_id,
        cast.bo.user_id,
    )
    event = Event.objects.get(kind="packet.approved")
    names = (event.facts["by"], event.facts["on_behalf_of"], event.facts["stage"])
    assert names == ("Dee Third", "Bo Lindqvist", "Owners")
    line = AuditEntry.objects.get(action="packet.approved")
    assert (line.actor_id, line.facts["on_behalf_of"]) == (dee.user_id, cast.bo.user_id)
    page = text_of(Visitor(cast.vic).get(address_of(packet)))
    assert "for Owners" in page
    assert "in the name of Bo Lindqvist" in page  # the timeline
    walk.decide(packet)
    packet = walk.fresh(packet)
    assert packet.state == PacketState.APPROVED
    assert sorted(person for person, _ in packet.filled) == sorted(
        [cast.ada.user_id, cast.bo.user_id]
    )


def test_INV14_a_bundle_holds_both_names_and_a_changed_one_is_told(walk: Walk) -> None:
    packet = waiting_for_two(walk)
    dee = Membership.objects.get(user__name="Dee Third")
    handed(walk.cast.ada, dee)
    decide(packet, dee, walk.cast.ada)
    walk.decide(packet, walk.cast.bo)
    walk.deliver(Job.SWEEP_EVIDENCE)
    lines = list(bundle.exported(walk.cast.acme))
    keys = [key_id(signing_key().public_key())]
    assert verified(lines, keys).problems == []
    assert sum(b'"on_behalf_of_name":"Ada Obi"' in each for each in lines) == 1
    told = [changed(each, on_behalf_of=walk.cast.bo.user_id) for each in lines]
    problems = [each.text for each in verified(told, keys).problems]
    assert any("has another person in whose name it is" in each for each in problems)
    assert any("is the second approval of one person" in each for each in problems)


def changed(line: bytes, **facts: object) -> bytes:
    """A decision in somebody's name with other facts, and a hash that fits."""
    kind, body, _ = taken_apart(line)
    said = json.loads(body)
    if kind != "decision" or "on_behalf_of" not in said:
        return line
    return framed(kind, said | facts)


def test_whoever_was_switched_off_or_lost_a_role_meanwhile_changes_nothing(walk: Walk) -> None:
    """The page was open before; what is true when it is saved counts."""
    cast = walk.cast
    made = handed(cast.bo, cast.ada)
    Membership.objects.filter(pk=cast.max.pk).update(roles=[Role.VIEWER])
    with pytest.raises(NotAllowed):
        delegation.end(made.pk, member=cast.max)
    User.objects.filter(pk=cast.ada.user_id).update(is_active=False)
    with pytest.raises(NotFound):
        handed(cast.ada, cast.bo)
    with pytest.raises(NotFound):
        delegation.end(made.pk, member=cast.ada)
    assert Delegation.objects.get().ended_at is None


def test_a_delegate_acts_with_the_givers_right_and_no_other(walk: Walk) -> None:
    """Bo publishes; Ria only reviews. In Bo's name she lets out, and only there."""
    cast = walk.cast
    ria = cast.member("Ria Reviewer", [Role.REVIEWER])
    packet = walk.to_review()
    with pytest.raises(NotAllowed):
        decide(packet, ria)
    given = handed(cast.bo, ria)
    decide(packet, ria, cast.bo)
    assert walk.fresh(packet).state == PacketState.APPROVED
    delegation.end(given.pk, member=cast.bo)
    with pytest.raises(NotInTheirName):
        decide(walk.to_review(), ria, cast.bo)


def test_nobody_hands_on_what_they_were_handed(walk: Walk) -> None:
    packet, cast = asked(walk, BOTH), walk.cast
    dee = Membership.objects.get(user__name="Dee Third")
    ria = cast.member("Ria Reviewer", [Role.REVIEWER])
    handed(cast.ada, dee)
    handed(dee, ria)
    # Ria has Dee's right, which is of no stage, and not Ada's.
    with pytest.raises(NotInTheirName):
        decide(packet, ria, cast.ada)
    with pytest.raises((errors.CountsForNothing, NotAllowed)):
        decide(packet, ria, dee)


def test_dates_hold_by_the_clock(walk: Walk) -> None:
    packet, cast = waiting_for_two(walk), walk.cast
    later = handed(cast.ada, cast.bo, begins_at=timezone.now() + timedelta(days=1))
    with pytest.raises(NotInTheirName):
        decide(packet, cast.bo, cast.ada)
    past = timezone.now() - timedelta(days=2)
    Delegation.objects.filter(pk=later.pk).update(begins_at=past, ends_at=past + timedelta(days=1))
    with pytest.raises(NotInTheirName):
        decide(packet, cast.bo, cast.ada)
    Delegation.objects.filter(pk=later.pk).update(ends_at=timezone.now() + timedelta(hours=1))
    decide(packet, cast.bo, cast.ada)


@pytest.mark.parametrize(
    ("classes", "may"),
    [
        ({"kinds": [PacketKind.CALL.value]}, True),
        ({"kinds": [PacketKind.PUBLICATION.value]}, False),
        ({"tools": ["create_issue"]}, True),
        ({"tools": ["close_issue"]}, False),
        ({"kinds": [PacketKind.CALL.value], "tools": ["close_issue"]}, False),
    ],
)
def test_only_packets_of_the_classes_are_handed_over(
    walk: Walk, classes: dict[str, Any], may: bool
) -> None:
    cast = walk.cast
    ria = cast.member("Ria Reviewer", [Role.REVIEWER])
    packet = asked(walk, '@stages("1 of group:security")')
    handed(cast.ada, ria, **classes)
    shown = str(packet.public_id) in text_of(Visitor(ria).get("/t/acme/queue/"))
    assert shown is may
    if may:
        decide(packet, ria, cast.ada)
        assert walk.fresh(packet).state == PacketState.APPROVED
    else:
        with pytest.raises(NotInTheirName):
            decide(packet, ria, cast.ada)


def test_a_delegate_holds_back_in_a_name_too(walk: Walk) -> None:
    packet, cast = waiting_for_two(walk), walk.cast
    handed(cast.ada, cast.bo)
    decide(packet, cast.bo, cast.ada, Verdict.DENY)
    assert walk.fresh(packet).state == PacketState.DENIED
    assert Decision.objects.get().on_behalf_of_id == cast.ada.user_id


# --- One person counts once -------------------------------------------------------------------


def test_INV06_neither_of_the_two_may_be_excluded(walk: Walk) -> None:
    packet, cast = asked(walk), walk.cast
    people.set_roles(cast.olu.pk, [Role.OPERATOR, Role.REVIEWER], member=cast.max)
    olu = Membership.objects.get(pk=cast.olu.pk)  # who asked for the run
    handed(olu, cast.ada)
    with pytest.raises(errors.OwnRequest):
        decide(packet, cast.ada, olu)
    handed(cast.bo, olu)
    with pytest.raises(errors.OwnRequest):
        decide(packet, olu, cast.bo)
    page = text_of(Visitor(cast.ada).get(address_of(packet)))
    assert "may not approve this, so nor may you in that name." in page
    assert not Decision.objects.exists()
    # Not even where a tenant says that it has one person.
    Tenant.objects.filter(pk=cast.acme.pk).update(one_person=True)
    for member, giver in ((cast.ada, olu), (olu, cast.bo)):
        with pytest.raises(errors.OwnRequest):
            decide(packet, Membership.objects.get(pk=member.pk), giver)
    # Whatever stands in the table: neither counts.
    Decision.objects.create(
        tenant=cast.acme,
        packet=packet,
        person=cast.ada.user,
        on_behalf_of=olu.user,
        verdict="approve",
        digest=packet.digest,
        decided_at=timezone.now(),
    )
    assert voters_of(walk.fresh(packet)) == {}


@pytest.mark.parametrize("first", ["delegate", "giver", "delegate_as_self"])
def test_INV06_whichever_comes_first_the_two_have_one_voice(walk: Walk, first: str) -> None:
    packet, cast = waiting_for_two(walk), walk.cast
    handed(cast.ada, cast.bo)
    votes = {
        "delegate": (cast.bo, cast.ada),
        "giver": (cast.ada, None),
        "delegate_as_self": (cast.bo, None),
    }
    decide(packet, *votes.pop(first))
    for name, vote in votes.items():
        if {first, name} == {"giver", "delegate_as_self"}:
            continue  # two people, each in their own name
        with pytest.raises((VoiceUsed, errors.AlreadyDecided)):
            decide(packet, *vote)
    assert walk.fresh(packet).state == PacketState.OPEN
    assert Decision.objects.count() == 1


def test_two_delegates_of_one_giver_have_one_place(walk: Walk) -> None:
    packet, cast = waiting_for_two(walk), walk.cast
    ria = cast.member("Ria Reviewer", [Role.REVIEWER])
    handed(cast.ada, cast.bo)
    handed(cast.ada, ria)
    decide(packet, cast.bo, cast.ada)
    with pytest.raises(VoiceUsed, match="in the name of Ada Obi"):
        decide(packet, ria, cast.ada)
    decide(packet, ria)
    assert walk.fresh(packet).state == PacketState.APPROVED


def test_one_delegate_of_two_givers_has_one_voice(walk: Walk) -> None:
    packet, cast = waiting_for_two(walk), walk.cast
    ria = cast.member("Ria Reviewer", [Role.REVIEWER])
    handed(cast.ada, ria)
    handed(cast.bo, ria)
    decide(packet, ria, cast.ada)
    with pytest.raises(errors.AlreadyDecided):
        decide(packet, ria, cast.bo)
    # Nor do two people make three of each other's places.
    handed(ria, cast.bo)
    with pytest.raises(VoiceUsed):
        decide(packet, cast.bo, ria)


def test_the_same_click_twice_is_one_decision(walk: Walk) -> None:
    packet, cast = waiting_for_two(walk), walk.cast
    handed(cast.ada, cast.bo)
    decide(packet, cast.bo, cast.ada, token="one click")
    decide(packet, cast.bo, cast.ada, token="one click")
    assert Decision.objects.count() == 1


# --- When it ends -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["ended", "giver_role", "taker_role", "giver_left", "taker_left"])
def test_it_ends_at_once(walk: Walk, how: str) -> None:
    packet, cast = waiting_for_two(walk), walk.cast
    ria = cast.member("Ria Reviewer", [Role.REVIEWER])
    given = handed(cast.ada, ria)
    match how:
        case "ended":
            delegation.end(given.pk, member=cast.ada)
        case "giver_role":
            people.set_roles(cast.ada.pk, [Role.VIEWER], member=cast.max)
        case "taker_role":
            people.set_roles(ria.pk, [Role.VIEWER], member=cast.max)
        case "giver_left":
            people.remove_member(cast.ada.pk, member=cast.max)
        case "taker_left":
            people.remove_member(ria.pk, member=cast.max)
    with pytest.raises((NotInTheirName, NotFound)):
        decide(packet, ria, cast.ada)
    line = AuditEntry.objects.get(action="delegation.ended")
    assert (line.facts["giver"], line.facts["taker"]) == (cast.ada.user_id, ria.user_id)
    # Roles that come back, or a new membership, do not bring it back.
    if how == "giver_role":
        people.set_roles(cast.ada.pk, [Role.REVIEWER], member=cast.max)
    if how == "giver_left":
        cast.acme.memberships.create(user=cast.ada.user, roles=[Role.REVIEWER.value])
    if how != "taker_left":
        with pytest.raises(NotInTheirName):
            decide(packet, ria, cast.ada)
    assert not delegation.in_force(cast.acme.pk, timezone.now()).exists()


def test_a_person_who_is_switched_off_gives_and_takes_nothing(walk: Walk) -> None:
    packet, cast = waiting_for_two(walk), walk.cast
    handed(cast.ada, cast.bo)
    User.objects.filter(pk=cast.ada.user_id).update(is_active=False)
    with pytest.raises(NotInTheirName):
        decide(packet, cast.bo, cast.ada)


def test_what_was_decided_in_time_stays_and_falls_with_the_role(walk: Walk) -> None:
    packet, cast = waiting_for_two(walk), walk.cast
    given = handed(cast.ada, cast.bo)
    decide(packet, cast.bo, cast.ada)
    delegation.end(given.pk, member=cast.ada)
    dee = Membership.objects.get(user__name="Dee Third")
    people.set_roles(dee.pk, [Role.REVIEWER], member=cast.max)
    people.set_roles(cast.ada.pk, [Role.VIEWER], member=cast.max)
    assert decide(packet, dee).state == PacketState.OPEN  # Ada's place counts no more
    people.set_roles(cast.ada.pk, [Role.REVIEWER], member=cast.max)
    ria = cast.member("Ria Reviewer", [Role.REVIEWER])
    assert decide(packet, ria).state == PacketState.APPROVED


# --- Handing over -----------------------------------------------------------------------------


def test_who_may_give_and_take(walk: Walk) -> None:
    cast = walk.cast
    for giver in (cast.vic, cast.olu, cast.aud):
        with pytest.raises(CannotHandOver, match="answer nothing"):
            handed(giver, cast.bo)
    for taker in (cast.vic, cast.max, cast.eve, cast.ada):
        with pytest.raises(CannotHandOver, match="Choose somebody else"):
            handed(cast.ada, taker)
    for days in (-1, 93):
        with pytest.raises(CannotHandOver):
            handed(cast.ada, cast.bo, days=days)
    assert not Delegation.objects.exists()


def test_who_may_end_it(walk: Walk) -> None:
    cast = walk.cast
    given = handed(cast.ada, cast.bo)
    ria = cast.member("Ria Reviewer", [Role.REVIEWER])
    for other in (ria, cast.vic, cast.aud):
        with pytest.raises(NotAllowed):
            delegation.end(given.pk, member=other)
    with pytest.raises(NotFound):
        delegation.end(given.pk, member=cast.eve)
    for member in (cast.ada, cast.bo, cast.max):
        again = handed(cast.ada, cast.bo)
        assert delegation.end(again.pk, member=member).ended_by_id == member.user_id
    delegation.end(given.pk, member=cast.ada)
    delegation.end(given.pk, member=cast.ada)
    assert AuditEntry.objects.filter(action="delegation.ended").count() == 4


def test_the_page_hands_over_with_one_form_and_ends_it(walk: Walk) -> None:
    cast = walk.cast
    ada, bo = Visitor(cast.ada), Visitor(cast.bo)
    page = "/t/acme/people/delegations/"
    assert page in text_of(ada.get("/settings/"))
    day = (timezone.now() + timedelta(days=3)).date()
    sent = ada.post(f"{page}new/", until=day.isoformat(), taker=str(cast.bo.pk))
    assert sent.status_code == 302
    made = Delegation.objects.get()
    assert made.ends_at.date() == day + timedelta(days=1)
    assert "Ada Obi" in text_of(bo.get(page))
    assert "Ada Obi" not in text_of(Visitor(cast.vic).get(page))
    assert "Ada Obi" in text_of(Visitor(cast.max).get(page))  # an admin sees everybody's
    past = ada.post(f"{page}new/", until="2020-01-01", taker=str(cast.bo.pk))
    assert past.status_code == 422
    assert "over before it begins" in text_of(past)
    for nothing in (",", " , ,"):
        named: dict[str, Any] = {
            "until": day.isoformat(),
            "taker": str(cast.bo.pk),
            "tools": nothing,
        }
        refused = ada.post(f"{page}new/", **named)
        assert refused.status_code == 422
        assert "leave this empty" in text_of(refused)
    assert Delegation.objects.count() == 1
    assert Visitor(cast.vic).post(f"{page}{made.pk}/end/").status_code == 403
    assert bo.post(f"{page}{made.pk}/end/").status_code == 302
    assert Delegation.objects.get().ended_by_id == cast.bo.user_id


def test_the_queue_and_the_packet_say_in_whose_name(walk: Walk) -> None:
    cast = walk.cast
    ria = cast.member("Ria Reviewer", [Role.REVIEWER])
    packet = asked(walk, '@stages("1 of group:security")')
    visitor = Visitor(ria)
    assert str(packet.public_id) not in text_of(visitor.get("/t/acme/queue/"))
    given = handed(cast.ada, ria)
    queue = text_of(visitor.get("/t/acme/queue/"))
    assert "for Ada Obi" in queue
    page = text_of(visitor.get(address_of(packet)))
    assert f"You decide for Ada Obi until {given.ends_at:%d %b %Y}" in page
    assert f'name="for" value="{cast.ada.user_id}"' in page.replace('hidden" name', "name") or (
        f'value="{cast.ada.user_id}"' in page
    )
    assert visitor.decide(packet, **{"for": str(cast.ada.user_id)}).status_code == 302
    assert walk.fresh(packet).state == PacketState.APPROVED
    refused = visitor.decide(parked_call(walk), **{"for": str(cast.bo.user_id)})
    assert refused.status_code == 403
    assert "You do not decide packet" in text_of(refused)


def test_the_giver_is_told_that_they_were_spoken_for(walk: Walk) -> None:
    packet, cast = waiting_for_two(walk), walk.cast
    handed(cast.ada, cast.bo)
    decide(packet, cast.bo, cast.ada)
    ada = Visitor(cast.ada)
    assert "Bo Lindqvist has answered in your name." in text_of(ada.get(address_of(packet)))
    assert str(packet.public_id) not in text_of(ada.get("/t/acme/queue/"))
    refused = ada.decide(packet)
    assert refused.status_code == 409
    assert "count as one person" in text_of(refused)


def test_reminders_reach_whoever_stands_in(walk: Walk) -> None:
    packet, cast = asked(walk, '@stages("1 of group:security")', '@remind("1h")'), walk.cast
    ria = cast.member("Ria Reviewer", [Role.REVIEWER])
    handed(cast.ada, ria)
    passed(packet, hours=1)
    walk.sweep()
    line = AuditEntry.objects.get(action="packet.reminded")
    assert line.facts["people"] == [cast.ada.user_id, ria.user_id]


def test_a_stage_of_two_is_not_filled_by_one_and_their_delegate(walk: Walk) -> None:
    staged(walk)
    cast = walk.cast
    dee = Membership.objects.get(user__name="Dee Third")
    eli = Membership.objects.get(user__name="Eli Fourth")
    for each in (dee, eli):
        people.set_roles(each.pk, [Role.REVIEWER], member=cast.max)
    group(walk, "security", cast.ada, dee, eli)
    in_force(walk, rule('@stages("2 of group:security")'))
    packet = walk.to_call()
    handed(cast.ada, cast.bo)  # Bo is of another group
    decide(packet, cast.bo, cast.ada)
    with pytest.raises(VoiceUsed):
        decide(packet, cast.ada)
    decide(packet, dee)
    assert walk.fresh(packet).state == PacketState.APPROVED


# --- Undoing in a name ------------------------------------------------------------------------


def held_in_a_name(walk: Walk) -> tuple[Packet, Membership]:
    """A call that Dee, a publisher, approved in the name of Ada, a reviewer; it is held."""
    dee = walk.cast.member("Dee Third", [Role.PUBLISHER])
    people.set_roles(walk.cast.ada.pk, [Role.REVIEWER], member=walk.cast.max)
    walk.hold_policy()
    packet = parked_call(walk)
    handed(walk.cast.ada, dee, kinds=[PacketKind.CALL])
    return decide(packet, dee, walk.cast.ada), dee


def undo(walk: Walk, packet: Packet, member: Membership) -> Packet:
    member.refresh_from_db()
    seen = walk.fresh(packet).round
    return undo_approval(packet.public_id, member=member, seen=seen, reason="The wrong title.")


def undone_by(packet: Packet) -> list[tuple[object, object, object]]:
    """Who undid its approvals, in whose name, by the events and by the audit log."""
    events = Event.objects.filter(run=packet.run_id, kind="packet.undone").order_by("seq")
    log = AuditEntry.objects.filter(action="packet.undone").order_by("pk")
    return [
        (one.facts["by"], one.facts.get("on_behalf_of"), other.facts.get("on_behalf_of"))
        for one, other in zip(events, log, strict=True)
    ]


@pytest.mark.both_databases
@pytest.mark.parametrize("over", [False, True], ids=["while it holds", "after it ended"])
def test_a_delegate_undoes_what_they_approved_in_a_name(walk: Walk, over: bool) -> None:
    packet, dee = held_in_a_name(walk)
    cast = walk.cast
    if over:
        delegation.end(Delegation.objects.get().pk, member=cast.ada)
    page = text_of(Visitor(dee).get(address_of(packet)))
    assert "you can undo it in the name of Ada Obi" in page
    again = undo(walk, packet, dee)
    assert (again.state, again.held_until, again.round) == (PacketState.OPEN, None, 2)
    assert undone_by(packet) == [("Dee Third", "Ada Obi", cast.ada.user_id)]


@pytest.mark.both_databases
def test_whoever_handed_it_over_undoes_it_too_whatever_their_roles_are_by_now(walk: Walk) -> None:
    packet, _ = held_in_a_name(walk)
    people.set_roles(walk.cast.ada.pk, [Role.VIEWER], member=walk.cast.max)
    undo(walk, packet, walk.cast.ada)
    assert undone_by(packet) == [("Ada Obi", None, None)]


@pytest.mark.both_databases
def test_who_has_the_right_of_another_undoes_what_others_approved(walk: Walk) -> None:
    dee = walk.cast.member("Dee Third", [Role.PUBLISHER])
    walk.hold_policy()
    packet = walk.decide(parked_call(walk), walk.cast.bo)
    with pytest.raises(NotAllowed):
        undo(walk, packet, dee)
    other = handed(walk.cast.ada, dee, kinds=[PacketKind.PUBLICATION])
    assert "Undo" not in text_of(Visitor(dee).get(address_of(packet)))
    with pytest.raises(NotAllowed):
        undo(walk, packet, dee)
    delegation.end(other.pk, member=walk.cast.ada)
    ours = handed(walk.cast.ada, dee)
    delegation.end(ours.pk, member=walk.cast.ada)
    with pytest.raises(NotAllowed):
        undo(walk, packet, dee)
    assert walk.fresh(packet).round == 1
    handed(walk.cast.ada, dee)
    undo(walk, packet, dee)
    assert undone_by(packet) == [("Dee Third", "Ada Obi", walk.cast.ada.user_id)]


@pytest.mark.both_databases
def test_a_web_host_whose_clock_is_behind_makes_no_honest_undo_a_forged_one(walk: Walk) -> None:
    clock.move_on(timedelta(days=2))
    dee = walk.cast.member("Dee Third", [Role.PUBLISHER])
    walk.hold_policy()
    packet = walk.decide(parked_call(walk), walk.cast.bo)
    handed(walk.cast.ada, dee, begins_at=timezone.now() + timedelta(days=1))
    undo(walk, packet, dee)
    assert AuditEntry.objects.get(action="packet.undone").at < Delegation.objects.get().begins_at
    keys = [key_id(signing_key().public_key())]
    assert verified(list(bundle.exported(walk.cast.acme)), keys).problems == []
