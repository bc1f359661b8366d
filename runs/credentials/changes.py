"""Sources of secrets: propose one, or a change of one, and let a second person decide.

What only takes, such as fewer actions or an earlier end, is in force at once; so is the end of a
source. Whatever gives more waits for a tenant admin who did not ask for it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from portal import audit, live, vault
from portal.access import demand
from portal.canonical import digest
from portal.clock import database_now
from portal.errors import NotAllowed, NotFound, Refusal
from portal.models import Membership, Tenant
from portal.redact import redact
from portal.roles import Permission
from runs.contract.rules import slug
from runs.credentials import grants
from runs.credentials.scope import ALL, Scope
from runs.credentials.sources import ConfigWrong, SourceSpec, source_for
from runs.credentials.sources.github_app import key_of
from runs.models import Credential, CredentialChange, CredentialGrant, JobContract
from runs.states import CREDENTIALS_HELD

State = CredentialChange.State

SHORTEST = 8
"""Characters of a secret: shorter ones would turn up everywhere and could not be recognised."""

_HOST = re.compile(r"[a-z0-9](?:[a-z0-9_.-]{0,251}[a-z0-9])?(?::[0-9]{1,5})?")


class SameTerms(Refusal):
    code = "runs.same_terms"
    text = "These are the terms of “{name}” already. Nothing was proposed."


class ChangeWaits(Refusal):
    code = "runs.change_waits"
    text = (
        "A change of “{name}” waits for a decision already. Have it decided or withdrawn first. "
        "Nothing was proposed."
    )


class OwnChange(Refusal):
    code = "runs.own_change"
    status = 403
    text = (
        "You proposed change {number} of “{name}”, so somebody else has to decide on it. "
        "Ask another tenant admin."
    )


class ChangeDecided(Refusal):
    code = "runs.change_decided"
    text = "Change {number} of “{name}” is already {state}. Nothing was changed."


class ChangeStale(Refusal):
    code = "runs.change_stale"
    text = (
        "“{name}” was changed after this was proposed, so what you read is not what would come of "
        "it. Nothing was changed; withdraw it and propose it anew."
    )


class AlreadyRetired(Refusal):
    code = "runs.already_retired"
    text = "“{name}” is not in use any more. Nothing was changed."


@dataclass(frozen=True)
class Terms:
    """What a source is and may do. `expires_at` is a moment in ISO 8601."""

    kind: str
    config: Mapping[str, str]
    actions: tuple[str, ...]
    audience: tuple[str, ...]
    consumers: tuple[str, ...]
    owner: str
    minutes: int
    expires_at: str

    def to_data(self) -> dict[str, Any]:
        """Plain JSON data, sorted, so that equal terms are equal data."""
        data = asdict(self)
        for name in ("actions", "audience", "consumers"):
            data[name] = sorted(set(data[name]))
        return {**data, "config": {key: value for key, value in self.config.items() if value}}


def terms_of(row: Credential | None) -> dict[str, Any]:
    """The terms in force, or nothing for a source that is new or was ended."""
    if row is None or row.retired_at is not None:
        return {}
    return Terms(
        kind=row.kind,
        config=row.config,
        actions=tuple(row.actions),
        audience=tuple(row.audience),
        consumers=tuple(row.consumers),
        owner=row.owner,
        minutes=row.minutes,
        expires_at=row.expires_at.isoformat() if row.expires_at is not None else "",
    ).to_data()


@transaction.atomic(durable=True)
def propose(
    name: str, terms: Terms, secret: str, *, reason: str, member: Membership
) -> CredentialChange:
    """Store a change that waits for a second person, or is in force at once if it only takes.

    An empty `secret` keeps the one in force. Raises `ConfigWrong` with the field at fault,
    `SameTerms` and `ChangeWaits`.
    """
    demand(member, Permission.MANAGE)
    Tenant.objects.select_for_update().only("pk").get(pk=member.tenant_id)
    row = Credential.objects.filter(tenant=member.tenant, name=name).first()
    before, after = terms_of(row), terms.to_data()
    _check(member.tenant, name, terms, secret, new=not before)
    if before == after and not secret:
        raise SameTerms(name=name)
    earlier = CredentialChange.objects.filter(tenant=member.tenant, name=name)
    if earlier.filter(state=State.PROPOSED).exists():
        raise ChangeWaits(name=name)
    sealed = vault.seal(secret.encode()) if secret else None
    wider = what_is_wider(before, after, new_secret=bool(secret))
    reason = redact(reason, known=(secret,) if secret else ())
    change = CredentialChange.objects.create(
        tenant=member.tenant,
        name=name,
        number=earlier.count() + 1,
        before=before,
        after=after,
        sealed=sealed,
        wider=wider,
        reason=reason,
        digest=_digest(name, before, after, sealed, reason),
        author=member.user,
    )
    _record("proposed", change, member, wider=wider)
    if not wider:
        _apply(change, row)
        _settle(change, State.IN_FORCE, member, comment="It only takes, so nobody was asked.")
    live.changed_on_commit(live.queue_topic(member.tenant_id))
    return change


def _check(tenant: Tenant, name: str, terms: Terms, secret: str, *, new: bool) -> None:
    """Refuse what could not work, with the field at fault. Raises `ConfigWrong`."""
    if fault := slug(name):
        raise ConfigWrong("name", " ".join(fault))
    if new and not secret:
        raise ConfigWrong("secret", "A new source needs its secret.")
    if secret and len(secret) < SHORTEST:
        raise ConfigWrong("secret", f"A secret has at least {SHORTEST} characters.")
    if secret and terms.kind == Credential.Kind.GITHUB_APP:
        key_of(secret)
    for each in terms.audience:
        if not _HOST.fullmatch(each):
            raise ConfigWrong("audience", f"“{each}” is no host: write host or host:port.")
    if not terms.audience:
        raise ConfigWrong("audience", "Name the hosts that it may be sent to.")
    names = set(JobContract.objects.filter(tenant=tenant).values_list("name", flat=True))
    if unknown := set(terms.consumers) - names - {ALL}:
        raise ConfigWrong("consumers", f"There is no contract “{min(unknown)}”.")
    if not terms.consumers:
        raise ConfigWrong("consumers", "Name the contracts that may use it.")
    if datetime.fromisoformat(terms.expires_at) <= timezone.now():
        raise ConfigWrong("expires_at", "That day is over. Give a later one.")
    _scope(terms.to_data())


def _scope(terms: Mapping[str, Any]) -> Scope:
    spec = SourceSpec(terms["config"], tuple(terms["actions"]), tuple(terms["audience"]))
    return source_for(terms["kind"], spec).scope()


def what_is_wider(
    before: Mapping[str, Any], after: Mapping[str, Any], *, new_secret: bool
) -> list[str]:
    """What the second terms have beyond the first, in words; empty where they only take."""
    if not before:
        return ["it is a new source"]
    more = ["its secret is another one"] if new_secret else []
    if before["kind"] != after["kind"]:
        return [*more, "it is a source of another kind"]
    named = {*before["config"], *after["config"]} - {"repositories"}
    more += [
        f"“{each}” is another one"
        for each in sorted(named)
        if before["config"].get(each) != after["config"].get(each)
    ]
    more += [f"it {each}" for each in _scope(after).beyond(_scope(before))]
    if ALL not in before["consumers"]:
        new = sorted({*after["consumers"]} - {*before["consumers"]})
        more += [
            "every contract may use it" if each == ALL else f"the contract “{each}” may use it"
            for each in new
        ]
    if after["minutes"] > before["minutes"]:
        more.append("a secret lives longer")
    if before["expires_at"] and (not after["expires_at"] or _later(after, before)):
        more.append("it ends later")
    if before["owner"] != after["owner"]:
        more.append("it has another owner")
    return more


def _later(after: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    ends = (datetime.fromisoformat(each["expires_at"]) for each in (after, before))
    return next(ends) > next(ends)


def _digest(
    name: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    sealed: bytes | None,
    reason: str,
) -> str:
    """What a decision names: the terms before and after, the reason, and which secret it is."""
    secret = hashlib.sha256(sealed).hexdigest() if sealed is not None else ""
    return digest(
        {"name": name, "before": before, "after": after, "reason": reason, "secret": secret}
    )


def own(change: CredentialChange, member: Membership) -> bool:
    """Whether the member proposed it: people count, so what a machine of theirs asked is theirs."""
    return bool(change.author.person_id == member.user.person_id)


def may_decide(change: CredentialChange, member: Membership) -> bool:
    """Whether this member may put the change in force or refuse it."""
    return (
        member.may(Permission.MANAGE)
        and change.state == State.PROPOSED
        and (not own(change, member) or member.tenant.one_person)
    )


@transaction.atomic(durable=True)
def decide(
    change: CredentialChange, *, approve: bool, seen: str, comment: str, member: Membership
) -> CredentialChange:
    """Put a proposed change in force, or refuse it. `seen` is the digest that was read."""
    demand(member, Permission.MANAGE)
    fresh = _open(change, member)
    if fresh.digest != seen:
        raise ChangeStale(name=fresh.name)
    if own(fresh, member) and not member.tenant.one_person:
        raise OwnChange(name=fresh.name, number=fresh.number)
    if approve:
        row = Credential.objects.filter(tenant=member.tenant, name=fresh.name).first()
        if terms_of(row) != fresh.before:
            raise ChangeStale(name=fresh.name)
        _apply(fresh, row)
    state = State.IN_FORCE if approve else State.DENIED
    _settle(fresh, state, member, comment=redact(comment)[:2000])
    return fresh


@transaction.atomic(durable=True)
def withdraw(change: CredentialChange, *, member: Membership) -> CredentialChange:
    """Take a proposal back. Only who proposed it may."""
    demand(member, Permission.MANAGE)
    fresh = _open(change, member)
    if not own(fresh, member):
        raise NotAllowed(permission="withdraw what somebody else proposed")
    _settle(fresh, State.WITHDRAWN, member)
    return fresh


def _open(change: CredentialChange, member: Membership) -> CredentialChange:
    """The change, locked with everything of its tenant that decides on it."""
    Tenant.objects.select_for_update().only("pk").get(pk=member.tenant_id)
    fresh = (
        CredentialChange.objects.select_related("author")
        .filter(pk=change.pk, tenant=member.tenant)
        .first()
    )
    if fresh is None:
        raise NotFound
    if fresh.state != State.PROPOSED:
        raise ChangeDecided(name=fresh.name, number=fresh.number, state=State(fresh.state).label)
    return fresh


def _apply(change: CredentialChange, row: Credential | None) -> None:
    after = change.after
    row = row or Credential(tenant_id=change.tenant_id, name=change.name)
    row.kind, row.config, row.owner = after["kind"], after["config"], after["owner"]
    row.actions, row.audience = after["actions"], after["audience"]
    row.consumers, row.minutes = after["consumers"], after["minutes"]
    row.expires_at = datetime.fromisoformat(after["expires_at"])
    row.retired_at = row.retired_by = None
    if change.sealed is not None:
        row.sealed = bytes(change.sealed)
    if row.pk is None:
        row.save(force_insert=True)
        return
    row.save(
        update_fields=[
            *("kind", "config", "owner", "actions", "audience", "consumers", "minutes"),
            *("expires_at", "retired_at", "retired_by", "sealed"),
        ]
    )


def _settle(
    change: CredentialChange, state: State, member: Membership, *, comment: str = ""
) -> None:
    """Close a change. Its secret is in the source by now, or in nothing."""
    change.state, change.comment, change.sealed = state.value, comment, None
    change.decided_by, change.decided_at = member.user, database_now()
    change.self_approved = state == State.IN_FORCE and bool(change.wider) and own(change, member)
    change.save(
        update_fields=[
            *("state", "comment", "sealed", "decided_by", "decided_at", "self_approved"),
        ]
    )
    _record(state.value, change, member, self_approved=change.self_approved)
    live.changed_on_commit(live.queue_topic(member.tenant_id))


def _record(word: str, change: CredentialChange, member: Membership, **facts: Any) -> None:
    audit.record(
        f"credential.change_{word}",
        tenant=member.tenant,
        subject=change,
        actor=member.user,
        credential=change.name,
        number=change.number,
        digest=change.digest,
        **facts,
    )


def retire(row: Credential, *, member: Membership) -> Credential:
    """End a source at once; nobody is asked. What was made with it is taken back."""
    with transaction.atomic(durable=True):
        demand(member, Permission.MANAGE)
        Tenant.objects.select_for_update().only("pk").get(pk=member.tenant_id)
        fresh = Credential.objects.filter(pk=row.pk, tenant=member.tenant).first()
        if fresh is None:
            raise NotFound
        if fresh.retired_at is not None:
            raise AlreadyRetired(name=fresh.name)
        fresh.retired_at, fresh.retired_by = database_now(), member.user
        fresh.save(update_fields=["retired_at", "retired_by"])
        audit.record(
            "credential.retired",
            tenant=member.tenant,
            subject=fresh,
            actor=member.user,
            credential=fresh.name,
        )
    held = CredentialGrant.objects.filter(credential=fresh, state__in=sorted(CREDENTIALS_HELD))
    for grant_id in list(held.values_list("pk", flat=True)):
        grants.end_now(grant_id)
    return fresh
