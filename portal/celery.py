"""The Celery application, what beat asks for, and beat inside the embedded worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery import Celery, bootsteps, signals
from celery.beat import EmbeddedService
from django.conf import settings

from portal.handoff import Job
from portal.rest import Rest

app = Celery("imprimatur")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

# Every hop is triggered by the one before it and swept as well: a hint that was
# lost costs some seconds, never a run. A sweep that waited longer than this is
# dropped, because a later one asks the same question.
app.conf.beat_schedule = {
    job.value: {
        "task": job.value,
        "schedule": float(settings.SWEEP_SECONDS),
        "options": {"expires": 4 * settings.SWEEP_SECONDS},
    }
    for job in (Job.SWEEP_RUNS, Job.SWEEP_APPROVALS)
}
app.conf.beat_schedule |= {
    job.value: {
        "task": job.value,
        "schedule": float(seconds),
        "options": {"expires": seconds},
    }
    for job, seconds in (
        (Job.SWEEP_RETENTION, settings.RETENTION_SECONDS),
        (Job.SWEEP_EVIDENCE, settings.CHECKPOINT_SECONDS),
        (Job.SWEEP_QUORUMS, settings.QUORUM_SECONDS),
        (Job.SWEEP_CANARIES, settings.CANARY_SECONDS),
    )
}


class Clock(bootsteps.StartStopStep):
    """Beat in a thread of the worker.

    Celery's own `-B` forks a second process, which stays behind when the worker
    is killed, and then there are two beats. Our schedule has no memory to keep,
    so the plain scheduler without a file is enough.
    """

    label = "Clock"
    conditional = True

    def __init__(self, worker: Any, **options: Any) -> None:
        self.enabled = settings.EMBEDDED_BEAT
        super().__init__(worker, **options)

    def create(self, worker: Any) -> Any:
        return EmbeddedService(worker.app, thread=True, scheduler_cls="celery.beat:Scheduler")


app.steps["worker"].add(Clock)
app.steps["worker"].add(Rest)


@signals.worker_ready.connect
def _say_ready(**_: Any) -> None:
    """Tell the one who started this process that it takes work now."""
    if settings.WORKER_READY_FILE:
        Path(settings.WORKER_READY_FILE).touch()
