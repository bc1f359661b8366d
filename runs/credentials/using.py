"""One use of a credential from beginning to end, and every secret that must be recognised."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from portal import vault
from runs.credentials import grants
from runs.credentials.grants import CredentialRefused, Use
from runs.credentials.sources import ConfigWrong, MintRefused, MintUnknown, RevokeFailed, Secret
from runs.models import Credential, CredentialGrant, Run
from runs.states import CredentialState

logger = logging.getLogger(__name__)


@contextmanager
def use(
    run: Run,
    name: str,
    *,
    address: str,
    consumer: str,
    call_id: str = "",
    actions: tuple[str, ...] = (),
) -> Iterator[Secret]:
    """The secret called `name`, while the block sends it to `address`, a URL.

    `consumer` names who uses it, such as `tool create_issue`; `call_id` the call it is for. It is
    made when the block begins and taken back when it ends, unless the same stretch of work may use
    it again. Raises `CredentialRefused` before anything was sent. Outside of any transaction.
    """
    wanted = Use(name, address, consumer, call_id, actions)
    try:
        grant = grants.begin(run, wanted)
    except CredentialRefused as refused:
        grants.note_refusal(run.pk, wanted, refused)
        raise
    secret = _alive(grant) if grant.state == CredentialState.LIVE else _made(grant, address)
    try:
        yield secret
    finally:
        _after(grant.pk)


def _alive(grant: CredentialGrant) -> Secret:
    return grants.secret_of(grant)[0]


def _made(grant: CredentialGrant, address: str) -> Secret:
    """Ask the source for a secret, and give it out if it is no more than was approved."""
    try:
        source, minted = grants.mint(grant, address)
    except MintUnknown as unknown:
        grants.not_made(grant.pk, str(unknown), unknown=True)
        raise CredentialRefused(f"It is not known whether a secret was made. {unknown}") from None
    except (MintRefused, ConfigWrong, CredentialRefused, vault.SealBroken) as refused:
        grants.not_made(grant.pk, str(refused), unknown=False)
        raise CredentialRefused(f"No secret was made. {refused}") from None
    except BaseException:
        grants.not_made(grant.pk, "The portal itself failed.", unknown=True)
        raise
    if why := grants.made(grant.pk, source, minted):
        _after(grant.pk)
        raise CredentialRefused(why)
    return minted.secret


def _after(grant_id: int) -> None:
    """Take the secret back at once. What fails here is left to the sweep."""
    try:
        if grants.after_use(grant_id):
            revoke(grant_id)
    except Exception:
        logger.exception("the end of credential use %s is left to the sweep", grant_id)


def revoke(grant_id: int) -> str:
    """Ask the source to take one secret back; returns one word for the log. Safe to repeat."""
    grant = grants.claim_revoke(grant_id)
    if grant is None:
        return "skipped"
    try:
        secret, handle = grants.secret_of(grant)
        grants.source_of(grant.credential).revoke(secret, handle)
    except (RevokeFailed, ConfigWrong, vault.SealBroken) as failed:
        grants.not_revoked(grant_id, str(failed))
        return "failed"
    except Exception as error:
        logger.exception("taking credential use %s back broke", grant_id)
        grants.not_revoked(grant_id, f"The portal itself failed ({type(error).__name__}).")
        return "failed"
    grants.revoked(grant_id)
    return "revoked"


def known(tenant_id: int) -> dict[str, str]:
    """Every secret of the tenant in clear, by name: what nothing stored or shown may hold.

    Those that were made for a run count until the run is over.
    """
    found = {
        row.name: vault.unseal(bytes(row.sealed)).decode()
        for row in Credential.objects.filter(tenant_id=tenant_id)
    }
    made = CredentialGrant.objects.filter(tenant_id=tenant_id, sealed__isnull=False)
    for grant in made.select_related("credential", "run"):
        secret = grants.secret_of(grant)[0].value
        if secret not in found.values():
            found[f"{grant.credential.name}, made for run {grant.run.number} ({grant.pk})"] = secret
    return found
