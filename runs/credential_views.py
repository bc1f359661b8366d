"""Pages of credentials: sources, their changes, and a use taken back. None shows a secret."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from portal.access import TenantRequest, tenant_view
from portal.asked import asked_to_approve
from portal.errors import NotFound
from portal.roles import Permission
from runs.access import access_credential, access_credential_change, access_run
from runs.credential_forms import SETTINGS, SourceForm
from runs.credentials import changes, grants, sight
from runs.credentials.sources import ConfigWrong
from runs.models import Credential, CredentialChange
from runs.states import CredentialState

_GET_OR_POST = require_http_methods(["GET", "HEAD", "POST"])


@require_GET
@tenant_view(Permission.VIEW)
def credentials(request: TenantRequest) -> HttpResponse:
    """Every source with its state, and the changes that wait for a second person."""
    context = {
        "sources": sight.sources_of(request.tenant),
        "changes": sight.open_changes(request.tenant),
        "kinds": Credential.Kind.choices,
    }
    return render(request, "runs/credentials.html", context)


@require_GET
@tenant_view(Permission.VIEW)
def credential(request: TenantRequest, name: str) -> HttpResponse:
    """One source: its terms, its newest uses, its changes."""
    row = access_credential(request.membership, name)
    context = {
        "credential": row,
        "state": sight.state_of(row),
        "uses": sight.uses_of_source(row),
        "changes": sight.changes_of(request.tenant, name),
    }
    return render(request, "runs/credential.html", context)


@_GET_OR_POST
@tenant_view(Permission.MANAGE)
def credential_new(request: TenantRequest, kind: str) -> HttpResponse:
    """Propose a source of one kind."""
    if kind not in SETTINGS:
        raise NotFound
    return _propose(request, _form(request, kind), None)


@_GET_OR_POST
@tenant_view(Permission.MANAGE)
def credential_edit(request: TenantRequest, name: str) -> HttpResponse:
    """Propose other terms for a source."""
    row = access_credential(request.membership, name)
    now = changes.terms_of(row) or None
    return _propose(request, _form(request, row.kind, now), row)


def _form(request: TenantRequest, kind: str, now: Mapping[str, Any] | None = None) -> SourceForm:
    return SourceForm(
        kind,
        sight.contract_names(request.tenant),
        request.POST or None,
        now=now,
        owners=sight.likely_owners(request.tenant),
    )


def _propose(request: TenantRequest, form: SourceForm, row: Credential | None) -> HttpResponse:
    """Store what the form holds, or show it again with every problem at its field."""
    if request.method == "POST" and form.is_valid():
        name = row.name if row is not None else form.cleaned_data["name"]
        try:
            change = changes.propose(
                name,
                form.terms(),
                form.secret_given(),
                reason=form.cleaned_data["reason"],
                member=request.membership,
            )
        except ConfigWrong as wrong:
            form.take(wrong)
        else:
            words = (
                "It is in force: it only takes."
                if change.state == CredentialChange.State.IN_FORCE
                else "It waits for a tenant admin who did not propose it."
            )
            messages.success(request, f"{name}: {words}", extra_tags="wait")
            return redirect("runs:credential_request", request.tenant.slug, change.public_id)
    context = {
        "form": form,
        "credential": row,
        "kind_words": Credential.Kind(form.kind).label,
    }
    status = 422 if request.method == "POST" else 200
    return render(request, "runs/credential_edit.html", context, status=status)


@require_POST
@tenant_view(Permission.MANAGE)
def credential_retire(request: TenantRequest, name: str) -> HttpResponse:
    """End a source at once."""
    changes.retire(access_credential(request.membership, name), member=request.membership)
    messages.success(request, f"{name} is not in use any more.", extra_tags="wait")
    return redirect("runs:credential", request.tenant.slug, name)


@require_GET
@tenant_view(Permission.VIEW)
def credential_request(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """One change as a pull request: what differs, why, who, and the decision."""
    change = access_credential_change(request.membership, public_id)
    context: dict[str, Any] = {
        "change": change,
        "differences": sight.difference(change),
        "ends": datetime.fromisoformat(change.after["expires_at"]),
        "may_decide": changes.may_decide(change, request.membership),
        "own": changes.own(change, request.membership),
        "exists": sight.exists(request.tenant, change.name),
    }
    return render(request, "runs/credential_request.html", context)


@require_POST
@tenant_view(Permission.MANAGE)
def credential_decide(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """A second person's answer, or the first one's second thought."""
    change = access_credential_change(request.membership, public_id)
    if request.POST.get("answer") == "withdraw":
        changes.withdraw(change, member=request.membership)
        messages.success(request, "Withdrawn. Nothing was changed.", extra_tags="wait")
        return redirect("runs:credential_request", request.tenant.slug, public_id)
    approve = asked_to_approve(request)
    changes.decide(
        change,
        approve=approve,
        seen=request.POST.get("seen", ""),
        comment=request.POST.get("comment", ""),
        member=request.membership,
    )
    messages.success(
        request,
        f"{change.name}: {'in force' if approve else 'denied'}.",
        extra_tags="done" if approve else "wait",
    )
    return redirect("runs:credential_request", request.tenant.slug, public_id)


@require_POST
@tenant_view(Permission.VIEW)
def credential_revoke(
    request: TenantRequest, public_id: uuid.UUID, grant_id: uuid.UUID
) -> HttpResponse:
    """Take one use of a credential back. Who may is asked inside, with the row locked."""
    run = access_run(request.membership, public_id)
    grant = grants.take_back(run, grant_id, member=request.membership)
    words = (
        "The source is asked to take the secret back."
        if grant.state == CredentialState.REVOKING
        else "It cannot be used any more."
    )
    messages.success(request, f"{grant.credential.name}: {words}", extra_tags="wait")
    page = reverse("runs:detail", args=[request.tenant.slug, run.public_id])
    return redirect(f"{page}#run-credentials")
