"""Addresses of pages, fragments and sockets."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, path

from portal.sockets import socket
from runs import credential_views, drill_views, network_views, recovery_views, views
from runs.consumers import RunSocket, TenantSocket

app_name = "runs"
urlpatterns: list[URLPattern | URLResolver] = [
    path("t/<slug:tenant>/runs/", views.run_list, name="list"),
    path("t/<slug:tenant>/runs/rows/", views.run_rows, name="rows"),
    path("t/<slug:tenant>/runs/new/", views.run_new, name="new"),
    path("t/<slug:tenant>/runs/<uuid:public_id>/", views.run_detail, name="detail"),
    path("t/<slug:tenant>/runs/<uuid:public_id>/state/", views.run_state, name="state"),
    path("t/<slug:tenant>/runs/<uuid:public_id>/events/", views.run_events, name="events"),
    path("t/<slug:tenant>/runs/<uuid:public_id>/events/<int:seq>/", views.run_event, name="event"),
    path("t/<slug:tenant>/runs/<uuid:public_id>/output/", views.run_output, name="output"),
    path("t/<slug:tenant>/runs/<uuid:public_id>/cancel/", views.run_cancel, name="cancel"),
    path("t/<slug:tenant>/runs/<uuid:public_id>/recover/", recovery_views.recover, name="recover"),
    path("t/<slug:tenant>/runs/<uuid:public_id>/hand/", recovery_views.hand, name="hand"),
    path("t/<slug:tenant>/runs/<uuid:public_id>/handled/", recovery_views.handled, name="handled"),
    path(
        "t/<slug:tenant>/runs/<uuid:public_id>/checkpoints/<int:seq>/",
        recovery_views.checkpoint,
        name="checkpoint",
    ),
    path(
        "t/<slug:tenant>/runs/<uuid:public_id>/network/ask/",
        network_views.network_ask,
        name="network_ask",
    ),
    path(
        "t/<slug:tenant>/runs/<uuid:public_id>/network/<uuid:grant_id>/revoke/",
        network_views.grant_revoke,
        name="grant_revoke",
    ),
    path(
        "t/<slug:tenant>/runs/<uuid:public_id>/credentials/<uuid:grant_id>/revoke/",
        credential_views.credential_revoke,
        name="credential_revoke",
    ),
    path("t/<slug:tenant>/credentials/", credential_views.credentials, name="credentials"),
    path(
        "t/<slug:tenant>/credentials/new/<slug:kind>/",
        credential_views.credential_new,
        name="credential_new",
    ),
    path(
        "t/<slug:tenant>/credentials/changes/<uuid:public_id>/",
        credential_views.credential_request,
        name="credential_request",
    ),
    path(
        "t/<slug:tenant>/credentials/changes/<uuid:public_id>/decide/",
        credential_views.credential_decide,
        name="credential_decide",
    ),
    path(
        "t/<slug:tenant>/credentials/of/<slug:name>/",
        credential_views.credential,
        name="credential",
    ),
    path(
        "t/<slug:tenant>/credentials/of/<slug:name>/change/",
        credential_views.credential_edit,
        name="credential_edit",
    ),
    path(
        "t/<slug:tenant>/credentials/of/<slug:name>/retire/",
        credential_views.credential_retire,
        name="credential_retire",
    ),
    path("t/<slug:tenant>/network/", network_views.network, name="network"),
    path("t/<slug:tenant>/sandboxes/", drill_views.sandboxes, name="sandboxes"),
    path("t/<slug:tenant>/sandboxes/<uuid:public_id>/", drill_views.drill, name="drill"),
    path("t/<slug:tenant>/contracts/", views.contracts, name="contracts"),
    path("t/<slug:tenant>/contracts/new/", views.contract_new, name="contract_new"),
    path("t/<slug:tenant>/contracts/<uuid:public_id>/", views.contract, name="contract"),
    path(
        "t/<slug:tenant>/contracts/<uuid:public_id>/versions/new/",
        views.version_new,
        name="version_new",
    ),
    path(
        "t/<slug:tenant>/contracts/<uuid:public_id>/versions/<int:number>/",
        views.version,
        name="version",
    ),
    path(
        "t/<slug:tenant>/contracts/<uuid:public_id>/versions/<int:number>/decide/",
        views.version_decide,
        name="version_decide",
    ),
]
websocket_urlpatterns: list[URLPattern] = [
    socket("ws/t/<slug:tenant>/runs/", TenantSocket),
    socket("ws/t/<slug:tenant>/runs/<uuid:public_id>/", RunSocket),
]
