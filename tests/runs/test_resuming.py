"""A run that goes on: is it still the same job, and would its inputs still be granted now?"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.utils import timezone

from approvals import seal
from approvals.evidence import examine
from approvals.models import Packet
from approvals.states import PacketKind, PacketState, Verdict
from portal.handoff import Job
from portal.models import Membership
from runs import lifecycle, recovery
from runs.models import Checkpoint, ContractVersion, Credential, Event, Resumption, Run
from runs.source import SourceRefused
from runs.states import CallState, ResumeState, RunStatus
from tests.acceptance.kit import contract_with, give_credential
from tests.cast import git
from tests.visits import Visitor, address_of, text_of
from tests.walk import Walk, call_of

pytestmark = pytest.mark.both_databases


def resumed(run: Run) -> dict[str, object]:
    """The answers that the last resume recorded."""
    event = Event.objects.filter(run=run, kind="sandbox.restored").order_by("-seq").first()
    assert event is not None
    return {name: event.facts[name] for name in ("same_job", "still_granted", "changed")}


def resume_packet(run: Run) -> Packet:
    """The open packet that asks whether the run may go on."""
    return Packet.objects.get(run=run, kind=PacketKind.RESUME, state=PacketState.OPEN)


def test_nothing_changed_and_the_answers_are_recorded(walk: Walk) -> None:
    packet = walk.to_call()
    walk.decide(packet)
    walk.drain()

    assert walk.status(packet.run) == RunStatus.IN_REVIEW
    assert resumed(packet.run) == {"same_job": True, "still_granted": True, "changed": []}
    assert not Resumption.objects.exists()
    kept = Checkpoint.objects.filter(run=packet.run).first()
    assert kept is not None
    assert kept.source_commit == walk.commit
    assert kept.footing["policy"]["version"] == 1
    assert kept.footing["source"]["head"] == walk.commit


def policy_changes(walk: Walk) -> None:
    walk.new_policy()


def contract_changes(walk: Walk) -> None:
    ContractVersion.objects.update(state=ContractVersion.State.SUPERSEDED)


def requester_leaves(walk: Walk) -> None:
    Membership.objects.filter(pk=walk.cast.olu.pk).update(roles=["viewer"])


def credential_widens(walk: Walk) -> None:
    Credential.objects.update(actions=["issues: read", "issues: write"])


def credential_goes(walk: Walk) -> None:
    Credential.objects.update(retired_at=timezone.now())


def source_moves(walk: Walk) -> None:
    tree = git("rev-parse", "main^{tree}", cwd=walk.root / "adder.git")
    new = git("commit-tree", tree, "-p", "main", "-m", "next", cwd=walk.root / "adder.git")
    git("update-ref", "refs/heads/main", new, cwd=walk.root / "adder.git")


CHANGES = (
    (policy_changes, "policy", (True, False)),
    (contract_changes, "contract", (False, True)),
    (requester_leaves, "membership", (True, False)),
    (credential_widens, "credential", (True, False)),
    (credential_goes, "credential", (True, False)),
    (source_moves, "source", (False, True)),
)


@pytest.mark.parametrize(("change", "what", "answers"), CHANGES)
def test_what_changed_is_shown_and_a_person_decides(
    walk: Walk, change: Callable[[Walk], None], what: str, answers: tuple[bool, bool]
) -> None:
    give_credential(walk, "the-value-" + "x" * 20)
    packet = walk.to_call(text=contract_with(credential="token"))
    walk.decide(packet)
    change(walk)
    walk.drain()

    run = walk.fresh(packet.run)
    assert run.status == RunStatus.WAITING
    assert call_of(packet).state == CallState.APPROVED
    assert walk.tracker.requests == []
    assert walk.leftovers() == []
    asked = resume_packet(run)
    assert [each["what"] for each in asked.page["differences"]] == [what]
    page = text_of(Visitor(walk.cast.ada).get(address_of(asked)))
    assert f"although its {what} changed" in page
    assert "At the checkpoint" in page
    assert "Approve and go on" in page
    assert "No credential is used" not in page
    assert "Request changes" not in page

    assert Visitor(walk.cast.ada).decide(asked).status_code == 302
    walk.drain()

    told = resumed(run)
    assert (told["same_job"], told["still_granted"]) == answers
    assert told["changed"] == [what]
    assert walk.status(run) == RunStatus.IN_REVIEW
    assert Resumption.objects.get().state == ResumeState.USED


def test_a_new_value_under_the_same_scope_is_no_difference(walk: Walk) -> None:
    give_credential(walk, "the-old-" + "x" * 20)
    packet = walk.to_call(text=contract_with(credential="token"))
    give_credential(walk, "the-new-" + "y" * 20)
    walk.decide(packet)
    walk.drain()
    assert walk.status(packet.run) == RunStatus.IN_REVIEW
    assert not Resumption.objects.exists()


def parked(walk: Walk) -> tuple[Run, Packet]:
    """A run that waits for the answer whether it may go on after a change of policy."""
    packet = walk.to_call()
    walk.decide(packet)
    walk.new_policy()
    walk.drain()
    run = walk.fresh(packet.run)
    return run, resume_packet(run)


def test_a_denial_ends_the_run_and_it_can_be_restarted_clean(walk: Walk) -> None:
    run, asked = parked(walk)
    walk.decide(asked, verdict=Verdict.DENY, comment="Begin anew.")
    walk.drain()

    assert walk.status(run) == RunStatus.FAILED
    assert (run.failure_boundary, run.failure_code) == ("recovery", "runs.resume_denied")
    assert [each.way.value for each in recovery.failure_of(run).offers] == ["restart"]
    assert walk.tracker.requests == []
    again = recovery.recover(run, "restart", seen=run.event_head, member=walk.cast.olu)
    walk.drain()
    assert walk.open_packet(again).kind == PacketKind.CALL


def test_nobody_answers_and_the_run_expires(walk: Walk) -> None:
    run, asked = parked(walk)
    walk.run_out(asked)
    walk.sweep()
    assert walk.status(run) == RunStatus.EXPIRED
    assert walk.fresh(asked).state == PacketState.EXPIRED
    assert Resumption.objects.get().state == ResumeState.EXPIRED
    assert walk.tracker.requests == []


def test_who_asked_for_the_run_does_not_let_it_go_on(walk: Walk) -> None:
    _, asked = parked(walk)
    assert walk.cast.olu.user.person_id in asked.excluded
    assert walk.cast.max.user.person_id in asked.excluded  # who wrote the policy of now


def test_another_change_asks_anew(walk: Walk) -> None:
    """An approval is about exactly these differences."""
    run, asked = parked(walk)
    walk.decide(asked)
    source_moves(walk)
    walk.drain()
    walk.sweep()

    second = resume_packet(run)
    assert second.pk != asked.pk
    assert [each["what"] for each in second.page["differences"]] == ["policy", "source"]
    states = Resumption.objects.order_by("pk").values_list("state", flat=True)
    assert list(states) == [ResumeState.WITHDRAWN, ResumeState.WAITING]


def test_a_dead_worker_asks_nobody_again(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = parked(walk)
    walk.decide(asked)

    def lost(*given: object, **named: object) -> None:
        raise lifecycle.LeaseLost

    with monkeypatch.context() as patched:
        patched.setattr(lifecycle, "begin_call", lost)
        walk.drain()
    assert Resumption.objects.get().state == ResumeState.USED
    walk.lose_worker(run)
    walk.sweep()

    assert walk.status(run) == RunStatus.IN_REVIEW
    assert Packet.objects.filter(kind=PacketKind.RESUME).count() == 1


def test_an_approval_that_was_not_used_in_time_asks_again(walk: Walk) -> None:
    run, asked = parked(walk)
    walk.decide(asked)
    Resumption.objects.update(usable_until=timezone.now() - timedelta(seconds=1))
    walk.drain()
    assert resume_packet(run).pk != asked.pk
    assert walk.tracker.requests == []


def test_a_lost_hop_is_found_by_the_sweep(walk: Walk) -> None:
    packet = walk.to_call()
    walk.decide(packet)
    walk.new_policy()
    walk.deliver(Job.EXECUTE_RUN, packet.run_id)
    walk.lose_hops()
    assert not Packet.objects.filter(kind=PacketKind.RESUME).exists()

    walk.sweep()

    assert resume_packet(packet.run).page["arguments"]["checkpoint"] == 1


def test_a_stopped_run_asks_nobody(walk: Walk) -> None:
    run, asked = parked(walk)
    lifecycle.ask_cancel(run, member=walk.cast.olu)
    walk.drain()
    assert walk.status(run) == RunStatus.CANCELLED
    assert walk.fresh(asked).state == PacketState.CANCELLED
    assert Resumption.objects.get().state == ResumeState.WITHDRAWN


def test_a_page_that_was_tampered_with_is_not_approved(walk: Walk) -> None:
    _, asked = parked(walk)
    Resumption.objects.update(differences=[])
    assert Visitor(walk.cast.ada).decide(asked).status_code == 409
    assert walk.fresh(asked).state == PacketState.OPEN


def test_a_checkpoint_of_an_earlier_release_goes_on(walk: Walk) -> None:
    """It has no footing: there is nothing to compare with, and old packets stay good."""
    packet = walk.to_call()
    Checkpoint.objects.update(footing={})
    walk.decide(packet)
    walk.drain()
    assert walk.status(packet.run) == RunStatus.IN_REVIEW


def test_a_source_that_cannot_be_asked_for_a_moment_is_no_difference(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    packet = walk.to_call()
    walk.decide(packet)

    def away(*given: object, **named: object) -> str:
        raise SourceRefused("source.unreachable", "Away.", retry_safe=True)

    monkeypatch.setattr("runs.footing.source_head", away)
    walk.drain()
    assert walk.status(packet.run) == RunStatus.IN_REVIEW


def test_I04_an_upgrade_while_packets_wait(walk: Walk) -> None:
    """Rows of the release before have none of what came since: they stay good, and verify."""
    packets = [walk.to_call(), walk.to_call()]
    walk.decide(packets[1])
    walk.drain()
    packets[1] = walk.open_packet(packets[1].run)
    call_command("migrate", "approvals", "0006", verbosity=0)
    call_command("migrate", "runs", "0007", verbosity=0)
    call_command("migrate", verbosity=0)
    packets = [walk.fresh(each) for each in packets]
    assert all(seal.intact(each.page, each.digest) for each in packets)

    for each in packets:
        walk.decide(each)
    walk.drain()

    called, published = packets
    assert walk.status(called.run) == RunStatus.IN_REVIEW, called.run.failure_text
    assert walk.status(published.run) == RunStatus.PUBLISHED
    assert examine(walk.cast.acme).problems == []
