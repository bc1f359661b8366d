"""From a public id to the packet, candidate or publication this member may see."""

from __future__ import annotations

import uuid

from approvals.models import Candidate, Packet, PolicyVersion, Publication
from portal.errors import NotFound
from portal.models import Membership
from runs.models import CredentialGrant, ToolCall


def access_packet(member: Membership, public_id: uuid.UUID) -> Packet:
    """A packet of the member's tenant. Raises `NotFound` for those of others and for none."""
    packet = (
        Packet.objects.filter(tenant=member.tenant, public_id=public_id)
        .select_related(
            "tenant",
            "call",
            "candidate",
            "requested_by",
            "run__version__contract",
            "run__version__author",
        )
        .first()
    )
    if packet is None:
        raise NotFound
    return packet


def access_candidate(member: Membership, public_id: uuid.UUID) -> Candidate:
    """A candidate of the member's tenant. Raises `NotFound`."""
    candidate = (
        Candidate.objects.filter(tenant=member.tenant, public_id=public_id)
        .select_related("run__version__contract", "run__tenant")
        .first()
    )
    if candidate is None:
        raise NotFound
    return candidate


def access_publication(member: Membership, public_id: uuid.UUID) -> Publication:
    """A publication of the member's tenant. Raises `NotFound`."""
    publication = (
        Publication.objects.filter(tenant=member.tenant, public_id=public_id)
        .select_related("run__version__contract", "packet", "candidate")
        .first()
    )
    if publication is None:
        raise NotFound
    return publication


def access_policy(member: Membership, number: int) -> PolicyVersion:
    """One version of the tenant's policy. Raises `NotFound`."""
    version = (
        PolicyVersion.objects.filter(tenant=member.tenant, number=number)
        .select_related("author", "decided_by", "tenant")
        .first()
    )
    if version is None:
        raise NotFound
    return version


def access_call(member: Membership, key: int) -> ToolCall:
    """A tool call of the member's tenant. Raises `NotFound`."""
    call = ToolCall.objects.filter(tenant=member.tenant, pk=key).first()
    if call is None:
        raise NotFound
    return call


def access_secret(member: Membership, public_id: uuid.UUID) -> CredentialGrant:
    """One use of a credential of the member's tenant. Raises `NotFound`."""
    grant = CredentialGrant.objects.filter(tenant=member.tenant, public_id=public_id).first()
    if grant is None:
        raise NotFound
    return grant
