"""Services that make secrets, on a port of this machine: they speak as the real ones do."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote_plus

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa


@dataclass(frozen=True)
class Asked:
    """One request that reached a service."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def form(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(self.body.decode()).items()}


Reply = tuple[int, Mapping[str, Any] | None]


@dataclass
class Service(ABC):
    """A service that keeps every request, which secrets it gave and which are still good."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    alive: set[str] = field(default_factory=set)
    # Answers of this many requests to take a secret back are 503.
    away: int = 0
    # Takes the request in and hangs up: it may have had its effect.
    drops: bool = False
    # Given instead of a secret of its own.
    always: str = ""
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    def give(self, prefix: str = "") -> str:
        """A new secret."""
        secret = self.always or f"{prefix}made-{len(self.given)}-" + "k" * 24
        self.given.append(secret)
        self.alive.add(secret)
        return secret

    @abstractmethod
    def answer(self, asked: Asked) -> Reply:
        """Status and JSON for one request; None sends an empty body."""

    def take(self, secret: str, status: int = 204) -> Reply:
        """Answer a request to take a secret back."""
        if self.away > 0:
            self.away -= 1
            return 503, {"message": "away for a moment"}
        self.alive.discard(secret)
        return status, None


@contextmanager
def serving(service: Service) -> Iterator[Service]:
    """The service on a port of 127.0.0.1 until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked = Asked(self.command, self.path, dict(self.headers), body)
            service.asked.append(asked)
            status, data = service.answer(asked)
            if service.drops:
                self.close_connection = True
                return
            sent = b"" if data is None else json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def do_GET(self) -> None:
            self._do()

        def do_POST(self) -> None:
            self._do()

        def do_PUT(self) -> None:
            self._do()

        def do_DELETE(self) -> None:
            self._do()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def dripping(seconds: float = 10.0) -> Iterator[tuple[str, threading.Event]]:
    """A service that sends the head of its answer a byte at a time, each in good time.

    Its address, and whether somebody hung up on it before it was done.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    hung_up, over = threading.Event(), threading.Event()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while not over.is_set():
                connection, _ = listener.accept()
                with connection:
                    _drip(connection, seconds, hung_up)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", hung_up
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(seconds * 2)


def _drip(connection: socket.socket, seconds: float, hung_up: threading.Event) -> None:
    connection.recv(1 << 16)
    body = b'{"access_token": "made-0-kkkkkkkkkkkkkkkk", "token_type": "bearer", "expires_in": 60}'
    tail = b"\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    try:
        connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
        for _ in range(int(seconds * 10)):
            connection.sendall(b"x")
            time.sleep(0.1)
        connection.sendall(tail)
    except OSError:
        hung_up.set()


# --- GitHub ------------------------------------------------------------------------------------


@cache
def private_key() -> str:
    """A key made for these tests, in PEM form."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    ).decode()


def _unbase64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@dataclass
class GitHub(Service):
    """The two addresses of GitHub's API that installation tokens need."""

    app: str = "4711"
    installation: str = "99"
    owner: str = "acme"
    lives: timedelta = timedelta(hours=1)
    # What is given whatever was asked for.
    gives: Callable[[dict[str, Any]], dict[str, Any]] | None = None

    def answer(self, asked: Asked) -> Reply:
        if asked.path == f"/app/installations/{self.installation}/access_tokens":
            return self._make(asked)
        if (asked.method, asked.path) == ("DELETE", "/installation/token"):
            token = asked.headers["Authorization"].removeprefix("Bearer ")
            if token not in self.alive:
                return 401, {"message": "Bad credentials"}
            return self.take(token)
        return 404, {"message": "Not Found"}

    def _make(self, asked: Asked) -> Reply:
        if not self.signed(asked.headers["Authorization"].removeprefix("Bearer ")):
            return 401, {"message": "A JSON web token could not be decoded"}
        body = asked.json
        answer: dict[str, Any] = {
            "token": self.give("ghs_"),
            "expires_at": f"{datetime.now(UTC) + self.lives:%Y-%m-%dT%H:%M:%SZ}",
            "permissions": body["permissions"],
            "repository_selection": "selected" if "repositories" in body else "all",
        }
        if "repositories" in body:
            answer["repositories"] = [
                {"id": 1, "full_name": f"{self.owner}/{name}"} for name in body["repositories"]
            ]
        return 201, self.gives(answer) if self.gives else answer

    def signed(self, token: str) -> bool:
        """Whether the JWT is one of the App's own, as GitHub checks it."""
        head, claims, signature = token.split(".")
        public = serialization.load_pem_private_key(private_key().encode(), None).public_key()
        assert isinstance(public, rsa.RSAPublicKey)
        try:
            public.verify(
                _unbase64(signature),
                f"{head}.{claims}".encode(),
                padding.PKCS1v15(),
                hashes.SHA256(),
            )
        except InvalidSignature:
            return False
        said, now = json.loads(_unbase64(claims)), datetime.now(UTC).timestamp()
        return bool(
            json.loads(_unbase64(head)) == {"alg": "RS256", "typ": "JWT"}
            and said["iss"] == self.app
            and said["iat"] <= now < said["exp"] <= said["iat"] + 600
        )


# --- OAuth -------------------------------------------------------------------------------------


@dataclass
class Authorization(Service):
    """An authorization server with one confidential client."""

    client: str = "the portal"
    secret: str = "a secret+of/the=client"
    gives: str | None = None
    lives: int = 600

    def answer(self, asked: Asked) -> Reply:
        if not self._is_client(asked):
            return 401, {"error": "invalid_client"}
        form = asked.form
        if asked.path == "/revoke":
            return self.take(form["token"], 200)
        if asked.path != "/token" or form.get("grant_type") != "client_credentials":
            return 400, {"error": "unsupported_grant_type"}
        answer = {"access_token": self.give(), "token_type": "Bearer", "expires_in": self.lives}
        return 200, answer if self.gives is None else answer | {"scope": self.gives}

    def _is_client(self, asked: Asked) -> bool:
        named = asked.headers.get("Authorization", "")
        if not named.startswith("Basic "):
            form = asked.form
            return (form.get("client_id"), form.get("client_secret")) == (self.client, self.secret)
        pair = base64.b64decode(named.removeprefix("Basic ")).decode().split(":")
        return [unquote_plus(each) for each in pair] == [self.client, self.secret]


# --- Vault -------------------------------------------------------------------------------------


@dataclass
class Vault(Service):
    """A Vault with one KV secret and one role of a database engine."""

    token: str = "hvs." + "t" * 20
    data: dict[str, Any] = field(default_factory=lambda: {"password": "stored-" + "p" * 20})
    leases: dict[str, str] = field(default_factory=dict)

    def answer(self, asked: Asked) -> Reply:
        if asked.headers.get("X-Vault-Token") != self.token:
            return 403, {"errors": ["permission denied"]}
        if (asked.method, asked.path) == ("GET", "/v1/team/data/service"):
            return 200, {"data": {"data": self.data, "metadata": {"version": 3}}}
        if (asked.method, asked.path) == ("GET", "/v1/database/creds/reader"):
            lease = f"database/creds/reader/{len(self.leases)}"
            secret = self.give()
            self.leases[lease] = secret
            data = {"username": "v-reader", "password": secret}
            return 200, {
                "lease_id": lease,
                "lease_duration": 3600,
                "renewable": True,
                "data": {**data, **self.more},
            }
        if (asked.method, asked.path) == ("PUT", "/v1/sys/leases/revoke"):
            return self.take(self.leases[asked.json["lease_id"]])
        return 404, {"errors": []}
