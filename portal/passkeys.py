"""A person's passkeys as the portal uses them: for whom they are made, and what they sign.

They are for decisions, not for signing in (`portal.signin`). How a person comes to have them is in
`portal.passkey_account`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings

from portal.clock import database_now
from portal.env import is_loopback
from portal.errors import Refusal
from portal.models import Passkey, PasskeyChallenge, User
from portal.webauthn import Assertion, NotSigned, checked, to_base64url

ANSWER_WITHIN = timedelta(minutes=5)
Purpose = PasskeyChallenge.Purpose


class PasskeyRefused(Refusal):
    code = "portal.passkey_refused"
    status = 422
    text = "The passkey was not accepted: {reason}. Nothing was done. Try it once more."


class PasskeyCopied(Refusal):
    code = "portal.passkey_copied"
    text = (
        "The passkey “{name}” counted backwards, so there may be a copy of it. Nothing was "
        "decided or changed. Remove it from your account and add another one."
    )


class NoPasskey(Refusal):
    code = "portal.no_passkey"
    text = "You have no passkey yet. Add one under Settings, Passkeys. Nothing was changed."


class NoPlaceForPasskeys(Refusal):
    code = "portal.no_place_for_passkeys"
    text = (
        "Browsers keep passkeys only for addresses with a host name, and this portal is reached "
        "by a number. Whoever runs it sets PUBLIC_URL to a name."
    )


# --- Where ----------------------------------------------------------------------


@dataclass(frozen=True)
class Party:
    """Who keys are made for: the host name, and the addresses of pages that may use them."""

    id: str
    origins: tuple[str, ...]

    @property
    def origin(self) -> str:
        """The address that people use."""
        return self.origins[0]


def party() -> Party:
    """The portal as keys know it. Raises `NoPlaceForPasskeys` where no browser would make one.

    Taken from the settings, never from a request: the signature says where it was given, and that
    must be here. On the machine itself the name is `localhost`, because an address is no name.
    """
    address = settings.PUBLIC_ADDRESS
    usual = 443 if address.secure else 80
    port = f":{address.port}" if address.port not in (None, usual) else ""
    if is_loopback(address.host):
        return Party("localhost", (f"{address.scheme}://localhost{port}",))
    if not address.secure or ":" in address.host or address.host.replace(".", "").isdecimal():
        raise NoPlaceForPasskeys
    return Party(address.host, (f"{address.scheme}://{address.host}{port}",))


@dataclass(frozen=True)
class Place:
    """Whether passkeys work on a page: why not, and at which address they do."""

    problem: str = ""
    elsewhere: str = ""


def place(here: str) -> Place:
    """What is to be said on a page whose address begins with `here`."""
    try:
        where = party()
    except NoPlaceForPasskeys as refusal:
        return Place(problem=str(refusal))
    return Place() if here in where.origins else Place(elsewhere=where.origin)


# --- Challenges -----------------------------------------------------------------


def new_nonce(user: User, purpose: Purpose) -> str:
    """A value for one answer of this person, within `ANSWER_WITHIN`."""
    now, nonce = database_now(), to_base64url(secrets.token_bytes(32))
    PasskeyChallenge.objects.filter(user=user, expires_at__lte=now).delete()
    PasskeyChallenge.objects.create(
        user=user, purpose=purpose, nonce=nonce, expires_at=now + ANSWER_WITHIN
    )
    return nonce


def use_nonce(user: User, purpose: Purpose, nonce: object) -> bool:
    """Use it up, inside the caller's transaction. False: it never was, is too old, or was used."""
    if not isinstance(nonce, str) or not nonce.isascii() or not nonce.isprintable():
        return False
    standing = PasskeyChallenge.objects.filter(
        user=user, purpose=purpose, nonce=nonce[:65], expires_at__gt=database_now()
    )
    # The DELETE asks and answers: of two that send the same one, one gets it.
    return standing.delete()[0] == 1


def request_options(user: User, challenge: str) -> dict[str, Any]:
    """What `navigator.credentials.get` is asked. Raises `NoPasskey` or `NoPlaceForPasskeys`."""
    where = party()
    held = list(Passkey.objects.filter(user=user).values_list("credential", flat=True))
    if not held:
        raise NoPasskey
    return {
        "challenge": challenge,
        "rpId": where.id,
        "allowCredentials": [{"type": "public-key", "id": each} for each in held],
        "userVerification": "required",
        "timeout": int(ANSWER_WITHIN.total_seconds() * 1000),
    }


# --- Keys -----------------------------------------------------------------------


def passkeys_of(user: User) -> list[Passkey]:
    """The person's keys, oldest first."""
    return list(Passkey.objects.filter(user=user).order_by("pk"))


def has_passkey(user: User) -> bool:
    """Whether the person can sign with one."""
    return Passkey.objects.filter(user=user).exists()


def take(user: User, given: Assertion, challenge: str) -> Passkey:
    """Check an assertion of one of the person's keys and count it, inside the caller's transaction.

    Raises `PasskeyRefused`, or `PasskeyCopied` if the key counts backwards.
    """
    where = party()
    key = (
        Passkey.objects.select_for_update(no_key=True)
        .filter(user=user, credential=given.credential)
        .first()
    )
    if key is None:
        raise PasskeyRefused(reason="it is none of the passkeys on your account")
    try:
        count = checked(
            given,
            public_key=key.public_key,
            challenge=challenge,
            rp_id=where.id,
            origins=where.origins,
        )
    except NotSigned as error:
        raise PasskeyRefused(reason=error) from error
    # Keys that are kept in several places at once do not count, and always say 0.
    if (count or key.sign_count) and count <= key.sign_count:
        raise PasskeyCopied(name=key.name)
    key.sign_count, key.last_used_at = count, database_now()
    key.save(update_fields=["sign_count", "last_used_at"])
    return key


def answer_of(text: str) -> Mapping[str, Any]:
    """What a form's hidden field says the browser returned. Raises `PasskeyRefused`."""
    try:
        answer = json.loads(text) if len(text) <= 64_000 else None
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, Mapping):
        raise PasskeyRefused(reason="the browser returned nothing; it needs JavaScript for that")
    return answer
