"""What a person must have seen, and say so, before an approval counts."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from approvals import signing
from approvals.demands import risk_of
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
    """What must be typed to approve: of high risk, where something was found, or was denied before.

    A passkey that signs the very page says as much about a high risk as its target's name would.
    """
    page = packet.page
    if is_of_high_risk(packet) and not signing.is_demanded(packet):
        return target_name(packet)
    if page.get("denied_before") or to_acknowledge(packet):
        return str(page.get("tool") if packet.kind == PacketKind.CALL else page.get("target") or "")
    return ""


def why_typed(packet: Packet) -> str:
    """Why something must be typed, as a sentence."""
    if is_of_high_risk(packet) and not signing.is_demanded(packet):
        return "Its rules call its risk high."
    if packet.page.get("denied_before"):
        return "This was asked before and denied."
    findings = len(to_acknowledge(packet))
    return f"Checks left {findings} finding{'s' if findings > 1 else ''} to acknowledge."


def is_of_high_risk(packet: Packet) -> bool:
    """Whether a rule that spoke says so; a question is answered in words anyway."""
    gate = packet.page.get("gate")
    high = isinstance(gate, dict) and risk_of(gate) == "high"
    return high and packet.kind != PacketKind.QUESTION


def target_name(packet: Packet) -> str:
    """What people call the target: the host of an address, the repository, else the tool."""
    page = packet.page
    target = str(page.get("target") or "")
    if packet.kind != PacketKind.CALL:
        return target
    if page.get("tool_kind") == "http":
        return urlsplit(target.rpartition(" ")[2]).hostname or str(page["tool"])
    return target if page.get("tool_kind") in ("sql", "python") else str(page["tool"])
