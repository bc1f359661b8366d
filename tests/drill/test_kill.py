"""SIGKILL at every step of the walk; every run ends right, and nothing happens twice.

A worker in which each run stands at a step of its own (`standing_worker`) is killed; a second one,
in which some of them stand at a later step, as well; the third one finishes. Broker and web are
killed and started meanwhile, and once the broker forgets everything.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis
from django.conf import settings

from approvals.models import Packet
from approvals.states import PacketKind, PacketState
from portal.embedded import WORKER_FLAGS
from runs.lifecycle import ask_cancel, settle_unknown_call
from runs.models import ContractVersion, Run
from tests.cast import ASKING, contract_text, make_run, make_version, transcript
from tests.drill.standing_worker import STEPS
from tests.processes import Process
from tests.real_walk import ENDED, RealWalk
from tests.services import Valkey

# Steps that only a run on its way back comes to.
ON_THE_WAY_BACK = ("parked as unknown", "found by looking", "known as unknown")
# Where a run stands when the first worker is killed, and where when the second one is.
AGAIN = {
    "claimed": "in a call",
    "in a call": "snapshot stored",
    "checkpoint saved": "packet open",
    "packet open": "request recorded",
    "resumed": "resumed",
    "request sent": "parked as unknown",
    "agent finished": "agent finished",
    "tray read": "candidate stored",
    "in verification": "in verification",
    "checks done": "publication asked",
    "before the push": "known as unknown",
    "pushed": "found by looking",
}
# For a wave of thirty runs on a machine that has other things to do.
DEADLINE = 420.0
# How many runs move at one time: thirty at once on a small machine only wait for each other.
AT_ONCE = 5
# A person looks, and the request is not there: the agent is told so, and it is never sent.
NEVER_SENT = "approval used"


@dataclass
class Drill:
    """The runs of one drill, each with the step at which it is to stand."""

    walk: RealWalk
    home: Path
    wanted: Sequence[str]
    version: ContractVersion = field(init=False)
    runs: dict[str, Run] = field(default_factory=dict)
    workers: int = 0
    plan: Path = field(init=False)

    def __post_init__(self) -> None:
        text = contract_text(http=True)
        self.version = make_version(self.walk.cast, text, recording=transcript(ASKING))

    def standing_worker(self, standing: Mapping[int, str]) -> Process:
        """A worker in which runs come to stand: number → step."""
        self.make_plan(standing)
        return self.start("tests.drill.standing_worker", len(standing) + 2 * AT_ONCE)

    def make_plan(self, told: Mapping[int, str]) -> None:
        """Write down what is to become of which run: number → word."""
        self.plan = self.home / f"plan-{self.workers}"
        self.plan.mkdir()
        for number, word in told.items():
            (self.plan / str(number)).write_text(word)

    def start(self, module: str, threads: int) -> Process:
        """A worker that follows the present plan."""
        self.workers += 1
        ready = self.home / f"ready-{self.workers}"
        more = {
            "WORKER_THREADS": str(threads),
            "WORKER_RUNS": str(threads - 1),
            "DATABASE_POOL": "60",
            "WORKER_READY_FILE": str(ready),
        }
        process = self.walk.processes.start(
            f"drilled-{self.workers}",
            module,
            str(self.plan),
            *("-A", "portal.celery", "worker", "--pool", "threads", "--loglevel", "WARNING"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
            *("--hostname", f"drilled-{self.workers}@{self.home.name}"),
            **self.walk.environment(**WORKER_FLAGS, RUN_LEASE="5", **more),
        )
        self.walk.workers.append(process)
        process.await_(ready.exists)
        return process

    def stands(self, run: Run) -> bool:
        """Whether the run stands in the present worker."""
        return (self.plan / f"{run.number}.here").exists()

    def over(self) -> bool:
        """Whether all runs were asked for and have ended."""
        return len(self.runs) == len(self.wanted) and all(
            self.walk.status(run) in ENDED for run in self.runs.values()
        )

    def attend(self) -> None:
        """Do what people do: ask for runs, answer what is asked, settle what is unknown."""
        stood = dict(Run.objects.values_list("pk", "status"))
        moving = {
            run.pk
            for run in self.runs.values()
            if not (self.plan / f"{run.number}.door").exists() and stood[run.pk] not in ENDED
        }
        for step in self.wanted[len(self.runs) :][: max(0, AT_ONCE - len(moving))]:
            self.runs[step] = make_run(self.walk.cast, self.version)
        for packet in Packet.objects.filter(state=PacketState.OPEN, run_id__in=moving):
            self.walk.decide(packet)
        self.walk.settle(moving)

    def until_all(self, standing: Mapping[int, str]) -> None:
        """Attend until everybody stands where the plan says, and the others have ended."""

        def right(run: Run) -> bool:
            if run.number in standing:
                return self.stands(run)
            return self.walk.status(run) in ENDED

        def ready() -> bool:
            self.attend()
            return len(self.runs) == len(self.wanted) and all(map(right, self.runs.values()))

        try:
            self.walk.until(ready, "all runs stand or have ended", deadline=DEADLINE)
        except AssertionError as late:
            wrong = [step for step, run in self.runs.items() if not right(run)]
            raise AssertionError(f"late: {wrong}\n{late}") from None


def told(wrong: Mapping[str, Sequence[str]]) -> str:
    """All of it: pytest would cut it short."""
    return "\n".join(f"{step}: {line}" for step, lines in wrong.items() for line in lines)


@pytest.mark.bubblewrap
@pytest.mark.both_databases
def test_at_every_step(real_walk: RealWalk, valkey: Valkey, tmp_path: Path) -> None:
    first = [step for step in STEPS if step not in ON_THE_WAY_BACK]
    # The tenant's runs are numbered from one.
    standing = dict(enumerate(first, 1))
    again = {number: AGAIN[step] for number, step in standing.items() if step in AGAIN}
    drill = Drill(real_walk, tmp_path, first)
    real_walk.web()

    worker = drill.standing_worker(standing)
    drill.until_all(standing)
    worker.kill()
    valkey.stop(signal.SIGKILL)
    assert real_walk.site is not None
    real_walk.site.kill()
    valkey.start()
    real_walk.web()

    worker = drill.standing_worker(again)
    drill.until_all(again)
    worker.kill()
    redis.Redis.from_url(settings.BROKER.for_client()).flushall()

    drill.standing_worker({})
    drill.until_all({})
    wrong = {}
    for step, run in drill.runs.items():
        never = NEVER_SENT in (step, AGAIN.get(step))
        if problems := real_walk.problems(run, requests=0 if never else 1):
            wrong[step] = [*problems, real_walk.story(run)]
    assert not wrong, told(wrong)
    assert len(real_walk.branches()) == 1 + len(first)
    assert Packet.objects.filter(kind=PacketKind.CALL).count() == len(first)
    assert Packet.objects.filter(kind=PacketKind.PUBLICATION).count() == len(first)
    real_walk.until_clean()


@pytest.mark.bubblewrap
@pytest.mark.both_databases
def test_in_the_middle_of_a_transaction(real_walk: RealWalk, tmp_path: Path) -> None:
    """All of a step is there, or nothing of it. Each death also hits the other runs anywhere."""
    kinds = (
        "call.finished",
        "checkpoint.saved",
        "packet.opened",
        "run.checking",
        "check.finished",
        "publication.started",
        "run.published",
    )
    drill = Drill(real_walk, tmp_path, kinds)
    real_walk.web()
    drill.make_plan(dict(enumerate(kinds, 1)))
    worker = drill.start("tests.drill.mortal_worker", 2 * AT_ONCE)

    def over() -> bool:
        nonlocal worker
        if not worker.alive:
            worker = drill.start("tests.drill.mortal_worker", 2 * AT_ONCE)
        drill.attend()
        return drill.over()

    real_walk.until(over, "all runs have ended", deadline=DEADLINE)
    wrong = {}
    for kind, run in drill.runs.items():
        # Where a death left it unknown, a person looked; if it had not been sent, it never was.
        sent = 1 if run.calls.get(call_id="file").state == "done" else 0
        if problems := real_walk.problems(run, requests=sent):
            wrong[kind] = [*problems, real_walk.story(run)]
    assert not wrong, told(wrong)
    died = {each.name for each in drill.plan.glob("*.dead")}
    assert died == {f"{number}.dead" for number in range(1, 1 + len(kinds))}
    assert len(real_walk.branches()) == 1 + len(kinds)
    real_walk.until_clean()


@pytest.mark.bubblewrap
def test_a_stop_after_the_death_leaves_the_unknown_request_to_a_person(
    real_walk: RealWalk, tmp_path: Path
) -> None:
    drill = Drill(real_walk, tmp_path, ["request sent"])
    real_walk.web()
    worker = drill.standing_worker({1: "request sent"})
    drill.until_all({1: "request sent"})
    worker.kill()
    run = drill.runs["request sent"]
    ask_cancel(run, member=real_walk.cast.olu)
    drill.standing_worker({})
    real_walk.until_status(run, "cancelled")
    call = run.calls.get(call_id="file")
    assert (call.state, real_walk.sent(run, "file")) == ("unknown", 1)
    settle_unknown_call(call, happened=True, note="I see it.", member=real_walk.cast.ada)
    assert real_walk.status(run) == "cancelled"
    assert set(real_walk.branches()) == {"main"}
    real_walk.until_clean()


@pytest.mark.docker
def test_a_container_goes_with_its_worker(real_walk: RealWalk, tmp_path: Path) -> None:
    real_walk.provider = "docker"
    drill = Drill(real_walk, tmp_path, ["workspace filled"])
    real_walk.web()
    worker = drill.standing_worker({1: "workspace filled"})
    drill.until_all({1: "workspace filled"})
    alone = real_walk.containers()
    worker.kill()
    assert len(alone) == 1
    drill.standing_worker({})
    drill.until_all({})
    run = drill.runs["workspace filled"]
    assert real_walk.problems(run, requests=1) == []
    real_walk.until(lambda: real_walk.containers() == [], "no container is left")
    real_walk.until_clean()
