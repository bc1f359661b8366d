"""From a committed decision to the first event of the resumed run, against a bare round trip.

A real worker process on the run's Valkey parks real runs at a call that needs a person. This
process decides. The clock starts when the COMMIT of the decision returns, and stops when the event
`run.claimed` of the worker can be read. Setting the sandbox up again comes after that event and is
told apart, as is the time until the agent is back at the approved call.

The same again with 100,000 other runs parked at open packets. The bare round trip takes turns with
it: the smallest Celery task in a worker of its own, on the same broker, sent and its result read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import redis

from tests.bench.ground import Ground, crowd, ground, open_packet, small
from tests.bench.report import Report

ROUNDS = 6 if small() else 40
WARM = 2 if small() else 5
OTHERS = 2_000 if small() else 100_000
BAR = 10.0


@dataclass
class Taken:
    """Seconds, one of each for each round."""

    claimed: list[float] = field(default_factory=list)
    restored: list[float] = field(default_factory=list)
    acting: list[float] = field(default_factory=list)
    celery: list[float] = field(default_factory=list)


def main() -> None:
    with ground() as place:
        report = Report("resume: decision committed -> the run goes on", place.database)
        place.worker()
        bench = Resuming(place)
        bench.rounds(WARM)
        alone = bench.rounds(ROUNDS)
        crowd(place.park().run, OTHERS // 2)
        crowd(place.review().run, OTHERS - OTHERS // 2)
        bench.rounds(WARM)
        crowded = bench.rounds(ROUNDS)
        for name, taken in (("alone", alone), (f"{OTHERS:,} others waiting", crowded)):
            report.say(f"{name}:")
            floor = report.took("bare Celery round trip", taken.celery)
            ours = report.took("decision committed -> first event", taken.claimed)
            report.took("  after it: sandbox set up again", taken.restored)
            report.took("  decision committed -> agent acts, less that", taken.acting)
            report.bar(f"first event / round trip, {name}", ours.median / floor.median, BAR)
        report.say(f"one sweep with {OTHERS:,} waiting: {_sweeps()}")
    report.end()


class Resuming:
    """Parks runs, approves what they ask for, and watches them go on."""

    def __init__(self, place: Ground) -> None:
        from django.conf import settings
        from django.db import connection

        from portal import live

        self._place = place
        self._echo = _bare_worker(place)
        self._hints = redis.Redis.from_url(settings.CHANNEL_URL).pubsub()  # type: ignore[no-untyped-call]
        self._hints.subscribe(live.CHANNEL)
        self._committed = 0.0
        commit = connection._commit  # type: ignore[attr-defined]

        def watched() -> None:
            commit()
            self._committed = time.perf_counter()

        connection._commit = watched  # type: ignore[attr-defined]

    def rounds(self, count: int) -> Taken:
        """Park, decide, watch; and a few bare round trips before each."""
        taken = Taken()
        for _ in range(count):
            taken.celery += [self._echo() for _ in range(5)]
            self._round(taken)
        return taken

    def _round(self, taken: Taken) -> None:
        from runs.models import Event

        packet = self._place.park()
        time.sleep(0.2)  # the worker is done with parking
        last = Event.objects.filter(run=packet.run).order_by("-seq").values_list("seq", flat=True)
        news = Event.objects.filter(run=packet.run, seq__gt=last[0])
        while self._hints.get_message(timeout=0):
            pass
        self._place.approve(packet)
        committed = self._committed
        self._until(lambda: news.filter(kind="run.claimed").exists())
        taken.claimed.append(time.perf_counter() - committed)
        self._until(lambda: news.filter(kind="call.started").exists())
        acting = time.perf_counter() - committed
        restored = news.get(kind="sandbox.restored").facts["duration_ms"] / 1000
        taken.restored.append(restored)
        taken.acting.append(acting - restored)
        open_packet(packet.run, "publication", self._wait)

    def _wait(self) -> None:
        self._hints.get_message(timeout=0.25)

    def _until(self, happened: Callable[[], bool]) -> None:
        """Look whenever the worker has told its hint, so that looking costs the worker nothing."""
        deadline = time.monotonic() + 60
        while not happened():
            if time.monotonic() > deadline:
                raise AssertionError("the run does not go on")
            self._wait()


def _sweeps() -> str:
    """How long the questions of a sweep take."""
    from approvals import closing
    from portal.clock import database_now
    from runs import lifecycle

    now, late = database_now(), timedelta(seconds=6)
    questions: dict[str, Callable[[], object]] = {
        "overdue runs": lambda: lifecycle.overdue_runs(now),
        "runs to collect": lambda: lifecycle.runs_to_collect(now),
        "live runs": lambda: "" in lifecycle.LiveRuns(),
        "packets": lambda: closing.overdue(now, late, since=now - timedelta(minutes=20)),
        "packets, all of them": lambda: closing.overdue(now, late),
    }
    words = []
    for name, ask in questions.items():
        began = time.perf_counter()
        ask()
        words.append(f"{name} {(time.perf_counter() - began) * 1000:.1f} ms")
    return ", ".join(words)


def _bare_worker(place: Ground) -> Callable[[], float]:
    """Start the smallest worker; returns what sends one task and waits for its result."""
    from django.conf import settings

    broker = settings.BROKER.for_celery()
    os.environ["BENCH_BROKER"] = broker
    place.processes.start(
        "bare-worker",
        "celery",
        *("-A", "tests.bench.bare", "worker", "--pool", "threads", "--concurrency", "2"),
        *("--loglevel", "WARNING", "--hostname", "bare@bench"),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        # Or Celery would load Django after all, and take the broker's address from there.
        **{"DJANGO_SETTINGS_MODULE": "", "BROKER_URL": broker},
    )
    from tests.bench import bare

    bare.echo.delay(0).get(timeout=60)

    def trip() -> float:
        began = time.perf_counter()
        bare.echo.delay(1).get(timeout=60)
        return time.perf_counter() - began

    for _ in range(50):
        trip()
    return trip


if __name__ == "__main__":
    main()
