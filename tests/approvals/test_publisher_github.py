"""Draft pull requests on a stub that is held to GitHub's published API description."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from approvals.publishers import (
    BaseChanged,
    ContentMismatch,
    Credential,
    DraftNotKept,
    DraftsUnsupported,
    IntentRefused,
    OutcomeUnknown,
    PublicationIntent,
    Published,
    PublishError,
    RateLimited,
    TargetConflict,
    TargetRefused,
    TargetUnavailable,
    body_marker,
    commit_id,
)
from approvals.publishers.git import GitOptions
from approvals.publishers.github import GitHubOptions, GitHubPublisher
from approvals.publishers.registry import publisher_for
from runs import contract
from tests.approvals.git_server import GitServer, commit_on, git, git_server
from tests.approvals.github.stub import AfterAct, Canned, GitHubStub, github_stub
from tests.approvals.github.trim import TRIMMED, trim
from tests.approvals.publisher_kit import BRANCH, MARKER, Bench, make_bench
from tests.credentials.services import dripping

REPOSITORY = "acme/parser"
NOW = 1_800_000_000.0


@dataclass
class World:
    bench: Bench
    git: GitServer
    hub: GitHubStub
    options: GitHubOptions

    @property
    def publisher(self) -> GitHubPublisher:
        return GitHubPublisher(self.options)

    @property
    def intent(self) -> PublicationIntent:
        return self.bench.intent(REPOSITORY, kind="github")

    def publish(self) -> Published:
        return self.publisher.publish(self.intent, self.bench.bare, self.bench.credential)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    bench = make_bench(tmp_path)
    with (
        git_server(bench.store.parents[1], bench.token) as server,
        github_stub(bench.store, REPOSITORY, bench.token) as hub,
    ):
        options = GitHubOptions(
            api_url=hub.url,
            git_url=server.url,
            git=GitOptions(allow_http=True, look_again=(0.0, 0.0)),
            look_again=(0.0, 0.0, 0.0),
            now=lambda: NOW,
        )
        yield World(bench, server, hub, options)
    assert hub.violations == []


def test_a_draft_is_opened_once(world: World) -> None:
    assert world.publisher.look(world.intent, world.bench.credential) is None

    published = world.publish()

    assert published == Published(
        url=f"{world.git.url}/{REPOSITORY}/pull/1",
        branch=BRANCH,
        commit=commit_id(world.intent),
        tree=world.bench.tree,
        draft=True,
        number=1,
    )
    assert world.hub.orders() == [
        {
            "title": world.intent.title,
            "body": world.intent.body,
            "head": BRANCH,
            "base": "main",
            "draft": True,
        }
    ]
    assert git(world.bench.store, "rev-parse", f"{BRANCH}^{{tree}}") == world.bench.tree
    found = world.publisher.look(world.intent, world.bench.credential)
    assert found is not None
    assert (found.number, found.state, found.draft, found.note) == (1, "open", True, "")

    assert world.publish() == replace(published, existed=True)
    assert len(world.hub.orders()) == 1


def test_the_credential_reaches_only_the_host(world: World) -> None:
    world.publish()
    remote = world.publisher.verify_remote(world.intent, world.bench.credential)
    assert remote.tree == world.bench.tree
    for credential in (None, Credential(world.bench.token[::-1] + "x")):
        with pytest.raises(TargetRefused) as refused:
            world.publisher.publish(world.intent, world.bench.bare, credential)
        assert refused.value.status == 401
        if credential:
            assert credential.token not in f"{refused.value} {refused.value.facts}"


# --- There already --------------------------------------------------------


def test_a_branch_without_its_pull_request_is_completed(world: World) -> None:
    """As after a crash between the push and the request."""
    world.hub.fault("POST", Canned(429))
    with pytest.raises(RateLimited) as limited:
        world.publish()
    assert BRANCH in limited.value.left

    found = world.publisher.look(world.intent, world.bench.credential)
    assert found is not None
    assert (found.state, found.number) == ("branch", None)
    pushes = world.git.pushes()
    assert world.publish().number == 1
    assert world.git.pushes() == pushes


def test_a_pull_request_that_the_host_says_exists_is_linked(world: World) -> None:
    """BUG-43: the 422 for 'already exists', when the list did not show it yet."""
    world.publish()
    world.hub.lists_late = 1
    again = world.publish()
    assert (again.number, again.existed, again.draft) == (1, True, True)
    assert len(world.hub.pulls) == 1


def test_a_pull_request_with_other_content_is_a_conflict(world: World) -> None:
    world.publish()
    pull = world.hub.pulls[0]
    pull["body"] = "Mine."
    pull["head"]["sha"] = world.bench.base
    with pytest.raises(TargetConflict, match="with another commit"):
        world.publish()
    assert len(world.hub.pulls) == 1


def test_a_foreign_branch_is_a_conflict_and_gets_no_pull_request(world: World) -> None:
    theirs = commit_on(world.bench.store, BRANCH, {"parser.py": "theirs\n"})
    world.hub.add_pull(BRANCH)
    assert world.publisher.look(world.intent, world.bench.credential) is None
    with pytest.raises(TargetConflict, match="another commit"):
        world.publish()
    assert world.bench.head() == theirs
    assert world.hub.orders() == []


def test_a_persons_pull_request_for_our_commit_is_linked_as_theirs(world: World) -> None:
    world.hub.fault("POST", Canned(429))
    with pytest.raises(RateLimited):
        world.publish()
    world.hub.add_pull(BRANCH, body="I saw this branch.")
    published = world.publish()
    assert (published.number, published.draft, published.existed) == (1, False, True)
    assert "somebody else" in published.note
    assert "not a draft" in published.note


def test_a_fork_with_a_branch_of_that_name_is_not_ours(world: World) -> None:
    """Also when the host does not know the filter and lists everything."""
    world.hub.fault("POST", Canned(429))
    with pytest.raises(RateLimited):
        world.publish()
    world.hub.ignores_filter = True
    fork = world.hub.add_pull(BRANCH)
    fork["head"]["label"] = f"mallory:{BRANCH}"
    fork["head"]["repo"]["full_name"] = "mallory/parser"
    assert world.publish().number == 2
    assert world.hub.violations == []

    # The host says null for a fork that was deleted, and its description does not know that.
    fork["head"]["repo"] = None
    assert world.publish().number == 2
    world.hub.violations.clear()


def test_our_marker_on_other_content_is_a_conflict(world: World) -> None:
    world.publish()
    world.hub.pulls[0]["head"]["sha"] = world.bench.base
    for ask in (world.publish, lambda: world.publisher.look(world.intent, world.bench.credential)):
        with pytest.raises(TargetConflict, match="has changed since"):
            ask()


@pytest.mark.parametrize("merged_at", [None, "2026-01-03T00:00:00Z"])
def test_one_that_was_closed_is_not_opened_again(world: World, merged_at: str | None) -> None:
    """Also when the branch is gone: the host keeps the commit, and it is read back."""
    world.publish()
    world.hub.pulls[0].update(state="closed", merged_at=merged_at)
    git(world.bench.store, "update-ref", "-d", f"refs/heads/{BRANCH}")
    published = world.publish()
    assert ("merged" if merged_at else "closed") in published.note
    assert len(world.hub.pulls) == 1
    git(world.bench.store, "update-ref", "refs/pull/1/head", world.bench.base)
    with pytest.raises(ContentMismatch):
        world.publish()


# --- A draft or nothing ---------------------------------------------------


def test_no_drafts_means_no_pull_request(world: World) -> None:
    """BUG-44, G05: the cause has a name, and a ready pull request is never made."""
    world.hub.drafts_supported = False
    with pytest.raises(DraftsUnsupported, match="does not support draft") as stopped:
        world.publish()
    assert not stopped.value.retry_safe
    assert BRANCH in stopped.value.left
    assert [order["draft"] for order in world.hub.orders()] == [True]
    assert world.hub.pulls == []


def test_a_host_that_forgets_the_draft_is_found_out(world: World) -> None:
    world.hub.ignores_draft = True
    with pytest.raises(DraftNotKept, match=r"Pull request 1 .* ready for review"):
        world.publish()
    assert len(world.hub.orders()) == 1


def test_it_is_found_out_without_an_answer_too(world: World) -> None:
    world.hub.ignores_draft = True
    world.hub.fault("POST", "lose answer")
    with pytest.raises(DraftNotKept):
        world.publish()


def test_a_branch_changed_in_the_same_moment_is_found_out(world: World) -> None:
    handle = world.hub.add_pull

    def changed(*args: str, **kwargs: str) -> object:
        return handle(*args, **kwargs) | {
            "head": {**world.hub.pulls[-1]["head"], "sha": world.bench.base}
        }

    world.hub.add_pull = changed  # type: ignore[method-assign]
    with pytest.raises(TargetConflict, match="same moment"):
        world.publish()


# --- Refusals -------------------------------------------------------------

LIMITED = "You have exceeded a secondary rate limit. Please wait a few minutes."
REFUSALS: list[tuple[Canned, type[PublishError], str]] = [
    (Canned(401, "Bad credentials"), TargetRefused, "Renew the credential"),
    (Canned(403, "Resource not accessible"), TargetRefused, "write access"),
    (Canned(403, "Needs SSO", {"X-GitHub-SSO": "required"}), TargetRefused, "single sign-on"),
    (Canned(404, "Not Found"), TargetRefused, "Check the name"),
    (Canned(307, "Moved", {"Location": "{other}/x"}), TargetRefused, "renamed or moved"),
    (Canned(403, "Slow", {"Retry-After": "17"}), RateLimited, "in 17 seconds"),
    (Canned(403, LIMITED), RateLimited, "in 60 seconds"),
    (Canned(429), RateLimited, "in 60 seconds"),
    (
        Canned(403, "x", {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1800000090"}),
        RateLimited,
        "in 90 seconds",
    ),
]


@pytest.mark.parametrize(("answer", "kind", "says"), REFUSALS)
def test_a_refused_question_has_no_effect(
    world: World, answer: Canned, kind: type[PublishError], says: str
) -> None:
    with github_stub(world.bench.store, REPOSITORY, world.bench.token) as other:
        headers = {name: value.format(other=other.url) for name, value in answer.headers.items()}
        world.hub.fault("GET", replace(answer, headers=headers))
        with pytest.raises(kind, match=says) as refused:
            world.publish()
        assert other.seen == []
    assert refused.value.retry_safe is (kind is RateLimited)
    assert refused.value.left == ""
    assert world.git.seen == []
    assert world.hub.orders() == []


@pytest.mark.parametrize(("answer", "kind", "says"), REFUSALS)
def test_a_refused_order_says_what_is_left(
    world: World, answer: Canned, kind: type[PublishError], says: str
) -> None:
    world.hub.fault("POST", answer)
    with pytest.raises(kind, match=says) as refused:
        world.publish()
    assert BRANCH in refused.value.left
    assert world.hub.pulls == []
    # Once the cause is gone, the same call makes one of each.
    assert world.publish().number == 1


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_failed_question_may_be_asked_again(world: World, status: int) -> None:
    world.hub.fault("GET", Canned(status))
    with pytest.raises(TargetUnavailable) as failed:
        world.publish()
    assert failed.value.retry_safe
    assert world.git.seen == []
    assert world.publish().number == 1


def test_an_answer_that_makes_no_sense_is_not_believed(world: World) -> None:
    world.hub.fault("GET", Canned(200, "not a list"), "lose answer")
    for _ in range(2):
        with pytest.raises(TargetUnavailable):
            world.publish()
    world.hub.fault("POST", Canned(201, "not a pull request"))
    with pytest.raises(OutcomeUnknown, match="lacks"):
        world.publish()
    world.hub.violations.clear()


def test_a_host_that_is_not_there_may_be_tried_again(world: World) -> None:
    with github_stub(world.bench.store, REPOSITORY, world.bench.token) as gone:
        closed = gone.url
    publisher = GitHubPublisher(replace(world.options, api_url=closed))
    with pytest.raises(TargetUnavailable) as failed:
        publisher.publish(world.intent, world.bench.bare, world.bench.credential)
    assert failed.value.retry_safe


def test_another_rule_of_the_host_is_passed_on_in_its_words(world: World) -> None:
    rule = {
        "resource": "PullRequest",
        "code": "custom",
        "message": "not all refs are\u202e readable",
    }
    world.hub.fault("POST", Canned(422, "Validation Failed", errors=(rule,)))
    with pytest.raises(TargetRefused, match="Validation Failed; not all refs") as refused:
        world.publish()
    assert refused.value.status == 422
    assert str(refused.value).isprintable()


# --- No answer ------------------------------------------------------------


@pytest.mark.parametrize("fault", ["then 502", "lose answer"])
def test_an_order_whose_answer_was_lost_is_found(world: World, fault: AfterAct) -> None:
    """G02: done, and the answer did not come. One pull request in the end."""
    world.hub.fault("POST", fault)
    published = world.publish()
    assert (published.number, published.draft, published.existed) == (1, True, False)
    assert "then found" in published.note
    assert world.publish().number == 1
    assert len(world.hub.pulls) == 1


def test_an_order_that_hangs_is_found(world: World) -> None:
    world.hub.fault("POST", "hang")
    world.options = replace(world.options, timeout=3.0)
    assert world.publish().number == 1
    assert len(world.hub.pulls) == 1


def test_everything_goes_to_the_address_that_was_looked_at(world: World) -> None:
    """No server of names knows this host: whoever asked one again would fail."""
    asked: list[str] = []

    def reach(host: str, port: int) -> str:
        asked.append(host)
        return "127.0.0.1"

    world.options = replace(
        world.options,
        api_url=world.hub.url.replace("127.0.0.1", "forge.test"),
        git_url=world.git.url.replace("127.0.0.1", "forge.test"),
        git=replace(world.options.git, reach=reach),
    )
    assert world.publish().number == 1
    assert set(asked) == {"forge.test"}


@pytest.mark.parametrize(
    "target",
    [
        contract.Target(kind="git", base="main", url="http://127.0.0.1:{port}/x.git"),
        contract.Target(kind="git", base="main", url="https://localhost:{port}/x.git"),
        contract.Target(
            kind="github", repository="a/b", base="main", api="http://127.0.0.1:{port}"
        ),
    ],
)
def test_a_target_leads_to_no_private_address_that_is_not_listed(
    world: World, target: contract.Target, settings: Any
) -> None:
    settings.BROKER_PRIVATE_HOSTS = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        port = str(listener.getsockname()[1])
        url, api = (each.replace("{port}", port) for each in (target.url, target.api))
        publisher = publisher_for(replace(target, url=url, api=api))
        intent = replace(
            world.intent if api else world.bench.intent(url), marker=world.intent.marker
        )
        with pytest.raises(IntentRefused, match="BROKER_PRIVATE_HOSTS"):
            publisher.look(intent, world.bench.credential)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_host_that_never_comes_to_an_end_holds_nobody_up(world: World) -> None:
    with dripping() as (url, hung_up):
        world.options = replace(world.options, api_url=url, timeout=0.5)
        with pytest.raises(TargetUnavailable, match="no answer within"):
            world.publisher.look(world.intent, world.bench.credential)
        assert hung_up.wait(5)


def test_an_order_that_cannot_be_found_is_unknown(world: World) -> None:
    """The list is late by more than our patience. Looking later settles it."""
    world.hub.fault("POST", "then 502")
    world.hub.lists_late = 3
    with pytest.raises(OutcomeUnknown, match="draft pull request") as unknown:
        world.publish()
    assert not unknown.value.retry_safe
    found = world.publisher.look(world.intent, world.bench.credential)
    assert found is not None
    assert found.number == 1
    assert world.publish().existed
    assert len(world.hub.orders()) == 1


def test_an_order_that_was_never_carried_out_is_unknown_too(world: World) -> None:
    world.hub.fault("POST", Canned(503))
    with pytest.raises(OutcomeUnknown):
        world.publish()
    assert world.hub.pulls == []


def test_the_host_is_looked_at_again_even_when_it_fails_at_first(world: World) -> None:
    world.hub.fault("POST", "lose answer")
    waits: list[float] = []

    def pause(seconds: float) -> None:
        if not waits:
            world.hub.fault("GET", Canned(502), Canned(429))
        waits.append(seconds)

    world.options = replace(world.options, pause=pause)
    assert world.publish().number == 1
    assert len(waits) == 3


# --- The base -------------------------------------------------------------


def test_G06_a_base_that_moved_is_noted(world: World) -> None:
    """The three-dot diff is the approved one, and the note says what it stands on."""
    grown = commit_on(world.bench.store, "main", {"README": "More.\n"})
    published = world.publish()
    assert grown[:12] in published.note
    assert git(world.bench.store, "rev-parse", f"{BRANCH}^") == world.bench.base


def test_G06_a_base_that_was_deleted_or_rewritten_stops_it(world: World) -> None:
    git(world.bench.store, "update-ref", "-d", "refs/heads/main")
    with pytest.raises(BaseChanged):
        world.publish()
    commit_on(world.bench.store, "main", {"README": "A new start.\n"}, new_root=True)
    with pytest.raises(BaseChanged):
        world.publish()
    assert world.hub.orders() == []


def test_a_base_that_goes_in_the_last_moment_stops_it(world: World) -> None:
    world.git.before_push = lambda: git(world.bench.store, "update-ref", "-d", "refs/heads/main")
    with pytest.raises(BaseChanged, match="not there any more") as stopped:
        world.publish()
    assert BRANCH in stopped.value.left


# --- The stub and the options ---------------------------------------------


def test_an_intent_for_another_kind_is_refused(world: World) -> None:
    with pytest.raises(IntentRefused):
        world.publisher.look(world.bench.intent("/srv/acme.git"), world.bench.credential)


@pytest.mark.parametrize("url", ["http://github.example", "https://u:p@github.example", "x"])
def test_a_host_must_be_a_plain_https_address(url: str) -> None:
    with pytest.raises(ValueError, match="plain https"):
        GitHubOptions(api_url=url)


def test_the_marker_is_in_the_body_that_is_sent(world: World) -> None:
    world.publish()
    assert world.hub.orders()[0]["body"].startswith(body_marker(MARKER))


def test_the_description_is_as_trimmed() -> None:
    """Trimming what was trimmed changes nothing, so the file was not edited by hand."""
    whole = json.loads(TRIMMED.read_bytes())
    assert trim(whole) == whole


def test_the_stub_notices_what_the_host_would_not_accept(world: World) -> None:
    """The guard itself: a request and an answer that the description does not allow."""
    url = f"{world.hub.url}/repos/{REPOSITORY}/pulls"
    headers = {"Authorization": f"Bearer {world.bench.token}"}
    httpx.get(url, params={"state": "draft"}, headers=headers)
    assert len(world.hub.violations) == 1
    world.publish()
    world.hub.pulls[0]["html_url"] = 5
    httpx.get(url, headers=headers)
    assert len(world.hub.violations) == 2
    world.hub.violations.clear()
