"""The blob store: whole or not there, also when the disk is full or the writer is killed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from portal import blobs

HOUR = 3_600


@pytest.fixture
def store(tmp_path: Path, settings: Any) -> Path:
    settings.BLOB_DIR = tmp_path / "blobs"
    return tmp_path / "blobs"


def files(store: Path) -> list[Path]:
    return sorted(path for path in store.rglob("*") if path.is_file())


def stream(
    data: bytes, size: int | None = None, check: Callable[[BinaryIO], object] = lambda file: None
) -> str:
    """Store bytes as they come, as many as are said to have come."""
    with blobs.incoming(1) as incoming:
        with incoming.followed():
            incoming.file.write(data)
        return incoming.store(len(data) if size is None else size, check)


def test_what_is_stored_is_there_once_and_read_only(store: Path) -> None:
    assert blobs.put(1, b"twice") == stream(b"twice") == blobs.put(1, b"twice")
    (path,) = files(store)
    assert (path, path.stat().st_mode & 0o777) == (blobs.path_of(1, path.name), 0o400)
    assert blobs.get(1, path.name) == b"twice"


def emptied(path: Path) -> None:
    path.chmod(0o600)
    path.write_bytes(b"")


def altered(path: Path) -> None:
    path.chmod(0o600)
    path.write_bytes(b"other")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


@pytest.mark.parametrize("spoil", [emptied, altered, a_folder, a_link_to_itself, Path.unlink])
def test_what_is_not_as_it_was_stored_is_a_named_refusal(
    store: Path, spoil: Callable[[Path], None]
) -> None:
    sha256 = blobs.put(1, b"whole")
    spoil(blobs.path_of(1, sha256))
    for read in (blobs.get, blobs.open_checked):
        with pytest.raises(blobs.BlobDamaged, match=sha256[:12]):
            read(1, sha256)


def test_a_disk_that_gives_nothing_out_is_not_called_damage(store: Path) -> None:
    sha256 = blobs.put(1, b"whole")
    a_link_to_itself(blobs.path_of(1, sha256))
    with pytest.raises(blobs.BlobUnreadable, match="see to the disk"):
        blobs.get(1, sha256)


@pytest.mark.parametrize("spoil", [emptied, altered, a_link_to_itself, Path.unlink])
@pytest.mark.parametrize("how", ["bytes", "stream"])
def test_storing_the_same_bytes_again_mends_what_was_damaged(
    store: Path, how: str, spoil: Callable[[Path], None]
) -> None:
    sha256 = blobs.put(1, b"whole")
    spoil(blobs.path_of(1, sha256))
    again = blobs.put(1, b"whole") if how == "bytes" else stream(b"whole")
    assert (again, blobs.get(1, sha256)) == (sha256, b"whole")


@pytest.mark.parametrize("how", ["bytes", "stream"])
def test_nothing_is_left_when_the_disk_is_full(
    store: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        blobs.put(1, b"much") if how == "bytes" else stream(b"much")
    assert files(store) == []


@pytest.mark.parametrize("time_of_it", [1, 2])
def test_nobody_follows_a_stream_that_was_never_begun(
    store: Path, monkeypatch: pytest.MonkeyPatch, time_of_it: int
) -> None:
    """Without descriptors for both followers there is none that waits for the end for ever."""
    real, calls = os.dup, list[int]()

    def few(descriptor: int) -> int:
        calls.append(descriptor)
        if len(calls) == time_of_it:
            raise OSError(24, "Too many open files")
        return real(descriptor)

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "dup", few)
    with pytest.raises(OSError, match="Too many open files"):
        stream(b"much")
    deadline = time.monotonic() + 10
    while following() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert following() == []
    assert len(os.listdir("/proc/self/fd")) == before
    assert files(store) == []


def test_nobody_follows_where_no_thread_can_be_started(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="no thread"):
            stream(b"much")
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    assert files(store) == []


def following() -> list[str]:
    """The threads that follow a writer."""
    return [each.name for each in threading.enumerate() if each.name.startswith("blob")]


def test_a_stream_becomes_a_blob_only_as_what_it_is_said_to_be(store: Path) -> None:
    with pytest.raises(blobs.BlobDamaged):
        stream(b"some", size=5)

    def refuse(file: BinaryIO) -> None:
        raise ValueError("nothing to restore")

    with pytest.raises(ValueError, match="nothing to restore"):
        stream(b"these", check=refuse)
    with blobs.incoming(1) as incoming:
        incoming.file.write(b"nobody stores this")
    assert files(store) == []


def test_a_blob_is_on_the_disk_under_its_name_before_anybody_depends_on_it(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    path = blobs.path_of(1, stream(b"kept"))
    assert Path(synced[0]).parent == path.parents[1] / "incoming"
    assert synced[1:] == [str(path.parent)]


def test_what_a_killed_writer_leaves_is_removed_and_a_living_ones_is_not(store: Path) -> None:
    code = (
        "import os, sys, time, portal.blobs as b; from django.conf import settings;"
        f"settings.configure(BLOB_DIR={str(store)!r});"
        "b.os.fsync = lambda d: (print('there', flush=True), time.sleep(60)); b.put(1, b'half')"
    )
    with subprocess.Popen(
        (sys.executable, "-c", code), stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "there\n"
        (half,) = files(store)
        long_ago = time.time() - HOUR
        os.utime(half, (long_ago, long_ago))
        assert blobs.tidy() == []  # somebody still writes
        writer.kill()
    assert blobs.tidy() == [f"half a blob {half.name}"]
    assert files(store) == []


def test_what_is_put_while_it_is_being_removed_stays(store: Path, monkeypatch: Any) -> None:
    """Whoever puts it finds it whole, and refers to it: it must not go a moment later."""
    listed = time.time() - HOUR
    sha256 = blobs.put(1, b"wanted again")
    os.utime(blobs.path_of(1, sha256), (listed - HOUR, listed - HOUR))
    move = os.rename
    put = iter([True])

    def rename(source: Path, target: Path) -> None:
        if next(put, False):
            assert blobs.put(1, b"wanted again") == sha256
        move(source, target)

    monkeypatch.setattr(os, "rename", rename)
    assert not blobs.remove(1, sha256, put_before=listed)
    assert blobs.get(1, sha256) == b"wanted again"

    assert blobs.remove(1, sha256)
    assert blobs.remove(1, sha256)
    with pytest.raises(blobs.BlobRemoved):
        blobs.get(1, sha256)


def test_what_is_put_once_it_is_on_its_way_out_is_written_anew(
    store: Path, monkeypatch: Any
) -> None:
    sha256 = blobs.put(1, b"wanted again")
    move = os.rename

    def rename(source: Path, target: Path) -> None:
        move(source, target)
        assert blobs.put(1, b"wanted again") == sha256

    monkeypatch.setattr(os, "rename", rename)
    assert blobs.remove(1, sha256)
    assert blobs.get(1, sha256) == b"wanted again"
    blobs.path_of(1, sha256).unlink()
    with pytest.raises(blobs.BlobDamaged) as lost:
        blobs.get(1, sha256)
    assert not isinstance(lost.value, blobs.BlobRemoved)
