"""What policy judged for a tenant, as the rows have it, newest first."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from approvals.demands import Stage, stages_in
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


_OF_PACKET = ("packet", "packet__state", "packet__needed", "packet__heading__gate__stages")


def _asked(
    packet: int | None, answer: str | None, needed: int | None, sealed: list[Any] | None
) -> tuple[int | None, str, int, frozenset[Stage]]:
    """What people were asked, where they were."""
    return packet, answer or "", needed or 1, stages_in(sealed) if sealed else frozenset()


def _calls(tenant: Tenant, since: datetime, until: datetime) -> Iterator[Past]:
    # A request for network has a call of its own, which needs nobody; its rule is what is judged.
    found = ToolCall.objects.filter(
        tenant=tenant, created_at__gte=since, created_at__lt=until
    ).exclude(kind="network")
    columns = ("state", "rules", *_OF_PACKET)
    for pk, at, facts, state, rules, *asked in _rows(found, "created_at", *columns):
        if rules == [DONE_ALREADY]:  # no policy has a say in that
            continue
        effect = "ask" if asked[0] else _CALL.get(state, "ask")
        yield Past("call", pk, at, recalled(CallFacts, facts), effect, *_asked(*asked))


def _grants(tenant: Tenant, since: datetime, until: datetime) -> Iterator[Past]:
    found = EgressGrant.objects.filter(
        tenant=tenant, created_at__gte=since, created_at__lt=until
    ).exclude(origin=EgressGrant.Origin.CONTRACT)
    for pk, at, facts, state, *asked in _rows(found, "created_at", "state", *_OF_PACKET):
        effect = "ask" if asked[0] else _GRANT.get(state, "ask")
        yield Past("network", pk, at, recalled(CallFacts, facts), effect, *_asked(*asked))


def _publications(tenant: Tenant, since: datetime, until: datetime) -> Iterator[Past]:
    found = Packet.objects.filter(
        tenant=tenant,
        kind=PacketKind.PUBLICATION,
        opened_at__gte=since,
        opened_at__lt=until,
    )
    columns = ("pk", "state", "needed", "heading__gate__stages")
    for pk, at, facts, *asked in _rows(found, "opened_at", *columns):
        yield Past("publication", pk, at, recalled(PublishFacts, facts), "ask", *_asked(*asked))
