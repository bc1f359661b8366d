"""Decisions that a passkey signs: what the browser is asked, and what it returned."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from approvals import errors, signatures
from approvals.models import Decision, Packet
from approvals.signatures import Decided
from approvals.states import Verdict
from portal import passkeys
from portal.errors import BadInput
from portal.models import User
from portal.webauthn import Assertion, NotSigned, client_data_of


def is_demanded(packet: Packet) -> bool:
    """Whether approving this packet takes a passkey: its gate says so, which its digest covers."""
    gate = packet.page.get("gate")
    return isinstance(gate, dict) and bool(gate.get("passkey"))


def _decided(packet: Packet, verdict: Verdict, person: User, behalf: int) -> Decided:
    return Decided(packet.digest, verdict.value, packet.pk, person.pk, packet.round, behalf or None)


def asked(packet: Packet, seen: str, person: User, behalf: int = 0) -> dict[str, Any]:
    """What `navigator.credentials.get` is asked, with a nonce that waits for one answer."""
    if not re.fullmatch(r"[0-9a-f]{64}", seen):
        raise errors.NeedsDigest
    if seen != packet.digest:
        raise errors.PacketChanged(seen=seen, stored=packet.digest)
    if not is_demanded(packet):
        raise BadInput(reason="This packet is decided without a passkey. Reload the page.")
    nonce = passkeys.new_nonce(person, passkeys.Purpose.DECIDE)
    challenge = _decided(packet, Verdict.APPROVE, person, behalf).challenge(nonce)
    return {**passkeys.request_options(person, challenge), "nonce": nonce}


def signature_of(packet: Packet, sent: str, person: User, behalf: int = 0) -> dict[str, Any] | None:
    """The signature of this person's approval, checked and used up, where the packet demands one.

    Inside the caller's transaction, with the packet locked: whatever makes the decision fail gives
    the nonce back. Raises `NeedsPasskey`, or a refusal of `portal.passkeys`.
    """
    if not is_demanded(packet):
        return None
    if not sent:
        raise errors.NeedsPasskey
    answer = passkeys.answer_of(sent)
    nonce = str(answer.get("nonce"))
    try:
        given = Assertion.read(answer)
        challenge = _decided(packet, Verdict.APPROVE, person, behalf).challenge(nonce)
        origin = str(client_data_of(given.client_data).get("origin"))
    except NotSigned as error:
        raise passkeys.PasskeyRefused(reason=error) from error
    if not passkeys.use_nonce(person, passkeys.Purpose.DECIDE, nonce):
        raise passkeys.PasskeyRefused(
            reason="the signature was used already, or took longer than five minutes"
        )
    key = passkeys.take(person, given, challenge)
    return signatures.kept(
        given,
        nonce=nonce,
        public_key=key.public_key,
        rp_id=passkeys.party().id,
        origin=origin,
    )


def unsigned(packet: Packet, votes: Iterable[Decision] | None = None) -> list[tuple[Decision, str]]:
    """Approvals of a packet that demands passkeys, and that none signed: each with the reason.

    Asked again where an approval is used: a decision that somebody wrote into the table approves
    nothing. `votes` are its answers that count, where the caller has read them.
    """
    if not is_demanded(packet):
        return []
    given = (
        each
        for each in (packet.answers() if votes is None else votes)
        if each.verdict == Verdict.APPROVE
    )
    return [(each, why) for each in given if (why := fault(each))]


def fault(decision: Decision) -> str:
    """What is wrong with the signature that a decision keeps; empty if nothing is."""
    decided = Decided(
        decision.digest,
        decision.verdict,
        decision.packet_id,
        decision.person_id,
        decision.round,
        decision.on_behalf_of_id,
    )
    return signatures.fault(decision.signature, decided)


@dataclass(frozen=True)
class Ready:
    """What stands between a person and an approval that takes a passkey."""

    has_key: bool
    place: passkeys.Place

    @property
    def can(self) -> bool:
        return self.has_key and not self.place.problem and not self.place.elsewhere


def readiness(packet: Packet, person: User, here: str) -> Ready | None:
    """None where no passkey is demanded. `here` is the beginning of the page's address."""
    if not is_demanded(packet):
        return None
    return Ready(passkeys.has_passkey(person), passkeys.place(here))
