"""A very small issue tracker on loopback, so that the demo's brokered tool has something to call.

It is a real service with a real effect: an issue that was opened is in its file afterwards. It
asks for a bearer token, keeps to one address, and honours Idempotency-Key. Nothing here needs a
framework; `manage.py up` starts it as a thread of the process that stays on top.

    POST /projects/NAME/issues   {"title": …, "text": …}  → 201 {"number", "url", …}
    GET  /projects/NAME/issues                            → 200 [{…}, …]
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ISSUES = re.compile(r"/projects/([a-z0-9-]{1,40})/issues")
FOLDER = "demo"
"""Below the data directory: the issues, the token and the port."""
MAX_BODY = 64_000
MAX_ISSUES = 10_000


class Tracker:
    """The running service. `url` is its address; issues are kept in `store` as JSON lines."""

    def __init__(self, store: Path, token: str, port: int = 0) -> None:
        self.store, self.token = store, token
        self.lock = threading.Lock()
        tracker = self

        class Handler(RequestHandler):
            service = tracker

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def start(self) -> Tracker:
        self.thread.start()
        return self

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def issues(self, project: str | None = None) -> list[dict[str, Any]]:
        """All issues, or those of one project, oldest first."""
        if not self.store.exists():
            return []
        found = [json.loads(line) for line in self.store.read_text("utf-8").splitlines()]
        return [each for each in found if project in {None, each["project"]}]

    def open_issue(self, project: str, title: str, text: str, key: str) -> dict[str, Any] | None:
        """The new issue, or the one that was opened with the same key; None if it is full."""
        with self.lock:
            there = self.issues()
            same = next((each for each in there if key and each["key"] == key), None)
            if same is not None or len(there) >= MAX_ISSUES:
                return same
            number = len(there) + 1
            issue = {
                "number": number,
                "url": f"{self.url}/projects/{project}/issues/{number}",
                "project": project,
                "title": title,
                "text": text,
                "key": key,
            }
            with self.store.open("a", encoding="utf-8") as file:
                file.write(json.dumps(issue) + "\n")
            return issue


class RequestHandler(BaseHTTPRequestHandler):
    """Answers the two requests of the tracker, as JSON."""

    service: Tracker
    server_version = "demo-tracker"
    sys_version = ""
    timeout = 20

    def do_GET(self) -> None:
        found = ISSUES.fullmatch(self.path)
        if not self.allowed():
            self.answer(HTTPStatus.UNAUTHORIZED, {"error": "a valid token is needed"})
        elif found is None:
            self.answer(HTTPStatus.NOT_FOUND, {"error": "there is nothing here"})
        else:
            self.answer(HTTPStatus.OK, self.service.issues(found[1]))

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY:
            self.close_connection = True
            self.answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": "the body is too large"})
            return
        body = self.rfile.read(int(length))
        found = ISSUES.fullmatch(self.path)
        if not self.allowed():
            self.answer(HTTPStatus.UNAUTHORIZED, {"error": "a valid token is needed"})
        elif found is None:
            self.answer(HTTPStatus.NOT_FOUND, {"error": "there is nothing here"})
        else:
            self.create(found[1], body)

    def create(self, project: str, body: bytes) -> None:
        try:
            given = json.loads(body)
            title, text = given["title"], given["text"]
            sound = isinstance(title, str) and isinstance(text, str) and 0 < len(title) <= 200
        except (ValueError, KeyError, TypeError):
            sound = False
        if not sound:
            self.answer(HTTPStatus.BAD_REQUEST, {"error": "title and text are needed"})
            return
        key = self.headers.get("Idempotency-Key", "")
        issue = self.service.open_issue(project, title, text, key)
        if issue is None:
            self.answer(HTTPStatus.INSUFFICIENT_STORAGE, {"error": "the demo's tracker is full"})
        else:
            self.answer(HTTPStatus.CREATED, issue)

    def allowed(self) -> bool:
        given = self.headers.get("Authorization", "").encode()
        return hmac.compare_digest(given, f"Bearer {self.service.token}".encode())

    def answer(self, status: HTTPStatus, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        """The portal's own events are the record; this service prints nothing."""


def start_tracker(data: Path) -> Tracker:
    """Start the tracker of a data directory, on the port of last time if that is free.

    Rows in the database name the address, so it should not change with every start.
    """
    folder = data / FOLDER
    token = token_in(folder)
    remembered = folder / "port"
    last = remembered.read_text() if remembered.exists() else ""
    try:
        tracker = Tracker(folder / "issues.jsonl", token, int(last) if last.isdecimal() else 0)
    except (OSError, OverflowError):
        tracker = Tracker(folder / "issues.jsonl", token)
    remembered.write_text(str(tracker.server.server_port))
    return tracker.start()


def token_in(folder: Path) -> str:
    """The token of this installation, made on first use and readable by its owner only."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "token"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text("ascii")
    with os.fdopen(handle, "w") as file:
        file.write(token := secrets.token_urlsafe(24))
    return token
