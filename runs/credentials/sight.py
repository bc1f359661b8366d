"""What the pages show of sources: their state, their changes, the uses of them. No secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Count, Q
from django.utils import timezone

from portal.models import Membership, Tenant
from portal.visible import hides_in_name
from runs.compare import FieldChange, compare
from runs.credentials import grants
from runs.models import Credential, CredentialChange, CredentialGrant, JobContract
from runs.states import CREDENTIALS_HELD

SOON = timedelta(days=14)
USES_SHOWN = 20


@dataclass(frozen=True)
class SourceRow:
    """One source with what runs hold of it."""

    credential: Credential
    state: str
    held: int
    stuck: int


def state_of(row: Credential) -> str:
    """Whether a source can be used, in one word that the pages know."""
    now = timezone.now()
    if row.retired_at is not None:
        return "retired"
    if row.expires_at is not None and row.expires_at <= now:
        return "over"
    if row.expires_at is not None and row.expires_at <= now + SOON:
        return "ends_soon"
    return "in_use"


def sources_of(tenant: Tenant) -> list[SourceRow]:
    """Every source of the tenant by name."""
    rows = Credential.objects.filter(tenant=tenant).annotate(
        held=Count("grants", filter=Q(grants__state__in=sorted(CREDENTIALS_HELD))),
        stuck=Count("grants", filter=Q(grants__state="revoking") & ~Q(grants__revoke_error="")),
    )
    return [SourceRow(row, state_of(row), row.held, row.stuck) for row in rows.order_by("name")]


def open_changes(tenant: Tenant) -> list[CredentialChange]:
    """What waits for a second person, oldest first."""
    waits = CredentialChange.objects.filter(tenant=tenant, state="proposed")
    return list(waits.select_related("author").order_by("pk"))


def changes_of(tenant: Tenant, name: str) -> list[CredentialChange]:
    """Every change of one source, newest first."""
    changes = CredentialChange.objects.filter(tenant=tenant, name=name)
    return list(changes.select_related("author", "decided_by").order_by("-number"))


def uses_of_source(row: Credential) -> list[CredentialGrant]:
    """The newest uses of one source."""
    uses = CredentialGrant.objects.filter(credential=row).select_related(
        "credential", "run", "ended_by", "settled_by", "packet"
    )
    return list(uses.order_by("-pk")[:USES_SHOWN])


# What a person can do about a secret that may have been made and that nobody holds.
_LOOK_FOR: Mapping[str, str] = {
    Credential.Kind.GITHUB_APP: (
        "GitHub does not list the tokens of an installation. One that was made ends by itself "
        "within an hour; suspending the installation of the App ends it at once. The App’s "
        "activity at GitHub shows whether it was used."
    ),
    Credential.Kind.OAUTH: (
        "Look at the authorization server for a token of this client that was made at that time, "
        "and end it there."
    ),
    Credential.Kind.VAULT_DYNAMIC: (
        "Look for a lease of this path that was made at that time, and revoke it there. Its audit "
        "log says whether the request came through."
    ),
}
_NOTHING_MADE = (
    "This source makes nothing new: it gives out what it keeps. If the answer may have gone "
    "astray, change the secret there."
)


@dataclass(frozen=True)
class Unsettled:
    """A secret of which nobody knows whether it was made, and what to do about it."""

    use: CredentialGrant
    look_for: str


def unsettled(tenant: Tenant, most: int) -> list[Unsettled]:
    """Those of the tenant, oldest first."""
    return [
        Unsettled(use, _LOOK_FOR.get(use.credential.kind, _NOTHING_MADE))
        for use in grants.unsettled(tenant)[:most]
    ]


def exists(tenant: Tenant, name: str) -> bool:
    """Whether there is a source of that name, in use or not."""
    return Credential.objects.filter(tenant=tenant, name=name).exists()


def contract_names(tenant: Tenant) -> list[str]:
    """The contracts that can be consumers."""
    names = JobContract.objects.filter(tenant=tenant).order_by("name")
    return list(names.values_list("name", flat=True))


def likely_owners(tenant: Tenant) -> list[str]:
    """Who may answer for a source: those who do for others, and the tenant's people."""
    owners = Credential.objects.filter(tenant=tenant).values_list("owner", flat=True)
    people = Membership.objects.filter(tenant=tenant, user__is_machine=False)
    names = {*owners, *people.values_list("user__name", flat=True)}
    return sorted(name for name in names if name and not hides_in_name(name))


def difference(change: CredentialChange) -> list[FieldChange]:
    """The terms that differ, as a pull request shows them."""
    return compare(_flat(change.before), _flat(change.after))


def _flat(terms: Mapping[str, Any]) -> dict[str, Any]:
    """Terms with their lists as one text each, so that one change is one row."""
    return {
        name: ", ".join(value) if isinstance(value, list) else value
        for name, value in terms.items()
    }
