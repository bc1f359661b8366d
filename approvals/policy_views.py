"""Pages of the policy: its versions, writing one, trying it on what was judged, deciding on it."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from approvals import capabilities, queries, reachable
from approvals import policies as policy_story
from approvals.access import access_policy
from approvals.capability import COLUMNS
from approvals.forms import USUAL_DAYS, PolicyForm, TrialForm
from approvals.policy import PolicyRefused, stored_rules
from approvals.policy_changes import changes
from approvals.policy_text import DEFAULT_POLICY
from approvals.trials import Tried, tried
from portal.access import TenantRequest, tenant_view
from portal.asked import asked_to_approve
from portal.errors import BadInput, NotFound
from portal.roles import Permission

_MATTERS = ("proposed", "in_force")
_GET_OR_POST = require_http_methods(["GET", "HEAD", "POST"])


@require_GET
@tenant_view(Permission.VIEW)
def policies(request: TenantRequest) -> HttpResponse:
    versions = queries.policy_versions(request.tenant)
    in_force = next((v for v in versions if v.state == v.State.IN_FORCE), None)
    context = {
        "versions": versions,
        "in_force": in_force,
        "rules": list(stored_rules(in_force.text).values()) if in_force else [],
        "unreachable": reachable.of_version(in_force) if in_force else [],
        "uses": capabilities.uses_of(in_force) if in_force else {},
    }
    return render(request, "approvals/policies.html", context)


def _version_context(request: TenantRequest, number: int) -> dict[str, Any]:
    found = access_policy(request.membership, number)
    against = queries.policy_against(found)
    return {
        "version": found,
        "earlier": against,
        "rows": changes(against.text, found.text) if against else [],
        "rules": list(stored_rules(found.text).values()),
        "earlier_rules": stored_rules(against.text) if against else {},
        "unreachable": reachable.of_version(found) if found.state in _MATTERS else [],
        "uses": capabilities.uses_of(found),
        "may_decide": policy_story.may_decide(found, request.membership),
        "trial_form": TrialForm(initial={"days": USUAL_DAYS}),
    }


@require_GET
@tenant_view(Permission.VIEW)
def policy(request: TenantRequest, number: int) -> HttpResponse:
    return render(request, "approvals/policy.html", _version_context(request, number))


@_GET_OR_POST
@tenant_view(Permission.MANAGE)
def policy_new(request: TenantRequest) -> HttpResponse:
    if request.method == "POST":
        form = PolicyForm(request.POST)
        problems: tuple[Any, ...] = ()
        if form.is_valid():
            try:
                stored = policy_story.propose_policy(
                    form.cleaned_data["text"],
                    member=request.membership,
                    comment=form.cleaned_data["comment"],
                )
            except PolicyRefused as refused:
                problems = refused.problems
            else:
                messages.success(
                    request,
                    f"Version {stored.number} is stored. "
                    "It is in force once somebody else approves it.",
                )
                return redirect(
                    "approvals:policy", tenant=request.tenant.slug, number=stored.number
                )
        return _editor(request, form, problems=problems, status=422)
    versions = queries.policy_versions(request.tenant)
    text = versions[0].text if versions else DEFAULT_POLICY
    if suggested := request.GET.get("suggest", ""):
        return _editor(request, PolicyForm(initial=_suggestion(request, suggested)))
    return _editor(request, PolicyForm(initial={"text": text}))


def _suggestion(request: TenantRequest, key: str) -> dict[str, str]:
    """What the editor begins with where the evidence speaks for a rule. Stores nothing."""
    days = _asked(request.GET).cleaned_data["days"]
    found = capabilities.evidence_of(request.tenant, key, days)
    if found is None or found.advice[0] != "promote":
        raise BadInput(reason="The evidence of now speaks for no rule here. Nothing was drafted.")
    return {
        "text": capabilities.draft(found, request.tenant, days),
        "comment": f"From the evidence of {days} days: {found.capability.tool}, "
        f"{found.capability.place}. {found.advice[1]}",
    }


def _editor(
    request: TenantRequest, form: PolicyForm, *, status: int = 200, **more: Any
) -> HttpResponse:
    in_force = policy_story.in_force_of(request.tenant)
    context = {
        "form": form,
        "in_force": in_force,
        "trial_form": TrialForm(initial={"days": USUAL_DAYS}),
        **more,
    }
    return render(request, "approvals/policy_new.html", context, status=status)


@require_POST
@tenant_view(Permission.MANAGE)
def policy_try(request: TenantRequest) -> HttpResponse:
    """What a draft changes in the text, and would have changed. Stores nothing."""
    form, asked = PolicyForm(request.POST), _asked(request.POST)
    context: dict[str, Any] = {"in_force": policy_story.in_force_of(request.tenant)}
    if form.is_valid():
        text = form.cleaned_data["text"]
        in_force = context["in_force"]
        try:
            policy_story.check_draft(text, in_force, member=request.membership)
        except PolicyRefused as refused:
            context["problems"] = refused.problems
        else:
            context["rows"] = changes(in_force.text if in_force else "", text)
            context["tried"] = _tried(request, text, asked)
    status = 200 if "tried" in context else 422
    context["trial_form"] = asked
    if request.htmx and form.is_valid():
        return render(request, "approvals/_draft.html", context, status=status)
    return _editor(request, form, status=status, **context)


@require_GET
@tenant_view(Permission.MANAGE)
def policy_trial(request: TenantRequest, number: int) -> HttpResponse:
    """The same for a stored version: what whoever decides on it is shown."""
    asked = _asked(request.GET)
    version = access_policy(request.membership, number)
    context = {"tried": _tried(request, version.text, asked), "trial_form": asked}
    if request.htmx:
        return render(request, "approvals/_trial.html", {**context, "version": version})
    return render(
        request, "approvals/policy.html", {**_version_context(request, number), **context}
    )


@require_GET
@tenant_view(Permission.MANAGE)
def policy_evidence(request: TenantRequest) -> HttpResponse:
    """What people answered, capability by capability, and what the numbers speak for."""
    days = _asked(request.GET).cleaned_data["days"]
    form = TrialForm(initial={"days": days})
    form.fields["days"].label = "Counted over"
    report = capabilities.report(request.tenant, days)
    context = {"form": form, "report": report, "columns": COLUMNS}
    return render(request, "approvals/evidence.html", context)


@require_GET
@tenant_view(Permission.MANAGE)
def policy_evidence_packets(request: TenantRequest, key: str, column: str) -> HttpResponse:
    """The packets behind one number."""
    asked = _asked(request.GET)
    wanted = next((each for each in COLUMNS if each == column), None)
    if wanted is None:
        raise NotFound
    found = capabilities.behind(request.tenant, key, wanted, asked.cleaned_data["days"])
    if found is None:
        raise NotFound
    context = {"behind": found, "days": asked.cleaned_data["days"]}
    return render(request, "approvals/evidence_packets.html", context)


def _asked(data: Any) -> TrialForm:
    form = TrialForm(data)
    if not form.is_valid():
        raise BadInput(reason="That is no number of days on this page. Nothing was counted.")
    return form


def _tried(request: TenantRequest, text: str, asked: TrialForm) -> Tried:
    given = asked.cleaned_data
    return tried(request.tenant, text, days=given["days"], before=given["before"])


@require_POST
@tenant_view(Permission.MANAGE)
def policy_back(request: TenantRequest, number: int) -> HttpResponse:
    """Propose the text of an earlier version again."""
    version = access_policy(request.membership, number)
    stored = policy_story.go_back(version, member=request.membership)
    messages.success(
        request,
        f"Version {stored.number} has the text of version {number}. "
        "It is in force once somebody else approves it.",
    )
    return redirect("approvals:policy", tenant=request.tenant.slug, number=stored.number)


@require_POST
@tenant_view(Permission.MANAGE)
def policy_decide(request: TenantRequest, number: int) -> HttpResponse:
    found = access_policy(request.membership, number)
    approve = asked_to_approve(request)
    decided = policy_story.decide_policy(
        found,
        approve=approve,
        seen=request.POST.get("seen", ""),
        against=request.POST.get("against"),
        member=request.membership,
    )
    words = "in force" if approve else "refused"
    messages.success(request, f"Version {decided.number} of the policy is {words}.")
    return redirect("approvals:policy", tenant=request.tenant.slug, number=number)
