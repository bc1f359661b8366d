"""Handing over, deciding in a name and standing in, in a real browser: by keyboard, as it looks."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from approvals import delegation
from approvals.models import Decision, Delegation, Packet
from portal.handoff import Job
from portal.roles import Role
from tests.approvals.stages import SECURITY, TWO_HOURS, asked, passed
from tests.approvals.test_delegation import handed
from tests.browser.stage import Stage
from tests.browser.test_stages import clean
from tests.visits import address_of
from tests.walk import Walk, parked_call

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_an_absence_is_handed_over_and_ended_by_keyboard(
    walk: Walk, stage: Stage, width: int, scheme: str
) -> None:
    page = stage.page(
        walk.cast.ada,
        "/settings/",
        viewport={"width": width, "height": 844},
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    page.get_by_role("link", name="I am away from Acme").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Absence and delegation")).to_be_visible()
    clean(page)
    page.get_by_label("I am away until").fill(
        (timezone.now() + timedelta(days=4)).date().isoformat()
    )
    page.get_by_label("Who decides in my name").focus()
    page.keyboard.press("Enter")
    page.get_by_text("From a later day, or only for some packets").focus()
    page.keyboard.press("Enter")
    page.get_by_label("Publications").focus()
    page.keyboard.press("Space")
    clean(page)
    page.get_by_role("button", name="Hand over").focus()
    page.keyboard.press("Enter")
    row = page.get_by_role("row", name="Bo Lindqvist")
    expect(row).to_contain_text("publication")
    clean(page)
    row.get_by_role("button", name="End it").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Nobody decides for anybody else")).to_be_visible()
    expect(page.locator("#past")).to_contain_text("by Ada Obi")
    clean(page)
    assert Delegation.objects.get().ended_by_id == walk.cast.ada.user_id


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_a_delegate_decides_in_the_name(walk: Walk, stage: Stage, width: int, scheme: str) -> None:
    def begin() -> Packet:
        packet = asked(walk, '@needs("2")', '@remind("1h")', '@decide("4h")', '@execute("30m")')
        handed(walk.cast.ada, walk.cast.bo)
        passed(packet, hours=1)
        walk.deliver(Job.SWEEP_APPROVALS)
        return packet

    packet = stage.apart(begin)
    look = {
        "viewport": {"width": width, "height": 844},
        "color_scheme": scheme,
        "reduced_motion": "reduce",
    }
    page = stage.page(walk.cast.bo, "/t/acme/queue/", **look)
    expect(page.locator("#reminded")).to_contain_text("1 packet waits for you")
    expect(page.locator(".row-marks")).to_contain_text("for Ada Obi")
    clean(page)
    page.locator(".row-link").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#standing")).to_contain_text("You decide for Ada Obi until")
    page.get_by_label("You decide", exact=True).select_option(label="in the name of Ada Obi")
    clean(page)
    page.keyboard.press("a")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#votes")).to_contain_text("Bo Lindqvist for Ada Obi")
    clean(page)
    row = Decision.objects.get()
    assert (row.person_id, row.on_behalf_of_id) == (walk.cast.bo.user_id, walk.cast.ada.user_id)
    ada = stage.page(walk.cast.ada, address_of(packet), **look)
    expect(ada.locator("#standing")).to_contain_text("Bo Lindqvist has answered in your name.")
    clean(ada)


def test_who_may_stand_in_shows_while_the_page_is_open(walk: Walk, stage: Stage) -> None:
    walk.cast.member("Ria Reviewer", [Role.REVIEWER])
    packet = stage.apart(lambda: asked(walk, SECURITY, TWO_HOURS))
    page = stage.page(walk.cast.bo, address_of(packet))
    expect(page.locator("#need")).to_contain_text(
        "After 2 hours undecided, people of Owners may fill places too."
    )

    def late() -> None:
        passed(packet, hours=2)
        walk.deliver(Job.SWEEP_APPROVALS)

    stage.apart(late)
    expect(page.locator("#need")).to_contain_text("Nobody decided within 2 hours")
    expect(page.locator("#need")).to_contain_text("you count as Owners, standing in for Security")
    clean(page)


def test_the_form_comes_and_goes_with_the_right(walk: Walk, stage: Stage) -> None:
    """Somebody reads a packet while its right is handed to them, and while that ends."""
    dee = walk.cast.member("Dee Third", [Role.PUBLISHER])
    packet = parked_call(walk)
    page = stage.page(dee, address_of(packet))
    expect(page.locator("#standing")).to_contain_text("Deciding needs the role reviewer")
    expect(page.locator("#decision-form")).to_have_count(0)

    made = stage.apart(lambda: handed(walk.cast.ada, dee))
    expect(page.locator("#decision-form")).to_contain_text("You decide in the name of Ada Obi")
    clean(page)
    # At the form nothing is drawn anew, however often it changes meanwhile.
    comment = page.get_by_label("Comment")
    view = page.locator('[name="view"]').input_value()
    comment.focus()
    page.keyboard.type("Right ")
    stage.apart(lambda: handed(walk.cast.bo, dee))
    expect(page.locator("#standing")).to_contain_text("You decide for Bo Lindqvist")
    page.keyboard.type("title.")
    expect(comment).to_have_value("Right title.")
    expect(page.locator("#for")).to_have_count(0)
    # Whoever looks up gets both names, and has lost no word.
    comment.blur()
    expect(page.locator("#for option")).to_have_count(2)
    expect(comment).to_have_value("Right title.")
    # It is still the same reading.
    expect(page.locator('[name="view"]')).to_have_value(view)

    other = Delegation.objects.exclude(pk=made.pk).get()
    stage.apart(lambda: delegation.end(other.pk, member=walk.cast.bo))
    expect(page.locator("#for")).to_have_count(0)
    expect(page.locator("#decision-form")).to_contain_text("You decide in the name of Ada Obi")
    stage.apart(lambda: delegation.end(made.pk, member=walk.cast.ada))
    expect(page.locator("#decision-form")).to_have_count(0)
    expect(page.locator("#decide")).to_contain_text("Deciding needs the role reviewer")
    clean(page)
