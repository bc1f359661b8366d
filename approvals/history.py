"""What policy judged for a tenant, as the rows have it, newest first."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from approvals.models import Packet
from approvals.policy import CallFacts, Effect, PublishFacts, recalled
from approvals.simulator import Past
from approvals.states import PacketKind
from portal.models import Tenant
from runs.models import EgressGrant, ToolCall
from runs.states import DONE_ALREADY, CallState, GrantState

PORTION = 500
_CALL: dict[str, Effect] = {
    CallState.ALLOWED: "allow",
    CallState.ACTING: "allow",
    CallState.DONE: "allow",
    CallState.FAILED: "allow",
    CallState.UNKNOWN: "allow",
    CallState.REFUSED: "deny",
}
_GRANT: dict[str, Effect] = {
    GrantState.ACTIVE: "allow",
    GrantState.EXPIRED: "allow",
    GrantState.REVOKED: "allow",
    GrantState.ENDED: "allow",
    GrantState.REFUSED: "deny",
}


def judged_between(tenant: Tenant, since: datetime, until: datetime) -> Iterator[Past]:
    """Calls, requests for network and candidates, read portion by portion.

    Whether a run may go on is asked without a rule of the policy, so it is not among them.
    """
    parts = (
        _calls(tenant, since, until),
        _grants(tenant, since, until),
        _publications(tenant, since, until),
    )
    return heapq.merge(*parts, key=lambda past: past.at, reverse=True)


def _rows(found: QuerySet[Any], at: str, *columns: str) -> Iterator[tuple[Any, ...]]:
    rows = found.order_by(f"-{at}", "-pk").values_list("pk", at, "facts", *columns)
    return rows.iterator(chunk_size=PORTION)


def _calls(tenant: Tenant, since: datetime, until: datetime) -> Iterator[Past]:
    # A request for network has a call of its own, which needs nobody; its rule is what is judged.
    found = ToolCall.objects.filter(
        tenant=tenant, created_at__gte=since, created_at__lt=until
    ).exclude(kind="network")
    columns = ("state", "rules", "packet", "packet__state", "packet__needed")
    for pk, at, facts, state, rules, packet, answer, needed in _rows(found, "created_at", *columns):
        if rules == [DONE_ALREADY]:  # no policy has a say in that
            continue
        effect = "ask" if packet else _CALL.get(state, "ask")
        told = recalled(CallFacts, facts)
        yield Past("call", pk, at, told, effect, packet, answer or "", needed or 1)


def _grants(tenant: Tenant, since: datetime, until: datetime) -> Iterator[Past]:
    found = EgressGrant.objects.filter(
        tenant=tenant, created_at__gte=since, created_at__lt=until
    ).exclude(origin=EgressGrant.Origin.CONTRACT)
    columns = ("state", "packet", "packet__state", "packet__needed")
    for pk, at, facts, state, packet, answer, needed in _rows(found, "created_at", *columns):
        effect = "ask" if packet else _GRANT.get(state, "ask")
        told = recalled(CallFacts, facts)
        yield Past("network", pk, at, told, effect, packet, answer or "", needed or 1)


def _publications(tenant: Tenant, since: datetime, until: datetime) -> Iterator[Past]:
    found = Packet.objects.filter(
        tenant=tenant,
        kind=PacketKind.PUBLICATION,
        opened_at__gte=since,
        opened_at__lt=until,
    )
    for pk, at, facts, answer, needed in _rows(found, "opened_at", "state", "needed"):
        told = recalled(PublishFacts, facts)
        yield Past("publication", pk, at, told, "ask", pk, answer, needed)
