"""Database functions, called from an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.db import close_old_connections

P = ParamSpec("P")
T = TypeVar("T")


def in_thread(function: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """Run a database function off the event loop.

    Not thread-sensitive on purpose: with several runs in one worker process,
    asgiref's one shared thread would make each wait for the others' writes.
    """

    def clean(*args: P.args, **kwargs: P.kwargs) -> T:
        close_old_connections()
        try:
            return function(*args, **kwargs)
        finally:
            close_old_connections()

    return sync_to_async(clean, thread_sensitive=False)
