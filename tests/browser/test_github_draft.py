"""The job that ends on a forge: from a contract that is written to a draft pull request.

Nothing is carried by hand: a web process, a worker and a sandbox of their own, four people in
Chromium, and a GitHub server that takes a real push and is held to the published description.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from approvals import receipt
from approvals.models import Publication
from portal.models import Membership
from portal.signing import signing_key
from runs.models import Run
from tests.acceptance.kit import give_credential
from tests.approvals.github.host import GitHubHost, github_host
from tests.browser.stage import Stage
from tests.cast import ASKING, contract_text, git, keep_recording, transcript
from tests.real_walk import RealWalk

pytestmark = [pytest.mark.browser, pytest.mark.bubblewrap]

REPOSITORY = "acme/adder"
# A run is done when its worker is; on a busy machine that takes its time.
PATIENCE = 120_000


@pytest.fixture
def forge(real_walk: RealWalk, tmp_path: Path) -> Iterator[GitHubHost]:
    """The host with a copy of the job's repository, and Acme's credential for it."""
    token = secrets.token_hex(20)
    store = tmp_path / "served" / f"{REPOSITORY}.git"
    store.parent.mkdir(parents=True)
    git("clone", "-q", "--bare", str(real_walk.remote), str(store), cwd=tmp_path)
    git("config", "http.receivepack", "true", cwd=store)
    with github_host(tmp_path / "served", REPOSITORY, token) as host:
        give_credential(real_walk, token, "forge", host.netloc)
        yield host
    assert host.hub.violations == []


@pytest.fixture
def stage(real_walk: RealWalk, browser: Browser) -> Stage:
    """A web process, a worker, and browsers for their people."""
    real_walk.worker()
    return Stage(real_walk.processes, browser, real_walk.web())


def open_from_queue(stage: Stage, member: Membership, words: str) -> Page:
    """The packet with these words, opened from that person's queue as soon as it is there."""
    page = stage.page(member, "/t/acme/queue/")
    row = page.get_by_role("link", name=re.compile(words))
    expect(row).to_be_visible(timeout=PATIENCE)
    row.click()
    return page


def approve(page: Page, words: str) -> None:
    """Press the effect's own button, and once more in the question that names the new reach."""
    page.locator('[data-answer="approve"]', has_text=words).click()
    dialog = page.locator("dialog#confirm")
    if dialog.is_visible():
        dialog.get_by_role("button", name=words).click()
    expect(page.locator(".packet-state")).to_contain_text("Approved")


def test_from_a_contract_to_a_draft_pull_request(
    real_walk: RealWalk, forge: GitHubHost, stage: Stage
) -> None:
    cast = real_walk.cast
    keep_recording(cast, "adder", transcript(ASKING))
    target = (
        f'kind = "github"\nrepository = "{REPOSITORY}"\nbase = "main"\n'
        f'api = "{forge.api}"\ncredential = "forge"\ntitle = "{{outcome}}"'
    )

    # Olu writes the contract, Max puts it in force, Olu starts a run on it.
    page = stage.page(cast.olu, "/t/acme/contracts/new/")
    page.get_by_label("The contract").fill(contract_text(http=True, target=target))
    page.get_by_role("button", name="Store and ask for approval").click()
    expect(page.get_by_text("It waits for a tenant admin who did not write it.")).to_be_visible()
    version = page.url
    page = stage.page(cast.max, version)
    expect(page.get_by_text(forge.api).first).to_be_visible()
    page.get_by_role("button", name="Approve and put in force").click()
    expect(page.locator(".packet-state")).to_contain_text("In force")
    page = stage.page(cast.olu, version)
    page.get_by_role("link", name="Start a run").click()
    page.get_by_role("button", name="Start the run").click()
    expect(page).to_have_url(re.compile(r"/runs/[0-9a-f-]{36}/"))

    # Ada lets the call out. What publishing will need is not asked for yet.
    page = open_from_queue(stage, cast.ada, "Send one request")
    approve(page, "Approve and send the request")
    assert forge.hub.seen == []

    # Bo lets the candidate out, and reads where it goes and what that takes.
    page = open_from_queue(stage, cast.bo, "Open one draft pull request")
    sheet = page.locator(".sheet-verified").first
    expect(sheet).to_contain_text(REPOSITORY)
    expect(page.locator("table.scope")).to_contain_text("forge")
    expect(page.locator(".diff ins").first).to_be_visible()
    assert forge.hub.seen == []
    approve(page, "Approve and open draft PR")
    page.locator("#packet-outcome").get_by_role("link", name=re.compile("Receipt|Follow")).click()

    # The publication's page waits for it, and ends with the draft and the receipt.
    done = page.locator('#publication[data-state="done"]')
    expect(done).to_be_visible(timeout=PATIENCE)
    expect(done).to_contain_text("as a draft")
    expect(done).to_contain_text("the approved tree, byte for byte")
    draft = f"{forge.url}/{REPOSITORY}/pull/1"
    expect(done.get_by_role("link", name=draft)).to_have_attribute("href", draft)
    with page.expect_download() as download:
        page.get_by_role("link", name="Signed receipt").click()
    signed = json.loads(download.value.path().read_bytes())

    # At the forge: one draft, with exactly the approved commit and tree; main is as it was.
    run, published = Run.objects.get(), Publication.objects.get()
    packet = published.packet
    (pull,) = forge.hub.pulls
    assert (pull["draft"], pull["state"], pull["base"]["ref"]) == (True, "open", "main")
    assert pull["title"] == "The adder adds."
    assert pull["head"]["sha"] == published.commit == packet.page["arguments"]["commit"]
    assert (
        git("rev-parse", f"{published.branch}^{{tree}}", cwd=forge.hub.store)
        == (packet.page["candidate"]["tree"])
    )
    assert git("rev-parse", "main", cwd=forge.hub.store) == real_walk.commit
    assert git("show", f"{published.branch}:adder.py", cwd=forge.hub.store).endswith("a + b")
    assert [order["draft"] for order in forge.hub.orders()] == [True]
    assert forge.git.pushes() == 1
    statement = receipt.verify(signed, [signing_key().public_key()])
    assert statement["predicate"]["url"] == draft
    assert {each["person"] for each in statement["predicate"]["decisions"]} == {"Bo Lindqvist"}
    real_walk.until_status(run, "published")
    real_walk.until_clean()
