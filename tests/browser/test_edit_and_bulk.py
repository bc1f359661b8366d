"""Editing a call, void votes and many decisions at once, in a real browser and by keyboard."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from approvals.models import Decision, Packet
from tests.approvals.stages import in_force, outward_wants, rule
from tests.browser.stage import Stage
from tests.browser.test_stages import clean
from tests.visits import address_of
from tests.walk import Walk, parked_call

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_call_is_edited_by_keyboard_and_votes_are_void(
    walk: Walk, stage: Stage, width: int, scheme: str
) -> None:
    def asked() -> Packet:
        in_force(walk, rule('@needs("2")'))
        packet = walk.to_call()
        walk.decide(packet, walk.cast.ada)
        walk.lose_hops()
        return packet

    packet = stage.apart(asked)
    page = stage.page(
        walk.cast.bo,
        address_of(packet),
        viewport={"width": width, "height": 844},
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    page.keyboard.press("e")
    text = page.get_by_label("Arguments")
    expect(text).to_be_visible()
    clean(page)
    text.fill('{"title": 3}')
    page.get_by_role("button", name="Show what changes").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("do not fit this tool")).to_be_visible()
    expect(text).to_have_value('{"title": 3}')
    clean(page)
    text.fill('{"title": "The adder adds wrongly"}')
    page.get_by_role("button", name="Show what changes").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("What you change")).to_be_visible()
    clean(page)
    page.get_by_role("button", name="Put them in place").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("What the agent wrote, and what would run")).to_be_visible()
    expect(page.get_by_text("Argument `title` changed.")).to_be_visible()
    expect(page.locator("#standing")).to_contain_text("edited it")
    clean(page)
    second = Packet.objects.get(supersedes=packet)
    page.goto(address_of(packet))
    expect(page.get_by_text(f"Packet {second.number} followed this one")).to_be_visible()
    clean(page)


def low(walk: Walk, risk: str = "low") -> None:
    outward_wants(walk, f'@risk("{risk}")')


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_packets_are_selected_and_decided_at_once_by_keyboard(
    walk: Walk, stage: Stage, width: int, scheme: str
) -> None:
    def asked() -> list[Packet]:
        low(walk)
        return [parked_call(walk) for _ in range(3)]

    packets = stage.apart(asked)
    page = stage.page(
        walk.cast.ada,
        "/t/acme/queue/",
        viewport={"width": width, "height": 844},
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    expect(page.locator("[data-row]")).to_have_count(3)
    for key in "jxjx":
        page.keyboard.press(key)
    expect(page.get_by_text("2 packets selected")).to_be_visible()
    clean(page)
    page.keyboard.press("b")
    expect(page.get_by_role("heading", name="Decide 2 packets at once")).to_be_visible()
    clean(page)
    assert not Decision.objects.exists()
    page.get_by_role("button", name="Approve these 2").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="2 of 2 approved")).to_be_visible()
    clean(page)
    assert Decision.objects.filter(packet__in=packets).count() == 2


@pytest.mark.parametrize("width", [1280, 390])
def test_packets_are_selected_and_decided_at_once_without_script(
    walk: Walk, stage: Stage, width: int
) -> None:
    def asked() -> list[Packet]:
        low(walk)
        return [parked_call(walk) for _ in range(3)]

    packets = stage.apart(asked)
    size = {"width": width, "height": 844}
    page = stage.page(walk.cast.ada, "/t/acme/queue/", viewport=size, java_script_enabled=False)
    together = page.get_by_role("button", name="Decide the selected at once")
    together.click()
    expect(page.get_by_role("heading", name="No packet was picked")).to_be_visible()
    page.get_by_role("link", name="queue", exact=True).click()
    for packet in packets[:2]:
        page.get_by_label(f"Select packet {packet.number}").check()
    together.click()
    expect(page.get_by_role("heading", name="Decide 2 packets at once")).to_be_visible()
    assert not Decision.objects.exists()
    page.get_by_role("button", name="Approve these 2").click()
    expect(page.get_by_role("heading", name="2 of 2 approved")).to_be_visible()
    assert Decision.objects.filter(packet__in=packets[:2]).count() == 2


def test_D10_a_held_key_decides_nothing_and_high_risk_is_typed(walk: Walk, stage: Stage) -> None:
    """Thirty key events a second on a list, then on a packet: no decision without a second step."""

    def asked() -> list[Packet]:
        low(walk, "high")
        return [parked_call(walk) for _ in range(3)]

    packets = stage.apart(asked)
    page = stage.page(walk.cast.ada, "/t/acme/queue/")
    expect(page.locator("[data-row]")).to_have_count(3)
    page.keyboard.press("j")
    held = """(key) => { for (let at = 0; at < 60; at += 1) document.activeElement.dispatchEvent(
        new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true, repeat: at > 0})) }"""
    page.evaluate(held, "x")
    expect(page.get_by_text("1 packet selected")).to_be_visible()
    page.evaluate(held, "a")
    expect(page.locator("#decide")).to_be_visible()
    assert page.url.endswith("#decide")
    page.evaluate(held, "a")
    page.evaluate(held, "Enter")
    typed = page.locator("#typed")
    expect(typed).to_be_visible()
    assert not Decision.objects.exists()
    expect(page.get_by_text("Its rules call its risk high. Type")).to_be_visible()
    clean(page)
    for wrong in ("create_issue", "127.0.0.2"):
        typed.fill(wrong)
        expect(page.locator("[data-forward]")).to_be_disabled()
    typed.fill("127.0.0.1")
    page.locator("[data-forward]").click()
    expect(page.get_by_text("Approved.").first).to_be_visible()
    assert Decision.objects.filter(packet__in=packets).count() == 1
