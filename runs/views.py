"""Pages of runs and contracts, and the fragments that keep them up to date."""

from __future__ import annotations

import uuid
from typing import Any, cast
from urllib.parse import urlencode

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from portal import blobs
from portal.access import TenantRequest, tenant_view
from portal.asked import asked_number, asked_to_approve
from portal.roles import Permission
from runs import contracts as contract_story
from runs import lifecycle, queries, recovery
from runs.access import access_contract, access_event, access_run, access_version
from runs.compare import compare
from runs.contract import EXAMPLE, ContractRefused, Format, contract_from_data, with_rule
from runs.credentials import grants as credential_grants
from runs.forms import NewRunForm, VersionForm
from runs.models import ContractVersion, Event, Run
from runs.narrate import tell
from runs.reach import reach_of
from runs.states import DONE_ALREADY, RunStatus

_GET_OR_POST = require_http_methods(["GET", "HEAD", "POST"])
EVENTS_SHOWN = 40
EVENTS_MORE = 200
STATUS_FILTERS = (
    ("", "Every run"),
    ("live", "Under way"),
    (RunStatus.WAITING.value, "Waiting for a person"),
    (RunStatus.IN_REVIEW.value, "In review"),
    (RunStatus.PUBLISHED.value, "Published"),
    (RunStatus.FAILED.value, "Failed"),
    (RunStatus.CANCELLED.value, "Cancelled"),
    (RunStatus.DENIED.value, "Denied"),
    (RunStatus.EXPIRED.value, "Expired"),
)


# --- runs ------------------------------------------------------------------------------------


def _list_context(request: TenantRequest) -> dict[str, Any]:
    status = request.GET.get("status", "")
    if status not in dict(STATUS_FILTERS):
        status = ""
    page = Paginator(queries.run_list(request.tenant, status=status), 30).get_page(
        request.GET.get("page")
    )
    return {
        "page": page,
        "status": status,
        "statuses": STATUS_FILTERS,
        "query": f"{urlencode({'status': status})}&" if status else "",
        "here": request.GET.urlencode(),
    }


@require_GET
@tenant_view(Permission.VIEW)
def run_list(request: TenantRequest) -> HttpResponse:
    return render(request, "runs/run_list.html", _list_context(request))


@require_GET
@tenant_view(Permission.VIEW)
def run_rows(request: TenantRequest) -> HttpResponse:
    """The same list without its page, for a tab that looks again."""
    return render(request, "runs/_run_rows.html", _list_context(request))


@_GET_OR_POST
@tenant_view(Permission.OPERATE)
def run_new(request: TenantRequest) -> HttpResponse:
    versions = queries.versions_in_force(request.tenant)
    if request.method == "POST":
        form = NewRunForm(versions, request.POST)
        if form.is_valid():
            run = lifecycle.request_run(form.chosen, member=request.membership)
            messages.success(request, f"Run {run.number} is queued.")
            return redirect("runs:detail", tenant=request.tenant.slug, public_id=run.public_id)
        return render(
            request, "runs/run_new.html", {"form": form, "versions": versions}, status=422
        )
    chosen = asked_number(request, "version") or (versions[0].pk if len(versions) == 1 else None)
    form = NewRunForm(versions, initial={"version": chosen})
    return render(request, "runs/run_new.html", {"form": form, "versions": versions})


def _state_context(request: TenantRequest, run: Run) -> dict[str, Any]:
    """What of a run's page can change while somebody looks at it."""
    return {
        "run": run,
        "failure": recovery.failure_of(run) if run.status == RunStatus.FAILED else None,
        "contract": run.version.contract,
        "agent": run.version.data.get("agent", {}),
        "manifest": lifecycle.manifest_of(run),
        "reach": reach_of(run, lifecycle.contract_of(run)),
        "credential_uses": credential_grants.uses_of(run),
        "steps": queries.steps_of(run),
        "cost": queries.cost_of(run),
        "output": queries.last_output(run),
        "blocked": queries.blocked_calls(run),
        "done_already": DONE_ALREADY,
        "brokered": queries.brokered_receipts(run),
        "waiting": queries.waiting_calls(run),
        "going_on": queries.waiting_to_go_on(run),
        "held": queries.held_by(run),
        "checkpoints": run.checkpoints.order_by("seq"),
        "ends_by": queries.ends_by(run),
        "worked": queries.worked(run),
        # By the relations' names: this app does not know the one that decides.
        "packets": run.packets.order_by("number"),
        "open_publications": run.packets.filter(kind="publication", state="open").select_related(
            "candidate"
        ),
        "publications": run.publications.order_by("pk"),
    }


@require_GET
@tenant_view(Permission.VIEW)
def run_detail(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    run = access_run(request.membership, public_id)
    events = queries.newest_events(run, EVENTS_SHOWN)
    context = {
        **_state_context(request, run),
        "events": events,
        "last_seq": events[0].seq if events else 0,
        "first_seq": events[-1].seq if events else 0,
    }
    return render(request, "runs/run_detail.html", context)


@require_GET
@tenant_view(Permission.VIEW)
def run_state(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """Everything but the timeline, as fragments that replace themselves."""
    run = access_run(request.membership, public_id)
    return render(request, "runs/_run_state.html", _state_context(request, run))


@require_GET
@tenant_view(Permission.VIEW)
def run_events(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """Rows of the timeline: after the newest row one has, or before the oldest.

    For htmx the rows alone; opened as a page, the whole timeline from there.
    """
    run = access_run(request.membership, public_id)
    if "before" in request.GET:
        before = asked_number(request, "before", run.event_seq + 1)
        events = queries.events_before(run, before, EVENTS_MORE)
    else:
        events = queries.events_after(run, asked_number(request, "after"), EVENTS_MORE)
    older = "before" in request.GET
    if not request.htmx and not older:
        events, older = queries.newest_events(run, EVENTS_MORE), True
    first = events[-1].seq if events else 0
    context = {
        "run": run,
        "contract": run.version.contract,
        "events": events,
        "first_seq": first,
        "older": older and first > 1,
    }
    name = "runs/_event_rows.html" if request.htmx else "runs/run_events.html"
    return render(request, name, context)


@require_GET
@tenant_view(Permission.VIEW)
def run_event(request: TenantRequest, public_id: uuid.UUID, seq: int) -> HttpResponse:
    """One event with all its facts, its payload and its place in the chain."""
    run = access_run(request.membership, public_id)
    event = access_event(run, seq)
    context = {
        "run": run,
        "event": event,
        "line": tell(event.kind, event.facts),
        "payload": _payload(run, event),
    }
    return render(request, "runs/event.html", context)


def _payload(run: Run, event: Event) -> str | None:
    if not event.payload:
        return None
    try:
        return queries.payload_text(run, event)
    except blobs.BlobRemoved as removed:
        return str(removed)


@require_GET
@tenant_view(Permission.VIEW)
def run_output(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    """The whole stored output of the last command."""
    run = access_run(request.membership, public_id)
    context = {
        "run": run,
        "contract": run.version.contract,
        "output": queries.last_output(run, whole=True),
    }
    return render(request, "runs/run_output.html", context)


@require_POST
@tenant_view(Permission.OPERATE)
def run_cancel(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    run = lifecycle.ask_cancel(access_run(request.membership, public_id), member=request.membership)
    if run.is_live:
        messages.warning(
            request,
            f"Stopping run {run.number} is asked for. The page says when it is confirmed.",
            extra_tags="wait",
        )
    else:
        messages.success(request, f"Run {run.number} is stopped.")
    return redirect("runs:detail", tenant=request.tenant.slug, public_id=public_id)


# --- contracts -------------------------------------------------------------------------------


@require_GET
@tenant_view(Permission.VIEW)
def contracts(request: TenantRequest) -> HttpResponse:
    page = Paginator(queries.contract_list(request.tenant), 50).get_page(request.GET.get("page"))
    return render(request, "runs/contract_list.html", {"page": page})


@require_GET
@tenant_view(Permission.VIEW)
def contract(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    found = access_contract(request.membership, public_id)
    versions = queries.versions_of(found)
    in_force = next((v for v in versions if v.state == ContractVersion.State.IN_FORCE), None)
    shown = in_force or (versions[0] if versions else None)
    context = {
        "contract": found,
        "versions": versions,
        "in_force": in_force,
        "shown": shown,
        "terms": contract_from_data(shown.data) if shown else None,
        "runs": queries.run_list(request.tenant, contract=str(found.public_id))[:10],
    }
    return render(request, "runs/contract_detail.html", context)


def _propose(
    request: TenantRequest, form: VersionForm, *, contract_id: uuid.UUID | None
) -> HttpResponse:
    """Store what the form holds, or show it again with every problem at its field and line."""
    found = access_contract(request.membership, contract_id) if contract_id else None
    problems: tuple[Any, ...] = ()
    if form.is_valid():
        try:
            stored = contract_story.propose_version(
                form.cleaned_data["text"],
                cast(Format, form.cleaned_data["format"]),
                member=request.membership,
                contract=found,
            )
        except ContractRefused as refused:
            problems = refused.problems
            # A file was read into the text, so the text is what is mended.
            form = VersionForm({name: form.cleaned_data[name] for name in ("text", "format")})
        else:
            messages.success(
                request,
                f"Version {stored.number} is stored. "
                "It is in force once a tenant admin approves it.",
            )
            return redirect(
                "runs:version",
                tenant=request.tenant.slug,
                public_id=stored.contract.public_id,
                number=stored.number,
            )
    context = {"form": form, "contract": found, "problems": problems}
    return render(request, "runs/version_new.html", context, status=422)


@_GET_OR_POST
@tenant_view(Permission.OPERATE)
def contract_new(request: TenantRequest) -> HttpResponse:
    if request.method == "POST":
        return _propose(request, VersionForm(request.POST, request.FILES), contract_id=None)
    form = VersionForm(initial={"text": EXAMPLE, "format": "toml"})
    return render(request, "runs/version_new.html", {"form": form})


@_GET_OR_POST
@tenant_view(Permission.OPERATE)
def version_new(request: TenantRequest, public_id: uuid.UUID) -> HttpResponse:
    found = access_contract(request.membership, public_id)
    if request.method == "POST":
        return _propose(request, VersionForm(request.POST, request.FILES), contract_id=public_id)
    newest = found.versions.order_by("-number").first()
    form = VersionForm(
        initial={"text": newest.text, "format": newest.format} if newest else {"text": EXAMPLE}
    )
    if newest is not None and "allow" in request.GET:
        form.initial["text"] = with_rule(newest.text, newest.format, request.GET["allow"])
    return render(request, "runs/version_new.html", {"form": form, "contract": found})


@require_GET
@tenant_view(Permission.VIEW)
def version(request: TenantRequest, public_id: uuid.UUID, number: int) -> HttpResponse:
    found = access_version(request.membership, public_id, number)
    earlier = (
        found.contract.versions.filter(number__lt=number)
        .exclude(state=ContractVersion.State.DENIED)
        .order_by("-number")
        .first()
    )
    context = {
        "contract": found.contract,
        "version": found,
        "terms": contract_from_data(found.data),
        "earlier": earlier,
        "changes": compare(earlier.data, found.data) if earlier else None,
        "may_decide": contract_story.may_decide(found, request.membership),
    }
    return render(request, "runs/version_detail.html", context)


@require_POST
@tenant_view(Permission.MANAGE)
def version_decide(request: TenantRequest, public_id: uuid.UUID, number: int) -> HttpResponse:
    found = access_version(request.membership, public_id, number)
    approve = asked_to_approve(request)
    decided = contract_story.decide_version(
        found,
        approve=approve,
        seen=request.POST.get("seen", ""),
        member=request.membership,
    )
    words = "in force" if approve else "refused"
    messages.success(request, f"Version {decided.number} of “{found.contract.name}” is {words}.")
    return redirect("runs:version", tenant=request.tenant.slug, public_id=public_id, number=number)
