"""From a committed event to 500 open sockets, against a bare Redis publish to 500 subscribers.

A real web process holds 500 websockets on one run's page. This process commits an event of that
run and reads what arrives, with one epoll loop over plain sockets. The clock starts before COMMIT
is sent and stops for each socket when its hint is there. The bare
publish goes to 500 TCP connections that subscribed to the same server, read by the same loop, and
takes turns with the events.
"""

from __future__ import annotations

import base64
import secrets
import select
import socket
import time
from collections.abc import Callable

import redis

from tests.bench.ground import cookie_of, ground, small
from tests.bench.report import Report
from tests.services import free_port

SOCKETS = 50 if small() else 500
ROUNDS = 10 if small() else 60
BAR = 3.0


class Crowd:
    """Many connections, and when each of them heard something."""

    def __init__(
        self,
        connect: Callable[[], socket.socket],
        heard: Callable[[socket.socket, bytes], bool],
    ):
        self._heard = heard
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        for _ in range(SOCKETS):
            connection = connect()
            connection.setblocking(False)
            self._sockets[connection.fileno()] = connection
            self._poll.register(connection.fileno(), select.EPOLLIN)

    def hear(self, since: float, patience: float = 30) -> list[float]:
        """Seconds from `since` until each connection heard something."""
        waiting, arrived = set(self._sockets), []
        deadline = time.monotonic() + patience
        while waiting:
            if time.monotonic() > deadline:
                raise AssertionError(f"{len(waiting)} of {SOCKETS} sockets heard nothing")
            for number, _ in self._poll.poll(1):
                data = self._sockets[number].recv(4096)
                now = time.perf_counter()
                if not data:
                    raise AssertionError("the server closed a socket")
                if self._heard(self._sockets[number], data) and number in waiting:
                    waiting.discard(number)
                    arrived.append(now - since)
        return arrived

    def drain(self, quiet: float) -> None:
        """Read what is under way, until nobody heard anything for so long.

        A ping is not news: with so many connections there is always one.
        """
        until = time.monotonic() + quiet
        while (left := until - time.monotonic()) > 0:
            for number, _ in self._poll.poll(left):
                data = self._sockets[number].recv(4096)
                if not data:
                    raise AssertionError("the server closed a socket")
                if self._heard(self._sockets[number], data):
                    until = time.monotonic() + quiet


def main() -> None:
    with ground() as place:
        from django.conf import settings
        from django.db import transaction

        from runs import lifecycle
        from tests.cast import make_run

        run = make_run(place.cast)
        site = place.site()
        path = f"/ws/t/acme/runs/{run.public_id}/"
        cookie = cookie_of(place.cast.ada.user)
        tabs = Crowd(lambda: _open(site.port, path, cookie), _hint)
        # Every tab is told to look as soon as it is open.
        tabs.hear(time.perf_counter(), patience=300)
        tabs.drain(2)

        client = redis.Redis.from_url(settings.CHANNEL_URL)
        port = free_port()
        client.config_set("bind", "127.0.0.1")
        client.config_set("port", port)
        listeners = Crowd(lambda: _subscribe(port), lambda _, data: b"message" in data)
        listeners.drain(2)

        facts = lifecycle.run_facts(run)

        def event() -> list[float]:
            with transaction.atomic(durable=True):
                lifecycle.append_events(run, [lifecycle.Draft("call.started", facts)])
                began = time.perf_counter()
            return tabs.hear(began)

        def publish() -> list[float]:
            began = time.perf_counter()
            client.publish("bench", "run.1")
            return listeners.hear(began)

        ours: list[float] = []
        bare: list[float] = []
        for round_ in range(ROUNDS + 5):
            for take, taken in ((publish, bare), (event, ours)):
                arrived = take()
                time.sleep(0.05)
                if round_ >= 5:
                    taken += arrived

        report = Report(f"fanout: one event to {SOCKETS} sockets", place.database)
        floor = report.took(f"bare Redis publish to {SOCKETS} subscribers", bare)
        mine = report.took(f"event committed -> {SOCKETS} websockets", ours)
        report.bar("99th percentile of ours / of the bare publish", mine.p99 / floor.p99, BAR)
    report.end()


def _open(port: int, path: str, cookie: str) -> socket.socket:
    """One websocket, asked for by hand."""
    connection = socket.create_connection(("127.0.0.1", port))
    key = base64.b64encode(secrets.token_bytes(16)).decode()
    connection.sendall(
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
        f"Origin: http://127.0.0.1:{port}\r\nCookie: {cookie}\r\n\r\n".encode()
    )
    return connection


def _hint(connection: socket.socket, data: bytes) -> bool:
    """Whether a hint came. A ping, which uvicorn sends after a while, is answered."""
    if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 101"):
        raise AssertionError(f"no websocket: {data[:200]!r}")
    at = data.find(b"\x89")
    if at >= 0:
        length = data[at + 1]
        # A client's frames are masked; a mask of zeros changes nothing.
        connection.sendall(bytes((0x8A, 0x80 | length, 0, 0, 0, 0)) + data[at + 2 :][:length])
    return b"look" in data


def _subscribe(port: int) -> socket.socket:
    """One Redis subscriber, without a client library."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(b"*2\r\n$9\r\nSUBSCRIBE\r\n$5\r\nbench\r\n")
    connection.recv(4096)
    return connection


if __name__ == "__main__":
    main()
