"""Writing a policy and deciding on it in a real browser: by keyboard, and without script."""

from __future__ import annotations

import re

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from approvals.models import Packet, PolicyVersion
from approvals.states import Verdict
from portal.roles import Role
from tests.approvals.test_policies import LENIENT
from tests.browser.stage import Stage
from tests.walk import Walk

pytestmark = pytest.mark.browser
NEW = "/t/acme/policies/new/"
SENTENCE = (
    "Of 2 packets in 90 days it would have allowed 2, asked 0, denied 0; 1 of the 2 was denied"
)


def history(walk: Walk) -> Packet:
    """Two calls that people answered; returns the one they denied."""
    denied, approved = walk.to_call(), walk.to_call()
    walk.decide(denied, verdict=Verdict.DENY)
    walk.decide(approved)
    walk.lose_hops()
    return denied


def clean(page: Page) -> None:
    violations = Axe().run(page).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"][:160]) for each in violations] == []
    size = page.viewport_size
    assert size is not None
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    button = page.locator(".try > .btn").bounding_box()
    form = page.locator(".try").bounding_box()
    assert button is not None
    assert form is not None
    assert button["x"] + button["width"] <= form["x"] + form["width"] + 1


@pytest.mark.parametrize("width", [1280, 390])
def test_a_policy_is_written_tried_and_put_in_force(walk: Walk, stage: Stage, width: int) -> None:
    denied = stage.apart(lambda: history(walk))
    size = {"width": width, "height": 844}
    page = stage.page(walk.cast.max, NEW, viewport=size, reduced_motion="reduce")
    text = page.get_by_label("The policy")

    # A misspelt word: its place, and what was meant. By keyboard.
    text.fill(LENIENT.replace("context.declared", "context.declard"))
    page.get_by_role("button", name="Show what it changes").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text(
        re.compile(r"Line 7, column 18.*no fact `declard`. Did you mean `declared`?")
    )
    clean(page)

    # Mended: what it changes, and what it would have changed.
    text.fill(LENIENT)
    page.get_by_role("button", name="Show what it changes").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text="packets")).to_contain_text(SENTENCE)
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator("#draft h2").first).to_be_focused()
    link = page.get_by_role("link", name=f"Packet {denied.number}").first
    expect(link).to_have_attribute("href", f"/t/acme/packets/{denied.public_id}/")
    clean(page)
    assert not PolicyVersion.objects.filter(tenant=walk.cast.acme, number=2).exists()

    page.get_by_label("What changes, and why").fill("Issues are harmless.")
    page.get_by_role("button", name="Store and ask for approval").click()
    expect(page.get_by_text("It waits for a tenant admin who did not write it.")).to_be_visible()

    # The second person sees the same, without asking for it.
    mia = walk.cast.member("Mia Second", [Role.ADMIN])
    other = stage.page(mia, "/t/acme/policies/2/", viewport=size, reduced_motion="reduce")
    expect(other.get_by_text("Issues are harmless.").first).to_be_visible()
    expect(other.get_by_role("status").filter(has_text="packets")).to_contain_text(SENTENCE)
    other.get_by_label("Tried on").select_option("7")
    expect(other.get_by_text("Of 2 packets in 7 days")).to_be_visible()
    clean(other)
    other.get_by_role("button", name="Approve and put in force").click()
    expect(other.get_by_text("In force").first).to_be_visible()
    assert PolicyVersion.objects.get(number=2, tenant=walk.cast.acme).state == "in_force"


def test_all_of_it_goes_without_script(walk: Walk, stage: Stage) -> None:
    stage.apart(lambda: history(walk))
    page = stage.page(walk.cast.max, NEW, java_script_enabled=False)
    page.get_by_label("The policy").fill(LENIENT)
    page.get_by_label("What changes, and why").fill("Less to read.")
    page.get_by_role("button", name="Show what it changes").click()
    expect(page.get_by_text(SENTENCE)).to_be_visible()
    expect(page.get_by_label("What changes, and why")).to_have_value("Less to read.")
    page.get_by_role("button", name="Store and ask for approval").click()
    page.get_by_role("button", name="Replay it").click()
    expect(page.get_by_text(SENTENCE)).to_be_visible()

    # Back to what was in force before, which somebody else has to put in force as well.
    mia = walk.cast.member("Mia Second", [Role.ADMIN])
    other = stage.page(mia, "/t/acme/policies/2/", java_script_enabled=False)
    other.get_by_role("button", name="Approve and put in force").click()
    page.goto("/t/acme/policies/1/")
    page.get_by_role("button", name="Propose this text again").click()
    expect(page.get_by_text("Back to version 1.").first).to_be_visible()
    expect(page.get_by_text("It waits for a tenant admin who did not write it.")).to_be_visible()
