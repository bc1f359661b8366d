"""Every page in a real browser: for every reader, on every size, by keyboard, without script."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from approvals.models import Decision
from approvals.states import PacketState, Verdict
from runs.models import Run
from tests.addresses import ADDRESSES, Things
from tests.browser.stage import Stage
from tests.cast import REPAIR, call
from tests.credentials.sources import approve, propose
from tests.runs import test_egress_pages as egress
from tests.runs.test_recovery import fail
from tests.visits import address_of
from tests.walk import Walk, call_of, parked_call

pytestmark = pytest.mark.browser

# Files of their own, not pages.
DOWNLOADS = {
    *(
        "approvals:bundle",
        "approvals:packet_page",
        "approvals:candidate_patch",
    ),
    *("approvals:candidate_tray", "approvals:publication_receipt"),
}
PROBES = {"portal:livez", "portal:readyz"}
FRAGMENTS = {"runs:rows", "runs:state", "approvals:packet_state"}
LOOKS = [
    pytest.param({"width": 1440, "height": 1000}, "light", id="desk-light"),
    pytest.param({"width": 1440, "height": 1000}, "dark", id="desk-dark"),
    pytest.param({"width": 390, "height": 844}, "dark", id="phone-dark"),
]


def pages_of(things: Things, walk: Walk) -> dict[str, str]:
    """Every address that is a page, by name, with open packets of each kind beside."""
    pages = {
        name: things.address(name)
        for name, entry in ADDRESSES.items()
        if entry.get == 200 and name not in DOWNLOADS | PROBES | FRAGMENTS
    }
    pages["open call"] = address_of(parked_call(walk))
    review = address_of(walk.to_review())
    pages |= {f"review, {tab}": f"{review}{tab}/" for tab in ("diff", "files", "receipts")}
    pages["review, split"] = f"{review}diff/?view=split"
    run, lease = egress.at_work(walk)
    egress.blocked(lease, "evil.example.com", 70)
    pages["egress"] = address_of(egress.packet_of(walk, lease))
    pages["run with network"] = f"/t/acme/runs/{run.public_id}/"
    return pages | long_words(walk)


def long_words(walk: Walk) -> dict[str, str]:
    """Pages on which somebody else's words have no place to break a line."""
    run = fail(parked_call(walk).run, "model_unreachable", retry_safe=True)
    Run.objects.filter(pk=run.pk).update(failure_text="No answer from " + "x" * 300)
    approve(walk, propose(walk, name="long"))
    change = propose(walk, name="long", secret="", audience=(f"{'a' * 60}.{'b' * 60}.example",))
    return {
        "a failure in long words": f"/t/acme/runs/{run.public_id}/",
        "a change in long words": f"/t/acme/credentials/changes/{change.public_id}/",
    }


@pytest.mark.parametrize(("viewport", "scheme"), LOOKS)
def test_no_page_shuts_anybody_out_or_leaves_the_host(
    walk: Walk, stage: Stage, viewport: dict[str, int], scheme: str
) -> None:
    cast = walk.cast
    pages = stage.apart(lambda: pages_of(Things.made_by(walk), walk))
    axe = Axe()
    wrong: list[str] = []
    hosts: set[str] = set()
    readers: dict[str, Page] = {}
    for name, address in pages.items():
        who = ADDRESSES[name].who if name in ADDRESSES else frozenset({"ada"})
        reader = "ada" if "ada" in who else sorted(who)[0]
        if reader not in readers:
            context = stage.context(
                cast.everyone.get(reader),
                **{"viewport": viewport, "color_scheme": scheme, "reduced_motion": "reduce"},
            )
            readers[reader] = context.new_page()
            context.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
            context.on(
                "weberror",
                lambda error: wrong.append(f"{error.page and error.page.url}: {error.error}"),
            )
        page = readers[reader]
        answer = page.goto(address)
        assert answer is not None
        assert answer.status == 200, name
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > viewport["width"]:
            wrong.append(f"{name}: {width} pixels wide")
        for violation in axe.run(page).response["violations"]:
            node = violation["nodes"][0]["html"][:160]
            wrong.append(f"{name}: {violation['id']}: {node}")
    assert wrong == []
    assert hosts == {urlsplit(stage.url).netloc}


def test_the_content_policy_holds_without_a_complaint(walk: Walk, stage: Stage) -> None:
    pages = stage.apart(lambda: pages_of(Things.made_by(walk), walk))
    complaints: list[str] = []
    context = stage.context(walk.cast.ada)
    page = context.new_page()
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    for name in ("approvals:queue", "open call", "review, diff", "runs:detail", "portal:settings"):
        page.goto(pages[name])
        expect(page.locator("h1").first).to_be_visible()
    assert [each for each in complaints if each.startswith(("error", "warning"))] == []


# --- without script ---------------------------------------------------------------------------


def test_the_main_job_needs_no_script(walk: Walk, stage: Stage) -> None:
    packet = stage.apart(walk.to_review)
    page = stage.page(walk.cast.ada, "/t/acme/queue/", java_script_enabled=False)
    page.locator(".row-link").click()
    expect(page.locator("h1")).to_contain_text("Push one branch")
    expect(page.locator(".diff ins").first).to_have_text("+")
    page.get_by_role("link", name="Receipts").last.click()
    expect(page.get_by_role("heading", name="Receipts")).to_be_visible()

    page.get_by_role("button", name=re.compile("^Request changes")).click()
    expect(page.get_by_role("alert").first).to_contain_text("Nothing was decided.")
    page.get_by_label("Comment").fill("Add a test.")
    page.get_by_role("button", name=re.compile("^Approve")).click()
    expect(page.get_by_text("What came of it")).to_be_visible()
    assert walk.fresh(packet).state == PacketState.APPROVED
    assert Decision.objects.get(packet=packet).comment == "Add a test."


# --- by keyboard ------------------------------------------------------------------------------


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.textContent.trim().slice(0, 80)"))


def test_going_to_the_decision_does_not_move_what_is_read(walk: Walk, stage: Stage) -> None:
    packet = parked_call(walk)
    page = stage.page(walk.cast.ada, address_of(packet))
    page.set_viewport_size({"width": 1280, "height": 700})
    page.evaluate("scrollTo(0, 300)")
    for key in ("c", "Tab", "Tab", "Tab"):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.closest('.decision') !== null"), key
        assert page.evaluate("scrollY") == 300, key


def test_a_packet_is_decided_by_keyboard_alone(walk: Walk, stage: Stage) -> None:
    packets = [parked_call(walk) for _ in range(3)]
    page = stage.page(walk.cast.ada, "/t/acme/queue/")
    keys = page.keyboard
    keys.press("j")
    keys.press("j")
    keys.press("k")
    keys.press("o")
    expect(page).to_have_url(re.compile(str(packets[0].public_id)))
    # One key never approves: it opens the question, and the safe button has the focus.
    keys.press("a")
    expect(page.locator("dialog#confirm")).to_be_visible()
    assert focused(page) == "Back"
    keys.press("d")  # behind a dialog keys do nothing
    expect(page.locator("dialog#confirm")).to_be_visible()
    keys.press("Enter")
    expect(page.locator("dialog#confirm")).to_be_hidden()
    assert walk.fresh(packets[0]).state == PacketState.OPEN
    keys.press("a")
    keys.press("Tab")
    keys.press("Enter")
    expect(page.get_by_text("What came of it")).to_be_visible()
    assert walk.fresh(packets[0]).state == PacketState.APPROVED

    # On to the next one; denying goes through its reason.
    keys.press("j")
    expect(page).to_have_url(re.compile(str(packets[1].public_id)))
    keys.press("d")
    keys.type("ajdk, these are words")
    keys.press("Control+Enter")
    expect(page.get_by_text("What came of it")).to_be_visible()
    assert call_of(packets[1]).answer.endswith("ajdk, these are words")


def test_a_key_that_is_held_down_or_switched_off_does_nothing(walk: Walk, stage: Stage) -> None:
    for _ in range(3):
        parked_call(walk)
    page = stage.page(walk.cast.ada, "/t/acme/queue/")
    marked = page.locator("[data-row][aria-current]")
    page.keyboard.down("j")
    for _ in range(5):
        page.keyboard.down("j")  # what a keyboard sends while a key is held
    page.keyboard.up("j")
    first = page.locator("[data-row]").first.get_attribute("data-row")
    expect(marked).to_have_attribute("data-row", first or "")

    walk.cast.ada.user.single_keys = False
    walk.cast.ada.user.save(update_fields=["single_keys"])
    page.reload()
    page.keyboard.press("j")
    page.keyboard.press("?")
    expect(marked).to_have_count(0)
    expect(page.locator("dialog[open]")).to_have_count(0)


def test_what_is_drawn_anew_gives_the_focus_back(walk: Walk, stage: Stage) -> None:
    run, _ = egress.at_work(walk)
    page = stage.page(walk.cast.olu, f"/t/acme/runs/{run.public_id}/")
    expect(page.get_by_text("live", exact=True)).to_be_visible()

    def drawn_anew() -> None:
        """Something happened in the run: every part of the page is replaced."""
        page.evaluate("document.getElementById('run-network').dataset.old = '1'")
        page.evaluate("document.body.dispatchEvent(new CustomEvent('look'))")
        expect(page.locator("#run-network[data-old]")).to_have_count(0)

    page.get_by_role("button", name="Take back").focus()
    drawn_anew()
    expect(page.get_by_role("button", name="Take back")).to_be_focused()

    page.get_by_role("button", name="Stop the run").press("Enter")
    expect(page.locator("dialog#stop")).to_be_visible()
    drawn_anew()
    page.keyboard.press("Escape")
    expect(page.locator("dialog#stop")).to_be_hidden()
    expect(page.get_by_role("button", name="Stop the run")).to_be_focused()


# --- reading before approving -----------------------------------------------------------------


def test_approving_waits_until_every_line_is_loaded(walk: Walk, stage: Stage) -> None:
    long = [
        "*** Begin Patch",
        "*** Add File: repo/long.txt",
        *(f"+line {number}" for number in range(900)),
        "*** End Patch",
    ]
    steps = [*REPAIR[:2], [call("long", "apply_patch", patch=long)], *REPAIR[2:]]
    packet = stage.apart(lambda: walk.to_review(steps))
    page = stage.page(walk.cast.ada, address_of(packet))
    approve = page.locator('[data-answer="approve"]')
    expect(approve).to_have_attribute("aria-disabled", "true")
    expect(page.locator("[data-waits]")).to_be_visible()
    approve.click(force=True)
    assert walk.fresh(packet).state == PacketState.OPEN

    # Another part of the packet does not open the button either.
    page.goto(f"{address_of(packet)}receipts/")
    expect(approve).to_have_attribute("aria-disabled", "true")
    page.get_by_role("link", name="read the diff").click()
    # Each part loads when it is reached, and puts the next one behind itself. Before the diff is
    # there, nothing is left to be loaded either.
    page.wait_for_function(
        """() => {
            const left = document.querySelector("[data-unloaded]");
            if (left) left.scrollIntoView();
            return !left && document.body.textContent.includes("line 899");
        }"""
    )
    expect(page.get_by_text("line 899", exact=True)).to_be_attached()
    expect(approve).to_have_attribute("aria-disabled", "false")
    page.goto(f"{address_of(packet)}receipts/")
    expect(approve).to_have_attribute("aria-disabled", "false")


# --- live -------------------------------------------------------------------------------------


def test_new_packets_wait_behind_a_button_and_nothing_moves(walk: Walk, stage: Stage) -> None:
    first, second = parked_call(walk), parked_call(walk)
    page = stage.page(walk.cast.ada, "/t/acme/queue/")
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("j")
    before = page.locator("[data-row]").evaluate_all("rows => rows.map(row => row.dataset.row)")
    box = page.locator("[data-row]").nth(1).bounding_box()
    parked_call(walk)
    expect(page.locator("#queue-news a")).to_contain_text("1 new packet, show it")
    assert page.locator("[data-row]").nth(1).bounding_box() == box
    # A row that somebody else settles says so in its place; the mark stays with its packet.
    walk.decide(first, walk.cast.bo, Verdict.DENY)
    expect(page.locator(f"#packet-{first.public_id}")).to_contain_text("Denied")
    after = page.locator("[data-row]").evaluate_all("rows => rows.map(row => row.dataset.row)")
    assert after[: len(before)] == before
    marked = page.locator("[data-row][aria-current]")
    expect(marked).to_have_attribute("data-row", str(second.public_id))
    page.locator("#queue-news a").click()
    expect(page.locator(".row:not(.row-past)")).to_have_count(2)


def test_no_event_is_lost_doubled_or_out_of_order_when_the_portal_dies(
    walk: Walk, stage: Stage
) -> None:
    run = stage.apart(walk.to_call).run
    page = stage.page(walk.cast.vic, f"/t/acme/runs/{run.public_id}/")
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    shown = page.locator("#events > li")
    seen = shown.count()
    assert seen == walk.fresh(run).event_seq

    stage.kill()
    walk.decide(walk.open_packet(run))
    page.evaluate("document.body.dispatchEvent(new CustomEvent('look'))")
    expect(page.locator("#offline")).to_be_visible()
    # An outage is never drawn as an empty list.
    expect(shown).to_have_count(seen)
    stage.apart(walk.drain)
    last = walk.fresh(run).event_seq
    assert last > seen + 5

    stage.restart()
    page.locator("#offline a").click()
    expect(shown).to_have_count(last)
    expect(page.locator("#offline")).to_be_hidden()
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    ids = shown.evaluate_all("rows => rows.map(row => Number(row.id.slice(6)))")
    assert ids == list(range(last, 0, -1))
    expect(page.locator("#run-head")).to_contain_text("In review")


def test_somebody_who_lost_the_tenant_is_told_and_not_asked_again(walk: Walk, stage: Stage) -> None:
    from portal.people import remove_member

    page = stage.page(walk.cast.vic, "/t/acme/queue/?show=all")
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    opened: list[str] = []
    page.on("websocket", lambda socket: opened.append(socket.url))
    remove_member(walk.cast.vic.pk, member=walk.cast.max)
    expect(page.get_by_text("not live any more, reload the page")).to_be_visible()
    assert opened == []


def test_a_comment_survives_an_outage(walk: Walk, stage: Stage) -> None:
    packet = parked_call(walk)
    page = stage.page(walk.cast.ada, address_of(packet))
    page.get_by_label("Comment").fill("Not before the release.")
    stage.kill()
    page.evaluate("document.body.dispatchEvent(new CustomEvent('look'))")
    expect(page.locator("#offline")).to_be_visible()
    page.locator('[data-answer="deny"]').click()
    expect(page.get_by_label("Comment")).to_have_value("Not before the release.")
    stage.restart()
    page.reload()
    expect(page.get_by_label("Comment")).to_have_value("Not before the release.")
    page.locator('[data-answer="deny"]').click()
    expect(page.get_by_text("What came of it")).to_be_visible()
    assert call_of(packet).answer.endswith("Not before the release.")


def test_an_unknown_outcome_is_settled_without_script(walk: Walk, stage: Stage) -> None:
    publication = stage.apart(walk.to_publish)
    publication.state, publication.note = "unknown", "The target stopped answering."
    publication.save(update_fields=["state", "note"])
    page = stage.page(walk.cast.ada, "/t/acme/unknown/", java_script_enabled=False)
    page.get_by_text("It did not happen, and shall not").click()
    page.get_by_label("What you saw, and where").fill("No branch at the remote, 14:02.")
    page.get_by_role("button", name="Settle it as not done").click()
    expect(page.get_by_text("It was not published.")).to_be_visible()
    assert walk.status(publication.run) == "failed"
