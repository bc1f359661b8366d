"""Groups and stages in a real browser: by keyboard, light and dark, on a phone, and live."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from approvals.models import GroupMember, Packet
from portal import people
from portal.handoff import Job
from tests.approvals.stages import in_force, staged
from tests.browser.stage import Stage
from tests.visits import address_of
from tests.walk import Walk

pytestmark = pytest.mark.browser
GROUPS = "/t/acme/people/groups/"
NEEDS = "Needs one of Security and one of Owners"


def clean(page: Page) -> None:
    violations = Axe().run(page).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"][:160]) for each in violations] == []
    size = page.viewport_size
    assert size is not None
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_group_is_made_and_changed_by_keyboard(
    walk: Walk, stage: Stage, width: int, scheme: str
) -> None:
    page = stage.page(
        walk.cast.max,
        "/t/acme/people/",
        viewport={"width": width, "height": 844},
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    page.get_by_role("link", name="Groups").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("There is no group yet")).to_be_visible()
    page.get_by_label("Name", exact=True).fill("Security")
    page.get_by_label("Short name in rules").fill("Security!")
    page.get_by_label("Ada Obi, reviewer, publisher").focus()
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Use small letters, digits and hyphens, at most 40.")).to_be_visible()
    expect(page.get_by_label("Ada Obi, reviewer, publisher")).to_be_checked()
    clean(page)
    page.get_by_label("Short name in rules").fill("security")
    page.keyboard.press("Enter")
    expect(page.get_by_role("row", name="Security")).to_contain_text("Ada Obi")
    clean(page)

    page.get_by_role("link", name="Change the group Security").focus()
    page.keyboard.press("Enter")
    row = page.locator("#group-security")
    row.get_by_label("Bo Lindqvist, reviewer, publisher").focus()
    page.keyboard.press("Space")
    clean(page)
    page.get_by_role("button", name="Keep Security like this").focus()
    page.keyboard.press("Enter")
    expect(row).to_contain_text("Ada Obi, Bo Lindqvist")
    assert GroupMember.objects.filter(group__handle="security").count() == 2


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_stages_as_people_meet_them(walk: Walk, stage: Stage, width: int, scheme: str) -> None:
    def asked() -> Packet:
        staged(walk)
        in_force(walk)
        packet = walk.to_call()
        walk.lose_hops()
        return packet

    packet = stage.apart(asked)
    look = {
        "viewport": {"width": width, "height": 844},
        "color_scheme": scheme,
        "reduced_motion": "reduce",
    }
    bo = stage.page(walk.cast.bo, "/t/acme/queue/", **look)
    expect(bo.locator(".row-need")).to_have_text(f"{NEEDS}; you count as Owners.")
    clean(bo)
    bo.locator(".row-link").focus()
    bo.keyboard.press("Enter")
    expect(bo.locator("#need")).to_have_text(f"{NEEDS}; you count as Owners.")
    clean(bo)

    # Somebody else's vote shows while the page is open.
    stage.apart(lambda: walk.decide(packet, walk.cast.ada))
    expect(bo.locator("#need")).to_have_text(
        f"{NEEDS}; one of Owners is still missing; you count as Owners."
    )
    expect(bo.locator("#votes")).to_contain_text("for Security")

    # Nobody is left: the page and the admin's queue say so.
    def leave() -> None:
        people.remove_member(walk.cast.ada.pk, member=walk.cast.max)
        walk.deliver(Job.SWEEP_QUORUMS)

    stage.apart(leave)
    bo.goto(address_of(packet))
    expect(bo.get_by_text("Nobody can approve this as things are.")).to_be_visible()
    clean(bo)
    admin = stage.page(walk.cast.max, "/t/acme/queue/", **look)
    expect(admin.get_by_text("A rule waits for approvals that cannot come.")).to_be_visible()
    clean(admin)
    admin.get_by_role("link", name="http-needs-stages").click()
    expect(admin.locator("#rule-http-needs-stages")).to_contain_text(
        "needs one of the group security and one of the group owners"
    )
    clean(admin)
