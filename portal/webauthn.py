"""What a passkey signed, checked from its bytes alone: assertions of WebAuthn (Level 3, 7.2).

The portal asks it before it believes an assertion, and an auditor who holds nothing but the stored
bytes asks it again: so it knows no framework and no table, and of others only `cryptography`.
All binary values are base64url without padding, as browsers give them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePublicKey,
    EllipticCurvePublicNumbers,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey, RSAPublicNumbers
from cryptography.hazmat.primitives.hashes import SHA256

# The signatures that are understood, by COSE's numbers: ES256, Ed25519, RS256.
ES256, EDDSA, RS256 = -7, -8, -257
ALGORITHMS = (ES256, EDDSA, RS256)
# No value of an assertion is longer, in base64url; a credential's name has 1,023 bytes at most.
LONGEST = 8192
LONGEST_ID = 1364
_PRESENT, _VERIFIED = 0x01, 0x04
_HEAD = 37  # bytes of authenticator data before anything optional
_LEAST_MODULUS = 2048


class NotSigned(ValueError):
    """The assertion does not prove what it should. The text says why, as the end of a sentence."""


@dataclass(frozen=True)
class Assertion:
    """What the browser returned: which key, what it signed, and the signature."""

    credential: str
    authenticator_data: str
    client_data: str
    signature: str

    @classmethod
    def read(cls, data: object) -> Assertion:
        """From plain data. Raises `NotSigned` for anything else than four proper values."""
        if not isinstance(data, Mapping):
            raise NotSigned("it is no assertion")
        found = {each.name: data.get(each.name) for each in fields(cls)}
        for name, value in found.items():
            longest = LONGEST_ID if name == "credential" else LONGEST
            if not isinstance(value, str) or not 0 < len(value) <= longest:
                raise NotSigned(f"its {name.replace('_', ' ')} is missing or too long")
            from_base64url(value)
        return cls(**found)  # type: ignore[arg-type]

    def to_data(self) -> dict[str, str]:
        """As plain data."""
        return asdict(self)


def to_base64url(data: bytes) -> str:
    """The bytes as browsers write them."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def from_base64url(text: str) -> bytes:
    """The bytes of a text that has exactly one spelling. Raises `NotSigned`."""
    if not re.fullmatch(r"[A-Za-z0-9_-]*", text) or len(text) % 4 == 1:
        raise NotSigned("it is not spelled as base64url")
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if to_base64url(data) != text:
        raise NotSigned("it is not spelled as base64url")
    return data


def fingerprint(public_key: str) -> str:
    """The name people compare a key by: SHA-256 of its COSE bytes, in hexadecimal."""
    return hashlib.sha256(from_base64url(public_key)).hexdigest()


def client_data_of(client_data: str) -> dict[str, Any]:
    """What the browser says it was asked. Raises `NotSigned`."""
    try:
        said = json.loads(from_base64url(client_data).decode())
    except (ValueError, RecursionError) as error:
        raise NotSigned("what the browser says it signed cannot be read") from error
    if not isinstance(said, dict):
        raise NotSigned("what the browser says it signed cannot be read")
    return said


def checked(
    assertion: Assertion,
    *,
    public_key: str,
    challenge: str,
    rp_id: str,
    origins: Collection[str],
) -> int:
    """The sign count of an assertion that holds: this key signed this challenge, on a page of one
    of `origins`, for `rp_id`, and its holder was verified (PIN or biometrics). Else `NotSigned`.

    Whether the count may be what it is, and whether the challenge was used before, is for the
    caller to say.
    """
    said = client_data_of(assertion.client_data)
    if said.get("type") != "webauthn.get":
        raise NotSigned("it is of another kind than a signature")
    if said.get("challenge") != challenge:
        raise NotSigned("it was given for something else")
    if said.get("origin") not in origins or said.get("crossOrigin") not in (None, False):
        raise NotSigned("it was given on a page of another site")
    data = from_base64url(assertion.authenticator_data)
    if len(data) < _HEAD:
        raise NotSigned("what the key says of itself is cut off")
    if data[:32] != hashlib.sha256(rp_id.encode()).digest():
        raise NotSigned("it was given for another site")
    if not data[32] & _PRESENT or not data[32] & _VERIFIED:
        raise NotSigned("its holder was not verified by PIN or biometrics")
    signed = data + hashlib.sha256(from_base64url(assertion.client_data)).digest()
    try:
        _verify(key_of(public_key), from_base64url(assertion.signature), signed)
    except InvalidSignature as error:
        raise NotSigned("the signature is not this key’s") from error
    return int.from_bytes(data[33:_HEAD], "big")


PublicKey = EllipticCurvePublicKey | Ed25519PublicKey | RSAPublicKey


def key_of(public_key: str) -> PublicKey:
    """The key of COSE bytes. Raises `NotSigned` for kinds that are not understood."""
    cose = _cose(from_base64url(public_key))
    kind, algorithm, curve = cose.get(1), cose.get(3), cose.get(-1)
    try:
        if (kind, algorithm, curve) == (2, ES256, 1):
            x, y = _number(cose.get(-2)), _number(cose.get(-3))
            return EllipticCurvePublicNumbers(x, y, SECP256R1()).public_key()
        if (kind, algorithm, curve) == (1, EDDSA, 6):
            return Ed25519PublicKey.from_public_bytes(_bytes(cose.get(-2)))
        if (kind, algorithm) == (3, RS256):
            key = RSAPublicNumbers(_number(cose.get(-2)), _number(curve)).public_key()
            if key.key_size >= _LEAST_MODULUS:
                return key
    except (ValueError, UnsupportedAlgorithm) as error:
        raise NotSigned("its public key is none") from error
    raise NotSigned("its public key is of a kind that is not understood")


def _verify(key: PublicKey, signature: bytes, signed: bytes) -> None:
    if isinstance(key, EllipticCurvePublicKey):
        key.verify(signature, signed, ECDSA(SHA256()))
    elif isinstance(key, RSAPublicKey):
        key.verify(signature, signed, PKCS1v15(), SHA256())
    else:
        key.verify(signature, signed)


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise NotSigned("its public key lacks a part")
    return value


def _number(value: object) -> int:
    return int.from_bytes(_bytes(value), "big")


def _cose(data: bytes) -> dict[int, int | bytes]:
    """The one form of CBOR a public key has: a map from small numbers to numbers or bytes."""
    major, pairs, at = _head(data, 0)
    if major != 5:
        raise NotSigned("its public key is no COSE key")
    found: dict[int, int | bytes] = {}
    for _ in range(pairs):
        name, at = _item(data, at)
        value, at = _item(data, at)
        if not isinstance(name, int) or name in found:
            raise NotSigned("its public key is no COSE key")
        found[name] = value
    if at != len(data):
        raise NotSigned("something stands behind its public key")
    return found


def _item(data: bytes, at: int) -> tuple[int | bytes, int]:
    major, value, at = _head(data, at)
    if major == 0:
        return value, at
    if major == 1:
        return -1 - value, at
    if major == 2 and at + value <= len(data):
        return data[at : at + value], at + value
    raise NotSigned("its public key is no COSE key")


def _head(data: bytes, at: int) -> tuple[int, int, int]:
    """Kind and value of the item that begins there, and where its content begins."""
    if at >= len(data) or data[at] & 0x1F > 25:  # no part of a key is longer than 64 kB
        raise NotSigned("its public key is no COSE key")
    major, size = data[at] >> 5, data[at] & 0x1F
    more = {24: 1, 25: 2}.get(size, 0)
    if not more:
        return major, size, at + 1
    return major, int.from_bytes(data[at + 1 : at + 1 + more], "big"), at + 1 + more
