"""Sessions as rows, asked for only under keys that a row can have."""

from __future__ import annotations

from django.contrib.sessions.backends import db


class SessionStore(db.SessionStore):
    """Django's own, deaf to cookies that are no keys.

    A cookie may hold a NUL, which PostgreSQL refuses as a value: anybody could make the portal
    fail that way.
    """

    def __init__(self, session_key: str | None = None) -> None:
        is_key = session_key is not None and session_key.isascii() and session_key.isalnum()
        super().__init__(session_key if is_key else None)
