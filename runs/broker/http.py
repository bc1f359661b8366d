"""HTTP tools: the tool's declaration says where and how, the agent only fills in parameters.

The credential is added here and appears in no argument, event or result. One attempt has one
deadline, from the name's look-up to the last byte. Whether anything was sent is not guessed from
the kind of an error but noted when the first byte of the request leaves.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import jsonschema_rs

from portal.canonical import digest
from runs import credentials
from runs.broker.addresses import checked_address
from runs.broker.answers import (
    BrokerFailed,
    BrokerRefused,
    BrokerUnknown,
    Done,
    Plan,
    listed,
    too_deep,
    written,
)
from runs.broker.person import acting_for
from runs.contract import HttpTool
from runs.egress.addresses import pinned
from runs.models import Run, TenantValue

_PLACE = re.compile(r"\{([a-z][a-z0-9_]*)\}")
SAFE = frozenset({"GET"})
"""Methods that change nothing: whatever became of such a request, nothing happened."""

PERSON_HEADER = "X-Acting-For"
LONGEST_ADDRESS = 8_000
_TOO_DEEP = "The answer is nested too deeply."
FIRST_REST = 0.25
LONGEST_REST = 5.0


@dataclass(frozen=True)
class Request:
    """One request as it will be sent, without its credential."""

    method: str
    url: str
    body: bytes | None

    @property
    def target(self) -> str:
        """What a packet shows: method and full address."""
        return f"{self.method} {self.url}"

    @property
    def digest(self) -> str:
        """SHA-256 over method, address and body."""
        body = self.body.decode() if self.body is not None else None
        return digest({"method": self.method, "url": self.url, "body": body})


@dataclass
class _Sent:
    """What became of one attempt. `at_all`: the first byte of its request left."""

    at_all: bool = False
    status: int = 0
    data: bytes = b""
    retry_after: str = ""
    encoding: str = ""


def plan(run: Run, tool: HttpTool, arguments: Mapping[str, Any]) -> Plan:
    """What a packet shows of the call. Raises `BrokerRefused`."""
    page: dict[str, Any] = {
        "attempts": _most(tool),
        "seconds": tool.timeout_seconds,
        "kilobytes": tool.max_kilobytes,
        "gives_back": list(tool.response),
        "hides": list(tool.redact),
    }
    if tool.acting_for:
        page["acting_for"] = acting_for(run).email
    request = prepare(run.tenant_id, tool, arguments)
    return Plan(request.target, request.url, page)


def prepare(tenant_id: int, tool: HttpTool, arguments: Mapping[str, Any]) -> Request:
    """Fill the declared address in. Raises `BrokerRefused` for a value that changes its path."""
    base = ""
    if tool.base:
        row = TenantValue.objects.filter(tenant_id=tenant_id, name=tool.base).first()
        if row is None:
            raise BrokerRefused(
                f"The tenant has no value named “{tool.base}”, which the tool {tool.name} needs. "
                "A tenant admin can add it."
            )
        base = row.value.strip().rstrip("/")
    used: set[str] = set()

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        if name == "base" and base:
            return base
        used.add(name)
        value = arguments.get(name)
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise BrokerRefused(
                f"The argument “{name}” of {tool.name} must be a text or a whole number."
            )
        quoted = urllib.parse.quote(str(value), safe="")
        if quoted in ("", ".", ".."):
            raise BrokerRefused(f"The argument “{name}” of {tool.name} would change the address.")
        return quoted

    url = _PLACE.sub(fill, tool.url)
    if base and not url.startswith(("http://", "https://")):
        url = f"{base}/{url.lstrip('/')}"
    rest = {key: value for key, value in arguments.items() if key not in used}
    body = None
    if tool.body == "json":
        body = json.dumps(rest, ensure_ascii=False, sort_keys=True).encode()
    elif rest:
        url += ("&" if "?" in url else "?") + urllib.parse.urlencode(sorted(rest.items()))
    _check_address(tool, url)
    return Request(tool.method, url, body)


def _check_address(tool: HttpTool, url: str) -> None:
    """It is one http address, and every reader reads the same one. Raises `BrokerRefused`."""
    if len(url) > LONGEST_ADDRESS:
        raise BrokerRefused(
            f"The address of {tool.name} would have {len(url)} characters. Keep it to "
            f"{LONGEST_ADDRESS}."
        )
    try:
        parts = urllib.parse.urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    # Some readers skip a line break, and take a backslash for a slash.
    fits = fits and url.isascii() and url.isprintable() and not set(url) & set(' \\#"<>^`{|}')
    if not fits or "@" in parts.netloc:
        raise BrokerRefused(
            f"The tool {tool.name} has no http address: {url!a:.100}. It must be one without a "
            "name, a password or a fragment."
        )


def send(run: Run, tool: HttpTool, request: Request, *, call_id: str, key: str) -> Done:
    """Make the request of one call, `key` going along as Idempotency-Key.

    Raises `BrokerRefused` when nothing was sent, `BrokerFailed` when a safe request got no usable
    answer, and `BrokerUnknown` when any other may have had its effect.
    """
    headers = {
        "Idempotency-Key": key,
        "Accept": "application/json",
        # What is packed could be a thousand times as long as what was counted.
        "Accept-Encoding": "identity",
        "User-Agent": "imprimatur",
    }
    if request.body is not None:
        headers["Content-Type"] = "application/json"
    # Asked even if the service is not told: nobody acts for somebody who has left.
    person = acting_for(run)
    if tool.acting_for:
        headers[PERSON_HEADER] = person.email
    if not tool.credential:
        return _attempts(tool, request, headers)
    try:
        with credentials.use(
            run,
            tool.credential,
            address=request.url,
            consumer=f"tool {tool.name}",
            call_id=call_id,
        ) as secret:
            return _attempts(tool, request, headers | {"Authorization": f"Bearer {secret.value}"})
    except credentials.CredentialRefused as refused:
        raise BrokerRefused(str(refused)) from refused


def _most(tool: HttpTool) -> int:
    """How often one call is sent at most: what may do something twice is sent once."""
    return 1 + (tool.retries if tool.idempotent else 0)


def _attempts(tool: HttpTool, request: Request, headers: Mapping[str, str]) -> Done:
    """Once; or, where the tool is idempotent, until there is an answer or nothing is left to try.

    An attempt without an answer may have had the effect. Then only the success of a later one,
    which the key makes the same request, is an answer: a service that meets the first one again
    may as well refuse the second.
    """
    place = urllib.parse.urlsplit(request.url).netloc
    most, safe = _most(tool), request.method in SAFE
    words, sent, attempt, open_end = "", _Sent(), 0, False
    while attempt < most:
        if attempt:
            time.sleep(_rest(attempt, sent.retry_after))
        attempt += 1
        sent = _Sent()
        try:
            asyncio.run(_send(tool, request, headers, sent))
        except TimeoutError:
            words = f"{place} did not answer in {tool.timeout_seconds} seconds."
        except httpx.HTTPError as error:
            words = f"{place} did not answer ({type(error).__name__})."
        except BrokerRefused as refused:
            if not open_end:
                raise
            words = str(refused)
        else:
            busy = sent.status == 429 and attempt < most
            unclear = open_end and not safe and not 200 <= sent.status < 300
            if sent.status < 500 and not busy and not unclear:
                return _answer(tool, request, sent, attempt)
            words = f"{place} answered {sent.status}."
            if sent.status == 429:
                # A service that is busy has not looked at the request.
                continue
        open_end = open_end or sent.at_all
    tries = f" It was asked {attempt} times." if attempt > 1 else ""
    if safe and open_end:
        raise BrokerFailed(f"{words}{tries}")
    if not open_end:
        raise BrokerRefused(f"{words} No connection was made.{tries}")
    raise BrokerUnknown(f"{words}{tries}")


def _rest(attempt: int, retry_after: str) -> float:
    """Seconds before the next attempt; a service may ask for more, within bounds."""
    wanted = float(retry_after) if retry_after.isdecimal() and len(retry_after) < 5 else 0.0
    return min(max(FIRST_REST * 2.0 ** (attempt - 1), wanted), LONGEST_REST)


async def _send(tool: HttpTool, request: Request, headers: Mapping[str, str], sent: _Sent) -> None:
    """One attempt. Raises TimeoutError, httpx.HTTPError or `BrokerRefused`; fills `sent` in."""

    async def trace(name: str, info: Mapping[str, Any]) -> None:
        if name.endswith("send_request_headers.started"):
            sent.at_all = True

    parts = urllib.parse.urlsplit(request.url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    async with asyncio.timeout(tool.timeout_seconds):
        address = await asyncio.to_thread(checked_address, host, port)
        # Connect to the very address that was checked, under the name that was approved.
        async with (
            httpx.AsyncClient(
                timeout=httpx.Timeout(tool.timeout_seconds, connect=min(10, tool.timeout_seconds)),
                follow_redirects=False,
                trust_env=False,
            ) as client,
            client.stream(
                request.method,
                pinned(request.url, address),
                content=request.body,
                headers={**headers, "Host": parts.netloc},
                extensions={"sni_hostname": host, "trace": trace},
            ) as response,
        ):
            sent.status = response.status_code
            sent.retry_after = response.headers.get("Retry-After", "")
            sent.encoding = response.headers.get("Content-Encoding", "identity").lower()
            async for chunk in response.aiter_raw():
                sent.data += chunk
                if len(sent.data) > tool.max_kilobytes * 1024:
                    break


def _answer(tool: HttpTool, request: Request, sent: _Sent, attempts: int) -> Done:
    """Only what the declaration lists comes back; everything else stays outside."""
    receipt = {
        "kind": "request",
        "method": request.method,
        "request": request.digest,
        "status": sent.status,
        "attempts": attempts,
    }
    good = 200 <= sent.status < 300
    body, why_not = _body(tool, sent)
    if good and not why_not and tool.response_schema:
        why_not = _misfit(tool.response_schema, body)
    if why_not:
        effect = (
            "" if request.method in SAFE or not good else " The request itself was carried out."
        )
        return Done(
            good and request.method not in SAFE,
            f"Answered with {sent.status}. {why_not} Nothing of it is passed on.{effect}",
            receipt,
        )
    answer = {"status": sent.status, **listed(body, tool.response, tool.redact)}
    return Done(good, written(answer), receipt)


def _body(tool: HttpTool, sent: _Sent) -> tuple[Any, str]:
    """The answer's JSON, and why it cannot be used. No JSON at all is an empty answer."""
    if len(sent.data) > tool.max_kilobytes * 1024:
        return {}, f"The answer is longer than {tool.max_kilobytes} kilobytes."
    if sent.data and sent.encoding not in ("", "identity"):
        return {}, "The answer is packed, although that was not asked for."
    try:
        body = json.loads(sent.data) if sent.data else {}
    except RecursionError:
        return {}, _TOO_DEEP
    except ValueError:
        return {}, ""
    return ({}, _TOO_DEEP) if too_deep(body) else (body, "")


def _misfit(schema: Mapping[str, Any], body: Any) -> str:
    """Where the answer is not as the contract says; never with a word of the answer itself."""
    validator = jsonschema_rs.Draft202012Validator(dict(schema))
    places = [
        "/".join(str(part) for part in error.schema_path) for error in validator.iter_errors(body)
    ]
    if not places:
        return ""
    return f"The answer does not fit the contract's schema at {', '.join(places[:5])}."
