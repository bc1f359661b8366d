"""Passkeys in Chromium, with its virtual authenticator: added, used, lost."""

from __future__ import annotations

import re
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import CDPSession, Page, expect

from portal.models import Membership, Passkey
from portal.signin import make_link
from tests.browser.stage import Stage
from tests.walk import Walk

pytestmark = pytest.mark.browser


def authenticator(page: Page, **options: object) -> tuple[CDPSession, str]:
    """A device that holds keys for this page and verifies its holder at once."""
    session = page.context.new_cdp_session(page)
    session.send("WebAuthn.enable")
    kind = {
        "protocol": "ctap2",
        "transport": "internal",
        "hasResidentKey": True,
        "hasUserVerification": True,
        "isUserVerified": True,
        "automaticPresenceSimulation": True,
        **options,
    }
    made = session.send("WebAuthn.addVirtualAuthenticator", {"options": kind})
    return session, made["authenticatorId"]


def signed_in(stage: Stage, member: Membership, **options: Any) -> Page:
    """A page of that person, who has signed in just now by a link."""
    page = stage.context(None, base_url=stage.named_url, **options).new_page()
    page.goto(make_link(member.user))
    page.get_by_role("button", name=re.compile("^Sign in as")).click()
    page.wait_for_url(lambda url: "/signin/" not in url)
    return page


def add_passkey(page: Page, name: str) -> None:
    page.goto("/settings/passkeys/")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Add a passkey").press("Enter")


def codes_on(page: Page) -> list[str]:
    expect(page.get_by_role("heading", name="Your recovery codes")).to_be_visible()
    return page.locator(".codes code").all_text_contents()


def test_a_person_adds_a_passkey_loses_it_and_adds_another(walk: Walk, stage: Stage) -> None:
    page = signed_in(stage, walk.cast.ada)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    session, device = authenticator(page)
    page.goto("/settings/")
    page.get_by_role("link", name="Your passkeys").click()
    add_passkey(page, "Laptop")
    codes = codes_on(page)
    assert len(codes) == 8
    assert Axe().run(page).response["violations"] == []
    page.get_by_role("link", name="I have kept them").click()
    expect(page.locator("#passkeys tbody tr")).to_contain_text("Laptop")
    # The same device is not added twice.
    add_passkey(page, "Laptop again")
    expect(page.locator("#add [data-said]")).to_contain_text("on your account already")

    # Another time, another session: the key is asked for.
    later = stage.context(walk.cast.ada, base_url=stage.named_url).new_page()
    credentials = session.send("WebAuthn.getCredentials", {"authenticatorId": device})
    other, second = authenticator(later)
    later.goto("/settings/passkeys/")
    expect(later.get_by_role("button", name="Add a passkey")).to_have_count(0)
    later.get_by_role("button", name="Use a passkey").click()
    expect(later.locator("#prove [data-said]")).to_contain_text("none of yours")
    for each in credentials["credentials"]:
        other.send("WebAuthn.addCredential", {"authenticatorId": second, "credential": each})
    later.get_by_role("button", name="Use a passkey").press("Enter")
    expect(later.get_by_role("button", name="Add a passkey")).to_be_visible()
    assert Passkey.objects.get().last_used_at is not None

    # And another one without any device: a recovery code lets the lost key go.
    lost = stage.context(walk.cast.ada, base_url=stage.named_url).new_page()
    authenticator(lost)
    lost.goto("/settings/passkeys/")
    lost.get_by_label("Is the key lost?").fill(codes[3].lower())
    lost.get_by_role("button", name="Use this code").click()
    lost.locator("summary", has_text="Remove").click()
    lost.get_by_role("button", name="Remove Laptop").click()
    expect(lost.get_by_text("You have none yet.")).to_be_visible()
    assert [each for each in complaints if each.startswith(("error", "warning"))] == []


def test_without_script_the_page_says_what_is_missing(walk: Walk, stage: Stage) -> None:
    page = signed_in(stage, walk.cast.ada, java_script_enabled=False)
    page.goto("/settings/passkeys/")
    expect(page.locator("#add")).to_contain_text("needs JavaScript")
    expect(page.get_by_role("button", name="Add a passkey")).to_be_hidden()
