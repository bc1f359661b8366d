"""The portal's addresses, `/smallest/`: fifty rows as a tutorial draws them, and `/nothing/`."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.urls import path

from approvals.models import Packet
from portal import tenancy
from portal.access import TenantRequest, tenant_view
from portal.roles import Permission
from portal.urls import urlpatterns as portal_urls

_PAGE = engines["django"].from_string(
    "<!doctype html><title>Waiting</title><table>"
    "{% for row in rows %}<tr><td>{{ row.number }}</td><td>{{ row.kind }}</td>"
    "<td>{{ row.effect }}</td><td>{{ row.opened_at }}</td><td>{{ row.expires_at }}</td></tr>"
    "{% endfor %}</table>"
)


def smallest(request: HttpRequest, tenant_id: int) -> HttpResponse:
    """One query for exactly the columns that are drawn, in the order of an index, fifty rows."""
    with tenancy.scope(tenant_id):
        rows = (
            Packet.objects.filter(tenant_id=tenant_id, state="open")
            .order_by("expires_at", "id")
            .only("number", "kind", "effect", "opened_at", "expires_at")[:50]
        )
        return HttpResponse(_PAGE.render({"rows": rows}, request))


@tenant_view(Permission.VIEW)
def nothing(request: TenantRequest) -> HttpResponse:
    """What everything behind the tenant's door costs at least."""
    return HttpResponse("")


urlpatterns = [
    path("smallest/<int:tenant_id>/", smallest),
    path("nothing/<slug:tenant>/", nothing),
    *portal_urls,
]
