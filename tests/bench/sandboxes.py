"""A command in bubblewrap and work in Docker, each against the barest way to do it.

Bubblewrap: `python3 -c pass`, what an agent's shortest step comes to, in a sandbox and as the same
command started here without isolation; `true` is shown beside it, which costs nothing by itself.
Docker: a session of the agents SDK from nothing to its first word, and one `apply_patch`, against
one `docker exec`. All take turns. Engines are asked in threads: a request on the event loop would
show as one, and how long the loop was ever held is shown.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from runs.sandbox import SandboxSpec, get_provider
from tests.bench.ground import small
from tests.bench.report import Report

ROUNDS = 3 if small() else 30
SESSIONS = 2 if small() else 8
EXEC_BAR, START_BAR, PATCH_BAR = 4.0, 6.0, 4.0
HELD_MS = 20.0


async def _timed(work: Awaitable[Any]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def _here(*argv: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    await process.communicate()
    assert process.returncode == 0


def main() -> None:
    report = Report("sandboxes: bubblewrap and Docker", "one run")
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/tmp") as folder:
        asyncio.run(_bubblewrap(report, get_provider("bubblewrap", data_dir=Path(folder))))
        asyncio.run(_docker(report, get_provider("docker", data_dir=Path(folder))))
    report.end()


async def _bubblewrap(report: Report, provider: Any) -> None:
    await asyncio.to_thread(provider.check)
    box = await provider.create(SandboxSpec("bench", "bench"))
    try:
        figures: dict[tuple[str, bool], list[float]] = {}
        commands = {"true": ["true"], "python3 -c pass": ["/usr/bin/python3", "-c", "pass"]}
        for turn in range(ROUNDS + 2):
            for name, argv in commands.items():
                here = await _timed(_here(*argv))
                inside = await _timed(box.exec(argv, timeout=60))
                if turn >= 2:
                    figures.setdefault((name, False), []).append(here)
                    figures.setdefault((name, True), []).append(inside)
    finally:
        await box.close()
    for name in commands:
        bare = report.took(f"{name}, no isolation", figures[name, False])
        mine = report.took(f"{name}, in bubblewrap", figures[name, True])
        if name == "true":
            report.say(f"bubblewrap adds {mine.median - bare.median:.1f} ms to a command")
        else:
            report.bar("times the command without isolation", mine.median / bare.median, EXEC_BAR)


async def _docker(report: Report, provider: Any) -> None:
    from agents.editor import ApplyPatchOperation
    from agents.sandbox.apply_patch import WorkspaceEditor

    docker = shutil.which("docker")
    assert docker is not None
    await asyncio.to_thread(provider.check)
    held, on_loop = _Held(), _on_this_thread()
    watcher = asyncio.create_task(held.watch())
    execs, starts, patches = [], [], []
    try:
        for _ in range(SESSIONS):
            began = time.perf_counter()
            box = await provider.create(SandboxSpec("bench", "bench"))
            try:
                session = box.sdk_session()
                await session.exec("true", timeout=60)
                starts.append(time.perf_counter() - began)
                await box.write("repo/notes.txt", b"one\ntwo\n")
                editor = WorkspaceEditor(session)
                for number in range(3):
                    execs.append(await _timed(_here(docker, "exec", box.ref, "true")))
                    change = ApplyPatchOperation(
                        type="update_file",
                        path="repo/notes.txt",
                        diff=f"@@\n-{'one' if not number else number - 1}\n+{number}\n two\n",
                    )
                    patches.append(await _timed(editor.apply_operation(change)))
            finally:
                await box.close()
    finally:
        watcher.cancel()
    bare = report.took("docker exec true", execs)
    start = report.took("session: made, first command done", starts)
    patch = report.took("apply_patch of one file", patches)
    report.bar("session start, times one exec", start.median / bare.median, START_BAR)
    report.bar("apply_patch, times one exec", patch.median / bare.median, PATCH_BAR)
    report.bar("requests to the engine on the event loop", len(on_loop), 0)
    report.say(f"the loop was never held longer than {held.longest * 1000:.1f} ms")
    if held.longest * 1000 > HELD_MS:
        report.say("(on a busy machine that is the wait for a processor, too)")


class _Held:
    """How late the loop was to what it should have done every two milliseconds."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.002)
            self.longest = max(self.longest, time.perf_counter() - began - 0.002)


def _on_this_thread() -> list[str]:
    """The requests to an engine that this thread makes from now on."""
    import requests

    found: list[str] = []
    loop, sound = threading.get_ident(), requests.Session.send

    def send(self: requests.Session, request: Any, **more: Any) -> Any:
        if threading.get_ident() == loop:
            found.append(f"{request.method} {request.url}")
        return sound(self, request, **more)

    requests.Session.send = send  # type: ignore[method-assign]
    return found


if __name__ == "__main__":
    main()
