"""What auditors take home, and what its verifier would say of it."""

from __future__ import annotations

from django.http import HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_GET

from approvals import bundle, verifier
from approvals.forms import BundleForm
from portal.access import TenantRequest, tenant_view
from portal.downloads import streamed
from portal.dsse import key_id
from portal.errors import BadInput
from portal.roles import Permission
from portal.signing import signing_keys


def _asked(request: TenantRequest) -> tuple[bundle.Asked, BundleForm]:
    form = BundleForm(request.GET)
    if not form.is_valid():
        said = [text for texts in form.errors.values() for text in texts]
        raise BadInput(reason=" ".join(map(str, said)))
    return bundle.asked(request.tenant, **form.question()), form


@require_GET
@tenant_view(Permission.AUDIT)
def export(request: TenantRequest) -> HttpResponseBase:
    """A bundle, sent while it is read."""
    asked, form = _asked(request)
    lines = bundle.exported(request.tenant, asked)
    name = f"evidence-{request.tenant.slug}{form.suffix()}.jsonl"
    return streamed(request, lines, name, "application/jsonl")


@require_GET
@tenant_view(Permission.AUDIT)
def check(request: TenantRequest) -> HttpResponse:
    """The same lines, given to the verifier, and what it says."""
    asked, form = _asked(request)
    keys = [key_id(each.public_key()) for each in signing_keys()]
    report = verifier.verified(bundle.exported(request.tenant, asked), keys)
    context = {"report": report, "form": form, "query": form.query()}
    return render(request, "approvals/bundle_check.html", context)
