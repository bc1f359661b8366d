"""The whole walk with a real worker, in a real sandbox, on both databases, to each of its ends."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings
from django.utils import timezone

from approvals.models import Candidate, Packet, Publication
from approvals.states import Verdict
from portal import blobs, vault
from runs.lifecycle import ask_cancel
from runs.models import Checkpoint, Run
from tests.cast import (
    ASKING,
    REPAIR,
    call,
    contract_text,
    git,
    make_run,
    make_version,
    say,
    transcript,
)
from tests.real_walk import RealWalk
from tests.services import Valkey

pytestmark = [pytest.mark.bubblewrap, pytest.mark.both_databases]

Steps = Sequence[Sequence[dict[str, Any]]]


def start(walk: RealWalk, *turns: Steps, name: str = "repair-adder", **contract: Any) -> Run:
    """A queued run whose agent plays these turns."""
    text = contract_text(name=name, transcript=name, http=True, **contract)
    return make_run(walk.cast, make_version(walk.cast, text, recording=transcript(*turns)))


def heard(run: Run) -> str:
    """All that the agent has heard and said, from its last checkpoint."""
    last = Checkpoint.objects.filter(run=run).order_by("seq").last()
    assert last is not None
    return vault.unseal(bytes(last.sealed_state)).decode()


def run_out(packet: Packet) -> None:
    """The time to decide is over now."""
    Packet.objects.filter(pk=packet.pk).update(expires_at=timezone.now())


def test_from_contract_to_draft(real_walk: RealWalk) -> None:
    """Two people's answers on their pages are all it takes."""
    real_walk.web()
    real_walk.worker()
    run = start(real_walk, ASKING)
    real_walk.decide(real_walk.until_asked(run, "call"), comment="Yes, file it.")
    real_walk.decide(real_walk.until_asked(run, "publication"), member=real_walk.cast.bo)
    real_walk.until_status(run, "published")
    assert real_walk.problems(run, requests=1) == []
    real_walk.until_clean()


def test_requested_changes_become_the_next_candidate(real_walk: RealWalk) -> None:
    """The agent goes on with the words; what was held back is never published."""
    real_walk.web()
    real_walk.worker()
    more = [
        [call("note", "exec_command", cmd="echo '# adds' >> adder.py; cat ../output/report.md")],
        [say("A note says so now.")],
    ]
    run = start(real_walk, REPAIR, more)
    first = real_walk.until_asked(run, "publication")
    real_walk.decide(first, Verdict.REQUEST_CHANGES, "Say in a note what it does.")
    real_walk.until(
        lambda: Candidate.objects.filter(run=run).count() == 2, "there is a second candidate"
    )
    second = real_walk.until_asked(run, "publication")
    first.refresh_from_db()
    assert (first.state, second.number) == ("changes_requested", first.number + 1)
    assert "Ada Obi requests changes:\\n\\nSay in a note what it does." in heard(run)
    # The workspace went on where it was: the report of the first turn is still there.
    assert run.calls.get(call_id="note").exit_code == 0
    held_back, offered = Candidate.objects.filter(run=run).order_by("seq")
    assert (held_back.superseded, offered.superseded) == (True, False)
    assert held_back.tree != offered.tree
    assert second.page["candidate"]["tree"] == offered.tree

    real_walk.decide(second)
    real_walk.until_status(run, "published")
    assert real_walk.problems(run) == []
    done = Publication.objects.get(run=run)
    assert done.tree == offered.tree
    assert git("show", f"{done.branch}:adder.py", cwd=real_walk.remote).endswith("# adds")
    real_walk.until_clean()


def test_what_is_denied_does_not_happen(real_walk: RealWalk) -> None:
    """The agent hears the words and goes on; the run ends when its publication is denied."""
    real_walk.web()
    real_walk.worker()
    run = start(real_walk, ASKING)
    asked = real_walk.until_asked(run, "call")
    real_walk.decide(asked, Verdict.DENY, "The tracker is closed today.")
    offered = real_walk.until_asked(run, "publication")
    assert "Denied by Ada Obi: The tracker is closed today." in heard(run)
    assert run.calls.get(call_id="file").state == "denied"
    real_walk.decide(offered, Verdict.DENY, "Not this week.")
    real_walk.until_status(run, "denied")
    assert real_walk.tracker.requests == []
    assert set(real_walk.branches()) == {"main"}
    real_walk.until_clean()


def test_a_stop_reaches_a_running_command_and_a_waiting_packet(real_walk: RealWalk) -> None:
    real_walk.worker()
    long = [[call("long", "exec_command", cmd="sleep 600", yield_time_ms=600_000)], *REPAIR[-1:]]
    running, waiting = start(real_walk, long), start(real_walk, ASKING, name="another")
    begun = running.calls.filter(call_id="long", state="acting")
    real_walk.until(begun.exists, "the command runs")
    ask_cancel(running, member=real_walk.cast.olu)
    real_walk.until_status(running, "cancelled")
    asked = real_walk.until_asked(waiting)
    ask_cancel(waiting, member=real_walk.cast.olu)
    real_walk.until_status(waiting, "cancelled")
    real_walk.until_clean()
    asked.refresh_from_db()
    assert asked.state == "cancelled"
    assert running.attempts == 1
    assert set(real_walk.branches()) == {"main"}
    assert real_walk.tracker.requests == []


def test_a_spent_budget_ends_the_run_by_name(real_walk: RealWalk) -> None:
    real_walk.worker()
    # Each answer of the model costs 110 tokens.
    steps = [[call(f"step-{number}", "exec_command", cmd="true")] for number in range(20)]
    run = start(real_walk, [*steps, [say("Done.")]], limits="tokens = 1000")
    real_walk.until_status(run, "failed")
    assert (run.failure_boundary, run.failure_code) == ("control", "runs.budget_spent")
    assert run.retry_safe
    # The answer that went over it was counted, and what it asked for was not done.
    assert sum(run.charges.filter(unit="tokens").values_list("quantity", flat=True)) == 1100
    assert run.calls.filter(state="done").count() == 9
    real_walk.until_clean()


def test_nobody_decides_and_nothing_leaves(real_walk: RealWalk) -> None:
    """An expired call is told to the agent by that word; an expired publication ends the run."""
    real_walk.worker()
    run = start(real_walk, ASKING)
    asked = real_walk.until_asked(run, "call")
    run_out(asked)
    offered = real_walk.until_asked(run, "publication")
    asked.refresh_from_db()
    assert (asked.state, run.calls.get(call_id="file").state) == ("expired", "expired")
    assert "Expired: nobody decided in time." in heard(run)
    run_out(offered)
    real_walk.until_status(run, "expired")
    offered.refresh_from_db()
    assert (offered.state, offered.decisions.count()) == ("expired", 0)
    assert real_walk.tracker.requests == []
    assert set(real_walk.branches()) == {"main"}
    real_walk.until_clean()


@pytest.mark.parametrize("harm", ["lost", "damaged"])
def test_a_snapshot_that_is_not_the_saved_one_is_not_resumed(
    real_walk: RealWalk, harm: str
) -> None:
    """The run ends with a failure of recovery that names what is wrong; nothing is sent."""
    real_walk.web()
    real_walk.worker()
    run = start(real_walk, ASKING)
    asked = real_walk.until_asked(run, "call")
    snapshot = Checkpoint.objects.get(run=run).snapshot_blob
    path = blobs.path_of(run.tenant_id, snapshot)
    if harm == "lost":
        path.unlink()
    else:
        path.chmod(0o600)
        data = path.read_bytes()
        path.write_bytes(data.replace(b"return a - b", b"return a * b"))
    real_walk.decide(asked)
    real_walk.until_status(run, "failed")
    assert (run.failure_boundary, run.failure_code) == ("recovery", "portal.blob_damaged")
    assert run.failure_operation == "restore checkpoint 1"
    assert snapshot[:12] in run.failure_text
    assert real_walk.tracker.requests == []
    real_walk.until_clean()


def test_a_run_whose_messages_are_all_lost_still_ends(
    real_walk: RealWalk, valkey: Valkey, tmp_path: Path
) -> None:
    """Rows are the jobs: the broker forgets everything, and is away while people decide."""
    real_walk.web()
    run = start(real_walk, ASKING)
    broker = redis.Redis.from_url(settings.BROKER.for_client())
    broker.flushall()
    real_walk.worker()
    real_walk.supervised = True
    asked = real_walk.until_asked(run, "call")
    for packet_kind in ("call", "publication"):
        asked = real_walk.until_asked(run, packet_kind)
        valkey.stop()
        try:
            real_walk.decide(asked)
            shutil.rmtree(valkey.home / "appendonlydir")
        finally:
            valkey.start()
    real_walk.until_status(run, "published")
    assert real_walk.problems(run, requests=1) == []
    real_walk.until_clean()
