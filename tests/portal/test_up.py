"""`manage.py up` as a person types it: started, refused, stopped, killed, started again."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from django.conf import settings

_OURS = re.compile(r"http://127\.0\.0\.1:\d+")


def _plain_environment() -> dict[str, str]:
    """What a person's shell has: none of the variables this suite runs with."""
    of_the_suite = {
        *("DATA_DIR", "SECRET_KEY", "FIELD_KEYS", "BROKER_URL", "CHANNEL_URL", "CACHE_URL"),
        *("DATABASE_URL", "DEVELOPMENT", "SANDBOX_PROVIDER", "DJANGO_SETTINGS_MODULE"),
        *("DJANGO_ALLOW_ASYNC_UNSAFE", "LOG_LEVEL"),
    }
    return {name: value for name, value in os.environ.items() if name not in of_the_suite}


class Up:
    """One `manage.py up` and all it says, errors included."""

    def __init__(self, *options: str, **environment: str) -> None:
        self.said = ""
        self.process = subprocess.Popen(
            (sys.executable, "manage.py", "up", *options),
            cwd=settings.BASE_DIR,
            env={**_plain_environment(), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def started(self) -> Up:
        """Wait for the last line of the greeting."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if line.startswith("Stop with Ctrl-C"):
                return self
        raise AssertionError(f"It ended instead (code {self.process.wait()}):\n{self.said}")

    def end(self, with_signal: signal.Signals = signal.SIGINT) -> int:
        """Send the signal; returns the exit code."""
        self.process.send_signal(with_signal)
        out, _ = self.process.communicate(timeout=60)
        self.said += out
        return self.process.returncode

    @property
    def url(self) -> str:
        found = _OURS.search(self.said)
        assert found, self.said
        return found[0]

    def link(self, name: str) -> str:
        """The sign-in link of this person."""
        found = re.search(rf"^  {name} .* (http\S+)$", self.said, re.MULTILINE)
        assert found, self.said
        return found[1]


@pytest.fixture
def data() -> Iterator[Path]:
    """A data directory with a short path: a socket lives in it."""
    with tempfile.TemporaryDirectory(prefix="imprimatur-up-", dir="/tmp") as home:
        yield Path(home) / "var"


@pytest.fixture
def up() -> Iterator[Callable[..., Up]]:
    begun: list[Up] = []

    def begin(*options: str, **environment: str) -> Up:
        begun.append(Up(*options, **environment))
        return begun[-1]

    yield begin
    for each in begun:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()


def parts_of(site: Up) -> dict[str, int]:
    """Process ids of the running parts, by what they run."""
    children = Path(f"/proc/{site.process.pid}/task/{site.process.pid}/children")
    found = {}
    for pid in children.read_text().split():
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            for name in ("valkey-server", "uvicorn", "celery"):
                if name.encode() in words:
                    found[name] = int(pid)
    return found


def processes_of(data: Path) -> list[str]:
    """Every process that was told about the data directory, zombies aside."""
    mark = os.fsencode(data)
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes()
            if mark in words or mark in (entry / "environ").read_bytes():
                found.append(words.replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def eventually_gone(data: Path) -> None:
    deadline = time.monotonic() + 30
    while left := processes_of(data):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def sign_in(link: str) -> httpx.Response:
    """Open the link and press its button."""
    with httpx.Client(follow_redirects=True) as person:
        page = person.get(link)
        if page.status_code != 200:
            return page
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
        assert token, page.text
        return person.post(link, data={"csrfmiddlewaretoken": token[1]})


@pytest.mark.bubblewrap
def test_start_use_stop_and_start_again(data: Path, up: Callable[..., Up]) -> None:
    options = ("--data", str(data), "--port", "0", "--sandbox", "bubblewrap")
    first = up(*options).started()

    # The address, a page, and one link for each person of the demo, used once.
    assert httpx.get(f"{first.url}/livez").text == "alive\n"
    assert httpx.get(f"{first.url}/readyz").status_code == 200
    assert sign_in(first.link("Ada Obi")).status_code == 200
    assert sign_in(first.link("Ada Obi")).status_code == 410

    # What nobody else may read.
    assert data.stat().st_mode & 0o077 == 0
    assert (data / "keys").stat().st_mode & 0o077 == 0
    assert (data / "valkey").stat().st_mode & 0o077 == 0

    # A second start on the same data is refused and harms nothing.
    second = up(*options)
    out, _ = second.process.communicate(timeout=60)
    assert second.process.returncode == 1
    assert f"in use by another `manage.py up` (process {first.process.pid})" in out
    assert "--data DIRECTORY" in out
    assert httpx.get(f"{first.url}/livez").status_code == 200

    keys = (data / "keys").read_bytes()
    assert first.end() == 0
    assert "Stopped. Everything is kept in" in first.said
    eventually_gone(data)

    # Everything is as it was: same keys, same people, no second demo.
    third = up(*options).started()
    assert "First start" in first.said
    assert "First start" not in third.said
    assert (data / "keys").read_bytes() == keys
    assert sign_in(third.link("Ada Obi")).status_code == 200
    assert third.link("Ada Obi") != first.link("Ada Obi")

    # kill -9 of the one on top, and nothing is left, and it starts once more.
    assert third.end(signal.SIGKILL) == -signal.SIGKILL
    eventually_gone(data)
    fourth = up(*options).started()
    assert sign_in(fourth.link("Vic Moreau")).status_code == 200
    assert fourth.end(signal.SIGTERM) == 0
    eventually_gone(data)


@pytest.mark.bubblewrap
def test_a_worker_that_has_worked_and_rests_is_replaced(data: Path, up: Callable[..., Up]) -> None:
    """What the first run loaded is given back, without a word and without a stop."""
    site = up("--data", str(data), "--port", "0", WORKER_REST="1").started()
    before = parts_of(site)
    deadline = time.monotonic() + 90  # the demo's run goes on until it needs a person
    while (now := parts_of(site)).get("celery", before["celery"]) == before["celery"]:
        assert time.monotonic() < deadline, (data / "log" / "worker.log").read_text()[-2000:]
        time.sleep(0.1)
    assert now["uvicorn"] == before["uvicorn"]
    assert site.end() == 0
    assert "started again" not in site.said
    eventually_gone(data)


@pytest.mark.bubblewrap
def test_parts_that_are_killed_come_back(data: Path, up: Callable[..., Up]) -> None:
    site = up("--data", str(data), "--port", "0", "--no-demo").started()
    parts = parts_of(site)
    assert set(parts) == {"valkey-server", "uvicorn", "celery"}

    for pid in parts.values():
        os.kill(pid, signal.SIGKILL)

    # The port stayed open all the while: a visitor waits a little and is served.
    deadline = time.monotonic() + 60
    while httpx.get(f"{site.url}/readyz", timeout=60).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert site.end() == 0
    assert site.said.count("is started again.") == 3
    eventually_gone(data)


def refused(*options: str, **environment: str) -> str:
    """What it says when it does not start."""
    outcome = subprocess.run(
        (sys.executable, "manage.py", "up", *options),
        cwd=settings.BASE_DIR,
        env={**_plain_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert "Traceback" not in outcome.stderr
    return outcome.stderr


def test_a_port_in_use(data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused("--data", str(data), "--port", str(port))
    assert f"port {port} on 127.0.0.1 is in use by another program." in said
    assert "manage.py up --port" in said


def test_a_port_that_does_not_exist(data: Path) -> None:
    assert "Choose --host and --port." in refused("--data", str(data), "--port", "99999")


def test_a_directory_that_cannot_be_written() -> None:
    said = refused("--data", "/proc/imprimatur", "--port", "0")
    assert "/proc/imprimatur cannot be written" in said
    assert "manage.py up --data DIRECTORY" in said


def test_a_directory_too_deep_for_a_socket(data: Path) -> None:
    said = refused("--data", str(data / ("x" * 100)), "--port", "0")
    assert "too long for a socket. Choose a shorter --data directory." in said


def test_no_sandbox(data: Path) -> None:
    said = refused(
        *("--data", str(data), "--port", "0", "--sandbox", "docker"),
        DOCKER_HOST=f"unix://{data}/nobody-listens.sock",
    )
    assert "docker" in said.lower()
    assert "Not started: the preparation above did not succeed." in said
    eventually_gone(data)


def test_every_address_needs_to_be_named(data: Path) -> None:
    said = refused("--data", str(data), "--port", "0", "--host", "0.0.0.0")
    assert "Set PUBLIC_URL, such as PUBLIC_URL=https://imprimatur.example.com." in said


def test_plain_http_for_others_is_refused(data: Path) -> None:
    said = refused("--data", str(data), "--port", "0", PUBLIC_URL="http://imprimatur.example.com")
    assert "their session cookies can be copied on the way." in said
    assert "Put a TLS proxy in front" in said
    eventually_gone(data)


def test_a_wrong_setting_is_said_once(data: Path) -> None:
    said = refused("--data", str(data), "--port", "0", RUN_LEASE="soon")
    assert "RUN_LEASE is 'soon'. Set it to whole seconds, 3 or more." in said
    eventually_gone(data)
