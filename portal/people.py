"""Who belongs to a tenant, and as what. Every change is a line of the audit log."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from django.conf import settings
from django.db import transaction
from django.utils.module_loading import import_string

from portal import audit, live
from portal.access import demand
from portal.errors import NotFound, Refusal
from portal.models import Membership, Tenant, User
from portal.roles import Permission, Role


class AlreadyMember(Refusal):
    """The person is on the list already."""

    code = "portal.already_member"
    text = "{email} already belongs to this tenant. Change the roles in the list instead."


class LastAdmin(Refusal):
    """Without an admin nobody could ever change the tenant's people again."""

    code = "portal.last_admin"
    text = (
        "{name} is the only tenant admin, so this role stays. "
        "Make somebody else tenant admin first."
    )


def access_member(member: Membership, membership_id: int) -> Membership:
    """Somebody of the member's own tenant. Raises `NotFound`."""
    found = Membership.objects.filter(tenant=member.tenant, pk=membership_id).first()
    if found is None:
        raise NotFound
    return found


def members_of(tenant: Tenant) -> list[Membership]:
    """Everybody of a tenant, by name."""
    return list(
        Membership.objects.filter(tenant=tenant)
        .select_related("user", "user__owner")
        .order_by("user__name", "pk")
    )


def _known(roles: Sequence[str]) -> list[str]:
    return [role.value for role in Role if role.value in roles]


def _locked(member: Membership, membership_id: int) -> Membership:
    """Another membership of the same tenant, locked. Raises `NotFound`.

    The tenant's row is locked first, so that two admins who take each other's role away at once
    meet one after the other.
    """
    Tenant.objects.select_for_update().only("pk").get(pk=member.tenant_id)
    found = (
        Membership.objects.select_related("user", "tenant")
        .filter(tenant=member.tenant, pk=membership_id)
        .first()
    )
    if found is None:
        raise NotFound
    return found


def _keep_an_admin(target: Membership) -> None:
    others = Membership.objects.filter(tenant=target.tenant).exclude(pk=target.pk)
    if Role.ADMIN not in target.roles:
        return
    if not any(
        Role.ADMIN in each.roles and each.user.is_active for each in others.select_related("user")
    ):
        raise LastAdmin(name=target.user.name)


@transaction.atomic(durable=True)
def add_member(name: str, email: str, roles: Sequence[str], *, member: Membership) -> Membership:
    """Let a person into the tenant; a person the portal does not know yet is made.

    They sign in with a one-time link, or with a password if they have one already.
    """
    demand(member, Permission.MANAGE)
    user = User.objects.filter(email__iexact=email).first()
    if user is None:
        user = User.objects.create_user(email, name)
    elif Membership.objects.filter(tenant=member.tenant, user=user).exists():
        raise AlreadyMember(email=email)
    added = Membership.objects.create(tenant=member.tenant, user=user, roles=_known(roles))
    audit.record(
        "member.added",
        tenant=member.tenant,
        subject=added,
        actor=member.user,
        person=user.pk,
        roles=added.roles,
    )
    _end_one_person(member, user)
    live.changed_on_commit(live.members_topic(member.tenant_id))
    return added


def _end_one_person(member: Membership, added: User) -> None:
    """With a second person there is somebody else to decide, so nobody does it alone any more."""
    alone = Tenant.objects.filter(pk=member.tenant_id, one_person=True)
    if added.person_id != member.user.person_id and alone.update(one_person=False):
        member.tenant.one_person = False
        audit.record(
            "tenant.one_person_ended",
            tenant=member.tenant,
            subject=member.tenant,
            actor=member.user,
            person=added.pk,
        )


def _tell_of_roles(
    target: Membership, before: Sequence[str], after: Sequence[str], actor: User
) -> None:
    tell: Callable[[Membership, Sequence[str], Sequence[str], User], None] = import_string(
        settings.ROLES_CHANGED
    )
    tell(target, before, after, actor)


@transaction.atomic(durable=True)
def set_roles(membership_id: int, roles: Sequence[str], *, member: Membership) -> Membership:
    """Give a member exactly these roles."""
    demand(member, Permission.MANAGE)
    target = _locked(member, membership_id)
    wanted = _known(roles)
    if Role.ADMIN not in wanted:
        _keep_an_admin(target)
    before, target.roles = target.roles, wanted
    target.save(update_fields=["roles"])
    _tell_of_roles(target, before, wanted, member.user)
    audit.record(
        "member.roles_changed",
        tenant=member.tenant,
        subject=target,
        actor=member.user,
        person=target.user_id,
        before=before,
        after=wanted,
    )
    live.changed_on_commit(live.members_topic(member.tenant_id), live.person_topic(target.user_id))
    return target


@transaction.atomic(durable=True)
def remove_member(membership_id: int, *, member: Membership) -> User:
    """Take a person out of the tenant. What they decided stays where it is."""
    demand(member, Permission.MANAGE)
    target = _locked(member, membership_id)
    _keep_an_admin(target)
    user = target.user
    audit.record(
        "member.removed",
        tenant=member.tenant,
        subject=target,
        actor=member.user,
        person=user.pk,
        roles=target.roles,
    )
    _tell_of_roles(target, target.roles, [], member.user)
    target.delete()
    live.changed_on_commit(live.members_topic(member.tenant_id), live.person_topic(user.pk))
    return user
