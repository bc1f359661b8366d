"""What a passkey signs for a decision, and whether it did, without a line of the portal's own."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import rfc8785
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from tests.softkeys import PRESENT, VERIFIED, SoftKey


def signed_text(said: Mapping[str, Any]) -> str:
    """The challenge that says what is decided, as a browser gets it."""
    whole = b"imprimatur decision v1\x00" + rfc8785.dumps(dict(said))
    return base64.urlsafe_b64encode(hashlib.sha256(whole).digest()).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def is_signed(key: SoftKey, kept: Mapping[str, Any] | None, said: Mapping[str, Any]) -> bool:
    """Whether this key signed exactly that, by somebody who was there and unlocked it."""
    if kept is None:
        return False
    client, data = _bytes(kept["client_data"]), _bytes(kept["authenticator_data"])
    told = json.loads(client)
    wanted = "webauthn.get", signed_text({**said, "nonce": kept["nonce"]})
    public = key.private.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    try:
        signature = _bytes(kept["signature"])
        public.verify(signature, data + hashlib.sha256(client).digest(), ec.ECDSA(SHA256()))
    except InvalidSignature:
        return False
    there = data[32] & (PRESENT | VERIFIED) == PRESENT | VERIFIED
    return (told["type"], told["challenge"]) == wanted and there
