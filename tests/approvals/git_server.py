"""A git server on loopback for tests: Debian's `git http-backend` behind a small CGI.

It asks for a Basic or Bearer credential and can be told to misbehave once, at
a named moment: `fault("discovery", 502)`, `fault("push", "answer late")`.
"""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal, cast
from urllib.parse import urlsplit

Moment = Literal["discovery", "push", "fetch"]
# A status answers without acting. "never act": the connection closes and nothing
# was done. "lose answer": it was done, and the connection closes. "hang": it was
# done, and no answer comes before the test ends. "then 502": it was done, and a
# proxy in front says 502.
Fault = int | Literal["behave", "never act", "lose answer", "hang", "then 502"]

PLAIN_GIT = {
    "PATH": os.environ.get("PATH", os.defpath),
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "Somebody Else",
    "GIT_AUTHOR_EMAIL": "else@example.org",
    "GIT_COMMITTER_NAME": "Somebody Else",
    "GIT_COMMITTER_EMAIL": "else@example.org",
    "GIT_AUTHOR_DATE": "1700000000 +0000",
    "GIT_COMMITTER_DATE": "1700000000 +0000",
}


def git(repo: Path, *args: str, stdin: bytes = b"") -> str:
    """Run git in a repository of the test itself."""
    done = subprocess.run(
        ["git", "-C", str(repo), *args],
        input=stdin,
        capture_output=True,
        env=PLAIN_GIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def commit_on(repo: Path, branch: str, files: dict[str, str], *, new_root: bool = False) -> str:
    """Put one more commit with these files on a branch, without a work tree."""
    lines = []
    for path, content in files.items():
        blob = git(repo, "hash-object", "-w", "--stdin", stdin=content.encode())
        lines.append(f"100644 blob {blob}\t{path}\n")
    tree = git(repo, "mktree", stdin="".join(lines).encode())
    ref = f"refs/heads/{branch}"
    known = git(repo, "for-each-ref", "--format=%(objectname)", ref)
    parents = ["-p", known] if known and not new_root else []
    commit = git(repo, "commit-tree", tree, *parents, "-m", f"work on {branch}")
    git(repo, "update-ref", ref, commit)
    return commit


@dataclass
class GitServer:
    """What a test may ask of the server, and what the server saw."""

    root: Path
    port: int
    token: str
    faults: dict[Moment, list[Fault]] = field(default_factory=dict)
    seen: list[tuple[str, str]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    # The only ways in; a test may narrow them.
    accepted: set[str] = field(default_factory=set)
    moved_to: str | None = None
    # What happens at the remote just before the next push is taken.
    before_push: Callable[[], object] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fault(self, moment: Moment, *faults: Fault) -> None:
        """Misbehave at the next requests of this kind, in this order; then behave."""
        self.faults.setdefault(moment, []).extend(faults)

    def next_fault(self, moment: Moment | None) -> Fault | None:
        waiting = self.faults.get(moment) if moment else None
        return waiting.pop(0) if waiting else None

    def pushes(self) -> int:
        return sum(
            path.endswith("/git-receive-pack") for method, path in self.seen if method == "POST"
        )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    facts: GitServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_message(self, *_: object) -> None:
        return

    def _serve(self) -> None:
        facts = cast(_Server, self.server).facts
        parts = urlsplit(self.path)
        body = self._body()
        facts.seen.append((self.command, parts.path))
        if facts.moved_to is not None:
            self._answer(301, [("Location", facts.moved_to + self.path)], b"")
            return
        if self.headers.get("Authorization") not in facts.accepted:
            self._answer(401, [("WWW-Authenticate", 'Basic realm="git"')], b"")
            return
        fault = facts.next_fault(_moment(self.command, parts.path, parts.query))
        if isinstance(fault, int):
            self._answer(fault, [], b"")
            return
        if fault == "never act":
            self.close_connection = True
            return
        if self.command == "POST" and parts.path.endswith("/git-receive-pack"):
            meanwhile, facts.before_push = facts.before_push, None
            if meanwhile is not None:
                meanwhile()
        status, headers, answer = self._backend(facts, parts.path, parts.query, body)
        if fault == "hang":
            facts.released.wait(60)
        if fault in ("hang", "lose answer"):
            self.close_connection = True
            return
        if fault == "then 502":
            status, headers, answer = 502, [], b""
        self._answer(status, headers, answer)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _backend(
        self, facts: GitServer, path: str, query: str, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        environment = {
            **PLAIN_GIT,
            "GIT_PROJECT_ROOT": str(facts.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REMOTE_USER": "publisher",
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        done = subprocess.run(
            ["git", "http-backend"], input=body, capture_output=True, env=environment, check=False
        )
        head, _, answer = done.stdout.partition(b"\r\n\r\n")
        headers = [
            (name, value.strip())
            for name, _, value in (line.partition(":") for line in head.decode().splitlines())
        ]
        status = next((int(value.split()[0]) for name, value in headers if name == "Status"), 200)
        return status, [pair for pair in headers if pair[0] != "Status"], answer

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _moment(method: str, path: str, query: str) -> Moment | None:
    if method == "GET":
        return "discovery"
    if path.endswith("/git-receive-pack"):
        return "push"
    return "fetch" if path.endswith("/git-upload-pack") else None


def basic(token: str, username: str = "x-access-token") -> str:
    return "Basic " + base64.b64encode(f"{username}:{token}".encode()).decode()


@contextmanager
def git_server(root: Path, token: str) -> Iterator[GitServer]:
    """Serve the repositories below `root` for as long as the block lasts."""
    server = _Server(("127.0.0.1", 0), _Handler)
    facts = GitServer(root=root, port=server.server_address[1], token=token)
    facts.accepted = {basic(token), f"Bearer {token}"}
    server.facts = facts
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield facts
    finally:
        facts.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
