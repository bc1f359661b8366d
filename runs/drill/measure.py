"""What one chooses an environment by, measured on a provider in the same minutes as its drill."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from runs.drill import Measured
from runs.drill.ground import Ground, python, said
from runs.sandbox import Limits, SandboxSpec

T = TypeVar("T")

_STARTS, _EXECS, _TREE_MB = 3, 10, 32
_ROOMY = Limits(wall_seconds=300, memory_mb=256, workspace_mb=2 * _TREE_MB, tmp_mb=8)

_REACH = """
import socket, sys
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), 1)
    print("reached")
except OSError:
    print("closed")
"""


def measure(ground: Ground) -> list[Measured]:
    """All figures of one provider. Raises SandboxError."""
    return asyncio.run(_measure(ground))


async def _timed(work: Callable[[], Awaitable[T]]) -> tuple[float, T]:
    began = time.perf_counter()
    result = await work()
    return (time.perf_counter() - began) * 1000, result


async def _measure(ground: Ground) -> list[Measured]:
    starts, closes, execs = [], [], []
    for _ in range(_STARTS):
        began = time.perf_counter()
        async with ground.box(limits=_ROOMY) as box:
            await box.exec(["true"], timeout=60)
            starts.append((time.perf_counter() - began) * 1000)
            began = time.perf_counter()
        closes.append((time.perf_counter() - began) * 1000)
    async with ground.box(limits=_ROOMY) as box:
        for _ in range(_EXECS):
            took, _ = await _timed(lambda: box.exec(["true"], timeout=60))
            execs.append(took)
        tree, snapshot = ground.folder / "tree", ground.folder / "tree.tar"
        await asyncio.to_thread(_make_tree, tree)
        await box.load(tree, "repo")
        saved, info = await _timed(lambda: box.snapshot(snapshot))
    began = time.perf_counter()
    again = await ground.provider.create(
        SandboxSpec("drill-restore", "drill", _ROOMY), restore=snapshot, restore_sha256=info.sha256
    )
    restored = (time.perf_counter() - began) * 1000
    try:
        files = await said(again, "ls | wc -l")
        network = (await python(again, _REACH, "9")).stdout.decode().strip()
        devices = await said(again, "grep -c : /proc/net/dev")
    finally:
        await again.close()
    left = await ground.provider.reap([])
    off = network == "closed" and devices == "1"
    return [
        Measured("start to first command", statistics.median(starts), "ms"),
        Measured("one command", statistics.median(execs), "ms"),
        Measured(f"snapshot of {_TREE_MB} MB", saved, "ms"),
        Measured(f"restore of {_TREE_MB} MB", restored, "ms", f"{files} files"),
        Measured("removal", statistics.median(closes), "ms", _or_none(left)),
        Measured(
            "network",
            None,
            "",
            "off, or by rule through the run’s own proxy" if off else "not off by itself",
        ),
        Measured(
            "limits",
            None,
            "",
            "memory, processes, disk, files, output and time enforced"
            if not ground.weaker
            else "; ".join(ground.weaker),
        ),
        Measured("image", None, "", ground.provider.check().image_digest),
    ]


def _or_none(left: list[str]) -> str:
    return ", ".join(left) if left else "nothing left"


def _make_tree(tree: Path) -> None:
    """Files of one megabyte that nothing can press together."""
    tree.mkdir()
    for number in range(_TREE_MB):
        (tree / f"{number:03}").write_bytes(os.urandom(1 << 20))
