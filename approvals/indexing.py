"""List a packet under its words, so that it is found without reading the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from approvals.models import Packet, PacketWord
from approvals.words import COMMON, LONGEST, words_of
from portal.statements import insert


def searchable(page: Mapping[str, Any]) -> str:
    """`Packet.words` of a sealed page: in it each word begins after a blank."""
    return f" {' '.join(words_of(page))} "


def list_packet(packet: Packet) -> None:
    """List a new packet, in the transaction that opened it."""
    insert(
        *(
            PacketWord(tenant_id=packet.tenant_id, word=word, packet_id=packet.pk)
            for word in listed_under(packet.words, packet.digest)
        )
    )


def listed_under(words: str, digest: str) -> list[bytes]:
    """What leads to a packet with these words and this digest."""
    found = {*words.split(), digest[:LONGEST]} - COMMON
    return [word.encode() for word in sorted(found)]
