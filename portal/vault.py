"""Bytes at rest that nobody but the outer runtime may read: Fernet with key rotation."""

from __future__ import annotations

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings

from portal.errors import Refusal


class SealBroken(Refusal):
    """Encrypted bytes that none of the configured keys opens."""

    code = "portal.seal_broken"
    text = (
        "Encrypted state cannot be opened with the keys in FIELD_KEYS. Nothing was done with it; "
        "put the earlier key back at the end of the list."
    )


def _box() -> MultiFernet:
    return MultiFernet([Fernet(key) for key in settings.FIELD_KEYS])


def seal(data: bytes) -> bytes:
    """Encrypt with the first key."""
    return _box().encrypt(data)


def unseal(token: bytes) -> bytes:
    """Decrypt with whichever key fits. Raises `SealBroken`."""
    try:
        return _box().decrypt(token)
    except InvalidToken as error:
        raise SealBroken from error


def rotate(token: bytes) -> bytes:
    """The same data, encrypted with the first key. Raises `SealBroken`."""
    try:
        return _box().rotate(token)
    except InvalidToken as error:
        raise SealBroken from error
