"""Signed statements: canonical JSON in a DSSE envelope, signed with Ed25519.

Strangers can check such an envelope with tools they have: what is signed is DSSE's own
pre-authentication encoding, and `keyid` is the public key itself, 32 bytes in hexadecimal.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from portal.canonical import canonical, parsed

# More signatures than any envelope of ours has; the others are not looked at.
_SIGNATURES = 16


def _to_sign(kind: str, payload: bytes) -> bytes:
    name = kind.encode()
    return b"DSSEv1 %d %s %d %s" % (len(name), name, len(payload), payload)


def key_id(public: Ed25519PublicKey) -> str:
    """The public key as envelopes name it."""
    return public.public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def public_key(key_id: str) -> Ed25519PublicKey:
    """The public key of that name. Raises `ValueError`."""
    return Ed25519PublicKey.from_public_bytes(bytes.fromhex(key_id))


def sign(content: Mapping[str, Any], kind: str, *keys: Ed25519PrivateKey) -> dict[str, Any]:
    """The envelope of `content`, signed with each key. `kind` is its media type, signed as well."""
    payload = canonical(content)
    return {
        "payloadType": kind,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [
            {
                "keyid": key_id(key.public_key()),
                "sig": base64.b64encode(key.sign(_to_sign(kind, payload))).decode(),
            }
            for key in keys
        ],
    }


def opened(envelope: Any, kind: str) -> tuple[dict[str, Any], frozenset[str]]:
    """The content, and the names of the keys that did sign it: one at least, else `ValueError`.

    Whether one of those keys is to be trusted is the caller's question.
    """
    try:
        payload = base64.b64decode(envelope["payload"], validate=True)
        signatures = list(envelope["signatures"])[:_SIGNATURES]
        if envelope["payloadType"] != kind:
            raise ValueError("the envelope holds something else")
    except (KeyError, TypeError) as error:
        raise ValueError("it is no envelope") from error
    to_sign = _to_sign(kind, payload)
    signers = frozenset(each["keyid"] for each in signatures if _fits(each, to_sign))
    if not signers:
        raise ValueError("no signature fits the content")
    content = parsed(payload)
    if not isinstance(content, dict):
        raise ValueError("the envelope holds no object")
    return content, signers


def _fits(signature: Any, signed: bytes) -> bool:
    try:
        public = public_key(signature["keyid"])
        public.verify(base64.b64decode(signature["sig"], validate=True), signed)
        # One key has one name, so that nobody is counted twice.
        return bool(signature["keyid"] == key_id(public))
    except (KeyError, TypeError, ValueError, InvalidSignature):
        return False
