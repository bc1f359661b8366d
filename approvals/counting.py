"""Whose approvals count for a packet now: roles, groups and exclusions as the rows have them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from django.db.models import F, QuerySet

from approvals.models import Decision, Group, GroupMember, Packet
from approvals.quorum import Quorum
from approvals.states import PacketKind, Verdict
from portal.models import Membership, Passkey, Tenant
from portal.roles import FOR_PEOPLE, Permission, permissions_of

DECIDING = frozenset({Permission.DECIDE, Permission.PUBLISH})
"""Whoever has none of these answers no packet."""


def needed_permission(kind: str, verdict: Verdict) -> tuple[Permission, ...]:
    """Any one of these is enough. A publisher lets out; a reviewer may hold back as well."""
    if kind == PacketKind.PUBLICATION:
        if verdict is Verdict.APPROVE:
            return (Permission.PUBLISH,)
        return (Permission.PUBLISH, Permission.DECIDE)
    return (Permission.DECIDE,)


def quorum_of(packet: Packet, waited: float | None = None) -> Quorum:
    """What the sealed gate of a packet wants; never fewer people than its row says.

    Those stand in who do by now, or who will once it has `waited` so many seconds.
    """
    sealed = Quorum.of_gate(packet.page["gate"], packet.escalated if waited is None else waited)
    return replace(sealed, people=max(sealed.people, packet.needed))


def hold_still(packet: Packet) -> None:
    """Lock the tenant where several people count: roles and groups change under the same lock.

    From here until the transaction ends nobody's do, so who counts is one moment's truth.
    """
    quorum = quorum_of(packet)
    if quorum.people > 1 or quorum.stages:
        Tenant.objects.select_for_update(no_key=True).only("pk").get(pk=packet.tenant_id)


def seats_of(packet: Packet) -> dict[str, list[list[int | str]]]:
    """Who fills which stage of a packet now, as evidence has it; nothing without stages."""
    quorum = quorum_of(packet)
    if not quorum.stages:
        return {}
    filled = quorum.filled(voters_of(packet))
    return {"stages": [[person, quorum.stages[at].route] for person, at in filled.items()]}


def routes_of(member: Membership) -> list[str]:
    """What this member may count as: groups and roles. A machine counts for nothing."""
    if member.user.is_machine:
        return []
    groups = GroupMember.objects.filter(membership=member.pk).values_list("group_id", flat=True)
    return [*(f"group:{key}" for key in groups), *(f"role:{role}" for role in member.roles)]


def groups_of(tenant_id: int) -> dict[str, tuple[int, str]]:
    """The groups of a tenant as rules name them: key and what people call each."""
    rows = Group.objects.filter(tenant=tenant_id).values_list("handle", "pk", "name")
    return {handle: (key, name) for handle, key, name in rows}


def _groups_by_person(members: QuerySet[GroupMember]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for user, group in members.values_list("membership__user_id", "group_id"):
        found.setdefault(user, []).append(f"group:{group}")
    return found


@dataclass(frozen=True)
class Asked:
    """As much of a packet as counting needs."""

    pk: int
    kind: str
    excluded: Collection[int] = ()


def voters_of(packet: Packet) -> Mapping[int, list[str]]:
    """Whose places are filled by approvals that still count, oldest first, with their routes.

    An approval is worth nothing once its person may not give it: of several that are needed the
    first may be days old when the last one comes.
    """
    asked = Asked(packet.pk, packet.kind, packet.excluded)
    return voters_by_packet(packet.tenant, [asked])[packet.pk]


def voters_with(
    packet: Packet, votes: Iterable[Decision], present: Membership
) -> Mapping[int, list[str]]:
    """The same, where `present`, as read in this transaction, may approve and is one of `votes`:
    whose place is filled, where somebody decided in another's name.

    Nothing more is read where nobody else approved and it does not matter who is in which group.
    """
    others = (each.verdict == Verdict.APPROVE for each in votes if each.place != present.user_id)
    if any(others) or quorum_of(packet).stages:
        return voters_of(packet)
    return {present.user_id: [f"role:{role}" for role in present.roles]}


def voters_by_packet(tenant: Tenant, packets: Iterable[Asked]) -> dict[int, dict[int, list[str]]]:
    """The same for many packets of one tenant, in two queries."""
    asked = {each.pk: each for each in packets}
    found: dict[int, dict[int, list[str]]] = {pk: {} for pk in asked}
    gave = (
        Decision.objects.filter(
            packet__in=asked,
            round=F("packet__round"),
            verdict=Verdict.APPROVE,
            person__is_active=True,
            person__is_machine=False,
            person__memberships__tenant=tenant,
        )
        .order_by("decided_at", "pk")
        .values_list("packet_id", "person_id", "on_behalf_of_id", "person__memberships__roles")
    )
    rows = list(gave)
    if not rows:
        return found
    givers = _roles_of(tenant, {row[2] for row in rows} - {None})
    people = {row[2] or row[1] for row in rows}
    groups = _groups_by_person(
        GroupMember.objects.filter(tenant=tenant, membership__user__in=people)
    )
    for pk, person, giver, roles in rows:
        packet, place, counted = asked[pk], giver or person, roles
        if giver is None:
            may = tenant.one_person or person not in packet.excluded
        else:
            # It is the giver's place; and whoever acts must be somebody who may decide.
            counted = givers.get(giver, [])
            may = bool(permissions_of(roles) & DECIDING) and not {person, giver} & {
                *packet.excluded
            }
        if may and _may(permissions_of(counted), packet.kind):
            found[pk][place] = [*groups.get(place, ()), *(f"role:{role}" for role in counted)]
    return found


def _roles_of(tenant: Tenant, people: Collection[int]) -> dict[int, list[str]]:
    """The roles of these people as far as they are here and active; no query for nobody."""
    there = Membership.objects.filter(
        tenant=tenant, user__in=people, user__is_active=True, user__is_machine=False
    )
    return dict(there.values_list("user_id", "roles"))


def _may(granted: Collection[Permission], kind: str) -> bool:
    (needed,) = needed_permission(kind, Verdict.APPROVE)
    return needed in granted


@dataclass(frozen=True)
class People:
    """The tenant's people of now who could approve anything, and who could ask for it."""

    names: Mapping[int, str] = field(default_factory=dict)
    routes: Mapping[int, list[str]] = field(default_factory=dict)
    granted: Mapping[int, frozenset[Permission]] = field(default_factory=dict)
    askers: Collection[int] = ()
    # Who has a passkey to sign with.
    signers: Collection[int] = ()

    @classmethod
    def of(cls, tenant: Tenant) -> People:
        """Read in three queries."""
        rows = (
            Membership.objects.filter(tenant=tenant, user__is_active=True)
            .order_by("user__name", "pk")
            .values_list("user_id", "user__name", "user__is_machine", "user__owner_id", "roles")
        )
        groups = _groups_by_person(GroupMember.objects.filter(tenant=tenant))
        askers: set[int] = set()
        names: dict[int, str] = {}
        routes: dict[int, list[str]] = {}
        granted: dict[int, frozenset[Permission]] = {}
        for user, name, machine, owner, roles in rows:
            held = permissions_of(roles)
            if Permission.OPERATE in held:
                askers.add(owner if machine and owner else user)
            if machine or not held & FOR_PEOPLE:
                continue
            names[user], granted[user] = name, held
            routes[user] = [*groups.get(user, ()), *(f"role:{role}" for role in roles)]
        signers = set(
            Passkey.objects.filter(user__memberships__tenant=tenant).values_list("user", flat=True)
        )
        return cls(names, routes, granted, askers, signers)

    def voters(self, kind: str, excluded: Collection[int] = ()) -> dict[int, list[str]]:
        """Everybody who may approve a packet of this kind, as if all of them had."""
        return {
            user: self.routes[user]
            for user, granted in self.granted.items()
            if user not in excluded and _may(granted, kind)
        }

    def signing(self) -> People:
        """Those of them who can sign what they approve."""
        granted = {user: held for user, held in self.granted.items() if user in self.signers}
        return replace(self, granted=granted)


def still_asked(packet: Packet) -> list[int]:
    """The people whose approval an open packet can still use, by primary key."""
    quorum = quorum_of(packet)
    return [person for person, routes in askable(packet).items() if quorum.counts(routes)]


def askable(packet: Packet) -> dict[int, list[str]]:
    """Whoever may approve it and has not answered, with their routes."""
    excluded = () if packet.tenant.one_person else packet.excluded
    voters = People.of(packet.tenant).voters(packet.kind, excluded)
    heard = packet.votes().values_list("person_id", "on_behalf_of_id")
    answered = {each for pair in heard for each in pair}
    return {person: routes for person, routes in voters.items() if person not in answered}
