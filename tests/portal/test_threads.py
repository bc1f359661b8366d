"""Pages are made by threads that stay; what is sent while it is made ends when nobody reads it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.core import signals
from django.core.asgi import get_asgi_application
from django.db import connection, transaction
from django.db.backends.signals import connection_created
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path
from django.urls.resolvers import URLPattern, URLResolver

from portal import handoff, pages
from portal.handoff import Job, enqueue_on_commit
from portal.pages import Site
from portal.urls import urlpatterns as portal_urls

pytestmark = [pytest.mark.urls(__name__), pytest.mark.django_db(transaction=True)]

_ended: list[str] = []


def who(request: HttpRequest) -> HttpResponse:
    connection.ensure_connection()
    return HttpResponse(f"{threading.get_ident()} {request.POST.get('said', '')}")


def broken(request: HttpRequest) -> HttpResponse:
    raise ZeroDivisionError


def hands_on(request: HttpRequest) -> HttpResponse:
    with transaction.atomic():
        enqueue_on_commit(Job.SWEEP_RUNS, 1)
        enqueue_on_commit(Job.SWEEP_RUNS, 2)
    return HttpResponse("handed on")


def streams(request: HttpRequest) -> StreamingHttpResponse:
    connection.ensure_connection()
    return StreamingHttpResponse(_three())


async def _endless() -> AsyncIterator[bytes]:
    try:
        while True:
            yield b"more"
            await asyncio.sleep(0.001)
    finally:
        _ended.append("endless")


async def _three() -> AsyncIterator[bytes]:
    for each in (b"one ", b"two ", b"three"):
        yield each


urlpatterns: list[URLPattern | URLResolver] = [
    path("who/", who),
    path("broken/", broken),
    path("hands-on/", hands_on),
    path("endless/", lambda request: StreamingHttpResponse(_endless())),
    path("streams/", streams),
    path("three/", lambda request: StreamingHttpResponse(_three())),
    *portal_urls,
]


class Visit:
    """One request to the application that a web process serves."""

    def __init__(self, site: Site, address: str, method: str = "GET", body: bytes = b"") -> None:
        headers = [(b"host", b"127.0.0.1")]
        if body:
            headers.append((b"content-type", b"application/x-www-form-urlencoded"))
            headers.append((b"content-length", str(len(body)).encode()))
        at = {"path": address, "raw_path": address.encode(), "query_string": b""}
        scope = {"type": "http", "method": method, "headers": headers, **at}
        self.body = body
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._task = asyncio.ensure_future(site(scope, self.sent.get, self.answers.put))

    async def begin(self) -> tuple[int, dict[str, str]]:
        await self.sent.put({"type": "http.request", "body": self.body})
        start = await self.take()
        names = ((key.decode().lower(), value.decode()) for key, value in start["headers"])
        return start["status"], dict(names)

    async def take(self) -> dict[str, Any]:
        return await asyncio.wait_for(self.answers.get(), 10)

    async def rest(self) -> str:
        text = await self.text()
        await self.end()
        return text

    async def text(self) -> str:
        parts, more = [], True
        while more:
            message = await self.take()
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        return b"".join(parts).decode()

    async def leave(self) -> None:
        await self.sent.put({"type": "http.disconnect"})
        await self.end()

    async def end(self) -> None:
        await asyncio.wait_for(self._task, 10)


def visited(*visits: tuple[Any, ...]) -> list[tuple[int, dict[str, str], str]]:
    """The answers to requests one after the other."""

    async def visit() -> list[tuple[int, dict[str, str], str]]:
        site, found = Site(get_asgi_application()), []
        for each in visits:
            one = Visit(site, *each)
            found.append((*await one.begin(), await one.rest()))
        return found

    return asyncio.run(visit())


def test_pages_share_threads_and_their_connections() -> None:
    opened: list[int] = []
    noted: list[int] = []

    def open_(**_: Any) -> None:
        opened.append(threading.get_ident())

    def note(**_: Any) -> None:
        noted.append(threading.get_ident())

    connection_created.connect(open_)
    signals.request_started.connect(note)
    signals.request_finished.connect(note)
    try:
        answers = visited(*[("/who/",)] * 20)
    finally:
        connection_created.disconnect(open_)
        signals.request_started.disconnect(note)
        signals.request_finished.disconnect(note)
    made = [int(text) for _, _, text in answers]
    assert len(set(made)) < 10
    if connection.vendor == "sqlite":
        assert len(opened) <= len(set(made)), "a connection was opened anew"
    # Begun and ended by the thread that has the connection.
    assert noted == [thread for thread in made for _ in range(2)]


def test_a_request_is_read_to_its_end() -> None:
    ((status, headers, text),) = visited(("/who/", "POST", b"said=hello"))
    assert (status, "hello" in text) == (403, False), "without a token of ours"
    assert "content-security-policy" in headers


def test_a_page_that_fails_is_an_answer() -> None:
    (status, _, _), (after, _, _) = visited(("/broken/",), ("/who/",))
    assert (status, after) == (500, 200)


def test_files_are_served_and_others_are_not_there() -> None:
    (status, headers, text), (missing, _, _) = visited(
        ("/static/portal/mark.svg",), ("/static/portal/nothing.svg",)
    )
    assert status == 200
    assert text.startswith("<svg")
    assert headers["x-content-type-options"] == "nosniff"
    assert "content-security-policy" in headers
    assert missing == 404


def test_what_is_made_while_it_is_sent_comes_whole() -> None:
    ((status, _, text),) = visited(("/three/",))
    assert (status, text) == (200, "one two three")


@pytest.mark.both_databases
def test_what_is_sent_for_long_keeps_no_connection_of_the_threads(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where connections lie in a pool, a thread that waits for its next page has none."""
    with ThreadPoolExecutor(max_workers=1) as one:
        monkeypatch.setattr(pages, "_threads", one)
        ((status, _, text),) = visited(("/streams/",))
        kept = one.submit(lambda: connection.connection is not None).result()
        one.submit(lambda: connection.close()).result()
    assert (status, text) == (200, "one two three")
    assert kept is (database == "sqlite")


def test_nothing_is_made_for_somebody_who_left() -> None:
    async def leave() -> None:
        one = Visit(Site(get_asgi_application()), "/endless/")
        await one.begin()
        await one.take()
        await one.leave()

    _ended.clear()
    asyncio.run(leave())
    assert _ended == ["endless"]


def test_somebody_who_left_before_the_end_of_the_request_asked_nothing() -> None:
    async def leave() -> bool:
        one = Visit(Site(get_asgi_application()), "/who/", "POST")
        await one.sent.put({"type": "http.request", "body": b"said=", "more_body": True})
        await one.leave()
        return one.answers.empty()

    assert asyncio.run(leave())


def test_nobody_waits_until_the_broker_is_told() -> None:
    """Nor is a hop lost because another one failed."""
    heard, told = threading.Event(), list[int]()

    def carry(job: Job, row_id: int) -> None:
        heard.wait(10)
        told.append(row_id)
        if row_id == 1:
            raise ZeroDivisionError

    async def ask() -> list[int]:
        one = Visit(Site(get_asgi_application()), "/hands-on/")
        status, _ = await one.begin()
        assert (status, await one.text()) == (200, "handed on")
        before = list(told)
        heard.set()
        await one.end()
        return before

    with handoff.carried_by(carry):
        assert asyncio.run(ask()) == []
    assert told == [1, 2]


def test_whoever_makes_no_page_tells_at_once() -> None:
    told: list[int] = []
    with handoff.carried_by(lambda job, row_id: told.append(row_id)):
        with transaction.atomic():
            enqueue_on_commit(Job.SWEEP_RUNS, 1)
            assert told == []
        assert told == [1]
