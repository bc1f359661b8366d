"""Throwaway servers for one test run: a Valkey, and a PostgreSQL cluster if asked for.

Both die with the process that started them, whatever happens to it.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from portal.embedded import pong, valkey_server
from portal.supervise import bound_to_this_process
from tests.parts import postgresql_binaries

# Generous: it is only ever waited for in full when something is wrong.
_DEADLINE = 60.0


class NotStarted(Exception):
    """A throwaway server that did not come up, with its last words."""


def _await(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _DEADLINE
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise NotStarted(log.read_text(errors="replace")[-2000:])
        time.sleep(0.02)


def _spawn(command: Sequence[str], log: Path, user: str | None = None) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=user,
            group=pwd.getpwnam(user).pw_gid if user else None,
            extra_groups=[] if user else None,
            preexec_fn=bound_to_this_process(),
        )


class Valkey:
    """The broker, channel layer and cache of this run."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.socket = home / "valkey.sock"
        self._log = home / "valkey.log"
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: int = 0) -> str:
        return f"unix://{self.socket}?db={database}"

    def start(self) -> None:
        """Start it, or start it again with what it had kept."""
        if self._process is not None and self._process.poll() is None:
            return
        self._process = _spawn(
            (
                *(str(valkey_server()), "--port", "0", "--unixsocket", str(self.socket)),
                *("--unixsocketperm", "700", "--dir", str(self.home), "--save", ""),
                *("--appendonly", "yes", "--appendfsync", "everysec"),
                *("--maxmemory-policy", "noeviction"),
            ),
            self._log,
        )
        _await(lambda: pong(self.socket), self._process, self._log)

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(with_signal)
            self._process.wait()


class PostgreSQL:
    """A cluster made for this run, on a unix socket, that forgets how to be durable unless asked.

    The server refuses to run as root, so root hands it to an unprivileged user.
    The portal's role is no superuser and bypasses nothing: row policies hold.
    """

    ROLE = "imprimatur"

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        # Its own directory: whatever the run's is called, this path must stay
        # short, and the unprivileged user must be able to reach it.
        self.home = Path(tempfile.mkdtemp(prefix="imprimatur-pg-", dir="/tmp"))
        self._user = _unprivileged_user() if os.geteuid() == 0 else None

    def url(self, database: str) -> str:
        return f"postgresql://{self.ROLE}@/{database}?host={self.home}"

    def start(self) -> None:
        """initdb and start, about a second together."""
        binaries = postgresql_binaries()
        if binaries is None:
            raise NotStarted("PostgreSQL's binaries are missing")
        log = self.home.with_suffix(".log")
        if self._user:
            shutil.chown(self.home, self._user, pwd.getpwnam(self._user).pw_gid)
        data = self.home / "data"
        options = ("-A", "trust", "-U", "super", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
        made = _spawn((str(binaries / "initdb"), "-D", str(data), *options), log, self._user)
        if made.wait() != 0:
            raise NotStarted(log.read_text(errors="replace")[-2000:])
        # Measurements want commits that cost what they cost (tests.bench).
        durable = "on" if os.environ.get("IMPRIMATUR_TEST_DURABLE") == "1" else "off"
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.home),
            "fsync": durable,
            "synchronous_commit": durable,
            "full_page_writes": durable,
            "max_connections": "200",
            "shared_buffers": "64MB",
        }
        chosen = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self._process = _spawn(
            (str(binaries / "postgres"), "-D", str(data), *chosen), log, self._user
        )
        _await(self._accepts, self._process, log)
        self._sql("postgres", f"CREATE ROLE {self.ROLE} LOGIN CREATEDB")

    def create(self, database: str) -> str:
        """An empty database that the portal's role owns; returns its URL."""
        self._sql("postgres", f"CREATE DATABASE {database} OWNER {self.ROLE}")
        return self.url(database)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)  # at once: nothing here is worth keeping
            self._process.wait()
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.with_suffix(".log").unlink(missing_ok=True)

    def _accepts(self) -> bool:
        # The socket appears before connections are accepted, so ask for one.
        import psycopg

        with suppress(psycopg.OperationalError):
            psycopg.connect(host=str(self.home), user="super", dbname="postgres").close()
            return True
        return False

    def _sql(self, database: str, statement: str) -> None:
        import psycopg

        with psycopg.connect(
            host=str(self.home), user="super", dbname=database, autocommit=True
        ) as connection:
            connection.execute(statement)


def _unprivileged_user() -> str:
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise NotStarted("there is neither a postgres nor a nobody user to run the server as")


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
