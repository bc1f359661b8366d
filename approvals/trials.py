"""A policy tried on a tenant's own history, with a link to whatever it would have changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.urls import reverse

from approvals.history import judged_between
from approvals.models import Packet
from approvals.policy import CallFacts
from approvals.simulator import Group, Past, Trial, passkey_sentence, replay, sentence
from portal.clock import database_now
from portal.models import Tenant
from runs.models import EgressGrant, ToolCall

# The page waits for it, and asks again from where it stopped.
SECONDS = 8.0
_CHANGED = {
    ("allow", "ask"): ("Went by itself; it would have asked a person", "hourglass", "wait"),
    ("allow", "deny"): ("Went by itself; it would have denied it", "ban", "danger"),
    ("deny", "allow"): ("Was denied by policy; it would have allowed it", "circle-check", "wait"),
    ("deny", "ask"): ("Was denied by policy; it would have asked a person", "hourglass", "wait"),
    ("ask", "allow"): ("Was asked and never shown; it would have allowed it", "circle-check", ""),
    ("ask", "deny"): ("Was asked and never shown; it would have denied it", "ban", ""),
}


@dataclass(frozen=True)
class Shown:
    """One past thing as a link."""

    label: str
    address: str
    words: str
    answer: str
    at: datetime


@dataclass(frozen=True)
class Part:
    """What one kind of difference counts, its newest examples, and where the others begin."""

    title: str
    icon: str
    tone: str
    group: Group
    rows: list[Shown]


@dataclass(frozen=True)
class Tried:
    """A trial as a page shows it."""

    trial: Trial
    days: int
    before: datetime | None
    sentence: str
    passkeys: str
    parts: list[Part]


def tried(tenant: Tenant, text: str, *, days: int, before: datetime | None) -> Tried:
    """Replay the tenant's last days under this policy, which must be sound.

    `before` takes up a trial that stopped, or a list that was longer than its page.
    """
    now = database_now()
    since = now - timedelta(days=days)
    trial = replay(text, judged_between(tenant, since, before or now), seconds=SECONDS, now=now)
    parts = [
        ("It allows these; people denied them", "triangle-alert", "danger", trial.allowed_denied),
        ("It denies these; people approved them", "triangle-alert", "wait", trial.denied_approved),
        ("It asks fewer people than had to approve", "users", "wait", trial.fewer),
        ("It asks more people than had to approve", "users", "", trial.more),
        ("It demands other stages than there were", "users", "wait", trial.other_stages),
        ("It takes a passkey to approve these", "key", "", trial.signed),
        ("A rule fails on these, so they are denied", "triangle-alert", "danger", trial.failed),
        ("Packets it would have allowed", "circle-check", "", trial.packets["allow"]),
        ("Packets it would have denied", "ban", "", trial.packets["deny"]),
        ("Packets it would have asked about", "hourglass", "", trial.packets["ask"]),
        *((*_CHANGED[change], group) for change, group in trial.changed.items()),
    ]
    filled = [each for each in parts if each[3].count]
    links = _links(tenant, (past for *_, group in filled for past in group.shown))
    return Tried(
        trial=trial,
        days=days,
        before=before,
        sentence=sentence(trial, _span(trial, days, before)),
        passkeys=passkey_sentence(trial),
        parts=[
            Part(title, icon, tone, group, [links[past] for past in group.shown if past in links])
            for title, icon, tone, group in filled
        ],
    )


def _span(trial: Trial, days: int, before: datetime | None) -> str:
    """What was replayed, in words that are true where it is a part of the days asked for."""
    words = f"in {days} days" if trial.cut is None else f"since {_moment(trial.cut)}"
    return words if before is None else f"{words}, before {_moment(before)},"


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


# --- Links ----------------------------------------------------------------------------------------


def _links(tenant: Tenant, pasts: Iterable[Past]) -> Mapping[Past, Shown]:
    """The few that are shown, read once each kind."""
    wanted = list(dict.fromkeys(pasts))
    packets = Packet.objects.filter(
        tenant=tenant, pk__in=[past.packet for past in wanted if past.packet is not None]
    ).only("number", "public_id", "effect", "state")
    by_packet = {packet.pk: packet for packet in packets}
    alone = [past for past in wanted if past.packet is None]
    calls = ToolCall.objects.filter(
        tenant=tenant, pk__in=[past.key for past in alone if past.kind == "call"]
    ).select_related("run")
    grants = EgressGrant.objects.filter(
        tenant=tenant, pk__in=[past.key for past in alone if past.kind == "network"]
    ).select_related("run")
    others = {("call", each.pk): (each.run, each.tool, each.target) for each in calls}
    others |= {("network", each.pk): (each.run, "network", str(each)) for each in grants}
    links = {}
    for past in wanted:
        if past.packet is not None and (packet := by_packet.get(past.packet)):
            address = _address(tenant, "approvals:packet", packet.public_id)
            label = f"Packet {packet.number}"
            links[past] = Shown(label, address, packet.effect, packet.state, past.at)
        elif past.packet is None and (found := others.get((past.kind, past.key))):
            run, tool, target = found
            address = _address(tenant, "runs:detail", run.public_id)
            words = ", ".join(filter(None, [f"{tool}: {_programs(past)}".rstrip(": "), target]))
            links[past] = Shown(f"Run {run.number}", address, words, "", past.at)
    return links


def _programs(past: Past) -> str:
    """The programs of a command, as far as they are facts."""
    programs = past.facts.programs if isinstance(past.facts, CallFacts) else frozenset()
    return " ".join(sorted(programs))


def _address(tenant: Tenant, name: str, public_id: object) -> str:
    return reverse(name, kwargs={"tenant": tenant.slug, "public_id": public_id})
