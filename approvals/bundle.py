"""Write a bundle of evidence, in the form that `approvals.verify` describes.

It is read from the tables in portions and never held as a whole, so its size costs no memory, and
no transaction stays open while somebody downloads it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Max, Min, Q, QuerySet
from django.utils import timezone

from approvals.bundle_form import END_TYPE, VERSION, details_of, framed
from approvals.carried import ancestors
from approvals.checking import receipt_body
from approvals.models import Candidate, Decision, Delegation, Packet, Publication, Receipt
from portal import audit, dsse
from portal.errors import NotFound
from portal.evidence import GENESIS
from portal.models import AuditCheckpoint, AuditEntry, Tenant
from portal.signing import signing_keys
from runs import lifecycle
from runs.models import Event, Run

_PORTION = 500


@dataclass(frozen=True)
class Asked:
    """What somebody wants to take home: all of it, a stretch of time, one packet, or one run."""

    since: datetime | None = None
    until: datetime | None = None
    packet: Packet | None = None
    run: Run | None = None

    def to_data(self) -> dict[str, Any]:
        """The question as the bundle repeats it."""
        return {
            "since": self.since.isoformat() if self.since else None,
            "until": self.until.isoformat() if self.until else None,
            "packet": self.packet.number if self.packet else None,
            "run": self.run.number if self.run else None,
        }


def asked(
    tenant: Tenant,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    packet: int | None = None,
    run: int | None = None,
) -> Asked:
    """The question, packet and run by their numbers. Raises `NotFound`."""
    try:
        return Asked(
            since,
            until,
            None if packet is None else Packet.objects.get(tenant=tenant, number=packet),
            None if run is None else Run.objects.get(tenant=tenant, number=run),
        )
    except (Packet.DoesNotExist, Run.DoesNotExist) as error:
        raise NotFound from error


@dataclass
class _Stretch:
    """The lines of the log from `first` to `last`, and which of them are shown."""

    first: int
    last: int
    subjects: frozenset[str] | None = None
    # Number and hash of the line that was written last.
    seq: int = 0
    head: str = GENESIS

    def shows(self, entry: AuditEntry) -> bool:
        return self.subjects is None or entry.subject in self.subjects


def exported(tenant: Tenant, what: Asked | None = None) -> Iterator[bytes]:
    """The lines of a bundle, one after the other."""
    what = what or Asked()
    stretch = _stretch(tenant, what)
    read, lines = hashlib.sha256(), 0
    for line in _lines(tenant, what, stretch):
        read.update(line)
        lines += 1
        yield line
    said = {
        "tenant": tenant.pk,
        "seq": stretch.seq,
        "hash": stretch.head,
        "lines": lines,
        "sha256": read.hexdigest(),
        "at": timezone.now().isoformat(),
    }
    yield framed("end", dsse.sign(said, END_TYPE, *signing_keys()))


def _lines(tenant: Tenant, what: Asked, stretch: _Stretch) -> Iterator[bytes]:
    before = AuditEntry.objects.filter(tenant=tenant, seq=stretch.first - 1).first()
    stretch.seq, stretch.head = stretch.first - 1, before.hash if before else GENESIS
    header = {
        "version": VERSION,
        "tenant": tenant.slug,
        "tenant_key": tenant.pk,
        "after": {"seq": stretch.seq, "hash": stretch.head},
        "asked": what.to_data(),
    }
    yield framed("bundle", header)
    yield from _log(tenant, stretch)
    for run in _runs(tenant, what).order_by("number").iterator(chunk_size=_PORTION):
        yield from _run(run)


# --- Which lines ----------------------------------------------------------------------


def _stretch(tenant: Tenant, what: Asked) -> _Stretch:
    end, _ = audit.head_of(tenant)
    log = AuditEntry.objects.filter(tenant=tenant, seq__lte=end)
    if what.run is not None:
        return _Stretch(end + 1, end)
    if what.packet is not None:
        subjects = _subjects(what.packet)
        first, last = _bounds(log.filter(subject__in=subjects), end)
        return _Stretch(first, last, subjects)
    if what.since is None and what.until is None:
        return _Stretch(1, end)
    within = log
    if what.since is not None:
        within = within.filter(at__gte=what.since)
    if what.until is not None:
        within = within.filter(at__lt=what.until)
    return _Stretch(*_bounds(within, end))


def _bounds(entries: QuerySet[AuditEntry], end: int) -> tuple[int, int]:
    found = entries.aggregate(first=Min("seq"), last=Max("seq"))
    return (end + 1, end) if found["first"] is None else (found["first"], found["last"])


def _subjects(packet: Packet) -> frozenset[str]:
    """What lines that concern a packet are about: itself, its candidate, what became of it, the
    packets whose place it took, and the rights that were used for others who answered it."""
    names = {f"packet:{each.pk}" for each in (packet, *ancestors(packet))}
    if packet.candidate_id is not None:
        names.add(f"candidate:{packet.candidate_id}")
    for vote in packet.decisions.exclude(on_behalf_of=None):
        rights = Delegation.objects.filter(giver__user=vote.on_behalf_of, taker__user=vote.person)
        names |= {f"delegation:{each.pk}" for each in rights.filter(tenant=packet.tenant_id)}
    made = Publication.objects.filter(packet=packet).values_list("pk", flat=True)
    return frozenset(names | {f"publication:{pk}" for pk in made})


def _runs(tenant: Tenant, what: Asked) -> QuerySet[Run]:
    runs = Run.objects.filter(tenant=tenant)
    if what.run is not None:
        return runs.filter(pk=what.run.pk)
    if what.packet is not None:
        return runs.filter(pk=what.packet.run_id)
    if what.since is not None:
        runs = runs.filter(Q(ended_at=None) | Q(ended_at__gte=what.since))
    if what.until is not None:
        runs = runs.filter(created_at__lt=what.until)
    return runs


# --- The audit log --------------------------------------------------------------------


def _log(tenant: Tenant, stretch: _Stretch) -> Iterator[bytes]:
    log = AuditEntry.objects.filter(tenant=tenant, seq__lte=stretch.last).order_by("seq")
    while portion := list(log.filter(seq__gt=stretch.seq)[:_PORTION]):
        details = _Details.of([each for each in portion if stretch.shows(each)])
        signed = _checkpoints(tenant, portion)
        for entry in portion:
            if stretch.shows(entry):
                yield framed("audit", entry.body())
                yield from details.behind(entry)
            else:
                withheld = {"seq": entry.seq, "previous": entry.previous, "hash": entry.hash}
                yield framed("withheld", withheld)
            stretch.seq, stretch.head = entry.seq, entry.hash
            if entry.seq in signed:
                yield framed("checkpoint", signed[entry.seq])


def _checkpoints(tenant: Tenant, portion: Sequence[AuditEntry]) -> Mapping[int, Any]:
    rows = AuditCheckpoint.objects.filter(
        tenant=tenant, seq__gte=portion[0].seq, seq__lte=portion[-1].seq
    )
    return dict(rows.values_list("seq", "envelope"))


@dataclass
class _Details:
    """What some lines of the log speak of, read with one query for each kind."""

    packets: Mapping[int, Packet] = field(default_factory=dict)
    # By packet, person and round.
    decisions: Mapping[tuple[int, int, int], Decision] = field(default_factory=dict)
    checks: Mapping[int, list[Receipt]] = field(default_factory=dict)
    publications: Mapping[int, Publication] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Iterable[AuditEntry]) -> _Details:
        wanted: dict[str, set[int]] = {}
        for entry in entries:
            wanted.setdefault(_kind(entry), set()).add(_subject_key(entry))
        candidates = Candidate.objects.filter(pk__in=wanted.get("check", ()))
        return cls(
            Packet.objects.select_related("run").in_bulk(list(wanted.get("packet", ()))),
            {
                (each.packet_id, each.person_id, each.round): each
                for each in Decision.objects.filter(
                    packet__in=wanted.get("decision", ())
                ).select_related("person", "carried_from", "on_behalf_of")
            },
            {
                each.pk: sorted(each.receipts.all(), key=lambda one: one.check_name)
                for each in candidates.prefetch_related("receipts")
            },
            Publication.objects.in_bulk(list(wanted.get("receipt", ()))),
        )

    def behind(self, entry: AuditEntry) -> Iterator[bytes]:
        """The lines that stand behind this one. What is not there is left out, and missed."""
        kind, key = _kind(entry), _subject_key(entry)
        if kind == "packet" and key in self.packets:
            yield framed(kind, _packet_body(self.packets[key]))
        elif kind == "decision":
            # Lines from before an approval could be undone name no round.
            given = self.decisions.get((key, entry.actor_id or 0, entry.facts.get("round", 1)))
            if given is not None:
                yield framed(kind, _decision_body(given))
        elif kind == "check":
            for check in self.checks.get(key, ()):
                yield framed(kind, receipt_body(check))
        elif kind == "receipt" and key in self.publications:
            yield framed(kind, self.publications[key].statement)


def _kind(entry: AuditEntry) -> str:
    return details_of({"action": entry.action, "actor": entry.actor_id})


def _subject_key(entry: AuditEntry) -> int:
    return int(entry.subject.rpartition(":")[2] or 0) if _kind(entry) else 0


def _packet_body(packet: Packet) -> dict[str, Any]:
    return {
        "key": packet.pk,
        "number": packet.number,
        "id": str(packet.public_id),
        "run": packet.run.number,
        "page": packet.page,
        "agent_words": packet.agent_words,
        **({"canary": True} if packet.canary is not None else {}),
    }


def _decision_body(decision: Decision) -> dict[str, Any]:
    return {
        "packet": decision.packet_id,
        "person": decision.person_id,
        "name": decision.person.name,
        "verdict": decision.verdict,
        "digest": decision.digest,
        "round": decision.round,
        "comment": decision.comment,
        "self_approved": decision.self_approved,
        "at": decision.decided_at.isoformat(),
        **({"attention": decision.attention} if decision.attention is not None else {}),
        **(
            {
                "on_behalf_of": decision.on_behalf_of_id,
                "on_behalf_of_name": decision.on_behalf_of.name,
            }
            if decision.on_behalf_of is not None
            else {}
        ),
        **({"signature": decision.signature} if decision.signature is not None else {}),
        **({"carried_from": source.packet_id} if (source := decision.carried_from) else {}),
    }


# --- Runs -----------------------------------------------------------------------------


def _run(run: Run) -> Iterator[bytes]:
    header = {
        "key": run.pk,
        "number": run.number,
        "id": str(run.public_id),
        "seq": run.event_seq,
        "hash": run.event_head,
    }
    yield framed("run", header)
    seq = 0
    events = Event.objects.filter(run=run, seq__lte=run.event_seq).order_by("seq")
    while portion := list(events.filter(seq__gt=seq)[:_PORTION]):
        for event in portion:
            yield framed("event", lifecycle.event_body(event))
        seq = portion[-1].seq
