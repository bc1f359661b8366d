"""An approval that is held: what happens meanwhile, how it is undone, how it takes effect."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from functools import partial

import pytest
from django.utils import timezone

from approvals import bundle, errors
from approvals.demands import Demands, joined
from approvals.models import Decision, Packet, Publication
from approvals.policy import PolicyRefused, check_policy
from approvals.policy_text import DEFAULT_POLICY
from approvals.states import PacketState
from approvals.undo import release_packet, undo_approval
from approvals.verifier import verified
from portal.dsse import key_id
from portal.errors import BadInput, NotAllowed, NotFound
from portal.handoff import Job
from portal.models import AuditEntry, Membership
from portal.roles import Role
from portal.signing import signing_key
from runs.lifecycle import ask_cancel, event_chain_broken_at
from runs.models import Event
from runs.states import RunStatus
from tests.races.crowd import at_once
from tests.visits import Visitor, address_of, text_of
from tests.walk import Walk, call_of, parked_call


def held_call(walk: Walk) -> Packet:
    """A call that Ada approved, and that takes effect in a quarter of an hour."""
    walk.hold_policy()
    packet = walk.decide(parked_call(walk))
    walk.lose_hops()
    return packet


def undo(walk: Walk, packet: Packet, member: Membership | None = None, reason: str = "") -> Packet:
    seen = walk.fresh(packet).round
    return undo_approval(packet.public_id, member=member or walk.cast.ada, seen=seen, reason=reason)


def test_nothing_of_a_held_approval_happens_before_its_time(walk: Walk) -> None:
    packet = held_call(walk)
    assert (packet.state, packet.settled_at) == (PacketState.OPEN, None)
    left = packet.held_until - timezone.now()  # type: ignore[operator]
    assert timedelta(minutes=14) < left <= timedelta(minutes=15)
    walk.sweep()
    assert release_packet(packet.pk) is False
    assert (call_of(packet).state, walk.status(packet.run)) == ("waiting", RunStatus.WAITING)
    assert list(walk.hops) == []

    walk.let_go(packet)
    assert "1 release" in walk.deliver(Job.SWEEP_APPROVALS)
    assert release_packet(packet.pk) is False  # and a second time does nothing
    packet = walk.fresh(packet)
    assert (packet.state, packet.held_until) == (PacketState.APPROVED, None)
    assert packet.usable_until - packet.settled_at == timedelta(seconds=packet.valid_seconds)  # type: ignore[operator]
    assert (call_of(packet).state, walk.status(packet.run)) == ("approved", RunStatus.QUEUED)
    assert list(walk.hops) == [(Job.EXECUTE_RUN, packet.run_id)]
    assert walk.kinds(packet.run)[-5:-1] == [
        *("packet.approved", "packet.held", "packet.released", "call.answered"),
    ]


def test_inv05_an_undone_approval_is_none_and_all_are_asked_anew(walk: Walk) -> None:
    packet = held_call(walk)
    undone = undo(walk, packet, walk.cast.bo, "The title is wrong.")
    assert (undone.state, undone.held_until, undone.round) == (PacketState.OPEN, None, 2)
    walk.let_go(undone)
    walk.sweep()
    assert call_of(packet).state == "waiting"
    line = AuditEntry.objects.get(action="packet.undone")
    assert (line.actor_id, line.facts["reason"]) == (walk.cast.bo.user_id, "The title is wrong.")

    # Whoever answered before may answer again, and is counted once.
    walk.decide(packet, comment="Now it is right.")
    with pytest.raises(errors.PacketHeld):
        walk.decide(packet, walk.cast.bo)
    walk.let_go(packet)
    assert release_packet(packet.pk)
    assert Decision.objects.filter(packet=packet).count() == 2
    assert [each.comment for each in walk.fresh(packet).votes()] == ["Now it is right."]
    assert call_of(packet).answer == "Now it is right."


def test_of_two_that_are_needed_both_votes_are_void(walk: Walk) -> None:
    walk.hold_policy()
    packet = walk.to_review(gate="approvals = 2")
    walk.decide(packet)
    assert walk.fresh(packet).held_until is None  # one is missing still
    walk.decide(packet, walk.cast.bo)
    undo(walk, packet)
    assert not Publication.objects.exists()
    assert walk.decide(packet).held_until is None
    assert walk.decide(packet, walk.cast.bo).held_until is not None
    walk.let_go(packet)
    walk.sweep()
    walk.drain()
    publication = Publication.objects.get()
    assert walk.status(packet.run) == RunStatus.PUBLISHED
    predicate = bundle_receipt(publication)
    assert [each["person"] for each in predicate["decisions"]] == ["Ada Obi", "Bo Lindqvist"]


def bundle_receipt(publication: Publication) -> dict[str, list[dict[str, str]]]:
    payload = (publication.statement or {})["payload"]
    said: dict[str, list[dict[str, str]]] = json.loads(base64.b64decode(payload))["predicate"]
    return said


def test_who_may_undo_and_when(walk: Walk) -> None:
    packet = held_call(walk)
    for member in (walk.cast.vic, walk.cast.aud, walk.cast.max):
        with pytest.raises(NotAllowed):
            undo(walk, packet, member)
    with pytest.raises(NotFound):
        undo(walk, packet, walk.cast.eve)
    with pytest.raises(errors.NothingHeld):  # a click that was meant for another hold
        undo_approval(packet.public_id, member=walk.cast.ada, seen=2, reason="")
    with pytest.raises(BadInput):
        undo(walk, packet, reason="a\x00b")
    with pytest.raises(errors.WordsTooLong):
        undo(walk, packet, reason="a" * 501)
    assert walk.fresh(packet).round == 1

    walk.let_go(packet)
    release_packet(packet.pk)
    with pytest.raises(errors.NothingHeld, match="approved"):
        undo(walk, packet)


def test_inv05_a_held_approval_outlives_its_packets_time_and_not_its_people(walk: Walk) -> None:
    packet = held_call(walk)
    walk.run_out(packet)
    walk.sweep()
    assert walk.fresh(packet).state == PacketState.OPEN  # it was decided in time

    Membership.objects.filter(pk=walk.cast.ada.pk).update(roles=[Role.VIEWER.value])
    walk.let_go(packet)
    assert release_packet(packet.pk) is False
    packet = walk.fresh(packet)
    assert (packet.state, packet.round, call_of(packet).state) == (PacketState.OPEN, 2, "waiting")
    ended = Event.objects.get(kind="packet.hold_ended")
    assert "too few may approve it now" in ended.facts["reason"]
    walk.sweep()
    assert walk.fresh(packet).state == PacketState.EXPIRED


def test_inv05_policy_that_denies_by_now_ends_the_hold(walk: Walk) -> None:
    packet = held_call(walk)
    walk.new_policy(deny_http=True)
    walk.let_go(packet)
    walk.sweep()
    assert (walk.fresh(packet).state, call_of(packet).state) == (PacketState.OPEN, "waiting")
    assert "denies" in Event.objects.get(kind="packet.hold_ended").facts["reason"]


def test_inv01_a_page_that_changed_in_the_hold_is_not_carried_out(walk: Walk) -> None:
    packet = held_call(walk)
    Packet.objects.filter(pk=packet.pk).update(page=packet.page | {"target": "elsewhere"})
    walk.let_go(packet)
    assert release_packet(packet.pk) is False
    assert call_of(packet).state == "waiting"


def test_a_run_that_is_stopped_takes_its_held_packet_along(walk: Walk) -> None:
    packet = held_call(walk)
    ask_cancel(packet.run, member=walk.cast.olu)
    walk.drain()
    walk.let_go(walk.fresh(packet))
    assert release_packet(packet.pk) is False
    walk.sweep()
    packet = walk.fresh(packet)
    assert (packet.state, packet.held_until) == (PacketState.CANCELLED, None)
    assert call_of(packet).state == "cancelled"


@pytest.mark.both_databases
def test_inv03_undoing_against_taking_effect(walk: Walk, database: str) -> None:
    """Undone, or carried out: never both, and never twice."""
    walk.hold_policy()
    for _ in range(20):
        packet = walk.decide(parked_call(walk))
        walk.lose_hops()
        walk.let_go(packet)
        outcomes = at_once(
            [
                partial(undo, walk, packet),
                partial(release_packet, packet.pk),
                partial(release_packet, packet.pk),
            ]
        )
        undone, *released = outcomes
        failed = [each for each in released if isinstance(each, Exception)]
        assert failed == []
        if isinstance(undone, Packet):
            assert released == [False, False]
            assert call_of(packet).state == "waiting"
        else:
            assert isinstance(undone, errors.NothingHeld), undone
            assert sorted(released) == [False, True]
            assert call_of(packet).state == "approved"
            assert list(walk.hops) == [(Job.EXECUTE_RUN, packet.run_id)]
        assert event_chain_broken_at(packet.run) is None


def test_inv14_a_bundle_holds_the_votes_of_both_rounds(walk: Walk) -> None:
    packet = held_call(walk)
    undo(walk, packet)
    walk.decide(packet, comment="Yes, after all.")
    walk.deliver(Job.SWEEP_EVIDENCE)
    lines = list(bundle.exported(walk.cast.acme))
    keys = [key_id(signing_key().public_key())]
    assert verified(lines, keys).problems == []
    # Two votes of one person on one page differ by their round alone.
    swapped = [line.replace(b'"round":2', b'"round":1') for line in lines]
    assert verified(swapped, keys).problems != []


def test_the_page_says_that_it_is_held_and_has_the_button(walk: Walk) -> None:
    walk.hold_policy()
    packet, ada, vic = parked_call(walk), Visitor(walk.cast.ada), Visitor(walk.cast.vic)
    ada.decide(packet)
    page = text_of(ada.get(address_of(packet)))
    assert "Approved. Until it takes effect it can be undone." in page
    assert "Approved, not in effect yet" in page
    assert address_of(packet, "undo") in page
    assert 'name="answer"' not in page
    assert "can still be undone" in text_of(ada.get(f"/t/{packet.tenant.slug}/queue/?show=all"))
    seen_by_vic = text_of(vic.get(address_of(packet)))
    assert "It takes effect at" in seen_by_vic
    assert address_of(packet, "undo") not in seen_by_vic
    assert ada.decide(packet, "deny", comment="No.", token="other").status_code == 409

    assert ada.post(address_of(packet, "undo"), round="1", reason="Wrong one.").status_code == 302
    page = text_of(ada.get(address_of(packet)))
    assert "An approval was taken back before it took effect." in page
    assert "void since the approval was undone" in page
    assert 'value="approve"' in page
    assert ada.post(address_of(packet, "undo"), round="1").status_code == 409
    assert ada.post(address_of(packet, "undo"), round="x").status_code == 409


@pytest.mark.parametrize("span", ["", "soon", "0m", "15", "8d", "1.5h", "-1m", "15 m"])
def test_a_hold_that_is_no_span_of_time_is_refused_with_its_place(span: str) -> None:
    text = DEFAULT_POLICY.replace(
        '@id("publish-after-review")', f'@id("publish-after-review")\n@hold("{span}")'
    )
    with pytest.raises(PolicyRefused, match="is no span of time up to 7 days") as refused:
        check_policy(text)
    (problem,) = refused.value.problems
    assert text.splitlines()[(problem.line or 0) - 1] == f'@hold("{span}")'


def test_a_hold_on_a_rule_that_asks_nobody_is_refused() -> None:
    text = DEFAULT_POLICY.replace('@id("path-not-allowed")', '@id("path-not-allowed")\n@hold("1h")')
    with pytest.raises(PolicyRefused, match="have no effect here"):
        check_policy(text)


def test_the_table_of_rules_tells_the_hold(walk: Walk) -> None:
    walk.hold_policy("15m")
    page = text_of(Visitor(walk.cast.max).get("/t/acme/policies/"))
    assert page.count("can be undone for 15 min") == 2


def test_the_longest_hold_of_several_rules_counts() -> None:
    assert joined([Demands(hold=60), Demands(hold=7200), Demands()]).hold == 7200
    assert joined([]).sealed({}) == {"needed": 1, "roles": []}
