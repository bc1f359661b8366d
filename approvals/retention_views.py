"""Pages of what is kept how long, what is under hold, and what was removed."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from approvals import retention
from approvals.forms import HoldForm, TimesForm
from portal.access import TenantRequest, tenant_view
from portal.roles import Permission


def _context(request: TenantRequest, **forms: Any) -> dict[str, Any]:
    times = retention.retention_of(request.tenant)
    initial = {name: getattr(times, name) for name in TimesForm.base_fields}
    member = request.membership
    return {
        "times": times,
        "form": forms.get("form") or TimesForm(initial=initial),
        "hold_form": forms.get("hold_form") or HoldForm(),
        "may_hold": member.may(Permission.AUDIT) or member.may(Permission.MANAGE),
        "holds": retention.holds_of(request.tenant),
        "page": Paginator(retention.removals_of(request.tenant), 50).get_page(
            request.GET.get("page")
        ),
    }


@require_GET
@tenant_view(Permission.VIEW)
def overview(request: TenantRequest) -> HttpResponse:
    return render(request, "approvals/retention.html", _context(request))


@require_POST
@tenant_view(Permission.MANAGE)
def times(request: TenantRequest) -> HttpResponse:
    """Change how long things are kept."""
    form = TimesForm(request.POST)
    if not form.is_valid():
        context = _context(request, form=form)
        return render(request, "approvals/retention.html", context, status=422)
    retention.set_times(**form.cleaned_data, member=request.membership)
    messages.success(request, "Kept as you said from the next sweep on.")
    return redirect("approvals:retention", tenant=request.tenant.slug)


@require_POST
@tenant_view(Permission.VIEW)
def hold(request: TenantRequest) -> HttpResponse:
    """Put a run under hold. Who may is asked inside."""
    form = HoldForm(request.POST)
    if not form.is_valid():
        context = _context(request, hold_form=form)
        return render(request, "approvals/retention.html", context, status=422)
    placed = retention.hold(**form.cleaned_data, member=request.membership)
    messages.success(request, f"Nothing of run {placed.run.number} is removed from now on.")
    return redirect("approvals:retention", tenant=request.tenant.slug)


@require_POST
@tenant_view(Permission.VIEW)
def lift(request: TenantRequest, pk: int) -> HttpResponse:
    """Lift a hold. Who may is asked inside."""
    lifted = retention.lift(pk, member=request.membership)
    messages.success(request, f"Run {lifted.run.number} is not under hold any more.")
    return redirect("approvals:retention", tenant=request.tenant.slug)
