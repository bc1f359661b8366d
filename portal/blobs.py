"""Content-addressed bytes: written once, verified on every read.

Files live under `settings.BLOB_DIR/<tenant>/<first two>/<sha256>`, so a tenant's
blobs are apart and the sandbox's user cannot reach them. Workers on several
machines share the directory.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import math
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from portal.errors import Refusal

_INCOMING = "incoming"
"""Beside a tenant's blobs: what is being written, or removed."""
_YOUNG_SECONDS = 60
_PIECE = 1 << 20
_FOLLOW_SECONDS = 0.002
_SYNC_SECONDS = 0.05
_DIGEST = re.compile(r"[0-9a-f]{64}")


class BlobDamaged(Refusal):
    """A stored blob is missing, or its bytes no longer have the digest they were stored under."""

    code = "portal.blob_damaged"
    status = 409
    text = (
        "Stored bytes {sha256:.12} are missing or damaged. Nothing was done with them; restore "
        "the blob store from a backup."
    )


class BlobRemoved(BlobDamaged):
    """A blob that the tenant's retention removed. It was as it should be until then."""

    code = "portal.blob_removed"
    text = (
        "Stored bytes {sha256:.12} were removed by this tenant’s retention. Nothing was done with "
        "them; the digest stays in the evidence."
    )


class BlobUnreadable(BlobDamaged):
    """The disk or the system does not give the bytes out. They may be as they should be."""

    code = "portal.blob_unreadable"
    text = (
        "Stored bytes {sha256:.12} could not be read: {reason}. Nothing was done with them; see to "
        "the disk of the blob store."
    )


def path_of(tenant_id: int, sha256: str) -> Path:
    """Where the blob lies. Raises `ValueError` for anything but 64 hexadecimal characters."""
    if not _DIGEST.fullmatch(sha256):
        raise ValueError("not a SHA-256 digest")
    return Path(settings.BLOB_DIR) / str(tenant_id) / sha256[:2] / sha256


def _gone(target: Path) -> Path:
    """Where it is written down that a blob was removed on purpose."""
    return target.with_name(f"{target.name}.removed")


def _missing(target: Path) -> BlobDamaged:
    kind = BlobRemoved if _gone(target).exists() else BlobDamaged
    return kind(sha256=target.name)


@dataclass(frozen=True)
class Found:
    """A blob that is there: its bytes, and when it was last put, in seconds since the epoch."""

    size: int
    put: float


def found(tenant_id: int, sha256: str) -> Found | None:
    """What is there of this digest, without reading it; None if it is not."""
    try:
        status = path_of(tenant_id, sha256).stat()
    except FileNotFoundError:
        return None
    return Found(status.st_size, status.st_mtime)


def remove(tenant_id: int, sha256: str, *, put_before: float = math.inf) -> bool:
    """Remove a blob for good, and leave a mark that says so. Safe to repeat.

    Not if it was put again since `put_before`, in seconds since the epoch: `put` renews its time
    before it looks, so whoever puts it now either finds it gone and writes it, or is seen here.
    Returns whether it is gone.
    """
    target = path_of(tenant_id, sha256)
    leaving = _incoming(tenant_id) / f"{sha256}.leaving"
    try:
        with target.open("rb") as file:
            # So that `tidy` leaves it alone, and takes it away if this process is killed here.
            fcntl.flock(file, fcntl.LOCK_EX)
            # Before it goes: whoever writes it anew takes the mark away.
            _gone(target).touch(mode=0o400)
            os.rename(target, leaving)
            if leaving.stat().st_mtime >= put_before:
                os.rename(leaving, target)
                _gone(target).unlink(missing_ok=True)
                return False
            leaving.unlink()
    except FileNotFoundError:
        # Gone already, or somebody else is removing it.
        return True
    return True


def put(tenant_id: int, data: bytes) -> str:
    """Store `data` and return its digest. Storing the same bytes again mends what was damaged."""
    sha256 = hashlib.sha256(data).hexdigest()
    target = path_of(tenant_id, sha256)
    if not _renewed(target):
        with incoming(tenant_id) as coming:
            coming.file.write(data)
            coming.flush()
            coming.become(target)
    return sha256


def _renewed(target: Path) -> bool:
    """Whether the blob is there, and whole. Its time is renewed, so that nobody removes it now."""
    try:
        os.utime(target)
        with target.open("rb") as file:
            return _digest_of(file) == target.name
    except OSError:
        # Whatever is in the way, writing will meet it as well and say so.
        return False


def _incoming(tenant_id: int) -> Path:
    """The folder of what is on its way in or out."""
    folder = Path(settings.BLOB_DIR) / str(tenant_id) / _INCOMING
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


class _Follower:
    """Reads a file back, and brings it to the disk, while somebody else writes it.

    Processor and disk have each their own half of the work, and the writer has its own. Raises
    OSError where there is no descriptor or no thread for one of the two; then none is left waiting.
    """

    def __init__(self, descriptor: int) -> None:
        self._over = threading.Event()
        pool = ThreadPoolExecutor(2, thread_name_prefix="blob")
        with ExitStack() as mine:
            # Each its own: the writer may close the file and leave without them.
            read, sync = (mine.enter_context(_again(descriptor)) for _ in range(2))
            try:
                self._digest = pool.submit(self._read, read)
                self._synced = pool.submit(self._sync, sync)
            except RuntimeError as error:
                self._over.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise OSError(errno.EAGAIN, "there is no thread to read it back in") from error
            mine.pop_all()
        pool.shutdown(wait=False)

    def over(self) -> None:
        """All is written."""
        self._over.set()

    def digest(self) -> str:
        """Of all that was written, as it was read back; waits for the end. Raises OSError."""
        return self._digest.result()

    def synced(self) -> None:
        """Wait until all of it is on the disk. Raises OSError."""
        self._synced.result()

    def _read(self, file: io.FileIO) -> str:
        total, room, position = hashlib.sha256(), memoryview(bytearray(_PIECE)), 0
        with file:
            while True:
                # Asked before it is read: at the end there is nothing behind it.
                over = self._over.is_set()
                got = os.preadv(file.fileno(), [room], position)
                total.update(room[:got])
                position += got
                if over and not got:
                    return total.hexdigest()
                if got < _PIECE:
                    self._over.wait(_FOLLOW_SECONDS)

    def _sync(self, file: io.FileIO) -> None:
        with file:
            while not self._over.wait(_SYNC_SECONDS):
                os.fdatasync(file.fileno())
            os.fsync(file.fileno())


def _again(descriptor: int) -> io.FileIO:
    """A handle of one's own on an open file."""
    return io.FileIO(os.dup(descriptor), "rb")


class Incoming:
    """Bytes on their way to become a blob: whoever makes them writes them to `file`, once."""

    def __init__(self, tenant_id: int, file: io.BufferedRandom, path: Path) -> None:
        self.file = file
        self._tenant_id = tenant_id
        self._path = path

    @contextmanager
    def followed(self) -> Iterator[None]:
        """While it is written in the block it is also read back and brought to the disk.

        `store` then has little left to wait for. At the end of the block nothing more is written.
        """
        self._follower = following = _Follower(self.file.fileno())
        try:
            yield
            self.file.flush()
        finally:
            following.over()

    def store(self, size: int, check: Callable[[io.BufferedRandom], object]) -> str:
        """Make what was `followed` a blob; returns the digest it has when it is read back.

        `size` is what its writer wrote. `check` reads it as well, and raises if it is not what it
        should be. On return the blob is on the disk, its name included. Raises `BlobDamaged`,
        OSError, and what `check` raises: then there is no blob.
        """
        sha256 = self._follower.digest()
        if self.file.seek(0, io.SEEK_END) != size:
            raise BlobDamaged(sha256=sha256)
        check(self.file)
        self._follower.synced()
        target = path_of(self._tenant_id, sha256)
        self.become(target)
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return sha256

    def flush(self) -> None:
        """Bring what was written to the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def become(self, target: Path) -> None:
        """Be the blob at `target` from now on."""
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(self._path, 0o400)
        os.replace(self._path, target)
        _gone(target).unlink(missing_ok=True)


@contextmanager
def incoming(tenant_id: int) -> Iterator[Incoming]:
    """A file beside the blobs, which is gone at the end of the block unless it became one.

    Its lock is the writer's: the kernel gives it back however the writer ends, so `tidy` knows
    what nobody writes to any more.
    """
    descriptor, name = tempfile.mkstemp(dir=_incoming(tenant_id))
    try:
        with os.fdopen(descriptor, "w+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield Incoming(tenant_id, file, Path(name))
    finally:
        Path(name).unlink(missing_ok=True)


def tidy() -> list[str]:
    """Remove what writers left that were killed while they stored something; returns its names."""
    left = Path(settings.BLOB_DIR).glob(f"*/{_INCOMING}/*")
    return [f"half a blob {path.name}" for path in sorted(left) if _abandoned(path)]


def _abandoned(path: Path) -> bool:
    try:
        # One that was made a moment ago may not have its lock yet.
        if time.time() - path.stat().st_mtime < _YOUNG_SECONDS:
            return False
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    except (FileNotFoundError, BlockingIOError):
        return False
    return True


@contextmanager
def _reading(target: Path) -> Iterator[None]:
    """What the system says against reading a blob, as a refusal."""
    try:
        yield
    except FileNotFoundError as error:
        raise _missing(target) from error
    except OSError as error:
        raise BlobUnreadable(sha256=target.name, reason=error.strerror or str(error)) from error


def get(tenant_id: int, sha256: str) -> bytes:
    """The bytes of this digest, checked. Raises `BlobDamaged`."""
    target = path_of(tenant_id, sha256)
    with _reading(target):
        data = target.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise BlobDamaged(sha256=sha256)
    return data


def open_stored(tenant_id: int, sha256: str) -> io.BufferedReader:
    """An open file of what is stored under this digest. Whoever reads it compares the bytes.

    Raises `BlobDamaged`.
    """
    target = path_of(tenant_id, sha256)
    with _reading(target):
        return target.open("rb")


def open_checked(tenant_id: int, sha256: str) -> io.BufferedReader:
    """An open file of this digest, its bytes checked once through the same descriptor.

    Raises `BlobDamaged`.
    """
    with ExitStack() as opened:
        file = opened.enter_context(open_stored(tenant_id, sha256))
        with _reading(path_of(tenant_id, sha256)):
            found = _digest_of(file)
            file.seek(0)
        if found != sha256:
            raise BlobDamaged(sha256=sha256)
        opened.pop_all()
    return file


def _digest_of(file: io.BufferedReader | io.BufferedRandom) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()
