"""An edit against an approval, another edit, and many at once against one: one of them wins."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial

import pytest

from approvals import errors
from approvals.bulk import Wanted, settle_all
from approvals.editing import edit_packet
from approvals.models import Decision, Packet
from approvals.policies import decide_policy, propose_policy
from approvals.policy_text import DEFAULT_POLICY
from approvals.states import PacketState, Verdict
from portal.models import AuditEntry
from runs.models import ToolCall
from runs.states import CallState
from tests.approvals import stages
from tests.races.crowd import at_once
from tests.walk import Walk, parked_call

pytestmark = pytest.mark.both_databases
REPEATS = 20


def test_an_edit_against_an_approval(walk: Walk, database: str) -> None:
    """Either the call is approved as it was read, or it is asked about as it was edited."""
    won = Counter[str]()
    for number in range(REPEATS):
        packet = parked_call(walk)
        text = json.dumps({"title": f"Edited {number}"})
        outcomes = at_once(
            [
                partial(
                    edit_packet,
                    packet.public_id,
                    member=walk.cast.bo,
                    seen=packet.digest,
                    text=text,
                ),
                partial(walk.decide, packet, walk.cast.ada),
            ]
        )
        kinds = [isinstance(each, Packet) for each in outcomes]
        assert sorted(kinds) == [False, True], outcomes
        lost = next(each for each in outcomes if not isinstance(each, Packet))
        assert isinstance(lost, errors.AlreadySettled)
        state = walk.fresh(packet).state
        won[state] += 1
        if state == PacketState.APPROVED:
            row = ToolCall.objects.get(packet=packet)
            assert (row.state, row.proposed) == (CallState.APPROVED, None)
            assert row.arguments == packet.page["arguments"]
        else:
            assert state == PacketState.SUPERSEDED
            following = Packet.objects.get(supersedes=packet)
            row = ToolCall.objects.get(packet=following)
            assert (row.state, row.arguments) == (CallState.WAITING, json.loads(text))
            assert following.state == PacketState.OPEN
            assert not Decision.objects.filter(packet__in=[packet, following]).exists()
    assert won.total() == REPEATS


def test_two_edits_of_one_packet(walk: Walk, database: str) -> None:
    for number in range(REPEATS):
        packet = parked_call(walk)
        outcomes = at_once(
            [
                partial(
                    edit_packet,
                    packet.public_id,
                    member=who,
                    seen=packet.digest,
                    text=json.dumps({"title": f"{who.user.name} {number}"}),
                )
                for who in (walk.cast.ada, walk.cast.bo)
            ]
        )
        made = [each for each in outcomes if isinstance(each, Packet)]
        lost = [each for each in outcomes if isinstance(each, errors.AlreadySettled)]
        assert (len(made), len(lost)) == (1, 1), outcomes
        assert list(packet.successors.all()) == made
        row = ToolCall.objects.get(packet=made[0])
        assert row.arguments == made[0].page["arguments"]
        assert row.edited_by == made[0].edited_by
    assert AuditEntry.objects.filter(action="packet.edited").count() == REPEATS


def test_many_at_once_against_one_of_them(walk: Walk, database: str) -> None:
    """Each packet has one outcome, and each of the many is told its own."""
    text = DEFAULT_POLICY.replace(
        '@id("outward-needs-a-person")', '@id("outward-needs-a-person")\n@risk("low")'
    )
    version = propose_policy(text, member=walk.cast.max)
    admin = stages.second_admin(walk)
    decide_policy(version, approve=True, seen=version.digest, member=admin)
    packets = [parked_call(walk) for _ in range(10)]
    wanted = [Wanted(each.public_id, each.digest) for each in packets]
    many = partial(
        settle_all, wanted, Verdict.APPROVE, comment="", token="many", member=walk.cast.ada
    )
    singles = [partial(walk.decide, each, walk.cast.bo, Verdict.DENY) for each in packets]
    first, again, *others = at_once([many, many, *singles])
    for packet, one, two, single in zip(packets, first, again, others, strict=True):
        state = walk.fresh(packet).state
        decided = isinstance(single, Packet)
        assert state == (PacketState.DENIED if decided else PacketState.APPROVED)
        assert (one.packet, two.packet) == (packet, packet)
        for each in (one, two):
            assert bool(each.why) == decided, each.why
            assert not decided or "already denied by Bo" in each.why
        assert Decision.objects.filter(packet=packet).count() == 1
