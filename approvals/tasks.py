"""The hops that approvals own. Thin: everything is in the story modules."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta

from celery import shared_task
from django.conf import settings

from approvals import (
    canaries,
    candidates,
    checking,
    closing,
    deletion,
    mailing,
    opening,
    publishing,
    reachable,
    reminding,
    retention,
    undo,
)
from portal import audit
from portal.clock import database_now
from portal.handoff import Job, enqueue
from portal.models import Tenant
from runs.sandbox import SandboxUnavailable

logger = logging.getLogger(__name__)

# A hop that is missing is missed within seconds. One that was not, because nothing swept then, is
# found by the next look at everything.
_LATELY = timedelta(minutes=20)
_asked_everything = float("-inf")


@shared_task(name=Job.OPEN_CALL_PACKET.value)
def open_call_packet(call_id: int) -> str:
    """Open the packet of a call that waits for a person."""
    return str(opening.open_call_packet(call_id))


@shared_task(name=Job.OPEN_EGRESS_PACKET.value)
def open_egress_packet(grant_id: int) -> str:
    """Open the packet of a network rule that was asked for."""
    return str(opening.open_egress_packet(grant_id))


@shared_task(name=Job.OPEN_RESUME_PACKET.value)
def open_resume_packet(asked_id: int) -> str:
    """Ask whether a run may go on although something it stands on changed."""
    return str(opening.open_resume_packet(asked_id))


@shared_task(name=Job.COLLECT_CANDIDATE.value)
def collect_candidate(run_id: int) -> str:
    """Take the tray and the diff of a run that finished."""
    return str(candidates.collect_candidate(run_id))


@shared_task(name=Job.RUN_CHECKS.value)
def run_checks(candidate_id: int) -> str:
    """Run the checks of one candidate; without a sandbox the sweep asks again."""
    try:
        return checking.run_checks(candidate_id)
    except SandboxUnavailable as unavailable:
        logger.warning("checks of candidate %s wait: %s", candidate_id, unavailable)
        return "no sandbox"


@shared_task(name=Job.OPEN_PUBLICATION_PACKET.value)
def open_publication_packet(candidate_id: int) -> str:
    """Ask people whether a checked candidate may be let out."""
    return str(opening.open_publication_packet(candidate_id))


@shared_task(name=Job.PUBLISH.value)
def publish(publication_id: int) -> str:
    """Carry out one approved publication."""
    return publishing.publish(publication_id)


@shared_task(name=Job.SEND_MAIL.value)
def send_mail(_: int = 0) -> str:
    """Hand the letters that are due to the mail server."""
    return f"{mailing.send()} sent"


@shared_task(name=Job.WIND_DOWN.value)
def wind_down(tenant_id: int) -> str:
    """Stop and remove what is left of a deleted tenant."""
    return deletion.wind_down(tenant_id)


@shared_task(name=Job.SWEEP_APPROVALS.value)
def sweep(run_id: int = 0) -> str:
    """Ask of the rows: is the next one overdue? With a run's id, only close its packets.

    Mostly of what moved of late; now and then, and when this worker is new, of everything.
    """
    global _asked_everything
    if run_id:
        return f"{closing.close_packets_of(run_id)} closed"
    now, began = database_now(), time.monotonic()
    everything = began - _asked_everything > _LATELY.total_seconds() / 2
    late = closing.overdue(
        now,
        timedelta(seconds=2 * settings.SWEEP_SECONDS),
        since=None if everything else now - _LATELY,
    )
    if everything and all(len(rows) < closing.SWEPT for rows in late.values()):
        _asked_everything = began
    for packet_id in late["expire"]:
        _each(closing.expire_packet, packet_id)
    for packet_id in late["release"]:
        _each(undo.release_packet, packet_id)
    for packet_id in late["nudge"]:
        _each(reminding.nudge_packet, packet_id)
    if mailing.is_due(database_now()):
        enqueue(Job.SEND_MAIL, 0)
    for ended in set(late["close"]):
        _each(closing.close_packets_of, ended)
    for job, key in (
        (Job.OPEN_CALL_PACKET, "open_call"),
        (Job.OPEN_EGRESS_PACKET, "open_egress"),
        (Job.OPEN_RESUME_PACKET, "open_resume"),
        (Job.RUN_CHECKS, "check"),
        (Job.OPEN_PUBLICATION_PACKET, "open_publication"),
        (Job.PUBLISH, "publish"),
    ):
        for row_id in late[key]:
            enqueue(job, row_id)
    for tenant_id in deletion.unfinished():
        enqueue(Job.WIND_DOWN, tenant_id)
    return (
        ", ".join(f"{len(rows)} {name}" for name, rows in late.items() if rows) or "nothing overdue"
    )


@shared_task(name=Job.SWEEP_RETENTION.value)
def sweep_retention(_: int = 0) -> str:
    """Remove what no tenant keeps any longer, tenant by tenant."""
    removed = 0
    for tenant in Tenant.objects.order_by("pk").iterator():
        try:
            removed += retention.sweep_tenant(tenant).total
        except Exception:
            logger.exception("retention of %s failed; the next sweep asks again", tenant.slug)
    return f"{removed} removed"


@shared_task(name=Job.SWEEP_EVIDENCE.value)
def sweep_evidence(_: int = 0) -> str:
    """Sign where each tenant's audit log stands, if it went on since."""
    signed = 0
    for tenant in Tenant.objects.order_by("pk").iterator():
        try:
            signed += audit.sign_end(tenant)
        except Exception:
            logger.exception("no checkpoint of %s; the next sweep asks again", tenant.slug)
    return f"{signed} signed"


@shared_task(name=Job.SWEEP_QUORUMS.value)
def sweep_quorums(_: int = 0) -> str:
    """Warn of rules in force that a tenant's people can no longer satisfy."""
    changed = 0
    for tenant in Tenant.objects.filter(deleted_at=None).order_by("pk").iterator():
        try:
            changed += reachable.sweep_tenant(tenant)
        except Exception:
            logger.exception("quorums of %s; the next sweep asks again", tenant.slug)
    return f"{changed} changed"


@shared_task(name=Job.SWEEP_CANARIES.value)
def sweep_canaries(_: int = 0) -> str:
    """Make the test packets that are due, where a tenant wants them."""
    opened = 0
    for tenant_id in canaries.due(database_now()):
        try:
            opened += canaries.open_due(tenant_id) is not None
        except Exception:
            logger.exception("no test packet for tenant %s; the next sweep asks again", tenant_id)
    return f"{opened} opened"


def _each(close: Callable[[int], object], row_id: int) -> None:
    """One row that cannot be closed must not keep the others open."""
    try:
        close(row_id)
    except Exception:
        logger.exception("%s(%s) failed; the next sweep asks again", close.__name__, row_id)
