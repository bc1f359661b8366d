"""Working folders below DATA_DIR/work: one per piece of work, gone with the process that made it.

A folder is locked by its owner for as long as it is used. The kernel gives the lock back however
the owner ends, so a folder whose lock is free belongs to nobody, and the sweep removes it.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from django.conf import settings

from runs.sandbox.base import remove_tree

logger = logging.getLogger(__name__)

_LOCK = ".lock"
# A folder gets its name once it is locked. One whose maker died before that keeps this prefix.
_UNNAMED = ".new-"
_UNNAMED_SECONDS = 3600


@contextmanager
def working_folder(kind: str) -> Iterator[Path]:
    """A new private folder `<kind>-…`, removed at the end of the block or after this process."""
    unnamed = Path(tempfile.mkdtemp(prefix=_UNNAMED, dir=_home()))
    with (unnamed / _LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = unnamed.with_name(f"{kind}-{unnamed.name.removeprefix(_UNNAMED)}")
        unnamed.rename(folder)
        try:
            yield folder
        finally:
            _remove(folder)


def keep_temporary_files() -> None:
    """Let this process, and what it starts, put temporary files where the sweep finds them.

    What a killed worker leaves in /tmp stays there, and it may be a tenant's source.
    """
    held = ExitStack()
    folder = held.enter_context(working_folder("temporary"))
    atexit.register(held.close)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)


def reap_folders() -> list[str]:
    """Remove the folders of processes that are gone; returns what was removed."""
    return [f"working folder {each.name}" for each in sorted(_home().iterdir()) if _reap(each)]


def _home() -> Path:
    path = Path(settings.DATA_DIR) / "work"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def _reap(folder: Path) -> bool:
    try:
        if folder.name.startswith(_UNNAMED):
            old = time.time() - folder.stat().st_mtime > _UNNAMED_SECONDS
            return old and _remove(folder)
        with (folder / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return _remove(folder)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        # Its owner is done with it, or it never had a lock.
        return folder.exists() and _remove(folder)


def _remove(folder: Path) -> bool:
    try:
        # The lock goes last, and under no name of its own: a named folder without a lock would look
        # to the sweep as if its owner had died.
        for each in folder.iterdir():
            if each.name != _LOCK:
                remove_tree(each)
        unnamed = folder.with_name(f"{_UNNAMED}{folder.name.removeprefix(_UNNAMED)}")
        remove_tree(folder.rename(unnamed))
    except OSError:
        logger.exception("%s could not be removed; the next sweep tries again", folder)
        return False
    return True
