"""What of a workspace is saved: all of it, but for what never belongs in a checkpoint.

A snapshot outlives its sandbox by months and is read by other runs of the same job. Secrets,
caches, half-made downloads, histories of shells and the data of browsers stay out of it, each named
in the checkpoint. A file that the source itself holds is never left out: the candidate would show
it as removed.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portal import blobs
from runs.sandbox import INPUT, OUTPUT, PARTS, REPO, Sandbox, archive
from runs.sandbox.base import MOST_FILES

MOST_NAMED = 200
"""Excluded things that are named one by one; the rest is counted."""

MOST_ARTIFACTS = 200

KINDS = {
    "secret": "a secret",
    "cache": "a cache",
    "download": "a temporary download",
    "history": "a history",
    "browser": "the data of a browser",
    "more": "more of these",
}

_NAMES: dict[str, str] = {
    **dict.fromkeys(
        (
            *(".env", ".env.local", ".env.production", ".netrc", "_netrc", ".npmrc", ".pypirc"),
            *(".git-credentials", ".pgpass", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519"),
            *(".ssh", ".gnupg", ".aws", ".azure", ".gcloud", ".kube", ".docker"),
        ),
        "secret",
    ),
    **dict.fromkeys(
        (
            *("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"),
            *(".tox", ".nox", ".cache", ".npm", ".gradle", ".parcel-cache"),
        ),
        "cache",
    ),
    **dict.fromkeys(
        (
            *(".bash_history", ".ash_history", ".sh_history", ".zsh_history", ".python_history"),
            *(".node_repl_history", ".psql_history", ".sqlite_history", ".mysql_history"),
            *(".lesshst", ".viminfo"),
        ),
        "history",
    ),
    **dict.fromkeys(
        (".mozilla", "chromium", "google-chrome", "cookies.sqlite", "key4.db"),
        "browser",
    ),
}
_SUFFIXES = dict.fromkeys((".part", ".partial", ".crdownload", ".download"), "download")
# Only below a folder that programs keep their own things in.
_ONLY_IN_CONFIG = frozenset({"chromium", "google-chrome"})

_TRAY = f"{OUTPUT}/"


class NotRestorable(Exception):
    """The stored snapshot could not be restored, so nothing may depend on it."""


@dataclass(frozen=True)
class Saved:
    """A snapshot as it is stored."""

    sha256: str
    size: int
    left_out: tuple[str, ...]
    # Path, kind, files.
    excluded: tuple[dict[str, Any], ...]
    # Files of the output tray: path, sha256, size.
    artifacts: tuple[dict[str, Any], ...]


def excluded_at(name: str) -> tuple[str, str] | None:
    """The path that is left out with this member, and of what kind it is. None if it is saved."""
    parts = name.split("/")
    if parts[0] == INPUT:
        return None
    for at in range(1, len(parts)):
        part = parts[at]
        kind = _NAMES.get(part) or _SUFFIXES.get(Path(part).suffix)
        if kind and (part not in _ONLY_IN_CONFIG or parts[at - 1] == ".config"):
            return "/".join(parts[: at + 1]), kind
    return None


async def keep(tenant_id: int, sandbox: Sandbox, tracked: Callable[[], Collection[str]]) -> Saved:
    """Store the workspace without what is excluded, and prove that it can be restored.

    It is written once, as it comes, to where it stays. Its digest is that of the bytes that are
    read back from there; on return they are on the disk, and each member can be restored.

    `tracked` gives the paths that the source holds, and is asked only if it matters, in another
    thread. Raises `SandboxError`, `NotRestorable`, `BlobDamaged`, OSError, and what `tracked`
    raises; then nothing is stored.
    """
    selection = _Selection(tracked)
    with blobs.incoming(tenant_id) as incoming:
        with incoming.followed():
            taken = await sandbox.snapshot_into(incoming.file, selection)
        sha256 = await asyncio.to_thread(incoming.store, taken.size, _verify)
    return Saved(sha256, taken.size, taken.left_out, _named(selection.found), selection.artifacts)


def _verify(stored: io.BufferedRandom) -> None:
    """Raises `NotRestorable` unless every member could be restored."""
    size = stored.seek(0, io.SEEK_END)
    try:
        # No file in it can be larger than all of it; the sandbox's limits come with restoring.
        archive.check_snapshot(stored, PARTS, max_bytes=size, max_files=len(PARTS) * MOST_FILES)
    except archive.ArchiveRefused as refused:
        raise NotRestorable(f"The snapshot could not be restored: {refused}") from refused


class _Selection(archive.Keeper):
    """What of a snapshot is kept, while it passes; and the tray by content."""

    def __init__(self, tracked: Callable[[], Collection[str]]) -> None:
        # What is left out, each with its kind and number of files.
        self.found: dict[str, tuple[str, int]] = {}
        self._tracked = tracked
        self._holding: frozenset[str] | None = None
        self._tray: list[tuple[str, int, Any]] = []

    @property
    def artifacts(self) -> tuple[dict[str, Any], ...]:
        return tuple(
            {"path": archive.shown(name), "sha256": total.hexdigest(), "size": size}
            for name, size, total in self._tray
        )

    def keeps(self, name: str, kind: str) -> bool:
        out = excluded_at(name)
        if out is None:
            return True
        path, word = out
        if path.startswith(f"{REPO}/") and path in self._of_source():
            return True
        self.found[path] = (word, self.found.get(path, ("", 0))[1] + (kind != "folder"))
        return False

    def watches(self, name: str, size: int) -> Callable[[memoryview], object] | None:
        if not name.startswith(_TRAY) or len(self._tray) >= MOST_ARTIFACTS:
            return None
        total = hashlib.sha256()
        self._tray.append((name, size, total))
        return total.update

    def _of_source(self) -> frozenset[str]:
        if self._holding is None:
            self._holding = frozenset(_holding(f"{REPO}/{each}" for each in self._tracked()))
        return self._holding


def _holding(tracked: Iterable[str]) -> Iterator[str]:
    """The excluded paths that these files lie at or below."""
    for name in tracked:
        out = excluded_at(name)
        if out is not None:
            yield out[0]


def _named(found: Mapping[str, tuple[str, int]]) -> tuple[dict[str, Any], ...]:
    named: list[dict[str, Any]] = [
        {"path": archive.shown(path), "kind": kind, "files": files}
        for path, (kind, files) in sorted(found.items())
    ]
    more = named[MOST_NAMED:]
    if not more:
        return tuple(named)
    rest = {"path": "", "kind": "more", "files": sum(each["files"] for each in more)}
    return (*named[:MOST_NAMED], rest)
