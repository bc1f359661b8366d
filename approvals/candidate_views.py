"""A candidate: its diff in parts, its lines, patch, tray and receipts."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from approvals import queries, reviewing, seen
from approvals.access import access_candidate
from approvals.changes import Change, LeftOut
from approvals.contents import Contents
from approvals.models import Candidate
from approvals.templatetags.diffs import STEP
from portal import blobs
from portal.access import TenantRequest, tenant_view
from portal.asked import asked_number
from portal.errors import NotFound
from portal.roles import Permission

AROUND_MOST = 400


def review_context(request: TenantRequest, candidate: Candidate) -> dict[str, Any]:
    """What the diff of a candidate shows, from the file that the address names."""
    # Unchanged lines are drawn for one file at a time.
    options = replace(reviewing.read_options(request.GET), whole=False)
    start = asked_number(request, "from")
    review = reviewing.review_of(candidate, options, min(start, len(candidate.changes)))
    return {
        "candidate": candidate,
        "review": review,
        "totals": review.diff.totals(),
        "tree": reviewing.tree_of(part.head for part in review.parts),
        "around": candidate.content_packs.exists(),
        "seen": seen.seen_of(candidate, review.diff.changes, request.membership),
    }


def files_context(candidate: Candidate) -> dict[str, Any]:
    """Every changed path, the tray, and what was left out."""
    return {
        "candidate": candidate,
        "changes": [Change.from_data(each) for each in candidate.changes],
        "tray": candidate.tray,
        "left_out": [LeftOut.from_data(each) for each in candidate.left_out],
    }


@require_GET
@tenant_view(Permission.VIEW)
def candidate(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """A candidate with all that is known of it, whatever became of its packets."""
    found = access_candidate(request.membership, public_id)
    context = {
        "run": found.run,
        "packets": list(found.packets.order_by("number")),
        "receipts": reviewing.receipt_rows(queries.receipts_of(found)),
        **files_context(found),
        **review_context(request, found),
    }
    return render(request, "approvals/candidate.html", context)


@require_GET
@tenant_view(Permission.VIEW)
def candidate_files(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """Files of a long candidate from one on: for htmx the files alone, otherwise its page there."""
    found = access_candidate(request.membership, public_id)
    if request.htmx:
        return render(request, "approvals/_review_parts.html", review_context(request, found))
    address = reverse("approvals:candidate", args=[request.tenant.slug, public_id])
    return redirect(f"{address}?{request.GET.urlencode()}#parts")


@require_GET
@tenant_view(Permission.VIEW)
def candidate_file(request: TenantRequest, public_id: uuid.UUID, index: int) -> HttpResponse:
    """The rows of one file: for htmx the next ones, otherwise a page of its own."""
    found = access_candidate(request.membership, public_id)
    options, contents = reviewing.read_options(request.GET), Contents(found)
    diff = reviewing.diff_of(found)
    start = asked_number(request, "start")
    if options.whole:
        contents.demand(diff.head(index).change.new_blob)
    if line := request.GET.get("line"):
        start, options = reviewing.page_with(diff, index, line, options, contents)
    view = diff.view(index, options, start=start, contents=contents if options.whole else None)
    context = {
        "candidate": found,
        "run": found.run,
        "view": view,
        "head": view.head,
        "options": options,
        "around": len(contents) > 0,
        "seen": seen.seen_of(found, diff.changes, request.membership),
    }
    if request.htmx:
        name = "approvals/_file_rows.html" if view.start else "approvals/_file.html"
        return render(request, name, context)
    return render(request, "approvals/file.html", context)


@require_POST
@tenant_view(Permission.VIEW)
def candidate_seen(request: TenantRequest, public_id: uuid.UUID, index: int) -> HttpResponse:
    """This person saw a file, or takes that back; nobody else is told."""
    found = access_candidate(request.membership, public_id)
    seen.tick(found, index, request.membership, seen=request.POST.get("seen") == "1")
    if request.htmx:
        changes = reviewing.diff_of(found).changes
        context = {"seen": seen.seen_of(found, changes, request.membership), "swap": True}
        return render(request, "approvals/_seen_meter.html", context)
    address = reverse("approvals:candidate", args=[request.tenant.slug, public_id])
    return redirect(f"{address}#file-{index}")


@require_GET
@tenant_view(Permission.VIEW)
def candidate_around(
    request: TenantRequest, public_id: uuid.UUID, index: int, number: int
) -> HttpResponse:
    """Unchanged lines beside a hunk: for htmx these, otherwise the file with all of them."""
    found = access_candidate(request.membership, public_id)
    options = reviewing.read_options(request.GET)
    if not request.htmx:
        address = reverse("approvals:candidate_file", args=[request.tenant.slug, public_id, index])
        query = urlencode({"view": options.mode, "whole": "1"})
        return redirect(f"{address}?{query}")
    diff, contents = reviewing.diff_of(found), Contents(found)
    part = diff.around(
        index,
        number,
        options,
        contents.demand(diff.head(index).change.new_blob),
        shown=asked_number(request, "shown"),
        count=STEP if request.GET.get("all") is None else AROUND_MOST,
    )
    context = {"candidate": found, "part": part, "around": True}
    return render(request, "approvals/_file_around.html", context)


@require_GET
@tenant_view(Permission.VIEW)
def candidate_line(
    request: TenantRequest, public_id: uuid.UUID, index: int, side: str
) -> HttpResponse:
    """One line that is too long for the diff, in parts."""
    found = access_candidate(request.membership, public_id)
    diff = reviewing.diff_of(found)
    part = diff.whole_line(index, side, offset=asked_number(request, "offset"))
    context = {
        "candidate": found,
        "run": found.run,
        "head": diff.head(index),
        "side": side,
        "part": part,
    }
    return render(request, "approvals/line.html", context)


def _download(data: bytes, name: str) -> HttpResponse:
    """Bytes that somebody else made: saved, never shown."""
    response = HttpResponse(data, content_type="application/octet-stream")
    response["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(name, safe='')}"
    response["Content-Security-Policy"] = "default-src 'none'; sandbox"
    return response


@require_GET
@tenant_view(Permission.VIEW)
def candidate_patch(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    found = access_candidate(request.membership, public_id)
    name = f"run-{found.run.number}-candidate-{found.seq}.patch"
    return _download(blobs.get(found.tenant_id, found.patch_blob), name)


@require_GET
@tenant_view(Permission.VIEW)
def candidate_tray(request: TenantRequest, public_id: uuid.UUID, index: int) -> HttpResponse:
    """One file of the output tray."""
    found = access_candidate(request.membership, public_id)
    if index >= len(found.tray):
        raise NotFound
    entry = found.tray[index]
    return _download(
        blobs.get(found.tenant_id, entry["sha256"]), str(entry["path"]).rpartition("/")[2] or "file"
    )


@require_GET
@tenant_view(Permission.VIEW)
def candidate_receipt(request: TenantRequest, public_id: uuid.UUID, name: str) -> HttpResponse:
    """One receipt with its findings and its stored evidence."""
    found = access_candidate(request.membership, public_id)
    receipt = found.receipts.filter(check_name=name).first()
    if receipt is None:
        raise NotFound
    output = ""
    if receipt.evidence_blob:
        output = blobs.get(found.tenant_id, receipt.evidence_blob).decode("utf-8", "replace")
    context = {
        "candidate": found,
        "run": found.run,
        "row": reviewing.receipt_rows([receipt])[0],
        "receipt": receipt,
        "output": output,
    }
    return render(request, "approvals/receipt.html", context)
