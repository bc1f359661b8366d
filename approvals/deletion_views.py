"""The page on which a tenant is deleted."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from approvals import deletion
from approvals.errors import NameNotTyped
from approvals.forms import DeleteForm
from portal.access import TenantRequest, tenant_view
from portal.roles import Permission


@require_http_methods(["GET", "HEAD", "POST"])
@tenant_view(Permission.MANAGE)
def delete(request: TenantRequest) -> HttpResponse:
    """Say what goes and what stays, and delete the tenant once its name was typed."""
    form = DeleteForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        typed = form.cleaned_data["typed"]
        try:
            deletion.delete_tenant(request.tenant, typed=typed, member=request.membership)
        except NameNotTyped as wrong:
            form.add_error("typed", str(wrong))
        else:
            messages.success(
                request, f"{request.tenant.name} is deleted. Its runs are being stopped."
            )
            return redirect("portal:tenants")
    context = {"form": form, "inventory": deletion.inventory(request.tenant)}
    status = 422 if request.method == "POST" else 200
    return render(request, "approvals/delete.html", context, status=status)
