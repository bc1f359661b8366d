"""Addresses of pages, fragments and sockets."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, path

from approvals import (
    bulk_views,
    bundle_views,
    canary_views,
    candidate_views,
    delegation_views,
    deletion_views,
    edit_views,
    group_views,
    passkey_views,
    policy_views,
    retention_views,
    views,
)
from approvals.consumers import PacketSocket, QueueSocket
from portal.sockets import socket

app_name = "approvals"
_T = "t/<slug:tenant>/"
_PACKET = f"{_T}packets/<uuid:public_id>/"
_CANDIDATE = f"{_T}candidates/<uuid:public_id>/"
_PUBLICATION = f"{_T}publications/<uuid:public_id>/"
urlpatterns: list[URLPattern | URLResolver] = [
    # They are tried in this order: first what people wait for most.
    path(_PACKET, views.packet, name="packet"),
    path(f"{_PACKET}state/", views.packet_state, name="packet_state"),
    path(f"{_PACKET}decide/", views.packet_decide, name="packet_decide"),
    path(f"{_PACKET}undo/", views.packet_undo, name="packet_undo"),
    path(f"{_PACKET}withdraw/", views.packet_withdraw, name="packet_withdraw"),
    path(f"{_PACKET}edit/", edit_views.packet_edit, name="packet_edit"),
    path(f"{_PACKET}passkey/", passkey_views.packet_passkey, name="packet_passkey"),
    path(f"{_PACKET}print/", views.packet_print, name="packet_print"),
    path(f"{_PACKET}page.json", views.packet_page, name="packet_page"),
    path(f"{_PACKET}<slug:tab>/", views.packet, name="packet_tab"),
    path(f"{_T}people/groups/", group_views.groups, name="groups"),
    path(f"{_T}people/groups/new/", group_views.group_new, name="group_new"),
    path(f"{_T}people/groups/of/<slug:handle>/", group_views.group_edit, name="group_edit"),
    path(
        f"{_T}people/groups/of/<slug:handle>/delete/",
        group_views.group_delete,
        name="group_delete",
    ),
    path(f"{_T}people/delegations/", delegation_views.delegations, name="delegations"),
    path(f"{_T}people/delegations/new/", delegation_views.delegation_new, name="delegation_new"),
    path(
        f"{_T}people/delegations/<int:pk>/end/",
        delegation_views.delegation_end,
        name="delegation_end",
    ),
    path(f"{_T}delete/", deletion_views.delete, name="delete"),
    path(f"{_T}evidence/bundle.jsonl", bundle_views.export, name="bundle"),
    path(f"{_T}evidence/check/", bundle_views.check, name="bundle_check"),
    path(f"{_T}retention/", retention_views.overview, name="retention"),
    path(f"{_T}retention/times/", retention_views.times, name="retention_times"),
    path(f"{_T}retention/holds/", retention_views.hold, name="hold"),
    path(f"{_T}retention/holds/<int:pk>/lift/", retention_views.lift, name="hold_lift"),
    path(f"{_T}queue/", views.queue, name="queue"),
    path(f"{_T}queue/mine/", views.mine, name="mine"),
    path(f"{_T}queue/together/", bulk_views.queue_bulk, name="queue_bulk"),
    path(f"{_T}queue/news/", views.queue_news, name="queue_news"),
    path(_CANDIDATE, candidate_views.candidate, name="candidate"),
    path(f"{_CANDIDATE}files/", candidate_views.candidate_files, name="candidate_files"),
    path(f"{_CANDIDATE}files/<int:index>/", candidate_views.candidate_file, name="candidate_file"),
    path(
        f"{_CANDIDATE}files/<int:index>/line/<slug:side>/",
        candidate_views.candidate_line,
        name="candidate_line",
    ),
    path(
        f"{_CANDIDATE}files/<int:index>/around/<int:number>/",
        candidate_views.candidate_around,
        name="candidate_around",
    ),
    path(
        f"{_CANDIDATE}files/<int:index>/seen/",
        candidate_views.candidate_seen,
        name="candidate_seen",
    ),
    path(f"{_CANDIDATE}patch/", candidate_views.candidate_patch, name="candidate_patch"),
    path(f"{_CANDIDATE}tray/<int:index>/", candidate_views.candidate_tray, name="candidate_tray"),
    path(
        f"{_CANDIDATE}receipts/<slug:name>/",
        candidate_views.candidate_receipt,
        name="candidate_receipt",
    ),
    path(f"{_T}publications/", views.publications, name="publications"),
    path(_PUBLICATION, views.publication, name="publication"),
    path(f"{_PUBLICATION}receipt.json", views.publication_receipt, name="publication_receipt"),
    path(f"{_PUBLICATION}settle/", views.publication_settle, name="publication_settle"),
    path(f"{_T}unknown/", views.unknown, name="unknown"),
    path(f"{_T}unknown/calls/<int:pk>/settle/", views.call_settle, name="call_settle"),
    path(
        f"{_T}unknown/secrets/<uuid:public_id>/settle/", views.secret_settle, name="secret_settle"
    ),
    path(f"{_T}policies/", policy_views.policies, name="policies"),
    path(f"{_T}policies/new/", policy_views.policy_new, name="policy_new"),
    path(f"{_T}policies/try/", policy_views.policy_try, name="policy_try"),
    path(f"{_T}policies/tests/", canary_views.overview, name="canaries"),
    path(f"{_T}policies/tests/choose/", canary_views.choose, name="canaries_choose"),
    path(f"{_T}policies/evidence/", policy_views.policy_evidence, name="policy_evidence"),
    path(
        f"{_T}policies/evidence/<slug:key>/<slug:column>/",
        policy_views.policy_evidence_packets,
        name="policy_evidence_packets",
    ),
    path(f"{_T}policies/<int:number>/", policy_views.policy, name="policy"),
    path(f"{_T}policies/<int:number>/trial/", policy_views.policy_trial, name="policy_trial"),
    path(f"{_T}policies/<int:number>/back/", policy_views.policy_back, name="policy_back"),
    path(f"{_T}policies/<int:number>/decide/", policy_views.policy_decide, name="policy_decide"),
]
websocket_urlpatterns: list[URLPattern] = [
    socket("ws/t/<slug:tenant>/queue/", QueueSocket),
    socket("ws/t/<slug:tenant>/packets/<uuid:public_id>/", PacketSocket),
]
