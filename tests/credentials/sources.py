"""Sources of secrets as people propose them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone

from portal.models import Membership
from portal.roles import Role
from runs.credentials import changes
from runs.credentials.changes import Terms
from runs.models import Credential, CredentialChange, CredentialGrant, Run
from runs.states import CredentialState
from tests.walk import Walk

ENDS = datetime.now(UTC).replace(microsecond=0) + timedelta(days=90)
SECRET = "".join(("forge", "-", "f" * 24))


def second_admin(walk: Walk) -> Membership:
    """Somebody who decides on what Max proposes."""
    found = Membership.objects.filter(tenant=walk.cast.acme, user__email="una@example.com").first()
    return found or walk.cast.member("Una Second", [Role.ADMIN])


def terms(**changed: Any) -> Terms:
    """The terms of a secret that is kept here."""
    given: dict[str, Any] = {
        "kind": "static",
        "config": {},
        "actions": ("open issues",),
        "audience": ("tracker.example.com",),
        "consumers": ("*",),
        "owner": "Team Tracker",
        "minutes": 15,
        "expires_at": ENDS.isoformat(),
    }
    return Terms(**{**given, **changed})


def propose(
    walk: Walk, *, name: str = "forge", secret: str = SECRET, **changed: Any
) -> CredentialChange:
    """A change that Max proposes."""
    return changes.propose(
        name, terms(**changed), secret, reason="The tracker asks for it.", member=walk.cast.max
    )


def approve(walk: Walk, change: CredentialChange) -> CredentialChange:
    """Una's approval of what she read."""
    return changes.decide(
        change, approve=True, seen=change.digest, comment="", member=second_admin(walk)
    )


def retired_source(walk: Walk) -> CredentialChange:
    """A decided change of a source that is not in use any more."""
    change = approve(walk, propose(walk))
    changes.retire(Credential.objects.get(name="forge"), member=walk.cast.max)
    return change


def lost_use(run: Run) -> CredentialGrant:
    """A use of that source of which nobody knows whether a secret was made."""
    return CredentialGrant.objects.create(
        tenant=run.tenant,
        run=run,
        credential=Credential.objects.get(tenant=run.tenant, name="forge"),
        origin=CredentialGrant.Origin.CONTRACT,
        consumer="source",
        scope={},
        state=CredentialState.LOST,
        why="The source never answered.",
        ended_at=timezone.now(),
    )
