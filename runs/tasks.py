"""The hops that runs own. Thin: claim, call, finish."""

from __future__ import annotations

import asyncio
import logging
import threading

from celery import shared_task, signals
from django.conf import settings

from portal import blobs
from portal.clock import database_now
from portal.handoff import Job, enqueue
from runs import grants, lifecycle
from runs.credentials import grants as credential_grants
from runs.credentials import using
from runs.driver import drive_run
from runs.folders import keep_temporary_files, reap_folders
from runs.providers import sandbox_provider
from runs.sandbox import SandboxUnavailable

logger = logging.getLogger(__name__)

# How often a run is given back for want of a sandbox before it fails.
MAX_RELEASES = 5

# Simultaneous runs of this process.
_places = threading.BoundedSemaphore(settings.WORKER_RUNS)


@shared_task(name=Job.EXECUTE_RUN.value)
def execute_run(run_id: int) -> str:
    """Drive one run until it parks or ends. Safe to deliver twice, late, or after a crash.

    A run takes a thread for minutes. The last threads of a process are kept for
    the short hops and the sweep; a run that finds no place stays queued for it.
    """
    if not _places.acquire(blocking=False):
        return "no place: left to the sweep"
    try:
        return _execute(run_id)
    finally:
        _places.release()


def _execute(run_id: int) -> str:
    lease = lifecycle.claim_run(run_id)
    if lease is None:
        return "skipped: ended, parked, or held by another worker"
    try:
        return drive_run(lease)
    except SandboxUnavailable as unavailable:
        return _without_sandbox(lease, unavailable)
    except lifecycle.LeaseLost:
        return "lease lost"
    except Exception as error:
        logger.exception("run %s failed in our own code", run_id)
        lifecycle.fail_run(
            lease,
            boundary="control",
            code="runs.internal",
            operation="drive",
            text=(
                f"The portal itself failed ({type(error).__name__}). The log of the worker has the "
                "details."
            ),
            retry_safe=True,
        )
        return "failed"


def _without_sandbox(lease: lifecycle.Lease, unavailable: SandboxUnavailable) -> str:
    run = lifecycle.beat(lease)
    if lifecycle.releases(run) >= MAX_RELEASES:
        lifecycle.fail_run(
            lease,
            boundary="execution",
            code=unavailable.code,
            operation="create sandbox",
            text=str(unavailable),
            retry_safe=True,
        )
        return "failed"
    lifecycle.release_run(lease, str(unavailable))
    return "released"


@shared_task(name=Job.REVOKE_CREDENTIAL.value)
def revoke_credential(grant_id: int) -> str:
    """Ask the source of one secret to take it back."""
    return using.revoke(grant_id)


@shared_task(name=Job.SWEEP_RUNS.value)
def sweep(_: int = 0) -> str:
    """Ask of every run: is the next hop overdue? And remove what dead workers left behind."""
    now = database_now()
    overdue = lifecycle.overdue_runs(now)
    for run_id in overdue:
        enqueue(Job.EXECUTE_RUN, run_id)
    collect = lifecycle.runs_to_collect(now)
    for run_id in collect:
        enqueue(Job.COLLECT_CANDIDATE, run_id)
    reaped = reap_folders() + blobs.tidy() + asyncio.run(_reap_sandboxes())
    for each in reaped:
        logger.warning("removed what a dead worker left: %s", each)
    grants.end_overdue(now)
    revoke = credential_grants.overdue(now)
    for grant_id in revoke:
        enqueue(Job.REVOKE_CREDENTIAL, grant_id)
    stuck = lifecycle.fail_stuck_steps(now)
    return (
        f"{len(overdue)} overdue, {len(collect)} to collect, {len(stuck)} stuck, "
        f"{len(revoke)} to revoke, "
        f"{len(reaped)} removed"
    )


async def _reap_sandboxes() -> list[str]:
    try:
        return await sandbox_provider().reap(lifecycle.LiveRuns())
    except SandboxUnavailable:
        return []


@signals.worker_init.connect
def _begin(**_: object) -> None:
    keep_temporary_files()
