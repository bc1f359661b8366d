"""A browser's side of the live hints: open a socket with a session's cookie, and listen."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.test import Client

# The web process closes its view of the rows by this variable; other processes that a test
# starts must not inherit that from the import.
_before = os.environ.get("ROW_SCOPE")
from portal.asgi import application  # noqa: E402

if _before is None:
    os.environ.pop("ROW_SCOPE", None)

T = TypeVar("T")
Communicator: Any = ApplicationCommunicator  # untyped upstream
# Waited for in full only when something is wrong.
DEADLINE = 20.0


class Heard:
    """One open socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop, communicator: Any):
        self._loop = loop
        self._communicator = communicator

    def output(self) -> dict[str, Any]:
        """The next thing the server says."""
        done: dict[str, Any] = self._run(self._communicator.receive_output(DEADLINE))
        return done

    def word(self) -> str:
        """The next hint."""
        return str(self.output()["text"])

    def closed(self) -> int:
        """The code the server closes with; hints before it are passed over."""
        while (said := self.output())["type"] != "websocket.close":
            pass
        return int(said.get("code") or 1000)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE * 2)


@contextmanager
def listening(client: Client, path: str, *, origin: str | None = None) -> Iterator[Heard]:
    """A socket that was accepted, until the block ends."""
    with _socket(client, path, origin) as (heard, accepted, _):
        assert accepted, "the handshake was refused"
        yield heard


def closed_with(client: Client, path: str, *, origin: str | None = None) -> int | None:
    """The code a socket is closed with before it hears anything; None if it may stay."""
    with _socket(client, path, origin) as (heard, accepted, code):
        if not accepted:
            return code or 1006
        said = heard.output()
        return int(said["code"]) if said["type"] == "websocket.close" else None


@contextmanager
def _socket(
    client: Client, path: str, origin: str | None
) -> Iterator[tuple[Heard, bool, int | None]]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    cookies = "; ".join(f"{name}={morsel.value}" for name, morsel in client.cookies.items())
    headers = [
        (b"host", settings.PUBLIC_ADDRESS.host.encode()),
        (b"origin", (origin or settings.PUBLIC_URL).encode()),
        (b"cookie", cookies.encode()),
    ]

    scope = {"type": "websocket", "path": path, "query_string": b"", "headers": headers}

    async def open_socket() -> tuple[Any, bool, int | None]:
        opened = Communicator(application, {**scope, "subprotocols": []})
        await opened.send_input({"type": "websocket.connect"})
        said = await opened.receive_output(DEADLINE)
        return opened, said["type"] == "websocket.accept", said.get("code")

    communicator, accepted, code = asyncio.run_coroutine_threadsafe(open_socket(), loop).result()
    try:
        yield Heard(loop, communicator), accepted, code
    finally:

        async def hang_up() -> None:
            await communicator.send_input({"type": "websocket.disconnect", "code": 1000})
            await communicator.wait(DEADLINE)
            # The hub's subscription belongs to this loop and would outlive it.
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        asyncio.run_coroutine_threadsafe(hang_up(), loop).result(DEADLINE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
