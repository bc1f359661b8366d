"""The diff in a real browser: what stands around a change, and the keys through it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from approvals.models import Candidate
from tests.approvals.test_contents import candidate_of_long, index_of
from tests.browser.stage import Stage
from tests.browser.test_live_packet import clean
from tests.walk import Walk

pytestmark = pytest.mark.browser


def where(candidate: Candidate) -> str:
    return f"/t/acme/candidates/{candidate.public_id}/"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_what_stands_around_a_change_comes_in_steps_and_whole(
    walk: Walk, stage: Stage, width: int, scheme: str
) -> None:
    candidate = stage.apart(lambda: candidate_of_long(walk, 50, 77))
    at = index_of(candidate, "long.txt")
    look = {
        "viewport": {"width": width, "height": 844},
        "color_scheme": scheme,
        "reduced_motion": "reduce",
    }
    page: Page = stage.page(walk.cast.ada, where(candidate), **look)
    file = page.locator(f"#file-{at}")
    expect(file.locator("tr.hunk")).to_have_count(3)
    file.locator("tr.hunk").first.get_by_text("Show 20", exact=True).click()
    expect(file.locator(f"#f{at}n27")).to_have_count(1)
    expect(file.locator(f"#f{at}n26")).to_have_count(0)
    expect(file.locator("tr.hunk").first).to_contain_text("26 unchanged lines not shown")
    file.locator("tr.hunk").last.get_by_text("Show all", exact=True).click()
    expect(file.locator(f"#f{at}n100")).to_have_count(1)
    expect(file.locator("tr.hunk")).to_have_count(2)
    clean(page)

    file.get_by_role("link", name="Whole file of long.txt").click()
    expect(file.locator("tr td:nth-child(2)[id]")).to_have_count(100)
    clean(page)
    page.keyboard.press("[")
    file.get_by_role("link", name="Only changes of long.txt").click()
    expect(file.locator("tr.hunk")).to_have_count(3)


def test_keys_go_from_change_to_change_and_from_file_to_file(walk: Walk, stage: Stage) -> None:
    candidate = stage.apart(lambda: candidate_of_long(walk, 12, 50, 77))
    at = index_of(candidate, "long.txt")
    page = stage.page(walk.cast.ada, where(candidate), viewport={"width": 1280, "height": 300})

    def top(selector: str) -> float:
        return float(page.locator(selector).first.evaluate("n => n.getBoundingClientRect().top"))

    page.keyboard.press("]")
    assert abs(top(f"#file-{at}") - 96) < 2
    hunks = [f"#file-{at} tr.hunk >> nth={each}" for each in range(3)]
    seen = []
    for _ in range(8):
        page.keyboard.press("n")
        seen += [each for each, hunk in enumerate(hunks) if abs(top(hunk) - 96) < 2]
    assert seen == [0, 1, 2]
    page.keyboard.press("p")
    assert top(hunks[2]) > 0
    page.keyboard.press("w")
    expect(
        page.get_by_text("Lines that differ only in blanks are drawn as unchanged.")
    ).to_be_visible()
    page.keyboard.press("s")
    expect(page.locator("table.diff.split").first).to_be_visible()
    expect(
        page.get_by_text("Lines that differ only in blanks are drawn as unchanged.")
    ).to_be_visible()


def test_a_file_is_ticked_by_key_and_the_tick_outlives_the_tab(walk: Walk, stage: Stage) -> None:
    candidate = stage.apart(lambda: candidate_of_long(walk))
    at = index_of(candidate, "long.txt")
    page = stage.page(walk.cast.ada, where(candidate), viewport={"width": 1280, "height": 300})
    page.keyboard.press("]")
    page.keyboard.press("v")
    expect(page.locator("#seen-meter")).to_have_text("1 of 3 files seen")
    expect(page.locator(f"[data-tree='{at}']")).to_have_class("is-seen")
    clean(page)
    again = stage.page(walk.cast.ada, where(candidate))
    expect(again.get_by_role("checkbox", name="Seen long.txt")).to_be_checked()

    # What the portal did not hear is not shown as remembered.
    again.route("**/seen/", lambda route: route.abort())
    again.get_by_role("checkbox", name="Seen long.txt").click()
    expect(again.get_by_role("checkbox", name="Seen long.txt")).to_be_checked()
    expect(again.locator(f"[data-tree='{at}']")).to_have_class("is-seen")
