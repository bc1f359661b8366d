"""A worker that has grown and has nothing to do is replaced by a fresh one.

The first run loads the agents SDK, which keeps some 70 MiB for good. On a small
machine that mostly waits for people it is worth giving back: the worker ends
itself in order, its supervisor starts another, and messages that arrive in
between wait in the broker.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from celery import Task, bootsteps, signals
from django.conf import settings

from portal.handoff import Job

_SWEEPS = frozenset({Job.SWEEP_RUNS.value, Job.SWEEP_APPROVALS.value})
_GROWN = 32 << 20
_LOOK_EVERY = 5


class Activity:
    """What the pool is doing, sweeps aside: they come every few seconds, for ever."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy = 0
        self._last = time.monotonic()

    def begin(self) -> None:
        with self._lock:
            self._busy += 1

    def end(self) -> None:
        with self._lock:
            self._busy -= 1
            self._last = time.monotonic()

    def rested(self, seconds: float) -> bool:
        """Whether nothing has run for so long."""
        with self._lock:
            return self._busy == 0 and time.monotonic() - self._last >= seconds


_activity = Activity()


@signals.task_prerun.connect
def _began(sender: Task[Any, Any], **_: Any) -> None:
    if sender.name not in _SWEEPS:
        _activity.begin()


@signals.task_postrun.connect
def _ended(sender: Task[Any, Any], **_: Any) -> None:
    if sender.name not in _SWEEPS:
        _activity.end()


class Rest(bootsteps.StartStopStep):
    """Looks every few seconds, and asks this process to end in order when it may."""

    label = "Rest"
    requires = ("celery.worker.components:Timer",)

    def __init__(self, worker: Any, **options: Any) -> None:
        self.enabled = settings.WORKER_REST > 0
        self._size = _size()
        self._looking: Any = None
        super().__init__(worker, **options)

    def start(self, worker: Any) -> None:
        self._looking = worker.timer.call_repeatedly(_LOOK_EVERY, self._look)

    def stop(self, worker: Any) -> None:
        if self._looking is not None:
            self._looking.cancel()

    def _look(self) -> None:
        if _size() - self._size > _GROWN and _activity.rested(settings.WORKER_REST):
            os.kill(os.getpid(), signal.SIGTERM)


def _size() -> int:
    """Bytes this process holds in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
