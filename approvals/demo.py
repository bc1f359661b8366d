"""The demo: a small company, a small real project with a failing test, and a job that repairs it.

Nothing in it is faked but the model, which is a recorded transcript; the pages say so.
"""

from __future__ import annotations

from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from approvals.tenants import open_tenant
from portal import audit, blobs, vault
from portal import demo as content
from portal.models import Membership, Tenant, User
from portal.roles import Role
from runs.agent import transcript
from runs.contract import contract_digest, manifest_digest, parse_contract
from runs.lifecycle import request_run
from runs.models import ContractVersion, Credential, JobContract, Recording, TenantValue

TENANT = "Tideline Freight"
SLUG = "tideline"
DOMAIN = "tideline.example"
SECOND_TENANT = "Tideline Customs Desk"

PEOPLE: tuple[tuple[str, str, tuple[Role, ...]], ...] = (
    ("Ada Obi", "ada", (Role.REVIEWER, Role.PUBLISHER)),
    ("Olu Adeyemi", "olu", (Role.OPERATOR,)),
    ("Bo Lindqvist", "bo", (Role.REVIEWER, Role.PUBLISHER, Role.ADMIN)),
    ("Vic Moreau", "vic", (Role.VIEWER,)),
    ("Aud Dahl", "aud", (Role.AUDITOR,)),
)


class NotEmpty(Exception):
    """There are tenants already."""


def install() -> None:
    """Make everything and ask for the first run. Raises `NotEmpty`."""
    if Tenant.objects.exists():
        raise NotEmpty("This installation has tenants already, so the demo was not made.")
    content.make_repository(Path(settings.SOURCE_ROOT) / SLUG)
    olu = _install_rows()
    version = ContractVersion.objects.get(tenant=olu.tenant, state=ContractVersion.State.IN_FORCE)
    request_run(version, member=olu)


def refresh() -> None:
    """Say where the tracker is now: its port may have been taken since the last start."""
    for name, value in content.values().items():
        demo = TenantValue.objects.filter(tenant__slug=SLUG, name=name)
        demo.exclude(value=value).update(value=value)


@transaction.atomic
def _install_rows() -> Membership:
    people = {
        short: User.objects.create_user(f"{short}@{DOMAIN}", name) for name, short, _ in PEOPLE
    }
    tenant = open_tenant(TENANT, SLUG, admin=people["bo"])
    Membership.objects.filter(tenant=tenant).delete()
    members = {
        short: Membership.objects.create(
            tenant=tenant, user=people[short], roles=[role.value for role in roles]
        )
        for _, short, roles in PEOPLE
    }
    second = open_tenant(SECOND_TENANT, "tideline-customs", admin=people["bo"])
    Membership.objects.create(tenant=second, user=people["ada"], roles=[Role.AUDITOR.value])
    _install_job(tenant, members)
    return members["olu"]


def _install_job(tenant: Tenant, members: dict[str, Membership]) -> None:
    recording = content.transcript()
    Recording.objects.create(
        tenant=tenant,
        name=content.RECORDING,
        label=transcript.load(recording).label,
        blob=blobs.put(tenant.pk, recording),
    )
    for name, value in content.values().items():
        TenantValue.objects.create(tenant=tenant, name=name, value=value)
    Credential.objects.create(
        tenant=tenant,
        name=content.TRACKER,
        sealed=vault.seal(content.tracker_token(Path(settings.DATA_DIR)).encode()),
        audience=["127.0.0.1"],
        actions=["open issues"],
    )
    text = content.contract_text()
    contract = parse_contract(text, "toml")
    job = JobContract.objects.create(tenant=tenant, name=contract.name)
    version = ContractVersion.objects.create(
        tenant=tenant,
        contract=job,
        number=1,
        text=text,
        format="toml",
        data=contract.to_data(),
        digest=contract_digest(contract),
        manifest_digest=manifest_digest(contract),
        state=ContractVersion.State.IN_FORCE,
        author=members["olu"].user,
        decided_by=members["bo"].user,
        decided_at=timezone.now(),
    )
    audit.record(
        "contract.in_force",
        tenant=tenant,
        subject=version,
        actor=members["bo"].user,
        contract=job.name,
        number=1,
        contract_digest=version.digest,
    )
