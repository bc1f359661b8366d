"""The writes of a run's life, one at a time: who may, when, and what they leave behind."""

from __future__ import annotations

import threading
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.utils import timezone

from portal import blobs
from portal.errors import NotAllowed, NotFound
from portal.handoff import Job
from portal.models import AuditEntry
from runs import lifecycle
from runs.lifecycle import CallSettled, Draft, Judged, Kept, Lease, LeaseLost, NotInForce, RunEnded
from runs.models import ContractVersion, Event, Run, ToolCall
from runs.snapshots import Saved
from runs.states import CallState, RunStatus
from tests.cast import contract_text, make_version
from tests.walk import Walk, call_of, parked_call

ALLOWED = Judged(CallState.ALLOWED, ("work-in-workspace",), 1, "d" * 64, "It stays inside.")
REFUSED = Judged(CallState.REFUSED, ("not-in-contract",), 1, "d" * 64, "It is not named.")


def held(walk: Walk, run: Run | None = None) -> Lease:
    """A run that a worker works on."""
    lease = lifecycle.claim_run((run or walk.run()).pk)
    assert lease is not None
    return lease


def record(lease: Lease, call_id: str = "c1", judged: Judged = ALLOWED, **changes: Any) -> ToolCall:
    given: dict[str, Any] = {
        **{"tool": "exec_command", "kind": "shell", "outward": False, "target": "the sandbox"},
        **{"arguments": {"cmd": "ls"}, **changes},
    }
    return lifecycle.record_call(lease, call_id=call_id, judged=judged, **given)


# --- Asking for a run ---------------------------------------------------------------


def test_who_may_ask_for_a_run(walk: Walk) -> None:
    version = make_version(walk.cast, contract_text())
    for member in (walk.cast.ada, walk.cast.vic, walk.cast.max, walk.cast.aud):
        with pytest.raises(NotAllowed):
            lifecycle.request_run(version, member=member)
    with pytest.raises(NotFound):
        lifecycle.request_run(version, member=walk.cast.eve)
    assert not Run.objects.exists()

    run = lifecycle.request_run(version, member=walk.cast.olu)

    assert (run.status, run.number) == (RunStatus.QUEUED, 1)
    assert list(walk.hops) == [(Job.EXECUTE_RUN, run.pk)]
    assert AuditEntry.objects.filter(action="run.requested", actor=walk.cast.olu.user).exists()


@pytest.mark.parametrize("state", ["proposed", "superseded", "denied"])
def test_only_a_version_in_force_is_run(walk: Walk, state: str) -> None:
    version = make_version(walk.cast, contract_text())
    ContractVersion.objects.update(state=state)
    with pytest.raises(NotInForce, match="not in force"):
        lifecycle.request_run(version, member=walk.cast.olu)
    assert not Run.objects.exists()


# --- Leases -------------------------------------------------------------------------


def test_a_run_is_held_by_one_worker(walk: Walk) -> None:
    run = walk.run()
    lease = held(walk, run)
    assert lifecycle.claim_run(run.pk) is None

    walk.lose_worker(run)
    second = held(walk, run)

    assert second.token != lease.token
    for write in (
        lambda: lifecycle.beat(lease),
        lambda: lifecycle.log(lease, [Draft("agent.message")]),
        lambda: lifecycle.charge(lease, "model", "m", 1, "tokens", 1),
        lambda: record(lease),
        lambda: lifecycle.release_run(lease, "no sandbox"),
        lambda: lifecycle.confirm_cancel(lease),
        lambda: lifecycle.park_unknown(lease),
    ):
        with pytest.raises(LeaseLost):
            write()
    assert lifecycle.beat(second).attempts == 2


def test_a_beat_renews_and_counts(walk: Walk) -> None:
    run = walk.run()
    lease = held(walk, run)
    Run.objects.update(lease_expires_at=timezone.now() + timedelta(seconds=1))

    lifecycle.beat(lease, seconds=1.5)
    lifecycle.beat(lease, seconds=2.0)

    assert walk.fresh(run).seconds_used == 3.5
    assert run.lease_expires_at is not None
    assert run.lease_expires_at > timezone.now() + timedelta(seconds=5)


def test_a_step_is_held_by_one_worker_and_let_go(walk: Walk) -> None:
    run = walk.run()
    Run.objects.update(status=RunStatus.CHECKING)

    with lifecycle.holding(run.pk, RunStatus.CHECKING) as first:
        with lifecycle.holding(run.pk, RunStatus.CHECKING) as second:
            assert (first, second) == (True, False)
        assert str(run.public_id) in lifecycle.LiveRuns()
    assert walk.fresh(run).lease_token is None

    with lifecycle.holding(run.pk, RunStatus.COLLECTING) as other_step:
        assert not other_step


def test_a_step_that_takes_long_keeps_its_lease(walk: Walk, settings: Any) -> None:
    settings.RUN_LEASE, settings.RUN_HEARTBEAT = 30, 0.01
    run = walk.run()
    Run.objects.update(status=RunStatus.CHECKING)
    renewed = threading.Event()

    with lifecycle.holding(run.pk, RunStatus.CHECKING):
        Run.objects.update(lease_expires_at=timezone.now())
        for _ in range(2000):
            expires = walk.fresh(run).lease_expires_at
            assert expires is not None
            if expires > timezone.now() + timedelta(seconds=20):
                renewed.set()
                break
            threading.Event().wait(0.01)
    assert renewed.is_set()


def test_a_released_run_is_taken_again(walk: Walk) -> None:
    run = walk.run()
    lifecycle.release_run(held(walk, run), "no sandbox can be had")
    assert walk.status(run) == RunStatus.QUEUED
    assert run.lease_token is None
    held(walk, run)


# --- Stopping -----------------------------------------------------------------------


def test_who_may_stop_a_run(walk: Walk) -> None:
    run = walk.run()
    for member in (walk.cast.ada, walk.cast.vic, walk.cast.aud):
        with pytest.raises(NotAllowed):
            lifecycle.ask_cancel(run, member=member)
    with pytest.raises(NotFound):
        lifecycle.ask_cancel(run, member=walk.cast.eve)
    assert walk.status(run) == RunStatus.QUEUED

    assert lifecycle.ask_cancel(run, member=walk.cast.olu).status == RunStatus.CANCELLED
    with pytest.raises(RunEnded):
        lifecycle.ask_cancel(run, member=walk.cast.olu)


def test_a_running_run_ends_when_its_worker_says_so(walk: Walk) -> None:
    run = walk.run()
    lease = held(walk, run)
    assert lifecycle.ask_cancel(run, member=walk.cast.olu).status == RunStatus.RUNNING
    lifecycle.ask_cancel(run, member=walk.cast.olu)  # asked twice is asked once

    lifecycle.confirm_cancel(lease)

    assert walk.status(run) == RunStatus.CANCELLED
    assert walk.kinds(run).count("run.cancel_asked") == 1


def test_what_is_being_published_is_not_stopped(walk: Walk) -> None:
    publication = walk.to_publish()
    with pytest.raises(RunEnded, match="being published"):
        lifecycle.ask_cancel(publication.run, member=walk.cast.olu)
    walk.drain()
    assert walk.status(publication.run) == RunStatus.PUBLISHED


@pytest.mark.parametrize("how", ["checkpoint", "release", "unknown"])
def test_a_stop_is_not_lost_behind_a_worker_that_parks(walk: Walk, how: str) -> None:
    run = walk.run()
    lease = held(walk, run)
    lifecycle.ask_cancel(run, member=walk.cast.olu)

    if how == "checkpoint":
        assert lifecycle.save_checkpoint(lease, **CHECKPOINT) is None
    elif how == "release":
        lifecycle.release_run(lease, "no sandbox")
    else:
        lifecycle.park_unknown(lease)

    assert walk.status(run) == RunStatus.CANCELLED
    assert (Job.COLLECT_CANDIDATE, run.pk) not in walk.hops


CHECKPOINT: dict[str, Any] = {
    "kept": Kept("finished", "{}", Saved("0" * 64, 0, (), (), ()), "0", "mender", {}),
    "pending": (),
    "output": "",
    "enter": RunStatus.COLLECTING,
}


# --- Tool calls -----------------------------------------------------------------------


def test_a_call_is_written_down_once(walk: Walk) -> None:
    lease = held(walk)
    first = record(lease)
    again = record(lease)
    assert first.pk == again.pk
    assert ToolCall.objects.count() == 1


def test_the_same_id_with_other_arguments_is_refused(walk: Walk) -> None:
    lease = held(walk)
    record(lease)
    changed = record(lease, arguments={"cmd": "rm -rf ."})

    assert changed.state == CallState.REFUSED
    stored = ToolCall.objects.get()
    assert (stored.state, stored.arguments) == (CallState.ALLOWED, {"cmd": "ls"})
    assert Event.objects.filter(kind="call.changed").exists()


def test_a_call_that_waits_is_not_judged_away(walk: Walk) -> None:
    """A replay under a milder policy changes nothing about a call that a person was asked about."""
    lease = held(walk)
    waiting = Judged(CallState.WAITING, ("outward-needs-a-person",), 1, "d" * 64, "It asks.")
    record(lease, judged=waiting)
    assert record(lease, judged=ALLOWED).state == CallState.WAITING
    assert ToolCall.objects.get().state == CallState.WAITING


def test_a_call_begins_once(walk: Walk) -> None:
    lease = held(walk)
    call = record(lease)
    go, _, _ = lifecycle.begin_call(lease, "c1", call.arguments_digest)
    assert go
    lifecycle.finish_call(lease, "c1", ok=True, output="a file", exit_code=0, duration_ms=1)

    go, words, _ = lifecycle.begin_call(lease, "c1", call.arguments_digest)

    assert (go, words) == (False, "a file")


def test_work_in_a_lost_workspace_is_done_again_and_an_outward_act_is_not(walk: Walk) -> None:
    """The workspace is restored to before; the world outside is not."""
    run = walk.run()
    lease = held(walk, run)
    inside, outside = record(lease, "c1"), record(lease, "c2", outward=True, kind="http")
    for call in (inside, outside):
        assert lifecycle.begin_call(lease, call.call_id, call.arguments_digest)[0]
    walk.lose_worker(run)
    lease = held(walk, run)

    assert lifecycle.begin_call(lease, "c1", inside.arguments_digest)[0]
    assert not lifecycle.begin_call(lease, "c2", outside.arguments_digest)[0]
    assert walk.fresh(outside).state == CallState.UNKNOWN


def test_an_outward_act_that_the_model_proposes_again_is_recognised(walk: Walk) -> None:
    """The worker died before its checkpoint, and the model asks under another id."""
    run = walk.run()
    lease = held(walk, run)
    call = record(lease, "first", outward=True, kind="http", arguments={"title": "x"})
    lifecycle.begin_call(lease, "first", call.arguments_digest)
    lifecycle.finish_call(lease, "first", ok=True, output="7", exit_code=None, duration_ms=1)
    walk.lose_worker(run)
    lease = held(walk, run)

    again = record(lease, "second", outward=True, kind="http", arguments={"title": "x"})
    other = record(lease, "third", outward=True, kind="http", arguments={"title": "y"})

    assert (again.pk, again.call_id) == (call.pk, "second")
    assert lifecycle.begin_call(lease, "second", again.arguments_digest)[1] == "7"
    assert other.pk != call.pk


def test_a_refused_call_never_begins(walk: Walk) -> None:
    lease = held(walk)
    call = record(lease, judged=REFUSED)
    go, words, _ = lifecycle.begin_call(lease, "c1", call.arguments_digest)
    assert not go
    assert "It is not named." in words


def test_an_answer_is_given_once(walk: Walk) -> None:
    packet = parked_call(walk)
    walk.decide(packet)
    with transaction.atomic(), pytest.raises(CallSettled):
        lifecycle.answer_call(call_of(packet), CallState.DENIED, text="too late", usable_until=None)


# --- Evidence --------------------------------------------------------------------------


def test_secrets_are_taken_out_before_anything_is_stored(walk: Walk) -> None:
    lease = held(walk)
    secret = "known-" + "x" * 20
    draft = Draft("agent.message", {"text": f"it is {secret}"}, payload=f"\x00 {secret}")

    lifecycle.log(lease, [draft], known_secrets=[secret])

    event = Event.objects.get(kind="agent.message")
    assert event.facts["text"] == "it is [redacted]"
    stored = blobs.get(event.tenant_id, event.payload).decode()
    assert secret not in stored
    assert "\x00" not in stored


def test_a_failure_ends_everything_that_waits(walk: Walk) -> None:
    packet = parked_call(walk)
    run = packet.run
    lifecycle.fail_step(
        run.pk,
        RunStatus.CHECKING,
        boundary="control",
        code="x",
        operation="x",
        text="not there",
    )
    assert walk.status(run) == RunStatus.WAITING  # it does not stand at that step

    lifecycle.fail_step(
        run.pk,
        RunStatus.WAITING,
        boundary="control",
        code="x",
        operation="x",
        text="it broke",
    )

    assert walk.status(run) == RunStatus.FAILED
    assert call_of(packet).state == CallState.CANCELLED
    walk.drain()
    assert walk.fresh(packet).state == "withdrawn"


def test_a_lease_of_a_run_that_never_was(walk: Walk) -> None:
    assert lifecycle.claim_run(10**9) is None
    with pytest.raises(NotFound):
        lifecycle.log(Lease(10**9, uuid.uuid4()), [])
    connections.close_all()
