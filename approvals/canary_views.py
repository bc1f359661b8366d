"""Pages of test packets: whether a tenant wants them, and what came of them."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from approvals import canaries
from approvals.forms import CanariesForm
from portal.access import TenantRequest, tenant_view
from portal.roles import Permission


def _page(request: TenantRequest, form: CanariesForm | None = None, **how: Any) -> HttpResponse:
    chosen = canaries.settings_of(request.tenant)
    context = {
        "chosen": chosen,
        "form": form or CanariesForm(initial={"every_days": chosen.every_days}),
        "own": canaries.results_of(request.membership),
        "met": canaries.met_by(request.membership),
        "all": canaries.results_of_all(request.tenant),
        "enough": canaries.ENOUGH,
        "unanswered": canaries.unanswered(request.tenant),
    }
    return render(request, "approvals/canaries.html", context, **how)


@require_GET
@tenant_view(Permission.VIEW)
def overview(request: TenantRequest) -> HttpResponse:
    """A person's own results, and the tenant's."""
    return _page(request)


@require_POST
@tenant_view(Permission.MANAGE)
def choose(request: TenantRequest) -> HttpResponse:
    """Switch them on or off."""
    form = CanariesForm(request.POST)
    if not form.is_valid():
        return _page(request, form, status=422)
    chosen = canaries.choose(form.cleaned_data["every_days"], member=request.membership)
    words = "Test packets are on." if chosen.every_days else "There are no test packets any more."
    messages.success(request, words)
    return redirect("approvals:canaries", tenant=request.tenant.slug)
