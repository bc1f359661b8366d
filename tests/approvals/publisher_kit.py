"""One repository at a target, the portal's own copy of it, and an approved change."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from approvals.publishers import Credential, PublicationIntent, Target, TargetKind
from approvals.publishers.text import compose_body, compose_message
from tests.approvals.git_server import commit_on, git

MARKER = "pub:0123456789abcdef"
BRANCH = "imprimatur/fix-the-parser"


@dataclass
class Bench:
    """What a publisher test starts from. `store` is the target, `bare` is the portal's."""

    store: Path
    bare: Path
    base: str
    tree: str
    # Made anew for each test, so that no secret stands in the code.
    token: str = field(default_factory=lambda: secrets.token_hex(20))

    @property
    def credential(self) -> Credential:
        return Credential(self.token)

    def intent(
        self, address: str, *, kind: TargetKind = "git", **changes: Any
    ) -> PublicationIntent:
        intent = PublicationIntent(
            marker=MARKER,
            target=Target(kind, address),
            branch=BRANCH,
            base_branch="main",
            base_commit=self.base,
            tree_sha=self.tree,
            commit_message=compose_message(
                subject="Fix the parser", marker=MARKER, agent_text="It dropped the last line."
            ),
            title="Fix the parser",
            body=compose_body(
                verified="Run 7 of contract parser, version 3.",
                agent_text="It dropped the last line.",
                marker=MARKER,
            ),
            author_name="Imprimatur",
            author_email="imprimatur@example.org",
            committed_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        )
        return replace(intent, **changes)

    def head(self, branch: str = BRANCH) -> str:
        """Where the target's branch stands; empty if it is not there."""
        return git(self.store, "for-each-ref", "--format=%(objectname)", f"refs/heads/{branch}")


def make_bench(place: Path, *, object_format: str = "sha1") -> Bench:
    """Make the target at `place/served/acme/parser.git`, and a change that waits for it."""
    store = place / "served" / "acme" / "parser.git"
    store.mkdir(parents=True)
    form = f"--object-format={object_format}"
    git(store, "init", "--quiet", "--bare", "--initial-branch=main", form)
    git(store, "config", "http.receivepack", "true")
    base = commit_on(store, "main", {"parser.py": "lines[:-1]\n", "README": "A parser.\n"})
    bare = place / "portal.git"
    git(place, "clone", "--quiet", "--bare", str(store), str(bare))
    fixed = git(bare, "hash-object", "-w", "--stdin", stdin=b"lines\n")
    link = git(bare, "hash-object", "-w", "--stdin", stdin=b"parser.py")
    entries = f"120000 blob {link}\tlatest\n100755 blob {fixed}\tparser.py\n"
    return Bench(store, bare, base, git(bare, "mktree", stdin=entries.encode()))
