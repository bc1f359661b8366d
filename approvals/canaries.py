"""Test packets: whether people look, measured by packets that can do nothing.

A tenant's admin switches them on; from then on the scheduler alone makes them, one at a time and
days apart, and nobody can ask for one. A test packet is the likeness of a packet that the tenant
really had, with one thing wrong that a reader can see. There is no call behind it, its run can
never be taken by a worker, and the database refuses both (`packet_canary_has_no_effect`,
`run_canary_never_works`). The audit log says from the beginning that it is one; the page does
not, until it is over. Whoever answered is told at once. Nobody is ranked.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from approvals import bounds, indexing, seal
from approvals.canary import CAUGHT
from approvals.models import Canaries, Decision, Packet
from approvals.quorum import Quorum
from approvals.states import PacketKind, PacketState, Verdict
from portal import audit, live
from portal.access import demand
from portal.canonical import digest
from portal.clock import database_now
from portal.models import Membership, Tenant
from portal.roles import Permission
from runs import canary as runs_canary
from runs.lifecycle import Draft, append_events, run_facts

# A likeness is taken of what people know, and lies open for so long at most.
LOOKS_BACK = timedelta(days=180)
OPEN_FOR = timedelta(days=1)
# So many answers before the tenant's numbers are shown: fewer would point at somebody.
ENOUGH = 5


def settings_of(tenant: Tenant) -> Canaries:
    """The tenant's choice, or the one every tenant begins with, not stored."""
    return Canaries.objects.filter(tenant=tenant).first() or Canaries(tenant=tenant)


@transaction.atomic(durable=True)
def choose(every_days: int, *, member: Membership) -> Canaries:
    """An admin says how many days lie between two test packets, at least; 0 switches them off."""
    demand(member, Permission.MANAGE)
    stored, _ = Canaries.objects.update_or_create(
        tenant=member.tenant,
        defaults={
            "every_days": every_days,
            "next_at": _next(every_days, database_now()) if every_days else None,
            "changed_by": member.user,
            "changed_at": timezone.now(),
        },
    )
    audit.record(
        "canaries.changed",
        tenant=member.tenant,
        subject=stored,
        actor=member.user,
        every_days=every_days,
    )
    return stored


def _next(every_days: int, now: datetime) -> datetime:
    """Not before so many days, and at no time that could be foreseen."""
    span = timedelta(days=every_days).total_seconds()
    return now + timedelta(seconds=span + secrets.randbelow(int(span / 2)))


def due(now: datetime) -> list[int]:
    """Tenants whose next test packet is due."""
    return list(
        Canaries.objects.filter(next_at__lte=now, tenant__deleted_at=None)
        .order_by("next_at")
        .values_list("tenant_id", flat=True)[:500]
    )


@transaction.atomic(durable=True)
def open_due(tenant_id: int) -> Packet | None:
    """Make the test packet that is due. Safe to repeat: what was made is not due any more."""
    wanted = Canaries.objects.select_for_update().filter(tenant=tenant_id).first()
    now = database_now()
    if wanted is None or wanted.next_at is None or now < wanted.next_at:
        return None
    open_now = Packet.objects.filter(
        tenant=tenant_id, state=PacketState.OPEN, canary__isnull=False
    ).exists()
    like = None if open_now else _likeness(wanted.tenant, now)
    if like is None:
        return None  # asked again by the next sweep
    wanted.next_at = _next(wanted.every_days, now)
    wanted.save(update_fields=["next_at"])
    return _open(like, now)


def _likeness(tenant: Tenant, now: datetime) -> Packet | None:
    """A packet the tenant really had, that one person decided with nothing but a click."""
    found = (
        Packet.objects.filter(
            tenant=tenant,
            kind=PacketKind.CALL,
            call__kind="http",
            canary__isnull=True,
            needed=1,
            routes=[],
            opened_at__gte=now - LOOKS_BACK,
        )
        .exclude(state=PacketState.OPEN)
        .select_related("tenant", "run__tenant", "run__version", "run__requested_by")
        .order_by("-pk")[:50]
    )
    plain = [
        each
        for each in found
        if seal.intact(each.page, each.digest)
        and not {"passkey", "hold_seconds", "stages"} & each.page["gate"].keys()
        and not each.page.get("denied_before")
        and "edited" not in each.page
        and _parts(each.page["target"]) is not None
    ]
    return secrets.choice(plain) if plain else None


def _open(like: Packet, now: datetime) -> Packet:
    run = runs_canary.begin(like.run)
    expires = now + min(OPEN_FOR, like.expires_at - like.opened_at)
    target, wrong = _spoilt(like.page["target"])
    page = dict(like.page) | {
        "run": str(run.public_id),
        "run_number": run.number,
        "target": target,
        "effect": seal.call_effect(
            like.page["tool_kind"], like.page["tool"], like.page["arguments"], target, run.number
        ),
        "time": bounds.sealed_times(now, expires),
    }
    whole, sealed = seal.sealed({name: page[name] for name in page if name != "shape"})
    packet = Packet.objects.create(
        tenant=like.tenant,
        run=run,
        number=like.tenant.next_number("packet_count"),
        kind=PacketKind.CALL.value,
        canary={"wrong": wrong},
        effect=whole["effect"],
        page=whole,
        digest=sealed,
        heading=seal.heading(whole),
        words=indexing.searchable(whole),
        agent_words=like.agent_words,
        needed=1,
        requested_by=like.requested_by,
        excluded=like.excluded,
        routes=Quorum.of_gate(whole["gate"]).routes,
        opened_at=now,
        expires_at=expires,
        valid_seconds=like.valid_seconds,
    )
    indexing.list_packet(packet)
    opened = {"packet": packet.number, "approval": sealed, "operation": packet.kind}
    append_events(run, [Draft("packet.opened", run_facts(run) | opened)])
    audit.record(
        "packet.opened",
        tenant=like.tenant,
        subject=packet,
        digest=sealed,
        kind=packet.kind,
        words=digest(packet.agent_words),
        canary=True,
    )
    live.changed_on_commit(live.queue_topic(packet.tenant_id))
    return packet


# --- What is wrong with it ------------------------------------------------------------------------


def _parts(target: str) -> tuple[str, Any] | None:
    """Method and address of a call's target; None if it is no plain address."""
    method, _, address = target.partition(" ")
    try:
        parts = urlsplit(address)
    except ValueError:
        return None
    return (method, parts) if parts.scheme in ("http", "https") and parts.hostname else None


def _spoilt(target: str) -> tuple[str, str]:
    """The target with one thing wrong, and what that is."""
    found = _parts(target)
    if found is None:
        raise ValueError("only an address can be spoilt")
    method, parts = found
    if secrets.randbelow(2):
        # Below a name that nobody can register, so that it is nobody's.
        host = f"{parts.hostname}.{secrets.choice(_ENDINGS)}.example"
        place = host if parts.port is None else f"{host}:{parts.port}"
        return (
            f"{method} {urlunsplit(parts._replace(netloc=place))}",
            f"the request would go to {host}, which only looks like {parts.hostname}.",
        )
    path = secrets.choice(_PATHS)
    return (
        f"DELETE {urlunsplit(parts._replace(path=path, query=''))}",
        f"it would delete {path}; the contract's tool sends {target}.",
    )


_ENDINGS = ("login", "verify", "mirror")
_PATHS = ("/users/all", "/admin/tokens", "/backups")


# --- Results --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Results:
    """How many test packets were answered, and how many of those were caught."""

    answered: int
    caught: int

    @property
    def share(self) -> int:
        """Of a hundred."""
        return round(100 * self.caught / self.answered) if self.answered else 0


def _results(answers: Any) -> Results:
    verdicts = list(answers.values_list("verdict", flat=True))
    return Results(len(verdicts), sum(each in CAUGHT for each in verdicts))


def _answers(tenant: Tenant) -> Any:
    return Decision.objects.filter(tenant=tenant, packet__canary__isnull=False)


def results_of(member: Membership) -> Results:
    """This person's own."""
    return _results(_answers(member.tenant).filter(person=member.user))


def results_of_all(tenant: Tenant) -> Results | None:
    """The tenant's; None while so few would point at somebody."""
    found = _results(_answers(tenant))
    return found if found.answered >= ENOUGH else None


def unanswered(tenant: Tenant) -> int:
    """Test packets that ended without an answer."""
    over = Packet.objects.filter(tenant=tenant, canary__isnull=False)
    return over.filter(~Q(state=PacketState.OPEN), decisions=None).count()


def met_by(member: Membership) -> list[Mapping[str, Any]]:
    """The test packets this person answered, newest first."""
    answers = _answers(member.tenant).filter(person=member.user).order_by("-decided_at")
    return [
        {
            "packet": each.packet,
            "caught": each.verdict != Verdict.APPROVE,
            "wrong": each.packet.canary["wrong"],
            "at": each.decided_at,
        }
        for each in answers.select_related("packet")[:50]
    ]
