"""Candidates made of plain data, for tests of the checks."""

from __future__ import annotations

import hashlib
import random
import string
from collections.abc import Mapping

from approvals.changes import Change, Status
from approvals.checks import CheckResult, Subject

Side = bytes | tuple[str, bytes] | None


def _side(side: Side) -> tuple[str, bytes]:
    if side is None:
        return "000000", b""
    return side if isinstance(side, tuple) else ("100644", side)


def _blob(mode: str, data: bytes) -> str:
    if mode == "000000":
        return "0" * 40
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def candidate(
    files: Mapping[str | bytes, tuple[Side, Side]] | None = None,
    *,
    tray: Mapping[str, bytes] | None = None,
    renames: Mapping[str, str] | None = None,
    **facts: object,
) -> Subject:
    """A subject from `path: (old, new)`; a side is bytes, (mode, bytes) or None."""
    blobs: dict[str, bytes] = {}
    changes = []
    for name, (old, new) in (files or {}).items():
        path = name.encode() if isinstance(name, str) else name
        (old_mode, old_data), (new_mode, new_data) = _side(old), _side(new)
        before = (renames or {}).get(path.decode("utf-8", "replace"))
        status = Status.MODIFIED
        if old is None:
            status = Status.ADDED
        elif new is None:
            status = Status.DELETED
        elif before:
            status = Status.RENAMED
        elif old_mode[:3] != new_mode[:3]:
            status = Status.TYPE_CHANGED
        old_blob, new_blob = _blob(old_mode, old_data), _blob(new_mode, new_data)
        blobs |= {old_blob: old_data, new_blob: new_data}
        sides = (old_mode, new_mode, old_blob, new_blob)
        renamed = before.encode() if before else None
        sizes = (len(old_data), len(new_data))
        changes.append(Change(path, renamed, status, *sides, None, False, 0, 0, *sizes))
    return Subject(
        digest="d" * 64,
        changes=tuple(changes),
        read=blobs.__getitem__,
        tray={name: (lambda data=data: data) for name, data in (tray or {}).items()},  # type: ignore[misc]
        **facts,  # type: ignore[arg-type]
    )


def found(result: CheckResult) -> list[tuple[str, str, str, int | None]]:
    """Severity, rule, path and line of every finding."""
    return [(each.severity, each.rule, each.path, each.line) for each in result.findings]


def rules(result: CheckResult) -> set[str]:
    return {each.rule for each in result.findings}


_DICE = random.Random(20)
ALNUM = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
URLSAFE = ALNUM + "-_"


def chars(count: int, alphabet: str = ALNUM) -> str:
    """Random characters, made when the test runs, so that no secret stands in the source."""
    return "".join(_DICE.choice(alphabet) for _ in range(count))
