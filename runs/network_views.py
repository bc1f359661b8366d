"""Pages of the network: a rule taken back, an attempt made a request, and what runs ask for."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from portal.access import TenantRequest, tenant_view
from portal.roles import Permission
from runs import grants, lifecycle
from runs.access import access_run
from runs.forms import AskForm
from runs.models import Run
from runs.reach import tenant_reach
from runs.states import GrantState


@require_POST
@tenant_view(Permission.VIEW)
def grant_revoke(request: TenantRequest, public_id: uuid.UUID, grant_id: uuid.UUID) -> HttpResponse:
    """Take one network rule of a run back. Who may is asked inside, with the row locked."""
    run = access_run(request.membership, public_id)
    grant = grants.revoke(run, grant_id, member=request.membership)
    messages.success(
        request, f"{grant} is closed. What was open is cut at once.", extra_tags="wait"
    )
    return redirect(_part_of(request, run))


def _part_of(request: TenantRequest, run: Run) -> str:
    page = reverse("runs:detail", args=[request.tenant.slug, run.public_id])
    return f"{page}#run-network"


@require_http_methods(["GET", "HEAD", "POST"])
@tenant_view(Permission.OPERATE)
def network_ask(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """Turn a refused attempt into a request: the rule, and why it is needed."""
    run = access_run(request.membership, public_id)
    context: dict[str, Any] = {
        "run": run,
        "contract": run.version.contract,
        "why_not": grants.why_not_asking(run, lifecycle.contract_of(run)),
    }
    if request.method != "POST":
        host, port = request.GET.get("host", ""), request.GET.get("port", "443")
        initial = {"host": host, "port": port, "speaks": AskForm.guess(port)}
        context |= {"form": AskForm(initial=initial), "place": f"{host}:{port}"}
        return render(request, "runs/network_ask.html", context)
    form = AskForm(request.POST)
    if not form.is_valid():
        return render(request, "runs/network_ask.html", {**context, "form": form}, status=422)
    grant = grants.ask_as_person(run, form.asked(), member=request.membership)
    words = (
        f"{grant} is open now: policy allows it."
        if grant.state == GrantState.ACTIVE
        else f"{grant} is asked for. Its packet is on its way to the queue."
    )
    messages.success(request, words, extra_tags="wait")
    return redirect(_part_of(request, run))


@require_GET
@tenant_view(Permission.VIEW)
def network(request: TenantRequest) -> HttpResponse:
    """What the tenant's runs ask for most, by contract, and what became of it."""
    return render(request, "runs/network.html", {"reach": tenant_reach(request.tenant)})
