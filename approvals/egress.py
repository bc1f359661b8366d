"""The page of a packet that asks for one network rule: the rule, and what is open already."""

from __future__ import annotations

from typing import Any

from approvals import seal
from approvals.models import Packet
from approvals.states import PacketState
from portal.canonical import digest
from portal.clock import database_now
from runs.models import EgressGrant, Run
from runs.states import GrantState


def arguments_of(grant: EgressGrant) -> dict[str, Any]:
    """All that an approval of this rule covers, the words it was asked with included."""
    return {
        "host": grant.host,
        "port": grant.port,
        "tls": grant.tls,
        "methods": list(grant.methods),
        "path": grant.path,
        "minutes": grant.minutes,
        "max_bytes": grant.max_bytes,
        "max_connections": grant.max_connections,
        "purpose": grant.purpose,
        "expected_response": grant.expected,
    }


def fits(packet: Packet, grant: EgressGrant) -> bool:
    """Whether the row that would be opened is still the one on the page."""
    return bool(digest(arguments_of(grant)) == packet.page["arguments_digest"])


def effect_of(grant: EgressGrant, run: Run) -> str:
    """One sentence, in the portal's words."""
    return seal.egress_effect(str(grant), grant.through, grant.minutes, run.number)


def page_of(grant: EgressGrant, run: Run, mode: str) -> dict[str, Any]:
    """What an egress packet shows beside what every packet shows. Covered by the digest."""
    arguments = arguments_of(grant)
    rules = [_row("added", grant, f"{seal.count(grant.minutes, 'minute')} after approval")]
    rules += [_row("held", each, _end_of(each)) for each in open_rules(run)]
    return {
        "tool": "request_network",
        "tool_kind": "network",
        "target": str(grant),
        "arguments": arguments,
        "arguments_digest": digest(arguments),
        "asked_by": grant.asked_by.name if grant.asked_by is not None else "",
        "egress": {"mode": mode, "change": "added", "rules": rules},
        "scope": [],
        "denied_before": denied_before(grant),
    }


def open_rules(run: Run) -> list[EgressGrant]:
    """What the run may reach now."""
    rows = EgressGrant.objects.filter(
        run=run, state=GrantState.ACTIVE, expires_at__gt=database_now()
    )
    return list(rows.order_by("pk"))


def denied_before(grant: EgressGrant) -> list[int]:
    """Denied packets of this run for the same destination: the intent came back."""
    denied = Packet.objects.filter(
        run_id=grant.run_id,
        egress__host=grant.host,
        egress__port=grant.port,
        state=PacketState.DENIED,
    )
    return list(denied.order_by("number").values_list("number", flat=True))


def _row(change: str, grant: EgressGrant, ends: str) -> dict[str, Any]:
    connections = seal.count(grant.max_connections, "connection")
    return {
        "change": change,
        "where": str(grant),
        "passes": grant.through,
        "limits": f"{grant.max_bytes // 1_000_000:,} MB in all, {connections} at once",
        "purpose": grant.purpose,
        "from": grant.get_origin_display(),
        "ends": ends,
    }


def _end_of(grant: EgressGrant) -> str:
    if grant.origin == EgressGrant.Origin.CONTRACT:
        return f"after {seal.count(grant.minutes, 'minute')} of work"
    return f"{grant.expires_at:%Y-%m-%d %H:%M:%S} UTC"
