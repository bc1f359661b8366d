"""One-time sign-in links: made by an operator of the machine, used once, kept as a hash."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from contextlib import suppress
from datetime import timedelta

from django.core.cache import cache
from django.db import transaction
from redis.exceptions import RedisError

from portal.clock import database_now
from portal.errors import Refusal
from portal.models import SignInLink, User

LIFETIME = timedelta(hours=12)


class LinkSpent(Refusal):
    """The link was used, is too old, or never was one. Which of them is not told."""

    code = "portal.link_spent"
    status = 410
    text = (
        "This sign-in link no longer works: it was used or is too old. Whoever runs the portal "
        "makes a new one with: manage.py signin_link ADDRESS"
    )


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def make_link(user: User) -> str:
    """A new link for `user`, as a path. Earlier unused links of theirs stop working."""
    token = secrets.token_urlsafe(24)
    with transaction.atomic():
        SignInLink.objects.filter(user=user, used_at=None).delete()
        SignInLink.objects.create(
            user=user, token_hash=_hash(token), expires_at=database_now() + LIFETIME
        )
    return f"/signin/{token}/"


def owner_of(token: str) -> User:
    """Whose link this is, without using it. Raises `LinkSpent`."""
    link = (
        SignInLink.objects.select_related("user")
        .filter(
            token_hash=_hash(token),
            used_at=None,
            expires_at__gt=database_now(),
            user__is_active=True,
        )
        .first()
    )
    if link is None:
        raise LinkSpent
    return link.user


def use_link(token: str) -> User:
    """Use the link up and return its person. Raises `LinkSpent`; of two callers one wins."""
    user = owner_of(token)
    used = SignInLink.objects.filter(token_hash=_hash(token), used_at=None).update(
        used_at=database_now()
    )
    if used != 1:
        raise LinkSpent
    return user


# --- Guessed passwords ----------------------------------------------------------


def known_address(email: str) -> str:
    """The address as it was registered, however it was typed; an unknown one comes back."""
    stored = User.objects.filter(email__iexact=email).values_list("email", flat=True).first()
    return stored or email


ATTEMPTS_ALLOWED = 8
ATTEMPTS_KEPT = 600
# Addresses that this process counts by itself while the cache is away.
_MOST_COUNTED_HERE = 10_000
_counted_here: dict[str, tuple[float, int]] = {}
_counting = threading.Lock()


def _attempts_key(email: str) -> str:
    """One key for one account, however its address is typed and from wherever it is guessed."""
    return f"signin-attempts:{_hash(known_address(email).strip().lower())}"


def may_try(email: str) -> bool:
    """Count one more guess at this account's password, and say whether it may be made.

    Asked before the password is looked at, so that guesses at the same moment count each other. An
    address that nobody has waits like any other. While the cache is away each web process counts
    by itself: guessing is then limited to so many times more as there are processes, and nobody is
    shut out because of it.
    """
    key = _attempts_key(email)
    try:
        cache.add(key, 0, ATTEMPTS_KEPT)
        counted, away = cache.incr(key), False
    except (RedisError, ValueError):
        counted, away = 0, True
    return max(counted, _count_here(key, one_more=away)) <= ATTEMPTS_ALLOWED


def forget_attempts(email: str) -> None:
    """The right password was given."""
    key = _attempts_key(email)
    _counted_here.pop(key, None)
    with suppress(RedisError):
        cache.delete(key)


def _count_here(key: str, *, one_more: bool) -> int:
    """What this process counted of late; with `one_more`, including this one."""
    with _counting:
        now = time.monotonic()
        began, count = _counted_here.pop(key, (now, 0))
        if now - began > ATTEMPTS_KEPT:
            began, count = now, 0
        count += one_more
        if count:
            if len(_counted_here) >= _MOST_COUNTED_HERE:
                _counted_here.pop(next(iter(_counted_here)))
            _counted_here[key] = (began, count)
        return count
