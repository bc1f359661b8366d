"""Groups and rules with stages, as their tests use them."""

from __future__ import annotations

from datetime import timedelta

from approvals import groups
from approvals.models import Group, Packet, PolicyVersion
from approvals.policies import decide_policy, propose_policy
from approvals.policy_text import DEFAULT_POLICY
from portal.models import Membership
from portal.roles import Role
from tests import clock
from tests.walk import Walk

BOTH = '@stages("1 of group:security, 1 of group:owners")'
"""Security and owners, one of each."""


def rule(notes: str = BOTH, name: str = "http-needs-stages", action: str = "ask") -> str:
    when = " when { context.outward }" if action == "ask" else ""
    return (
        f'@id("{name}") @why("It goes outside.")\n{notes}\n'
        f'permit (principal, action == Action::"{action}", resource){when};\n'
    )


ADMIN_RULE = rule()


def group(walk: Walk, handle: str, *members: Membership) -> Group:
    """A group of these members, whoever was in it before."""
    keys, cast = [each.pk for each in members], walk.cast
    if Group.objects.filter(tenant=cast.acme, handle=handle).exists():
        return groups.change_group(handle, handle.title(), keys, member=cast.max)
    return groups.make_group(handle, handle.title(), keys, member=cast.max)


def staged(walk: Walk) -> tuple[Group, Group]:
    """Ada is of Security, Bo of Owners; there are others for what wants two of any kind."""
    if not Membership.objects.filter(user__name="Dee Third").exists():
        for name in ("Dee Third", "Eli Fourth"):
            walk.cast.member(name, [Role.PUBLISHER])
    return group(walk, "security", walk.cast.ada), group(walk, "owners", walk.cast.bo)


def second_admin(walk: Walk) -> Membership:
    found = Membership.objects.filter(user__name="Mia Second").first()
    return found or walk.cast.member("Mia Second", [Role.ADMIN])


def in_force(walk: Walk, rules: str = ADMIN_RULE) -> PolicyVersion:
    """The shipped policy with these rules, in force. Max writes it and Mia decides."""
    text = f"// {PolicyVersion.objects.count()}\n{DEFAULT_POLICY}{rules}"
    version = propose_policy(text, member=walk.cast.max)
    return decide_policy(version, approve=True, seen=version.digest, member=second_admin(walk))


def outward_wants(walk: Walk, note: str) -> PolicyVersion:
    """The shipped policy in force, whose own rule about what reaches outside demands this too."""
    name = '@id("outward-needs-a-person")'
    version = propose_policy(DEFAULT_POLICY.replace(name, f"{name}\n{note}"), member=walk.cast.max)
    return decide_policy(version, approve=True, seen=version.digest, member=second_admin(walk))


SECURITY = '@stages("1 of group:security")'
TWO_HOURS = '@escalate("2h to group:owners")'


def asked(walk: Walk, *notes: str, action: str = "ask") -> Packet:
    """A call that waits under a rule with these annotations. Ada is Security, Bo is Owners."""
    staged(walk)
    in_force(walk, rule("\n".join(notes), action=action))
    packet = walk.to_call() if action == "ask" else walk.to_review()
    walk.lose_hops()
    return packet


def passed(packet: Packet, **span: float) -> Packet:
    """So much more time went by since the packet was opened."""
    clock.move_on(timedelta(**span))
    packet.refresh_from_db()
    return packet
