"""Sign in and out, choose a tenant, one's own settings, people, and the evidence."""

from __future__ import annotations

from typing import cast
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.auth import authenticate, login, logout
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from portal import audit, live, passkey_account, people, signin
from portal.access import TenantRequest, tenant_view
from portal.context import Shell
from portal.dsse import key_id
from portal.forms import NewMemberForm, RolesForm, SettingsForm, SignInForm
from portal.models import User
from portal.roles import Permission
from portal.signing import signing_keys

_GET_OR_POST = require_http_methods(["GET", "HEAD", "POST"])
# The backend a person signed in by link is recorded with; there is only one.
_BACKEND = "portal.sessions.People"


def _after_sign_in(request: HttpRequest) -> HttpResponse:
    wanted = request.POST.get("next", "")
    if not url_has_allowed_host_and_scheme(
        wanted, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    ):
        wanted = reverse("portal:home")
    return HttpResponseRedirect(wanted)


@never_cache
@sensitive_post_parameters("password")
@_GET_OR_POST
def sign_in(request: HttpRequest) -> HttpResponse:
    """Sign in by password. Wrong address, wrong password and switched-off look alike."""
    wanted = request.POST.get("next") or request.GET.get("next", "")
    if request.method != "POST":
        if request.user.is_authenticated:
            return redirect("portal:home")
        return render(request, "portal/sign_in.html", {"form": SignInForm(), "next": wanted})
    form = SignInForm(request.POST)
    if form.is_valid():
        if not signin.may_try(form.cleaned_data["email"]):
            form.add_error(
                None,
                "Too many wrong passwords for this address. "
                "Wait ten minutes, or use a sign-in link.",
            )
            return render(
                request, "portal/sign_in.html", {"form": form, "next": wanted}, status=429
            )
        user = authenticate(
            request,
            username=signin.known_address(form.cleaned_data["email"]),
            password=form.cleaned_data["password"],
        )
        if user is not None:
            signin.forget_attempts(form.cleaned_data["email"])
            login(request, user)
            passkey_account.note_proof(request.session, "sign_in")
            return _after_sign_in(request)
        form.add_error(
            None, "This address and password do not belong together. Nobody was signed in."
        )
    return render(request, "portal/sign_in.html", {"form": form, "next": wanted}, status=422)


@never_cache
@_GET_OR_POST
def sign_in_by_link(request: HttpRequest, token: str) -> HttpResponse:
    """Looking at the link uses nothing up: mail scanners look. Only the button signs in."""
    if request.method == "POST":
        login(request, signin.use_link(token), backend=_BACKEND)
        passkey_account.note_proof(request.session, "sign_in")
        return redirect("portal:home")
    return render(request, "portal/sign_in_link.html", {"person": signin.owner_of(token)})


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    user = request.user
    logout(request)
    if isinstance(user, User):
        live.changed(live.person_topic(user.pk))
    return redirect("portal:sign_in")


@login_required
@require_GET
def home(request: HttpRequest) -> HttpResponse:
    """Into the only tenant, or the only one where something waits; otherwise to the choice."""
    shell = Shell(request)
    busy = [each for each in shell.tenants if shell.waiting_by_tenant.get(each["slug"])]
    chosen = busy if len(busy) == 1 else shell.tenants
    return redirect(chosen[0]["url"]) if len(chosen) == 1 else redirect("portal:tenants")


@login_required
@require_GET
def tenants(request: HttpRequest) -> HttpResponse:
    shell = Shell(request)
    listed = [
        {**each, "waiting": shell.waiting_by_tenant.get(each["slug"], 0)} for each in shell.tenants
    ]
    return render(request, "portal/tenants.html", {"tenants": listed})


@login_required
@_GET_OR_POST
def settings(request: HttpRequest) -> HttpResponse:
    """Theme and keys: what a person chooses for themselves, everywhere."""
    user = cast(User, request.user)
    if request.method == "POST":
        form = SettingsForm(request.POST, instance=user)
        if form.is_valid():
            changed = form.save(commit=False)
            changed.save(update_fields=["theme", "single_keys"])
            messages.success(request, "Your settings are kept.", extra_tags="done")
            return redirect("portal:settings")
        return render(request, "portal/settings.html", {"form": form}, status=422)
    return render(request, "portal/settings.html", {"form": SettingsForm(instance=user)})


# --- people ----------------------------------------------------------------------------------


def _members_page(
    request: TenantRequest,
    *,
    new: NewMemberForm | None = None,
    editing: int | None = None,
    roles: RolesForm | None = None,
    status: int = 200,
) -> HttpResponse:
    context = {
        "members": people.members_of(request.tenant),
        "new": new or NewMemberForm(auto_id="new_%s"),
        "editing": editing,
        "roles_form": roles,
    }
    return render(request, "portal/members.html", context, status=status)


@require_GET
@tenant_view(Permission.VIEW)
def members(request: TenantRequest) -> HttpResponse:
    return _members_page(request)


@require_POST
@tenant_view(Permission.MANAGE)
def member_add(request: TenantRequest) -> HttpResponse:
    form = NewMemberForm(request.POST, auto_id="new_%s")
    if not form.is_valid():
        return _members_page(request, new=form, status=422)
    added = people.add_member(
        form.cleaned_data["name"],
        form.cleaned_data["email"],
        form.cleaned_data["roles"],
        member=request.membership,
    )
    messages.success(request, f"{added.user.name} belongs to {request.tenant.name} now.")
    return redirect("portal:members", tenant=request.tenant.slug)


@_GET_OR_POST
@tenant_view(Permission.MANAGE)
def member_roles(request: TenantRequest, pk: int) -> HttpResponse:
    held = people.access_member(request.membership, pk)
    if request.method != "POST":
        form = RolesForm(initial={"roles": held.roles}, auto_id="edit_%s")
        return _members_page(request, editing=pk, roles=form)
    form = RolesForm(request.POST, auto_id="edit_%s")
    if not form.is_valid():
        return _members_page(request, editing=pk, roles=form, status=422)
    changed = people.set_roles(pk, form.cleaned_data["roles"], member=request.membership)
    messages.success(request, f"The roles of {changed.user.name} were changed.")
    return redirect("portal:members", tenant=request.tenant.slug)


@require_POST
@tenant_view(Permission.MANAGE)
def member_remove(request: TenantRequest, pk: int) -> HttpResponse:
    user = people.remove_member(pk, member=request.membership)
    messages.success(request, f"{user.name} no longer belongs to {request.tenant.name}.")
    return redirect("portal:members", tenant=request.tenant.slug)


# --- evidence --------------------------------------------------------------------------------


# The beginnings of actions, in the words of the filter.
EVIDENCE_KINDS = (
    ("run.", "Runs"),
    ("call.", "Tool calls"),
    ("packet.", "Packets and decisions"),
    ("publication.", "Publications"),
    ("contract.", "Contracts"),
    ("policy.", "Policies"),
    ("member.", "People"),
    ("passkey.", "Passkeys"),
    ("group.", "Groups"),
    ("delegation.", "Delegations"),
)


@require_GET
@tenant_view(Permission.AUDIT)
def evidence(request: TenantRequest) -> HttpResponse:
    """The audit log, newest first, and what of it to take home."""
    action = request.GET.get("action", "")
    if action not in dict(EVIDENCE_KINDS):
        action = ""
    page = Paginator(audit.newest_first(request.tenant, action), 50).get_page(
        request.GET.get("page")
    )
    context = {
        "page": page,
        "kinds": EVIDENCE_KINDS,
        "query": f"{urlencode({'action': action})}&" if action else "",
        "action": action,
        "keys": [key_id(each.public_key()) for each in signing_keys()],
    }
    return render(request, "portal/evidence.html", context)
