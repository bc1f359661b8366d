"""A packet that nobody decides: reminders, others who stand in, and the times rules give."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest
from django.utils import timezone

from approvals import bundle, errors, uses
from approvals.models import Packet
from approvals.policy import PolicyRefused
from approvals.reminding import nudge_packet
from approvals.states import PacketKind, PacketState
from approvals.verifier import verified
from portal import people
from portal.dsse import key_id
from portal.handoff import Job
from portal.models import AuditEntry
from portal.roles import Role
from portal.signing import signing_key
from runs.lifecycle import ask_cancel
from runs.models import Event
from tests.approvals.stages import SECURITY, TWO_HOURS, asked, group, in_force, passed, rule, staged
from tests.races.crowd import at_once
from tests.visits import Visitor, address_of, text_of
from tests.walk import Walk, call_of

# --- Times to decide and to carry out ---------------------------------------------------------


def test_a_packet_expires_at_the_sooner_of_contract_and_rule(walk: Walk) -> None:
    packet = asked(walk, '@decide("4h")')
    assert packet.expires_at - packet.opened_at == timedelta(hours=4)
    assert packet.page["gate"]["decide_seconds"] == 4 * 3600
    longer = asked(walk, '@decide("30d")')
    assert longer.expires_at - longer.opened_at == timedelta(days=1)  # the contract's


def test_E01_the_time_a_rule_gives_is_over_before_the_sweep_saw_it(walk: Walk) -> None:
    packet = passed(asked(walk, '@decide("4h")'), hours=4)
    with pytest.raises(errors.PacketExpired):
        walk.decide(packet)
    walk.sweep()
    assert walk.fresh(packet).state == PacketState.EXPIRED
    assert call_of(packet).state == "expired"


@pytest.mark.both_databases
def test_E02_an_approval_is_used_later_than_its_rule_allows(walk: Walk, database: str) -> None:
    packet = asked(walk, '@execute("30m")')
    assert packet.valid_seconds == 1800
    walk.decide(packet)
    packet = walk.fresh(packet)
    assert packet.usable_until is not None
    assert packet.settled_at is not None
    assert packet.usable_until - packet.settled_at == timedelta(minutes=30)
    assert call_of(packet).usable_until == packet.usable_until

    just = packet.settled_at + timedelta(minutes=30, seconds=-1)
    assert uses.why_void(packet, PacketKind.CALL, just) is None
    # Whatever somebody writes into the row: the page says how long.
    packet.usable_until += timedelta(days=1)
    packet.valid_seconds = 10**6
    late = uses.why_void(packet, PacketKind.CALL, packet.settled_at + timedelta(minutes=30))
    assert late is not None
    assert late.why == "approval_ran_out"


def test_INV01_times_and_who_stands_in_are_in_the_digest(walk: Walk) -> None:
    packet = asked(walk, SECURITY, TWO_HOURS, '@decide("4h")', '@execute("30m")', '@remind("1h")')
    for change in (
        {"decide_seconds": 1},
        {"execute_seconds": 10**6},
        {"remind_seconds": 1},
        {"stages": [{**packet.page["gate"]["stages"][0], "fallbacks": []}]},
    ):
        page = {**packet.page, "gate": {**packet.page["gate"], **change}}
        Packet.objects.filter(pk=packet.pk).update(page=page)
        with pytest.raises(errors.PacketDamaged):
            walk.decide(packet)


# --- Reminders --------------------------------------------------------------------------------


@pytest.mark.both_databases
def test_each_reminder_is_given_once(walk: Walk, database: str) -> None:
    packet = asked(walk, '@remind("1h")')
    assert nudge_packet(packet.pk) is False
    passed(packet, hours=1)
    outcomes = at_once([partial(nudge_packet, packet.pk) for _ in range(4)])
    assert sorted(map(str, outcomes)) == ["False", "False", "False", "True"]
    walk.sweep()
    assert walk.fresh(packet).reminded == 1
    line = AuditEntry.objects.get(action="packet.reminded")
    assert line.facts["number"] == 1

    # Nothing swept for half a day: one reminder, not eleven.
    passed(packet, hours=11, minutes=30)
    walk.sweep()
    walk.sweep()
    packet = walk.fresh(packet)
    assert packet.reminded == 2
    assert packet.remind_at == packet.opened_at + timedelta(hours=13)
    assert AuditEntry.objects.filter(action="packet.reminded").count() == 2


def test_reminded_are_those_who_may_still_decide(walk: Walk) -> None:
    packet = asked(walk, '@needs("2")', '@remind("1h")')
    walk.decide(packet)  # Ada has answered
    passed(packet, hours=1)
    walk.sweep()
    cast, line = walk.cast, AuditEntry.objects.get(action="packet.reminded")
    assert cast.bo.user_id in line.facts["people"]
    for other in (cast.ada, cast.olu, cast.vic, cast.max, cast.eve):
        assert other.user_id not in line.facts["people"]


def test_what_is_decided_held_or_over_is_reminded_of_no_more(walk: Walk) -> None:
    held = asked(walk, '@remind("1h")', '@hold("15m")')
    walk.decide(held)
    stopped = asked(walk, '@remind("1h")')
    ask_cancel(stopped.run, member=walk.cast.olu)
    expired = asked(walk, '@remind("1h")', '@decide("2h")')
    for packet in (held, stopped, expired):
        passed(packet, hours=3)
        assert nudge_packet(packet.pk) is False
    walk.sweep()
    assert not AuditEntry.objects.filter(action="packet.reminded").exists()


def test_the_queue_says_what_one_was_reminded_of(walk: Walk) -> None:
    packet = asked(walk, '@remind("1h")', '@execute("30m")')
    ada, vic = Visitor(walk.cast.ada), Visitor(walk.cast.vic)
    queue = f"/t/{packet.tenant.slug}/queue/"
    assert "you were reminded" not in text_of(ada.get(queue))
    since = timezone.now().isoformat().replace("+", "%2B")
    passed(packet, hours=2)
    walk.sweep()
    page = text_of(ada.get(queue))
    assert "1 packet waits for you, and you were reminded." in page
    assert "reminded once" in page
    assert "to be carried out within 30 minutes" in page
    # Live: the fragment that an open page asks for has it too.
    news = ada.get(f"{queue}news/?since={since}&row={packet.public_id}")
    assert "1 packet waits for you" in text_of(news)
    assert "you were reminded" not in text_of(vic.get(f"{queue}?show=all"))
    told = text_of(ada.get(address_of(packet)))
    assert "A rule wants it to be carried out within 30 minutes of the decision." in told


# --- Others who stand in ----------------------------------------------------------------------


def test_after_its_time_others_may_fill_the_place(walk: Walk) -> None:
    packet = asked(walk, SECURITY, TWO_HOURS)
    with pytest.raises(errors.CountsForNothing):
        walk.decide(packet, walk.cast.bo)
    assert "After 2 hours undecided, people of Owners may fill places too." in text_of(
        Visitor(walk.cast.ada).get(address_of(packet))
    )
    queue = f"/t/{packet.tenant.slug}/queue/"
    bo = Visitor(walk.cast.bo)
    assert str(packet.public_id) not in text_of(bo.get(queue))

    passed(packet, hours=2)
    walk.sweep()
    walk.sweep()
    packet = walk.fresh(packet)
    assert (packet.escalated, packet.escalate_at) == (7200, None)
    event = Event.objects.get(kind="packet.escalated")
    assert event.facts["to"] == "of Owners"
    line = AuditEntry.objects.get(action="packet.escalated")
    assert (line.facts["after_seconds"], line.facts["people"]) == (7200, [walk.cast.bo.user_id])

    assert str(packet.public_id) in text_of(bo.get(queue))
    page = text_of(bo.get(address_of(packet)))
    assert "Nobody decided within 2 hours, so people of Owners may fill places too." in page
    assert "you count as Owners, standing in for Security" in page
    walk.decide(packet, walk.cast.bo)
    assert walk.fresh(packet).state == PacketState.APPROVED
    event = Event.objects.get(kind="packet.approved")
    assert (event.facts["stage"], event.facts["stood_in"]) == ("Security", "Owners")


@pytest.mark.both_databases
def test_the_clock_decides_and_not_the_sweep(walk: Walk, database: str) -> None:
    packet = asked(walk, SECURITY, TWO_HOURS)
    passed(packet, hours=1, minutes=59)
    with pytest.raises(errors.CountsForNothing):
        walk.decide(packet, walk.cast.bo)
    passed(packet, minutes=1)
    # No sweep came: the answer itself writes the step down before it counts on it.
    walk.decide(packet, walk.cast.bo)
    actions = list(
        AuditEntry.objects.filter(action__startswith="packet.")
        .order_by("seq")
        .values_list("action", flat=True)
    )
    assert actions == ["packet.opened", "packet.escalated", "packet.approved"]
    assert nudge_packet(packet.pk) is False


def test_INV06_who_stands_in_is_excluded_as_everybody_is_and_counts_once(walk: Walk) -> None:
    staged(walk)
    asker = walk.cast.olu
    group(walk, "owners", asker, walk.cast.bo)
    in_force(walk, rule(f'@stages("2 of group:security")\n{TWO_HOURS}'))
    people.set_roles(asker.pk, [Role.OPERATOR, Role.REVIEWER], member=walk.cast.max)
    packet = passed(walk.to_call(), hours=2)
    walk.sweep()
    with pytest.raises(errors.OwnRequest):
        walk.decide(packet, asker)
    walk.decide(packet, walk.cast.bo)
    with pytest.raises(errors.AlreadyDecided):
        walk.decide(packet, walk.cast.bo)
    assert walk.fresh(packet).state == PacketState.OPEN
    walk.decide(packet)
    assert walk.fresh(packet).state == PacketState.APPROVED


def test_a_stage_of_nobody_is_reachable_where_others_stand_in_in_time(walk: Walk) -> None:
    staged(walk)
    group(walk, "security")
    with pytest.raises(PolicyRefused, match="nobody there may approve"):
        in_force(walk, rule(SECURITY))
    packet = asked_of_nobody(walk)
    page = text_of(Visitor(walk.cast.bo).get(address_of(packet)))
    assert "nobody there may approve" not in page
    # The contract's day is over before they may.
    late = asked_of_nobody(walk, '@escalate("2d to group:owners")')
    assert "nobody there may approve" in text_of(Visitor(walk.cast.bo).get(address_of(late)))


def asked_of_nobody(walk: Walk, notes: str = TWO_HOURS) -> Packet:
    in_force(walk, rule(f"{SECURITY}\n{notes}"))
    packet = walk.to_call()
    walk.lose_hops()
    return packet


def test_a_group_that_is_not_there_cannot_stand_in(walk: Walk) -> None:
    staged(walk)
    with pytest.raises(PolicyRefused, match="There is no group `ownres`") as refused:
        in_force(walk, rule(f'{SECURITY}\n@escalate("2h to group:ownres")'))
    assert "Did you mean `owners`?" in str(refused.value)


def test_the_table_of_rules_tells_times_and_who_stands_in(walk: Walk) -> None:
    asked(walk, SECURITY, TWO_HOURS, '@decide("4h")', '@execute("30m")', '@remind("1h")')
    page = text_of(Visitor(walk.cast.max).get("/t/acme/policies/"))
    for words in (
        "after 2 hours undecided the group owners may fill places too",
        "to be decided within 4 hours",
        "to be carried out within 30 minutes of the decision",
        "to be brought up again every hour until it is decided",
    ):
        assert words in page


def test_INV14_reminders_and_steps_are_in_the_evidence_and_hold(walk: Walk) -> None:
    packet = asked(walk, SECURITY, TWO_HOURS, '@remind("1h")')
    passed(packet, hours=2)
    walk.sweep()
    walk.decide(packet, walk.cast.bo)
    walk.deliver(Job.SWEEP_EVIDENCE)
    lines = list(bundle.exported(walk.cast.acme))
    report = verified(lines, [key_id(signing_key().public_key())])
    assert report.problems == []
    assert sum(b"packet.reminded" in each or b"packet.escalated" in each for each in lines) >= 2
