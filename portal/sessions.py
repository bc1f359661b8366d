"""Sessions as rows, asked for only under keys that a row can have; and whose they are."""

from __future__ import annotations

from datetime import datetime

from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.backends import ModelBackend
from django.contrib.sessions.backends import db
from django.contrib.sessions.models import Session
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from portal import statements
from portal.models import User
from portal.statements import given


class SessionStore(db.SessionStore):
    """Django's own, deaf to cookies that are no keys.

    A cookie may hold a NUL, which PostgreSQL refuses as a value: anybody could make the portal
    fail that way.
    """

    def __init__(self, session_key: str | None = None) -> None:
        is_key = session_key is not None and session_key.isascii() and session_key.isalnum()
        super().__init__(session_key if is_key else None)

    def _get_session_from_db(self) -> Session | None:
        """Django's own question, with a statement that is ready."""
        found = _SESSION.first(key=self.session_key or "", now=timezone.now())
        if found is None:
            self._session_key = None
        return found


_SESSION = statements.Query(
    lambda: Session.objects.filter(
        session_key=given("key", Session), expire_date__gt=given("now", Session, "expire_date")
    )
)


class People(ModelBackend):
    """Django's own, which asks for the person of a request with a statement that is ready."""

    def get_user(self, user_id: int) -> User | None:
        """The person of this key, if they are active."""
        found = _PERSON.first(user=user_id)
        return found if found is not None and self.user_can_authenticate(found) else None


_PERSON = statements.Query(lambda: User.objects.filter(pk=given("user", User)))


def standing(key: str | None, user_id: int) -> tuple[User, datetime] | None:
    """Whose session it is and when it ends, read anew; None unless it still signs this person in.

    What every page asks at the beginning of a request, for what stays open longer than one.
    """
    row = Session.objects.filter(session_key=key or "", expire_date__gt=timezone.now()).first()
    user = User.objects.filter(pk=user_id, is_active=True).first()
    if row is None or user is None:
        return None
    said = row.get_decoded()
    # A new password ends the sessions that were begun with the old one.
    known = [user.get_session_auth_hash(), *user.get_session_auth_fallback_hash()]
    given = str(said.get(HASH_SESSION_KEY, ""))
    if said.get(SESSION_KEY) != str(user.pk):
        return None
    return (user, row.expire_date) if any(constant_time_compare(given, x) for x in known) else None
