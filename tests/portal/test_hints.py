"""How one open tab is told: at once where the connection takes it, and by its task where not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.utils import timezone

from portal.sockets import HintSocket


def test_a_hint_is_sent_at_once_or_waits_for_a_slow_reader() -> None:
    asyncio.run(_slow())


async def _slow() -> None:
    reads, sent = asyncio.Event(), list[str]()

    async def send(message: Mapping[str, Any]) -> None:
        await reads.wait()
        sent.append(message["text"])

    tab = _tab(send)
    tab._heard("run.1")
    assert sent == [], "nobody reads yet"
    await asyncio.sleep(0)
    reads.set()
    await asyncio.sleep(0.01)
    assert len(sent) == 1

    tab._heard("run.1")
    assert sent[1:] == ["look"], "no task had to be woken"
    await _end(tab)


def test_a_tab_that_is_closing_does_not_disturb_the_others() -> None:
    asyncio.run(_closing())


async def _closing() -> None:
    async def send(message: Mapping[str, Any]) -> None:
        raise RuntimeError("the connection is closed")

    tab = _tab(send)
    tab._heard("run.1")
    assert tab._news.is_set()
    await _end(tab)


def _tab(send: Any) -> HintSocket:
    tab = HintSocket()
    tab._straight, tab._news, tab._ask_again = send, asyncio.Event(), False
    tab._ends = timezone.now() + timedelta(hours=1)
    tab._pump = asyncio.create_task(tab._tell())
    return tab


async def _end(tab: HintSocket) -> None:
    assert tab._pump is not None
    tab._pump.cancel()
    await asyncio.gather(tab._pump, return_exceptions=True)
