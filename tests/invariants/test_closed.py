"""Invariants 5 to 7: it fails closed, nobody approves their own, a tenant sees only itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from approvals import errors, opening, publishing
from approvals.access import access_candidate, access_packet, access_publication
from approvals.models import Decision, Packet, PolicyVersion, Publication
from approvals.receipt import verify
from approvals.states import PacketState, Verdict
from portal import blobs, tenancy
from portal.errors import NotFound
from portal.models import AuditEntry, Membership, User
from portal.roles import Role
from portal.signing import signing_key
from runs import lifecycle
from runs.access import access_run
from runs.models import Checkpoint, ContractVersion, Event, Run, ToolCall
from runs.states import CallState, RunStatus
from tests.cast import (
    ASKING,
    REPAIR,
    contract_text,
    make_version,
    transcript,
)
from tests.walk import (
    Walk,
    call_of,
    parked_call,
)

ENDS = [PacketState.DENIED, PacketState.EXPIRED, PacketState.WITHDRAWN, PacketState.CANCELLED]


# --- 5. Fails closed ----------------------------------------------------------


def _no_policy() -> None:
    PolicyVersion.objects.update(state=PolicyVersion.State.SUPERSEDED)


def _broken_policy() -> None:
    text = "permit (principal, action, resource) when { 1 < };"
    told = hashlib.sha256(text.encode()).hexdigest()
    PolicyVersion.objects.update(text=text, digest=told)


@pytest.mark.parametrize("spoil", [_no_policy, _broken_policy])
def test_inv05_without_a_sound_policy_nothing_is_done_and_nothing_leaves(
    walk: Walk, spoil: Callable[[], None]
) -> None:
    waiting, reviewed = walk.to_call(), walk.to_review()
    spoil()

    for packet in (waiting, reviewed):
        with pytest.raises(errors.PolicyNowDenies):
            walk.decide(packet)
    run = walk.run(REPAIR)
    walk.drain()

    states = set(ToolCall.objects.filter(run=run).values_list("state", flat=True))
    assert states == {CallState.REFUSED}
    assert walk.tracker.requests == []
    assert walk.branches() == ["main"]


@pytest.mark.parametrize(
    ("verdict", "heard", "not_heard"),
    [
        (None, "Expired: nobody decided in time. This is not a denial", "Denied by"),
        (Verdict.DENY, "Denied by Ada Obi: Not like this.", "Expired"),
        (Verdict.REQUEST_CHANGES, "Changes requested by Ada Obi: Not like this.", "Denied by"),
    ],
)
def test_inv05_the_agent_hears_what_became_of_its_call(
    walk: Walk, verdict: Verdict | None, heard: str, not_heard: str
) -> None:
    packet = walk.to_call()
    if verdict is None:
        walk.run_out(packet)
        walk.sweep()
    else:
        walk.decide(packet, verdict=verdict)
        walk.drain()

    conversation = walk.heard(packet.run)
    assert heard in conversation
    assert not_heard not in conversation
    assert walk.tracker.requests == []


def test_inv05_time_never_approves_a_publication(walk: Walk) -> None:
    packet = walk.run_out(walk.to_review())
    walk.sweep()

    packet.refresh_from_db()
    assert packet.state == PacketState.EXPIRED
    assert walk.status(packet.run) == RunStatus.EXPIRED
    assert walk.branches() == ["main"]


def test_inv05_a_lost_checkpoint_ends_the_run_and_not_the_approval_rule(walk: Walk) -> None:
    packet = walk.to_call()
    checkpoint = Checkpoint.objects.get(run=packet.run)
    blobs.path_of(walk.cast.acme.pk, checkpoint.snapshot_blob).unlink()

    walk.decide(packet)
    walk.drain()

    assert walk.status(packet.run) == RunStatus.FAILED
    assert (packet.run.failure_boundary, packet.run.retry_safe) == ("recovery", False)
    assert walk.tracker.requests == []
    assert call_of(packet).state == CallState.CANCELLED


def test_inv05_the_ends_of_a_packet_are_different_words(walk: Walk) -> None:
    denied = walk.decide(walk.to_review(), verdict=Verdict.DENY)
    expired = walk.run_out(walk.to_review())
    walk.sweep()
    cancelled = walk.to_review()
    lifecycle.ask_cancel(cancelled.run, member=walk.cast.olu)
    withdrawn = walk.to_call()
    Run.objects.filter(pk=withdrawn.run_id).update(
        status=RunStatus.FAILED, failure_boundary="control"
    )
    walk.sweep()

    found = [walk.fresh(each).state for each in (denied, expired, withdrawn, cancelled)]
    assert found == ENDS
    runs = [walk.status(each.run) for each in (denied, expired, cancelled)]
    assert runs == [RunStatus.DENIED, RunStatus.EXPIRED, RunStatus.CANCELLED]
    assert walk.branches() == ["main"]


# --- 6. Nobody approves their own ---------------------------------------------


@pytest.mark.parametrize("relation", ["requester", "author of the contract", "author of the rule"])
def test_inv06_whoever_has_a_part_in_it_cannot_approve_it(walk: Walk, relation: str) -> None:
    insider = walk.cast.member("Ina Sider", [Role.OPERATOR, Role.REVIEWER])
    version = make_version(walk.cast, contract_text(http=True), recording=transcript(ASKING))
    if relation == "author of the contract":
        ContractVersion.objects.filter(pk=version.pk).update(author=insider.user)
    if relation == "author of the rule":
        PolicyVersion.objects.update(author=insider.user)
    asks = insider if relation == "requester" else walk.cast.olu
    run = lifecycle.request_run(version, member=asks)
    walk.drain()
    packet = walk.open_packet(run)

    with pytest.raises(errors.OwnRequest):
        walk.decide(packet, insider)
    assert not Decision.objects.exists()
    refused = AuditEntry.objects.get(action="packet.decision_refused")
    assert (refused.actor, refused.facts["code"]) == (insider.user, "approvals.own_request")

    assert walk.decide(packet, walk.cast.bo).state == PacketState.APPROVED


def test_inv06_a_machine_never_decides_and_counts_as_its_owner(walk: Walk) -> None:
    packet = parked_call(walk)
    with pytest.raises(errors.MachineMayNotDecide):
        walk.decide(packet, walk.cast.mona)

    # What a machine of Ada's asks for, Ada cannot approve.
    User.objects.filter(pk=walk.cast.mona.user_id).update(owner=walk.cast.ada.user)
    Run.objects.filter(pk=packet.run_id).update(requested_by=walk.cast.mona.user)
    run = Run.objects.get(pk=packet.run_id)
    assert walk.cast.ada.user_id in opening.excluded_people(run, None)
    assert walk.cast.mona.user_id not in opening.excluded_people(run, None)


def test_inv06_a_person_counts_once(walk: Walk) -> None:
    packet = walk.to_review(gate="approvals = 2")
    walk.decide(packet)
    with pytest.raises(errors.AlreadyDecided):
        walk.decide(packet)
    assert walk.fresh(packet).state == PacketState.OPEN

    assert walk.decide(packet, walk.cast.bo).state == PacketState.APPROVED


def test_inv06_one_person_alone_is_labelled_everywhere(walk: Walk) -> None:
    walk.cast.acme.one_person = True
    walk.cast.acme.save(update_fields=["one_person"])
    Membership.objects.filter(pk=walk.cast.olu.pk).update(
        roles=[Role.OPERATOR, Role.REVIEWER, Role.PUBLISHER]
    )
    packet = walk.to_review()

    settled = walk.decide(packet, walk.cast.olu)
    walk.drain()

    assert settled.self_approved
    assert Decision.objects.get(packet=packet).self_approved
    event = Event.objects.get(run=packet.run, kind="packet.approved")
    entry = AuditEntry.objects.get(action="packet.approved")
    assert event.facts["self_approved"]
    assert entry.facts["self_approved"]
    statement = Publication.objects.get(packet=packet).statement
    assert statement is not None
    content = verify(statement, [signing_key().public_key()])
    assert [each["self_approved"] for each in content["predicate"]["decisions"]] == [True]


# --- 7. A tenant sees only itself ---------------------------------------------


def test_inv07_to_others_a_thing_does_not_exist(walk: Walk) -> None:
    publication = walk.to_publish()
    packet, candidate, run = publication.packet, publication.candidate, publication.run
    doors: list[tuple[Callable[..., Any], Any]] = [
        (access_packet, packet.public_id),
        (access_candidate, candidate.public_id),
        (access_publication, publication.public_id),
        (access_run, run.public_id),
    ]

    for door, public_id in doors:
        with pytest.raises(NotFound):
            door(walk.cast.eve, public_id)
        assert door(walk.cast.vic, public_id)
    writes: list[Callable[[], Any]] = [
        lambda: walk.decide(packet, walk.cast.eve),
        lambda: lifecycle.ask_cancel(run, member=walk.cast.eve),
        lambda: lifecycle.request_run(run.version, member=walk.cast.eve),
        lambda: publishing.reconcile(publication.public_id, member=walk.cast.eve),
        lambda: publishing.try_again(publication.public_id, member=walk.cast.eve),
        lambda: publishing.give_up(publication.public_id, member=walk.cast.eve, note="x"),
    ]
    for write in writes:
        with pytest.raises(NotFound):
            write()
    assert AuditEntry.objects.filter(tenant=walk.cast.globex).count() == 1  # that it was opened


@pytest.mark.both_databases
def test_inv07_the_second_wall_hides_the_rows_of_others(walk: Walk, database: str) -> None:
    """On PostgreSQL a forgotten filter finds nothing; SQLite has only the guarded door."""
    parked_call(walk)
    with tenancy.scope(walk.cast.globex.pk):
        found = [model.objects.count() for model in (Run, Packet, ToolCall, Event)]
    assert (found == [0, 0, 0, 0]) == (database == "postgres")
    with tenancy.scope(walk.cast.acme.pk):
        assert Run.objects.count() == Packet.objects.count() == 1
