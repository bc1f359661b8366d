"""What a passkey signs when somebody decides, and whether one did.

The browser signs a challenge that says what was decided. Version 1 of it is

    SHA-256( "imprimatur decision v1" || 0x00 || JSON )

where JSON is RFC 8785 of an object with six members: `digest`, the packet's digest as the person
saw it; `verdict`; `packet` and `person`, the keys of both rows as a bundle shows them; `round`,
which begins at 1 and is one more whenever an approval was undone; and `nonce`, 32 random bytes of
the portal in base64url, used once. Where somebody decides in another's name a seventh, the key of
that person, is `on_behalf_of`. So a signature fits one answer of one person
to one page, and nothing else. What the decision keeps of it is enough to check that without the
portal: see `fault`. It knows no framework and no table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from portal.canonical import canonical
from portal.webauthn import (
    LONGEST,
    Assertion,
    NotSigned,
    checked,
    fingerprint,
    from_base64url,
    to_base64url,
)

VERSION = 1
_CONTEXT = b"imprimatur decision v1\x00"
_NONCE_BYTES = 32


@dataclass(frozen=True)
class Decided:
    """What somebody decides: digest, verdict, keys of packet and person, the round of votes."""

    digest: str
    verdict: str
    packet: int
    person: int
    round: int = 1
    on_behalf_of: int | None = None

    def challenge(self, nonce: str) -> str:
        """What the browser is to sign, in base64url. Raises `NotSigned` for what is no nonce."""
        if len(from_base64url(nonce)) != _NONCE_BYTES:
            raise NotSigned("its nonce is none")
        said = {
            "digest": self.digest,
            "verdict": self.verdict,
            "packet": self.packet,
            "person": self.person,
            "round": self.round,
            "nonce": nonce,
        }
        if self.on_behalf_of is not None:
            said["on_behalf_of"] = self.on_behalf_of
        return to_base64url(hashlib.sha256(_CONTEXT + canonical(said)).digest())


def kept(
    given: Assertion, *, nonce: str, public_key: str, rp_id: str, origin: str
) -> dict[str, Any]:
    """What a decision keeps of an assertion that was accepted: all that `fault` asks for."""
    return {
        "version": VERSION,
        "nonce": nonce,
        "rp_id": rp_id,
        "origin": origin,
        "public_key": public_key,
        **given.to_data(),
    }


def fault(signature: object, decided: Decided) -> str:
    """Why what was kept is no signature of this decision, as the end of a sentence; empty if it is.

    Asks nobody: signature, key and what was signed are all in what was kept. That the key was the
    person's own, the portal saw to when it was used; its fingerprint is in the audit log.
    """
    if not isinstance(signature, Mapping):
        return "there is none"
    if signature.get("version") != VERSION:
        return "it is of a version that is not known here"
    own = {name: signature.get(name) for name in ("nonce", "public_key", "rp_id", "origin")}
    if not all(isinstance(each, str) and len(each) <= LONGEST for each in own.values()):
        return "a part of it is missing"
    try:
        checked(
            Assertion.read(signature),
            public_key=str(own["public_key"]),
            challenge=decided.challenge(str(own["nonce"])),
            rp_id=str(own["rp_id"]),
            origins=(str(own["origin"]),),
        )
    except NotSigned as error:
        return str(error)
    return ""


def key_of(signature: Mapping[str, Any]) -> str:
    """The fingerprint of the key in what was kept, or an empty text."""
    try:
        return fingerprint(str(signature.get("public_key")))
    except NotSigned:
        return ""


@dataclass(frozen=True)
class Judged:
    """One decision of a bundle, and whether a passkey signed exactly it.

    `key` is the fingerprint of the key and empty where there is no signature; `fault` says why
    there is one that does not hold.
    """

    line: int
    packet: object
    person: object
    verdict: object
    digest: object
    key: str = ""
    fault: str = ""
    signed: bool = False

    def to_data(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def judged(line: int, body: Mapping[str, Any]) -> Judged:
    """What is to be said of a decision as a bundle has it on this line."""
    packet, person, verdict, seen = (
        body.get(name) for name in ("packet", "person", "verdict", "digest")
    )
    signature = body.get("signature")
    if signature is None:
        return Judged(line, packet, person, verdict, seen)
    decided = Decided(
        str(seen),
        str(verdict),
        packet if type(packet) is int else -1,
        person if type(person) is int else -1,
        counted if type(counted := body.get("round")) is int else -1,
        giver if type(giver := body.get("on_behalf_of")) is int else None,
    )
    wrong = fault(signature, decided)
    key = key_of(signature) if isinstance(signature, Mapping) else ""
    return Judged(line, packet, person, verdict, seen, key, wrong, not wrong)
