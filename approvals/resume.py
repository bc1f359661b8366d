"""The page of a packet that asks whether a run may go on: what changed since its checkpoint."""

from __future__ import annotations

from typing import Any

from approvals import seal
from approvals.models import Packet
from portal.canonical import digest
from runs.models import Resumption


def fits(packet: Packet, asked: Resumption) -> bool:
    """Whether the row that would be acted on is still the one on the page."""
    page = packet.page
    listed = {"checkpoint": asked.checkpoint.state_digest, "differences": asked.differences}
    return bool(digest(listed) == asked.digest == page["arguments_digest"])


def effect_of(asked: Resumption) -> str:
    """One sentence, in the portal's words."""
    return seal.resume_effect(
        asked.run.number, asked.checkpoint.seq, [each["what"] for each in asked.differences]
    )


def page_of(asked: Resumption) -> dict[str, Any]:
    """What a resume packet shows beside what every packet shows. Covered by the digest."""
    checkpoint = asked.checkpoint
    return {
        "tool": "resume",
        "tool_kind": "resume",
        "target": f"checkpoint {checkpoint.seq} of run {asked.run.number}",
        "arguments": {
            "checkpoint": checkpoint.seq,
            "saved_at": checkpoint.created_at.isoformat(),
            "run_state": checkpoint.state_digest,
            "snapshot": checkpoint.snapshot_blob,
            "snapshot_bytes": checkpoint.snapshot_size,
        },
        "arguments_digest": asked.digest,
        "differences": asked.differences,
        "scope": [],
        "denied_before": [],
    }
