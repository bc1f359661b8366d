"""A service outside the sandbox, on loopback, that remembers everything that ever reached it."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal


@dataclass(frozen=True)
class Effect:
    """One request that arrived: what it was about, and with which credential and key."""

    title: str
    authorization: str
    key: str


class Service:
    """`drop` takes a request in and hangs up without an answer: the effect may have happened.

    It does not honour the idempotency key: what is sent twice happens twice, and shows.
    """

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.callers = 0
        self.manner: Literal["answer", "drop"] = "answer"
        service = self

        class Handler(_Handler):
            outside = service

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens, on 127.0.0.1."""
        return self._server.server_port

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def about(self, title: str) -> list[Effect]:
        """The effects with this title."""
        return [each for each in self.effects if each.title == title]


class _Handler(BaseHTTPRequestHandler):
    outside: Service
    timeout = 20

    def setup(self) -> None:
        self.outside.callers += 1
        super().setup()

    def do_POST(self) -> None:
        body: Mapping[str, Any] = json.loads(
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
        )
        authorization = self.headers.get("Authorization", "")
        self.outside.effects.append(
            Effect(str(body.get("title")), authorization, self.headers.get("Idempotency-Key", ""))
        )
        if self.outside.manner == "drop":
            self.close_connection = True
            return
        # A careless service: it answers with what it was sent, the credential included.
        answer = json.dumps({"number": len(self.outside.effects), "seen": authorization}).encode()
        self.send_response(201)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """What arrived is in `effects`."""
