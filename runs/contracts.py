"""Contracts: propose a version, and let a person put it in force or refuse it."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from portal import audit, live
from portal.access import demand
from portal.errors import NotFound, Refusal
from portal.models import Membership
from portal.roles import Permission
from runs.contract import Format, contract_digest, manifest_digest, parse_contract
from runs.models import ContractVersion, JobContract


class SameVersion(Refusal):
    """The proposed text says what a version already says."""

    code = "runs.same_version"
    text = (
        "This says the same as version {number} of “{contract}”, so no new version was made. "
        "Change something that counts; comments and the order of lines do not."
    )


class OtherContract(Refusal):
    """A version names another contract than the one it was written for."""

    code = "runs.other_contract"
    text = (
        "The file names the contract “{named}”, but this is a version of “{contract}”. "
        "Correct the name, or write it as a new contract. Nothing was stored."
    )


class NameTaken(Refusal):
    """A new contract with a name that exists."""

    code = "runs.name_taken"
    text = (
        "There is a contract “{contract}” already. "
        "Write a new version of it, or choose another name."
    )


class OwnVersion(Refusal):
    """The author of a version may not put it in force."""

    code = "runs.own_version"
    status = 403
    text = (
        "You wrote version {number} of “{contract}”, so somebody else has to decide on it. "
        "Ask another tenant admin."
    )


class VersionDecided(Refusal):
    """Somebody was faster, or the version is history."""

    code = "runs.version_decided"
    text = "Version {number} of “{contract}” is already {state}. Nothing was changed."


@transaction.atomic(durable=True)
def propose_version(
    text: str, fmt: Format, *, member: Membership, contract: JobContract | None = None
) -> ContractVersion:
    """Store an immutable version that waits for a decision.

    Raises `ContractRefused` for a wrong file. Without `contract` a new one is made under the name
    in the file.
    """
    demand(member, Permission.OPERATE)
    parsed = parse_contract(text, fmt)
    if contract is None:
        if JobContract.objects.filter(tenant=member.tenant, name=parsed.name).exists():
            raise NameTaken(contract=parsed.name)
        contract = JobContract.objects.create(tenant=member.tenant, name=parsed.name)
    else:
        # Locked, so that two people who propose at once get two numbers.
        contract = (
            JobContract.objects.select_for_update()
            .filter(tenant=member.tenant, pk=contract.pk)
            .first()
        )
        if contract is None:
            raise NotFound
        if parsed.name != contract.name:
            raise OtherContract(named=parsed.name, contract=contract.name)
    digest = contract_digest(parsed)
    newest = contract.versions.order_by("-number").first()
    if (
        newest is not None
        and newest.digest == digest
        and newest.state != ContractVersion.State.DENIED
    ):
        raise SameVersion(number=newest.number, contract=contract.name)
    version = ContractVersion.objects.create(
        tenant=member.tenant,
        contract=contract,
        number=(newest.number if newest else 0) + 1,
        text=text,
        format=fmt,
        data=parsed.to_data(),
        digest=digest,
        manifest_digest=manifest_digest(parsed),
        author=member.user,
    )
    audit.record(
        "contract.proposed",
        tenant=member.tenant,
        subject=version,
        actor=member.user,
        contract=contract.name,
        number=version.number,
        contract_digest=digest,
        manifest_digest=version.manifest_digest,
    )
    live.changed_on_commit(live.queue_topic(member.tenant_id))
    return version


def _own(version: ContractVersion, member: Membership) -> bool:
    """Whether the member wrote it: people count, so what a machine of theirs wrote is theirs."""
    return version.author.person_id == member.user.person_id


def may_decide(version: ContractVersion, member: Membership) -> bool:
    """Whether this member may put the version in force or refuse it."""
    return (
        member.may(Permission.MANAGE)
        and version.state == ContractVersion.State.PROPOSED
        and (not _own(version, member) or member.tenant.one_person)
    )


@transaction.atomic(durable=True)
def decide_version(
    version: ContractVersion, *, approve: bool, seen: str, member: Membership
) -> ContractVersion:
    """Put a proposed version in force, or refuse it. `seen` is the digest that was read."""
    demand(member, Permission.MANAGE)
    # The contract's row first: of two versions approved at once, one supersedes the other.
    JobContract.objects.select_for_update().only("pk").get(
        pk=version.contract_id, tenant=member.tenant
    )
    fresh = ContractVersion.objects.select_related("contract").get(pk=version.pk)
    name, number = fresh.contract.name, fresh.number
    if fresh.state != ContractVersion.State.PROPOSED or fresh.digest != seen:
        raise VersionDecided(number=number, contract=name, state=fresh.get_state_display())
    own = _own(fresh, member)
    if own and not member.tenant.one_person:
        raise OwnVersion(number=number, contract=name)
    fresh.decided_by, fresh.decided_at, fresh.self_approved = member.user, timezone.now(), own
    if approve:
        fresh.contract.versions.filter(state=ContractVersion.State.IN_FORCE).update(
            state=ContractVersion.State.SUPERSEDED
        )
    fresh.state = (
        ContractVersion.State.IN_FORCE if approve else ContractVersion.State.DENIED
    ).value
    fresh.save(update_fields=["state", "decided_by", "decided_at", "self_approved"])
    audit.record(
        "contract.in_force" if approve else "contract.denied",
        tenant=member.tenant,
        subject=fresh,
        actor=member.user,
        contract=name,
        number=number,
        contract_digest=fresh.digest,
        self_approved=own,
    )
    live.changed_on_commit(live.queue_topic(member.tenant_id))
    return fresh
