"""Which symbolic links of a tree lead out of it, judged before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

Judgement: TypeAlias = Literal["inside", "outside", "loop"]

MAX_HOPS = 40
MAX_TARGET = 4095


def judge_links(links: Mapping[bytes, bytes]) -> dict[bytes, Judgement]:
    """Path of each link → where it leads, following every other link of the tree on the way.

    Text alone is not enough: with `here -> .` in a deep folder, `here/../../..` is written inside
    and leads outside. But what is written outside counts as such too, wherever it leads: archives
    and candidates judge by text, and one link must not be fine for one and not for another. A
    target that does not exist is judged by where it would be. A loop leads nowhere, and
    repositories of tests do hold them.
    """
    return {
        path: "outside" if climbs(path, target) else follow(path, links)
        for path, target in links.items()
    }


def climbs(path: bytes, target: bytes) -> bool:
    """Does the text of the target step above the root?"""
    depth = path.count(b"/")
    for part in parts_of(target) or ():
        depth += -1 if part == b".." else 1
        if depth < 0:
            return True
    return False


def follow(path: bytes, links: Mapping[bytes, bytes]) -> Judgement:
    """Walk the link as the kernel would, from the folder it lies in."""
    done: list[bytes] = path.split(b"/")[:-1]
    todo = parts_of(links[path])
    hops = 1
    while todo is not None and todo:
        part = todo.pop(0)
        if part == b"..":
            if not done:
                return "outside"
            done.pop()
            continue
        done.append(part)
        here = b"/".join(done)
        if here in links:
            hops += 1
            if hops > MAX_HOPS:
                return "loop"
            done.pop()
            more = parts_of(links[here])
            todo = None if more is None else more + todo
    return "outside" if todo is None else "inside"


def parts_of(target: bytes) -> list[bytes] | None:
    """The steps of a target; None for one that is absolute or not a path at all."""
    if not target or target.startswith(b"/") or b"\0" in target or len(target) > MAX_TARGET:
        return None
    return [part for part in target.split(b"/") if part not in {b"", b"."}]
