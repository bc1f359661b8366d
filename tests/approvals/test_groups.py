"""Groups: made, changed and deleted by admins alone, and gone with whoever leaves."""

from __future__ import annotations

import pytest

from approvals import groups
from approvals.models import Group, GroupMember
from portal import people
from portal.errors import NotAllowed, NotFound
from portal.models import AuditEntry, Membership, User
from tests.approvals.stages import ADMIN_RULE, SECURITY, TWO_HOURS, in_force, rule, staged
from tests.visits import Visitor, text_of
from tests.walk import Walk

PAGE = "/t/acme/people/groups/"


def names_in(handle: str) -> list[str]:
    rows = GroupMember.objects.filter(group__handle=handle).order_by("membership__user__name")
    return [each.membership.user.name for each in rows.select_related("membership__user")]


@pytest.mark.both_databases
def test_an_admin_keeps_groups_and_every_change_is_a_line(walk: Walk, database: str) -> None:
    cast, admin = walk.cast, Visitor(walk.cast.max)

    made = admin.post(f"{PAGE}new/", name="Security", handle="security", members=[cast.ada.pk])
    assert made.status_code == 302
    assert names_in("security") == ["Ada Obi"]
    admin.post(f"{PAGE}of/security/", name="The Security", members=[cast.bo.pk])
    assert names_in("security") == ["Bo Lindqvist"]
    lines = AuditEntry.objects.filter(action__startswith="group.").order_by("seq")
    assert [(each.action, each.actor, each.facts) for each in lines] == [
        (
            "group.made",
            cast.max.user,
            {"handle": "security", "name": "Security", "people": [cast.ada.user_id]},
        ),
        (
            "group.changed",
            cast.max.user,
            {
                "handle": "security",
                "name": "The Security",
                "name_before": "Security",
                "came": [cast.bo.user_id],
                "gone": [cast.ada.user_id],
            },
        ),
    ]
    admin.post(f"{PAGE}of/security/", name="The Security", members=[cast.bo.pk])
    assert lines.count() == 2  # nothing was changed by that
    assert admin.post(f"{PAGE}of/security/delete/").status_code == 302
    assert not Group.objects.exists()
    assert lines.last() == lines.get(action="group.deleted")


@pytest.mark.parametrize("name", ["olu", "ada", "vic", "aud"])
def test_the_others_see_who_is_in_them_and_no_form(walk: Walk, name: str) -> None:
    groups.make_group("security", "Security", [walk.cast.ada.pk], member=walk.cast.max)
    someone = walk.cast.everyone[name]

    page = text_of(Visitor(someone).get(PAGE))

    assert "group:security" in page
    assert "Ada Obi" in page
    assert "<textarea" not in page
    assert "Make the group" not in page
    with pytest.raises(NotAllowed):
        groups.make_group("other", "Other", [], member=someone)
    with pytest.raises(NotAllowed):
        groups.change_group("security", "Security", [], member=someone)
    with pytest.raises(NotAllowed):
        groups.delete_group("security", member=someone)


def test_what_cannot_be_a_group(walk: Walk) -> None:
    cast, admin = walk.cast, Visitor(walk.cast.max)
    for handle in ("Security", "a b", "-a", "a_b", "x" * 41, "security\n"):
        page = admin.post(f"{PAGE}new/", name="Security", handle=handle)
        assert page.status_code == 422, handle
    admin.post(f"{PAGE}new/", name="Security", handle="security")
    hidden = admin.post(f"{PAGE}new/", name="Sec\u202eurity", handle="hidden")
    assert "cannot be seen" in text_of(hidden)
    # Machines never decide, and people of other tenants do not exist here.
    for each in (cast.mona, cast.eve):
        page = admin.post(f"{PAGE}new/", name="Other", handle="other", members=[each.pk])
        assert page.status_code == 422
        with pytest.raises(NotFound):
            groups.make_group("other", "Other", [each.pk], member=cast.max)
    taken = admin.post(f"{PAGE}new/", name="Again", handle="security")
    assert taken.status_code == 409
    assert Group.objects.count() == 1


def test_a_group_of_another_tenant_does_not_exist(walk: Walk) -> None:
    groups.make_group("theirs", "Theirs", [], member=walk.cast.eve)
    admin = Visitor(walk.cast.max)
    assert "Theirs" not in text_of(admin.get(PAGE))
    assert admin.get(f"{PAGE}of/theirs/").status_code == 404
    assert admin.post(f"{PAGE}of/theirs/delete/").status_code == 404
    assert Group.objects.count() == 1


@pytest.mark.both_databases
def test_who_leaves_the_tenant_leaves_its_groups(walk: Walk, database: str) -> None:
    cast = walk.cast
    groups.make_group("security", "Security", [cast.ada.pk, cast.bo.pk], member=cast.max)

    people.remove_member(cast.ada.pk, member=cast.max)
    assert names_in("security") == ["Bo Lindqvist"]

    user = User.objects.get(name="Ada Obi")
    people.add_member(user.name, user.email, ["reviewer"], member=cast.max)
    assert names_in("security") == ["Bo Lindqvist"]  # coming back brings nothing back
    assert Membership.objects.filter(user=user).count() == 1


@pytest.mark.both_databases
def test_a_group_that_something_counts_on_stays(walk: Walk, database: str) -> None:
    cast = walk.cast
    staged(walk)
    in_force(walk, ADMIN_RULE)
    with pytest.raises(groups.GroupInUse, match="version 2 of the policy"):
        groups.delete_group("security", member=cast.max)
    assert "Delete the group" not in text_of(Visitor(cast.max).get(f"{PAGE}of/security/"))

    packet = walk.to_call()
    in_force(walk, "")  # the rule is gone, the open packet is not
    with pytest.raises(groups.GroupInUse, match=f"packet {packet.number}, which is open"):
        groups.delete_group("security", member=cast.max)
    walk.run_out(packet)
    walk.sweep()
    groups.delete_group("security", member=cast.max)
    assert [each.handle for each in Group.objects.all()] == ["owners"]


@pytest.mark.both_databases
def test_a_group_that_may_stand_in_stays(walk: Walk, database: str) -> None:
    cast = walk.cast
    staged(walk)
    in_force(walk, rule(f"{SECURITY}\n{TWO_HOURS}"))
    with pytest.raises(groups.GroupInUse, match="version 2 of the policy"):
        groups.delete_group("owners", member=cast.max)

    packet = walk.to_call()
    in_force(walk, "")
    with pytest.raises(groups.GroupInUse, match=f"packet {packet.number}, which is open"):
        groups.delete_group("owners", member=cast.max)
    walk.run_out(packet)
    walk.sweep()
    groups.delete_group("owners", member=cast.max)
