"""Check everything that is stored as evidence, tenant by tenant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from approvals import carried, receipt, seal, signing
from approvals.models import Decision, Packet, Publication, Removal
from portal import audit, blobs
from portal.models import Tenant
from portal.signing import signing_keys
from runs import lifecycle
from runs.models import Event, Run


@dataclass
class Report:
    """What was looked at in one tenant, and what is not as it was written."""

    tenant: str
    lines: int = 0
    events: int = 0
    payloads: int = 0
    packets: int = 0
    receipts: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.tenant}: {self.lines:,} lines of the audit log, {self.events:,} events, "
            f"{self.payloads:,} payloads, {self.packets:,} packets, {self.receipts:,} receipts"
        )


def examine(tenant: Tenant) -> Report:
    """Read all evidence of a tenant and compare it with its digests. Changes nothing."""
    report = Report(tenant.slug)
    broken = audit.broken_at(tenant)
    report.lines = audit.in_order(tenant).count()
    if broken is not None:
        report.problems.append(f"the audit log breaks at line {broken}")
    for run in Run.objects.filter(tenant=tenant).order_by("number").iterator():
        report.problems += _run(run, report)
    for packet in Packet.objects.filter(tenant=tenant).order_by("number").iterator():
        report.packets += 1
        report.problems += _packet(packet)
    done = Publication.objects.filter(tenant=tenant, statement__isnull=False)
    for publication in done.select_related("run", "packet").order_by("pk").iterator():
        report.receipts += 1
        report.problems += _receipt(publication)
    return report


def _run(run: Run, report: Report) -> Iterator[str]:
    broken = lifecycle.event_chain_broken_at(run)
    if broken is not None:
        yield f"the events of run {run.number} break at event {broken}"
    events = Event.objects.filter(run=run)
    report.events += events.count()
    for seq, payload in events.exclude(payload="").values_list("seq", "payload").iterator():
        report.payloads += 1
        try:
            blobs.open_checked(run.tenant_id, payload).close()
        except blobs.BlobRemoved:
            written = Removal.objects.filter(tenant_id=run.tenant_id, sha256=payload)
            if not written.exists():
                yield f"the payload of event {seq} of run {run.number} was removed by nobody"
        except (blobs.BlobDamaged, ValueError, OSError):
            yield f"the payload of event {seq} of run {run.number} is gone or changed"


def _packet(packet: Packet) -> Iterator[str]:
    if not seal.intact(packet.page, packet.digest):
        yield f"packet {packet.number} is not the page that was sealed"
    others = Decision.objects.filter(packet=packet, carried_from=None)
    if others.exclude(digest=packet.digest).exists():
        yield f"a decision on packet {packet.number} was made on another digest"
    for decision, why in carried.faults(packet):
        if decision.carried_from_id is not None:
            yield f"decision {decision.pk} on packet {packet.number} is wrongly carried over: {why}"
    for decision, why in signing.unsigned(packet):
        yield f"no passkey signed decision {decision.pk} on packet {packet.number}: {why}"


def _receipt(publication: Publication) -> Iterator[str]:
    number = publication.run.number
    keys = [each.public_key() for each in signing_keys()]
    try:
        said = receipt.verify(publication.statement or {}, keys)
    except ValueError:
        yield f"the receipt of run {number} is not signed with a key of this installation"
        return
    predicate = said.get("predicate", {})
    written = (predicate.get("packet_digest"), predicate.get("commit"))
    if written != (publication.packet.digest, publication.commit):
        yield f"the receipt of run {number} speaks of another packet or commit"
