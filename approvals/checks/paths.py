"""Paths: only where the contract allows, nowhere outside the tree, and readable everywhere.

Blocking: a path that no allowed pattern covers, that leaves the tree or reaches `.git` on some
file system; a link that leaves, alone or with others; something in the workspace that could not be
taken and would escape review. Warnings: paths that are one path on a case-blind file system, and
names that other systems cannot hold. What was left out by rule is noted with its count.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from functools import lru_cache

from approvals.changes import (
    GITLINK,
    SYMLINK,
    Status,
    link_cycle_or_escape,
    odd_on_other_systems,
    spell,
    unsafe_path,
    unspell,
)
from approvals.checks.base import CheckResult, Notebook, Severity, Subject

NAME, VERSION = "paths", "portal 1"


def check(subject: Subject) -> CheckResult:
    notes = Notebook(NAME, VERSION, subject)
    for change in subject.changes:
        for path in {change.path, change.before}:
            if reason := unsafe_path(path):
                notes.add("blocking", "path leaves", path, f"the path {reason}")
            if not allowed(path, subject.allowed_paths):
                notes.add(
                    "blocking", "path not allowed", path,
                    "the contract does not allow a change here",
                )  # fmt: skip
        if change.status is not Status.DELETED and (reason := odd_on_other_systems(change.path)):
            notes.add("warning", "name not portable", change.path, f"the name {reason}")
    for offered in subject.tray:
        if reason := unsafe_path(unspell(offered)):
            notes.add("blocking", "path leaves", f"output/{offered}", f"the path {reason}")
    _links(subject, notes)
    _collisions(subject, notes)
    for item in subject.left_out:
        severity: Severity = "blocking" if item.blocking else "note"
        more = f" ({item.count:,} files)" if item.count > 1 else ""
        notes.add(severity, f"left out: {item.reason}", item.path, item.text + more)
    notes.evidence |= {"allowed": list(subject.allowed_paths), "changes": len(subject.changes)}
    return notes.result()


def _links(subject: Subject, notes: Notebook) -> None:
    links = {
        change.path: subject.new(change) for change in subject.changes if change.new_mode == SYMLINK
    }
    for path, reason in link_cycle_or_escape(links).items():
        target = spell(links[path])[:200]
        notes.add("blocking", "link leaves", path, f"the link to “{target}” {reason}")


def _collisions(subject: Subject, notes: Notebook) -> None:
    """Paths that meet where case or the form of accents does not count, with a changed one in."""
    live = {
        change.path
        for change in subject.changes
        if change.status is not Status.DELETED and change.new_mode != GITLINK
    }
    every = live.union(subject.paths or ())
    spellings: defaultdict[str, set[bytes]] = defaultdict(set)
    for path in every:
        at = path
        while at:
            spellings[_folded(at)].add(at)
            at = at.rpartition(b"/")[0]
    for same in spellings.values():
        if len(same) < 2:
            continue
        changed = sorted(
            part for part in same
            if part in live or any(path.startswith(part + b"/") for path in live)
        )  # fmt: skip
        if changed:
            others = ", ".join(f"“{spell(part)}”" for part in sorted(same) if part != changed[0])
            text = f"on some file systems this is the same path as {others}"
            notes.add("warning", "paths collide", changed[0], text)


def _folded(path: bytes) -> str:
    text = path.decode("utf-8", "surrogateescape")
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())


def allowed(path: bytes, patterns: tuple[str, ...]) -> bool:
    """Whether one of `patterns` covers the path: `**` crosses folders, `*` and `?` do not."""
    text = path.decode("utf-8", "surrogateescape")
    return any(_pattern(pattern).fullmatch(text) for pattern in patterns)


@lru_cache(maxsize=1024)
def _pattern(glob: str) -> re.Pattern[str]:
    parts = (glob + "**" if glob.endswith("/") else glob).split("/")
    out = ""
    for at, part in enumerate(parts):
        last = at == len(parts) - 1
        if part == "**":
            out += r"[^\0]+" if last else r"(?:[^/]+/)*"
            continue
        body = re.escape(part).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
        out += body if last else body + "/"
    return re.compile(out, re.DOTALL)
