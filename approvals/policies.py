"""Policies: propose a version, and let a person put it in force or refuse it."""

from __future__ import annotations

import hashlib

from django.db import transaction
from django.utils import timezone

from approvals import reachable
from approvals.models import PolicyVersion
from approvals.policy import PolicyRefused, check_policy
from portal import audit
from portal.access import demand
from portal.errors import Refusal
from portal.models import Membership, Tenant
from portal.roles import Permission


class SamePolicy(Refusal):
    """The proposed text is the newest one, or the one in force."""

    code = "approvals.same_policy"
    text = "This is the text of version {number}, so no new version was made."


class OwnPolicy(Refusal):
    """The author of a policy may not put it in force."""

    code = "approvals.own_policy"
    status = 403
    text = (
        "You wrote version {number} of the policy, so somebody else has to decide on it. "
        "Ask another tenant admin."
    )


class PolicyMoved(Refusal):
    """What was read was compared with a version that is not in force any more."""

    code = "approvals.policy_moved"
    text = (
        "Another version came into force after this page was drawn, so the differences you read "
        "are not the ones there are. Nothing was changed. Reload, and read them again."
    )


class QuorumUnreachable(Refusal):
    """The tenant's people of now cannot satisfy what a rule demands."""

    code = "approvals.quorum_unreachable"
    text = (
        "Version {number} was not put in force, because it would wait for approvals that cannot "
        "come. {reasons}"
    )


class PolicyDecided(Refusal):
    """Somebody was faster, or the version is history."""

    code = "approvals.policy_decided"
    text = "Version {number} of the policy is already {state}. Nothing was changed."


def check_draft(text: str, in_force: PolicyVersion | None, *, member: Membership) -> None:
    """Raise `PolicyRefused` for a text that this member could not propose now."""
    check_policy(text)
    if problems := reachable.problems(member.tenant, text, member.user, in_force):
        raise PolicyRefused(problems)


@transaction.atomic(durable=True)
def propose_policy(
    text: str, *, member: Membership, comment: str = "", back_to: int | None = None
) -> PolicyVersion:
    """Store a version that waits for a decision. Raises `PolicyRefused` for a wrong text, and for
    a demand that the tenant's people cannot satisfy.

    `back_to` is the number of the earlier version whose text this is, where it was taken from one.
    """
    demand(member, Permission.MANAGE)
    check_policy(text)  # before anything is locked
    Tenant.objects.select_for_update().only("pk").get(pk=member.tenant_id)
    newest = PolicyVersion.objects.filter(tenant=member.tenant).order_by("-number").first()
    if newest is not None and newest.text == text and newest.state != PolicyVersion.State.DENIED:
        raise SamePolicy(number=newest.number)
    in_force = in_force_of(member.tenant)
    if in_force is not None and in_force.text == text:
        raise SamePolicy(number=in_force.number)
    check_draft(text, in_force, member=member)
    version = PolicyVersion.objects.create(
        tenant=member.tenant,
        number=(newest.number if newest else 0) + 1,
        text=text,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        author=member.user,
        comment=comment,
    )
    audit.record(
        "policy.proposed",
        tenant=member.tenant,
        subject=version,
        actor=member.user,
        number=version.number,
        policy_digest=version.digest,
        **({} if back_to is None else {"back_to": back_to}),
    )
    return version


def go_back(version: PolicyVersion, *, member: Membership) -> PolicyVersion:
    """Propose the text of an earlier version: it too comes into force by a second person alone."""
    return propose_policy(
        version.text,
        member=member,
        comment=f"Back to version {version.number}.",
        back_to=version.number,
    )


def in_force_of(tenant: Tenant) -> PolicyVersion | None:
    return PolicyVersion.objects.filter(tenant=tenant, state=PolicyVersion.State.IN_FORCE).first()


def _own(version: PolicyVersion, member: Membership) -> bool:
    """Whether the member wrote it: people count, so what a machine of theirs wrote is theirs."""
    return version.author is not None and version.author.person_id == member.user.person_id


def may_decide(version: PolicyVersion, member: Membership) -> bool:
    """Whether this member may put the version in force or refuse it."""
    return (
        member.may(Permission.MANAGE)
        and version.state == PolicyVersion.State.PROPOSED
        and (not _own(version, member) or member.tenant.one_person)
    )


@transaction.atomic(durable=True)
def decide_policy(
    version: PolicyVersion,
    *,
    approve: bool,
    seen: str,
    member: Membership,
    against: str | None = None,
) -> PolicyVersion:
    """Put a proposed version in force, or refuse it. `seen` is the digest that was read.

    `against` is the digest of the version in force that it was compared with, where it was;
    empty if none was.

    Packets that are open keep the rule they were opened under on their page; a decision asks the
    policy of its own moment again.
    """
    demand(member, Permission.MANAGE)
    Tenant.objects.select_for_update().only("pk").get(pk=member.tenant_id)
    fresh = PolicyVersion.objects.get(pk=version.pk, tenant=member.tenant)
    if fresh.state != PolicyVersion.State.PROPOSED or fresh.digest != seen:
        raise PolicyDecided(number=fresh.number, state=fresh.get_state_display())
    in_force = in_force_of(member.tenant)
    if approve and against is not None and against != (in_force.digest if in_force else ""):
        raise PolicyMoved
    own = _own(fresh, member)
    if own and not member.tenant.one_person:
        raise OwnPolicy(number=fresh.number)
    if approve:
        found = reachable.problems(member.tenant, fresh.text, fresh.author, in_force)
        if found:
            raise QuorumUnreachable(number=fresh.number, reasons=" ".join(map(str, found)))
        PolicyVersion.objects.filter(
            tenant=member.tenant, state=PolicyVersion.State.IN_FORCE
        ).update(state=PolicyVersion.State.SUPERSEDED)
    fresh.state = (PolicyVersion.State.IN_FORCE if approve else PolicyVersion.State.DENIED).value
    fresh.decided_by, fresh.decided_at, fresh.self_approved = member.user, timezone.now(), own
    fresh.save(update_fields=["state", "decided_by", "decided_at", "self_approved"])
    audit.record(
        "policy.in_force" if approve else "policy.denied",
        tenant=member.tenant,
        subject=fresh,
        actor=member.user,
        number=fresh.number,
        policy_digest=fresh.digest,
        self_approved=own,
    )
    if approve:
        reachable.note(member.tenant)
    return fresh
