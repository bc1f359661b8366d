"""Invariants 1 to 4: what was approved happens, once, and is known to have happened."""

from __future__ import annotations

import copy
import hashlib
import json
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.utils import timezone

from approvals import errors, policy, publishing, seal
from approvals.models import Candidate, Decision, Packet, PolicyVersion, Publication, Receipt
from approvals.policy_text import DEFAULT_POLICY
from approvals.publishers import OutcomeUnknown, registry
from approvals.states import PacketState, PublicationState, Verdict
from portal import live
from portal.canonical import digest
from portal.errors import NotAllowed
from portal.handoff import Job
from runs import lifecycle
from runs.models import ContractVersion, Event, Run, ToolCall
from runs.states import CallState, RunStatus
from tests.acceptance.kit import contract_with
from tests.cast import (
    ASKING,
)
from tests.databases import triggers_off
from tests.walk import (
    Walk,
    call_of,
    parked_call,
)

# --- 1. What was approved is what happens -------------------------------------

BOTH = (
    *("tenant", "run", "kind", "effect", "tool", "target", "arguments", "requested_by", "scope"),
    *("egress", "source_commit", "image_digest", "cost", "gate", "shape"),
    *("contract.digest", "contract.version", "contract.manifest_digest"),
    *("agent.name", "agent.version", "agent.prompt_version", "agent.model"),
    *("policy.version", "policy.digest", "policy.result", "policy.rules", "policy.reason"),
)
OF_A_CALL = ("arguments_digest", "tool_kind", "denied_before")
OF_A_PUBLICATION = (
    *("candidate.digest", "candidate.tree", "candidate.base_commit", "candidate.tray", "receipts"),
    *(
        "arguments.branch",
        "arguments.commit",
        "arguments.tree",
        "arguments.body",
        "arguments.draft",
    ),
)


@pytest.mark.parametrize("of", ["a call", "a publication"])
def test_inv01_the_digest_covers_everything_that_is_shown(walk: Walk, of: str) -> None:
    packet = walk.to_call() if of == "a call" else walk.to_review()

    assert seal.intact(packet.page, packet.digest)
    for name in (*BOTH, *(OF_A_CALL if of == "a call" else OF_A_PUBLICATION)):
        page = copy.deepcopy(packet.page)
        *parents, key = name.split(".")
        part = page
        for parent in parents:
            part = part[parent]
        part[key] = ["something else"]  # KeyError: the page does not have it at all
        assert not seal.intact(page, packet.digest), name


def test_inv01_a_decision_is_for_the_digest_that_was_read(walk: Walk) -> None:
    packet = parked_call(walk)

    for seen, refusal in (("0" * 64, errors.PacketChanged), ("", errors.NeedsDigest)):
        with pytest.raises(refusal):
            walk.decide(packet, seen=seen)
    Packet.objects.filter(pk=packet.pk).update(page=packet.page | {"effect": "Do nothing."})
    with pytest.raises(errors.PacketDamaged):
        walk.decide(packet)
    assert not Decision.objects.exists()

    Packet.objects.filter(pk=packet.pk).update(page=packet.page)
    assert walk.decide(packet).state == PacketState.APPROVED


def test_inv01_a_call_that_changed_after_its_approval_is_not_made(walk: Walk) -> None:
    packet = walk.to_call()
    walk.decide(packet)
    call_row = call_of(packet)

    ToolCall.objects.filter(pk=call_row.pk).update(arguments_digest="0" * 64)
    walk.drain()

    assert walk.tracker.requests == []
    assert "these are not the arguments that were judged" in walk.heard(packet.run)


def _page_changed(packet: Packet) -> None:
    Packet.objects.filter(pk=packet.pk).update(page=packet.page | {"effect": "Do nothing."})


def _other_shape(packet: Packet) -> None:
    page = packet.page | {"shape": 0}
    Packet.objects.filter(pk=packet.pk).update(page=page, digest=digest(page))


def _decided_on_another_page(packet: Packet) -> None:
    with triggers_off(connection):
        Decision.objects.filter(packet=packet).update(digest="0" * 64)


def _used(packet: Packet) -> None:
    Packet.objects.filter(pk=packet.pk).update(used_at=F("settled_at"))


def _run_out(packet: Packet) -> None:
    Packet.objects.filter(pk=packet.pk).update(usable_until=F("settled_at"))


def _approved_later(packet: Packet) -> None:
    Packet.objects.filter(pk=packet.pk).update(settled_at=F("usable_until"))


def _about_another_call(packet: Packet) -> None:
    page = packet.page | {"arguments_digest": "0" * 64}
    Packet.objects.filter(pk=packet.pk).update(page=page, digest=digest(page))


def _not_approved(packet: Packet) -> None:
    Packet.objects.filter(pk=packet.pk).update(state=PacketState.WITHDRAWN)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_page_changed, "page_changed"),
        (_other_shape, "shape_unknown"),
        (_decided_on_another_page, "decision_on_another_page"),
        (_used, "used_already"),
        (_run_out, "approval_ran_out"),
        (_approved_later, "before_approval"),
        (_about_another_call, "call_changed"),
        (_not_approved, "not_approved"),
    ],
)
def test_inv01_the_packet_is_looked_at_again_where_its_call_begins(
    walk: Walk, change: Callable[[Packet], None], why: str
) -> None:
    packet = walk.to_call()
    walk.decide(packet)
    change(walk.fresh(packet))

    walk.drain()

    assert walk.tracker.requests == []
    (held,) = Event.objects.filter(run=packet.run, kind="call.held_back")
    assert held.facts["why"] == why
    assert "Refused: " in walk.heard(packet.run)


def test_inv05_a_call_does_not_begin_where_policy_cannot_be_asked(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    packet = walk.to_call()
    walk.decide(packet)

    def broken(*_: object) -> None:
        raise ValueError("it cannot be read any more")

    monkeypatch.setattr(policy, "decide", broken)
    walk.drain()
    assert walk.tracker.requests == []
    (held,) = Event.objects.filter(run=packet.run, kind="call.held_back")
    assert held.facts["why"] == "policy_not_evaluated"


def test_inv01_the_packet_of_a_call_says_when_it_was_used(walk: Walk) -> None:
    packet = walk.to_call()
    walk.decide(packet)
    assert walk.fresh(packet).used_at is None
    walk.drain()
    assert walk.fresh(packet).used_at is not None
    assert "call.held_back" not in walk.kinds(packet.run)


def test_inv01_a_packet_of_another_form_is_not_approved(walk: Walk) -> None:
    packet = parked_call(walk)
    for shape, refusal in ((0, errors.PacketOfOtherShape), (None, errors.PacketWithoutShape)):
        page = {key: value for key, value in packet.page.items() if key != "shape"}
        if shape is not None:
            page["shape"] = shape
        Packet.objects.filter(pk=packet.pk).update(page=page, digest=digest(page))
        with pytest.raises(refusal):
            walk.decide(walk.fresh(packet))
    assert walk.decide(walk.fresh(packet), verdict=Verdict.DENY).state == PacketState.DENIED


def test_inv01_a_person_reads_the_defaults_of_a_tool_and_they_are_sent(walk: Walk) -> None:
    packet = walk.to_call(text=contract_with(properties="urgent = { default = false }"))
    assert packet.page["arguments"]["urgent"] is False
    walk.decide(packet)
    walk.drain()
    (request,) = walk.tracker.requests
    assert json.loads(request.body) == packet.page["arguments"]


def _other_candidate(walk: Walk, publication: Publication) -> None:
    Candidate.objects.update(tree="0" * 40)


def _other_receipt(walk: Walk, publication: Publication) -> None:
    Receipt.objects.filter(check_name="secrets").update(evidence={"bytes": 1})


def _other_target(walk: Walk, publication: Publication) -> None:
    version = ContractVersion.objects.get()
    data = copy.deepcopy(version.data)
    data["target"]["path"] = "another.git"
    ContractVersion.objects.update(data=data)


def _other_page(walk: Walk, publication: Publication) -> None:
    packet = publication.packet
    Packet.objects.filter(pk=packet.pk).update(page=packet.page | {"effect": "Push nothing."})


def _other_policy(walk: Walk, publication: Publication) -> None:
    text = f"// Another one.\n{DEFAULT_POLICY}"
    told = hashlib.sha256(text.encode()).hexdigest()
    PolicyVersion.objects.update(text=text, digest=told)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_other_candidate, "publication.candidate_changed"),
        (_other_receipt, "publication.receipt_changed"),
        (_other_target, "publication.target_changed"),
        (_other_page, "publication.packet_changed"),
        (_other_policy, "publication.policy_changed"),
        (None, ""),
    ],
)
def test_inv01_everything_is_compared_again_where_the_approval_is_used(
    walk: Walk, change: Callable[[Walk, Publication], None] | None, code: str
) -> None:
    publication = walk.to_publish()
    if change is not None:
        change(walk, publication)

    walk.deliver(Job.PUBLISH, publication.pk)

    publication.refresh_from_db()
    assert publication.error_code == code
    assert len(walk.branches()) == (1 if change else 2)


def test_inv01_an_approval_is_used_once(walk: Walk) -> None:
    packet = walk.to_call()
    walk.decide(packet)
    walk.drain()
    asked = call_of(packet)
    assert asked.state == CallState.DONE

    # The same call again, under a lease of its own: it gets its recorded result and no new act.
    run = packet.run
    Run.objects.filter(pk=run.pk).update(status=RunStatus.QUEUED, lease_token=None)
    lease = lifecycle.claim_run(run.pk)
    assert lease is not None
    go, words, _ = lifecycle.begin_call(lease, asked.call_id, asked.arguments_digest)

    assert (go, words) == (False, asked.result)
    assert len(walk.tracker.requests) == 1


# --- 2. The database is the truth ---------------------------------------------


def test_inv02_the_walk_needs_neither_broker_nor_live_hints(walk: Walk, settings: Any) -> None:
    """Every hop and every hint is lost; the sweep alone brings the run to its end."""
    settings.CHANNEL_URL = "unix:///nowhere.sock?db=0"
    run = walk.run(ASKING, http=True)

    for _ in range(20):
        walk.lose_hops()
        walk.deliver(Job.SWEEP_RUNS)
        walk.deliver(Job.SWEEP_APPROVALS)
        for job, row_id in list(walk.hops):
            walk.deliver(job, row_id)
        packet = Packet.objects.filter(state=PacketState.OPEN).first()
        if packet is not None:
            walk.decide(packet)
        if not walk.fresh(run).is_live:
            break

    assert run.status == RunStatus.PUBLISHED
    assert len(walk.tracker.requests) == 1
    assert len(walk.branches()) == 2


def test_inv02_a_hint_carries_no_data(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    topics: set[str] = set()
    monkeypatch.setattr(live, "changed", lambda *given: topics.update(given))

    walk.decide(walk.to_call())

    kinds = {topic.partition(".")[0] for topic in topics}
    assert kinds == {"run", "queue", "packet"}
    assert all(topic.partition(".")[2].isdecimal() for topic in topics)


# --- 3. Nothing happens twice -------------------------------------------------


def test_inv03_every_hop_may_come_three_times(walk: Walk) -> None:
    def whole_walk(times: int) -> Run:
        run = walk.run(ASKING, http=True, verification=True)
        while walk.hops:
            job, row_id = walk.hops.popleft()
            for _ in range(times):
                walk.deliver(job, row_id)
            packet = Packet.objects.filter(run=run, state=PacketState.OPEN).first()
            if packet is not None and not walk.hops:
                walk.decide(packet)
        return run

    once, thrice = whole_walk(1), whole_walk(3)

    assert walk.status(once) == walk.status(thrice) == RunStatus.PUBLISHED
    assert walk.kinds(thrice) == walk.kinds(once)
    assert len(walk.tracker.requests) == 2  # one of each run
    assert len(walk.branches()) == 3
    for model in (Candidate, Publication):
        assert model.objects.filter(run=thrice).count() == 1


def test_inv03_an_outward_request_has_a_name_that_follows_from_its_run(walk: Walk) -> None:
    """So that a service which knows such keys does not act twice either."""
    packet = walk.to_call()
    walk.decide(packet)
    walk.drain()

    (request,) = walk.tracker.requests
    key = uuid.uuid5(packet.run.public_id, call_of(packet).call_id)
    assert request.headers["Idempotency-Key"] == str(key)


def test_inv03_a_publisher_looks_before_it_acts(walk: Walk) -> None:
    """The worker died after the push and before the record: the next one finds the branch."""
    publication = walk.to_publish()
    walk.drain()
    head = walk.tree(publication.branch)
    Run.objects.update(status=RunStatus.PUBLISHING)
    Publication.objects.update(
        state=PublicationState.ACTING,
        lease_token="0" * 32,
        lease_expires_at=timezone.now() - timedelta(seconds=1),
    )

    assert walk.deliver(Job.PUBLISH, publication.pk) == "done"

    publication.refresh_from_db()
    assert "not done twice" in publication.note
    assert walk.tree(publication.branch) == head == publication.tree
    assert len(walk.branches()) == 2


# --- 4. An unknown outcome is said to be unknown ------------------------------


@pytest.mark.parametrize("happened", [True, False])
def test_inv04_a_request_without_an_answer_is_unknown_until_a_person_settles_it(
    walk: Walk, happened: bool
) -> None:
    walk.tracker.manner = "drop"
    packet = walk.to_call()
    walk.decide(packet)
    walk.drain()

    run, asked = packet.run, call_of(packet)
    assert (walk.status(run), asked.state) == (RunStatus.WAITING, CallState.UNKNOWN)
    assert "call.unknown" in walk.kinds(run)
    for _ in range(3):  # nobody tries it again
        walk.sweep()
    assert len(walk.tracker.requests) == 1

    with pytest.raises(NotAllowed):
        lifecycle.settle_unknown_call(asked, happened=happened, note="", member=walk.cast.vic)
    lifecycle.settle_unknown_call(asked, happened=happened, note="I looked.", member=walk.cast.ada)
    walk.drain()

    assert walk.status(run) == RunStatus.IN_REVIEW
    words = "it happened" if happened else "it did not happen"
    assert f"A person confirmed that {words}. I looked." in walk.heard(run)
    assert len(walk.tracker.requests) == 1


def test_inv04_a_publication_without_an_answer_is_unknown(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    publication = walk.to_publish()
    silent_after_the_act(monkeypatch)
    walk.drain()
    publication.refresh_from_db()
    assert publication.state == PublicationState.UNKNOWN
    for _ in range(3):
        walk.sweep()
    publication.refresh_from_db()
    assert (publication.state, publication.attempts) == (PublicationState.UNKNOWN, 1)

    monkeypatch.undo()
    with pytest.raises(NotAllowed):
        publishing.reconcile(publication.public_id, member=walk.cast.vic)
    assert publishing.reconcile(publication.public_id, member=walk.cast.ada) == "done"

    assert walk.status(publication.run) == RunStatus.PUBLISHED
    assert len(walk.branches()) == 2


def silent_after_the_act(monkeypatch: pytest.MonkeyPatch) -> None:
    """The publisher does its work, and the answer never comes."""
    real = registry.publisher_for

    class Silent:
        def __init__(self, target: Any) -> None:
            self.look = real(target).look
            self.act = real(target).publish

        def publish(self, *arguments: Any) -> Any:
            self.act(*arguments)
            raise OutcomeUnknown(act="the push", target="the target", reason="no answer")

    monkeypatch.setattr(publishing, "publisher_for", Silent)
