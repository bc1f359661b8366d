"""Who may do what: the one table of roles and permissions."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Permission(StrEnum):
    """One thing a person may do inside one tenant."""

    VIEW = "view"
    OPERATE = "operate"  # write contracts, start and cancel runs
    DECIDE = "decide"  # answer packets of tool calls and questions
    PUBLISH = "publish"  # answer publication packets, settle unknown outcomes
    MANAGE = "manage"  # members, roles, policies, contracts into force
    AUDIT = "audit"  # read and export the audit log


class Role(StrEnum):
    """A named set of permissions; a person may hold several in one tenant."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    REVIEWER = "reviewer"
    PUBLISHER = "publisher"
    ADMIN = "admin"
    AUDITOR = "auditor"


# Decisions: a machine account may ask for things, and never give them (invariant 6).
FOR_PEOPLE = frozenset({Permission.DECIDE, Permission.PUBLISH, Permission.MANAGE})

GRANTS: dict[Role, frozenset[Permission]] = {
    Role.VIEWER: frozenset({Permission.VIEW}),
    Role.OPERATOR: frozenset({Permission.VIEW, Permission.OPERATE}),
    Role.REVIEWER: frozenset({Permission.VIEW, Permission.DECIDE}),
    Role.PUBLISHER: frozenset({Permission.VIEW, Permission.PUBLISH}),
    Role.ADMIN: frozenset({Permission.VIEW, Permission.MANAGE}),
    Role.AUDITOR: frozenset({Permission.VIEW, Permission.AUDIT}),
}


def permissions_of(roles: Iterable[str]) -> frozenset[Permission]:
    """The union of what `roles` grant. An unknown role grants nothing."""
    known = {role.value for role in Role}
    granted: frozenset[Permission] = frozenset()
    for role in roles:
        if role in known:
            granted |= GRANTS[Role(role)]
    return granted
