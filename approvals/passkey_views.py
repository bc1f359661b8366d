"""The step before an approval that takes a passkey."""

from __future__ import annotations

import uuid

from django.http import HttpResponse, JsonResponse
from django.views.decorators.http import require_POST

from approvals import signing
from approvals.access import access_packet
from approvals.delegation_views import behalf_of
from portal.access import TenantRequest, tenant_view
from portal.roles import Permission


@require_POST
@tenant_view(Permission.VIEW)
def packet_passkey(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """What the browser is asked to sign. Who may decide is asked with the decision."""
    found = access_packet(request.membership, public_id)
    behalf = behalf_of(request)
    return JsonResponse(signing.asked(found, request.POST.get("seen", ""), request.user, behalf))
