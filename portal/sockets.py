"""Sockets that carry no data: they tell a tab to look again, and never what it will see."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, cast

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.contrib.sessions.backends.base import SessionBase
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path

from portal import live, tenancy
from portal.access import demand, membership_for
from portal.errors import Refusal
from portal.hub import hub
from portal.models import Membership, User
from portal.roles import Permission

# `late`: look, but hints do not arrive at the moment, so the page may not call itself live.
LOOK_AGAIN, LATE = "look", "late"
# The browser must not come back after these: it is not signed in, or there is nothing for it.
SIGNED_OUT, NOT_THERE = 4401, 4404


def socket(route: str, consumer: type[HintSocket]) -> URLPattern:
    """A route to a socket, for the list that `portal.asgi` takes."""
    # Channels routes its consumers with `path`, which is typed for views alone.
    return path(route, cast("Callable[..., HttpResponseBase]", consumer.as_asgi()))


class SignedOut(Exception):
    """The session behind the socket is over."""


class HintSocket(AsyncWebsocketConsumer):
    """One tab that waits for hints on a few topics.

    A hint that comes twice, late or not at all does no harm: the tab reads the rows over HTTP,
    where one place renders them and one place asks who may see them, and it also asks by itself.
    Who may stay is asked again when people or roles change.
    """

    # No channel layer: hints come from the process's one subscription (`portal.hub`).
    channel_layer_alias = ""
    permission = Permission.VIEW

    def topics(self, membership: Membership, **kwargs: Any) -> tuple[str, ...]:
        """What to listen to. Raises a `Refusal` if this member may not see the thing."""
        raise NotImplementedError

    async def connect(self) -> None:
        # Accepted first: a refusal before the handshake reaches the browser as a network error,
        # and it would try again for ever.
        await self.accept()
        self._pump: asyncio.Task[None] | None = None
        self._topics: tuple[str, ...] = ()
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
        self._pump = asyncio.create_task(self._tell(), name="hint socket")
        # Whatever happened between the page and this line: look now.
        self._news.set()

    def _heard(self, topic: str) -> None:
        if topic.startswith(("members.", "person.", "*")):
            self._ask_again = True
        self._news.set()

    async def _tell(self) -> None:
        while True:
            await self._news.wait()
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
            word = LOOK_AGAIN if hub().connected else LATE
            # Straight to the server: hundreds of tabs may be told at once.
            await self.base_send({"type": "websocket.send", "bytes": None, "text": word})

    async def disconnect(self, code: int) -> None:
        hub().forget(self._topics, self._heard)
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
        if session.session_key is None or not session.exists(session.session_key):
            raise SignedOut
        user = User.objects.filter(pk=known.pk, is_active=True).first()
        if user is None:
            raise SignedOut
        route = dict(self.scope["url_route"]["kwargs"])
        membership = membership_for(user, route.pop("tenant"))
        with tenancy.scope(membership.tenant_id):
            demand(membership, self.permission)
            return (
                *self.topics(membership, **route),
                live.members_topic(membership.tenant_id),
                live.person_topic(user.pk),
            )
