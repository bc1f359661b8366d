"""The page on which a person changes the arguments of a waiting call."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from approvals import reviewing
from approvals.access import access_packet
from approvals.editing import edit_packet, why_not_editable
from approvals.errors import NotEditable
from approvals.forms import ArgumentsForm
from approvals.models import Packet
from approvals.states import PacketState
from portal.access import TenantRequest, tenant_view
from portal.errors import NotFound, Refusal
from portal.roles import Permission
from runs import editing, lifecycle
from runs.models import ToolCall


@require_http_methods(["GET", "HEAD", "POST"])
@tenant_view(Permission.DECIDE)
def packet_edit(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """The form; what it would change; and the edit itself. Only the last one changes anything."""
    found = access_packet(request.membership, public_id)
    if reason := why_not_editable(found):
        raise NotEditable(reason=reason)
    if request.method != "POST":
        if found.state != PacketState.OPEN:
            return redirect("approvals:packet", tenant=request.tenant.slug, public_id=public_id)
        text = editing.written(found.page["arguments"])
        return _form(request, found, ArgumentsForm(initial={"text": text, "seen": found.digest}))
    form = ArgumentsForm(request.POST)
    if not form.is_valid():
        return _form(request, found, form, status=422)
    text = form.cleaned_data["text"]
    try:
        if request.POST.get("do") == "look":
            return _form(request, found, form, changes=_changes(found, text))
        following = edit_packet(
            public_id, member=request.membership, seen=form.cleaned_data["seen"], text=text
        )
    except NotFound:
        raise
    except Refusal as refusal:
        if refusal.status == 422:
            form.add_error("text", str(refusal))
            return _form(request, found, form, status=422)
        found = access_packet(request.membership, public_id)
        return _form(request, found, form, refusal=refusal, status=refusal.status)
    messages.success(
        request,
        "Edited. Others decide on these arguments; you do not approve them.",
        extra_tags="wait",
    )
    return redirect("approvals:packet", tenant=request.tenant.slug, public_id=following.public_id)


def _changes(packet: Packet, text: str) -> list[editing.Changed]:
    """What the text would change, read as the edit itself reads it."""
    page = packet.page
    # From the page, which says the same of every call, whether its row is still this packet's.
    call = ToolCall(kind=page["tool_kind"], tool=page["tool"], arguments=page["arguments"])
    arguments = editing.read_edited(lifecycle.contract_of(packet.run), call, text)
    return editing.changed(page["arguments"], arguments)


def _form(
    request: TenantRequest,
    packet: Packet,
    form: ArgumentsForm,
    *,
    refusal: Refusal | None = None,
    status: int = 200,
    **more: Any,
) -> HttpResponse:
    context = {
        "packet": packet,
        "page": packet.page,
        "form": form,
        "refusal": refusal,
        "successor": reviewing.successor_of(packet),
        **more,
    }
    return render(request, "approvals/packet_edit.html", context, status=status)
