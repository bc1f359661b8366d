"""What a person must have seen, and say so, before an approval counts."""

from __future__ import annotations

from typing import Any

from approvals.models import Packet
from approvals.states import PacketKind


def to_acknowledge(packet: Packet) -> list[dict[str, Any]]:
    """Findings that a person must say they saw before anything is published."""
    if packet.candidate is None:
        return []
    return [
        finding
        for receipt in packet.candidate.receipts.all()
        for finding in receipt.findings
        if finding.get("acknowledge")
    ]


def typed_word(packet: Packet) -> str:
    """What must be typed to approve: where something was found, or was denied before."""
    page = packet.page
    if page.get("denied_before") or to_acknowledge(packet):
        return str(page.get("tool") if packet.kind == PacketKind.CALL else page.get("target") or "")
    return ""
