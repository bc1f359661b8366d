"""An approval that is held, in two browsers at once: seen live, undone by keyboard."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import expect

from approvals.models import Packet
from tests.browser.stage import Stage
from tests.visits import address_of
from tests.walk import Walk, call_of

pytestmark = pytest.mark.browser


def waiting(walk: Walk) -> Packet:
    walk.hold_policy()
    return walk.to_call()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_held_approval_is_seen_live_and_undone_by_keyboard(
    walk: Walk, stage: Stage, width: int, scheme: str
) -> None:
    packet = stage.apart(lambda: waiting(walk))
    look = {"viewport": {"width": width, "height": 844}, "color_scheme": scheme}
    mine = stage.page(walk.cast.ada, address_of(packet), reduced_motion="reduce", **look)
    other = stage.page(walk.cast.bo, address_of(packet), reduced_motion="reduce", **look)
    expect(other.locator("#decision-form")).to_be_visible()

    mine.keyboard.press("a")
    mine.keyboard.press("Tab")  # the second look begins on the safe button
    mine.keyboard.press("Enter")
    for page in (mine, other):
        expect(page.locator("#packet-chip")).to_contain_text("Approved, not in effect yet")
        expect(page.locator("#packet-outcome")).to_contain_text("nothing of it happens")
        expect(page.locator("#decision-form")).to_have_count(0)
    violations = Axe().run(other).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"][:160]) for each in violations] == []
    assert other.evaluate("document.documentElement.scrollWidth") <= width

    other.get_by_label("Why").focus()
    other.keyboard.type("It is the wrong title.")
    other.keyboard.press("Tab")
    other.keyboard.press("Enter")
    expect(other.locator("#decision-form")).to_be_visible()
    expect(mine.locator("#packet-outcome")).to_contain_text("taken back before it took effect")
    expect(mine.locator("#decision-form")).to_be_visible()
    assert stage.apart(lambda: call_of(packet).state) == "waiting"
