"""People at the pages: a browser's requests without a browser."""

from __future__ import annotations

import functools
import re
from typing import Any

from django.http import HttpResponse
from django.test import Client
from django.test.client import ClientHandler
from django.urls import reverse

from approvals.confirm import typed_word
from approvals.models import Packet
from portal.models import Membership

Page = Any  # what the test client returns: a response with `context`, untyped upstream


@functools.cache
def _handler(csrf: bool) -> ClientHandler:
    """The portal as it answers requests. Setting up its middleware costs more than most pages."""
    return ClientHandler(enforce_csrf_checks=csrf)


class Visitor:
    """One browser of one person, or of nobody."""

    def __init__(self, member: Membership | None = None, *, csrf: bool = False) -> None:
        self.member = member
        self.client = Client()
        self.client.handler = _handler(csrf)
        if member is not None:
            self.client.force_login(member.user)

    def get(self, address: str, *, htmx: bool = False) -> Page:
        """A page, or with `htmx` the fragment."""
        return self.client.get(address, headers={"HX-Request": "true"} if htmx else None)

    def post(self, address: str, /, *, htmx: bool = False, **fields: Any) -> Page:
        """A form that was sent."""
        headers = {"HX-Request": "true"} if htmx else None
        return self.client.post(address, fields, headers=headers)

    def decide(self, packet: Packet, answer: str = "approve", **fields: Any) -> Page:
        """The packet's form, filled in as its page has it. A field of None is left out."""
        form = {
            "answer": answer,
            "seen": packet.digest,
            "token": "one click",
            "typed": typed_word(packet),
            **fields,
        }
        sent = {name: value for name, value in form.items() if value is not None}
        return self.client.post(address_of(packet, "decide"), sent)


def address_of(packet: Packet, what: str = "") -> str:
    """Where a packet's page is, or one of its parts."""
    name = f"packet_{what}" if what else "packet"
    route = {"tenant": packet.tenant.slug, "public_id": packet.public_id}
    return reverse(f"approvals:{name}", kwargs=route)


def text_of(page: HttpResponse) -> str:
    """The body as text."""
    return page.content.decode()


def field_of(page: HttpResponse, name: str) -> str | None:
    """The value of a hidden field of the page's form, if there is one."""
    found = re.search(rf'name="{name}" value="([^"]*)"', text_of(page))
    return found.group(1) if found else None
