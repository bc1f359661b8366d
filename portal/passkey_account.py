"""A person's own page of passkeys: add one, remove one, and what to do when one is lost.

Whoever has none yet adds the first one right after signing in; from then on a change takes one of
the keys, or a recovery code, so that a password or a link alone is never enough to decide. Every
change is a line in the audit log of each tenant that the person belongs to.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
import time
from collections.abc import Mapping
from typing import Any

from django.contrib.sessions.backends.base import SessionBase
from django.db import transaction
from fido2 import cbor
from fido2.server import Fido2Server
from fido2.webauthn import (
    AttestationConveyancePreference,
    PublicKeyCredentialDescriptor,
    PublicKeyCredentialParameters,
    PublicKeyCredentialRpEntity,
    PublicKeyCredentialType,
    PublicKeyCredentialUserEntity,
    ResidentKeyRequirement,
    UserVerificationRequirement,
)

from portal import audit, signin, tenancy
from portal.errors import BadInput, NotFound, Refusal
from portal.models import Membership, Passkey, RecoveryCode, User
from portal.passkeys import (
    ANSWER_WITHIN,
    NoPasskey,
    PasskeyRefused,
    Purpose,
    has_passkey,
    new_nonce,
    party,
    passkeys_of,
    take,
    use_nonce,
)
from portal.visible import hides_in_name
from portal.webauthn import (
    ALGORITHMS,
    LONGEST_ID,
    Assertion,
    NotSigned,
    client_data_of,
    from_base64url,
    key_of,
    to_base64url,
)

PROOF_SECONDS = 600
MOST_KEYS = 20
CODES = 8
# No letter or digit that is taken for another one; sixteen of them are 78 bits.
_CODE_LETTERS = "23456789ABCDEFGHJKMNPQRSTVWXYZ"
_PROOF = "keys_proof"


class NeedsProof(Refusal):
    code = "portal.needs_proof"
    text = (
        "Changing passkeys takes a fresh proof that it is you: a passkey, a recovery code, or, "
        "before there is a passkey, a sign-in of the last ten minutes. Open the page of your "
        "passkeys and prove it there. Nothing was changed."
    )


class TooManyGuesses(Refusal):
    code = "portal.too_many_guesses"
    status = 429
    text = "Too many wrong codes or passwords for this account. Wait ten minutes."


class WrongProof(Refusal):
    code = "portal.wrong_proof"
    status = 422
    text = "That is none of your recovery codes, or it was used, or not your password."


# --- Proving that it is oneself ----------------------------------------------------


def note_proof(session: SessionBase, how: str) -> None:
    """Remember in the session that the person proved it now: by `sign_in`, `passkey`, `code`."""
    session[_PROOF] = {"at": int(time.time()), "how": how}


def is_proved(session: SessionBase, user: User) -> bool:
    """Whether this session may change the person's keys."""
    proof = session.get(_PROOF) or {}
    if not 0 <= time.time() - proof.get("at", 0) <= PROOF_SECONDS:
        return False
    return proof["how"] != "sign_in" or not has_passkey(user)


def demand_proof(session: SessionBase, user: User) -> None:
    """Raise `NeedsProof` unless `is_proved`."""
    if not is_proved(session, user):
        raise NeedsProof


def prove_by_password(session: SessionBase, user: User, password: str) -> None:
    """Stands for a fresh sign-in, so only while there is no key. Raises `WrongProof`."""
    if has_passkey(user):
        raise NeedsProof
    if not signin.may_try(user.email):
        raise TooManyGuesses
    if not user.check_password(password):
        raise WrongProof
    signin.forget_attempts(user.email)
    note_proof(session, "sign_in")


@transaction.atomic(durable=True)
def _use_code(user: User, code: str) -> bool:
    used = RecoveryCode.objects.filter(user=user, code_hash=_code_hash(user, code)).delete()[0]
    if used:
        left = RecoveryCode.objects.filter(user=user).count()
        _record(user, "passkey.code_used", user, left=left)
    return bool(used)


def prove_by_code(session: SessionBase, user: User, code: str) -> None:
    """Use a recovery code up. Raises `WrongProof` or `TooManyGuesses`."""
    if not signin.may_try(user.email):
        raise TooManyGuesses
    if not _use_code(user, code):
        raise WrongProof
    signin.forget_attempts(user.email)
    note_proof(session, "code")


@transaction.atomic(durable=True)
def prove_by_passkey(session: SessionBase, user: User, answer: object) -> None:
    """Take an assertion on a challenge of `Purpose.PROVE`. Raises `PasskeyRefused`."""
    try:
        given = Assertion.read(answer)
        challenge = client_data_of(given.client_data).get("challenge")
    except NotSigned as error:
        raise PasskeyRefused(reason=error) from error
    if not use_nonce(user, Purpose.PROVE, challenge):
        raise PasskeyRefused(reason="it was used already, or took longer than five minutes")
    take(user, given, str(challenge))
    note_proof(session, "passkey")


# --- Adding and removing --------------------------------------------------------------


def codes_left(user: User) -> int:
    """How many recovery codes are unused."""
    return RecoveryCode.objects.filter(user=user).count()


def _server() -> Fido2Server:
    server = Fido2Server(
        PublicKeyCredentialRpEntity(id=party().id, name="Imprimatur"),
        # Which maker's key it is, is not asked: it would tell more of people than is needed.
        attestation=AttestationConveyancePreference.NONE,
        verify_origin=lambda origin: origin in party().origins,
    )
    kind = PublicKeyCredentialType.PUBLIC_KEY
    server.allowed_algorithms = [
        PublicKeyCredentialParameters(type=kind, alg=each) for each in ALGORITHMS
    ]
    return server


def creation_options(user: User) -> dict[str, Any]:
    """What `navigator.credentials.create` is asked, with a challenge that waits for the answer."""
    held = passkeys_of(user)
    if len(held) >= MOST_KEYS:
        raise BadInput(reason=f"{MOST_KEYS} passkeys are enough. Remove one first.")
    server = _server()
    options, _ = server.register_begin(
        PublicKeyCredentialUserEntity(
            id=user.pk.to_bytes(8, "big"), name=user.email, display_name=user.name
        ),
        credentials=[
            PublicKeyCredentialDescriptor(
                type=PublicKeyCredentialType.PUBLIC_KEY, id=from_base64url(each.credential)
            )
            for each in held
        ],
        resident_key_requirement=ResidentKeyRequirement.PREFERRED,
        user_verification=UserVerificationRequirement.REQUIRED,
        challenge=from_base64url(new_nonce(user, Purpose.ADD)),
    )
    asked: dict[str, Any] = dict(options)["publicKey"]
    return {**asked, "timeout": int(ANSWER_WITHIN.total_seconds() * 1000)}


# What the library raises on bytes that are not what they should be.
_UNREADABLE = (
    *(ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError),
    *(struct.error, RecursionError, OverflowError, NotImplementedError),
)


@transaction.atomic(durable=True)
def add_passkey(user: User, name: str, answer: Mapping[str, Any]) -> list[str]:
    """Keep a key that a browser made. Returns new recovery codes, if there were none.

    Raises `PasskeyRefused` or `BadInput`. The caller has seen to `demand_proof`.
    """
    name = name.strip()
    if not name or len(name) > 60 or hides_in_name(name):
        raise BadInput(reason="Give the passkey a name of 1 to 60 visible characters.")
    # Two that are added at once meet here.
    User.objects.select_for_update(no_key=True).only("pk").get(pk=user.pk)
    response = answer.get("response")
    said = response.get("clientDataJSON") if isinstance(response, Mapping) else None
    try:
        challenge = client_data_of(str(said)).get("challenge")
    except NotSigned as error:
        raise PasskeyRefused(reason=error) from error
    if not use_nonce(user, Purpose.ADD, challenge):
        raise PasskeyRefused(reason="it was used already, or took longer than five minutes")
    state = {"challenge": challenge, "user_verification": UserVerificationRequirement.REQUIRED}
    try:
        made = _server().register_complete(state, answer)
        credential = to_base64url(made.credential_data.credential_id)  # type: ignore[union-attr]
        public_key = to_base64url(cbor.encode(dict(made.credential_data.public_key)))  # type: ignore[union-attr]
        key_of(public_key)
    except _UNREADABLE as error:
        raise PasskeyRefused(reason="what the browser returned is not complete") from error
    if len(credential) > LONGEST_ID or Passkey.objects.filter(credential=credential).exists():
        raise PasskeyRefused(reason="it is on an account already")
    key = Passkey.objects.create(
        user=user,
        name=name,
        credential=credential,
        public_key=public_key,
        sign_count=made.counter,
    )
    _record(user, "passkey.added", user, name=name, key=key.fingerprint)
    return [] if codes_left(user) else _new_codes(user)


@transaction.atomic(durable=True)
def remove_passkey(user: User, passkey_id: int) -> Passkey:
    """Forget one key; with the last one the recovery codes go too. Raises `NotFound`.

    What was decided with it keeps its public key and stays verifiable.
    """
    User.objects.select_for_update(no_key=True).only("pk").get(pk=user.pk)
    # Before the audit log: a decision that uses the key locks in the same order.
    key = Passkey.objects.select_for_update().filter(user=user, pk=passkey_id).first()
    if key is None:
        raise NotFound
    _record(user, "passkey.removed", user, name=key.name, key=key.fingerprint)
    Passkey.objects.filter(pk=passkey_id).delete()
    if not has_passkey(user):
        RecoveryCode.objects.filter(user=user).delete()
    return key


@transaction.atomic(durable=True)
def forget_all(user: User) -> int:
    """Whoever runs the portal vouches for somebody who lost all keys and codes: begin anew."""
    User.objects.select_for_update(no_key=True).only("pk").get(pk=user.pk)
    held = list(Passkey.objects.select_for_update().filter(user=user).order_by("pk"))
    for key in held:
        _record(user, "passkey.removed", None, name=key.name, key=key.fingerprint)
    Passkey.objects.filter(user=user).delete()
    RecoveryCode.objects.filter(user=user).delete()
    return len(held)


@transaction.atomic(durable=True)
def new_codes(user: User) -> list[str]:
    """New recovery codes, told this once; the earlier ones stop working."""
    User.objects.select_for_update(no_key=True).only("pk").get(pk=user.pk)
    if not has_passkey(user):
        raise NoPasskey
    return _new_codes(user)


def _new_codes(user: User) -> list[str]:
    RecoveryCode.objects.filter(user=user).delete()
    codes = ["".join(secrets.choice(_CODE_LETTERS) for _ in range(16)) for _ in range(CODES)]
    RecoveryCode.objects.bulk_create(
        RecoveryCode(user=user, code_hash=_code_hash(user, each)) for each in codes
    )
    _record(user, "passkey.codes_made", user, codes=CODES)
    return ["-".join(each[at : at + 4] for at in range(0, 16, 4)) for each in codes]


def _code_hash(user: User, code: str) -> str:
    """Random enough that no slow hash is needed."""
    letters = "".join(each for each in code.upper() if each in _CODE_LETTERS)
    return hashlib.sha256(f"{user.pk}:{letters}".encode()).hexdigest()


def _record(user: User, action: str, actor: User | None, **facts: Any) -> None:
    """A line in every tenant the person belongs to; nobody else is concerned."""
    for each in Membership.objects.filter(user=user).select_related("tenant").order_by("tenant_id"):
        with tenancy.scope(each.tenant_id):
            audit.record(action, tenant=each.tenant, subject=user, actor=actor, **facts)
