"""The pages of the sandboxes: the providers side by side, and one drill in full."""

from __future__ import annotations

import uuid

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from portal.access import TenantRequest, tenant_view
from portal.roles import Permission
from runs.drills import access_drill, provider_table


@require_GET
@tenant_view(Permission.VIEW)
def sandboxes(request: TenantRequest) -> HttpResponse:
    """What this installation's sandboxes keep and cost."""
    return render(request, "runs/sandboxes.html", {"table": provider_table()})


@require_GET
@tenant_view(Permission.VIEW)
def drill(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """Every attack of one drill, and what was seen."""
    return render(request, "runs/drill.html", {"drill": access_drill(public_id)})
