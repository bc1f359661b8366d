"""Scenarios G: what leaves is what was approved, once, as a draft."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from approvals import publication as plans
from approvals import publishing, repositories
from approvals.models import Candidate, Publication, Receipt
from approvals.publishers import Target
from approvals.publishers.git import GitOptions, GitPublisher
from approvals.publishers.github import GitHubOptions, GitHubPublisher
from approvals.states import PublicationState, Verdict
from portal import blobs, vault
from runs.lifecycle import contract_of
from runs.models import Credential, Event
from runs.states import RunStatus
from tests.acceptance.kit import give_credential
from tests.approvals.git_server import commit_on, git_server
from tests.approvals.github.stub import AfterAct, Canned, GitHubStub, github_stub
from tests.cast import REPAIR, call, git
from tests.credentials.services import GitHub, private_key, serving
from tests.walk import Walk, candidate_of, publication_packets

TOKEN = "publishing-" + "0" * 20
AS_IT_IS: Any = None  # no fault for this request


# --- The bytes ---------------------------------------------------------------------


def _other_bytes(path: Path) -> None:
    path.chmod(0o600)
    path.write_bytes(b"something else")


def _a_link_elsewhere(path: Path) -> None:
    other = path.with_suffix(".other")
    other.write_bytes(b"something else")
    path.unlink()
    path.symlink_to(other)


@pytest.mark.parametrize("swap", [_other_bytes, _a_link_elsewhere, Path.unlink])
def test_G01_the_content_is_swapped_on_disk_after_the_approval(
    walk: Walk, swap: Callable[[Path], None]
) -> None:
    publication = walk.to_publish()
    stored = blobs.path_of(walk.cast.acme.pk, publication.candidate.pack_blob)
    assert stored.stat().st_mode & 0o777 == 0o400  # written once

    swap(stored)
    walk.drain()

    assert walk.fresh(publication).error_code == "publication.artifact_damaged"
    assert publication.state == PublicationState.FAILED
    assert walk.status(publication.run) == RunStatus.FAILED
    assert walk.branches() == ["main"]


def test_G01_the_repository_beside_it_is_changed(walk: Walk) -> None:
    """Refs and objects that somebody adds to the source do not get into what is published."""
    publication = walk.to_publish()
    commit_on(walk.root / "adder.git", "decoy", {"adder.py": "evil = True\n"})
    git("update-ref", "refs/tags/main", "decoy", cwd=walk.root / "adder.git")

    walk.drain()

    assert walk.tree(publication.branch) == publication.tree
    parent = git("rev-parse", f"{publication.branch}^", cwd=walk.root / "adder.git")
    assert parent == walk.commit


def test_G01_BUG12_the_sandbox_cannot_reach_what_is_read_later(walk: Walk) -> None:
    """It is gone before its files are looked at; they are read from the sealed snapshot."""
    run = walk.run()
    walk.step()

    assert walk.status(run) == RunStatus.COLLECTING
    assert walk.leftovers() == []


@pytest.mark.parametrize("spoilt", ["pack_blob", "snapshot"])
def test_BUG12_a_file_that_is_rewritten_before_it_is_read(walk: Walk, spoilt: str) -> None:
    run = walk.run()
    walk.step()
    if spoilt == "pack_blob":
        walk.step()
        digest = Candidate.objects.get(run=run).pack_blob
    else:
        checkpoint = run.checkpoints.last()
        assert checkpoint is not None
        digest = checkpoint.snapshot_blob
    _other_bytes(blobs.path_of(walk.cast.acme.pk, digest))

    walk.drain()

    assert walk.status(run) == RunStatus.FAILED
    assert run.failure_boundary == "recovery"
    assert not publication_packets(run)


def test_G10_a_check_of_other_bytes_does_not_count(walk: Walk) -> None:
    run = walk.run()
    walk.step()  # the agent
    walk.step()  # the candidate
    walk.step()  # the checks
    Receipt.objects.filter(check_name="paths").update(input_digest="0" * 64)
    walk.drain()

    packet = walk.open_packet(run)
    assert "the check paths judged other bytes" in packet.blocked
    with pytest.raises(Exception, match="judged other bytes"):
        walk.decide(packet)


def test_G10_a_later_candidate_needs_checks_of_its_own(walk: Walk) -> None:
    first = walk.to_review(REPAIR, [[call("more", "exec_command", cmd="touch more")], REPAIR[-1]])
    walk.decide(first, verdict=Verdict.REQUEST_CHANGES, comment="One more file.")
    walk.drain()
    second = walk.open_packet(first.run)

    one, two = candidate_of(first), candidate_of(second)
    assert one.digest != two.digest
    for candidate in (one, two):
        judged = set(Receipt.objects.filter(candidate=candidate).values_list("input_digest"))
        assert judged == {(candidate.digest,)}
    assert one.superseded
    assert not two.superseded


# --- The target, as a git repository -------------------------------------------------


def test_G03_the_branch_is_there_with_the_same_commit(walk: Walk) -> None:
    publication = walk.to_publish()
    with walk_repository(walk, publication) as bare:
        git("fetch", "-q", str(bare), publication.commit, cwd=walk.root / "adder.git")
    ref = f"refs/heads/{publication.branch}"
    git("update-ref", ref, publication.commit, cwd=walk.root / "adder.git")

    walk.drain()

    assert walk.fresh(publication).state == PublicationState.DONE
    assert walk.tree(publication.branch) == publication.tree


@contextmanager
def walk_repository(walk: Walk, publication: Publication) -> Iterator[Path]:
    """A repository that holds the very commit that will be published."""
    target = walk.root / "elsewhere.git"
    git("clone", "-q", "--bare", str(walk.root / "adder.git"), str(target), cwd=walk.root)
    contract = contract_of(publication.run)
    bare = repositories.bare_with_candidate(
        publication.run, contract, publication.candidate, walk.root / "objects.git"
    )
    intent = plans.plan(publication.run, contract, publication.candidate).intent()
    GitPublisher(GitOptions(local_roots=(walk.root,))).publish(
        replace(intent, target=Target("git", str(target))), bare, None
    )
    git("config", "uploadpack.allowAnySHA1InWant", "true", cwd=target)
    yield target


def test_G03_the_branch_is_there_with_foreign_commits(walk: Walk) -> None:
    publication = walk.to_publish()
    theirs = commit_on(walk.root / "adder.git", publication.branch, {"theirs.txt": "mine\n"})

    walk.drain()

    assert walk.fresh(publication).error_code == "publish.target_conflict"
    assert walk.status(publication.run) == RunStatus.FAILED
    head = git("rev-parse", publication.branch, cwd=walk.root / "adder.git")
    assert head == theirs  # nobody's work was pushed over


# --- The target, as a forge ------------------------------------------------------------


@dataclass
class Forge:
    """A stub of GitHub, held to its published description, and the walk that publishes to it."""

    walk: Walk
    hub: GitHubStub

    def to_publish(self) -> Publication:
        target = (
            'kind = "github"\nrepository = "acme/adder"\nbase = "main"\n'
            f'api = "{self.hub.url}"\ncredential = "forge"'
        )
        return self.walk.to_publish(target=target)


@pytest.fixture
def forge(walk: Walk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Forge]:
    store = tmp_path / "served" / "acme" / "adder.git"
    store.parent.mkdir(parents=True)
    git("clone", "-q", "--bare", str(walk.root / "adder.git"), str(store), cwd=tmp_path)
    git("config", "http.receivepack", "true", cwd=store)
    with (
        git_server(tmp_path / "served", TOKEN) as server,
        github_stub(store, "acme/adder", TOKEN) as hub,
    ):
        options = GitHubOptions(
            api_url=hub.url,
            git_url=server.url,
            git=GitOptions(allow_http=True, look_again=(0.0, 0.0)),
            look_again=(0.0, 0.0, 0.0),
        )
        monkeypatch.setattr(publishing, "publisher_for", lambda target: GitHubPublisher(options))
        give_credential(walk, TOKEN, "forge", hub.url.removeprefix("http://"))
        yield Forge(walk, hub)
    assert hub.violations == []


def test_G02_the_answer_to_a_draft_is_lost(forge: Forge) -> None:
    """It was made: looking finds it by branch and marker, and there is one."""
    publication = forge.to_publish()
    forge.hub.fault("POST", "lose answer")

    forge.walk.drain()

    assert forge.walk.fresh(publication).state == PublicationState.DONE
    assert publication.note
    assert len(forge.hub.pulls) == 1


def test_G02_looking_gives_no_answer_either(forge: Forge) -> None:
    publication = forge.to_publish()
    forge.hub.fault("POST", "lose answer")
    lost: list[Canned | AfterAct] = ["lose answer"] * 8
    forge.hub.faults["GET"] = [AS_IT_IS, *lost]  # the look before the act is answered

    forge.walk.drain()
    for _ in range(3):
        forge.walk.sweep()

    assert forge.walk.fresh(publication).state == PublicationState.UNKNOWN
    forge.hub.faults.clear()
    assert publishing.reconcile(publication.public_id, member=forge.walk.cast.ada) == "done"
    assert len(forge.hub.pulls) == 1


def test_G04_a_draft_for_our_commit_is_there_already(forge: Forge) -> None:
    publication = forge.to_publish()
    with_head(forge, publication)
    forge.hub.add_pull(publication.branch, body=publication.body, draft=True)

    forge.walk.drain()

    assert forge.walk.fresh(publication).state == PublicationState.DONE
    assert len(forge.hub.pulls) == 1
    assert publication.url == forge.hub.pulls[0]["html_url"] or publication.url.endswith("/pull/1")


def with_head(forge: Forge, publication: Publication) -> None:
    """Our commit is at the forge already, as an earlier attempt would have left it."""
    with walk_repository(forge.walk, publication) as bare:
        git("fetch", "-q", str(bare), publication.commit, cwd=forge.hub.store)
    git("update-ref", f"refs/heads/{publication.branch}", publication.commit, cwd=forge.hub.store)


def test_G04_a_pull_request_with_foreign_commits_is_there(forge: Forge) -> None:
    publication = forge.to_publish()
    theirs = commit_on(forge.hub.store, publication.branch, {"theirs.txt": "mine\n"})
    forge.hub.add_pull(publication.branch)

    forge.walk.drain()

    assert forge.walk.fresh(publication).error_code == "publish.target_conflict"
    assert forge.hub.head(publication.branch) == theirs
    assert len(forge.hub.pulls) == 1


def test_G05_BUG44_the_forge_has_no_drafts(forge: Forge) -> None:
    publication = forge.to_publish()
    forge.hub.drafts_supported = False

    forge.walk.drain()

    assert forge.walk.fresh(publication).error_code == "publish.drafts_unsupported"
    assert "does not support draft pull requests" in publication.note
    assert forge.walk.status(publication.run) == RunStatus.FAILED
    assert forge.hub.pulls == []  # and no ready one instead
    assert [order["draft"] for order in forge.hub.orders()] == [True]


def test_BUG43_two_refusals_with_the_same_status_are_two_things(forge: Forge) -> None:
    first = forge.to_publish()
    forge.walk.drain()
    second = forge.to_publish()
    forge.hub.drafts_supported = False
    forge.walk.drain()

    assert forge.walk.fresh(first).state == PublicationState.DONE
    assert forge.walk.fresh(second).error_code == "publish.drafts_unsupported"
    assert [pull["draft"] for pull in forge.hub.pulls] == [True]


def test_a_credential_goes_only_to_the_hosts_it_is_meant_for(forge: Forge) -> None:
    """The contract may name any target; the credential says where it may be sent."""
    publication = forge.to_publish()
    give_credential(forge.walk, TOKEN, "forge")

    forge.walk.drain()

    assert forge.walk.fresh(publication).error_code == "publication.not_prepared"
    assert "may not be sent to" in publication.note
    assert forge.hub.seen == []


def test_a_github_apps_token_is_for_the_one_repository_and_ends_with_the_act(forge: Forge) -> None:
    """The App reaches every repository; what it makes for a publication reaches the target."""
    with serving(GitHub(always=TOKEN)) as github:
        assert isinstance(github, GitHub)
        Credential.objects.filter(name="forge").update(
            kind="github_app",
            config={
                **{"app": github.app, "installation": github.installation, "api": github.url},
                "repositories": "*",
            },
            sealed=vault.seal(private_key().encode()),
            actions=["contents:write", "issues:write", "pull_requests:write"],
        )
        publication = forge.to_publish()
        shown = [
            (row["change"], row["may"], row["on"].partition(" ")[0])
            for row in publication.packet.page["scope"]
        ]
        assert github.asked == []
        forge.walk.drain()

    assert forge.walk.fresh(publication).state == PublicationState.DONE
    made, taken = github.asked
    assert made.json["repositories"] == ["adder"]
    wanted = {"contents": "write", "metadata": "read", "pull_requests": "write"}
    assert made.json["permissions"] == wanted
    assert shown == [("added", f"{k}:{v}", "acme/adder") for k, v in sorted(wanted.items())]
    assert (taken.method, taken.path) == ("DELETE", "/installation/token")
    assert github.alive == set()


# --- The workspace -----------------------------------------------------------------------


LINKS = "ln -s /etc/passwd out; ln -s ../../../../etc up; ln -s one two; ln -s two three; ln -s x x"
READ = "readlink out; readlink up; readlink two; readlink three; readlink x"


def test_BUG09_BUG10_links_survive_the_wait_and_lead_nowhere(walk: Walk) -> None:
    """Relative, chained, looping and escaping links come back as they were, as links."""
    steps = [
        [call("make", "exec_command", cmd=f"echo 1 > one; {LINKS}; {READ}")],
        [call("file", "create_issue", title="Wait")],
        [call("read", "exec_command", cmd=READ)],
        REPAIR[-1],
    ]
    packet = walk.to_call(steps)
    walk.decide(packet)
    walk.drain()

    results = dict(packet.run.calls.values_list("call_id", "result"))
    inside, outside = ["one", "two", "x"], ["/etc/passwd", "../../../../etc"]

    def read(call_id: str) -> list[str]:
        return [line for line in results[call_id].splitlines() if line in inside + outside]

    assert read("make") == outside + inside
    assert read("read") == inside
    # What was not kept is named, not lost in silence.
    saved = Event.objects.filter(run=packet.run, kind="checkpoint.saved").order_by("seq")[0]
    assert {"repo/out", "repo/up"} == {each.partition(":")[0] for each in saved.facts["left_out"]}
    # Nothing of this machine got into the candidate, and a link is shown as a link.
    candidate = Candidate.objects.get(run=packet.run)
    modes = {each["path"]: each["new_mode"] for each in candidate.changes}
    assert {path for path, mode in modes.items() if mode == "120000"} == {"two", "three", "x"}
    stored = blobs.get(candidate.tenant_id, candidate.patch_blob).decode()
    assert Path("/etc/passwd").read_text().splitlines()[0] not in stored
