"""A member hands their right to decide to another: for some days, for some packets, never onward.

Whoever has it decides in the name of whoever gave it. Both count as one person then: neither may be
excluded, and neither has another voice about that packet. Every change is a line of the audit log.
Changes lock the tenant's row, and whoever decides in another's name looks again under that lock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q, QuerySet

from approvals.counting import DECIDING, needed_permission
from approvals.models import Decision, Delegation, Packet
from approvals.states import PacketKind, Verdict
from portal import audit, live
from portal.clock import database_now
from portal.errors import BadInput, NotAllowed, NotFound, Refusal
from portal.models import Membership, Tenant, User
from portal.roles import Permission, permissions_of

LONGEST = timedelta(days=92)
TOOLS = 20


class CannotHandOver(Refusal):
    """Whoever gives has nothing to give, or whoever takes may not have it."""

    code = "approvals.cannot_hand_over"
    status = 422
    text = "{reason} Nothing was handed over."


class NotInTheirName(Refusal):
    """The right is not in these hands, or not any more, or not for this."""

    code = "approvals.not_in_their_name"
    status = 403
    text = (
        "You do not decide packet {number} in that name: it was never handed to you, is over, or "
        "is for other packets. Nothing was decided. Reload, and decide as yourself if you may."
    )


class VoiceUsed(Refusal):
    """One of the two has spoken about this packet already."""

    code = "approvals.voice_used"
    text = (
        "{name} has answered packet {number} already{whose}. Whoever decides in another’s name "
        "and that other count as one person. Nothing was decided."
    )


@dataclass(frozen=True)
class Wanted:
    """What somebody hands over: to which membership, from when to when, and of which packets."""

    taker: int
    begins_at: datetime
    ends_at: datetime
    kinds: Sequence[str] = ()
    tools: Sequence[str] = ()


def may_decide_at_all(member: Membership) -> bool:
    """Whether there is anything this member could answer."""
    return not member.user.is_machine and bool(DECIDING & member.permissions)


def takers_for(member: Membership) -> list[Membership]:
    """To whom this member may hand it: others who decide in this tenant themselves, by name."""
    others = (
        Membership.objects.filter(
            tenant=member.tenant, user__is_active=True, user__is_machine=False
        )
        .exclude(user=member.user)
        .select_related("user")
        .order_by("user__name", "pk")
    )
    return [each for each in others if may_decide_at_all(each)]


# --- Changes ----------------------------------------------------------------------------------


def _present(member: Membership) -> Membership:
    """The member as it is now, with the tenant locked. Raises `NotFound` for one who is gone."""
    Tenant.objects.select_for_update().only("pk").get(pk=member.tenant_id)
    members = Membership.objects.select_related("user", "tenant")
    present = members.filter(pk=member.pk, user__is_active=True).first()
    if present is None:
        raise NotFound
    return present


@transaction.atomic(durable=True)
def hand_over(wanted: Wanted, *, member: Membership) -> Delegation:
    """Let another member decide in this one's name. Raises `CannotHandOver`, `BadInput`."""
    giver = _present(member)
    if not may_decide_at_all(giver):
        raise CannotHandOver(reason="Your roles answer nothing, so there is no right to give.")
    taker = next((each for each in takers_for(giver) if each.pk == wanted.taker), None)
    if taker is None:
        raise CannotHandOver(
            reason="Choose somebody else of this tenant who is a reviewer or a publisher."
        )
    now = database_now()
    if not wanted.begins_at < wanted.ends_at or wanted.ends_at <= now:
        raise CannotHandOver(reason="It would be over before it begins. Choose a later day.")
    if wanted.ends_at - max(now, wanted.begins_at) > LONGEST:
        raise CannotHandOver(reason=f"That is longer than {LONGEST.days} days.")
    known = [kind.value for kind in PacketKind]
    if not set(wanted.kinds) <= set(known) or len(wanted.tools) > TOOLS:
        raise BadInput(reason="The form names packets that do not exist. Reload the page.")
    made = Delegation.objects.create(
        tenant=giver.tenant,
        giver=giver,
        taker=taker,
        kinds=[each for each in known if each in wanted.kinds],
        tools=sorted(set(wanted.tools)),
        begins_at=wanted.begins_at,
        ends_at=wanted.ends_at,
        made_at=now,
    )
    audit.record(
        "delegation.made",
        tenant=giver.tenant,
        subject=made,
        actor=giver.user,
        giver=giver.user_id,
        taker=taker.user_id,
        begins=made.begins_at.isoformat(),
        ends=made.ends_at.isoformat(),
        kinds=made.kinds,
        tools=made.tools,
    )
    _tell(made)
    return made


@transaction.atomic(durable=True)
def end(delegation_id: int, *, member: Membership) -> Delegation:
    """End it at once. Whoever gave it, whoever has it, or an admin may. Safe to repeat."""
    present = _present(member)
    found = (
        Delegation.objects.select_related("giver__user", "taker__user", "tenant")
        .filter(tenant=member.tenant, pk=delegation_id)
        .first()
    )
    if found is None:
        raise NotFound
    own = present.user_id in (found.giver.user_id, found.taker.user_id)
    if not own and not present.may(Permission.MANAGE):
        raise NotAllowed(permission=Permission.MANAGE.value)
    if found.ended_at is None:
        _end(found, present.user, "ended")
    return found


def roles_changed(
    target: Membership, before: Sequence[str], after: Sequence[str], actor: User
) -> None:
    """What a member handed over or took ends with a right to decide that they lose.

    Inside the transaction of that change, which has the tenant locked (`settings.ROLES_CHANGED`).
    """
    had, has = permissions_of(before) & DECIDING, permissions_of(after) & DECIDING
    if had <= has:
        return
    gone = Q(giver=target) if has else Q(giver=target) | Q(taker=target)
    standing = Delegation.objects.filter(gone, ended_at=None, ends_at__gt=database_now())
    for each in standing.select_related("giver", "taker", "tenant"):
        _end(each, actor, "role_lost")


def _end(delegation: Delegation, actor: User, why: str) -> None:
    delegation.ended_at, delegation.ended_by = database_now(), actor
    delegation.save(update_fields=["ended_at", "ended_by"])
    audit.record(
        "delegation.ended",
        tenant=delegation.tenant,
        subject=delegation,
        actor=actor,
        giver=delegation.giver.user_id,
        taker=delegation.taker.user_id,
        why=why,
    )
    _tell(delegation)


def _tell(delegation: Delegation) -> None:
    """Let the queue look again, and every packet that whoever takes it has open."""
    live.changed_on_commit(
        live.queue_topic(delegation.tenant_id), live.handed_topic(delegation.taker_id)
    )


# --- What holds now ---------------------------------------------------------------------------


def in_force(tenant_id: int, now: datetime) -> QuerySet[Delegation]:
    """Those of a tenant that hold at this moment, and whose people are still active."""
    return Delegation.objects.filter(
        tenant=tenant_id,
        ended_at=None,
        begins_at__lte=now,
        ends_at__gt=now,
        giver__user__is_active=True,
        giver__user__is_machine=False,
        taker__user__is_active=True,
    ).select_related("giver__user", "giver__tenant", "taker__user")


def received(member: Membership, now: datetime) -> list[Delegation]:
    """What this member has of others now, by the givers' names.

    Nothing without a role to decide of their own.
    """
    if not may_decide_at_all(member):
        return []
    return list(in_force(member.tenant_id, now).filter(taker=member).order_by("giver__user__name"))


def is_for(delegation: Delegation, packet: Packet) -> bool:
    """Whether the packet is of the classes that were handed over."""
    of_kind = not delegation.kinds or packet.kind in delegation.kinds
    return of_kind and (not delegation.tools or packet.page["tool"] in delegation.tools)


def holder_of(packet: Packet, taker: Membership, giver: int, *, sure: bool = False) -> Membership:
    """The membership whose right is used where `taker` decides in the name of the person `giver`.

    With `sure` the tenant stays locked until the transaction ends, so that what is true now is true
    when it is saved. Raises `NotInTheirName`.
    """
    if sure:
        Tenant.objects.select_for_update(no_key=True).only("pk").get(pk=packet.tenant_id)
    for each in received(taker, database_now()):
        if each.giver.user_id == giver and is_for(each, packet):
            return each.giver
    raise NotInTheirName(number=packet.number)


def stand_ins(packet: Packet, people: Collection[int], now: datetime) -> dict[int, int]:
    """Whoever may answer this packet in the name of one of these people: taker → giver."""
    return {
        each.taker.user_id: each.giver.user_id
        for each in in_force(packet.tenant_id, now).filter(giver__user__in=people)
        if is_for(each, packet) and may_decide_at_all(each.taker)
    }


def with_stand_ins(packet: Packet, people: Collection[int], now: datetime) -> list[int]:
    """These people, and whoever has their right now and may use it for this packet."""
    barred = {*packet.excluded, *people}
    return [*people, *sorted({*stand_ins(packet, people, now)} - barred)]


def whoever_undoes(packet: Packet, member: Membership) -> User | None:
    """With whose right this member may undo the packet's held approval; None if with nobody's.

    Whoever could have denied it may; whoever gave one of its approvals, or in whose name one was
    given, whatever their roles are by now; and whoever has the right of somebody who could have.
    """
    if member.user.is_machine:
        return None
    wanted = needed_permission(packet.kind, Verdict.DENY)
    if any(member.may(each) for each in wanted):
        return member.user
    own = voices_of(packet, member.user_id).select_related("on_behalf_of").first()
    if own is not None:
        given = own.on_behalf_of is not None and own.person_id == member.user_id
        return own.on_behalf_of if given else member.user
    for each in received(member, database_now()):
        if is_for(each, packet) and any(each.giver.may(one) for one in wanted):
            return each.giver.user
    return None


def voices_of(packet: Packet, *people: int) -> QuerySet[Decision]:
    """The answers that count already and are of one of these people, whatever the route."""
    return packet.votes().filter(Q(person__in=people) | Q(on_behalf_of__in=people))


def listed_for(member: Membership) -> list[Delegation]:
    """What the page shows: one's own, given and received; to admins all of the tenant's."""
    rows = Delegation.objects.filter(tenant=member.tenant)
    if not member.may(Permission.MANAGE):
        rows = rows.filter(Q(giver=member) | Q(taker=member))
    return list(
        rows.select_related("giver__user", "taker__user", "ended_by").order_by("-ends_at", "-pk")[
            :100
        ]
    )
