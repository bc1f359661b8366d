"""The supervisor with small parts of its own: start, restart, stop, and what a kill leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

# A program that supervises the parts it is given and reports by files: each part
# writes its pid and that of a child it starts, and says when it is asked to stop.
_PART = """
import os, pathlib, signal, subprocess, sys, time
home, name, lives = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
child = subprocess.Popen(["sleep", "600"])
def stop(*_):
    with (home / "stopped").open("a") as file:
        file.write(name + "\\n")
    child.kill()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
with (home / name).open("a") as file:
    file.write(f"{os.getpid()} {child.pid}\\n")
print(name, "says hello", flush=True)
time.sleep(lives)
sys.exit(3)
"""
_SUPERVISOR = """
import json, pathlib, sys
from portal.supervise import Part, PartFailed, StopAsked, Supervisor
home, parts = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
def part(name, lives):
    command = (sys.executable, str(home / "part.py"), str(home), name, str(lives))
    ready = (home / name).exists
    return Part(name, command, {}, home / f"{name}.log", ready, ready_within=30)
try:
    with Supervisor(lambda text: print(text, flush=True)) as supervisor:
        for name, lives in parts:
            supervisor.start(part(name, lives))
        print("up", flush=True)
        supervisor.keep_up()
except PartFailed as error:
    sys.exit(str(error))
except StopAsked:
    sys.exit(130)
"""


class Supervised:
    """A running supervisor and what its parts wrote."""

    def __init__(self, home: Path, program: str = _PART, **parts: float) -> None:
        self.home = home
        (home / "part.py").write_text(program)
        self.process = subprocess.Popen(
            (sys.executable, "-c", _SUPERVISOR, str(home), json.dumps(list(parts.items()))),
            cwd=settings.BASE_DIR,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def generations(self, name: str) -> list[list[int]]:
        """[pid, pid of its child] of each time the part was started."""
        path = self.home / name
        lines = path.read_text().splitlines() if path.exists() else []
        return [[int(word) for word in line.split()] for line in lines]

    def everybody(self) -> list[int]:
        names = [path.stem for path in self.home.glob("*.log")]
        return [pid for name in names for pids in self.generations(name) for pid in pids]


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    started: list[Supervised] = []

    def start(program: str = _PART, **parts: float) -> Supervised:
        started.append(Supervised(tmp_path, program, **parts))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


def running(pid: int) -> bool:
    """Alive, and not merely waiting for somebody to collect it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def eventually(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "waited for half a minute"
        time.sleep(0.02)


def test_parts_are_stopped_newest_first(supervise: Callable[..., Supervised]) -> None:
    site = supervise(ground=600, middle=600, top=600)
    assert site.line() == "up"
    site.process.send_signal(signal.SIGINT)
    assert site.process.wait(30) == 0
    assert (site.home / "stopped").read_text().split() == ["top", "middle", "ground"]
    assert not any(running(pid) for pid in site.everybody())


def test_killing_the_supervisor_leaves_no_process(supervise: Callable[..., Supervised]) -> None:
    site = supervise(ground=600, top=600)
    assert site.line() == "up"
    assert all(running(pid) for pid in site.everybody())
    assert len(site.everybody()) == 4  # two parts and the child of each
    site.process.kill()
    eventually(lambda: not any(running(pid) for pid in site.everybody()))


def test_a_part_that_is_killed_comes_back(supervise: Callable[..., Supervised]) -> None:
    site = supervise(ground=600, top=600)
    assert site.line() == "up"
    first, child = site.generations("ground")[0]
    os.kill(first, signal.SIGKILL)
    assert site.line() == "The ground ended (signal SIGKILL) and is started again."
    eventually(lambda: len(site.generations("ground")) == 2)
    assert running(site.generations("ground")[1][0])
    eventually(lambda: not running(child))  # what the dead one had started is gone too
    site.process.kill()
    eventually(lambda: not any(running(pid) for pid in site.everybody()))


def test_a_part_that_keeps_ending_ends_everything(supervise: Callable[..., Supervised]) -> None:
    site = supervise(ground=600, weak=0.2)
    out, err = site.process.communicate(timeout=60)
    assert out.count("The weak ended (exit code 3) and is started again.") == 3
    assert "The weak keeps ending (exit code 3)." in err
    assert "weak says hello" in err  # its last words
    assert site.process.returncode == 1
    assert not any(running(pid) for pid in site.everybody())


def test_a_part_that_does_not_start_says_why(supervise: Callable[..., Supervised]) -> None:
    site = supervise("raise SystemExit('no such thing here')", ground=600)
    out, err = site.process.communicate(timeout=60)
    assert site.process.returncode == 1
    assert out == ""
    assert "The ground did not start (exit code 1)." in err
    assert "no such thing here" in err
