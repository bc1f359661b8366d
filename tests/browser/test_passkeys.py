"""Passkeys in Chromium, with its virtual authenticator: added, lost, and signing decisions."""

from __future__ import annotations

import re
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import CDPSession, Page, expect

from approvals import signing
from approvals.models import Decision, Packet
from approvals.states import PacketState
from portal.models import Membership, Passkey
from portal.signin import make_link
from tests.approvals.test_passkey_decisions import in_force
from tests.browser.stage import Stage
from tests.softkeys import SoftKey
from tests.visits import address_of
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


# --- deciding -----------------------------------------------------------------------------------


def to_packet(walk: Walk) -> Packet:
    """The open packet of a call that is approved with a passkey."""
    in_force(walk)
    return walk.to_call()


def test_an_approval_is_signed_by_keyboard_alone(walk: Walk, stage: Stage) -> None:
    packet = stage.apart(lambda: to_packet(walk))
    page = signed_in(stage, walk.cast.ada)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    authenticator(page)
    # Without a key the page leads to where one is added, and back.
    page.goto(address_of(packet))
    approve = page.locator('[data-answer="approve"]')
    expect(approve).to_have_attribute("aria-disabled", "true")
    expect(page.get_by_text("Approving takes a passkey, and you have none yet")).to_be_visible()
    assert Axe().run(page).response["violations"] == []
    page.get_by_role("link", name="add one").click()
    add_passkey(page, "Laptop")
    codes_on(page)

    page.goto(address_of(packet))
    expect(page.get_by_text("Your passkey is asked for")).to_be_visible()
    expect(page.get_by_text("Approving takes a passkey", exact=True)).to_be_visible()
    page.keyboard.press("a")
    expect(page.locator("dialog#confirm")).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_text("What came of it")).to_be_visible()
    assert walk.fresh(packet).state == PacketState.APPROVED
    signed = Decision.objects.get()
    assert signing.fault(signed) == ""
    assert (signed.signature or {})["origin"] == stage.named_url
    expect(page.locator("#votes")).to_contain_text("signed with a passkey")
    assert [each for each in complaints if each.startswith(("error", "warning"))] == []
    stage.apart(walk.sweep)
    assert len(walk.tracker.requests) == 1


def test_a_signature_that_did_not_come_is_said_and_nothing_is_decided(
    walk: Walk, stage: Stage
) -> None:
    packet = stage.apart(lambda: to_packet(walk))
    page = signed_in(stage, walk.cast.ada)
    session, device = authenticator(page)
    add_passkey(page, "Laptop")
    codes_on(page)
    page.goto(address_of(packet))
    page.get_by_label("Comment").fill("As discussed.")
    session.send("WebAuthn.setUserVerified", {"authenticatorId": device, "isUserVerified": False})
    approve = page.locator('[data-answer="approve"]')
    approve.click()
    said = page.locator("#needs-words")
    expect(said).to_contain_text("The passkey was not used")
    assert walk.fresh(packet).state == PacketState.OPEN
    # Denying takes no passkey; nor does a reload lose the words.
    page.reload()
    expect(page.get_by_label("Comment")).to_have_value("As discussed.")
    # Somebody else was faster meanwhile: said before the browser asks for anything.
    session.send("WebAuthn.setUserVerified", {"authenticatorId": device, "isUserVerified": True})
    Passkey.objects.all().delete()
    approve.click()
    expect(said).to_contain_text("You have no passkey yet")
    page.locator('[data-answer="deny"]').click()
    expect(page.get_by_text("What came of it")).to_be_visible()
    assert walk.fresh(packet).state == PacketState.DENIED


def test_without_script_approving_is_refused_and_denying_is_not(walk: Walk, stage: Stage) -> None:
    packet = stage.apart(lambda: to_packet(walk))
    SoftKey().kept_by(walk.cast.ada.user)
    page = signed_in(stage, walk.cast.ada, java_script_enabled=False)
    page.goto(address_of(packet))
    expect(page.locator("#why")).to_contain_text("Approving needs JavaScript here")
    page.locator('[data-answer="approve"]').click()
    expect(page.locator("#refusal")).to_contain_text("only the browser can ask for")
    assert walk.fresh(packet).state == PacketState.OPEN
    page.get_by_label("Comment").fill("Not without a key.")
    page.locator('[data-answer="deny"]').click()
    expect(page.get_by_text("What came of it")).to_be_visible()
