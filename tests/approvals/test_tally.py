"""A bundle shows whether those who approved a packet were enough, and may have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from approvals import bundle, canaries, delegation, errors
from approvals.deciding import Answer, settle_packet
from approvals.editing import edit_packet
from approvals.models import Canaries, Decision, Delegation, Packet
from approvals.states import Verdict
from approvals.tally import Tally
from approvals.undo import release_packet, undo_approval
from approvals.verifier import verified
from approvals.withdraw import withdraw_packet
from portal import audit
from portal.canonical import digest
from portal.dsse import key_id
from portal.models import AuditEntry, Membership, User
from portal.roles import Role
from portal.signing import signing_key
from tests.approvals.stages import SECURITY, TWO_HOURS, in_force, passed, rule, staged
from tests.walk import Walk

pytestmark = pytest.mark.django_db(transaction=True)


def problems(walk: Walk) -> str:
    keys = [key_id(signing_key().public_key())]
    report = verified(bundle.exported(walk.cast.acme), keys)
    return "\n".join(map(str, report.problems))


def write(
    packet: Packet,
    member: Membership,
    result: str,
    *,
    round: int = 1,
    at: datetime | None = None,
    behalf: User | None = None,
    **facts: Any,
) -> None:
    """An approval that nobody gave: written into the table, and told in the log."""
    Decision.objects.create(
        tenant=packet.tenant,
        packet=packet,
        person=member.user,
        on_behalf_of=behalf,
        verdict="approve",
        digest=packet.digest,
        round=round,
        decided_at=at or timezone.now(),
    )
    with transaction.atomic():
        audit.record(
            "packet.approved",
            tenant=packet.tenant,
            subject=packet,
            actor=member.user,
            digest=packet.digest,
            result=result,
            comment="",
            round=round,
            self_approved=False,
            **({"on_behalf_of": behalf.pk} if behalf else {}),
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


def line(packet: Packet, action: str, **facts: Any) -> None:
    with transaction.atomic():
        audit.record(
            f"packet.{action}",
            tenant=packet.tenant,
            subject=packet,
            digest=facts.pop("digest", packet.digest),
            **facts,
        )


@pytest.mark.parametrize("ended", ["denied", "withdrawn", "expired"])
def test_inv14_an_approval_after_the_end_is_found_offline(walk: Walk, ended: str) -> None:
    packet = walk.to_call()
    if ended == "denied":
        walk.decide(packet, walk.cast.bo, Verdict.DENY)
    else:
        line(packet, ended)
    assert problems(walk) == ""
    write(packet, walk.cast.ada, "approved")
    assert "is about a packet that was not open" in problems(walk)


def test_inv14_an_approval_of_another_page_is_found_offline(walk: Walk) -> None:
    packet = walk.to_call()
    packet.digest = "f" * 64
    write(packet, walk.cast.ada, "approved")
    assert "was made on another page" in problems(walk)


def test_inv14_an_approval_after_its_time_is_found_offline(walk: Walk) -> None:
    in_force(walk, rule('@decide("1m")'))
    packet = walk.to_call()
    write(packet, walk.cast.ada, "approved", at=packet.expires_at)
    assert "came after the time to decide" in problems(walk)


def test_inv14_a_round_of_votes_that_nothing_began_is_found_offline(walk: Walk) -> None:
    in_force(walk, rule('@needs("2")\n@hold("1m")'))
    packet = walk.to_call()
    walk.decide(packet)
    write(packet, walk.cast.bo, "open", round=2)
    assert "is of another round of votes than its packet is in" in problems(walk)
    line(packet, "undone", round=4)
    assert "begins a round of votes that does not follow" in problems(walk)


def test_inv14_a_packet_that_is_opened_twice_is_found_offline(walk: Walk) -> None:
    packet = walk.to_call()
    line(packet, "opened", kind=packet.kind, words=digest(packet.agent_words))
    assert "opens a packet twice, or out of order" in problems(walk)


# --- What the log says beside the answers ---------------------------------------------------------


def in_a_name(packet: Packet, giver: Membership, **facts: Any) -> None:
    """Bo's approval in the name of another, written into table and log."""
    bo = packet.tenant.memberships.get(user__name="Bo Lindqvist")
    write(packet, bo, "open", behalf=giver.user, **facts)


@pytest.mark.parametrize("what", ["never", "ended", "over", "not yet", "other kind", "other tool"])
def test_inv14_a_name_without_the_right_is_found_offline(walk: Walk, what: str) -> None:
    cast, now = walk.cast, timezone.now()
    in_force(walk, rule('@needs("2")'))
    begins = now + timedelta(days=1) if what == "not yet" else now - timedelta(hours=2)
    ends = now - timedelta(hours=1) if what == "over" else now + timedelta(days=2)
    kinds = ["publication"] if what == "other kind" else []
    tools = ["exec_command"] if what == "other tool" else []
    if what != "never":
        told: dict[str, Any] = {"begins": begins.isoformat(), "ends": ends.isoformat()}
        told_of: dict[str, Any] = {"giver": cast.ada.user_id, "taker": cast.bo.user_id}
        of: dict[str, Any] = {"kinds": kinds, "tools": tools}
        log(walk, "delegation.made", "delegation:1", cast.ada, **told, **told_of, **of)
    if what == "ended":
        log(walk, "delegation.ended", "delegation:1", cast.ada, giver=1, taker=2, why="ended")
    in_a_name(walk.to_call(), cast.ada)
    found = problems(walk)
    assert {
        "never": "a name whose right was not handed over, or not any more",
        "ended": "a name whose right was not handed over, or not any more",
        "over": "before or after that was theirs",
        "not yet": "before or after that was theirs",
        "other kind": "not of what was handed over",
        "other tool": "not of what was handed over",
    }[what] in found


def test_inv14_a_right_that_another_hands_over_is_found_offline(walk: Walk) -> None:
    cast, now = walk.cast, timezone.now()
    told: dict[str, Any] = {
        "begins": now.isoformat(),
        "ends": (now + timedelta(days=1)).isoformat(),
    }
    told |= {"kinds": [], "tools": []}
    whose: dict[str, Any] = {"giver": cast.ada.user_id, "taker": cast.bo.user_id}
    log(walk, "delegation.made", "delegation:1", cast.bo, **told, **whose)
    assert "hands over a right that is somebody else's" in problems(walk)
    log(walk, "delegation.made", "delegation:2", cast.ada, **whose)
    assert "hands over a right that cannot be read" in problems(walk)


def test_a_bundle_of_one_packet_shows_who_handed_the_right_over(walk: Walk) -> None:
    cast, now = walk.cast, timezone.now()
    wanted = delegation.Wanted(cast.bo.pk, now, now + timedelta(days=3))
    delegation.hand_over(wanted, member=cast.ada)
    packet = walk.to_call()
    answer = Answer(Verdict.APPROVE, packet.digest, behalf=cast.ada.user_id)
    settle_packet(packet.public_id, answer, member=cast.bo)
    asked = bundle.Asked(packet=packet)
    keys = [key_id(signing_key().public_key())]
    lines = list(bundle.exported(cast.acme, asked))
    report = verified(lines, keys)
    assert (report.problems, report.notes) == ([], [])
    assert any(b"delegation.made" in each for each in lines)
    Delegation.objects.all().delete()
    (note,) = verified(bundle.exported(cast.acme, asked), keys).notes
    assert "does not show who handed that over" in note


def log(walk: Walk, action: str, subject: str, actor: Membership, **facts: Any) -> None:
    with transaction.atomic():
        audit.record(action, tenant=walk.cast.acme, subject=subject, actor=actor.user, **facts)


def test_inv14_whoever_stands_in_too_soon_is_found_offline(walk: Walk) -> None:
    staged(walk)
    in_force(walk, rule(f"{SECURITY}\n{TWO_HOURS}"))
    packet = walk.to_call()
    early: dict[str, Any] = {"stage": "Security", "stood_in": "Owners"}
    write(packet, walk.cast.bo, "open", **early)
    assert "stands in before the log lets anybody" in problems(walk)
    line(packet, "escalated", after_seconds=7200, moment=timezone.now().isoformat())
    assert "lets people stand in before their time" in problems(walk)
    write(packet, walk.cast.max, "open", **early)
    assert "stands in before its time" in problems(walk)
    write(packet, walk.cast.olu, "open", stage="Security", stood_in="Somebody")
    assert "fills a place as somebody whom its page does not name" in problems(walk)
    line(packet, "escalated", after_seconds=60)
    assert "lets people stand in whom its page does not name" in problems(walk)


def test_inv14_a_hold_that_was_shortened_is_found_offline(walk: Walk) -> None:
    in_force(walk, rule('@hold("15m")'))
    packet = walk.decide(walk.to_call())
    assert problems(walk) == ""
    soon = (timezone.now() + timedelta(minutes=14)).isoformat()
    line(packet, "released", moment=soon)
    assert "ends a hold before its time" in problems(walk)


def test_inv14_a_hold_that_did_not_begin_is_found_offline(walk: Walk) -> None:
    in_force(walk, rule('@hold("15m")'))
    packet = walk.to_call()
    line(packet, "held", until=timezone.now().isoformat())
    assert "holds an approval that nobody gave" in problems(walk)
    other = walk.to_call()
    write(other, walk.cast.ada, "approved")
    later = (timezone.now() + timedelta(hours=1)).isoformat()
    line(other, "released", moment=later)
    assert "ends a hold that did not begin" in problems(walk)


def test_inv14_a_hold_for_less_than_the_page_says_is_found_offline(walk: Walk) -> None:
    in_force(walk, rule('@hold("15m")'))
    packet = walk.to_call()
    write(packet, walk.cast.ada, "approved")
    line(packet, "held", until=(timezone.now() + timedelta(minutes=5)).isoformat())
    assert "holds an approval for less than its page says" in problems(walk)
    write(packet, walk.cast.bo, "approved")
    assert "came while an approval was held" in problems(walk)


def test_inv14_an_answer_before_the_question_is_found_offline(walk: Walk) -> None:
    packet = walk.to_call()
    write(packet, walk.cast.ada, "approved", at=packet.opened_at - timedelta(seconds=1))
    assert "came before it was asked" in problems(walk)


def test_inv14_a_publication_that_nobody_approved_is_found_offline(walk: Walk) -> None:
    publication = walk.to_publish()
    walk.drain()
    assert problems(walk) == ""
    told = AuditEntry.objects.get(action="publication.done")
    with transaction.atomic():
        audit.record(told.action, tenant=walk.cast.acme, subject=told.subject, **told.facts)
    assert "publishes what nobody approved here, or publishes it twice" in problems(walk)
    later = bundle.Asked(since=AuditEntry.objects.get(action="packet.approved").at)
    walk.fresh(publication)
    report = verified(bundle.exported(walk.cast.acme, later), [key_id(signing_key().public_key())])
    assert report.problems == []
    assert any("approved outside of what this bundle shows" in each for each in report.notes)


def test_inv14_a_history_of_every_act_adds_up(walk: Walk) -> None:
    staged(walk)
    in_force(walk, rule(f'{SECURITY}\n{TWO_HOURS}\n@hold("15m")'))
    packet = passed(walk.to_call(), hours=2)
    walk.decide(packet, walk.cast.bo)  # who stands in
    undo_approval(packet.public_id, member=walk.cast.ada, seen=1, reason="")
    walk.decide(packet)
    walk.let_go(packet)
    assert release_packet(packet.pk)

    in_force(walk, rule('@needs("2")'))
    first = walk.to_call()
    walk.decide(first, walk.cast.bo)
    text = json.dumps({"title": "Something else"})
    second = edit_packet(first.public_id, member=walk.cast.ada, seen=first.digest, text=text)
    text = json.dumps(first.page["arguments"])
    others = [walk.cast.member(f"{name} Fifth", [Role.REVIEWER]) for name in ("Fay", "Gus")]
    third = edit_packet(second.public_id, member=others[0], seen=second.digest, text=text)
    assert Decision.objects.filter(packet=third, carried_from__isnull=False).count() == 1
    walk.decide(third, others[1])
    assert walk.fresh(third).state == "approved"

    walk.decide(walk.to_call(), verdict=Verdict.DENY)
    withdrawn = walk.to_call()
    withdraw_packet(withdrawn.public_id, member=walk.cast.olu, reason="Not needed.")
    walk.run_out(walk.to_call())
    walk.sweep()
    in_force(walk, "")
    plain = walk.to_call()
    walk.decide(plain)
    canaries.choose(7, member=walk.cast.max)
    Canaries.objects.update(next_at=timezone.now())
    assert canaries.open_due(plain.tenant_id) is not None
    test = Packet.objects.get(canary__isnull=False)
    assert walk.decide(test).state == "approved"

    assert problems(walk) == ""
