"""One subscription a process, fanned out to the sockets of that process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from weakref import WeakKeyDictionary

import redis.asyncio
from django.conf import settings

from portal.live import CHANNEL

logger = logging.getLogger(__name__)

Listener = Callable[[str], None]
# Told to every listener after the subscription was lost and came back: hints may be missing.
RECONNECTED = "*"
# Told to every listener when the subscription is lost: until it is back no hint arrives.
LOST = "!"


class Hub:
    """The listeners of one event loop and the one task that feeds them.

    A listener is called on the loop with the topic's name and must not block.
    """

    def __init__(self) -> None:
        self._listeners: dict[str, set[Listener]] = {}
        self._task: asyncio.Task[None] | None = None
        self._subscribed = asyncio.Event()

    @property
    def connected(self) -> bool:
        """Whether hints arrive at the moment."""
        return self._subscribed.is_set()

    async def listen(self, topics: tuple[str, ...], listener: Listener) -> None:
        """Register before reading the page's rows, so that nothing falls in between.

        Returns once the subscription is in place, or after two seconds without
        it: the page then lives on its own polling until the broker is back.
        """
        for topic in topics:
            self._listeners.setdefault(topic, set()).add(listener)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._feed(), name="live hub")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._subscribed.wait(), 2)

    def forget(self, topics: tuple[str, ...], listener: Listener) -> None:
        """Drop a listener. With the last one the subscription stays, it is cheap."""
        for topic in topics:
            listeners = self._listeners.get(topic)
            if listeners is not None:
                listeners.discard(listener)
                if not listeners:
                    del self._listeners[topic]

    def _tell(self, topic: str) -> None:
        for listener in tuple(self._listeners.get(topic, ())):
            listener(topic)

    def _tell_everyone(self, topic: str) -> None:
        for listener in {each for group in self._listeners.values() for each in group}:
            listener(topic)

    async def _feed(self) -> None:
        lost = False
        while True:
            try:
                async with (
                    redis.asyncio.Redis.from_url(settings.CHANNEL_URL) as client,
                    client.pubsub() as pubsub,
                ):
                    await pubsub.subscribe(CHANNEL)
                    self._subscribed.set()
                    if lost:
                        self._tell_everyone(RECONNECTED)
                    lost = False
                    async for message in pubsub.listen():
                        if message["type"] == "message":
                            self._tell(message["data"].decode())
            except (redis.exceptions.RedisError, OSError) as error:
                if not lost:  # said once, not at every attempt to come back
                    logger.warning("live hub lost its subscription: %s", error)
            if self._subscribed.is_set():
                self._subscribed.clear()
                self._tell_everyone(LOST)
            lost = True
            await asyncio.sleep(0.5)


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


def hub() -> Hub:
    """The hub of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _hubs:
        _hubs[loop] = Hub()
    return _hubs[loop]
