"""Evidence of capabilities on its page, each number with its packets, and a rule made of it."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from approvals import capabilities, capability
from approvals.capability import Capability
from approvals.deciding import proposed
from approvals.judge import TenantJudge, policy_in_force
from approvals.models import Packet, PolicyVersion
from approvals.policies import decide_policy, propose_policy
from approvals.policy import CallFacts, recalled, stored
from approvals.states import Verdict
from runs import lifecycle
from runs.judging import Judge
from runs.models import ToolCall
from runs.states import CallState
from tests.approvals.stages import second_admin
from tests.visits import Visitor, address_of, text_of
from tests.walk import Walk, parked_call

FACTS = CallFacts(
    *("mender", "create_issue", "http", True, True, "acme", "repair-adder"),
    method="GET",
    host="127.0.0.1",
    port=80,
    argument_bytes=31,
)
KEY = Capability.of(FACTS).key


def reading(walk: Walk, facts: CallFacts = FACTS) -> Packet:
    """An open packet of a call that only reads."""
    packet = parked_call(walk)
    ToolCall.objects.filter(packet=packet).update(facts=stored(facts))
    return packet


def history(walk: Walk) -> list[Packet]:
    """Three that were allowed by two people, in the order they were asked."""
    packets = [reading(walk) for _ in range(3)]
    for packet, member in zip(packets, (walk.cast.ada, walk.cast.bo, walk.cast.ada), strict=True):
        walk.decide(packet, member)
    return packets


@pytest.fixture(autouse=True)
def _few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capability, "ENOUGH", 3)


def numbers(page: Any, key: str = KEY) -> dict[str, int]:
    row = re.search(rf'<tr id="capability-{key}">.*?</tr>', text_of(page), re.DOTALL)
    assert row is not None
    cells = re.findall(r'data-label="(\w+)">(?:<a [^>]*>)?(\d+)', row[0])
    return {name.lower(): int(number) for name, number in cells}


@pytest.mark.both_databases
def test_each_number_is_linked_to_its_packets(walk: Walk) -> None:
    allowed = history(walk)
    denied, waits = reading(walk), reading(walk)
    walk.decide(denied, walk.cast.bo, Verdict.DENY)
    other = reading(walk, CallFacts(**{**vars(FACTS), "host": "elsewhere.example"}))
    max_ = Visitor(walk.cast.max)

    page = max_.get("/t/acme/policies/evidence/")

    assert numbers(page) == {
        **{"asked": 5, "allowed": 3, "denied": 1, "changes": 0, "expired": 0, "undone": 0}
    }
    assert '<option value="90" selected>' in text_of(page)
    wanted = {"asked": [*allowed, denied, waits], "allowed": allowed, "denied": [denied]}
    for column, packets in wanted.items():
        text = text_of(max_.get(f"/t/acme/policies/evidence/{KEY}/{column}/?days=90"))
        for each in (*allowed, denied, waits, other):
            assert (address_of(each) in text) is (each in packets), (column, each.number)
    assert "None." in text_of(max_.get(f"/t/acme/policies/evidence/{KEY}/undone/"))
    assert max_.get(f"/t/acme/policies/evidence/{KEY}/nonsense/").status_code == 404
    assert max_.get("/t/acme/policies/evidence/?days=5").status_code == 400


def test_what_is_older_is_not_counted(walk: Walk) -> None:
    history(walk)
    long_ago = timezone.now() - timedelta(days=100)
    ToolCall.objects.filter(packet=Packet.objects.order_by("pk")[0]).update(created_at=long_ago)
    visitor = Visitor(walk.cast.max)
    assert numbers(visitor.get("/t/acme/policies/evidence/"))["asked"] == 2
    assert numbers(visitor.get("/t/acme/policies/evidence/?days=365"))["asked"] == 3


def test_an_undone_approval_speaks_against_a_rule(walk: Walk) -> None:
    packets = history(walk)
    Packet.objects.filter(pk=packets[0].pk).update(round=2)
    found = capabilities.evidence_of(walk.cast.acme, KEY, 90)
    assert found is not None
    assert found.counts["undone"] == 1
    assert found.advice[0] == "keep"
    assert Visitor(walk.cast.max).get(f"/t/acme/policies/new/?suggest={KEY}").status_code == 400


@pytest.mark.both_databases
def test_a_suggestion_goes_the_way_of_every_policy_and_counts_its_uses(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    history(walk)
    visitor = Visitor(walk.cast.max)
    assert f"?suggest={KEY}&amp;days=90" in text_of(visitor.get("/t/acme/policies/evidence/"))

    page = visitor.get(f"/t/acme/policies/new/?suggest={KEY}&days=90")

    text = page.context["form"].initial["text"]
    assert f'@id("evidence-{KEY[:12]}")' in text
    assert not PolicyVersion.objects.filter(tenant=walk.cast.acme, number=2).exists()
    version = propose_policy(text, member=walk.cast.max)
    decide_policy(version, approve=True, seen=version.digest, member=second_admin(walk))
    assert "not used in 90 days" in text_of(visitor.get("/t/acme/policies/2/"))

    # The judge itself, on the facts of such a call: today, and on the rule's last day.
    call = ToolCall.objects.order_by("pk")[0]
    judge: Judge = TenantJudge()
    monkeypatch.setattr("approvals.judge.call_facts", lambda *_: recalled(CallFacts, call.facts))

    def judged() -> Any:
        return judge.judge(
            call.run,
            lifecycle.contract_of(call.run),
            proposed(call),
            target=call.target,
            outward=True,
        )

    verdict = judged()
    assert (verdict.state, verdict.rules) == (CallState.ALLOWED, (f"evidence-{KEY[:12]}",))
    in_force = policy_in_force(walk.cast.acme.pk)
    assert in_force is not None
    ToolCall.objects.create(
        tenant=call.tenant,
        run=call.run,
        call_id="by-rule",
        tool=call.tool,
        kind="http",
        arguments={},
        arguments_digest="0" * 64,
        target=call.target,
        outward=True,
        state=CallState.DONE,
        rules=list(verdict.rules),
        policy_version=2,
        facts=verdict.facts,
    )
    assert capabilities.uses_of(in_force)[f"evidence-{KEY[:12]}"].count == 1
    assert "used 1 time in 90 days" in text_of(visitor.get("/t/acme/policies/"))

    ends = timezone.now() + capability.LASTS
    monkeypatch.setattr("approvals.judge.database_now", lambda: ends)
    assert judged().state is CallState.WAITING
    monkeypatch.setattr("approvals.capabilities.database_now", lambda: ends)
    assert "over" in text_of(visitor.get("/t/acme/policies/2/"))
