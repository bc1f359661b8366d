"""The person a run acts for, as tools may be told: theirs is the authority, not the agent's."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from portal.models import Membership
from portal.roles import Permission
from runs.broker.answers import BrokerRefused
from runs.models import Run


@dataclass(frozen=True)
class Person:
    """Who asked for the run, or owns the machine account that did; with the roles of now."""

    email: str
    name: str
    roles: tuple[str, ...]

    def to_data(self) -> dict[str, object]:
        """Plain JSON data."""
        return asdict(self) | {"roles": list(self.roles)}


def acting_for(run: Run) -> Person:
    """The person of this run. Raises `BrokerRefused` for one who could not ask for it any more.

    Asked again at every call: a run goes on for hours, and people leave.
    """
    account = run.requested_by
    person = account.owner if account.is_machine and account.owner else account
    member = (
        Membership.objects.select_related("user")
        .filter(tenant_id=run.tenant_id, user=account)
        .first()
    )
    account.refresh_from_db(fields=["is_active"])
    person.refresh_from_db(fields=["is_active", "email"])
    gone = not (account.is_active and person.is_active)
    if member is None or gone or not member.may(Permission.OPERATE):
        raise BrokerRefused(
            f"{person.name}, for whom this run acts, may not operate runs here any more, so "
            "nothing is done in that name."
        )
    return Person(person.email, person.name, tuple(sorted(member.roles)))
