"""Refusals: what the portal will not do, why, and the way out."""

from __future__ import annotations

from typing import ClassVar


class Refusal(Exception):
    """The portal will not do what was asked, and says why and what to do next.

    A subclass sets `code` (stable, for tests and logs), `status` (HTTP) and
    `text`: a sentence for the reason and one for the way out. The names in
    braces are the keyword arguments of the constructor.
    """

    code: ClassVar[str] = "portal.refused"
    status: ClassVar[int] = 409
    text: ClassVar[str]

    def __init__(self, **facts: object) -> None:
        self.facts = facts
        super().__init__(self.text.format(**facts))


class NotFound(Refusal):
    """There is no such thing, or none that this person may know of. The two look alike."""

    code = "portal.not_found"
    status = 404
    text = "There is nothing here. Check the address, or go back to the queue."


class NotAllowed(Refusal):
    """The person belongs to the tenant but lacks the permission."""

    code = "portal.not_allowed"
    status = 403
    text = (
        "This needs the permission “{permission}”, which your roles do not give. Ask a tenant "
        "admin."
    )


class TryAgain(Refusal):
    """The database was busy for longer than the limit; nothing was changed."""

    code = "portal.try_again"
    status = 503
    text = "The portal was busy and nothing was changed. Try again in a moment."


class DatabaseAway(Refusal):
    """The database does not take part: it is away, cannot be read, or has no room to write."""

    code = "portal.database_away"
    status = 503
    text = (
        "The portal’s database cannot be reached, or its disk is full. Whoever runs the portal has "
        "to see to it. Whether what you asked for happened is on the page you came from: look "
        "there before you try again."
    )


class TooLarge(Refusal):
    """A form that holds more than any form of the portal needs."""

    code = "portal.too_large"
    status = 413
    text = (
        "What was sent is larger than {limit} MB. Nothing was decided or changed. "
        "Go back, shorten it, and send it again."
    )


class BadInput(Refusal):
    """A form or a request that lacks something, or holds something it may not."""

    code = "portal.bad_input"
    status = 400
    text = "{reason}"
