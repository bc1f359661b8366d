"""Open a tenant, with the shipped policy: without one nothing in it would be allowed."""

from __future__ import annotations

import hashlib

from django.db import transaction
from django.utils import timezone

from approvals.models import PolicyVersion
from approvals.policy import DEFAULT_POLICY
from portal import audit
from portal.models import Membership, Tenant, User
from portal.roles import Role


@transaction.atomic
def open_tenant(name: str, slug: str, *, admin: User, one_person: bool = False) -> Tenant:
    """A new tenant with the shipped policy in force and one admin."""
    tenant = Tenant.objects.create(name=name, slug=slug, one_person=one_person)
    Membership.objects.create(tenant=tenant, user=admin, roles=[Role.ADMIN.value])
    PolicyVersion.objects.create(
        tenant=tenant,
        number=1,
        text=DEFAULT_POLICY,
        digest=hashlib.sha256(DEFAULT_POLICY.encode()).hexdigest(),
        state=PolicyVersion.State.IN_FORCE,
        decided_at=timezone.now(),
    )
    audit.record("tenant.opened", tenant=tenant, subject=tenant, actor=admin, policy="shipped")
    return tenant
