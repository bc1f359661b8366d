"""The hops of the walk: every job has a name here, takes one id, and may run twice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

from celery import current_app
from django.db import transaction
from kombu.exceptions import OperationalError

from portal.afterwards import afterwards

logger = logging.getLogger(__name__)


class Job(StrEnum):
    """The hops in the order of the walk. The value is the Celery task's name."""

    EXECUTE_RUN = "runs.execute_run"
    OPEN_CALL_PACKET = "approvals.open_call_packet"
    OPEN_EGRESS_PACKET = "approvals.open_egress_packet"
    OPEN_RESUME_PACKET = "approvals.open_resume_packet"
    COLLECT_CANDIDATE = "approvals.collect_candidate"
    RUN_CHECKS = "approvals.run_checks"
    OPEN_PUBLICATION_PACKET = "approvals.open_publication_packet"
    PUBLISH = "approvals.publish"
    REVOKE_CREDENTIAL = "runs.revoke_credential"
    WIND_DOWN = "approvals.wind_down"
    SEND_MAIL = "approvals.send_mail"
    SWEEP_RUNS = "runs.sweep"
    SWEEP_APPROVALS = "approvals.sweep"
    SWEEP_RETENTION = "approvals.sweep_retention"
    SWEEP_EVIDENCE = "approvals.sweep_evidence"
    SWEEP_QUORUMS = "approvals.sweep_quorums"
    SWEEP_CANARIES = "approvals.sweep_canaries"


_carriers: list[Callable[[Job, int], None]] = []


@contextmanager
def carried_by(carry: Callable[[Job, int], None]) -> Iterator[None]:
    """In the block `carry` gets every hop of this process instead of the broker."""
    _carriers.append(carry)
    try:
        yield
    finally:
        _carriers.remove(carry)


def enqueue(job: Job, row_id: int) -> None:
    """Tell the broker. One that is down loses nothing: the row is the job, the sweep finds it."""
    if _carriers:
        _carriers[-1](job, row_id)
        return
    try:
        current_app.send_task(job.value, args=[row_id], retry=False)
    except OperationalError:
        logger.warning("broker unreachable, %s(%s) is left to the sweep", job.value, row_id)


def enqueue_on_commit(job: Job, row_id: int) -> None:
    """Tell the broker once the row is really there."""
    transaction.on_commit(lambda: afterwards(lambda: enqueue(job, row_id)), robust=True)
