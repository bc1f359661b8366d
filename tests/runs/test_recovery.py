"""After a failure: the page offers exactly the ways that are right, and they work."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction
from django.urls import reverse

from approvals import publishing
from approvals.models import Candidate, Packet
from approvals.states import PacketKind, PacketState, PublicationState
from portal import blobs
from portal.errors import NotAllowed, NotFound
from portal.handoff import Job
from portal.models import AuditEntry
from portal.roles import Role
from runs import lifecycle, outside, recovery
from runs.agent import SDK_VERSION
from runs.models import Checkpoint, ContractVersion, Event, Run, ToolCall
from runs.recovery import FailureMoved, NotOffered, Way
from runs.sandbox import SandboxUnavailable
from runs.states import CallState, RunStatus
from tests.cast import ASKING, call, contract_text, keep_recording, say, transcript
from tests.visits import Visitor, address_of, text_of
from tests.walk import MEANWHILE, Walk, call_of

pytestmark = pytest.mark.both_databases


def ways(run: Run) -> list[str]:
    """The ways on that the run's page offers."""
    run.refresh_from_db()
    return [offer.way.value for offer in recovery.failure_of(run).offers]


def go_on(walk: Walk, run: Run, way: Way) -> Run:
    """Olu presses the button."""
    run.refresh_from_db()
    return recovery.recover(run, way, seen=run.event_head, member=walk.cast.olu)


def page_of(run: Run, what: str = "detail", **more: Any) -> str:
    route = {"tenant": run.tenant.slug, "public_id": run.public_id, **more}
    return reverse(f"runs:{what}", kwargs=route)


def fail(run: Run, code: str, *, boundary: str = "control", retry_safe: bool = False) -> Run:
    """The run failed where it stood."""
    with transaction.atomic():
        lifecycle.end_failed(
            lifecycle.locked_run(run.pk),
            boundary=boundary,
            code=code,
            operation="agent",
            text="It broke.",
            retry_safe=retry_safe,
        )
    run.refresh_from_db()
    return run


def lost_after_the_call(walk: Walk) -> Packet:
    """A run that filed its issue, and whose sandbox was lost before it finished."""
    steps = [*ASKING[:2], [MEANWHILE], *ASKING[2:]]
    packet = walk.to_call(steps)
    lost: list[str] = []

    def once() -> None:
        if not lost:
            lost.append("")
            walk.lose_sandboxes()

    walk.meanwhile(once)
    walk.decide(packet)
    walk.drain()
    assert walk.status(packet.run) == RunStatus.FAILED
    assert packet.run.failure_code == "sandbox_lost"
    return packet


def test_a_lost_sandbox_is_restored_and_nothing_outside_is_done_twice(walk: Walk) -> None:
    packet = lost_after_the_call(walk)
    run = packet.run
    page = text_of(Visitor(walk.cast.olu).get(page_of(run)))
    assert ways(run) == ["restore", "restart"]
    assert "Restore checkpoint 1 and go on" in page
    assert "Boundary: <b>execution</b>" in page
    assert "it happened" in page  # what the run did outside
    assert "Going on is safe" in page

    go_on(walk, run, Way.RESTORE)
    walk.drain()

    assert walk.status(run) == RunStatus.IN_REVIEW
    assert (run.failure_code, run.ended_at, run.failed_from) == ("", None, "")
    assert len(walk.tracker.requests) == 1
    assert "run.taken_up" in walk.kinds(run)
    assert lifecycle.event_chain_broken_at(run) is None


def test_what_is_unknown_is_settled_before_one_goes_on(walk: Walk) -> None:
    run = lost_after_the_call(walk).run
    done = ToolCall.objects.get(run=run, outward=True)
    ToolCall.objects.filter(pk=done.pk).update(state=CallState.UNKNOWN)
    assert ways(run) == ["restart"]
    assert "is not known whether it happened" in text_of(Visitor(walk.cast.olu).get(page_of(run)))

    lifecycle.settle_unknown_call(done, happened=True, note="I see it.", member=walk.cast.ada)

    assert ways(run) == ["restore", "restart"]


def test_the_buttons_of_the_page_do_it(walk: Walk) -> None:
    run = lost_after_the_call(walk).run
    visitor, seen = Visitor(walk.cast.olu), run.event_head

    assert visitor.post(page_of(run, "recover"), way="restore", seen=seen).status_code == 302
    again = visitor.post(page_of(run, "recover"), way="restore", seen=seen)

    assert again.status_code == 409  # the second click of two
    assert walk.status(run) == RunStatus.QUEUED
    assert walk.kinds(run).count("run.taken_up") == 1


def test_a_clean_restart_begins_with_what_was_approved(walk: Walk) -> None:
    """Same contract version, same commit; what was done outside is not done again unasked."""
    packet = lost_after_the_call(walk)
    run, commit = packet.run, packet.run.source_commit
    walk.meanwhile(lambda: None)

    again = go_on(walk, run, Way.RESTART)
    walk.drain()

    again.refresh_from_db()
    assert (again.version_id, again.source_commit) == (run.version_id, commit)
    assert again.restart_of_id == run.pk
    asked = walk.open_packet(again)
    assert f"Run {run.number}, which this one restarts" in asked.page["policy"]["reason"]
    assert len(walk.tracker.requests) == 1
    assert walk.status(run) == RunStatus.FAILED
    page = text_of(Visitor(walk.cast.olu).get(page_of(run)))
    assert f"run {again.number}</a>" in page


def test_two_clicks_restart_once(walk: Walk) -> None:
    run = lost_after_the_call(walk).run
    seen = run.event_head
    recovery.recover(run, Way.RESTART, seen=seen, member=walk.cast.olu)

    with pytest.raises(FailureMoved):
        recovery.recover(run, Way.RESTART, seen=seen, member=walk.cast.olu)

    assert Run.objects.filter(restart_of=run).count() == 1


def test_what_was_done_outside_is_asked_about_even_where_policy_allows_it(walk: Walk) -> None:
    run = lost_after_the_call(walk).run
    again = go_on(walk, run, Way.RESTART)
    done = ToolCall.objects.get(run=run, outward=True)

    assert outside.done_before(again, done.arguments_digest) == done
    assert outside.done_before(again, "0" * 64) is None


def test_an_approval_that_was_not_used_is_asked_for_again(walk: Walk) -> None:
    packet = walk.to_call()
    walk.decide(packet)
    walk.lose_hops()
    fail(packet.run, "sandbox.unavailable", boundary="execution", retry_safe=True)
    walk.drain()
    assert call_of(packet).state == CallState.CANCELLED
    assert ways(packet.run) == ["reconnect", "restart"]

    go_on(walk, packet.run, Way.RECONNECT)
    walk.drain()

    assert walk.tracker.requests == []
    assert "a person took it up again" in walk.heard(packet.run)


def test_without_a_sandbox_one_reconnects(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given back five times, then failed; a person's reconnect begins the count anew."""

    def away(*given: object, **named: object) -> None:
        raise SandboxUnavailable("Nothing isolates here.", "Install bubblewrap.")

    run = walk.run()
    with monkeypatch.context() as patched:
        patched.setattr("runs.driver.sandbox_provider", away)
        for _ in range(8):
            walk.sweep()
    assert (walk.status(run), run.failure_code) == (RunStatus.FAILED, "sandbox.unavailable")
    assert ways(run) == ["reconnect", "restart"]

    go_on(walk, run, Way.RECONNECT)
    assert lifecycle.releases(run) == 0
    walk.drain()

    assert walk.status(run) == RunStatus.IN_REVIEW


@pytest.mark.parametrize("code", sorted(recovery.LIMITS))
def test_a_spent_limit_is_not_run_into_again(walk: Walk, code: str) -> None:
    run = walk.to_call().run
    fail(run, code, retry_safe=True)
    assert ways(run) == ["restart"]
    assert "own limit" in text_of(Visitor(walk.cast.olu).get(page_of(run)))
    with pytest.raises(NotOffered):
        go_on(walk, run, Way.RESTORE)


def test_a_checkpoint_that_failed_is_left_out_and_an_earlier_one_offered(walk: Walk) -> None:
    question = call("ask", "ask_person", question="Which sign?", choices=["plus", "minus"])
    packet = walk.to_call([[question], *ASKING], ask=True)
    Visitor(walk.cast.ada).decide(packet, choice="plus", comment="Plus.")
    walk.drain()
    second = walk.open_packet(packet.run)
    newest = Checkpoint.objects.get(run=packet.run, seq=2)
    blobs.path_of(newest.tenant_id, newest.snapshot_blob).unlink()

    walk.decide(second)
    walk.drain()

    run = walk.fresh(packet.run)
    assert (run.status, run.failure_boundary) == (RunStatus.FAILED, "recovery")
    assert walk.fresh(newest).unusable == "portal.blob_damaged"
    page = text_of(Visitor(walk.cast.olu).get(page_of(run)))
    assert "Restore checkpoint 1 and go on" in page
    told = text_of(Visitor(walk.cast.ada).get(address_of(second)))
    assert "The run failed: recovery" in told
    assert "The answer was not used" in told

    go_on(walk, run, Way.RESTORE)
    walk.drain()

    # The recording proposes the call under its old id, whose approval ended with the failure.
    assert walk.status(run) == RunStatus.IN_REVIEW
    assert walk.tracker.requests == []
    gone = text_of(Visitor(walk.cast.olu).get(page_of(run, "checkpoint", seq=2)))
    assert "Nothing can go on from here" in gone


def test_a_damaged_checkpoint_is_refused_before_anything_is_changed(walk: Walk) -> None:
    run = lost_after_the_call(walk).run
    kept = Checkpoint.objects.get(run=run)
    blobs.path_of(kept.tenant_id, kept.snapshot_blob).unlink()

    with pytest.raises(recovery.CheckpointUnusable, match="not begun in an empty workspace"):
        go_on(walk, run, Way.RESTORE)

    assert walk.status(run) == RunStatus.FAILED


def test_an_empty_workspace_never_takes_the_place_of_a_lost_one(walk: Walk) -> None:
    packet = walk.to_call()
    walk.decide(packet)
    Checkpoint.objects.update(unusable="portal.blob_damaged")
    walk.drain()

    run = walk.fresh(packet.run)
    assert (run.status, run.failure_code) == (RunStatus.FAILED, "runs.no_checkpoint")
    Run.objects.update(failure_code="model_unreachable", retry_safe=True)
    assert ways(run) == ["restart"]
    assert walk.tracker.requests == []


def test_another_release_is_named_and_its_return_offers_the_checkpoint(walk: Walk) -> None:
    run = walk.to_call().run
    Checkpoint.objects.filter(run=run).update(sdk_version="0.1.0")
    fail(run, "sdk_version", boundary="recovery")
    assert ways(run) == ["restart"]
    page = text_of(Visitor(walk.cast.olu).get(page_of(run)))
    assert "was saved by version 0.1.0 of the agents SDK" in page

    Checkpoint.objects.filter(run=run).update(sdk_version=SDK_VERSION)
    assert ways(run) == ["restore", "restart"]


def test_a_step_after_the_agent_is_repeated_without_it(walk: Walk) -> None:
    run = walk.run()
    walk.drain(until=Job.COLLECT_CANDIDATE)
    walk.lose_hops()
    fail(run, "runs.stuck", retry_safe=True)
    assert ways(run) == ["repeat", "restart"]

    go_on(walk, run, Way.REPEAT)
    walk.drain()

    assert walk.status(run) == RunStatus.IN_REVIEW
    assert walk.kinds(run).count("run.claimed") == 1


def test_a_publication_that_was_given_up_is_asked_about_anew(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    publication = walk.to_publish()
    run = publication.run

    def breaks(*given: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(publishing, "publisher_for", breaks)
        walk.drain()
    assert walk.fresh(publication).state == PublicationState.UNKNOWN
    publishing.give_up(publication.public_id, member=walk.cast.ada, note="No.")
    walk.drain()
    assert ways(run) == ["review", "restart"]

    go_on(walk, run, Way.REVIEW)
    walk.drain()
    second = walk.open_packet(run)
    walk.decide(second)
    walk.drain()

    assert second.candidate_id == publication.candidate_id
    assert walk.status(run) == RunStatus.PUBLISHED
    asked = Packet.objects.filter(run=run, kind=PacketKind.PUBLICATION)
    assert [each.state for each in asked] == [PacketState.APPROVED] * 2


@pytest.mark.parametrize("code", sorted(recovery.TAMPERED))
def test_what_was_tampered_with_is_not_asked_about_again(walk: Walk, code: str) -> None:
    run = walk.to_call().run
    fail(run, code)
    assert ways(run) == ["restart"]


def test_a_version_that_is_no_longer_in_force_is_not_restarted(walk: Walk) -> None:
    run = fail(walk.to_call().run, "agent_failed")
    ContractVersion.objects.update(state=ContractVersion.State.SUPERSEDED)
    assert ways(run) == []
    assert "no longer in force" in text_of(Visitor(walk.cast.olu).get(page_of(run)))


def test_a_failure_is_handed_to_a_person_until_they_are_done(walk: Walk) -> None:
    run = fail(walk.to_call().run, "agent_failed")
    olu, vic = Visitor(walk.cast.olu), Visitor(walk.cast.vic)
    note = "The tariff looks wrong."

    handed = olu.post(page_of(run, "hand"), to=walk.cast.vic.user.pk, note=note)
    assert handed.status_code == 302
    queue = text_of(vic.get("/t/acme/queue/"))
    assert "A failure is with you" in queue
    assert note in queue
    assert f"with {walk.cast.vic.user.name}" in text_of(olu.get("/t/acme/runs/?status=failed"))
    assert "It is dealt with" in text_of(vic.get(page_of(run)))
    assert Visitor(walk.cast.ada).post(page_of(run, "handled")).status_code == 403

    assert vic.post(page_of(run, "handled")).status_code == 302
    assert vic.post(page_of(run, "handled")).status_code == 409
    assert "A failure is with you" not in text_of(vic.get("/t/acme/queue/"))
    assert [each for each in walk.kinds(run) if "hand" in each] == [
        "run.handed_over",
        "run.handled",
    ]


def test_a_failure_is_handed_to_nobody_outside(walk: Walk) -> None:
    run = fail(walk.to_call().run, "agent_failed")
    page = Visitor(walk.cast.olu).post(page_of(run, "hand"), to=walk.cast.eve.user.pk)
    assert page.status_code == 422
    assert walk.fresh(run).handed_to is None


def test_who_may_recover_a_run(walk: Walk) -> None:
    run = fail(walk.to_call().run, "agent_failed", retry_safe=True)
    with pytest.raises(NotAllowed):
        recovery.recover(run, Way.RESTORE, seen=run.event_head, member=walk.cast.ada)
    stranger = walk.cast.member("Stranger", [Role.OPERATOR], tenant=walk.cast.globex)
    with pytest.raises(NotFound):
        recovery.recover(run, Way.RESTART, seen=run.event_head, member=stranger)
    assert walk.status(run) == RunStatus.FAILED


def test_a_run_that_did_not_fail_has_no_way_on(walk: Walk) -> None:
    run = walk.to_call().run
    with pytest.raises(NotOffered):
        go_on(walk, run, Way.RESTORE)
    assert "Ways on" not in text_of(Visitor(walk.cast.olu).get(page_of(run)))


def test_the_three_kinds_of_state_are_told_apart(walk: Walk) -> None:
    """While it works: what is held, and what a stop would lose; parked: nothing would be lost."""
    run = walk.run([[MEANWHILE], *ASKING], http=True)
    seen: list[str] = []
    walk.meanwhile(lambda: seen.append(text_of(Visitor(walk.cast.vic).get(page_of(run, "state")))))
    walk.drain()

    (working,) = seen
    assert "in a worker’s memory, nothing saved yet" in working
    assert "running commands, /tmp, its network" in working
    assert "no snapshot yet" in working
    parked = text_of(Visitor(walk.cast.vic).get(page_of(run)))
    for words in ("Conversation", "Backend session", "Workspace", "snapshot of checkpoint 1"):
        assert words in parked
    assert "none: it is made anew at every resume" in parked
    assert parked.count("A stop now would lose: nothing.") == 3


# --- With tools only --------------------------------------------------------------------------

FALLBACK = """
[fallback]
tools = ["create_issue"]
instructions = "Open an issue that says what is wrong."
transcript = "narrow"
"""


def with_fallback() -> str:
    """The contract of these tests, with a tool-only variant."""
    text = contract_text(http=True, ask=True, verification=True)
    return text.replace("[output]", f"{FALLBACK}[output]")


def lost_its_sandbox(walk: Walk, narrow: list[list[dict[str, Any]]], text: str = "") -> Run:
    """A run that filed its issue and then lost its sandbox; `narrow` is what a fallback plays."""
    keep_recording(walk.cast, "narrow", transcript(narrow))
    packet = walk.to_call([*ASKING[:2], [MEANWHILE], ASKING[-1]], text=text or with_fallback())
    walk.meanwhile(walk.lose_sandboxes)
    walk.decide(packet)
    walk.drain()
    assert walk.status(packet.run) == RunStatus.FAILED
    return packet.run


SAME_AGAIN = [
    [call("again", "create_issue", title="The adder subtracts")],
    [call("other", "create_issue", title="The adder needs a sandbox")],
    [say("Issue 7 was filed already. Nothing was changed.")],
]


def test_a_narrower_run_has_tools_only_and_repeats_nothing(walk: Walk) -> None:
    run = lost_its_sandbox(walk, SAME_AGAIN)
    assert run.failure_boundary == "execution"
    assert ways(run) == ["restore", "restart", "narrow"]
    olu = Visitor(walk.cast.olu)
    page = text_of(olu.get(page_of(run)))
    assert "Go on with tools only" in page
    assert "no sandbox and no network, only ask_person, create_issue" in page

    sent = olu.post(page_of(run, "recover"), way="narrow", seen=run.event_head)
    assert sent.status_code == 302
    again = Run.objects.get(restart_of=run)
    walk.drain()

    # The same call is answered by what is known of it, and nobody is asked about it.
    repeated = ToolCall.objects.get(run=again, call_id="again")
    assert repeated.state == CallState.REFUSED
    assert "did this already, and it is not done again" in repeated.reason
    told = text_of(olu.get(page_of(again)))
    assert "Not done again" in told
    assert "Begun without a sandbox" in told
    assert "Denied by policy" not in told
    assert len(walk.tracker.requests) == 1
    # Another one goes the usual way.
    packet = walk.open_packet(again)
    assert packet.page["contract"]["variant"] == "tools only"
    assert "tools only" in text_of(Visitor(walk.cast.ada).get(address_of(packet)))
    walk.decide(packet)
    walk.drain()
    assert len(walk.tracker.requests) == 2

    assert walk.status(again) == RunStatus.IN_REVIEW
    candidate = Candidate.objects.get(run=again)
    assert candidate.changes == []
    assert [each["path"] for each in candidate.tray] == ["answer.md"]
    said = blobs.get(again.tenant_id, candidate.tray[0]["sha256"])
    assert said == b"Issue 7 was filed already. Nothing was changed."
    assert candidate.tree == candidate.base_tree
    walk.decide(walk.open_packet(again))
    walk.drain()
    assert walk.status(again) == RunStatus.PUBLISHED
    assert walk.leftovers() == []


def test_a_narrower_run_says_so_wherever_it_is_seen(walk: Walk) -> None:
    run = lost_its_sandbox(walk, [[say("Nothing can be done.")]])
    again = go_on(walk, run, Way.NARROW)
    walk.drain()
    again.refresh_from_db()

    assert (again.narrowed, again.provider, again.image_digest) == (True, "none", "")
    for event in Event.objects.filter(run=again):
        assert event.facts["variant"] == "tools only"
        assert event.facts["manifest_digest"] != run.version.manifest_digest
    assert not any("variant" in event.facts for event in Event.objects.filter(run=run)[:3])
    asked = AuditEntry.objects.filter(action="run.requested").last()
    assert asked is not None
    assert asked.facts["variant"] == "tools only"
    page = text_of(Visitor(walk.cast.vic).get(page_of(again)))
    assert "tools only, no sandbox" in page
    assert f"after run {run.number}" in page.replace(
        f'<a href="{page_of(run)}">run {run.number}</a>', f"run {run.number}"
    )
    assert "Gone on with tools only" in text_of(Visitor(walk.cast.vic).get(page_of(run, "events")))


def test_a_narrower_run_has_nothing_that_could_run_a_command(walk: Walk) -> None:
    """Not even where the model asks for a tool of the sandbox that it was not given."""
    tries = [[call("sh", "exec_command", cmd="echo x > ../output/x")], [say("I could not.")]]
    again = go_on(walk, lost_its_sandbox(walk, tries), Way.NARROW)
    walk.drain()

    assert not ToolCall.objects.filter(run=again).exists()
    assert "There is no tool" in walk.heard(again)
    assert [each["path"] for each in Candidate.objects.get(run=again).tray] == ["answer.md"]


def test_a_narrower_run_needs_no_sandbox_of_the_machine(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = lost_its_sandbox(walk, [[say("Done without.")]])

    def none() -> None:
        raise SandboxUnavailable("No engine answers.", "Start one.")

    monkeypatch.setattr("runs.driver.sandbox_provider", none)
    again = go_on(walk, run, Way.NARROW)
    walk.drain()
    assert walk.status(again) == RunStatus.IN_REVIEW


def test_a_narrower_run_that_failed_is_narrowed_no_further(walk: Walk) -> None:
    run = lost_its_sandbox(walk, [[say("Done.")]])
    again = fail(go_on(walk, run, Way.NARROW), "x", boundary="execution")
    assert ways(again) == ["restart"]
    last = go_on(walk, again, Way.RESTART)
    assert (last.narrowed, last.restart_of) == (True, again)


def test_a_narrower_run_is_offered_only_where_it_would_help(walk: Walk) -> None:
    """The contract declares it, and the failure is one of execution."""
    text = contract_text(http=True, verification=False)
    plain = lost_its_sandbox(walk, [[say("Nothing.")]], text=text)
    assert "narrow" not in ways(plain)
    assert "the contract declares no fallback" in " ".join(recovery.failure_of(plain).not_offered)
    with pytest.raises(NotOffered):
        go_on(walk, plain, Way.NARROW)

    declared = walk.run(text=with_fallback())
    walk.lose_hops()
    assert ways(fail(declared, "model_unreachable", retry_safe=True)) == ["reconnect", "restart"]
