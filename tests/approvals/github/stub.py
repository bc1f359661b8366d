"""A small GitHub for tests, held to GitHub's own published API description.

Every request the publisher sends and every answer the stub gives is validated
against `api.json` (see `trim.py`). What differs is kept in `violations`, which
must be empty at the end of a test: neither side may drift from the real host.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from openapi_core import OpenAPI
from openapi_core.contrib.werkzeug import WerkzeugOpenAPIRequest, WerkzeugOpenAPIResponse
from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

from tests.approvals.git_server import git

DOCUMENTATION = "https://docs.github.com/rest/pulls/pulls"
DOCUMENTED = {"GET": {200, 304, 422}, "POST": {201, 403, 422}}

# An answer given instead of acting, or what goes wrong after the act was done.
AfterAct = Literal["lose answer", "hang", "then 502"]


@dataclass(frozen=True)
class Canned:
    """An answer that the stub gives without doing anything."""

    status: int
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    errors: tuple[Mapping[str, str], ...] = ()


@dataclass
class GitHubStub:
    """One repository of a host, and the switches by which a test makes it behave otherwise."""

    repository: str
    store: Path
    token: str
    url: str = ""
    drafts_supported: bool = True
    ignores_draft: bool = False
    ignores_filter: bool = False
    lists_late: int = 0
    pulls: list[dict[str, Any]] = field(default_factory=list)
    faults: dict[str, list[Canned | AfterAct]] = field(default_factory=dict)
    seen: list[tuple[str, str, Any]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def fault(self, method: Literal["GET", "POST"], *faults: Canned | AfterAct) -> None:
        """Misbehave at the next requests of this method, in this order; then behave."""
        self.faults.setdefault(method, []).extend(faults)

    def orders(self) -> list[Any]:
        """The bodies of every POST the stub got."""
        return [body for method, _, body in self.seen if method == "POST"]

    def head(self, branch: str) -> str:
        return git(self.store, "for-each-ref", "--format=%(objectname)", f"refs/heads/{branch}")

    def add_pull(self, branch: str, *, base: str = "main", body: str = "", **changes: Any) -> Any:
        """A pull request as the host would list it, with every field its description requires."""
        number = len(self.pulls) + 1
        sha = self.head(branch)
        pull = specimen("pull-request")
        pull.update(number=number, state="open", draft=False, merged_at=None, body=body)
        for side, ref, commit in (("head", branch, sha), ("base", base, self.head(base))):
            owner = self.repository.partition("/")[0]
            pull[side].update(ref=ref, sha=commit, label=f"{owner}:{ref}")
            pull[side]["repo"]["full_name"] = self.repository
        pull.update(changes)
        self.pulls.append(pull)
        git(self.store, "update-ref", f"refs/pull/{number}/head", pull["head"]["sha"])
        return pull

    # --- Behaviour --------------------------------------------------------

    def handle(self, request: Request) -> Response:
        body = json.loads(request.get_data()) if request.method == "POST" else None
        self.seen.append((request.method, request.path, body))
        self._hold_to(request, None)
        waiting = self.faults.get(request.method)
        fault = waiting.pop(0) if waiting else None
        if isinstance(fault, Canned):
            answer = _error(fault.status, fault.message, fault.errors, fault.headers)
        else:
            answer = self._act(request, body)
        self._hold_to(request, answer)
        if fault == "hang":
            self.released.wait(60)
        if fault in ("hang", "lose answer"):
            request.environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return _error(502, "") if fault == "then 502" else answer

    def _act(self, request: Request, body: Any) -> Response:
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return _error(401, "Bad credentials")
        if request.path != f"/repos/{self.repository}/pulls":
            return _error(404, "Not Found")
        return self._list(request) if request.method == "GET" else self._create(body)

    def _list(self, request: Request) -> Response:
        if self.lists_late and self.pulls:
            self.lists_late -= 1
            return _json(200, [])
        label = None if self.ignores_filter else request.args.get("head")
        wanted = [pull for pull in self.pulls if label in (None, pull["head"]["label"])]
        if request.args.get("state", "open") != "all":
            wanted = [pull for pull in wanted if pull["state"] == "open"]
        return _json(200, [_listed(pull) for pull in wanted])

    def _create(self, order: Mapping[str, Any]) -> Response:
        head, base = order["head"], order["base"]
        for side, branch in (("head", head), ("base", base)):
            if not self.head(branch):
                fault = {"resource": "PullRequest", "field": side, "code": "invalid"}
                return _error(422, "Validation Failed", (fault,))
        label = f"{self.repository.partition('/')[0]}:{head}"
        if any(
            (pull["state"], pull["head"]["label"], pull["base"]["ref"]) == ("open", label, base)
            for pull in self.pulls
        ):
            said = f"A pull request already exists for {label}."
            fault = {"resource": "PullRequest", "code": "custom", "message": said}
            return _error(422, "Validation Failed", (fault,))
        draft = bool(order.get("draft"))
        if draft and not self.drafts_supported:
            return _error(422, "Draft pull requests are not supported in this repository.")
        pull = self.add_pull(
            head,
            base=base,
            body=order.get("body") or "",
            title=order["title"],
            draft=draft and not self.ignores_draft,
        )
        return _json(201, pull)

    def _hold_to(self, request: Request, answer: Response | None) -> None:
        asked = _Asked(request)
        try:
            if answer is None:
                _description().validate_request(asked)
            elif answer.status_code in DOCUMENTED[request.method]:
                given = WerkzeugOpenAPIResponse(answer)
                _description().validate_response(asked, given)
        except Exception as error:
            cause = error.__cause__ or error
            details = getattr(cause, "schema_errors", None) or [cause]
            self.violations.extend(f"{request.method}: {detail}"[:500] for detail in details)


class _Asked(WerkzeugOpenAPIRequest):
    """A request as if it had come to the host that the description names."""

    @property
    def host_url(self) -> str:
        return str(_raw()["servers"][0]["url"])


@cache
def _raw() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(Path(__file__).with_name("api.json").read_bytes())
    return data


@cache
def _description() -> OpenAPI:
    return OpenAPI.from_dict(_raw())


def specimen(name: str) -> Any:
    """The smallest value that a named schema of the description allows."""
    return _specimen(_raw()["components"]["schemas"][name])


def _specimen(schema: Mapping[str, Any]) -> Any:
    if pointer := schema.get("$ref"):
        return specimen(pointer.rpartition("/")[2])
    if schema.get("nullable"):
        return None
    if "enum" in schema:
        return schema["enum"][0]
    if "allOf" in schema:
        return _merged(schema["allOf"])
    for choice in ("oneOf", "anyOf"):
        if choice in schema:
            return _specimen(schema[choice][0])
    if schema.get("type") == "object":
        known = schema.get("properties", {})
        return {key: _specimen(known[key]) for key in schema.get("required", ()) if key in known}
    if schema.get("type") == "string":
        return _STRINGS.get(schema.get("format", ""), "text")
    return {"array": [], "integer": 1, "number": 1, "boolean": False}[schema["type"]]


_STRINGS = {"uri": "https://example.org/", "date-time": "2026-01-01T00:00:00Z"}


def _merged(parts: list[Mapping[str, Any]]) -> Any:
    whole: dict[str, Any] = {}
    for part in parts:
        whole.update(_specimen(part))
    return whole


def _listed(pull: Mapping[str, Any]) -> dict[str, Any]:
    """The same pull request in the shorter form of a list."""
    known = _raw()["components"]["schemas"]["pull-request-simple"]["properties"]
    short = specimen("pull-request-simple")
    short.update({key: value for key, value in pull.items() if key in known})
    return dict(short)


def _json(status: int, data: Any, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps(data), status, headers, content_type="application/json")


def _error(
    status: int,
    message: str,
    errors: tuple[Mapping[str, str], ...] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    if status >= 500:
        # What stands in front of the host does not speak JSON.
        return Response("<html>Unicorn!</html>", status, headers, content_type="text/html")
    data = {"message": message, "documentation_url": DOCUMENTATION, "status": str(status)}
    return _json(status, {**data, "errors": list(errors)} if errors else data, headers)


@contextmanager
def github_stub(store: Path, repository: str, token: str) -> Iterator[GitHubStub]:
    """Serve the stub on loopback for as long as the block lasts."""
    stub = GitHubStub(repository=repository, store=store, token=token)
    server = make_server("127.0.0.1", 0, Request.application(stub.handle), threaded=True)
    stub.url = f"http://127.0.0.1:{server.port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        stub.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
