"""Real processes of the portal on the current test's database and the run's broker."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import redis
from django.conf import settings

from portal.embedded import WORKER_FLAGS
from portal.supervise import bound_to_this_process
from tests import databases

_DEADLINE = 60.0


class Process:
    """One started process, its log, and how it ends."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def words(self) -> str:
        """All it printed."""
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """kill -9: the process gets no chance to tidy up. What it started is left alone."""
        if self.alive:
            self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM, and after a while SIGKILL for the whole group."""
        if self.alive:
            self._process.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait()

    def await_(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready`; the process ending or a long silence fails the test."""
        deadline = time.monotonic() + _DEADLINE
        while not ready():
            if not self.alive or time.monotonic() > deadline:
                raise AssertionError(f"The {self.name} did not get ready:\n{self.words()[-4000:]}")
            time.sleep(0.02)


class Site(Process):
    """A web process and where it answers."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Processes:
    """Starts workers and web processes for one test and ends them all after it."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._started: list[Process] = []
        # What earlier tests asked for and no worker took.
        redis.Redis.from_url(settings.BROKER.for_client()).flushall()

    @property
    def started(self) -> tuple[Process, ...]:
        """All that were started, ended ones too."""
        return tuple(self._started)

    def environment(self, **more: str) -> dict[str, str]:
        """What a process needs to see the same database, broker, keys and directories."""
        return {
            **os.environ,
            "DATABASE_URL": databases.url(),
            "PYTHONPATH": str(settings.BASE_DIR),
            "DJANGO_SETTINGS_MODULE": "portal.settings",
            **more,
        }

    def worker(self, **more: str) -> Process:
        """A Celery worker with the scheduler in it, ready for work."""
        ready = self._home / f"worker-ready-{len(self._started)}"
        process = self.start(
            f"worker-{len(self._started)}",
            "celery",
            *("-A", "portal.celery", "worker", "--pool", "threads", "--loglevel", "WARNING"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
            *("--hostname", f"{self._home.name}-{len(self._started)}@test"),
            **{**WORKER_FLAGS, "WORKER_READY_FILE": str(ready), **more},
        )
        process.await_(ready.exists)
        return process

    def site(self, port: int = 0, **more: str) -> Site:
        """A web process. Give the port of an earlier one to stand in for it after its death."""
        door = socket.socket()
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        door.bind(("127.0.0.1", port))
        door.listen(256)
        port = door.getsockname()[1]
        name = f"web-{len(self._started)}"
        with door:
            command = (
                *("uvicorn", "portal.asgi:application", "--fd", str(door.fileno())),
                *("--lifespan", "off", "--log-level", "warning", "--no-access-log"),
                *("--ws-per-message-deflate", "false"),
            )
            address = {"PUBLIC_URL": f"http://127.0.0.1:{port}", "ROW_SCOPE": "none"}
            process, log = self._spawn(name, command, {**address, **more}, door.fileno())
        site = Site(name, process, log)
        site.port = port
        self._started.append(site)
        site.await_(lambda: _answers(port))
        return site

    def start(self, name: str, module: str, *arguments: str, **more: str) -> Process:
        """Any `python -m module` of the portal, without waiting for it."""
        process, log = self._spawn(name, (module, *arguments), more)
        started = Process(name, process, log)
        self._started.append(started)
        return started

    def end(self) -> None:
        """End whatever still runs, newest first."""
        for each in reversed(self._started):
            each.stop()

    def _spawn(
        self, name: str, command: tuple[str, ...], more: dict[str, str], *handed_on: int
    ) -> tuple[subprocess.Popen[bytes], Path]:
        log = self._home / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                (sys.executable, "-m", *command),
                env=self.environment(**more),
                cwd=settings.BASE_DIR,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=handed_on,
                start_new_session=True,
                preexec_fn=bound_to_this_process(),
            )
        return process, log


def _answers(port: int) -> bool:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        client.request("GET", "/livez")
        return client.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        client.close()
