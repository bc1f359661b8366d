"""The guarded door: from a person and an address to what they may see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, cast

from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import AnonymousUser
from django.db.models import Case, When
from django.db.models.functions import Lower
from django.http import HttpRequest, HttpResponseBase
from django_htmx.middleware import HtmxDetails

from portal import statements, tenancy
from portal.errors import NotAllowed, NotFound
from portal.models import Membership, Tenant, User
from portal.roles import Permission
from portal.statements import given

# A menu of tenants is this long; a person with more finds the others on the page of tenants.
MENU = 50
_BY_NAME = Lower("tenant__name")


class TenantRequest(HttpRequest):
    """A request that passed the door: who asks, as what, and for which tenant."""

    htmx: HtmxDetails
    user: User
    membership: Membership
    tenant: Tenant
    # This one first, then others of the same person; no more than a menu shows.
    memberships: Sequence[Membership]
    # Set by a view that has counted already what the navigation shows.
    shell_counts: Mapping[str, int]


P = ParamSpec("P")
View = Callable[Concatenate[TenantRequest, P], HttpResponseBase]


def memberships_of(user: User, first: str = "") -> list[Membership]:
    """Where this person belongs, by the tenants' names, as many as a menu shows.

    The one of the tenant with the slug `first` comes before the others.
    """
    found = _MEMBERSHIPS.all(user=user.pk, first=first)
    for each in found:
        each.user = user
    return found


_MEMBERSHIPS = statements.Query(
    lambda: (
        Membership.objects.filter(user=given("user", User))
        .select_related("tenant")
        .order_by(
            Case(When(tenant__slug=given("first", Tenant, "slug"), then=0), default=1), _BY_NAME
        )[:MENU]
    )
)


def memberships_for(user: User | AnonymousUser, slug: str) -> list[Membership]:
    """The membership of `user` in the tenant, then as many others as a menu shows, read anew.

    One query, because every page has the menu. Raises `NotFound` for strangers and for unknown
    tenants alike.
    """
    if not isinstance(user, User) or not user.is_active:
        raise NotFound
    found = memberships_of(user, first=slug)
    if not found or found[0].tenant.slug != slug:
        raise NotFound
    return found


def membership_for(user: User | AnonymousUser, slug: str) -> Membership:
    """The membership of `user` in the tenant. Raises `NotFound` as `memberships_for` does."""
    return memberships_for(user, slug)[0]


def demand(membership: Membership, permission: Permission) -> None:
    """Raise `NotAllowed` unless the membership's roles grant the permission."""
    if not membership.may(permission):
        raise NotAllowed(permission=permission.value)


def tenant_view(permission: Permission) -> Callable[[View[P]], Callable[..., HttpResponseBase]]:
    """Make a view that only members of the tenant with `permission` reach.

    The view gets a `TenantRequest` and no longer the slug. The permission stands
    on the function for the test that lists every URL.
    """

    def decorate(view: View[P]) -> Callable[..., HttpResponseBase]:
        @login_required
        @wraps(view)
        def guarded(
            request: HttpRequest, *args: Any, tenant: str, **kwargs: Any
        ) -> HttpResponseBase:
            memberships = memberships_for(request.user, tenant)
            membership = memberships[0]
            guest = cast(TenantRequest, request)
            guest.membership, guest.tenant = membership, membership.tenant
            guest.memberships = memberships
            with tenancy.scope(membership.tenant_id):
                demand(membership, permission)
                return view(guest, *args, **kwargs)

        guarded.permission = permission  # type: ignore[attr-defined]
        return guarded

    return decorate
