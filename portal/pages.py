"""Pages over HTTP: each is made by one thread, from the first middleware to the last.

Django's own handler for ASGI begins a thread for every request, with a database connection of its
own, and goes back and forth between it and the event loop at each middleware. Everything here that
makes a page is synchronous, so a page is one piece of work for one of the threads that stay, and
they keep what they have: the SQLite connection with its statements. Static files are left to
Django's handler, because those are read without threads of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import IO, Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.db import close_old_connections
from django.http import FileResponse
from django.http.response import HttpResponseBase
from django.urls import set_script_prefix

from portal import afterwards

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

FILES = "servestatic.middleware.ServeStaticMiddleware"
# Most of them wait, for the database or for its one write lock, and are only made when needed.
_threads = ThreadPoolExecutor(max_workers=64, thread_name_prefix="page")


class Pages(ASGIHandler):
    """Every request but those for static files."""

    def load_middleware(self, is_async: bool = False) -> None:
        """All that is synchronous, as Django chains it for a synchronous server."""
        every = settings.MIDDLEWARE
        settings.MIDDLEWARE = [each for each in every if each != FILES]
        try:
            super().load_middleware(is_async=False)
        finally:
            settings.MIDDLEWARE = every

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the whole request, make the page in a thread, send it."""
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        loop, make = asyncio.get_running_loop(), copy_context().run
        response, works = await loop.run_in_executor(_threads, make, self._page, scope, body)
        try:
            await self._answer(response, receive, send)
        finally:
            if works:
                await loop.run_in_executor(_threads, make, afterwards.done, works)

    async def _answer(self, response: HttpResponseBase, receive: Receive, send: Send) -> None:
        if not response.streaming:
            await self.send_response(response, send)
            return
        # What is made while it is sent has a thread of its own, and a connection, until its end.
        async with ThreadSensitiveContext():
            try:
                await self._stream(response, receive, send)
            finally:
                await sync_to_async(response.close)()

    def _page(
        self, scope: Scope, body: IO[bytes]
    ) -> tuple[HttpResponseBase, list[afterwards.Work]]:
        """The response, closed unless it is still to be made while it is sent; what follows it."""
        works = afterwards.gather()
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=type(self), scope=scope)
        request, unread = self.create_request(scope, body)
        if request is None:
            body.close()
            response: Any = unread
        else:
            response = self.get_response(request)
            response._handler_class = type(self)
            if isinstance(response, FileResponse):
                response.block_size = self.chunk_size
        if response.streaming:
            # It ends in a thread of its own; this one's connection goes back now.
            close_old_connections()
        else:
            response.close()
        return response, works

    async def _stream(self, response: HttpResponseBase, receive: Receive, send: Send) -> None:
        """Send until the end, or until whoever asked has left."""
        sending = asyncio.ensure_future(self.send_response(response, send))
        leaving = asyncio.ensure_future(self.listen_for_disconnect(receive))
        try:
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for each in (sending, leaving):
                each.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)


class Site:
    """Static files to Django's own handler, every page to ours."""

    def __init__(self, files: ASGIHandler) -> None:
        self._files, self._pages = files, Pages()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        is_file = scope["path"].startswith(settings.STATIC_URL)
        await (self._files if is_file else self._pages)(scope, receive, send)
