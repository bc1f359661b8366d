"""Close a packet that nobody decided: its time is over, or nobody needs the answer any more."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from approvals import canary
from approvals.effects import tell
from approvals.models import Candidate, Packet, Publication
from approvals.states import PacketKind, PacketState, PublicationState
from portal import audit
from portal.clock import database_now
from portal.models import User
from runs import grants, lifecycle, resuming
from runs.credentials import grants as credential_grants
from runs.lifecycle import Draft, append_events, locked_run, run_facts
from runs.models import EgressGrant, Resumption, Run, ToolCall
from runs.states import ENDED, CallState, CredentialState, GrantState, ResumeState, RunStatus


@transaction.atomic(durable=True)
def expire_packet(packet_id: int) -> bool:
    """Close one packet whose time is over. Expiry never approves; the agent hears the word."""
    run_id = Packet.objects.values_list("run_id", flat=True).get(pk=packet_id)
    run = locked_run(run_id)
    packet = (
        Packet.objects.select_for_update(no_key=True, of=("self",))
        .select_related("call", "tenant", "egress", "credential", "resumption__checkpoint")
        .get(pk=packet_id)
    )
    in_time = packet.held_until is not None or database_now() < packet.expires_at
    if packet.state != PacketState.OPEN or in_time:
        return False
    close_packet(packet, run, PacketState.EXPIRED)
    append_events(run, [Draft("packet.expired", run_facts(run) | {"packet": packet.number})])
    if packet.canary is not None:
        return True  # nothing waits for it
    if packet.call is not None and packet.call.state == CallState.WAITING and run.is_live:
        lifecycle.answer_call(packet.call, CallState.EXPIRED, text="", usable_until=None, run=run)
    elif packet.egress is not None and packet.egress.state == GrantState.REQUESTED:
        grants.settle(packet.egress, run, grants.Settled(GrantState.UNANSWERED, "", ""))
    elif packet.resumption is not None and packet.resumption.state == ResumeState.WAITING:
        resuming.settle(packet.resumption, run, ResumeState.EXPIRED, by="", words="")
    elif packet.kind == PacketKind.PUBLICATION and RunStatus(run.status) is RunStatus.IN_REVIEW:
        lifecycle.end_run(run, RunStatus.EXPIRED)
    return True


# Packets of a live run that nobody needs answered any more.
_MOOT = Q(kind=PacketKind.EGRESS) & ~Q(egress__state=GrantState.REQUESTED) | Q(
    kind=PacketKind.RESUME
) & ~Q(resumption__state=ResumeState.WAITING)


@transaction.atomic(durable=True)
def close_packets_of(run_id: int) -> int:
    """Close the open packets of a run that ended: as cancelled, or withdrawn after a failure.

    Of a live run, those that ask for network for an agent that has finished, and those that ask
    whether it may go on after it was parked with other differences.
    """
    run = locked_run(run_id)
    state = PacketState.CANCELLED if run.status == RunStatus.CANCELLED else PacketState.WITHDRAWN
    over = Packet.objects.filter(run=run, state=PacketState.OPEN)
    if run.is_live:
        over = over.filter(_MOOT)
    closed = 0
    for packet in over.select_for_update(no_key=True, of=("self",)):
        close_packet(packet, run, state)
        append_events(
            run, [Draft(f"packet.{state.value}", run_facts(run) | {"packet": packet.number})]
        )
        closed += 1
    return closed


def close_packet(
    packet: Packet, run: Run, state: PacketState, *, by: User | None = None, reason: str = ""
) -> None:
    """End it undecided, in this state; by a person if somebody withdrew it, and for this reason."""
    packet.state, packet.settled_at, packet.held_until = state.value, database_now(), None
    packet.save(update_fields=["state", "settled_at", "held_until"])
    if packet.credential is not None:
        expired = state is PacketState.EXPIRED
        ended = CredentialState.UNANSWERED if expired else CredentialState.WITHDRAWN
        credential_grants.settle(packet.credential, run, ended)
    audit.record(
        f"packet.{state.value}",
        tenant=packet.tenant,
        subject=packet,
        actor=by,
        digest=packet.digest,
        **({"reason": reason} if reason else {}),
    )
    if packet.canary is not None:
        canary.end(packet, run)
    tell(packet)


# Rows of one kind that one sweep takes up; the next one goes on.
SWEPT = 500


def overdue(
    now: datetime, grace: timedelta, *, since: datetime | None = None
) -> Mapping[str, list[int]]:
    """Rows whose next hop is late, by the hop that is missing.

    With `since`, only of runs that moved after it. What waits for people is then not asked about
    again and again, so that a sweep costs the same however much waits.
    """
    late = now - grace
    moved = Q(run__status_at__gte=since) if since else Q()
    return {
        "expire": list(
            Packet.objects.filter(
                state=PacketState.OPEN, expires_at__lte=now, held_until=None
            ).values_list("pk", flat=True)[:SWEPT]
        ),
        "release": list(
            Packet.objects.filter(held_until__lte=now).values_list("pk", flat=True)[:SWEPT]
        ),
        "nudge": list(
            Packet.objects.filter(
                Q(remind_at__lte=now) | Q(escalate_at__lte=now),
                state=PacketState.OPEN,
                held_until=None,
                expires_at__gt=now,
            ).values_list("pk", flat=True)[:SWEPT]
        ),
        "close": list(
            Packet.objects.filter(
                moved,
                run__status__in=sorted(each.value for each in ENDED),
                state=PacketState.OPEN,
            ).values_list("run_id", flat=True)[:SWEPT]
        )
        + list(
            Packet.objects.filter(
                Q(egress__ended_at__gte=since) if since else Q(),
                kind=PacketKind.EGRESS,
                state=PacketState.OPEN,
            )
            .exclude(egress__state=GrantState.REQUESTED)
            .values_list("run_id", flat=True)[:SWEPT]
        )
        + list(
            Packet.objects.filter(kind=PacketKind.RESUME, state=PacketState.OPEN)
            .exclude(resumption__state=ResumeState.WAITING)
            .values_list("run_id", flat=True)[:SWEPT]
        ),
        "open_resume": list(
            Resumption.objects.filter(
                state=ResumeState.WAITING, packet=None, created_at__lt=late
            ).values_list("pk", flat=True)[:SWEPT]
        ),
        "open_egress": list(
            EgressGrant.objects.filter(
                Q(created_at__gte=since) if since else Q(),
                state=GrantState.REQUESTED,
                packet=None,
                created_at__lt=late,
            ).values_list("pk", flat=True)[:SWEPT]
        ),
        "open_call": list(
            ToolCall.objects.filter(
                moved,
                run__status=RunStatus.WAITING,
                run__status_at__lt=late,
                state=CallState.WAITING,
                checkpoint__isnull=False,
                packet=None,
            ).values_list("pk", flat=True)[:SWEPT]
        ),
        "check": list(
            Candidate.objects.filter(
                Q(run__lease_token=None) | Q(run__lease_expires_at__lt=now),
                superseded=False,
                run__status=RunStatus.CHECKING,
                run__status_at__lt=late,
            ).values_list("pk", flat=True)[:SWEPT]
        ),
        "open_publication": list(
            Candidate.objects.filter(
                moved,
                superseded=False,
                run__status=RunStatus.IN_REVIEW,
                run__status_at__lt=late,
            )
            .exclude(packets__state=PacketState.OPEN)
            .values_list("pk", flat=True)[:SWEPT]
        ),
        "publish": list(
            Publication.objects.filter(
                Q(state=PublicationState.INTENDED, created_at__lt=late)
                & (Q(not_before=None) | Q(not_before__lte=now))
                | Q(state=PublicationState.ACTING, lease_expires_at__lt=now)
            ).values_list("pk", flat=True)[:SWEPT]
        ),
    }
