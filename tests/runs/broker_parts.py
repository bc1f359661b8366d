"""What brokered tools talk to in tests: a service that answers as told, and small contracts."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from runs import broker
from runs.contract import Contract, contract_from_data, parse_contract
from runs.models import Run
from tests.cast import Cast, contract_text, make_run, make_version


@dataclass
class Answer:
    """One answer; `drip` seconds pass between its bytes, `hang` says nothing at all."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    drip: float = 0
    hang: bool = False


@dataclass
class Service:
    """Gives its answers in order, the last one again and again; keeps every request."""

    url: str
    answers: list[Answer | Callable[[Mapping[str, str]], Answer]]
    requests: list[tuple[str, str, Mapping[str, str], bytes]] = field(default_factory=list)


@contextmanager
def service(*answers: Answer | Callable[[Mapping[str, str]], Answer]) -> Iterator[Service]:
    """A service on a port of 127.0.0.1 until the block ends."""
    made, over = Service("", list(answers) or [Answer()]), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            made.requests.append((self.command, self.path, headers, body))
            given = made.answers[min(len(made.requests), len(made.answers)) - 1]
            each = given(headers) if callable(given) else given
            if each.hang:
                over.wait(30)
                self.close_connection = True
                return
            data = each.body if isinstance(each.body, bytes) else json.dumps(each.body).encode()
            self.send_response(each.status)
            self.send_header("Content-Length", str(len(data)))
            for name, value in each.headers.items():
                self.send_header(name, value)
            self.end_headers()
            for at in range(0, len(data), 1 if each.drip else len(data) or 1):
                self.wfile.write(data[at : at + 1] if each.drip else data)
                if each.drip and over.wait(each.drip):
                    return

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def relay(to: Path) -> Iterator[int]:
    """A port of 127.0.0.1 that leads to a unix socket: brokered tools know no other way."""
    ear = socket.create_server(("127.0.0.1", 0))

    def pump(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65_536):
                other.sendall(data)
        for each in (one, other):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = ear.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(str(to))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield ear.getsockname()[1]
    finally:
        ear.shutdown(socket.SHUT_RDWR)
        ear.close()


def contract_of_tool(kind: str, tool: Mapping[str, Any]) -> Contract:
    """The small job with one brokered tool of that kind."""
    data = parse_contract(contract_text(), "toml").to_data()
    data["tools"][kind] = [{"name": "ask", "description": "Ask.", **tool}]
    return contract_from_data(data)


def run_of(cast: Cast) -> Run:
    """A run of Olu's, which no worker has taken."""
    run = make_run(cast, make_version(cast))
    return Run.objects.select_related("tenant", "requested_by").get(pk=run.pk)


def carried_out(
    run: Run, kind: str, tool: Mapping[str, Any], arguments: Mapping[str, Any] | None = None
) -> broker.Done:
    """The tool's one call, planned and carried out."""
    declared = contract_of_tool(kind, tool).brokered_tool("ask")
    assert declared is not None
    plan = broker.plan(run, declared, arguments or {})
    return broker.carry_out(run, declared, arguments or {}, call_id="c1", target=plan.target)


def seconds(function: Callable[[], object]) -> float:
    """How long it takes."""
    begun = time.monotonic()
    function()
    return time.monotonic() - begun
