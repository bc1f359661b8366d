"""What nobody who waits for a page waits for: done once the page is sent.

A person's answer is committed; the broker and the open tabs of others hear of it a moment later.
Nothing is lost by that which the sweep would not find. Outside of a web process it is done at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar

logger = logging.getLogger(__name__)

Work = Callable[[], None]
_gathered: ContextVar[list[Work] | None] = ContextVar("_gathered", default=None)


def afterwards(work: Work) -> None:
    """Do this when the page is sent, or now if none is being made."""
    gathered = _gathered.get()
    if gathered is None:
        work()
    else:
        gathered.append(work)


def gather() -> list[Work]:
    """From here on, in this context, work is gathered: what `done` is to be given."""
    works: list[Work] = []
    _gathered.set(works)
    return works


def done(works: list[Work]) -> None:
    """Do what was gathered, in its order. What fails is logged: the page is sent already."""
    for work in works:
        try:
            work()
        except Exception:
            logger.exception("what follows a page failed")
