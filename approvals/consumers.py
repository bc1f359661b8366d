"""Sockets of the queue and of packets."""

from __future__ import annotations

from typing import Any

from approvals.access import access_packet
from portal import live
from portal.models import Membership
from portal.sockets import HintSocket


class QueueSocket(HintSocket):
    """One open queue page."""

    def topics(self, membership: Membership, **kwargs: Any) -> tuple[str, ...]:
        return (live.queue_topic(membership.tenant_id),)


class PacketSocket(HintSocket):
    """One open packet page: the packet, what its run does, and in whose names one may decide."""

    shows_presence = True

    def topics(self, membership: Membership, **kwargs: Any) -> tuple[str, ...]:
        packet = access_packet(membership, kwargs["public_id"])
        return (
            live.packet_topic(packet.pk),
            live.run_topic(packet.run_id),
            live.handed_topic(membership.pk),
        )
