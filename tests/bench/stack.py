"""What `manage.py up` holds in memory when nobody asks anything, and how soon it is there again.

A first start makes the demo, whose run parks. The proportional set sizes (PSS) of the supervisor
and of all it started are added up half a minute later, and once the worker has rested too (a
worker that has grown ends itself after WORKER_REST seconds without work). Then it is stopped,
started again over the same data, and the clock runs from the start of the command to the sign-in
page.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.ground import small
from tests.bench.report import Report
from tests.services import free_port

SOON, IDLE = (5, 5) if small() else (30, 150)
STARTS = 2 if small() else 5
ROOT = Path(__file__).resolve().parents[2]
MEMORY, SECONDS = 220.0, 3.0


def main() -> None:
    home = Path(tempfile.mkdtemp(prefix="imprimatur-", dir="/tmp"))
    try:
        report = Report("stack: everything that `manage.py up` starts", "sqlite")
        port = free_port()
        first, process = _up(home, port)
        _await_worker(home)
        time.sleep(SOON)
        soon = sum(megabytes for _, megabytes in _memory(process.pid))
        time.sleep(IDLE)
        parts = _memory(process.pid)
        _stop(process)
        starts = []
        for _ in range(STARTS):
            took, process = _up(home, port)
            starts.append(took)
            _await_worker(home)
            _stop(process)
        report.say(f"{f'all of them, {SOON} seconds after the demo':<58} {soon:9.1f} MiB")
        for name, megabytes in parts:
            report.say(f"{name:<58} {megabytes:9.1f} MiB")
        report.bar("all of them, idle, summed PSS in MiB", sum(m for _, m in parts), MEMORY)
        report.took("first start -> first page, demo included", [first])
        report.took("later start -> first page", starts)
        report.bar(
            "later start -> first page, median in seconds", statistics.median(starts), SECONDS
        )
    finally:
        shutil.rmtree(home, ignore_errors=True)
    report.end()


def _up(home: Path, port: int) -> tuple[float, subprocess.Popen[bytes]]:
    """Start it; seconds until the sign-in page, and the supervisor."""
    mine = ("PATH", "HOME", "LANG", "TMPDIR")
    began = time.perf_counter()
    with (home / "up.log").open("ab") as log:
        process = subprocess.Popen(
            (sys.executable, "manage.py", "up", "--data", str(home), "--port", str(port)),
            cwd=ROOT,
            env={name: os.environ[name] for name in mine if name in os.environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    while not _page(port):
        if process.poll() is not None:
            raise AssertionError((home / "up.log").read_text(errors="replace")[-2000:])
        time.sleep(0.01)
    return time.perf_counter() - began, process


def _page(port: int) -> bool:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        client.request("GET", "/signin/")
        return client.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        client.close()


def _await_worker(home: Path) -> None:
    deadline = time.monotonic() + 120
    while not (home / "run" / "worker-ready").exists():
        if time.monotonic() > deadline:
            raise AssertionError("the worker did not get ready")
        time.sleep(0.05)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    process.wait(60)


def _memory(root: int) -> list[tuple[str, float]]:
    """The process and its descendants, each with its command and its PSS in MiB."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                name = " ".join(Path(word).name for word in words[:4] if word)
                found.append((name[:56], int(line.split()[1]) / 1024))
    return found


if __name__ == "__main__":
    main()
