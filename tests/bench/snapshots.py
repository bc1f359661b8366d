"""A checkpoint's snapshot of 200 MB and its restore, each against `tar` of the same tree.

What is compared, on one disk and taking turns:

* Snapshot: from the workspace to the tenant's store, cleaned, hashed, on the disk, read back and
  proved to be restorable; against `tar -c` of the same tree to a file and `sync` of that file,
  because a checkpoint promises as much of its own.
* Restore: from the store into a sandbox, digest and members checked first; against `tar -x` to the
  same disk without a `sync`, because a workspace promises none. The bar is for what the snapshot
  adds to a sandbox that is made and stays empty, because tar makes no sandbox and the start has a
  bar of its own (`sandboxes`). The digest is checked while the sandbox is made. All of it together
  is shown as well.

Memory is the largest the process ever was beyond what it was before, sampled every few
milliseconds.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Collection
from pathlib import Path
from types import TracebackType

import django
from django.conf import settings

from portal import blobs
from runs import snapshots
from runs.sandbox import (
    Limits,
    ProviderName,
    SandboxProvider,
    SandboxSpec,
    SandboxUnavailable,
    get_provider,
)
from tests.bench.ground import small
from tests.bench.report import Report

MEGABYTES = 20 if small() else 200
ROUNDS = 1 if small() else 5
BAR, MEMORY_MB = 1.5, 64.0
TENANT = 1


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/tmp") as name:
        folder = Path(name)
        settings.configure(BLOB_DIR=str(folder / "blobs"))
        django.setup()
        tree = folder / "tree"
        tree.mkdir()
        for number in range(MEGABYTES):
            (tree / f"{number:03}").write_bytes(os.urandom(1 << 20))
        report = Report(f"snapshots of {MEGABYTES} MB", "one run")
        providers: tuple[ProviderName, ...] = ("bubblewrap", "docker")
        for provider in providers:
            try:
                asyncio.run(_measure(report, get_provider(provider, data_dir=folder), tree))
            except SandboxUnavailable as unavailable:
                report.say(f"{provider}: {unavailable}")
    report.end()


async def _measure(report: Report, made: SandboxProvider, tree: Path) -> None:
    await asyncio.to_thread(made.check)
    limits = Limits(workspace_mb=2 * MEGABYTES, memory_mb=4 * MEGABYTES + 512)
    spec = SandboxSpec("bench", "bench", limits)
    packed, unpacked, saved, restored, empty = [], [], [], [], []
    box = await made.create(spec)
    try:
        await box.load(tree, "repo")
        with Growth() as growth:
            for _ in range(ROUNDS):
                plain = tree.with_name("plain.tar")
                packed.append(_took(("tar", "-cf", plain, "-C", tree, "."), ("sync", plain)))
                began = time.perf_counter()
                kept = await snapshots.keep(TENANT, box, _nothing)
                saved.append(time.perf_counter() - began)
                with tempfile.TemporaryDirectory(dir=tree.parent) as place:
                    unpacked.append(_took(("tar", "-xf", plain, "-C", place)))
                began = time.perf_counter()
                with blobs.open_stored(TENANT, kept.sha256) as stored:
                    again = await made.create(spec, restore=stored, restore_sha256=kept.sha256)
                restored.append(time.perf_counter() - began)
                await again.close()
                began = time.perf_counter()
                fresh = await made.create(spec)
                empty.append(time.perf_counter() - began)
                await fresh.close()
                blobs.remove(TENANT, kept.sha256)
                plain.unlink()
    finally:
        await box.close()
    name = made.name
    floor, mine = report.took("tar -c and sync", packed), report.took(f"{name}: snapshot", saved)
    report.bar(f"{name}: snapshot, times tar", mine.median / floor.median, BAR)
    floor, whole = report.took("tar -x", unpacked), report.took(f"{name}: restore", restored)
    start = report.took(f"{name}: a sandbox that stays empty", empty)
    report.say(f"{name}: restore and start, times tar: {whole.median / floor.median:.2f}")
    added = (whole.median - start.median) / floor.median
    report.bar(f"{name}: restore beyond the start, times tar", added, BAR)
    report.bar(f"{name}: memory above idle, MB", growth.megabytes, MEMORY_MB)


def _nothing() -> Collection[str]:
    return ()


def _took(*commands: tuple[str | Path, ...]) -> float:
    began = time.perf_counter()
    for command in commands:
        subprocess.run(command, check=True)
    return time.perf_counter() - began


class Growth:
    """In the block: how much larger this process became."""

    megabytes = 0.0

    def __enter__(self) -> Growth:
        self._over = threading.Event()
        self._before = _resident()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.003):
            self.megabytes = max(self.megabytes, (_resident() - self._before) / (1 << 20))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
