"""Pages of a tenant's groups: who is in them, and the forms of its admins."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from approvals import groups as story
from approvals.forms import GroupForm, NewGroupForm
from portal.access import TenantRequest, tenant_view
from portal.roles import Permission


def _page(request: TenantRequest, *, status: int = 200, **more: Any) -> HttpResponse:
    people = story.people_of(request.tenant)
    context = {
        "groups": story.groups_with_members(request.tenant),
        "new": NewGroupForm(people, auto_id="new_%s"),
        "editing": "",
        **more,
    }
    return render(request, "approvals/groups.html", context, status=status)


@require_GET
@tenant_view(Permission.VIEW)
def groups(request: TenantRequest) -> HttpResponse:
    return _page(request)


@require_POST
@tenant_view(Permission.MANAGE)
def group_new(request: TenantRequest) -> HttpResponse:
    form = NewGroupForm(story.people_of(request.tenant), request.POST, auto_id="new_%s")
    if not form.is_valid():
        return _page(request, new=form, status=422)
    given = form.cleaned_data
    made = story.make_group(
        given["handle"], given["name"], given["members"], member=request.membership
    )
    messages.success(request, f"Rules can demand people of {made.name} now: group:{made.handle}.")
    return redirect("approvals:groups", tenant=request.tenant.slug)


@require_http_methods(["GET", "HEAD", "POST"])
@tenant_view(Permission.MANAGE)
def group_edit(request: TenantRequest, handle: str) -> HttpResponse:
    group, people = story.access_group(request.membership, handle), story.people_of(request.tenant)
    if request.method != "POST":
        initial = {"name": group.name, "members": story.members_in(group)}
        form = GroupForm(people, initial=initial, auto_id="edit_%s")
        return _page(request, editing=handle, form=form)
    form = GroupForm(people, request.POST, auto_id="edit_%s")
    if not form.is_valid():
        return _page(request, editing=handle, form=form, status=422)
    given = form.cleaned_data
    changed = story.change_group(handle, given["name"], given["members"], member=request.membership)
    messages.success(request, f"{changed.name} is kept like this.")
    return redirect("approvals:groups", tenant=request.tenant.slug)


@require_POST
@tenant_view(Permission.MANAGE)
def group_delete(request: TenantRequest, handle: str) -> HttpResponse:
    gone = story.delete_group(handle, member=request.membership)
    messages.success(request, f"The group {gone.name} was deleted.")
    return redirect("approvals:groups", tenant=request.tenant.slug)
