"""What a run stands on, and what of it is different when it goes on.

Two questions are asked at every resume: is this still the same job, and would these inputs still
be granted now? What a checkpoint stood on is stored with it, so that the answers are a comparison
and not an opinion. A new value of a credential under the same scope is no difference: credentials
are taken anew each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from django.conf import settings

from portal.canonical import digest
from portal.models import Membership
from portal.roles import Permission
from runs.contract import Contract, Reference
from runs.fetching import source_head
from runs.judging import judge
from runs.models import ContractVersion, Credential, Run, TenantValue
from runs.source import SourceRefused

Footing = Mapping[str, Any]

# A host that cannot be asked, for a moment or without a secret, changes nothing: the run keeps
# its commit.
NOT_ASKED = "not asked"
GONE = "gone"

JOB = frozenset({"contract", "source"})
"""What makes it the same job. The rest is what was granted to it."""


@dataclass(frozen=True)
class Difference:
    """One thing that changed: its name, what it was at the checkpoint, and what it is now."""

    what: str
    name: str
    before: str
    now: str
    follows: str

    def to_data(self) -> dict[str, str]:
        """As it is stored and sealed."""
        return asdict(self)


@dataclass(frozen=True)
class Answers:
    """The two questions of a resume, answered."""

    differences: tuple[Difference, ...]

    @property
    def same_job(self) -> bool:
        """Whether contract and source are what they were."""
        return not any(each.what in JOB for each in self.differences)

    @property
    def still_granted(self) -> bool:
        """Whether policy, people and credentials would give the same inputs now."""
        return all(each.what in JOB for each in self.differences)

    def digest(self, checkpoint_digest: str) -> str:
        """What a person's answer is about: these differences, from this checkpoint on."""
        listed = [each.to_data() for each in self.differences]
        return digest({"checkpoint": checkpoint_digest, "differences": listed})

    def facts(self) -> dict[str, Any]:
        """For the event that says that a run went on."""
        return {
            "same_job": self.same_job,
            "still_granted": self.still_granted,
            "changed": [each.what for each in self.differences],
        }


def footing_of(run: Run, contract: Contract) -> dict[str, Any]:
    """What a run stands on now. Asks the source's host; reads no secret."""
    number, policy = judge().in_force(run.tenant_id)
    state = ContractVersion.objects.values_list("state", flat=True).get(pk=run.version_id)
    return {
        "contract": {"version": run.version.number, "digest": run.version.digest, "state": state},
        "policy": {"version": number, "digest": policy},
        "membership": _membership(run),
        "credentials": _credentials(run, contract),
        "values": _values(run, contract),
        "source": {"ref": contract.source.ref, "head": _head(run, contract)},
    }


def _membership(run: Run) -> dict[str, Any]:
    member = Membership.objects.filter(
        tenant_id=run.tenant_id, user_id=run.requested_by_id, user__is_active=True
    ).first()
    may = member is not None and member.may(Permission.OPERATE)
    return {"person": run.requested_by.name, "operates": may}


def _credentials(run: Run, contract: Contract) -> dict[str, str]:
    """Each credential the contract may use, with its scope in words."""
    wanted = contract.credentials
    found = Credential.objects.filter(
        tenant_id=run.tenant_id, name__in=wanted, retired_at__isnull=True
    )
    rows = {row.name: row for row in found}
    return {
        name: _scope(rows[name].actions, rows[name].audience) if name in rows else GONE
        for name in sorted(wanted)
    }


def _scope(actions: Sequence[str], audience: Sequence[str]) -> str:
    where = ", ".join(sorted(audience)) or "nowhere"
    return f"{', '.join(sorted(actions)) or 'what its tool does'} on {where}"


def _values(run: Run, contract: Contract) -> dict[str, str]:
    """Each value of the tenant that the environment refers to, by digest."""
    wanted = {
        each.reference for each in contract.environment.values() if isinstance(each, Reference)
    }
    rows = TenantValue.objects.filter(tenant_id=run.tenant_id, name__in=wanted)
    held = {row.name: hashlib.sha256(row.value.encode()).hexdigest()[:12] for row in rows}
    return {name: held.get(name, GONE) for name in sorted(wanted)}


def _head(run: Run, contract: Contract) -> str:
    try:
        return source_head(run, contract, timeout=settings.SOURCE_HEAD_SECONDS) or NOT_ASKED
    except SourceRefused as refused:
        return NOT_ASKED if refused.retry_safe else f"refused: {refused.code}"


def compare(before: Footing, now: Footing) -> Answers:
    """What is different now. A checkpoint without a footing is of a release that took none."""
    if not before:
        return Answers(())
    found = [
        *_of_contract(before["contract"], now["contract"]),
        *_of_policy(before["policy"], now["policy"]),
        *_of_membership(before["membership"], now["membership"]),
        *_of_each("credential", before["credentials"], now["credentials"], _CREDENTIAL),
        *_of_each("value", before["values"], now["values"], _VALUE),
        *_of_source(before["source"], now["source"]),
    ]
    return Answers(tuple(found))


_CREDENTIAL = "The run would use it with the scope of now. It is taken anew; nothing is kept of it."
_VALUE = "The sandbox is made with the value of now."


def _of_contract(before: Footing, now: Footing) -> list[Difference]:
    if before == now:
        return []
    return [
        Difference(
            "contract",
            f"version {now['version']}",
            str(before["state"]).replace("_", " "),
            str(now["state"]).replace("_", " "),
            "The run keeps the version it began with, with all of its terms.",
        )
    ]


def _of_policy(before: Footing, now: Footing) -> list[Difference]:
    if before["digest"] == now["digest"]:
        return []
    return [
        Difference(
            "policy",
            "policy in force",
            f"version {before['version']}" if before["version"] else "none",
            f"version {now['version']}" if now["version"] else "none",
            "Every call is judged by the policy of now. An approval given under the earlier one "
            "is held where the policy of now would ask.",
        )
    ]


def _of_membership(before: Footing, now: Footing) -> list[Difference]:
    if before["operates"] == now["operates"]:
        return []
    words = {True: "may start runs", False: "may not start runs any more"}
    return [
        Difference(
            "membership",
            str(now["person"]),
            words[before["operates"]],
            words[now["operates"]],
            "The run was asked for by somebody who could not ask for it now.",
        )
    ]


def _of_each(what: str, before: Footing, now: Footing, follows: str) -> list[Difference]:
    return [
        Difference(what, name, str(before.get(name, GONE)), str(now.get(name, GONE)), follows)
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]


def _of_source(before: Footing, now: Footing) -> list[Difference]:
    heads = {before["head"], now["head"]}
    if len(heads) == 1 or NOT_ASKED in heads:
        return []
    return [
        Difference(
            "source",
            str(now["ref"]),
            str(before["head"])[:40],
            str(now["head"])[:40],
            "The run keeps its commit. What it makes is compared with that one.",
        )
    ]
