"""The connection of one HTTP client, to hang up on after so long, whatever the other side does.

httpx limits the wait for each part of an answer and not for the whole: a service that says a byte
now and then, in its head for instance, could hold a worker's thread for days.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import httpx


class Line:
    """Knows the newest connection of a client that passes `trace` as the extension of that name.

    Close it when the client is closed: until then the connection is not quite gone.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._handle: socket.socket | None = None
        self._over = False

    def trace(self, name: str, info: Mapping[str, Any]) -> None:
        """What httpx tells about a request."""
        if name == "connection.connect_tcp.complete":
            connection = info["return_value"].get_extra_info("socket")
            with self._guard:
                self._drop()
                # A handle of one's own: the connection may be closed at any moment.
                self._handle = connection.dup()
            self._end()

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Hang up if the block has not ended after so long.

        Raises `httpx.ReadTimeout` then, unless there was no connection yet.
        """
        self._over = False
        timer = threading.Timer(seconds, self._late)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError):
            raise
        except httpx.HTTPError as error:
            self._in_time(error)
            raise
        else:
            # An answer that ends with its connection looks whole, wherever it was cut.
            self._in_time(None)
        finally:
            timer.cancel()

    def close(self) -> None:
        """Let go of the connection. Safe to repeat."""
        with self._guard:
            self._drop()

    def _in_time(self, error: httpx.HTTPError | None) -> None:
        if self._over:
            raise httpx.ReadTimeout("the whole took too long") from error

    def _late(self) -> None:
        self._over = True
        self._end()

    def _end(self) -> None:
        with self._guard, contextlib.suppress(OSError):
            if self._over and self._handle is not None:
                self._handle.shutdown(socket.SHUT_RDWR)

    def _drop(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None
