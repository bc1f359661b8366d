"""Pages of what comes after a failure, and of what a run has saved."""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from portal.access import TenantRequest, tenant_view
from portal.roles import Permission
from runs import recovery
from runs.access import access_checkpoint, access_run
from runs.forms import HandForm
from runs.lifecycle import last_checkpoint


@require_POST
@tenant_view(Permission.OPERATE)
def recover(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """Go on after a failure, in the way that was chosen of those that are offered."""
    run = access_run(request.membership, public_id)
    again = recovery.recover(
        run,
        request.POST.get("way", ""),
        seen=request.POST.get("seen", ""),
        member=request.membership,
    )
    words = (
        f"Run {again.number} goes on."
        if again.pk == run.pk
        else f"Run {again.number} is queued. It has tools only, and no sandbox."
        if again.narrowed
        else f"Run {again.number} is queued. It begins with the approved inputs of run "
        f"{run.number}."
    )
    messages.success(request, words)
    return redirect("runs:detail", tenant=request.tenant.slug, public_id=again.public_id)


@require_http_methods(["GET", "HEAD", "POST"])
@tenant_view(Permission.OPERATE)
def hand(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """Hand a failure to a person."""
    run = access_run(request.membership, public_id)
    people = recovery.people_for(request.membership)
    form = HandForm(people, request.POST if request.method == "POST" else None)
    if request.method != "POST" or not form.is_valid():
        status = 422 if request.method == "POST" else 200
        return render(request, "runs/hand.html", {"run": run, "form": form}, status=status)
    to = form.chosen
    recovery.hand_over(run, to, form.cleaned_data["note"], member=request.membership)
    messages.success(request, f"The failure of run {run.number} is with {to.name} now.")
    return redirect("runs:detail", tenant=request.tenant.slug, public_id=public_id)


@require_POST
@tenant_view(Permission.VIEW)
def handled(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """Say that one is done with a failure. Who may is asked inside, with the row locked."""
    run = recovery.handled(access_run(request.membership, public_id), member=request.membership)
    messages.success(request, f"The failure of run {run.number} waits for nobody any more.")
    return redirect("runs:detail", tenant=request.tenant.slug, public_id=public_id)


@require_GET
@tenant_view(Permission.VIEW)
def checkpoint(request: TenantRequest, public_id: uuid.UUID, seq: int) -> HttpResponse:
    """One checkpoint: what is in it, what was left out, and whether one can go on from it."""
    run = access_run(request.membership, public_id)
    found = access_checkpoint(run, seq)
    latest = last_checkpoint(run)
    context = {
        "run": run,
        "checkpoint": found,
        "is_latest": latest is not None and latest.pk == found.pk,
    }
    return render(request, "runs/checkpoint.html", context)
