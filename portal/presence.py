"""Who has a page open at the moment: kept for seconds, told over HTTP, and never evidence.

A socket that is open says so every few seconds; one that closes says so at once. What a dead
process left is over by itself. Redis keeps it and its clock decides, so that processes whose
clocks differ agree.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from weakref import WeakKeyDictionary

import redis
import redis.asyncio
from django.conf import settings

from portal import live

logger = logging.getLogger(__name__)

BEAT = 4.0
LASTS = 12
_KEY = "imprimatur:here:"
# One entry a tab, `person:tab`, with the second at which it is over.
_STAY = f"""
local now = tonumber(redis.call('TIME')[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
for _, tab in ipairs(ARGV) do redis.call('ZADD', KEYS[1], now + {LASTS}, tab) end
redis.call('EXPIRE', KEYS[1], {LASTS})
return redis.call('ZCARD', KEYS[1])
"""
_READ = """
return redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. redis.call('TIME')[1], '+inf')
"""


class Tabs:
    """The open tabs of one event loop, and the one task that keeps them there."""

    def __init__(self) -> None:
        self._open: dict[str, set[str]] = {}
        self._task: asyncio.Task[None] | None = None

    async def arrive(self, place: str, person: int) -> str:
        """A tab of this person shows the place from now on. Returns what `leave` takes."""
        tab = f"{person}:{secrets.token_hex(8)}"
        self._open.setdefault(place, set()).add(tab)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep(), name="presence")
        with contextlib.suppress(redis.RedisError, OSError):
            async with _client() as client:
                if await client.eval(_STAY, 1, _KEY + place, tab) > 1:
                    await client.publish(live.CHANNEL, place)
        return tab

    async def leave(self, place: str, tab: str) -> None:
        """The tab is closed: those who stay look again."""
        tabs = self._open.get(place, set())
        tabs.discard(tab)
        if not tabs:
            self._open.pop(place, None)
        with contextlib.suppress(redis.RedisError, OSError):
            async with _client() as client:
                await client.zrem(_KEY + place, tab)
                if await client.exists(_KEY + place):
                    await client.publish(live.CHANNEL, place)

    async def _keep(self) -> None:
        while self._open:
            await asyncio.sleep(BEAT)
            try:
                async with _client() as client:
                    pipe = client.pipeline(transaction=False)
                    for place, tabs in self._open.items():
                        pipe.eval(_STAY, 1, _KEY + place, *tabs)
                    await pipe.execute()
            except (redis.RedisError, OSError) as error:
                logger.debug("nobody is told who looks: %s", error)


def _client() -> redis.asyncio.Redis:
    return redis.asyncio.Redis.from_url(
        settings.CHANNEL_URL, socket_timeout=2, socket_connect_timeout=2
    )


_tabs: WeakKeyDictionary[asyncio.AbstractEventLoop, Tabs] = WeakKeyDictionary()


def tabs() -> Tabs:
    """The tabs of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _tabs:
        _tabs[loop] = Tabs()
    return _tabs[loop]


def here(place: str) -> frozenset[int]:
    """Keys of the people who have the place open. Nobody, where Redis does not answer."""
    try:
        found = live.client().eval(_READ, 1, _KEY + place)
    except redis.RedisError as error:
        logger.debug("nobody knows who looks: %s", error)
        return frozenset()
    return frozenset(int(each.decode().partition(":")[0]) for each in found)
