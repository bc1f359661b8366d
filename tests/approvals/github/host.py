"""A GitHub server of one's own on loopback: the API below /api/v3, git beside it, one address.

A contract names such a server by the address of its API alone, so a portal in processes of its
own reaches it without being told anything else. Pushes go to `git http-backend`, and the API is
the stub that is held to the published description.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

from tests.approvals.git_server import GitServer, git_server
from tests.approvals.github.stub import GitHubStub

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

API = "/api/v3"
# What belongs to one connection and is not handed on.
_OWN_HEADERS = {"connection", "content-length", "host", "transfer-encoding"}


@dataclass
class GitHubHost:
    """Where it answers, and what its two halves saw."""

    url: str
    hub: GitHubStub
    git: GitServer

    @property
    def api(self) -> str:
        """What a contract writes as `api`."""
        return f"{self.url}{API}"

    @property
    def netloc(self) -> str:
        """What a credential's audience names."""
        return self.url.removeprefix("http://")


@contextmanager
def github_host(served: Path, repository: str, token: str) -> Iterator[GitHubHost]:
    """Serve the bare repository `served/REPOSITORY.git` for as long as the block lasts."""
    hub = GitHubStub(repository=repository, store=served / f"{repository}.git", token=token)
    with git_server(served, token) as behind, httpx.Client(timeout=60) as client:

        def relay(request: Request) -> Response:
            headers = [pair for pair in request.headers if pair[0].lower() not in _OWN_HEADERS]
            answer = client.request(
                request.method,
                f"{behind.url}{request.full_path}",
                headers=headers,
                content=request.get_data(),
            )
            kept = [pair for pair in answer.headers.items() if pair[0] not in _OWN_HEADERS]
            return Response(answer.content, answer.status_code, kept)

        git_app, api_app = Request.application(relay), Request.application(hub.handle)

        def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            path = environ["PATH_INFO"]
            if not path.startswith(f"{API}/"):
                return git_app(environ, start_response)
            # The description knows no prefix: servers of one's own put theirs in front of it.
            return api_app({**environ, "PATH_INFO": path.removeprefix(API)}, start_response)

        server = make_server("127.0.0.1", 0, app, threaded=True)
        hub.url = f"http://127.0.0.1:{server.port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield GitHubHost(hub.url, hub, behind)
        finally:
            hub.released.set()
            server.shutdown()
            thread.join()
            server.server_close()
