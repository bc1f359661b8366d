"""People in real browsers, at a real web process on this test's database."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from django.conf import settings
from django.db import connections
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, Page

from portal.models import Membership
from tests.processes import Processes, Site

# Generous: waited for in full only when something is wrong.
PATIENCE = 30_000
T = TypeVar("T")


@dataclass
class Stage:
    """One web process and the browsers that look at it."""

    processes: Processes
    browser: Browser
    site: Site

    @classmethod
    def set(cls, processes: Processes, browser: Browser) -> Stage:
        return cls(processes, browser, _site(processes, 0))

    @property
    def url(self) -> str:
        return self.site.url

    @property
    def named_url(self) -> str:
        """The same place by its name: browsers keep passkeys for names, never for addresses."""
        return self.url.replace("127.0.0.1", "localhost")

    def apart(self, do: Callable[[], T]) -> T:
        """Do something that runs an event loop: this thread has Playwright's already."""

        def work() -> T:
            try:
                return do()
            finally:
                connections.close_all()

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(work).result()

    def kill(self) -> None:
        """The web process dies without a word."""
        self.site.kill()

    def restart(self) -> None:
        """Another one in its place, at the same address."""
        self.site = _site(self.processes, self.site.port)

    def context(self, member: Membership | None, **options: Any) -> BrowserContext:
        """A browser of its own, with the person signed in."""
        options = {"base_url": self.url, **options}
        context = self.browser.new_context(**options)
        context.set_default_timeout(PATIENCE)
        if member is not None:
            client = Client()
            client.force_login(member.user)
            name = settings.SESSION_COOKIE_NAME
            value = client.cookies[name].value
            context.add_cookies([{"name": name, "value": value, "url": options["base_url"]}])
        return context

    def page(self, member: Membership | None, address: str, **options: Any) -> Page:
        """An open page of that person."""
        page = self.context(member, **options).new_page()
        page.goto(address)
        return page


def _site(processes: Processes, port: int) -> Site:
    return processes.site(
        port,
        SOURCE_ROOT=str(settings.SOURCE_ROOT),
        SOURCE_CACHE_DIR=str(settings.SOURCE_CACHE_DIR),
        BLOB_DIR=str(settings.BLOB_DIR),
    )
