"""Addresses and cookies that no page of the portal made: a word of refusal, never a failure."""

from __future__ import annotations

import pytest
from django.urls import reverse

from tests.visits import Visitor
from tests.walk import Walk

DIGITS = "1" * 5000
NO_CALENDAR = "2026-99-99T99:99:99Z"
FIRST_MOMENT = "0001-01-01T00:00:00+23:59"
LAST_MOMENT = "9999-12-31T23:59:59-23:59"


@pytest.mark.parametrize(
    "after",
    [
        *(f"{moment}~1" for moment in (NO_CALENDAR, FIRST_MOMENT, LAST_MOMENT)),
        *(f"2026-01-01T00:00:00Z~{key}" for key in (DIGITS, "-1", "²", "")),
        *("2026-01-01T00:00:00~1", "~", "\x00~\x00"),
    ],
)
def test_a_place_in_the_queue_that_is_none_is_its_beginning(walk: Walk, after: str) -> None:
    visitor = Visitor(walk.cast.ada)
    page = visitor.client.get(reverse("approvals:queue", args=["acme"]), {"after": after})
    assert page.status_code == 200


@pytest.mark.parametrize("since", [NO_CALENDAR, "2026-02-30T00:00:00+00:00", FIRST_MOMENT])
def test_a_moment_that_is_none_is_refused(walk: Walk, since: str) -> None:
    visitor = Visitor(walk.cast.ada)
    page = visitor.client.get(reverse("approvals:queue_news", args=["acme"]), {"since": since})
    assert page.status_code == 400


@pytest.mark.both_databases
@pytest.mark.parametrize("key", ["\\000aaaaaaaaaaaaaaaa", "short", "'; --", "\\303\\251" * 9])
def test_a_cookie_that_is_no_key_is_nobody(walk: Walk, key: str) -> None:
    stranger = Visitor()
    headers = {"cookie": f'imprimatur="{key}"'}
    assert stranger.client.get(reverse("portal:sign_in"), headers=headers).status_code == 200
    assert stranger.client.get(reverse("portal:tenants"), headers=headers).status_code == 302


@pytest.mark.parametrize("htmx", [False, True])
@pytest.mark.parametrize("charset", ["utf-16", "utf-16-le", "utf-7"])
def test_a_form_in_another_alphabet_is_refused(walk: Walk, charset: str, htmx: bool) -> None:
    visitor = Visitor(walk.cast.ada, csrf=True)
    assert visitor.get(reverse("portal:settings")).status_code == 200
    page = visitor.client.generic(
        "POST",
        reverse("portal:settings"),
        b"theme=dark",
        f"application/x-www-form-urlencoded; charset={charset}",
        headers={"HX-Request": "true"} if htmx else None,
    )
    assert page.status_code == 400
    assert "cannot be read as a form" in page.content.decode()
