"""Delete a tenant: nothing of it goes on, its secrets and bytes go, its evidence stays.

The deletion itself is one write. From then on no policy and no contract is in force, so nothing is
allowed any more, whatever a worker holds in its hands; and everybody but the auditors has left.
What is still there is wound down by a hop that is asked for until nothing is left: runs are
stopped, packets closed, secrets taken back, bytes removed. Rows stay, because they are the evidence
and the chains are never shortened; what a hold keeps stays whole until an auditor lifts it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from django.db import transaction
from django.utils import timezone

from approvals import closing, errors, publishing, retention
from approvals.models import Hold, Packet, PolicyVersion, Publication
from approvals.states import PacketState, PublicationState
from portal import audit, live, vault
from portal.access import demand
from portal.clock import database_now
from portal.handoff import Job, enqueue_on_commit
from portal.models import Membership, Tenant, User
from portal.roles import Permission, Role
from runs import lifecycle
from runs.credentials import grants
from runs.fetching import forget_sources
from runs.lifecycle import locked_run
from runs.models import (
    ContractVersion,
    Credential,
    CredentialChange,
    CredentialGrant,
    Run,
    TenantValue,
)
from runs.states import CredentialState, RunStatus

WHY = "the tenant was deleted"
CODE = "publication.tenant_deleted"

# A secret may exist that has to be taken back.
_ALIVE = (CredentialState.MINTING, CredentialState.LIVE, CredentialState.REVOKING)


@dataclass(frozen=True)
class Inventory:
    """What a deletion would end, and what it would keep."""

    live_runs: int
    open_packets: int
    intended: int
    credentials: int
    people: int
    auditors: int
    held: int


def inventory(tenant: Tenant) -> Inventory:
    """Counted now, for whoever thinks about it."""
    people = list(Membership.objects.filter(tenant=tenant).values_list("roles", flat=True))
    return Inventory(
        live_runs=Run.objects.filter(tenant=tenant, ended_at=None).count(),
        open_packets=Packet.objects.filter(tenant=tenant, state=PacketState.OPEN).count(),
        intended=Publication.objects.filter(tenant=tenant, state=PublicationState.INTENDED).count(),
        credentials=Credential.objects.filter(tenant=tenant, retired_at=None).count(),
        people=len(people),
        auditors=sum(Role.AUDITOR in roles for roles in people),
        held=Hold.objects.filter(tenant=tenant, lifted_at=None).count(),
    )


@transaction.atomic(durable=True)
def delete_tenant(tenant: Tenant, *, typed: str, member: Membership | None = None) -> Tenant:
    """Delete it for good. `typed` must be its short name.

    Without `member` it is whoever runs commands on the installation.
    """
    if member is not None:
        demand(member, Permission.MANAGE)
    locked = Tenant.objects.select_for_update().get(pk=tenant.pk)
    if locked.deleted_at is not None:
        raise errors.DeletedAlready(name=locked.name)
    if typed.strip() != locked.slug:
        raise errors.NameNotTyped(name=locked.name, slug=locked.slug)
    actor = member.user if member is not None else None
    now = database_now()
    locked.deleted_at = now
    locked.save(update_fields=["deleted_at"])
    # Without either nothing is allowed, asked or begun any more.
    PolicyVersion.objects.filter(tenant=locked, state=PolicyVersion.State.IN_FORCE).update(
        state=PolicyVersion.State.SUPERSEDED
    )
    ContractVersion.objects.filter(tenant=locked, state=ContractVersion.State.IN_FORCE).update(
        state=ContractVersion.State.SUPERSEDED
    )
    Credential.objects.filter(tenant=locked, retired_at=None).update(
        retired_at=now, retired_by=actor
    )
    left = _let_people_go(locked)
    audit.record(
        "tenant.deleted",
        tenant=locked,
        subject=locked,
        actor=actor,
        people=[each.pk for each in left],
        held=list(
            Hold.objects.filter(tenant=locked, lifted_at=None)
            .order_by("run__number")
            .values_list("run__number", flat=True)
        ),
    )
    live.changed_on_commit(
        live.members_topic(locked.pk),
        live.queue_topic(locked.pk),
        *(live.person_topic(each.pk) for each in left),
    )
    enqueue_on_commit(Job.WIND_DOWN, locked.pk)
    return locked


def _let_people_go(tenant: Tenant) -> list[User]:
    """Only auditors stay, as nothing else: they read the evidence, export it and lift holds."""
    left = []
    for each in Membership.objects.filter(tenant=tenant).select_related("user"):
        if Role.AUDITOR in each.roles:
            each.roles = [Role.AUDITOR.value]
            each.save(update_fields=["roles"])
        else:
            left.append(each.user)
            each.delete()
    return left


# --- Winding down --------------------------------------------------------------------------------


def unfinished() -> list[int]:
    """Deleted tenants of which something is left."""
    rows = Tenant.objects.filter(deleted_at__isnull=False, emptied_at=None)
    return list(rows.order_by("pk").values_list("pk", flat=True)[:100])


def wind_down(tenant_id: int) -> str:
    """Stop, close, take back and remove what is left; returns a word for the log.

    Safe to repeat and to die in: each row is settled on its own, and the next time goes on.
    """
    tenant = Tenant.objects.filter(pk=tenant_id, deleted_at__isnull=False, emptied_at=None).first()
    if tenant is None:
        return "skipped"
    running = _stop_runs(tenant)
    _end_publications(tenant)
    waiting = Packet.objects.filter(tenant=tenant, state=PacketState.OPEN)
    for run_id in sorted(set(waiting.values_list("run_id", flat=True))):
        closing.close_packets_of(run_id)
    for grant_id in CredentialGrant.objects.filter(
        tenant=tenant, state__in=(CredentialState.APPROVED, CredentialState.LIVE)
    ).values_list("pk", flat=True):
        grants.end_now(grant_id)
    if running or Run.objects.filter(tenant=tenant, ended_at=None).exists():
        return "runs are being stopped"
    while retention.sweep_tenant(tenant).total:
        pass
    if CredentialGrant.objects.filter(tenant=tenant, state__in=_ALIVE).exists():
        return "secrets are being taken back"
    retention.forget_recordings(tenant)
    forget_sources(tenant.pk)
    _forget_secrets(tenant)
    return "emptied"


def _stop_runs(tenant: Tenant) -> int:
    """Stop every run; returns how many still come to their end."""
    alive = list(Run.objects.filter(tenant=tenant, ended_at=None).values_list("pk", flat=True))
    return sum(not lifecycle.stop_run(run_id, WHY) for run_id in alive)


def _end_publications(tenant: Tenant) -> None:
    """What was approved and not begun is not begun; what nobody knows stays unknown."""
    mine = Publication.objects.filter(tenant=tenant)
    waiting = mine.filter(state=PublicationState.INTENDED)
    # Those that were postponed are not waited for.
    waiting.update(not_before=None)
    for publication_id in list(waiting.values_list("pk", flat=True)):
        publishing.publish(publication_id)
    unsure = mine.filter(state=PublicationState.UNKNOWN, run__ended_at=None)
    for run_id in list(unsure.values_list("run_id", flat=True)):
        _end_unknown(run_id)


@transaction.atomic(durable=True)
def _end_unknown(run_id: int) -> None:
    run = locked_run(run_id)
    if RunStatus(run.status) is RunStatus.PUBLISHING:
        lifecycle.end_failed(
            run,
            boundary="execution",
            code=CODE,
            operation="publish",
            text="It is not known whether this was published, and the tenant was deleted.",
            retry_safe=False,
        )


@transaction.atomic(durable=True)
def _forget_secrets(tenant: Tenant) -> None:
    """Overwrite every secret, remove every value, and say that nothing is left."""
    locked = Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
    for row in Credential.objects.filter(tenant=locked):
        row.sealed = vault.seal(secrets.token_hex(32).encode())
        row.save(update_fields=["sealed"])
    CredentialChange.objects.filter(tenant=locked).update(sealed=None)
    CredentialGrant.objects.filter(tenant=locked).update(sealed=None)
    TenantValue.objects.filter(tenant=locked).delete()
    locked.emptied_at = timezone.now()
    locked.save(update_fields=["emptied_at"])
    audit.record(
        "tenant.emptied",
        tenant=locked,
        subject=locked,
        held=Hold.objects.filter(tenant=locked, lifted_at=None).count(),
    )
