"""Write objects: blobs that were hashed here, trees of them, and commits."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from approvals.changes import GITLINK, spell
from approvals.tree.errors import GitFailed, TreeRefused
from approvals.tree.git import GIT_TIMEOUT, checked, command, environment, last_words, run
from approvals.tree.reading import list_tree, tree_of
from approvals.tree.walking import Found, TreeLimits, walk


def moved(path: bytes) -> TreeRefused:
    """The refusal of a directory that was written to while it was read."""
    return TreeRefused(
        reason=f"“{spell(path)[:200]}” changed while it was read",
        remedy="Nothing may run in the sandbox any more; take the candidate again.",
    )


def store(bare: Path, exported: Path, limits: TreeLimits, fresh: Mapping[str, bytes]) -> None:
    """Write the blobs that the base does not hold, and make sure they are what was hashed.

    The stream carries lengths and bytes, never a name from the sandbox, so no name can be read as
    anything else, and no filter or attribute applies.
    """
    if not fresh:
        return
    wanted = {path: blob for blob, path in fresh.items()}
    with tempfile.TemporaryDirectory(prefix="objects-") as folder:
        marks = Path(folder) / "marks"
        process = subprocess.Popen(
            command(
                bare,
                ["fast-import", "--quiet", "--done", f"--export-marks={marks}"],
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment(bare),
            cwd=folder,
        )
        order: list[str] = []
        broken = False
        try:
            if process.stdin is None:
                raise GitFailed(what="fast-import", code="no pipe", detail="it was not started")
            for found in walk(exported, limits, []):
                if (blob := wanted.get(found.path)) is not None:
                    order.append(blob)
                    send(process.stdin, found, len(order))
            process.stdin.write(b"done\n")
        except BrokenPipeError:
            broken = True
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            stderr = b""
            if process.stdin is not None:
                with suppress(BrokenPipeError):
                    process.stdin.close()
            if process.stderr is not None:
                stderr = process.stderr.read()
                process.stderr.close()
            code = process.wait(GIT_TIMEOUT)
        if code or broken:
            raise GitFailed(what="fast-import", code=code, detail=last_words(stderr))
        written = dict(line.split() for line in marks.read_text().splitlines())
    for number, blob in enumerate(order, 1):
        if written.get(f":{number}") != blob:
            raise moved(fresh[blob])
    if len(order) != len(wanted):
        raise moved(next(path for path, blob in wanted.items() if blob not in order))


def send(pipe: IO[bytes], found: Found, number: int) -> None:
    """Write one blob into a fast-import stream. Raises `TreeRefused` where its length changed."""
    pipe.write(b"blob\nmark :%d\ndata %d\n" % (number, found.size))
    sent = 0
    for chunk in found.content():
        sent += len(chunk)
        if sent > found.size:
            break
        pipe.write(chunk)
    if sent != found.size:
        raise moved(found.path)
    pipe.write(b"\n")


def write_tree(bare: Path, entries: Mapping[bytes, tuple[str, str]]) -> str:
    """Write the tree objects through an index of their own. Raises `GitFailed`."""
    listing = b"".join(
        b"%s %s %s\t%s\0"
        % (mode.encode(), b"commit" if mode == GITLINK else b"blob", blob.encode(), path)
        for path, (mode, blob) in sorted(entries.items())
    )
    with tempfile.TemporaryDirectory(prefix="index-") as folder:
        own = {"GIT_INDEX_FILE": os.path.join(folder, "index")}
        if listing:
            run(bare, "update-index", "-z", "--index-info", data=listing, extra=own)
        else:
            run(bare, "read-tree", "--empty", extra=own)
        tree = run(bare, "write-tree", extra=own).decode().strip()
    written = {entry.path: (entry.mode, entry.blob) for entry in list_tree(bare, tree)}
    if written != dict(entries):
        raise GitFailed(what="write-tree", code="another tree", detail="a path was not stored")
    return tree


@dataclass(frozen=True, slots=True)
class Author:
    """Who a commit is said to be by."""

    name: str
    email: str


def make_commit(
    bare: Path, tree: str, parent: str, message: str, author: Author, date: datetime
) -> str:
    """Write one commit and return its name. The same arguments always give the same commit.

    Author and committer are the same person and moment. No ref is touched, no hook runs and
    nothing is signed.
    """
    for value in (author.name, author.email):
        if not value.strip() or set(value) & set("<>\n\r\0"):
            raise TreeRefused(
                reason=f"“{spell(value.encode())}” cannot be an author in git",
                remedy="Set a name and an address without angle brackets or line breaks.",
            )
    if "\0" in message or not message.strip():
        raise TreeRefused(
            reason="the commit message is empty or holds a NUL", remedy="Write a message."
        )
    if date.tzinfo is None:
        raise ValueError("a commit needs a time with its zone")
    moment = f"{int(date.astimezone(UTC).timestamp())} +0000"
    who = {
        "GIT_AUTHOR_NAME": author.name,
        "GIT_AUTHOR_EMAIL": author.email,
        "GIT_AUTHOR_DATE": moment,
        "GIT_COMMITTER_NAME": author.name,
        "GIT_COMMITTER_EMAIL": author.email,
        "GIT_COMMITTER_DATE": moment,
    }
    out = run(
        bare,
        "commit-tree",
        tree_of(bare, tree),
        "-p",
        checked(parent),
        data=message.encode(),
        extra=who,
    )
    return out.decode().strip()
