"""The evidence of every ended run, judged by agentack; it comes from the package index."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F

from approvals import bundle
from approvals.models import Decision, Packet
from approvals.states import Verdict
from portal.handoff import Job
from runs import lifecycle
from runs.models import ContractVersion, EgressGrant, Event, Run
from runs.states import RunStatus
from tests.acceptance.history import POLICY, history_of
from tests.cast import ASKING, REPAIR, call, say
from tests.databases import triggers_off
from tests.packages import AGENTACK
from tests.runs.test_egress_run import happening, text, wants
from tests.walk import MEANWHILE, Walk, call_of

pytestmark = pytest.mark.package_index


@pytest.fixture(scope="module")
def agentack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distribution, unpacked and never imported here."""
    return AGENTACK.unpacked(tmp_path_factory.mktemp("agentack"))


@pytest.fixture
def judge(agentack: Path, tmp_path: Path) -> Callable[[Run], tuple[str, set[str]]]:
    """What agentack says of a run as a bundle of now has it: its word, and the rules it names."""
    (tmp_path / "policy.toml").write_text(POLICY)

    def judged(run: Run) -> tuple[str, set[str]]:
        history = history_of(bundle.exported(run.tenant), run.number)
        (tmp_path / "run.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in history))
        done = subprocess.run(
            (
                *(sys.executable, "-m", "agentack", "check", "run.jsonl"),
                *("--policy", "policy.toml", "--json", "report.json"),
            ),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(agentack)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode in (0, 1, 3), done.stdout + done.stderr
        report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
        result = report.get("result", report)
        assert {"PASS": 0, "FAIL": 1, "INCOMPLETE": 3}[result["status"]] == done.returncode
        return result["status"], set(result["rule_counts"])

    return judged


MORE = [
    [call("note", "exec_command", cmd="echo 'Nobody filed it.' >> ../output/report.md")],
    [say("The report says so now.")],
]


# --- Runs that ended ---------------------------------------------------------------------


def published(walk: Walk) -> Run:
    """A call and a candidate, both approved, and done."""
    asked = walk.to_call()
    walk.decide(asked)
    walk.drain()
    walk.decide(walk.open_packet(asked.run))
    walk.drain()
    return asked.run


def denied(walk: Walk) -> Run:
    """A call is denied; the agent goes on without it, and what it made is denied too."""
    asked = walk.to_call()
    walk.decide(asked, verdict=Verdict.DENY)
    walk.drain()
    walk.decide(walk.open_packet(asked.run), verdict=Verdict.DENY)
    walk.drain()
    return asked.run


def expired(walk: Walk) -> Run:
    """Nobody answers, neither to the call nor to the candidate."""
    asked = walk.to_call()
    walk.run_out(asked)
    walk.sweep()
    walk.run_out(walk.open_packet(asked.run))
    walk.sweep()
    return asked.run


def too_late(walk: Walk) -> Run:
    """A call is approved, and the worker comes too late; then changes are requested."""
    run = walk.run(ASKING, MORE, http=True)
    walk.drain()
    asked = walk.open_packet(run)
    walk.decide(asked)
    row = call_of(asked)
    row.usable_until = walk.fresh(asked).settled_at
    row.save(update_fields=["usable_until"])
    walk.drain()
    walk.decide(walk.open_packet(asked.run), verdict=Verdict.REQUEST_CHANGES)
    walk.drain()
    walk.decide(walk.open_packet(asked.run))
    walk.drain()
    return asked.run


def cancelled(walk: Walk) -> Run:
    """Somebody stops the run while a person is asked."""
    asked = walk.to_call()
    lifecycle.ask_cancel(asked.run, member=walk.cast.olu)
    walk.sweep()
    return asked.run


def cancelled_late(walk: Walk) -> Run:
    """Somebody stops the run after the answer, before a worker takes it."""
    asked = walk.to_call()
    walk.decide(asked)
    lifecycle.ask_cancel(asked.run, member=walk.cast.olu)
    walk.sweep()
    return asked.run


def resumed(walk: Walk) -> Run:
    """A question is answered, and the run goes on although its contract was replaced."""
    question = call("which", "ask_person", question="Which sign?", choices=["plus", "minus"])
    run = walk.run([[question], *REPAIR], ask=True)
    walk.drain()
    walk.decide(walk.open_packet(run), comment="plus")
    ContractVersion.objects.update(state=ContractVersion.State.SUPERSEDED)
    walk.drain()
    for kind in ("resume", "publication"):
        packet = walk.open_packet(run)
        assert packet.kind == kind
        walk.decide(packet)
        walk.drain()
    return run


def reaching_out(walk: Walk) -> Run:
    """Of two places that the agent asks for while it works, one is granted and one denied."""
    places = [wants(80, host, host=host) for host in ("a.example.com", "b.example.com")]
    run = walk.run([places, [MEANWHILE], *REPAIR], text=text("request"))

    def decide() -> None:
        verdicts = (Verdict.APPROVE, Verdict.DENY)
        grants = EgressGrant.objects.filter(run=run).order_by("pk")
        for grant, verdict in zip(grants, verdicts, strict=True):
            walk.deliver(Job.OPEN_EGRESS_PACKET, grant.pk)
            walk.decide(Packet.objects.get(egress=grant), verdict=verdict)

    happening(walk, run, decide)
    walk.drain()
    walk.decide(walk.open_packet(run))
    walk.drain()
    return run


@pytest.mark.parametrize(
    ("story", "status", "told"),
    [
        (published, RunStatus.PUBLISHED, {"allow"}),
        (denied, RunStatus.DENIED, {"deny"}),
        (expired, RunStatus.EXPIRED, {"deny"}),
        (too_late, RunStatus.PUBLISHED, {"allow", "deny"}),
        (cancelled, RunStatus.CANCELLED, {"deny"}),
        (cancelled_late, RunStatus.CANCELLED, {"allow"}),
        (resumed, RunStatus.PUBLISHED, {"allow"}),
        (reaching_out, RunStatus.PUBLISHED, {"allow", "deny"}),
    ],
)
def test_the_evidence_of_an_ended_run_passes(
    walk: Walk,
    judge: Callable[[Run], tuple[str, set[str]]],
    story: Callable[[Walk], Run],
    status: RunStatus,
    told: set[str],
) -> None:
    run = story(walk)
    assert walk.status(run) == status
    history = history_of(bundle.exported(run.tenant), run.number)
    assert {each["decision"] for each in history if "decision" in each} == told
    assert judge(run) == ("PASS", set())


def test_the_evidence_of_a_run_that_waits_is_not_complete(
    walk: Walk, judge: Callable[[Run], tuple[str, set[str]]]
) -> None:
    assert judge(walk.to_call().run) == ("INCOMPLETE", {"ACK009"})


# --- Rows that were changed ----------------------------------------------------------------


def _change(row: Event, **facts: Any) -> None:
    Event.objects.filter(pk=row.pk).update(facts=row.facts | facts)


def _event(run: Run, kind: str, **facts: Any) -> Event:
    (found,) = [
        each
        for each in Event.objects.filter(run=run, kind=kind)
        if all(each.facts.get(name) == value for name, value in facts.items())
    ]
    return found


def _shown_differs(run: Run) -> None:
    packet = Packet.objects.get(run=run, kind="call")
    page = packet.page | {"arguments": {"title": "Something harmless"}}
    Packet.objects.filter(pk=packet.pk).update(page=page)


def _another_candidate_shown(run: Run) -> None:
    packet = Packet.objects.get(run=run, kind="publication")
    page = packet.page | {"candidate": packet.page["candidate"] | {"digest": "0" * 64}}
    Packet.objects.filter(pk=packet.pk).update(page=page)


def _denied_after_all(run: Run) -> None:
    Decision.objects.filter(packet__run=run, packet__kind="call").update(verdict=Verdict.DENY)


def _nobody_decided(run: Run) -> None:
    Decision.objects.filter(packet__run=run, packet__kind="publication").delete()


def _decided_on_another_page(run: Run) -> None:
    Decision.objects.filter(packet__run=run, packet__kind="call").update(digest="0" * 64)


def _decided_long_ago(run: Run) -> None:
    Decision.objects.filter(packet__run=run).update(decided_at=F("decided_at") - timedelta(days=2))


def _other_arguments_ran(run: Run) -> None:
    _change(_event(run, "call.started", call="file"), arguments_digest="0" * 64)


def _another_candidate_left(run: Run) -> None:
    _change(_event(run, "run.published"), artifacts=["0" * 64, "0" * 40])


def _ran_twice(run: Run) -> None:
    row = _event(run, "call.started", call="file")
    Event.objects.filter(pk=_event(run, "call.finished", call="file").pk).update(
        kind=row.kind, facts=row.facts
    )


def _never_asked(run: Run) -> None:
    Event.objects.filter(pk=_event(run, "packet.opened", operation="call").pk).update(
        kind="model.answered"
    )


def _stopped_before(run: Run) -> None:
    row = _event(run, "call.answered", call="file")
    Event.objects.filter(pk=row.pk).update(kind="run.cancel_asked")


TAMPERED = [
    (_shown_differs, "FAIL", "ACK003"),
    (_another_candidate_shown, "FAIL", "ACK003"),
    (_denied_after_all, "FAIL", "ACK002"),
    (_nobody_decided, "INCOMPLETE", "ACK009"),
    (_decided_on_another_page, "INCOMPLETE", "ACK009"),
    (_decided_long_ago, "FAIL", "ACK005"),
    (_other_arguments_ran, "FAIL", "ACK003"),
    (_another_candidate_left, "FAIL", "ACK003"),
    (_ran_twice, "FAIL", "ACK004"),
    (_never_asked, "FAIL", "ACK001"),
    (_stopped_before, "FAIL", "ACK008"),
]


def test_rows_that_were_changed_do_not_pass(
    walk: Walk, judge: Callable[[Run], tuple[str, set[str]]]
) -> None:
    run = published(walk)
    for change, status, rule in TAMPERED:
        with triggers_off(connection), transaction.atomic():
            change(run)
            word, rules = judge(run)
            transaction.set_rollback(True)
        assert (word, rule in rules) == (status, True), (change.__name__, word, rules)
    assert judge(run) == ("PASS", set())
