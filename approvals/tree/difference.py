"""What differs between two trees: the list that judges, and the patch that shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from approvals.changes import (
    GITLINK,
    NO_MODE,
    Change,
    Status,
)
from approvals.tree.errors import GitFailed, ObjectMissing
from approvals.tree.git import attribute_source, run
from approvals.tree.reading import tree_of


def list_changes(bare: Path, base: str, head: str) -> tuple[Change, ...]:
    """Everything that differs between two commits or trees, as git's raw diff lists it.

    Mode-only changes, pure renames, binary files, links, deletions, changes of type and moved
    submodules are each one entry. Renames are found at 50 % likeness.
    """
    old, new = tree_of(bare, base), tree_of(bare, head)
    out = run(
        bare, "diff-tree", "-r", "-z", "--raw", "--numstat", "--no-abbrev", *_DIFF, old, new,
        extra=attribute_source(old),
    )  # fmt: skip
    fields = iter(out.split(b"\0"))
    raw: list[tuple[bytes, bytes, bytes | None]] = []
    numbers: list[bytes] = []
    for record in fields:
        if record.startswith(b":"):
            first = next(fields)
            second = next(fields) if record.split()[4][:1] == b"R" else None
            path, old_path = (first, None) if second is None else (second, first)
            raw.append((record[1:], path, old_path))
        elif record:
            added, removed, path = record.split(b"\t", 2)
            if not path:  # a rename: the two paths follow
                next(fields)
                next(fields)
            numbers.append(added + b" " + removed)
    if len(raw) != len(numbers):
        raise GitFailed(what="diff-tree", code="two lists", detail="raw and counted lines differ")
    sizes = _sizes(bare, [facts.split() for facts, _, _ in raw])
    return tuple(
        _change(facts.split(), path, old_path, counted.split(), sizes)
        for (facts, path, old_path), counted in zip(raw, numbers, strict=True)
    )


_DIFF = (
    "-M50%",
    "-l2000",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--no-relative",
    "--ignore-submodules=none",
    "--submodule=short",
    "--diff-algorithm=histogram",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--full-index",
)


def _sizes(bare: Path, raw: Sequence[Sequence[bytes]]) -> dict[str, int]:
    wanted = {
        facts[2 + side].decode()
        for facts in raw
        for side in (0, 1)
        if facts[side].decode() not in (NO_MODE, GITLINK)
    }
    if not wanted:
        return {}
    asked = "".join(f"{name}\n" for name in sorted(wanted)).encode()
    sizes: dict[str, int] = {}
    for line in run(bare, "cat-file", "--batch-check", data=asked).splitlines():
        name, *rest = line.decode().split()
        if len(rest) != 2:
            raise ObjectMissing(name=name, kind="file content")
        sizes[name] = int(rest[1])
    return sizes


def _change(
    facts: Sequence[bytes],
    path: bytes,
    old_path: bytes | None,
    counted: Sequence[bytes],
    sizes: Mapping[str, int],
) -> Change:
    old_mode, new_mode, old_blob, new_blob, letter = (fact.decode() for fact in facts)
    binary = counted[0] == b"-"
    return Change(
        path=path,
        old_path=old_path,
        status=Status(letter[0]),
        old_mode=old_mode,
        new_mode=new_mode,
        old_blob=old_blob,
        new_blob=new_blob,
        similarity=int(letter[1:]) if letter[1:] else None,
        binary=binary,
        added=None if binary else int(counted[0]),
        removed=None if binary else int(counted[1]),
        old_size=None if old_mode in (NO_MODE, GITLINK) else sizes[old_blob],
        new_size=None if new_mode in (NO_MODE, GITLINK) else sizes[new_blob],
    )


def patch(
    bare: Path,
    base: str,
    head: str,
    *,
    context: int = 3,
    binary: bool = False,
) -> bytes:
    """The whole difference as git prints it, sections in the order of `list_changes`.

    With `binary` the bytes of binary files are in it, so that it can be applied elsewhere.
    """
    old, new = tree_of(bare, base), tree_of(bare, head)
    options = [f"-U{context}", *(["--binary"] if binary else [])]
    return run(
        bare, "diff-tree", "-r", "-p", *_DIFF, *options, old, new, extra=attribute_source(old)
    )
