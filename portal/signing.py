"""The keys that sign receipts, checkpoints and exports."""

from __future__ import annotations

import base64

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

from portal.keys import DERIVED


def signing_keys() -> list[Ed25519PrivateKey]:
    """The installation's Ed25519 keys in force, the newest first.

    What must be found again by those who know an older key (checkpoints, ends of exports) is
    signed with all of them, and so makes the newest known.
    """
    return [_key(each) for each in settings.SIGNING_KEYS or (DERIVED,)]


def signing_key() -> Ed25519PrivateKey:
    """The newest key, which signs receipts. Its public half stands in each of them."""
    return signing_keys()[0]


def _key(configured: str) -> Ed25519PrivateKey:
    if configured != DERIVED:
        return Ed25519PrivateKey.from_private_bytes(base64.urlsafe_b64decode(configured))
    seed = HKDF(SHA256(), 32, salt=None, info=b"imprimatur receipts v1").derive(
        settings.SECRET_KEY.encode()
    )
    return Ed25519PrivateKey.from_private_bytes(seed)
