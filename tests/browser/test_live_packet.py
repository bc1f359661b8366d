"""Several people at one packet, in real browsers: who looks, what happens, and what a key does."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from approvals.models import Decision, Packet
from approvals.states import PacketState, Verdict
from portal.roles import Role
from tests.approvals.stages import in_force, outward_wants, rule
from tests.browser.stage import Stage
from tests.visits import address_of
from tests.walk import Walk, parked_call

pytestmark = pytest.mark.browser


def clean(page: Page) -> None:
    violations = Axe().run(page).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"][:160]) for each in violations] == []
    size = page.viewport_size
    assert size is not None
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


def focused(page: Page) -> str:
    return str(
        page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()")
    )


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_two_people_at_one_packet(walk: Walk, stage: Stage, width: int, scheme: str) -> None:
    def asked() -> Packet:
        walk.cast.member("Dee Third", [Role.PUBLISHER])
        in_force(walk, rule('@needs("2") @hold("15m")'))
        packet = walk.to_call()
        walk.lose_hops()
        return packet

    packet = stage.apart(asked)
    look = {
        "viewport": {"width": width, "height": 844},
        "color_scheme": scheme,
        "reduced_motion": "reduce",
    }
    ada = stage.page(walk.cast.ada, address_of(packet), **look)
    expect(ada.get_by_text("live", exact=True)).to_be_visible()
    expect(ada.locator("#packet-here")).to_be_empty()
    bo = stage.page(walk.cast.bo, address_of(packet), **look)
    expect(ada.locator("#packet-here")).to_have_text("Bo Lindqvist also here")
    expect(bo.locator("#packet-here")).to_have_text("Ada Obi also here")
    bo.close()
    expect(ada.locator("#packet-here")).to_be_empty()

    stage.apart(lambda: walk.decide(packet, walk.cast.bo))
    expect(ada.locator("#packet-news")).to_contain_text(
        "Since you opened it: Bo Lindqvist approved"
    )
    clean(ada)
    stage.apart(lambda: walk.decide(packet, walk.cast.ada))  # in another tab
    expect(ada.locator("#packet-news")).to_contain_text("it is held until")
    expect(ada.locator("#decision-form")).to_have_count(0)
    # The slim line of a phone leads to nothing any more.
    expect(ada.locator(".decision-jump")).to_have_count(0)
    clean(ada)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_a_row_that_stands_still_says_that_it_changed(
    walk: Walk, stage: Stage, width: int, scheme: str
) -> None:
    def asked() -> list[Packet]:
        outward_wants(walk, '@needs("3")')
        return [parked_call(walk) for _ in range(2)]

    dee = walk.cast.member("Dee Third", [Role.REVIEWER])
    packet, other = stage.apart(asked)
    look = {
        "viewport": {"width": width, "height": 844},
        "color_scheme": scheme,
        "reduced_motion": "reduce",
    }
    page = stage.page(walk.cast.ada, address_of(packet), **look)
    page.goto("/t/acme/queue/")
    row = page.locator(f"#packet-{packet.public_id}")
    expect(row).to_be_visible()
    places = "[...document.querySelectorAll('.row')].map((row) => row.getBoundingClientRect().top)"
    before = page.evaluate(places)
    stage.apart(lambda: [walk.decide(each, walk.cast.bo) for each in (packet, other)])
    expect(row).to_contain_text("since you looked: Bo Lindqvist approved")
    expect(page.locator(f"#packet-{other.public_id}")).not_to_contain_text("since you looked")
    assert page.evaluate(places) == before, "nothing moves"
    clean(page)
    row.locator(".row-link").click()
    expect(page.locator("#packet-news")).to_contain_text("Bo Lindqvist approved")
    # What the packet's own page tells while it is looked at is no news afterwards.
    stage.apart(lambda: walk.decide(packet, dee))
    expect(page.locator("#packet-news")).to_contain_text("Dee Third approved")
    page.goto("/t/acme/queue/")
    expect(row).to_be_visible()
    expect(row).not_to_contain_text("since you looked")


def test_a_tab_that_heard_nothing_cannot_decide(walk: Walk, stage: Stage) -> None:
    packet = parked_call(walk)
    page = stage.page(walk.cast.ada, address_of(packet))
    page.route("**/state/**", lambda route: route.abort())
    walk.decide(packet, walk.cast.bo, Verdict.DENY)
    # In one step: between two, a refused look at the state would mark the page offline again.
    page.evaluate(
        """() => {
            delete document.body.dataset.offline;
            const approve = document.querySelector("[data-answer=approve]");
            document.getElementById("decision-form").requestSubmit(approve);
        }"""
    )
    expect(page.locator("#refusal")).to_contain_text("Nothing was decided.")
    expect(page.locator("#refusal")).to_contain_text("already denied by Bo Lindqvist")
    assert Decision.objects.filter(packet=packet).count() == 1


def test_a_key_that_is_held_down_decides_once(walk: Walk, stage: Stage) -> None:
    first, other = parked_call(walk), parked_call(walk)
    page = stage.page(walk.cast.ada, address_of(first))
    sent: list[str] = []
    page.on("request", lambda each: sent.append(each.url) if each.method == "POST" else None)
    page.locator('[data-answer="approve"]').focus()
    for _ in range(12):  # what a keyboard sends while a key is held
        page.keyboard.down("Enter")
    page.keyboard.up("Enter")
    expect(page.get_by_text("What came of it")).to_be_visible()
    assert len(sent) == 1
    assert Decision.objects.count() == 1
    assert walk.fresh(other).state == PacketState.OPEN

    # The letter opens the question; held down it neither answers it nor does anything else.
    page.goto(address_of(other))
    for _ in range(12):
        page.keyboard.down("a")
    page.keyboard.up("a")
    expect(page.locator("dialog#confirm")).to_be_visible()
    assert Decision.objects.count() == 1


def test_two_quick_clicks_and_two_sends_are_one_decision(walk: Walk, stage: Stage) -> None:
    packet = parked_call(walk)
    page = stage.page(walk.cast.ada, address_of(packet))
    # The script that stops the second click is not what this rests on: the form's token is.
    answers = page.evaluate(
        """async () => {
            const form = document.getElementById("decision-form");
            const body = new URLSearchParams(new FormData(form));
            body.set("answer", "approve");
            const send = () => fetch(form.action, {method: "POST", body, redirect: "manual"});
            const got = await Promise.all([send(), send(), send()]);
            return got.map((each) => each.type);
        }"""
    )
    assert answers == ["opaqueredirect"] * 3  # each is told that it was taken
    assert Decision.objects.filter(packet=packet).count() == 1


def test_an_answer_of_somebody_else_does_not_turn_words_into_keys(walk: Walk, stage: Stage) -> None:
    packet, other = parked_call(walk), parked_call(walk)
    page = stage.page(walk.cast.ada, address_of(packet))
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    page.get_by_label("Comment").focus()
    page.keyboard.type("Not ")
    stage.apart(lambda: walk.decide(packet, walk.cast.bo, Verdict.DENY))
    expect(page.locator("#decision-form")).to_have_count(0)
    expect(page.locator("#decide")).to_be_focused()
    page.keyboard.type("just yet, dear")  # j, a and d are keys elsewhere
    expect(page.locator("#decide")).to_be_focused()
    assert page.url.endswith(address_of(packet))
    # After looking up they are keys again.
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.wait_for_url(f"**{address_of(other)}")


def test_a_question_that_is_open_goes_away_with_its_packet(walk: Walk, stage: Stage) -> None:
    packet = parked_call(walk)
    page = stage.page(walk.cast.ada, address_of(packet))
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    page.keyboard.press("a")
    page.keyboard.press("Tab")
    expect(page.locator("dialog#confirm [data-forward]")).to_be_focused()
    stage.apart(lambda: walk.decide(packet, walk.cast.bo, Verdict.DENY))
    expect(page.locator("dialog#confirm")).to_be_hidden()
    expect(page.locator("#decide")).to_be_focused()
    page.keyboard.press("Enter")
    assert page.url.endswith(address_of(packet))
    assert Decision.objects.filter(packet=packet).count() == 1


def test_a_row_that_is_settled_under_the_focus_keeps_it(walk: Walk, stage: Stage) -> None:
    first, second = parked_call(walk), parked_call(walk)
    page = stage.page(walk.cast.ada, "/t/acme/queue/")
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    page.keyboard.press("j")
    link = page.locator(f"#packet-{first.public_id} .row-link")
    expect(link).to_be_focused()
    stage.apart(lambda: walk.decide(first, walk.cast.bo, Verdict.DENY))
    expect(page.locator(f"#packet-{first.public_id}")).to_contain_text("Denied")
    expect(link).to_be_focused()
    parked_call(walk)
    expect(page.locator("#queue-news a")).to_contain_text("1 new packet, show it")
    expect(link).to_be_focused()
    page.keyboard.press("a")  # opens what has the focus, and not the next one
    page.wait_for_url(f"**{address_of(first)}#decide")
    assert walk.fresh(second).state == PacketState.OPEN


def test_what_comes_back_as_it_was_keeps_the_focus_and_what_is_written(
    walk: Walk, stage: Stage
) -> None:
    def held() -> Packet:
        in_force(walk, rule('@hold("15m")'))
        packet = walk.to_call()
        walk.lose_hops()
        return walk.decide(packet)

    packet = stage.apart(held)
    page = stage.page(walk.cast.bo, address_of(packet))
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    why = page.get_by_label("Why")
    why.focus()
    page.keyboard.type("It is the ")
    for _ in range(3):
        with page.expect_response("**/state/**"):
            page.evaluate("document.body.dispatchEvent(new CustomEvent('look'))")
        page.wait_for_timeout(100)
    expect(why).to_be_focused()
    page.keyboard.type("wrong one.")
    expect(why).to_have_value("It is the wrong one.")
    # What really changed is drawn.
    page.keyboard.press("Enter")
    expect(page.locator("#packet-news")).to_be_empty()
    expect(page.locator("#decision-form")).to_be_visible()
