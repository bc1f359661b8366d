"""What is not tried for ever, and what an end leaves to a person."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.conf import settings
from django.utils import timezone

from approvals import candidates
from portal.handoff import Job
from runs import lifecycle
from runs.models import Event, Run
from runs.states import CallState, RunStatus
from tests.cast import ASKING
from tests.walk import Walk, call_of


def lose_workers(walk: Walk, run: Run, count: int) -> None:
    """So many workers take the run and are never heard of again."""
    for _ in range(count):
        assert lifecycle.claim_run(run.pk) is not None
        walk.lose_worker(run)


def test_a_run_that_no_worker_survives_is_given_up(walk: Walk) -> None:
    run = walk.run()
    lose_workers(walk, run, lifecycle.MAX_LOST_WORKERS)
    walk.sweep()
    assert walk.status(run) == RunStatus.FAILED
    assert (run.failure_boundary, run.failure_code) == ("control", "runs.workers_lost")
    assert run.lease_token is None
    assert Event.objects.filter(run=run, kind="run.claimed").count() == lifecycle.MAX_LOST_WORKERS
    assert walk.leftovers() == []


def test_workers_lost_before_a_step_forward_do_not_count(walk: Walk) -> None:
    """Restarts over weeks are no reason: each pause of the run begins a new count."""
    run = walk.run(ASKING, http=True)
    walk.lose_hops()
    lose_workers(walk, run, lifecycle.MAX_LOST_WORKERS - 1)
    walk.sweep()
    packet = walk.open_packet(run)
    walk.decide(packet)
    walk.lose_hops()
    lose_workers(walk, run, lifecycle.MAX_LOST_WORKERS - 1)
    walk.sweep()
    assert walk.status(run) == RunStatus.IN_REVIEW


def test_a_step_that_breaks_every_time_is_failed_at_last(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(candidates, "_take", broken)
    run = walk.run()
    walk.drain(until=Job.COLLECT_CANDIDATE)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            walk.deliver(Job.COLLECT_CANDIDATE, run.pk)
    assert walk.status(run) == RunStatus.COLLECTING
    walk.lose_hops()
    long_ago = timezone.now() - timedelta(seconds=2 * settings.RUN_HARD_LIMIT + 1)
    Run.objects.filter(pk=run.pk).update(status_at=long_ago)
    assert "1 stuck" in walk.deliver(Job.SWEEP_RUNS)
    assert walk.status(run) == RunStatus.FAILED
    assert (run.failure_boundary, run.failure_code) == ("control", "runs.stuck")
    assert run.retry_safe


def test_a_stop_leaves_a_call_that_may_have_acted_to_a_person(walk: Walk) -> None:
    """The worker died around the request; then the run was stopped. Nobody knows: that is said."""
    packet = walk.to_call()
    run, call = packet.run, call_of(packet)
    walk.decide(packet)
    walk.lose_hops()
    lease = lifecycle.claim_run(run.pk)
    assert lease is not None
    assert lifecycle.begin_call(lease, call.call_id, call.arguments_digest)[0]
    walk.lose_worker(run)
    lifecycle.ask_cancel(run, member=walk.cast.olu)
    walk.sweep()
    assert walk.status(run) == RunStatus.CANCELLED
    call.refresh_from_db()
    assert call.state == CallState.UNKNOWN
    assert walk.kinds(run)[-2:] == ["call.unknown", "run.cancelled"]
    lifecycle.settle_unknown_call(call, happened=True, note="Seen.", member=walk.cast.ada)
    call.refresh_from_db()
    assert call.state == CallState.DONE
    assert walk.status(run) == RunStatus.CANCELLED
