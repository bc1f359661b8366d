"""From a public id to the run or contract this member may see."""

from __future__ import annotations

import uuid

from portal.errors import NotFound
from portal.models import Membership
from runs.models import (
    Checkpoint,
    ContractVersion,
    Credential,
    CredentialChange,
    Event,
    JobContract,
    Run,
)


def access_run(member: Membership, public_id: uuid.UUID) -> Run:
    """A run of the member's tenant. Raises `NotFound` for those of others and for none."""
    run = (
        Run.objects.filter(tenant=member.tenant, public_id=public_id)
        .select_related(
            *("tenant", "version", "version__contract", "requested_by", "cancel_asked_by"),
            *("handed_to", "handed_by", "restart_of"),
        )
        .first()
    )
    if run is None:
        raise NotFound
    return run


def access_event(run: Run, seq: int) -> Event:
    """One event of a run this member may see. Raises `NotFound`."""
    event = Event.objects.filter(run=run, seq=seq).first()
    if event is None:
        raise NotFound
    return event


def access_credential(member: Membership, name: str) -> Credential:
    """A source of secrets of the member's tenant. Raises `NotFound`."""
    found = Credential.objects.filter(tenant=member.tenant, name=name)
    row = found.select_related("retired_by").first()
    if row is None:
        raise NotFound
    return row


def access_credential_change(member: Membership, public_id: uuid.UUID) -> CredentialChange:
    """A proposed or decided change of a source of the member's tenant. Raises `NotFound`."""
    found = CredentialChange.objects.filter(tenant=member.tenant, public_id=public_id)
    change = found.select_related("author", "decided_by").first()
    if change is None:
        raise NotFound
    return change


def access_checkpoint(run: Run, seq: int) -> Checkpoint:
    """One checkpoint of a run this member may see. Raises `NotFound`."""
    checkpoint = Checkpoint.objects.filter(run=run, seq=seq).first()
    if checkpoint is None:
        raise NotFound
    return checkpoint


def access_contract(member: Membership, public_id: uuid.UUID) -> JobContract:
    """A contract of the member's tenant. Raises `NotFound`."""
    contract = JobContract.objects.filter(tenant=member.tenant, public_id=public_id).first()
    if contract is None:
        raise NotFound
    return contract


def access_version(member: Membership, public_id: uuid.UUID, number: int) -> ContractVersion:
    """One version of a contract of the member's tenant. Raises `NotFound`."""
    version = (
        ContractVersion.objects.filter(
            tenant=member.tenant, contract__public_id=public_id, number=number
        )
        .select_related("contract", "author", "decided_by")
        .first()
    )
    if version is None:
        raise NotFound
    return version
