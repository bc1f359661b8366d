"""A person's passkeys: the list, adding and removing, recovery codes, proving who one is."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_POST

from portal import passkey_account, passkeys
from portal.errors import BadInput, Refusal
from portal.models import User


def _page(request: HttpRequest, *, refusal: Refusal | None = None, name: str = "") -> HttpResponse:
    user = cast(User, request.user)
    context: dict[str, Any] = {
        "keys": passkeys.passkeys_of(user),
        "codes_left": passkey_account.codes_left(user),
        "codes": passkey_account.CODES,
        "proved": passkey_account.is_proved(request.session, user),
        "place": passkeys.place(f"{request.scheme}://{request.get_host()}"),
        "refusal": refusal,
        "name": name,
    }
    return render(
        request, "portal/passkeys.html", context, status=refusal.status if refusal else 200
    )


@login_required
@require_GET
def passkey_list(request: HttpRequest) -> HttpResponse:
    return _page(request)


@require_POST
@login_required
def begin(request: HttpRequest) -> HttpResponse:
    """What the browser is asked to make."""
    user = cast(User, request.user)
    passkey_account.demand_proof(request.session, user)
    return JsonResponse(passkey_account.creation_options(user))


@require_POST
@login_required
def add(request: HttpRequest) -> HttpResponse:
    """Keep what it made. With the first one come the recovery codes, shown this once."""
    user = cast(User, request.user)
    passkey_account.demand_proof(request.session, user)
    name = request.POST.get("name", "")
    try:
        answer = passkeys.answer_of(request.POST.get("passkey", ""))
        codes = passkey_account.add_passkey(user, name, answer)
    except (BadInput, passkeys.PasskeyRefused) as refusal:
        return _page(request, refusal=refusal, name=name[:60])
    # Whoever has just used a key need not use it once more to add the next one.
    passkey_account.note_proof(request.session, "passkey")
    if codes:
        return render(request, "portal/passkey_codes.html", {"codes": codes, "first": True})
    messages.success(request, "The passkey was added.", extra_tags="done")
    return redirect("portal:passkeys")


@require_POST
@login_required
def remove(request: HttpRequest, pk: int) -> HttpResponse:
    user = cast(User, request.user)
    passkey_account.demand_proof(request.session, user)
    removed = passkey_account.remove_passkey(user, pk)
    messages.success(request, f"The passkey “{removed.name}” was removed.", extra_tags="done")
    return redirect("portal:passkeys")


@require_POST
@login_required
def codes(request: HttpRequest) -> HttpResponse:
    """New recovery codes in place of the earlier ones, shown this once."""
    user = cast(User, request.user)
    passkey_account.demand_proof(request.session, user)
    made = passkey_account.new_codes(user)
    return render(request, "portal/passkey_codes.html", {"codes": made, "first": False})


@require_POST
@login_required
def ask(request: HttpRequest) -> HttpResponse:
    """What the browser is asked to sign, to prove that it is oneself."""
    user = cast(User, request.user)
    nonce = passkeys.new_nonce(user, passkeys.Purpose.PROVE)
    return JsonResponse(passkeys.request_options(user, nonce))


@sensitive_post_parameters("password", "code")
@require_POST
@login_required
def prove(request: HttpRequest) -> HttpResponse:
    """By a passkey, by a recovery code, or by the password while there is no key."""
    user = cast(User, request.user)
    password, code = request.POST.get("password", ""), request.POST.get("code", "")
    try:
        if code:
            passkey_account.prove_by_code(request.session, user, code[:100])
        elif password:
            passkey_account.prove_by_password(request.session, user, password)
        elif request.POST.get("passkey"):
            answer = passkeys.answer_of(request.POST["passkey"])
            passkey_account.prove_by_passkey(request.session, user, answer)
        else:
            raise BadInput(reason="The form holds no passkey, no code and no password.")
    except Refusal as refusal:
        return _page(request, refusal=refusal)
    return redirect("portal:passkeys")
