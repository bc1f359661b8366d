"""Sockets that carry no data: they tell a tab to look again, and never what it will see."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, cast

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.contrib.sessions.backends.base import SessionBase
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path
from django.utils import timezone

from portal import live, presence, tenancy
from portal.access import demand, membership_for
from portal.errors import Refusal
from portal.hub import LOST, RECONNECTED, hub
from portal.models import Membership
from portal.roles import Permission
from portal.sessions import standing

logger = logging.getLogger(__name__)

# `late`: look, but hints do not arrive at the moment, so the page may not call itself live.
LOOK_AGAIN, LATE = "look", "late"
# The browser must not come back after these: it is not signed in, or there is nothing for it.
SIGNED_OUT, NOT_THERE = 4401, 4404


def socket(route: str, consumer: type[HintSocket]) -> URLPattern:
    """A route to a socket, for the list that `portal.asgi` takes."""
    # Channels routes its consumers with `path`, which is typed for views alone.
    return path(route, cast("Callable[..., HttpResponseBase]", consumer.as_asgi()))


Send = Callable[[Mapping[str, Any]], Coroutine[Any, Any, None]]


def straight(application: Any) -> Any:
    """Give the sockets inside the server's own way of sending.

    The sessions of Channels look at each message whether to save themselves, and a hint changes
    none: that was a quarter of what telling hundreds of tabs costs.
    """

    async def passed_on(scope: Mapping[str, Any], receive: Any, send: Send) -> None:
        await application({**scope, "straight": send}, receive, send)

    return passed_on


def _frame(word: str) -> Mapping[str, Any]:
    return {"type": "websocket.send", "bytes": None, "text": word}


class SignedOut(Exception):
    """The session behind the socket is over."""


class HintSocket(AsyncWebsocketConsumer):
    """One tab that waits for hints on a few topics.

    A hint that comes twice, late or not at all does no harm: the tab reads the rows over HTTP,
    where one place renders them and one place asks who may see them, and it also asks by itself.
    Who may stay is asked again when people or roles change, and when the session would end.
    """

    # No channel layer: hints come from the process's one subscription (`portal.hub`).
    channel_layer_alias = ""
    permission = Permission.VIEW
    # Whether others who listen to the first topic are told that this person looks.
    shows_presence = False

    def topics(self, membership: Membership, **kwargs: Any) -> tuple[str, ...]:
        """What to listen to. Raises a `Refusal` if this member may not see the thing."""
        raise NotImplementedError

    async def connect(self) -> None:
        # Accepted first: a refusal before the handshake reaches the browser as a network error,
        # and it would try again for ever.
        await self.accept()
        self._straight = cast("dict[str, Send]", self.scope)["straight"]
        self._pump: asyncio.Task[None] | None = None
        self._topics: tuple[str, ...] = ()
        self._tab = ""
        self._news = asyncio.Event()
        self._ask_again = False
        try:
            self._topics = await database_sync_to_async(self._allowed)()
        except SignedOut:
            await self.close(SIGNED_OUT)
            return
        except Refusal:
            await self.close(NOT_THERE)
            return
        await hub().listen(self._topics, self._heard)
        if self.shows_presence:
            self._tab = await presence.tabs().arrive(self._topics[0], self._person)
        self._pump = asyncio.create_task(self._tell(), name="hint socket")
        # Whatever happened between the page and this line: look now.
        self._news.set()

    def _heard(self, topic: str) -> None:
        if topic.startswith(("members.", "person.", RECONNECTED)):
            self._ask_again = True
        elif topic != LOST and self._pump is not None and self._told_at_once():
            return
        self._news.set()

    def _told_at_once(self) -> bool:
        """Send the hint now if the connection takes it without waiting, as nearly all do.

        Hundreds of tabs may be told at once, and to wake a task for each took longer than to send.
        """
        sending = self._straight(_frame(LOOK_AGAIN))
        try:
            sending.send(None)
        except StopIteration:
            return True
        except Exception:
            logger.debug("a hint was not sent at once", exc_info=True)
        # It waits for a slow reader, or is closing: the task of this tab sees to it.
        sending.close()
        return False

    async def _tell(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._seconds_left()):
                    await self._news.wait()
            except TimeoutError:
                # The session is over by now, unless its end was put off.
                self._ask_again = True
            self._news.clear()
            if self._ask_again:
                self._ask_again = False
                try:
                    await database_sync_to_async(self._allowed)()
                except SignedOut:
                    await self.close(SIGNED_OUT)
                    return
                except Refusal:
                    await self.close(NOT_THERE)
                    return
            await self._straight(_frame(LOOK_AGAIN if hub().connected else LATE))

    def _seconds_left(self) -> float:
        return max(0.0, (self._ends - timezone.now()).total_seconds()) + 0.01

    async def disconnect(self, code: int) -> None:
        hub().forget(self._topics, self._heard)
        if self._tab:
            await presence.tabs().leave(self._topics[0], self._tab)
        if self._pump is not None:
            self._pump.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._pump

    def _allowed(self) -> tuple[str, ...]:
        """Ask the database, not the handshake: who is this now, and what may they hear?"""
        session = cast(SessionBase, self.scope["session"])
        known = self.scope["user"]
        if known is None or not known.is_authenticated:
            raise SignedOut
        found = standing(session.session_key, known.pk)
        if found is None:
            raise SignedOut
        user, self._ends = found
        self._person = user.pk
        route = dict(self.scope["url_route"]["kwargs"])
        membership = membership_for(user, route.pop("tenant"))
        with tenancy.scope(membership.tenant_id):
            demand(membership, self.permission)
            return (
                *self.topics(membership, **route),
                live.members_topic(membership.tenant_id),
                live.person_topic(user.pk),
            )
