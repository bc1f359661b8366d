"""What the shell around every page shows, worked out only if a page really draws it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, cast

from django.conf import settings
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.module_loading import import_string
from django.utils.safestring import SafeString

from portal import tenancy
from portal.access import memberships_of
from portal.models import Membership, Tenant, User
from portal.roles import Permission, Role

ROLE_WORDS: dict[str, str] = {
    Role.VIEWER: "viewer",
    Role.OPERATOR: "operator",
    Role.REVIEWER: "reviewer",
    Role.PUBLISHER: "publisher",
    Role.ADMIN: "tenant admin",
    Role.AUDITOR: "auditor",
}


def roles_in_words(membership: Membership) -> str:
    """`Reviewer, tenant admin`; somebody without a role is told so."""
    words = ", ".join(ROLE_WORDS[role] for role in ROLE_WORDS if role in membership.roles)
    return words[:1].upper() + words[1:] if words else "No role"


@dataclass(frozen=True)
class Item:
    """One line of the navigation."""

    label: str
    icon: str
    view: str
    # The part of the address that all pages of this line share.
    under: str
    permission: Permission = Permission.VIEW
    title: str = ""
    count: str = ""
    waiting: bool = False


NAVIGATION: tuple[Item, ...] = (
    Item("Queue", "inbox", "approvals:queue", "queue packets", count="queue", waiting=True),
    Item("Runs", "play", "runs:list", "runs candidates", count="runs"),
    Item("Contracts", "scroll-text", "runs:contracts", "contracts"),
    Item("Publications", "git-pull-request-draft", "approvals:publications", "publications"),
    Item(
        "Outcome unknown", "circle-question-mark", "approvals:unknown", "unknown", count="unknown"
    ),
    Item("Network", "globe", "runs:network", "network"),
    Item("Sandboxes", "box", "runs:sandboxes", "sandboxes"),
    Item("Credentials", "key", "runs:credentials", "credentials"),
    Item("Evidence", "book", "portal:evidence", "evidence", Permission.AUDIT),
    Item("People", "users", "portal:members", "people", title="Tenant"),
    Item("Policy", "shield-check", "approvals:policies", "policies"),
    Item("Retention", "trash-2", "approvals:retention", "retention"),
)


# Two times a dozen links are on every page; most pages of one moment have the same ones.
@lru_cache(maxsize=128)
def _navigation(
    template: str,
    slug: str,
    allowed: frozenset[Permission],
    place: str,
    numbers: tuple[int, ...],
) -> SafeString:
    lines = [
        {
            "label": item.label,
            "icon": item.icon,
            "title": item.title,
            "url": reverse(item.view, kwargs={"tenant": slug}),
            "current": place in item.under.split(),
            "count": number,
            "waiting": item.waiting,
        }
        for item, number in zip(NAVIGATION, numbers, strict=True)
        if item.permission in allowed
    ]
    return render_to_string(template, {"lines": lines})


class Shell:
    """Rail, top bar and menus of one request. The database is asked only for what is drawn."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request

    @cached_property
    def person(self) -> User | None:
        user = getattr(self._request, "user", None)
        return user if isinstance(user, User) and user.is_authenticated else None

    @property
    def _membership(self) -> Membership | None:
        membership = getattr(self._request, "membership", None)
        return membership if isinstance(membership, Membership) else None

    @property
    def tenant(self) -> Tenant | None:
        return self._membership.tenant if self._membership else None

    @property
    def roles(self) -> str:
        return roles_in_words(self._membership) if self._membership else ""

    @property
    def theme(self) -> str:
        return self.person.theme if self.person else ""

    @property
    def keys(self) -> bool:
        return self.person.single_keys if self.person else True

    @property
    def home(self) -> str:
        if self.tenant:
            return reverse("approvals:queue", kwargs={"tenant": self.tenant.slug})
        return reverse("portal:home")

    @property
    def settings_url(self) -> str:
        return reverse("portal:settings") if self.person else ""

    @property
    def settings_current(self) -> bool:
        return self._request.path == self.settings_url

    @property
    def tenants_url(self) -> str:
        return reverse("portal:tenants") if self.person else ""

    @property
    def sign_out_url(self) -> str:
        return reverse("portal:sign_out")

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """Small numbers beside the navigation, from the app named in the settings."""
        if self._membership is None:
            return {}
        known = getattr(self._request, "shell_counts", None)
        if known is not None:
            return cast(Mapping[str, int], known)
        count: Callable[[Membership], Mapping[str, int]] = import_string(settings.SHELL_COUNTS)
        return count(self._membership)

    @property
    def waiting(self) -> int:
        return self.counts.get("queue", 0)

    @property
    def rail(self) -> SafeString:
        """The navigation at the side of a wide page."""
        return self._drawn("components/_rail.html")

    @property
    def drawer(self) -> SafeString:
        """The same lines, as a small screen has them in its menu."""
        return self._drawn("components/_drawer.html")

    def _drawn(self, template: str) -> SafeString:
        membership = self._membership
        if membership is None:
            return SafeString()
        slug = membership.tenant.slug
        place = self._request.path.removeprefix(f"/t/{slug}/").partition("/")[0]
        numbers = tuple(self.counts.get(item.count, 0) for item in NAVIGATION)
        return _navigation(template, slug, membership.permissions, place, numbers)

    @cached_property
    def _memberships(self) -> list[Membership]:
        """Where this person belongs, by name; at most `MENU` of them."""
        if self.person is None:
            return []
        known = getattr(self._request, "memberships", None)
        if known is not None:
            return sorted(known, key=lambda each: each.tenant.name.lower())
        return memberships_of(self.person)

    @cached_property
    def waiting_by_tenant(self) -> dict[str, int]:
        """What waits for this person in each of their tenants, by slug; for choosing one."""
        count: Callable[[Membership], Mapping[str, int]] = import_string(settings.SHELL_COUNTS)
        waiting: dict[str, int] = {}
        for each in self._memberships:
            with tenancy.scope(each.tenant_id):
                waiting[each.tenant.slug] = count(each).get("queue", 0)
        return waiting

    @cached_property
    def tenants(self) -> list[dict[str, Any]]:
        """Where this person belongs, as lines of a menu."""
        return [
            {
                "name": each.tenant.name,
                "slug": each.tenant.slug,
                "roles": roles_in_words(each),
                "url": reverse("approvals:queue", kwargs={"tenant": each.tenant.slug}),
                "current": self.tenant is not None and each.tenant_id == self.tenant.pk,
            }
            for each in self._memberships
        ]


def shell(request: HttpRequest) -> dict[str, Any]:
    """Context processor: the shell, and what this person may do here."""
    membership = getattr(request, "membership", None)
    allowed = membership.permissions if isinstance(membership, Membership) else frozenset()
    return {
        "shell": Shell(request),
        "tenant": membership.tenant if isinstance(membership, Membership) else None,
        "may": {permission.value: permission in allowed for permission in Permission},
    }
