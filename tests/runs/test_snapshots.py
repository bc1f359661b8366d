"""What of a workspace is saved, what is not, and that both are told."""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from approvals.models import Candidate
from approvals.states import Verdict
from portal import blobs
from runs import lifecycle, snapshots
from runs.models import Checkpoint
from runs.sandbox import Sandbox, Taken, archive
from runs.states import RunStatus
from tests.cast import REPAIR, call, contract_text, make_repository, say
from tests.visits import Visitor, text_of
from tests.walk import Walk


class Given:
    """A sandbox of which nothing matters but the archive that its tar gives."""

    def __init__(self, files: dict[str, bytes], links: dict[str, str] | None = None) -> None:
        self.tar = io.BytesIO()
        writer = archive.Writer(self.tar)
        for name, content in files.items():
            info = archive.header(name, "file", 0o644, len(content))
            writer.add(info, [memoryview(content)])
        for name, target in (links or {}).items():
            writer.add(archive.header(name, "link", 0o777, target=target))
        writer.end()

    async def snapshot_into(self, out: BinaryIO, keeper: archive.Keeper) -> Taken:
        writer = archive.Writer(out)
        room = {"max_bytes": 1 << 20, "max_files": 10_000}
        left_out = archive.clean(self.tar, writer, **room, keeper=keeper)
        writer.end()
        return Taken(writer.size, left_out)


class Untrue(Given):
    """One that does not clean what it gives, or has written more than is there."""

    def __init__(self, files: dict[str, bytes], links: dict[str, str], more: int = 0) -> None:
        super().__init__(files, links)
        self._more = more

    async def snapshot_into(self, out: BinaryIO, keeper: archive.Keeper) -> Taken:
        data = self.tar.getvalue()
        out.write(data)
        return Taken(len(data) + self._more, ())


def kept(given: Given, tracked: Callable[[], Collection[str]] = list) -> snapshots.Saved:
    return asyncio.run(snapshots.keep(1, cast(Sandbox, given), tracked))


def stored(store: Path) -> list[Path]:
    return [path for path in (store / "blobs").rglob("*") if path.is_file()]


def names(tenant_id: int, sha256: str) -> list[str]:
    with blobs.open_checked(tenant_id, sha256) as opened:
        return [member.name for member in archive.members(opened)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("repo/.env", "secret"),
        ("repo/deep/down/.ssh/id_ed25519", "secret"),
        ("output/.netrc", "secret"),
        ("repo/pkg/__pycache__/a.pyc", "cache"),
        ("repo/.pytest_cache/v/x", "cache"),
        ("repo/big.iso.part", "download"),
        ("repo/.bash_history", "history"),
        ("repo/.mozilla/profile", "browser"),
        ("output/.config/chromium/Default", "browser"),
    ],
)
def test_what_never_belongs_in_a_checkpoint(name: str, kind: str) -> None:
    found = snapshots.excluded_at(name)
    assert found is not None
    assert found[1] == kind
    assert name.startswith(found[0])


@pytest.mark.parametrize(
    "name",
    [
        *("repo/adder.py", "repo/.envrc", "repo/env", "repo/src/chromium/x.py", "input/.env"),
        *("repo/part", "output/report.md", "repo/.gitignore", "repo", "repo/.env.example"),
    ],
)
def test_what_is_saved(name: str) -> None:
    assert snapshots.excluded_at(name) is None


@pytest.fixture
def store(tmp_path: Path, settings: Any) -> Path:
    settings.BLOB_DIR = tmp_path / "blobs"
    return tmp_path


def test_excluded_things_are_named_and_the_rest_is_whole(store: Path) -> None:
    files = {
        "repo/adder.py": b"def add(): ...\n",
        "repo/.env": b"TOKEN=x\n",
        "repo/pkg/__pycache__/a.pyc": b"1",
        "repo/pkg/__pycache__/b.pyc": b"2",
        "output/report.md": b"done\n",
    }

    saved = kept(Given(files, {"repo/link": "adder.py"}), lambda: ["adder.py"])

    assert names(1, saved.sha256) == ["repo/adder.py", "output/report.md", "repo/link"]
    assert saved.excluded == (
        {"path": "repo/.env", "kind": "secret", "files": 1},
        {"path": "repo/pkg/__pycache__", "kind": "cache", "files": 2},
    )
    done = hashlib.sha256(b"done\n").hexdigest()
    assert saved.artifacts == ({"path": "output/report.md", "sha256": done, "size": 5},)
    assert stored(store) == [blobs.path_of(1, saved.sha256)]
    assert saved.size == stored(store)[0].stat().st_size


def test_what_the_source_holds_is_saved(store: Path) -> None:
    """The candidate would show it as removed otherwise."""
    given = Given({"repo/.env": b"DEBUG=0\n", "repo/lib/.npmrc": b"x"})
    saved = kept(given, lambda: [".env", "adder.py"])
    assert names(1, saved.sha256) == ["repo/.env"]
    assert [each["path"] for each in saved.excluded] == ["repo/lib/.npmrc"]


def test_the_source_is_asked_only_if_it_matters(store: Path) -> None:
    def never() -> list[str]:
        raise AssertionError

    saved = kept(Given({"repo/adder.py": b"x", "output/.env": b"x"}), never)
    assert [each["path"] for each in saved.excluded] == ["output/.env"]


def test_nothing_is_stored_when_the_source_cannot_be_asked(store: Path) -> None:
    def fails() -> list[str]:
        raise OSError("no source")

    with pytest.raises(OSError, match="no source"):
        kept(Given({"repo/.env": b"x"}), fails)
    assert stored(store) == []


def test_many_are_counted(store: Path) -> None:
    many = snapshots.MOST_NAMED + 7
    saved = kept(Given({f"output/{at}/.env": b"x" for at in range(many)}))
    assert len(saved.excluded) == snapshots.MOST_NAMED + 1
    assert saved.excluded[-1] == {"path": "", "kind": "more", "files": 7}


def test_a_link_that_only_what_is_excluded_kept_inside_is_left_out(store: Path) -> None:
    """Followed it stays inside, by way of a cache. Restored without the cache it would not."""
    links = {"repo/.cache": "a/b/c", "repo/l": ".cache/../../../../output"}
    saved = kept(Given({"repo/a/b/c/x": b"1"}, links))
    assert names(1, saved.sha256) == ["repo/a/b/c/x"]
    assert [line.partition(":")[0] for line in saved.left_out] == ["repo/l"]


def test_a_snapshot_that_could_not_be_restored_is_not_depended_on(store: Path) -> None:
    given = Untrue({"repo/adder.py": b"x"}, {"repo/away": "../../etc/passwd"})
    with pytest.raises(snapshots.NotRestorable, match="leads outside"):
        kept(given)
    assert stored(store) == []


def test_a_snapshot_of_which_less_is_read_back_than_was_written_is_not_depended_on(
    store: Path,
) -> None:
    with pytest.raises(blobs.BlobDamaged):
        kept(Untrue({"repo/adder.py": b"x"}, {}, more=1))
    assert stored(store) == []


LITTER = (
    "mkdir -p .pytest_cache; echo TOKEN > .env; echo x > .pytest_cache/x; "
    "ln -s /etc/passwd away; echo x > ../output/kept.txt"
)


def test_a_checkpoint_lists_what_was_left_out_and_the_candidate_does_too(walk: Walk) -> None:
    """With a file of the source that looks like a secret: that one stays."""
    files = {"adder.py": "def add(a: int, b: int) -> int:\n    return a - b\n", ".npmrc": "x\n"}
    make_repository(walk.root, "withnpmrc", files)
    text = contract_text(verification=False).replace("adder.git", "withnpmrc.git")
    run = walk.run([[call("litter", "exec_command", cmd=LITTER)], *REPAIR], text=text)
    walk.drain()

    assert walk.status(run) == RunStatus.IN_REVIEW
    kept = Checkpoint.objects.get(run=run)
    assert {each["path"]: each["kind"] for each in kept.excluded} == {
        "repo/.env": "secret",
        "repo/.pytest_cache": "cache",
    }
    assert any(line.startswith("repo/away: ") for line in kept.left_out)
    assert {each["path"] for each in kept.artifacts} >= {"output/kept.txt"}
    page = text_of(Visitor(walk.cast.vic).get(f"/t/acme/runs/{run.public_id}/checkpoints/1/"))
    for words in ("repo/.env", "repo/.pytest_cache", "repo/away", "output/kept.txt"):
        assert words in page
    candidate = Candidate.objects.get(run=run)
    assert [each["path"] for each in candidate.changes] == ["adder.py"]
    told = {each["path"]: each["text"] for each in candidate.left_out}
    assert told[".env"] == "a secret is never saved"


def test_a_reviewed_checkpoint_is_never_overwritten_by_a_later_stop(walk: Walk) -> None:
    more = [[call("more", "exec_command", cmd="echo 1 >> adder.py")], [say("Once more.")]]
    packet = walk.to_review(REPAIR, more)
    reviewed = Checkpoint.objects.get(run=packet.run)
    before = Checkpoint.objects.filter(pk=reviewed.pk).values().get()
    content = blobs.get(reviewed.tenant_id, reviewed.snapshot_blob)

    walk.decide(packet, verdict=Verdict.REQUEST_CHANGES, comment="Once more.")
    walk.drain()

    assert Checkpoint.objects.filter(run=packet.run).count() >= 2
    assert Checkpoint.objects.filter(pk=reviewed.pk).values().get() == before
    assert blobs.get(reviewed.tenant_id, reviewed.snapshot_blob) == content
    assert lifecycle.last_checkpoint(packet.run) != reviewed
