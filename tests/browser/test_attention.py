"""What a reader is told of their own reading, in a real browser."""

from __future__ import annotations

import re

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from approvals.models import Decision
from tests.browser.stage import Stage
from tests.cast import REPAIR, call
from tests.visits import address_of
from tests.walk import Walk, parked_call

pytestmark = pytest.mark.browser


def clean(page: Page) -> None:
    violations = Axe().run(page).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"][:160]) for each in violations] == []
    size = page.viewport_size
    assert size is not None
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_hunks_on_screen_are_counted_told_and_kept(
    walk: Walk, stage: Stage, width: int, scheme: str
) -> None:
    files = [
        call(
            f"file-{number}",
            "apply_patch",
            patch=[
                "*** Begin Patch",
                f"*** Add File: repo/more-{number}.txt",
                *(f"+line {each}" for each in range(60)),
                "*** End Patch",
            ],
        )
        for number in range(3)
    ]
    packet = stage.apart(lambda: walk.to_review([*REPAIR[:2], files, *REPAIR[2:]]))
    look = {
        "viewport": {"width": width, "height": 844},
        "color_scheme": scheme,
        "reduced_motion": "reduce",
    }
    page = stage.page(walk.cast.ada, address_of(packet), **look)
    line = page.locator("[data-attention]")
    # Nothing of the diff is in sight yet, and the page says so.
    expect(line).to_have_text(re.compile(r"^\d+ s on this page; 0 of 4 hunks were on screen$"))
    page.locator("article.file").nth(1).scroll_into_view_if_needed()
    page.locator("article.file tr.hunk").nth(1).scroll_into_view_if_needed()
    expect(line).to_have_text(re.compile(r"[12] of 4 hunks were on screen$"))
    clean(page)
    seen = page.evaluate(
        "JSON.parse(sessionStorage.getItem('read:' + "
        "document.getElementById('decision-form').dataset.digest)).seen.length"
    )
    # On another part of the same packet neither what was read nor the time is forgotten.
    page.wait_for_timeout(2000)
    page.locator(".tabs").get_by_role("link", name="Receipts").click()
    expect(page.get_by_role("heading", name="Receipts")).to_be_visible()
    expect(line).to_have_text(re.compile(rf"{seen} of 4 hunks were on screen$"))
    page.locator('[data-answer="approve"]').click()
    if page.locator("dialog#confirm").is_visible():
        page.locator("dialog#confirm [data-forward]").click()
    own = page.locator("#own-attention")
    expect(own).to_contain_text(f"{seen} of 4 hunks were on screen.")
    found = Decision.objects.get(packet=packet).attention
    assert found is not None
    claimed = found["claimed"]
    assert (claimed["hunks"], claimed["of"], claimed["whole"]) == (seen, 4, True)
    assert found["ms"] >= 2000
    assert 2000 <= claimed["visible_ms"] <= found["ms"] + 1000
    own.get_by_role("link", name="My decisions").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="My decisions")).to_be_visible()
    expect(page.get_by_text(f"{seen} of 4 hunks were on screen")).to_be_visible()
    clean(page)


def test_coming_back_later_begins_a_view_of_its_own(walk: Walk, stage: Stage) -> None:
    packet = parked_call(walk)
    page = stage.page(walk.cast.ada, address_of(packet))
    first = page.locator('[name="view"]').input_value()
    page.goto("/t/acme/queue/")
    page.locator(".row-link").click()
    expect(page.locator("[data-attention]")).to_contain_text("on this page")
    assert page.locator('[name="view"]').input_value() != first
