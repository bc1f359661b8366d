"""Every address against every person: who gets there, and what they get."""

from __future__ import annotations

from django.urls import get_resolver

from tests.addresses import ADDRESSES, NOBODY, STRANGERS, Entry, Things, members_of, routes
from tests.visits import Visitor
from tests.walk import Walk

SIGN_IN = 302


def expected(entry: Entry, person: str, *, post: bool, tenant: bool) -> int:
    """What the matrix says."""
    status = entry.post if post else entry.get
    if person == NOBODY and entry.nobody is not None:
        return entry.nobody[post]
    if status == 405 or person in entry.who:
        return status
    if person == NOBODY or not tenant:
        return SIGN_IN
    return 404 if person in STRANGERS else 403


def test_every_address_has_an_entry() -> None:
    assert set(routes()) == set(ADDRESSES)


def test_every_address_for_every_person(walk: Walk) -> None:
    things = Things.made_by(walk)
    visitors = {name: Visitor(member) for name, member in members_of(things).items()}
    wrong = []
    for name, parts in routes().items():
        address, entry = things.address(name), ADDRESSES[name]
        for person, visitor in visitors.items():
            for post in (False, True):
                page = visitor.post(address) if post else visitor.get(address)
                wanted = expected(entry, person, post=post, tenant="tenant" in parts)
                if page.status_code != wanted:
                    ask = "POST" if post else "GET"
                    wrong.append(f"{ask} {name} as {person}: {page.status_code}, not {wanted}")
        if name == "portal:sign_out":
            visitors = {name: Visitor(member) for name, member in members_of(things).items()}
    assert wrong == []


def test_every_address_of_a_tenant_is_behind_the_guarded_door() -> None:
    """`tenant_view` leaves the permission on the function; nothing else makes such a view."""
    unguarded = [
        str(match.pattern)
        for resolver in get_resolver().url_patterns
        for match in getattr(resolver, "url_patterns", [])
        if "tenant" in match.pattern.converters and not hasattr(match.callback, "permission")
    ]
    assert unguarded == []
