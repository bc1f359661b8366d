"""The main job as a newcomer does it: one command, a real browser, two approvals, a draft."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect

from tests.portal.test_up import Up

pytestmark = [pytest.mark.browser, pytest.mark.bubblewrap]

PATIENCE = 60_000


@pytest.fixture
def up() -> Iterator[tuple[Up, Path]]:
    """A first start on an empty directory."""
    with tempfile.TemporaryDirectory(prefix="imprimatur-job-", dir="/tmp") as home:
        data = Path(home) / "data"
        started = Up("--port", "0", "--data", str(data), "--sandbox", "bubblewrap").started()
        try:
            yield started, data
        finally:
            started.end()


def sign_in(page: Page, link: str) -> None:
    """Open the one-time link and press its one button."""
    page.goto(link)
    page.get_by_role("button", name=re.compile("Sign in")).click()
    page.wait_for_url(lambda url: "/signin/" not in url)


def branches(data: Path) -> list[str]:
    """What stands at the publishing target."""
    bare = data / "repositories" / "tideline" / "tideline.git"
    done = subprocess.run(
        ["git", f"--git-dir={bare}", "for-each-ref", "--format=%(refname:short)", "refs/heads"],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.split()


def test_a_newcomer_takes_the_job_from_a_waiting_packet_to_a_draft(
    up: tuple[Up, Path], context: BrowserContext, browser: Browser
) -> None:
    started, data = up
    asked: list[Request] = []
    complaints: list[str] = []
    context.on("request", lambda request: asked.append(request))
    page = context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda message: complaints.append(message.text) if message.type == "error" else None,
    )
    sign_in(page, started.link("Ada Obi"))

    # The first packet: an outward call, on which the exact request stands.
    page.goto(f"{started.url}/t/tideline/queue/")
    call = page.get_by_role("link", name=re.compile("Send one request"))
    expect(call).to_be_visible(timeout=PATIENCE)
    call.click()
    sheet = page.locator(".sheet-verified")
    expect(sheet).to_contain_text("tracker_create_issue")
    expect(sheet).to_contain_text("outward-needs-a-person")
    expect(page.get_by_text("recorded transcript").first).to_be_visible()
    assert branches(data) == ["main"]
    # Whoever asked for the run sees the same page, and that somebody else decides.
    asker = browser.new_context().new_page()
    sign_in(asker, started.link("Olu Adeyemi"))
    asker.goto(page.url)
    expect(asker.locator(".sheet-verified")).to_contain_text("tracker_create_issue")
    expect(asker.locator("#decide")).to_contain_text("Deciding needs the role")
    expect(asker.get_by_role("button", name=re.compile("^Approve"))).to_have_count(0)
    approve(page)
    expect(page.locator(".packet-state")).to_contain_text("Approved", timeout=PATIENCE)

    # The second: a publication, with every changed line on its page.
    page.goto(f"{started.url}/t/tideline/queue/")
    publication = page.get_by_role("link", name=re.compile("Push one branch"))
    expect(publication).to_be_visible(timeout=PATIENCE)
    publication.click()
    expect(page.locator("body")).to_contain_text("bisect_left", timeout=PATIENCE)
    assert branches(data) == ["main"]
    approve(page)
    expect(page.locator("body")).to_contain_text("Published", timeout=PATIENCE)

    drafts = [name for name in branches(data) if name != "main"]
    assert len(drafts) == 1
    page.goto(f"{started.url}/t/tideline/publications/")
    page.get_by_role("link", name=re.compile("Charge a weight")).first.click()
    expect(page.locator("body")).to_contain_text(drafts[0])
    expect(page.locator("body")).to_contain_text("byte for byte")

    assert complaints == []
    hosts = {urlsplit(request.url).netloc for request in asked}
    assert hosts == {urlsplit(started.url).netloc}, "a request left the host"


def approve(page: Page) -> None:
    """Press the effect's own button, and confirm where the page asks once more."""
    page.get_by_role("button", name=re.compile("^Approve")).first.click()
    dialog = page.locator("dialog[open]")
    try:
        dialog.wait_for(timeout=3_000)
    except Exception:  # the page asks again only for what it thinks is high risk
        return
    dialog.get_by_role("button", name=re.compile("^Approve")).click()
