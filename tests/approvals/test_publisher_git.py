"""Publishing to a plain git remote: a real `git http-backend`, and paths."""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from approvals.publishers import (
    BaseChanged,
    ContentMismatch,
    Credential,
    Found,
    IntentRefused,
    OutcomeUnknown,
    PublishError,
    RateLimited,
    TargetConflict,
    TargetRefused,
    TargetUnavailable,
    commit_id,
)
from approvals.publishers.git import GitOptions, GitPublisher
from tests.approvals.git_server import Fault, GitServer, commit_on, git, git_server
from tests.approvals.publisher_kit import BRANCH, MARKER, Bench, make_bench

DEADLINE = 60.0


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return make_bench(tmp_path)


@pytest.fixture
def server(bench: Bench) -> Iterator[GitServer]:
    with git_server(bench.store.parents[1], bench.token) as running:
        yield running


@pytest.fixture
def publisher() -> GitPublisher:
    return GitPublisher(GitOptions(allow_http=True, look_again=(0.0, 0.0)))


def address(server: GitServer) -> str:
    return f"{server.url}/acme/parser.git"


def test_a_branch_is_made_once_with_the_approved_tree(
    bench: Bench, server: GitServer, publisher: GitPublisher
) -> None:
    intent = bench.intent(address(server))
    assert publisher.look(intent, bench.credential) is None

    published = publisher.publish(intent, bench.bare, bench.credential)

    assert (published.commit, published.tree) == (commit_id(intent), bench.tree)
    assert (published.existed, published.note, published.url) == (False, "", None)
    assert git(bench.store, "rev-parse", f"{BRANCH}^{{tree}}") == bench.tree
    assert git(bench.store, "rev-parse", f"{BRANCH}^") == bench.base
    trailer = git(bench.store, "log", "-1", "--format=%(trailers:only)", BRANCH)
    assert trailer == f"Imprimatur-Publication: {MARKER}"
    assert git(bench.store, "log", "-1", "--format=%an <%ae> %at %ct", BRANCH) == (
        "Imprimatur <imprimatur@example.org> 1767323045 1767323045"
    )
    assert publisher.look(intent, bench.credential) == Found(BRANCH, commit_id(intent))

    pushes = server.pushes()
    again = publisher.publish(intent, bench.bare, bench.credential)
    assert again.existed
    assert (again.commit, again.tree) == (published.commit, published.tree)
    assert server.pushes() == pushes


def test_the_portals_own_repository_is_not_written(
    bench: Bench, server: GitServer, publisher: GitPublisher
) -> None:
    def files() -> set[Path]:
        return {path for path in bench.bare.rglob("*") if path.is_file()}

    before = files()
    publisher.publish(bench.intent(address(server)), bench.bare, bench.credential)
    assert files() == before


def test_a_bearer_credential_is_sent_as_one(
    bench: Bench, server: GitServer, publisher: GitPublisher
) -> None:
    server.accepted = {f"Bearer {bench.token}"}
    intent = bench.intent(address(server))
    published = publisher.publish(intent, bench.bare, Credential(bench.token, scheme="bearer"))
    assert bench.head() == published.commit


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_a_path_is_published_to_below_an_allowed_root_only(
    tmp_path: Path, object_format: str
) -> None:
    place = tmp_path / 'a "place" \\ of: \u00e9'
    place.mkdir()
    bench = make_bench(place, object_format=object_format)
    link = tmp_path / "link.git"
    link.symlink_to(bench.store)
    intent = bench.intent(str(link))

    for roots in ((), (tmp_path / "elsewhere",)):
        with pytest.raises(IntentRefused, match="outside the directories"):
            GitPublisher(GitOptions(local_roots=roots)).publish(intent, bench.bare, None)
    publisher = GitPublisher(GitOptions(local_roots=(bench.store.parent,)))
    with pytest.raises(IntentRefused, match="takes no credential"):
        publisher.publish(intent, bench.bare, bench.credential)
    assert not bench.head()

    assert publisher.publish(intent, bench.bare, None).tree == bench.tree
    assert bench.head() == commit_id(intent)


@pytest.mark.parametrize(
    "bad",
    [
        "http://git.example.org/acme/parser.git",
        "ssh://git@git.example.org/acme/parser.git",
        "git://git.example.org/acme/parser.git",
        "ext::sh -c true",
        "git@git.example.org:acme/parser.git",
        "https://user:word@git.example.org/acme/parser.git",
        "https://git.example.org/acme/parser.git?x=1",
        "https:///acme/parser.git",
        "--upload-pack=true",
        "https://git.example.org/a\nb",
        "",
    ],
)
def test_an_address_of_another_kind_is_refused(bench: Bench, bad: str) -> None:
    with pytest.raises(IntentRefused):
        GitPublisher().look(bench.intent(bad), None)


# --- Who may, and whether it is there -------------------------------------


def test_a_wrong_credential_is_refused_and_not_shown(
    bench: Bench, server: GitServer, publisher: GitPublisher
) -> None:
    wrong = Credential(bench.token[::-1] + "x")
    for credential in (wrong, None):
        with pytest.raises(TargetRefused, match="Renew the credential") as refused:
            publisher.publish(bench.intent(address(server)), bench.bare, credential)
        assert refused.value.status == 401
        assert not refused.value.retry_safe
        assert wrong.token not in f"{refused.value} {refused.value.facts}"
    assert not bench.head()
    assert wrong.token not in repr(wrong)


def test_the_credential_is_in_no_argument_list_and_in_no_file(
    bench: Bench,
    server: GitServer,
    publisher: GitPublisher,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rooms = tmp_path / "rooms"
    rooms.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(rooms))
    arrived, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        arrived.set()
        go_on.wait(DEADLINE)

    server.before_push = hold
    intent = bench.intent(address(server))
    secrets = {bench.token.encode(), *(way.split()[1].encode() for way in server.accepted)}
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publisher.publish, intent, bench.bare, bench.credential)
        assert arrived.wait(DEADLINE)
        arguments = b"".join(_read(path) for path in Path("/proc").glob("[0-9]*/cmdline"))
        files = b"".join(_read(path) for path in rooms.rglob("*") if path.is_file())
        go_on.set()
        publishing.result(DEADLINE)

    assert b"git-remote-http" in arguments or b"remote-http" in arguments
    assert not [secret for secret in secrets if secret in arguments + files]
    assert not list(rooms.iterdir())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_nothing_of_anybodys_configuration_is_used(
    bench: Bench,
    server: GitServer,
    publisher: GitPublisher,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hooks and rewrites in the home directory, and in the repository a run came from."""
    ran = tmp_path / "ran"
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("pre-push", "reference-transaction", "post-index-change"):
        hook = hooks / name
        hook.write_text(f"#!/bin/sh\ntouch {ran}\n")
        hook.chmod(0o755)
    rewrite = f'[core]\n\thooksPath = {hooks}\n[url "file:///nowhere/"]\n\tinsteadOf = http://\n'
    (tmp_path / ".gitconfig").write_text(rewrite)
    (bench.bare / "config").write_text((bench.bare / "config").read_text() + rewrite)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / ".gitconfig"))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    publisher.publish(bench.intent(address(server)), bench.bare, bench.credential)

    assert bench.head()
    assert not ran.exists()


@pytest.mark.parametrize(
    ("status", "kind", "retry_safe"),
    [
        (403, TargetRefused, False),
        (404, TargetRefused, False),
        (410, TargetRefused, False),
        (429, RateLimited, True),
        (500, TargetUnavailable, True),
        (503, TargetUnavailable, True),
        ("never act", TargetUnavailable, True),
    ],
)
def test_what_fails_before_any_effect_says_so(
    bench: Bench,
    server: GitServer,
    publisher: GitPublisher,
    status: Fault,
    kind: type[PublishError],
    retry_safe: bool,
) -> None:
    # At the first question, and at the question that begins the push.
    well: list[list[Fault]] = [[], ["behave"]]
    for before in well:
        server.faults.clear()
        server.fault("discovery", *before, *[status] * 4)
        with pytest.raises(kind) as failed:
            publisher.publish(bench.intent(address(server)), bench.bare, bench.credential)
        assert failed.value.retry_safe is retry_safe
        assert server.pushes() == 0


def test_a_repository_that_is_not_there_is_named(
    bench: Bench, server: GitServer, publisher: GitPublisher
) -> None:
    with pytest.raises(TargetRefused, match="no such repository") as refused:
        publisher.look(bench.intent(f"{server.url}/acme/other.git"), bench.credential)
    assert refused.value.status == 404
    nowhere = GitPublisher(GitOptions(local_roots=(bench.store.parent,)))
    with pytest.raises(TargetRefused, match="no such repository"):
        nowhere.look(bench.intent(str(bench.store.parent / "other.git")), None)


def test_a_host_that_does_not_answer_may_be_tried_again(
    bench: Bench, publisher: GitPublisher
) -> None:
    with git_server(bench.store.parents[1], bench.token) as gone:
        closed = address(gone)
    with pytest.raises(TargetUnavailable) as failed:
        publisher.publish(bench.intent(closed), bench.bare, bench.credential)
    assert failed.value.retry_safe


def test_a_redirect_takes_the_credential_nowhere(
    bench: Bench, server: GitServer, publisher: GitPublisher
) -> None:
    with git_server(bench.store.parents[1], bench.token) as other:
        server.moved_to = other.url
        with pytest.raises(TargetRefused, match="redirects are not followed"):
            publisher.publish(bench.intent(address(server)), bench.bare, bench.credential)
        assert other.seen == []


# --- The push that may have arrived ---------------------------------------


@pytest.mark.parametrize("fault", ["then 502", "lose answer"])
def test_a_push_whose_answer_was_lost_is_found(
    bench: Bench, server: GitServer, publisher: GitPublisher, fault: Fault
) -> None:
    server.fault("push", fault)
    intent = bench.intent(address(server))
    published = publisher.publish(intent, bench.bare, bench.credential)
    assert published.tree == bench.tree
    assert bench.head() == commit_id(intent)


def test_a_push_that_hangs_is_ended_and_found(bench: Bench, server: GitServer) -> None:
    """The wait is bounded, git's helpers end with it, and the effect is seen."""
    server.fault("push", "hang")
    impatient = GitPublisher(GitOptions(allow_http=True, timeout=5.0, look_again=(0.0,)))
    published = impatient.publish(bench.intent(address(server)), bench.bare, bench.credential)
    assert "then found" in published.note
    assert bench.head() == published.commit


def test_an_unknown_outcome_is_said_and_settled_by_looking(
    bench: Bench, server: GitServer, publisher: GitPublisher
) -> None:
    """Done, no answer, and the host is down when we look: unknown. Later it is found."""
    server.fault("push", "then 502")
    server.fault("discovery", "behave", "behave", 500, 500)
    intent = bench.intent(address(server))
    with pytest.raises(OutcomeUnknown) as unknown:
        publisher.publish(intent, bench.bare, bench.credential)
    assert not unknown.value.retry_safe
    assert commit_id(intent)[:12] in str(unknown.value)

    assert publisher.look(intent, bench.credential) == Found(BRANCH, commit_id(intent))
    assert publisher.publish(intent, bench.bare, bench.credential).existed


def test_a_push_that_failed_in_the_middle_is_unknown_too(
    bench: Bench, server: GitServer, publisher: GitPublisher
) -> None:
    """Nothing is there yet, but the other side may still be at it: a person or time decides."""
    server.fault("push", 500)
    with pytest.raises(OutcomeUnknown):
        publisher.publish(bench.intent(address(server)), bench.bare, bench.credential)
    assert publisher.look(bench.intent(address(server)), bench.credential) is None


def test_a_push_that_cannot_be_read_back_is_neither_done_nor_failed(
    bench: Bench, server: GitServer, publisher: GitPublisher
) -> None:
    """The credential is revoked in the moment after the push was accepted."""
    intent = bench.intent(address(server))
    server.fault("discovery", "behave", "behave", 403)
    with pytest.raises(OutcomeUnknown, match="could not be read back"):
        publisher.publish(intent, bench.bare, bench.credential)
    assert publisher.look(intent, bench.credential) == Found(BRANCH, commit_id(intent))


def test_a_push_that_was_refused_is_not_unknown(
    bench: Bench, server: GitServer, publisher: GitPublisher
) -> None:
    for status in (403, 413):
        server.fault("push", status)
        with pytest.raises(TargetRefused) as refused:
            publisher.publish(bench.intent(address(server)), bench.bare, bench.credential)
        assert refused.value.status == status


# --- What stands in the way -----------------------------------------------


def test_a_foreign_branch_is_never_moved(
    bench: Bench, server: GitServer, publisher: GitPublisher
) -> None:
    theirs = commit_on(bench.store, BRANCH, {"parser.py": "theirs\n"})
    intent = bench.intent(address(server))
    with pytest.raises(TargetConflict, match="by Somebody Else") as conflict:
        publisher.publish(intent, bench.bare, bench.credential)
    assert not conflict.value.retry_safe
    assert bench.head() == theirs
    assert publisher.look(intent, bench.credential) is None
    with pytest.raises(ContentMismatch):
        publisher.verify_remote(intent, bench.credential)


def test_a_branch_made_in_the_same_moment_is_never_moved(
    bench: Bench, server: GitServer, publisher: GitPublisher
) -> None:
    """After our look and before our push: the push itself must be conditional."""
    server.before_push = lambda: commit_on(bench.store, BRANCH, {"parser.py": "theirs\n"})
    with pytest.raises(TargetConflict):
        publisher.publish(bench.intent(address(server)), bench.bare, bench.credential)
    assert git(bench.store, "log", "-1", "--format=%an", BRANCH) == "Somebody Else"


def test_a_twin_of_this_call_comes_to_the_same_end(
    bench: Bench, server: GitServer, publisher: GitPublisher
) -> None:
    intent = bench.intent(address(server))

    def twin() -> None:
        publisher.publish(intent, bench.bare, bench.credential)

    server.before_push = twin
    published = publisher.publish(intent, bench.bare, bench.credential)
    assert published.existed
    assert bench.head() == published.commit


def test_work_on_top_of_ours_is_a_conflict_that_says_it_happened(
    bench: Bench, server: GitServer, publisher: GitPublisher
) -> None:
    intent = bench.intent(address(server))
    publisher.publish(intent, bench.bare, bench.credential)
    theirs = commit_on(bench.store, BRANCH, {"parser.py": "theirs\n"})
    with pytest.raises(TargetConflict, match="on top"):
        publisher.look(intent, bench.credential)
    with pytest.raises(TargetConflict):
        publisher.publish(intent, bench.bare, bench.credential)
    with pytest.raises(ContentMismatch, match=theirs[:12]):
        publisher.verify_remote(intent, bench.credential)


def test_a_branch_whose_name_is_part_of_ours_is_a_conflict(
    bench: Bench, server: GitServer, publisher: GitPublisher
) -> None:
    commit_on(bench.store, "imprimatur", {"README": "theirs\n"})
    with pytest.raises(TargetConflict, match="part of"):
        publisher.publish(bench.intent(address(server)), bench.bare, bench.credential)


def test_a_rule_of_the_target_is_passed_on_in_its_words(
    bench: Bench, server: GitServer, publisher: GitPublisher
) -> None:
    hook = bench.store / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nprintf 'Only \\033[31mMonday\\n' >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(TargetRefused, match="Monday") as refused:
        publisher.publish(bench.intent(address(server)), bench.bare, bench.credential)
    assert str(refused.value).isprintable()
    assert not bench.head()


# --- The base -------------------------------------------------------------


def test_G06_a_base_that_only_grew(
    bench: Bench, server: GitServer, publisher: GitPublisher
) -> None:
    intent = bench.intent(address(server))
    grown = commit_on(bench.store, "main", {"README": "More.\n"})
    with pytest.raises(BaseChanged, match=grown[:12]):
        publisher.publish(
            bench.intent(address(server), when_base_moved="stale"), bench.bare, bench.credential
        )
    assert not bench.head()

    published = publisher.publish(intent, bench.bare, bench.credential)
    assert grown[:12] in published.note
    assert git(bench.store, "rev-parse", f"{BRANCH}^") == bench.base


def test_G06_a_base_that_was_rewritten_or_deleted_is_never_published_against(
    bench: Bench, server: GitServer, publisher: GitPublisher
) -> None:
    """A merge would bring another diff than the one that was approved."""
    intent = bench.intent(address(server))
    git(bench.store, "update-ref", "-d", "refs/heads/main")
    with pytest.raises(BaseChanged, match="not there any more"):
        publisher.publish(intent, bench.bare, bench.credential)
    commit_on(bench.store, "main", {"README": "A new start.\n"}, new_root=True)
    with pytest.raises(BaseChanged, match="was rewritten"):
        publisher.publish(intent, bench.bare, bench.credential)
    assert not bench.head()
    assert server.pushes() == 0


# --- The bytes ------------------------------------------------------------


def test_bytes_swapped_on_disk_after_the_approval_are_not_sent(
    bench: Bench, server: GitServer, publisher: GitPublisher
) -> None:
    """Git does not hash what it reads; the publisher does."""
    blob = git(bench.bare, "rev-parse", f"{bench.tree}:parser.py")
    swapped = bench.bare / "objects" / blob[:2] / blob[2:]
    swapped.chmod(0o644)
    swapped.write_bytes(zlib.compress(b"blob 6\0evil!\n"))
    with pytest.raises(ContentMismatch):
        publisher.publish(bench.intent(address(server)), bench.bare, bench.credential)
    assert not bench.head()
    assert server.pushes() == 0


def test_a_tree_or_base_that_is_gone_is_not_published(
    bench: Bench, server: GitServer, publisher: GitPublisher, tmp_path: Path
) -> None:
    intent = bench.intent(address(server))
    for gone in (
        replace(intent, tree_sha="1" * 40),
        replace(intent, base_commit="2" * 40),
        replace(intent, tree_sha=bench.base),
    ):
        with pytest.raises(ContentMismatch):
            publisher.publish(gone, bench.bare, bench.credential)
    with pytest.raises(ContentMismatch):
        publisher.publish(bench.intent(address(server)), tmp_path / "gone.git", bench.credential)
    assert server.pushes() == 0


def test_verifying_reads_the_remote_and_not_our_copy(
    bench: Bench, server: GitServer, publisher: GitPublisher
) -> None:
    intent = bench.intent(address(server))
    with pytest.raises(ContentMismatch, match="not there"):
        publisher.verify_remote(intent, bench.credential)
    publisher.publish(intent, bench.bare, bench.credential)
    assert publisher.verify_remote(intent, bench.credential).tree == bench.tree


def test_no_process_and_no_directory_is_left(
    bench: Bench, server: GitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms = tmp_path / "rooms"
    rooms.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(rooms))
    server.fault("push", "hang")
    impatient = GitPublisher(GitOptions(allow_http=True, timeout=5.0, look_again=()))
    with pytest.raises(OutcomeUnknown, match="no answer within 5 seconds"):
        impatient.publish(bench.intent(address(server)), bench.bare, bench.credential)
    assert not list(rooms.iterdir())

    # The server's own git runs below another directory, so only ours can match.
    def ours() -> list[str]:
        places = (_place(path) for path in Path("/proc").glob("[0-9]*/cwd"))
        return [place for place in places if place.startswith(str(rooms))]

    deadline = time.monotonic() + DEADLINE
    while ours() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ours() == []


def _place(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
