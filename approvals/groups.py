"""A tenant's groups: who stands behind a name that rules use. Every change is an audit line."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from django.db import transaction

from approvals import reachable
from approvals.models import Group, GroupMember, Packet, PolicyVersion
from approvals.policy import stored_rules
from approvals.states import PacketState
from portal import audit, live
from portal.access import demand
from portal.errors import NotFound, Refusal
from portal.models import Membership, Tenant
from portal.roles import Permission


class GroupTaken(Refusal):
    """Two groups of one tenant may not have the same name in rules."""

    code = "approvals.group_taken"
    text = "There is a group “{handle}” already. Change that one, or choose another short name."


class GroupInUse(Refusal):
    """Something still counts on it."""

    code = "approvals.group_in_use"
    text = (
        "The group “{name}” is demanded by {what}, so it stays. Change the policy first, and let "
        "open packets come to their end."
    )


@dataclass(frozen=True)
class Listed:
    """A group with its members, by name, and the rules in force that demand it."""

    group: Group
    members: list[Membership]
    rules: list[str]


def people_of(tenant: Tenant) -> list[Membership]:
    """Whoever may be in a group, by name: machines never decide, so they are not among them."""
    return list(
        Membership.objects.filter(tenant=tenant, user__is_machine=False)
        .select_related("user")
        .order_by("user__name", "pk")
    )


def groups_with_members(tenant: Tenant) -> list[Listed]:
    """Every group of a tenant, by name, in three queries."""
    inside: dict[int, list[Membership]] = {}
    rows = GroupMember.objects.filter(tenant=tenant).select_related("membership__user")
    for row in rows.order_by("membership__user__name", "pk"):
        inside.setdefault(row.group_id, []).append(row.membership)
    in_force = _texts(tenant, PolicyVersion.State.IN_FORCE)
    return [
        Listed(
            group,
            inside.get(group.pk, []),
            [name for _, text in in_force for name in _rules_that_demand(text, group.handle)],
        )
        for group in Group.objects.filter(tenant=tenant).order_by("name", "pk")
    ]


def access_group(member: Membership, handle: str) -> Group:
    """A group of the member's own tenant. Raises `NotFound`."""
    found = Group.objects.filter(tenant=member.tenant, handle=handle).first()
    if found is None:
        raise NotFound
    return found


def members_in(group: Group) -> list[int]:
    """The memberships in a group, by primary key."""
    return list(group.members.order_by("pk").values_list("membership_id", flat=True))


def _texts(tenant: Tenant, *states: PolicyVersion.State) -> list[tuple[int, str]]:
    rows = PolicyVersion.objects.filter(tenant=tenant, state__in=states).order_by("number")
    return list(rows.values_list("number", "text"))


def _rules_that_demand(text: str, handle: str) -> list[str]:
    return [
        rule.id
        for rule in stored_rules(text).values()
        if any(("group", handle) in stage.parties for stage in rule.demands.stages)
    ]


def _locked(member: Membership) -> None:
    """The tenant's row, as everywhere where people and roles change: deciding waits for it."""
    demand(member, Permission.MANAGE)
    Tenant.objects.select_for_update().only("pk").get(pk=member.tenant_id)


def _fill(group: Group, wanted: Collection[int]) -> tuple[list[int], list[int]]:
    """Make exactly these memberships its members; returns the people who came and who went."""
    allowed = {each.pk: each for each in people_of(group.tenant)}
    if not set(wanted) <= allowed.keys():
        raise NotFound
    now = {each.membership_id: each for each in group.members.select_related("membership")}
    came = [allowed[key] for key in sorted(set(wanted) - now.keys())]
    gone = [row for key, row in sorted(now.items()) if key not in wanted]
    GroupMember.objects.bulk_create(
        [GroupMember(tenant=group.tenant, group=group, membership=each) for each in came]
    )
    GroupMember.objects.filter(pk__in=[row.pk for row in gone]).delete()
    return [each.user_id for each in came], [row.membership.user_id for row in gone]


def _tell(member: Membership) -> None:
    """Whoever looks at the queue counts as something else now; so may the rules in force."""
    reachable.note(member.tenant)
    live.changed_on_commit(live.queue_topic(member.tenant_id), live.members_topic(member.tenant_id))


@transaction.atomic(durable=True)
def make_group(handle: str, name: str, members: Collection[int], *, member: Membership) -> Group:
    """A new group with these memberships. Raises `GroupTaken`."""
    _locked(member)
    if Group.objects.filter(tenant=member.tenant, handle=handle).exists():
        raise GroupTaken(handle=handle)
    group = Group.objects.create(tenant=member.tenant, handle=handle, name=name)
    came, _ = _fill(group, members)
    audit.record(
        "group.made",
        tenant=member.tenant,
        subject=group,
        actor=member.user,
        handle=handle,
        name=name,
        people=came,
    )
    _tell(member)
    return group


@transaction.atomic(durable=True)
def change_group(handle: str, name: str, members: Collection[int], *, member: Membership) -> Group:
    """Give a group this name and exactly these memberships."""
    _locked(member)
    group = access_group(member, handle)
    came, gone = _fill(group, members)
    if not came and not gone and group.name == name:
        return group
    before, group.name = group.name, name
    group.save(update_fields=["name"])
    audit.record(
        "group.changed",
        tenant=member.tenant,
        subject=group,
        actor=member.user,
        handle=handle,
        name=name,
        **({"name_before": before} if before != name else {}),
        came=came,
        gone=gone,
    )
    _tell(member)
    return group


@transaction.atomic(durable=True)
def delete_group(handle: str, *, member: Membership) -> Group:
    """Remove a group that nothing demands. Raises `GroupInUse`."""
    _locked(member)
    group = access_group(member, handle)
    states = PolicyVersion.State
    for number, text in _texts(member.tenant, states.IN_FORCE, states.PROPOSED):
        if _rules_that_demand(text, handle):
            raise GroupInUse(name=group.name, what=f"version {number} of the policy")
    waiting = Packet.objects.filter(tenant=member.tenant, state=PacketState.OPEN)
    for sealed, packet in waiting.exclude(heading__gate__stages=None).values_list(
        "heading__gate__stages", "number"
    ):
        routes = (
            each["route"] for stage in sealed or () for each in (stage, *stage.get("fallbacks", ()))
        )
        if f"group:{group.pk}" in routes:
            raise GroupInUse(name=group.name, what=f"packet {packet}, which is open")
    audit.record(
        "group.deleted",
        tenant=member.tenant,
        subject=group,
        actor=member.user,
        handle=handle,
        name=group.name,
    )
    group.delete()
    _tell(member)
    return group
