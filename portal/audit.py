"""The audit log: append one line, sign where it stands, verify a tenant's chain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db import models, transaction
from django.utils import timezone

from portal import dsse, evidence, statements
from portal.canonical import digest
from portal.evidence import CHECKPOINT_TYPE, Line
from portal.models import AuditCheckpoint, AuditEntry, Tenant, User
from portal.signing import signing_keys
from portal.statements import given

# A busy log is signed after so many lines; one that is not, by the hourly sweep.
CHECKPOINT_EVERY = 100


def record(
    action: str,
    *,
    tenant: Tenant,
    subject: models.Model | str,
    actor: User | None = None,
    **facts: Any,
) -> AuditEntry:
    """Append one line to the tenant's chain, inside the caller's transaction.

    The tenant's row holds the end of the chain. It is moved on from the end that `tenant` knows,
    which locks the row: on PostgreSQL two writers queue there, on SQLite the transaction already
    holds the only write lock. Where the chain went on since `tenant` was read, that matches nothing
    and the end is read anew, locked.
    """
    entry = AuditEntry(
        tenant=tenant,
        at=timezone.now(),
        action=action,
        subject=subject if isinstance(subject, str) else f"{subject._meta.model_name}:{subject.pk}",
        actor=actor,
        facts=facts,
    )
    end = tenant.audit_seq, tenant.audit_head
    if not _moved_on(entry, *end):
        (end,) = _END.all(tenant=tenant.pk)
        _moved_on(entry, *end)
    statements.insert(entry)
    tenant.audit_seq, tenant.audit_head = entry.seq, entry.hash
    if entry.seq % CHECKPOINT_EVERY == 0:
        _sign(entry)
    return entry


def _moved_on(entry: AuditEntry, seq: int, head: str) -> bool:
    """Put the line behind this end; whether that is where the chain ends."""
    entry.seq, entry.previous = seq + 1, head
    entry.hash = digest(entry.body())
    moved = _move_end(
        tenant=entry.tenant_id, seq=seq, head=head, to_seq=entry.seq, to_head=entry.hash
    )
    return moved == 1


# Not FOR UPDATE: that would also hold up every row which only refers to the tenant.
_END = statements.Query(
    lambda: (
        Tenant.objects.select_for_update(no_key=True)
        .filter(pk=given("tenant", Tenant))
        .values_list("audit_seq", "audit_head")
    )
)
_move_end = statements.Change(
    lambda: Tenant.objects.filter(
        pk=given("tenant", Tenant),
        audit_seq=given("seq", Tenant, "audit_seq"),
        audit_head=given("head", Tenant, "audit_head"),
    ),
    audit_seq=given("to_seq", Tenant, "audit_seq"),
    audit_head=given("to_head", Tenant, "audit_head"),
)


@transaction.atomic(durable=True)
def sign_end(tenant: Tenant) -> bool:
    """Sign where the log stands, unless the last checkpoint is of this very line. Safe to repeat.

    Whoever rewrites the log later, whatever rights they have in the database, has to forge this
    signature, or whoever exported meanwhile can tell.
    """
    last = Tenant.objects.select_for_update(no_key=True).only("audit_seq").get(pk=tenant.pk)
    entry = AuditEntry.objects.filter(tenant=tenant, seq=last.audit_seq).first()
    signed = AuditCheckpoint.objects.filter(tenant=tenant, seq=last.audit_seq)
    if entry is None or signed.exists():
        return False
    _sign(entry)
    return True


def _sign(entry: AuditEntry) -> None:
    """A checkpoint at this line, signed with every key in force."""
    said = {
        "tenant": entry.tenant_id,
        "seq": entry.seq,
        "hash": entry.hash,
        "at": timezone.now().isoformat(),
    }
    envelope = dsse.sign(said, CHECKPOINT_TYPE, *signing_keys())
    AuditCheckpoint.objects.create(tenant_id=entry.tenant_id, seq=entry.seq, envelope=envelope)


def in_order(tenant: Tenant) -> models.QuerySet[AuditEntry]:
    """The whole chain of a tenant, oldest first."""
    return AuditEntry.objects.filter(tenant=tenant).order_by("seq")


def newest_first(tenant: Tenant, action: str = "") -> models.QuerySet[AuditEntry]:
    """The lines whose action begins like this, with who did it."""
    return in_order(tenant).filter(action__startswith=action).select_related("actor").reverse()


def head_of(tenant: Tenant) -> evidence.End:
    """Where the log ends: the number and the hash of its last line."""
    now = Tenant.objects.only("audit_seq", "audit_head").get(pk=tenant.pk)
    return now.audit_seq, now.audit_head


def lines_of(tenant: Tenant) -> Iterator[Line]:
    """The chain as evidence that stands for itself, oldest line first."""
    # One statement reads one state of the table; a transaction would hold SQLite's write lock.
    return (Line(entry.body(), entry.hash) for entry in in_order(tenant).iterator())


def broken_at(tenant: Tenant) -> int | None:
    """The number of the first line that does not fit or is missing, or None for a sound chain."""
    return evidence.broken_at(lines_of(tenant), lambda: head_of(tenant))
