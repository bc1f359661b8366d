"""A passkey without a device: makes what a browser returns, and what one never should."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from fido2 import cbor
from fido2.cose import ES256, RS256, CoseKey, EdDSA

from portal.models import Passkey, User
from portal.webauthn import to_base64url

PRESENT, VERIFIED, ATTESTED = 0x01, 0x04, 0x40
Private = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey


class SoftKey:
    """One key of an authenticator that does as it is told."""

    def __init__(
        self,
        *,
        kind: str = "es256",
        origin: str = "http://localhost:8000",
        rp_id: str = "localhost",
    ) -> None:
        self.origin, self.rp_id = origin, rp_id
        self.id = secrets.token_bytes(32)
        self.count = 0
        self.private: Private
        self.cose: CoseKey
        if kind == "es256":
            self.private = ec.generate_private_key(ec.SECP256R1())
            self.cose = ES256.from_cryptography_key(self.private.public_key())  # type: ignore[no-untyped-call]
        elif kind == "eddsa":
            self.private = ed25519.Ed25519PrivateKey.generate()
            self.cose = EdDSA.from_cryptography_key(self.private.public_key())  # type: ignore[no-untyped-call]
        else:
            self.private = rsa.generate_private_key(65537, 2048)
            self.cose = RS256.from_cryptography_key(self.private.public_key())  # type: ignore[no-untyped-call]

    @property
    def credential(self) -> str:
        return to_base64url(self.id)

    @property
    def public_key(self) -> str:
        return to_base64url(cbor.encode(dict(self.cose)))

    def kept_by(self, user: User, name: str = "Laptop") -> Passkey:
        """On that person's account already."""
        return Passkey.objects.create(
            user=user, name=name, credential=self.credential, public_key=self.public_key
        )

    def client_data(self, kind: str, challenge: str, **more: object) -> bytes:
        said = {"type": kind, "challenge": challenge, "origin": self.origin, "crossOrigin": False}
        return json.dumps(said | more).encode()

    def head(self, flags: int) -> bytes:
        """The beginning of authenticator data, counted."""
        self.count += 1
        name = hashlib.sha256(self.rp_id.encode()).digest()
        return name + bytes([flags]) + self.count.to_bytes(4, "big")

    def made(
        self, options: Mapping[str, Any], *, flags: int = PRESENT | VERIFIED
    ) -> dict[str, Any]:
        """What `navigator.credentials.create` comes to."""
        data = self.head(flags | ATTESTED) + bytes(16) + len(self.id).to_bytes(2, "big") + self.id
        data += cbor.encode(dict(self.cose))
        attested = cbor.encode({"fmt": "none", "attStmt": {}, "authData": data})
        said = self.client_data("webauthn.create", options["challenge"])
        return {
            "id": self.credential,
            "rawId": self.credential,
            "type": "public-key",
            "response": {
                "clientDataJSON": to_base64url(said),
                "attestationObject": to_base64url(attested),
            },
        }

    def signed(
        self,
        challenge: str,
        *,
        flags: int = PRESENT | VERIFIED,
        kind: str = "webauthn.get",
        **more: object,
    ) -> dict[str, str]:
        """What `navigator.credentials.get` comes to, as the page sends it."""
        said, data = self.client_data(kind, challenge, **more), self.head(flags)
        return {
            "credential": self.credential,
            "authenticator_data": to_base64url(data),
            "client_data": to_base64url(said),
            "signature": to_base64url(self.sign(data + hashlib.sha256(said).digest())),
        }

    def sign(self, data: bytes) -> bytes:
        if isinstance(self.private, ec.EllipticCurvePrivateKey):
            return self.private.sign(data, ec.ECDSA(SHA256()))
        if isinstance(self.private, rsa.RSAPrivateKey):
            return self.private.sign(data, padding.PKCS1v15(), SHA256())
        return self.private.sign(data)


def fresh(visitor: Any) -> Any:
    """The visitor, as if signed in just now."""
    session = visitor.client.session
    session["keys_proof"] = {"at": int(time.time()), "how": "sign_in"}
    session.save()
    return visitor
