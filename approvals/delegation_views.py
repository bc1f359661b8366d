"""Pages where a member hands over their right to decide, and where it is ended."""

from __future__ import annotations

import re
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from approvals import delegation as story
from approvals.delegation import Wanted
from approvals.forms import HandOverForm
from portal.access import TenantRequest, tenant_view
from portal.errors import Refusal
from portal.roles import Permission


def behalf_of(request: HttpRequest) -> int:
    """The person in whose name a form was sent, by primary key; 0 for oneself."""
    said = request.POST.get("for", "")
    return int(said) if re.fullmatch(r"[0-9]{1,18}", said) else 0


def _page(
    request: TenantRequest, form: HandOverForm | None = None, refusal: Refusal | None = None
) -> HttpResponse:
    member, now = request.membership, timezone.now()
    takers = story.takers_for(member)
    rows = story.listed_for(member)
    context: dict[str, Any] = {
        "form": form or HandOverForm(takers),
        "may_give": story.may_decide_at_all(member) and takers,
        "standing": [each for each in rows if each.ended_at is None and each.ends_at > now],
        "past": [each for each in rows if each.ended_at is not None or each.ends_at <= now],
        "now": now,
        "refusal": refusal,
    }
    wrong = form is not None or refusal is not None
    return render(request, "approvals/delegations.html", context, status=422 if wrong else 200)


@require_GET
@tenant_view(Permission.VIEW)
def delegations(request: TenantRequest) -> HttpResponse:
    return _page(request)


@require_POST
@tenant_view(Permission.VIEW)
def delegation_new(request: TenantRequest) -> HttpResponse:
    """One's own right alone. Who may give and take is asked with the tenant locked."""
    form = HandOverForm(story.takers_for(request.membership), request.POST)
    if not form.is_valid():
        return _page(request, form)
    given = form.cleaned_data
    wanted = Wanted(
        given["taker"],
        form.begins_at(timezone.now()),
        form.ends_at(),
        given["kinds"],
        given["tools"],
    )
    try:
        made = story.hand_over(wanted, member=request.membership)
    except story.CannotHandOver as refusal:
        return _page(request, form, refusal)
    messages.success(
        request, f"{made.taker.user.name} decides in your name until {made.ends_at:%d %b %Y}."
    )
    return redirect("approvals:delegations", tenant=request.tenant.slug)


@require_POST
@tenant_view(Permission.VIEW)
def delegation_end(request: TenantRequest, pk: int) -> HttpResponse:
    """Whoever gave it, whoever has it, or an admin."""
    ended = story.end(pk, member=request.membership)
    messages.success(
        request, f"{ended.taker.user.name} no longer decides for {ended.giver.user.name}."
    )
    return redirect("approvals:delegations", tenant=request.tenant.slug)
