"""One request to a source and its answer, strictly: to an address that was checked, no redirect."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from portal.line import Line
from portal.redact import printable, redact
from runs.credentials.sources.base import ConfigWrong, MintRefused, MintUnknown, RevokeFailed
from runs.egress.addresses import pinned, why_refused

TIMEOUT = httpx.Timeout(20, connect=10)
WHOLE_SECONDS = 40.0
"""For all of one request. Less than a worker has to take a secret back (`CLAIM_SECONDS`)."""

MAX_ANSWER = 256 * 1024


@dataclass(frozen=True)
class Answer:
    """What came back. `data` is empty where it was no JSON object."""

    status: int
    data: Mapping[str, Any]

    @property
    def words(self) -> str:
        """What the other side says is wrong, short."""
        for name in ("error_description", "error", "message", "errors"):
            if said := self.data.get(name):
                return printable(f"{self.status}: {json.dumps(said, ensure_ascii=False):.200}")
        return str(self.status)


class NotSent(Exception):
    """Nothing reached the other side."""


class NoAnswer(Exception):
    """It was sent, and what became of it is not known."""


def base_of(name: str, address: str) -> str:
    """The address of a source, without a slash at its end. Raises `ConfigWrong`."""
    parts = urlsplit(address.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigWrong(name, "Give an https address.")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigWrong(name, "Give the address alone, without a name, a password or a query.")
    return address.strip().rstrip("/")


class Wire:
    """Requests to one source. `known` are secrets that no message may show."""

    def __init__(self, private_hosts: frozenset[str], known: tuple[str, ...]) -> None:
        self._private_hosts = private_hosts
        self._known = known

    def ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        *,
        body: Mapping[str, Any] | None = None,
        form: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request. Raises `NotSent` and `NoAnswer`."""
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        address = self._address(host, port)
        try:
            with (
                contextlib.closing(Line()) as line,
                line.within(WHOLE_SECONDS),
                httpx.Client(timeout=TIMEOUT, follow_redirects=False, trust_env=False) as client,
                client.stream(
                    method,
                    pinned(url, address),
                    headers={
                        "User-Agent": "imprimatur",
                        # What is packed could be a thousand times as long as what was counted.
                        "Accept-Encoding": "identity",
                        **headers,
                        "Host": parts.netloc,
                    },
                    json=body,
                    data=form,
                    extensions={"sni_hostname": host, "trace": line.trace},
                ) as response,
            ):
                data = b""
                for chunk in response.iter_raw():
                    data += chunk
                    if len(data) > MAX_ANSWER:
                        raise NoAnswer(f"{host} answered with more than fits")
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise NotSent(f"{host}:{port} could not be reached") from error
        except httpx.HTTPError as error:
            raise NoAnswer(f"{host}:{port} did not answer ({type(error).__name__})") from error
        return Answer(response.status_code, self._object(data))

    def _object(self, data: bytes) -> Mapping[str, Any]:
        try:
            found = json.loads(data) if data else {}
        except (ValueError, RecursionError):
            found = {}
        return found if isinstance(found, dict) else {}

    def _address(self, host: str, port: int) -> str:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise NotSent(f"the name {host} could not be resolved") from error
        address = str(found[0][4][0])
        listed = {host, f"{host}:{port}"} & self._private_hosts
        if not listed and why_refused(address):
            raise NotSent(
                f"{host} is no public address. List it in BROKER_PRIVATE_HOSTS if this deployment "
                "means it"
            )
        return address

    def mint(self, who: str, method: str, url: str, **request: Any) -> Answer:
        """A request that makes a secret. Raises `MintRefused` and `MintUnknown`."""
        try:
            answer = self.ask(method, url, **request)
        except NotSent as error:
            raise MintRefused(f"{who}: {error}.") from error
        except NoAnswer as error:
            raise MintUnknown(f"{who}: {error}.") from error
        if answer.status >= 500:
            raise MintUnknown(f"{who} answered {self._said(answer)}.")
        if answer.status not in (200, 201):
            raise MintRefused(f"{who} answered {self._said(answer)}.")
        return answer

    def revoke(self, who: str, method: str, url: str, *gone: int, **request: Any) -> None:
        """A request that takes one back; `gone` says that it was so already.

        Raises `RevokeFailed`.
        """
        try:
            answer = self.ask(method, url, **request)
        except (NotSent, NoAnswer) as error:
            raise RevokeFailed(f"{who}: {error}.") from error
        if answer.status not in (200, 204, *gone):
            raise RevokeFailed(f"{who} answered {self._said(answer)}.")

    def _said(self, answer: Answer) -> str:
        return redact(answer.words, known=self._known)
