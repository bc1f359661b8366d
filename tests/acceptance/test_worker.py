"""Scenarios F: workers that die, come late, or come twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from django.utils import timezone

from approvals import publishing
from approvals.models import Decision, Packet, Publication
from approvals.states import PacketState, PublicationState, Verdict
from portal import blobs, vault
from portal.canonical import digest
from portal.handoff import Job
from runs import lifecycle
from runs.lifecycle import LeaseLost
from runs.models import Checkpoint, ContractVersion, Run, ToolCall
from runs.providers import sandbox_provider
from runs.sandbox import Limits, Sandbox, SandboxSpec
from runs.states import CallState, RunStatus
from tests.acceptance.kit import contract_with, give_credential
from tests.cast import REPAIR, call
from tests.visits import Visitor, address_of, text_of
from tests.walk import MEANWHILE, Walk, call_of


class Killed(BaseException):
    """The worker's process ends here and writes nothing more."""


def dies(*arguments: object, **named: object) -> None:
    raise Killed


def loses_its_lease(*arguments: object, **named: object) -> None:
    raise LeaseLost


def test_F01_killed_after_the_push_and_before_the_record(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The branch is there and whole: looking settles it, and nothing is pushed again."""
    publication = walk.to_publish()
    with monkeypatch.context() as patched:
        patched.setattr(publishing, "_done", dies)
        with pytest.raises(Killed):
            walk.drain()
    assert walk.fresh(publication).state == PublicationState.ACTING
    head = walk.tree(publication.branch)

    walk.lose_worker(publication.run)
    walk.sweep()

    assert walk.fresh(publication).state == PublicationState.DONE
    assert "not done twice" in publication.note
    assert walk.tree(publication.branch) == head == publication.tree


def test_F01_killed_after_the_request_and_before_the_record(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can look at the service: the outcome is unknown, and said to be."""
    packet = walk.to_call()
    walk.decide(packet)
    with monkeypatch.context() as patched:
        patched.setattr(lifecycle, "finish_call", loses_its_lease)
        patched.setattr(lifecycle, "charge", lambda *given: None)
        walk.drain()
    assert (walk.status(packet.run), call_of(packet).state) == (RunStatus.RUNNING, CallState.ACTING)

    walk.lose_worker(packet.run)
    for _ in range(3):
        walk.sweep()

    assert (walk.status(packet.run), call_of(packet).state) == (
        RunStatus.WAITING,
        CallState.UNKNOWN,
    )
    assert len(walk.tracker.requests) == 1
    page = text_of(Visitor(walk.cast.ada).get("/t/acme/unknown/"))
    assert "create_issue" in page


def test_F02_the_broker_delivers_again_while_the_first_worker_is_at_it(walk: Walk) -> None:
    run = walk.run([[MEANWHILE], *REPAIR[1:]])
    words: list[str] = []
    walk.meanwhile(lambda: words.append(walk.deliver(Job.EXECUTE_RUN, run.pk)))

    walk.drain()

    assert [word.partition(":")[0] for word in words] == ["skipped"]
    assert walk.kinds(run).count("run.claimed") == 1


def test_F02_the_broker_delivers_again_after_success(walk: Walk) -> None:
    publication = walk.to_publish()
    walk.drain()
    before = walk.kinds(publication.run)

    for job, row_id in (
        (Job.EXECUTE_RUN, publication.run_id),
        (Job.COLLECT_CANDIDATE, publication.run_id),
        (Job.RUN_CHECKS, publication.candidate_id),
        (Job.OPEN_PUBLICATION_PACKET, publication.candidate_id),
        (Job.PUBLISH, publication.pk),
    ):
        walk.deliver(job, row_id)
    walk.sweep()

    assert walk.kinds(publication.run) == before
    assert Packet.objects.count() == Publication.objects.count() == 1


def test_BUG33_a_long_task_that_is_delivered_to_a_second_worker(walk: Walk) -> None:
    """The first one is slow and has lost its lease; what it still says is not written down."""
    run = walk.run([[MEANWHILE], *REPAIR[1:]])
    seconds: list[str] = []

    def the_second_worker() -> None:
        if not seconds:
            seconds.append("")
            walk.lose_worker(run)
            seconds[0] = walk.deliver(Job.EXECUTE_RUN, run.pk)

    walk.meanwhile(the_second_worker)
    walk.drain()

    assert seconds == ["finished"]
    assert walk.words(Job.EXECUTE_RUN).count("lease lost") == 1
    kinds = walk.kinds(run)
    assert kinds.count("run.claimed") == 2
    assert kinds.count("run.collecting") == kinds.count("packet.opened") == 1


def test_F03_killed_after_the_approval_and_before_the_act(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    packet = walk.to_call()
    walk.decide(packet)
    with monkeypatch.context() as patched:
        patched.setattr(lifecycle, "begin_call", loses_its_lease)
        walk.drain()
    assert call_of(packet).state == CallState.APPROVED
    assert walk.tracker.requests == []

    walk.lose_worker(packet.run)
    walk.sweep()

    assert call_of(packet).state == CallState.DONE
    assert len(walk.tracker.requests) == 1
    assert walk.status(packet.run) == RunStatus.IN_REVIEW


def test_F03_the_same_but_the_approval_has_run_out_meanwhile(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    packet = walk.to_call()
    walk.decide(packet)
    with monkeypatch.context() as patched:
        patched.setattr(lifecycle, "begin_call", loses_its_lease)
        walk.drain()
    ToolCall.objects.update(usable_until=timezone.now())

    walk.lose_worker(packet.run)
    walk.sweep()

    assert walk.tracker.requests == []
    assert "the approval was not used in time" in walk.heard(packet.run)


def test_F03_killed_after_the_claim_of_a_publication(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was sent, and the row says so: it is done once, without a person."""
    publication = walk.to_publish()
    with monkeypatch.context() as patched:
        patched.setattr(publishing, "_prepared", dies)
        with pytest.raises(Killed):
            walk.drain()
    assert (walk.fresh(publication).state, publication.sent_at) == (PublicationState.ACTING, None)
    walk.lose_worker(publication.run)
    walk.sweep()

    assert walk.fresh(publication).state == PublicationState.DONE
    assert publication.sent_at is not None
    assert publication.note == ""
    assert len(walk.branches()) == 2


@pytest.mark.parametrize("meanwhile", ["the approval ran out", "the policy changed"])
def test_F03_the_same_but_it_is_no_longer_valid(
    walk: Walk, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    publication = walk.to_publish()
    with monkeypatch.context() as patched:
        patched.setattr(publishing, "_prepared", dies)
        with pytest.raises(Killed):
            walk.drain()
    if meanwhile == "the policy changed":
        walk.new_policy()
    else:
        Packet.objects.update(usable_until=timezone.now())
    walk.lose_worker(publication.run)
    walk.sweep()

    assert walk.fresh(publication).state == PublicationState.FAILED
    assert walk.branches() == ["main"]
    assert walk.open_packet(publication.run).pk != publication.packet_id  # it asks again


def test_F03_killed_between_the_mark_and_the_push(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is at the target, and nobody knows why: a person says whether to do it, once."""
    publication = walk.to_publish()
    with monkeypatch.context() as patched:
        patched.setattr(publishing, "publisher_for", dies)
        with pytest.raises(Killed):
            walk.drain()
    walk.lose_worker(publication.run)
    walk.sweep()
    assert walk.fresh(publication).state == PublicationState.UNKNOWN
    assert walk.branches() == ["main"]

    assert publishing.reconcile(publication.public_id, member=walk.cast.ada) == "absent"
    publishing.try_again(publication.public_id, member=walk.cast.ada)
    walk.drain()

    assert walk.fresh(publication).state == PublicationState.DONE
    assert len(walk.branches()) == 2


def test_F04_a_decision_on_a_cancelled_run(walk: Walk) -> None:
    packet = walk.to_review()
    lifecycle.ask_cancel(packet.run, member=walk.cast.olu)

    stale = Visitor(walk.cast.ada).decide(packet)  # before the packet itself was closed
    walk.drain()
    later = Visitor(walk.cast.ada).decide(packet)

    assert [stale.status_code, later.status_code] == [409, 409]
    assert walk.fresh(packet).state == PacketState.CANCELLED
    assert not Decision.objects.exists()
    assert walk.branches() == ["main"]


def test_BUG28_nothing_goes_on_behind_a_cancelled_packet(walk: Walk) -> None:
    packet = walk.to_call()
    lifecycle.ask_cancel(packet.run, member=walk.cast.olu)
    before = walk.kinds(packet.run)
    for _ in range(2):
        walk.sweep()

    assert walk.kinds(packet.run) == [*before, "packet.cancelled"]
    assert walk.tracker.requests == []
    assert call_of(packet).state == CallState.CANCELLED
    assert walk.leftovers() == []


def _truncated(state: str) -> str:
    return state[: len(state) // 2]


def _another_release(state: str) -> str:
    return json.dumps(json.loads(state) | {"sdk": "0.1.0"})


def _another_format(state: str) -> str:
    return json.dumps(json.loads(state) | {"version": 99})


def _without_its_call(state: str) -> str:
    return json.dumps(json.loads(state) | {"pending": []})


@pytest.mark.parametrize(
    "spoil", [_truncated, _another_release, _another_format, _without_its_call]
)
def test_F06_a_saved_state_that_cannot_be_restored(walk: Walk, spoil: Callable[[str], str]) -> None:
    packet = walk.to_call()
    checkpoint = Checkpoint.objects.get()
    state = spoil(vault.unseal(bytes(checkpoint.sealed_state)).decode())
    Checkpoint.objects.update(sealed_state=vault.seal(state.encode()), state_digest=digest(state))

    walk.decide(packet)
    walk.drain()

    refused_with_a_name(walk, packet)


def test_F06_BUG07_the_agent_was_renamed_while_the_packet_waited(walk: Walk) -> None:
    packet = walk.to_call()
    version = ContractVersion.objects.get()
    agent = version.data["agent"] | {"name": "another"}
    data = version.data | {"agent": agent}
    ContractVersion.objects.update(data=data, digest=digest(data))

    walk.decide(packet)
    walk.drain()

    refused_with_a_name(walk, packet)
    page = text_of(Visitor(walk.cast.ada).get(address_of(packet)))
    assert "approved" in page  # the packet and its answer are still there to be read


def refused_with_a_name(walk: Walk, packet: Packet) -> None:
    """The run ended with a reason, the approval was not used, and nothing was lost."""
    run = walk.fresh(packet.run)
    assert (run.status, run.failure_boundary) == (RunStatus.FAILED, "recovery")
    assert run.failure_code
    assert run.failure_text
    assert run.retry_safe is False
    assert walk.tracker.requests == []
    assert call_of(packet).state == CallState.CANCELLED
    assert Decision.objects.filter(packet=packet).count() == 1
    assert walk.leftovers() == []


def test_F09_the_environment_is_lost_while_a_packet_waits(walk: Walk) -> None:
    """What the run had made is gone. It does not go on in a fresh place as if nothing were."""
    packet = walk.to_call()
    assert walk.leftovers() == []  # while it waits nothing is left that could die
    snapshot = Checkpoint.objects.get().snapshot_blob
    blobs.path_of(walk.cast.acme.pk, snapshot).unlink()

    walk.decide(packet)
    walk.drain()

    refused_with_a_name(walk, packet)
    assert "missing or damaged" in packet.run.failure_text


def test_F11_an_effect_without_an_answer(walk: Walk) -> None:
    """Bounded by the tool's own limit; then it is unknown, and nobody tries it again."""
    walk.tracker.manner = "hang"
    text = contract_text_with_a_short_wait()
    packet = walk.to_call(text=text)
    walk.decide(packet)
    walk.drain()
    for _ in range(3):
        walk.sweep()

    assert call_of(packet).state == CallState.UNKNOWN
    assert walk.status(packet.run) == RunStatus.WAITING
    assert len(walk.tracker.requests) == 1


def contract_text_with_a_short_wait() -> str:
    return contract_with().replace('base = "tracker"', 'base = "tracker"\ntimeout_seconds = 1')


def test_F13_BUG21_answered_while_no_page_and_no_worker_is_there(walk: Walk) -> None:
    """The hop is lost with the broker; the row is the job, and the sweep finds it."""
    packet = walk.to_call()
    assert Visitor(walk.cast.ada).decide(packet).status_code == 302
    walk.lose_hops()

    walk.sweep()

    assert len(walk.tracker.requests) == 1
    assert walk.status(packet.run) == RunStatus.IN_REVIEW


@pytest.mark.parametrize("way", ["page", "page without a token", "function", "after a restart"])
def test_BUG16_an_answer_is_the_same_from_everywhere(walk: Walk, way: str) -> None:
    packet = walk.to_call()
    if way == "function":
        walk.decide(packet)
    else:
        token = None if way == "page without a token" else "a token"
        Visitor(walk.cast.ada).decide(packet, token=token)
    if way == "after a restart":
        walk.lose_hops()
        walk.sweep()
    walk.drain()

    assert walk.status(packet.run) == RunStatus.IN_REVIEW
    assert len(walk.tracker.requests) == 1


def test_BUG18_an_answer_of_an_unusual_shape_resumes_the_same_run(walk: Walk) -> None:
    question = call("ask", "ask_person", question="Which sign?", choices=["plus", "minus"])
    packet = walk.to_call([[question], *REPAIR[1:]], http=False, ask=True)

    Visitor(walk.cast.ada).decide(packet, choice="plus", comment="As the name says.")
    walk.drain()

    assert Run.objects.count() == 1
    assert walk.status(packet.run) == RunStatus.IN_REVIEW
    assert "plus\\n\\nAs the name says." in walk.heard(packet.run)


def test_BUG48_nothing_is_left_in_whichever_state_a_worker_dies(walk: Walk) -> None:
    """The sweep takes the sandbox of every run away that nobody holds, wherever it stands."""
    parked, held, ended = walk.to_call().run, walk.run(), walk.run()
    assert lifecycle.claim_run(held.pk) is not None
    lifecycle.ask_cancel(ended, member=walk.cast.olu)

    async def forgotten(run: Run) -> Sandbox:
        spec = SandboxSpec(str(run.public_id), str(run.tenant_id), Limits(), {}, {})
        return await sandbox_provider().create(spec)

    boxes = [asyncio.run(forgotten(run)) for run in (held, ended, parked)]
    assert walk.deliver(Job.SWEEP_RUNS).endswith("2 removed")
    walk.lose_worker(held)
    assert walk.deliver(Job.SWEEP_RUNS).endswith("1 removed")

    assert not any(asyncio.run(box.alive()) for box in boxes)
    assert walk.leftovers() == []


def test_BUG11_a_credential_that_was_changed_while_the_run_waited(walk: Walk) -> None:
    give_credential(walk, "the-old-" + "x" * 20)
    packet = walk.to_call(text=contract_with(credential="token"))
    give_credential(walk, "the-new-" + "y" * 20)

    walk.decide(packet, verdict=Verdict.APPROVE)
    walk.drain()

    (request,) = walk.tracker.requests
    assert request.headers["Authorization"] == "Bearer the-new-" + "y" * 20
    assert walk.leftovers() == []
