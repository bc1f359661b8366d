"""Turn refusals into pages a person can act on, and keep pages of signed-in people private."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import cast

from django.conf import settings
from django.core.exceptions import (
    BadRequest,
    RequestDataTooBig,
    TooManyFieldsSent,
    TooManyFilesSent,
)
from django.db import DatabaseError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.views import defaults
from django_htmx.middleware import HtmxDetails

from portal.errors import BadInput, DatabaseAway, Refusal, TooLarge, TryAgain

Answer = Callable[[HttpRequest], HttpResponse]

# What a refusal's status means to the person, as the head of the page.
HEADS: dict[int, tuple[str, str]] = {
    400: ("That cannot be used", "triangle-alert"),
    403: ("Your roles do not allow this", "ban"),
    404: ("There is nothing here", "search"),
    409: ("Nothing was changed", "refresh-cw"),
    410: ("This is over", "clock"),
    413: ("That is too large", "triangle-alert"),
    422: ("That cannot be used", "triangle-alert"),
    503: ("The portal was busy", "hourglass"),
}


def asked_by_htmx(request: HttpRequest) -> bool:
    htmx = getattr(request, "htmx", None)
    return bool(htmx) and not cast(HtmxDetails, htmx).boosted


def refused(request: HttpRequest, refusal: Refusal) -> HttpResponse:
    """The page, or for htmx the fragment, of one refusal."""
    head, icon = HEADS.get(refusal.status, HEADS[409])
    template = "components/_refusal.html" if asked_by_htmx(request) else "portal/refusal.html"
    # Some refusals begin with what the head says already.
    text = str(refusal).removeprefix(f"{head}. ")
    context = {"refusal": refusal, "head": head, "sign": icon, "text": text}
    return render(request, template, context, status=refusal.status)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """What is too large or no form is refused before any view, and still gets a page."""
    if isinstance(exception, RequestDataTooBig | TooManyFieldsSent | TooManyFilesSent):
        return refused(request, TooLarge(limit=settings.DATA_UPLOAD_MAX_MEMORY_SIZE // 1_000_000))
    if isinstance(exception, BadRequest):
        # Django's own page would read the form once more, and fail at it once more.
        return refused(
            request,
            BadInput(reason="What was sent cannot be read as a form. Nothing was changed."),
        )
    return defaults.bad_request(request, exception)


class RefusalMiddleware:
    """Renders every `Refusal` once for the whole site; views do not catch them."""

    def __init__(self, get_response: Answer) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        # A fragment must not be replaced by the sign-in page; live.js says what happened.
        if (
            asked_by_htmx(request)
            and response.status_code == 302
            and response["Location"].startswith(settings.LOGIN_URL)
        ):
            response = HttpResponse(status=401)
        # What a signed-in person saw must not come back from a cache after they signed out. Told
        # by the cookie: who it is may be what the database does not answer.
        if settings.SESSION_COOKIE_NAME in request.COOKIES:
            response.headers.setdefault("Cache-Control", "no-store")
        return response

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if isinstance(exception, Refusal):
            return refused(request, exception)
        if isinstance(exception, OperationalError):
            if _was_busy(exception):
                try:
                    return refused(request, TryAgain())
                except DatabaseError:
                    pass  # it is more than that
            return away(request)
        return None


def _was_busy(error: OperationalError) -> bool:
    """Whether the database had other work, by its own code for that."""
    cause = error.__cause__
    lite = getattr(cause, "sqlite_errorcode", None)
    if lite is not None:
        return (lite & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    state = getattr(cause, "sqlstate", None) or ""
    # Rolled back for another one's sake, not available, and cancelled by the time limit.
    return state[:2] in ("40", "55") or state == "57014"


def away(request: HttpRequest) -> HttpResponse:
    """Without a shell: everything in it would ask the database."""
    head, icon = "The portal’s database is away", "hourglass"
    refusal = DatabaseAway()
    template = "components/_refusal.html" if asked_by_htmx(request) else "503.html"
    context = {
        "refusal": refusal,
        "head": head,
        "sign": icon,
        "text": str(refusal),
        "shell": {"home": "/"},
    }
    return HttpResponse(render_to_string(template, context), status=refusal.status)
