"""Invariants 8 to 12: no secret, no network, real isolation, clean ends, named failures."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings
from django.db import DatabaseError, transaction

from approvals.models import Packet
from approvals.states import PacketState, Verdict
from portal import vault
from portal.handoff import Job
from runs import lifecycle
from runs.models import Checkpoint, Credential, Event, Run, ToolCall
from runs.states import CallState, RunStatus
from tests.cast import (
    REPAIR,
    call,
    contract_text,
    say,
)
from tests.walk import (
    MEANWHILE,
    Walk,
)

# --- 8. No secret -------------------------------------------------------------


def test_inv08_a_credential_is_nowhere_in_clear(walk: Walk) -> None:
    """The service even answers with the token it was sent; neither agent nor evidence get it."""
    secret = "s" + hashlib.sha256(b"a token made for this test").hexdigest()
    host = walk.tracker.url.removeprefix("http://")
    Credential.objects.create(
        tenant=walk.cast.acme, name="token", sealed=vault.seal(secret.encode()), audience=[host]
    )
    walk.tracker.answer = {"number": f"you sent {secret}"}
    text = contract_text(http=True, verification=False).replace(
        'base = "tracker"', 'base = "tracker"\ncredential = "token"'
    )
    packet = walk.to_call(text=text)
    walk.decide(packet)
    walk.drain()

    (request,) = walk.tracker.requests
    assert request.headers["Authorization"] == f"Bearer {secret}"  # it was really used
    assert walk.status(packet.run) == RunStatus.IN_REVIEW
    conversation = walk.heard(packet.run)
    assert "you sent [redacted]" in conversation
    for place, content in everything_stored():
        for form in (secret, secret[::-1], secret.encode().hex()):
            assert form.encode() not in content, place
    # And the conversation itself is encrypted at rest.
    sealed = [bytes(each.sealed_state) for each in Checkpoint.objects.all()]
    assert sealed
    assert all(b"The adder subtracts" not in each for each in sealed)


def everything_stored() -> list[tuple[str, bytes]]:
    """Every row of every table, and every file of the blob store and the data directory."""
    found: list[tuple[str, bytes]] = []
    for model in apps.get_models():
        for row in model._default_manager.all().values():
            text = repr(
                {key: bytes(v) if isinstance(v, memoryview) else v for key, v in row.items()}
            )
            found.append((model.__name__, text.encode()))
    for root in (settings.BLOB_DIR, settings.DATA_DIR, settings.SOURCE_CACHE_DIR):
        for path in Path(root).rglob("*"):
            if path.is_file() and not path.is_symlink():
                found.append((str(path), path.read_bytes()))
    return found


# --- 9. The network is off ----------------------------------------------------


@pytest.mark.bubblewrap
def test_inv09_nothing_in_the_sandbox_reaches_the_network(walk: Walk, settings: Any) -> None:
    settings.SANDBOX_PROVIDER = "bubblewrap"
    knock = (
        "python3 -c \"import urllib.request as u; u.urlopen('"
        + walk.tracker.url
        + "/issues', b'x', timeout=5)\" && echo it was answered || echo nobody there"
    )
    packet = walk.to_review([[call("knock", "exec_command", cmd=knock)], *REPAIR[1:]])

    assert walk.tracker.requests == []
    assert "nobody there" in walk.heard(packet.run)
    assert packet.page["egress"] == {"mode": "off", "change": "none"}


# --- 10. Isolation is real or refused ------------------------------------------


def test_inv10_what_isolates_nothing_is_refused_outside_development(
    walk: Walk, settings: Any
) -> None:
    settings.DEVELOPMENT = False
    run = walk.run()
    for _ in range(8):
        walk.sweep()

    assert walk.status(run) == RunStatus.FAILED
    assert run.failure_boundary == "execution"
    assert "isolates nothing" in run.failure_text
    assert "Set SANDBOX_PROVIDER" in run.failure_text
    assert not ToolCall.objects.exists()

    settings.DEVELOPMENT = True
    assert walk.to_review()


# --- 11. Every end cleans up ---------------------------------------------------


def _published(walk: Walk) -> Run:
    return walk.to_publish().run


def _denied(walk: Walk) -> Run:
    return walk.decide(walk.to_review(), verdict=Verdict.DENY).run


def _cancelled_at_work(walk: Walk) -> Run:
    run = walk.run([[MEANWHILE], *REPAIR[1:]])
    walk.meanwhile(lambda: lifecycle.ask_cancel(run, member=walk.cast.olu))
    return run


def _cancelled_at_rest(walk: Walk) -> Run:
    run = walk.to_call().run
    lifecycle.ask_cancel(run, member=walk.cast.olu)
    return run


def _timed_out(walk: Walk) -> Run:
    run = walk.run([[MEANWHILE], *REPAIR[1:]])
    Run.objects.filter(pk=run.pk).update(seconds_used=10_000_000)
    walk.meanwhile(lambda: time.sleep(1.2))  # a run out of time gets one second more
    return run


def _worker_lost(walk: Walk) -> Run:
    run = walk.run([[MEANWHILE], *REPAIR[1:]])
    taken = iter([True])

    def another_worker_takes_over() -> None:
        if next(taken, False):
            Run.objects.filter(pk=run.pk).update(lease_token="1" * 32)
            walk.lose_worker(run)

    walk.meanwhile(another_worker_takes_over)
    return run


def _sandbox_lost(walk: Walk) -> Run:
    run = walk.run([[MEANWHILE], *REPAIR[1:]])
    walk.meanwhile(walk.lose_sandboxes)
    return run


# Ten answers of 110 tokens are more than the smallest budget a contract may have.
TALKATIVE = [
    *([call(f"step-{number}", "exec_command", cmd="true")] for number in range(12)),
    [say("Done.")],
]


def _budget_spent(walk: Walk) -> Run:
    return walk.run(TALKATIVE, limits="tokens = 1000")


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (_published, RunStatus.PUBLISHED),
        (_denied, RunStatus.DENIED),
        (_cancelled_at_work, RunStatus.CANCELLED),
        (_cancelled_at_rest, RunStatus.CANCELLED),
        (_timed_out, RunStatus.FAILED),
        (_budget_spent, RunStatus.FAILED),
        (_sandbox_lost, RunStatus.FAILED),
        (_worker_lost, RunStatus.IN_REVIEW),
    ],
)
def test_inv11_every_end_cleans_up(
    walk: Walk, end: Callable[[Walk], Run], status: RunStatus
) -> None:
    run = end(walk)
    walk.drain()
    walk.sweep()

    assert walk.status(run) == status
    assert walk.leftovers() == []
    assert run.lease_token is None
    if not run.is_live:
        assert not Packet.objects.filter(run=run, state=PacketState.OPEN).exists()
        waits = (CallState.WAITING, CallState.APPROVED)
        assert not ToolCall.objects.filter(run=run, state__in=waits).exists()


def test_inv11_the_reaper_takes_what_a_dead_worker_left_and_nothing_else(walk: Walk) -> None:
    """A verification's sandbox belongs to a run that is held, and stays."""
    words: list[str] = []
    walk.meanwhile(lambda: words.append(walk.deliver(Job.SWEEP_RUNS)), program="python3")

    packet = walk.to_review(verification=True)

    assert len(words) == 1
    assert words[0].endswith("0 removed")
    assert packet.page["receipts"]["verification"]["outcome"] == "passed"


# --- 12. A failure names its boundary ------------------------------------------


def test_inv12_our_own_failure_is_control(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **named: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(lifecycle, "record_call", broken)
    run = walk.run()
    walk.drain()

    assert (walk.status(run), run.failure_boundary) == (RunStatus.FAILED, "control")
    assert run.retry_safe is not None
    assert run.failure_text


def test_inv12_a_lost_sandbox_is_execution(walk: Walk) -> None:
    run = _sandbox_lost(walk)
    walk.drain()

    assert (walk.status(run), run.failure_boundary) == (RunStatus.FAILED, "execution")
    assert run.retry_safe is not None
    assert run.failure_text


def test_inv12_a_damaged_checkpoint_is_recovery(walk: Walk) -> None:
    packet = walk.to_call()
    Checkpoint.objects.update(state_digest="0" * 64)
    walk.decide(packet)
    walk.drain()

    run = walk.fresh(packet.run)
    assert (run.status, run.failure_boundary) == (RunStatus.FAILED, "recovery")
    assert run.retry_safe is False
    assert "damaged" in run.failure_text
    event = Event.objects.get(run=run, kind="run.failed")
    assert (event.facts["boundary"], event.facts["retry_safe"]) == ("recovery", False)


def test_inv12_the_table_refuses_a_failure_without_a_boundary(walk: Walk) -> None:
    run = walk.run()
    with pytest.raises(DatabaseError), transaction.atomic():
        Run.objects.filter(pk=run.pk).update(status=RunStatus.FAILED, failure_boundary="")
