"""Network rules of a run: asked for, granted, counted, taken back. The one writer of their rows."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F, Sum
from django.utils import timezone

from portal import audit, live
from portal.access import demand
from portal.clock import database_now
from portal.errors import NotAllowed, NotFound, Refusal
from portal.handoff import Job, enqueue_on_commit
from portal.models import Membership, User
from portal.redact import redact
from portal.roles import Permission
from runs import cost, lifecycle
from runs.contract import Contract
from runs.egress.asking import GRANTED, Ask
from runs.egress.rules import WORDS
from runs.egress.tally import Refused
from runs.judging import judge_network
from runs.lifecycle import Draft, Judged, Lease, append_events, held_run, locked_run, run_facts
from runs.models import Charge, EgressGrant, EgressRefusal, Run
from runs.opened import Shut, of_contract, opening_facts
from runs.reach import AT_WORK
from runs.states import CallState, GrantState, RunStatus

MOST_WAITING = 5
"""Requests of one run that wait for people at once: a queue is not to be filled by one agent."""

MOST_ASKED = 50
"""Requests of one run in all."""

CHARGED_BYTES = 1 << 20
"""Traffic is charged in portions, and the rest at the end of a stretch of work."""

TAKES_BACK = (Permission.OPERATE, Permission.DECIDE, Permission.MANAGE)
"""Any one of these may take a rule back. Giving needs more than taking."""

Origin = EgressGrant.Origin


class TooManyRequests(Refusal):
    code = "runs.network_too_many"
    text = (
        "{waiting} requests of this run wait for people already, of {asked} in all. Nothing was "
        "asked. Wait for their answers."
    )


class NotAsking(Refusal):
    code = "runs.network_not_asking"
    text = (
        "Run {number} cannot be given more network: {why}. Nothing was asked. Propose the "
        "destination in a new version of its contract."
    )


class NetworkRefused(Refusal):
    code = "runs.network_refused"
    text = (
        "Policy does not allow {place} to be opened for run {number}. {reason} Nothing was asked."
    )


class GrantOver(Refusal):
    code = "runs.grant_over"
    text = "The rule for {place} is no longer in use ({state}). Nothing was changed."


# --- What a run may reach ----------------------------------------------------------------------


@transaction.atomic(durable=True)
def open_rules(lease: Lease, contract: Contract) -> None:
    """Give the contract's rules a row each, and this stretch of work the minutes they have left.

    Their minutes are minutes of work: a parked run has no network, so nothing is used up then.
    """
    run = held_run(lease)
    now = database_now()
    for place, rule in enumerate(contract.network.allow):
        grant = EgressGrant.objects.filter(run=run, origin=Origin.CONTRACT, place=place).first()
        if grant is None:
            grant = EgressGrant(**of_contract(run, place, rule), granted_at=now)
        elif grant.state != GrantState.ACTIVE:
            continue
        left = rule.minutes * 60 - run.seconds_used
        grant.expires_at = now + timedelta(seconds=max(0.0, left))
        if left <= 0:
            grant.state, grant.ended_at = GrantState.EXPIRED.value, now
        if grant.pk is None:
            grant.save(force_insert=True)
        else:
            grant.save(update_fields=["expires_at", "state", "ended_at"])


def ask_of(grant: EgressGrant) -> Ask:
    """The request in a row, to be judged again."""
    return Ask(
        host=grant.host,
        port=grant.port,
        purpose=grant.purpose,
        expected=grant.expected,
        minutes=grant.minutes,
        methods=tuple(grant.methods),
        path=grant.path,
    )


# --- Asking --------------------------------------------------------------------------------------


@transaction.atomic(durable=True)
def ask(lease: Lease, asked: Ask, judged: Judged) -> EgressGrant:
    """File what the agent asks for under the policy's answer. Asked again, it is the same request.

    Raises `TooManyRequests` and `LeaseLost`.
    """
    run = held_run(lease)
    same = _same(run, asked)
    if same is not None:
        return same
    return _file(run, asked, judged, origin=Origin.AGENT, person=None)


def _same(run: Run, asked: Ask) -> EgressGrant | None:
    """What this run has for that destination already: a request that waits, or an open rule."""
    found = EgressGrant.objects.filter(run=run, host=asked.host, port=asked.port)
    waiting = found.filter(state=GrantState.REQUESTED).first()
    if waiting is not None:
        return waiting
    now = database_now()
    for grant in found.filter(state=GrantState.ACTIVE, expires_at__gt=now).order_by("-pk"):
        enough = grant.plain if asked.plain else grant.tls
        methods = not grant.methods or set(asked.methods) <= set(grant.methods)
        if enough and methods and grant.path in ("", asked.path):
            return grant
    return None


def _file(run: Run, asked: Ask, judged: Judged, *, origin: str, person: User | None) -> EgressGrant:
    """A new row for a locked run, inside the caller's transaction."""
    requests = EgressGrant.objects.filter(run=run).exclude(origin=Origin.CONTRACT)
    waiting, total = requests.filter(state=GrantState.REQUESTED).count(), requests.count()
    if judged.state is not CallState.REFUSED and (waiting >= MOST_WAITING or total >= MOST_ASKED):
        raise TooManyRequests(waiting=waiting, asked=total)
    grant = EgressGrant(
        tenant_id=run.tenant_id,
        run=run,
        origin=origin,
        host=asked.host,
        port=asked.port,
        tls=not asked.plain,
        plain=asked.plain,
        methods=list(asked.methods),
        path=asked.path,
        purpose=redact(asked.purpose),
        expected=redact(asked.expected),
        minutes=asked.minutes,
        max_bytes=GRANTED.bytes,
        max_connections=GRANTED.connections,
        asked_by=person,
        rules=list(judged.rules),
        policy_version=judged.policy_version,
        policy_digest=judged.policy_digest,
        facts=judged.facts,
        reason=judged.reason,
    )
    if judged.state is CallState.REFUSED:
        earlier = requests.filter(
            state=GrantState.REFUSED,
            host=asked.host,
            port=asked.port,
            policy_version=judged.policy_version,
        ).first()
        if earlier is not None:
            return earlier
        grant.state, grant.ended_at = GrantState.REFUSED.value, timezone.now()
    elif judged.state is CallState.ALLOWED:
        _activate(grant, database_now())
    else:
        grant.state = GrantState.REQUESTED.value
    grant.save(force_insert=True)
    word = {GrantState.REFUSED: "refused_by_policy", GrantState.ACTIVE: "granted"}.get(
        GrantState(grant.state), "asked"
    )
    by = person.name if person is not None else "policy" if word == "granted" else "the agent"
    told = grant_facts(grant) | {"by": by}
    if grant.state == GrantState.ACTIVE:
        told |= opening_facts(grant, asked=False)
    append_events(run, [Draft(f"egress.{word}", run_facts(run) | told)])
    audit.record(
        f"egress.{word}",
        tenant=run.tenant,
        subject=grant,
        actor=person,
        place=str(grant),
        minutes=grant.minutes,
        rules=grant.rules,
    )
    if grant.state == GrantState.REQUESTED:
        enqueue_on_commit(Job.OPEN_EGRESS_PACKET, grant.pk)
    return grant


def _activate(grant: EgressGrant, now: datetime) -> None:
    grant.state, grant.granted_at = GrantState.ACTIVE.value, now
    grant.expires_at = now + timedelta(minutes=grant.minutes)


def grant_facts(grant: EgressGrant) -> dict[str, Any]:
    """What every event of a rule says of it."""
    return {
        "operation": "request_network",
        "host": grant.host,
        "port": grant.port,
        "minutes": grant.minutes,
        "origin": grant.origin,
        "rules": grant.rules,
        "policy_version": grant.policy_version,
    }


@transaction.atomic(durable=True)
def ask_as_person(run: Run, asked: Ask, *, member: Membership) -> EgressGrant:
    """File what somebody asks for on behalf of a run that was refused. Policy answers as ever.

    Whoever asks counts as a requester and cannot approve it. Raises `NotAsking`,
    `NetworkRefused` and `TooManyRequests`.
    """
    demand(member, Permission.OPERATE)
    locked = locked_run(run.pk)
    if locked.tenant_id != member.tenant_id:
        raise NotFound
    contract = lifecycle.contract_of(locked)
    if why := why_not_asking(locked, contract):
        raise NotAsking(number=locked.number, why=why)
    same = _same(locked, asked)
    if same is not None:
        return same
    judged = judge_network(locked, contract, asked)
    if judged.state is CallState.REFUSED:
        raise NetworkRefused(place=asked.place, number=locked.number, reason=judged.reason)
    return _file(locked, asked, judged, origin=Origin.PERSON, person=member.user)


def why_not_asking(run: Run, contract: Contract) -> str:
    """Why no rule can be added to a run, or an empty word."""
    if contract.network.mode != "request":
        return f"its contract's network mode is “{contract.network.mode}”"
    if RunStatus(run.status) not in AT_WORK:
        return "its agent does not work any more"
    return ""


# --- Answers -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settled:
    """What became of a request, and whose words go to the agent."""

    state: GrantState
    words: str
    by: str


def settle(grant: EgressGrant, run: Run, settled: Settled) -> EgressGrant:
    """Store a person's answer, or that none came, for a locked run in the caller's transaction.

    An approved rule is open from this moment; the run's own worker reads it within a second.
    """
    locked = EgressGrant.objects.select_for_update(no_key=True).get(pk=grant.pk)
    if locked.state != GrantState.REQUESTED:
        raise GrantOver(place=str(locked), state=locked.state)
    now = database_now()
    if settled.state is GrantState.ACTIVE:
        _activate(locked, now)
    else:
        locked.state, locked.ended_at = settled.state.value, now
    locked.answer = settled.words
    locked.save(update_fields=["state", "answer", "granted_at", "expires_at", "ended_at"])
    told = grant_facts(locked) | ({"by": settled.by} if settled.by else {})
    word = settled.state.value
    if settled.state is GrantState.ACTIVE:
        word, told = "granted", told | opening_facts(locked, asked=True)
    append_events(run, [Draft(f"egress.{word}", run_facts(run) | told)])
    return locked


@transaction.atomic(durable=True)
def revoke(run: Run, public_id: uuid.UUID, *, member: Membership) -> EgressGrant:
    """Take an open rule back. Its connections are cut when the worker hears of it, at once."""
    if not any(member.may(each) for each in TAKES_BACK):
        raise NotAllowed(permission=TAKES_BACK[0].value)
    locked = locked_run(run.pk)
    if locked.tenant_id != member.tenant_id:
        raise NotFound
    grant = (
        EgressGrant.objects.select_for_update(no_key=True)
        .filter(run=locked, public_id=public_id)
        .first()
    )
    if grant is None:
        raise NotFound
    if grant.state != GrantState.ACTIVE:
        raise GrantOver(place=str(grant), state=grant.state)
    grant.state, grant.ended_at = GrantState.REVOKED.value, database_now()
    grant.ended_by = member.user
    grant.save(update_fields=["state", "ended_at", "ended_by"])
    append_events(
        locked,
        [
            Draft(
                "egress.revoked", run_facts(locked) | grant_facts(grant) | {"by": member.user.name}
            )
        ],
    )
    audit.record(
        "egress.revoked", tenant=locked.tenant, subject=grant, actor=member.user, place=str(grant)
    )
    live.changed_on_commit(live.run_topic(locked.pk))
    return grant


@transaction.atomic(durable=True)
def hold_back(lease: Lease, shut: Shut) -> None:
    """End a rule that only its row opens, with a line that says so. Raises `LeaseLost`."""
    run = held_run(lease)
    grant = EgressGrant.objects.select_for_update(no_key=True).get(pk=shut.grant.pk)
    if grant.state != GrantState.ACTIVE:
        return
    grant.state, grant.ended_at = GrantState.ENDED.value, database_now()
    grant.save(update_fields=["state", "ended_at"])
    told = grant_facts(grant) | {"why": shut.why}
    append_events(run, [Draft("egress.held_back", run_facts(run) | told)])


# --- Counting ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Traffic:
    """What went through by one rule since it was last written down."""

    connections: int = 0
    sent: int = 0
    received: int = 0


@dataclass(frozen=True)
class Ended:
    """A rule that ended while the proxy used it, and how many connections were cut."""

    key: str
    why: str
    connections: int


@dataclass(frozen=True)
class Report:
    """What one proxy saw since its last report. `lines` are refusals worth a line of their own."""

    traffic: Mapping[str, Traffic]
    refused: Sequence[Refused] = ()
    lines: Sequence[tuple[Refused, int]] = ()
    ended: Sequence[Ended] = ()
    final: bool = False

    @property
    def empty(self) -> bool:
        return not (self.traffic or self.refused or self.ended or self.final)


@transaction.atomic(durable=True)
def note(lease: Lease, report: Report) -> None:
    """Write down what crossed and what did not. Raises `LeaseLost`."""
    run = held_run(lease)
    drafts: list[Draft] = []
    for key, traffic in report.traffic.items():
        grant = EgressGrant.objects.get(run=run, public_id=key)
        if traffic.connections and not grant.connections:
            drafts.append(Draft("egress.opened", run_facts(run) | grant_facts(grant)))
        EgressGrant.objects.filter(pk=grant.pk).update(
            connections=F("connections") + traffic.connections,
            bytes_sent=F("bytes_sent") + traffic.sent,
            bytes_received=F("bytes_received") + traffic.received,
        )
    drafts += [_ended(run, ended) for ended in report.ended]
    for each in report.refused:
        _count(run, each)
    drafts += [
        Draft(
            "egress.refused",
            run_facts(run)
            | {
                "host": each.host,
                "port": each.port,
                "why": each.why,
                "times": total,
                "result": WORDS.get(each.why, each.why),
            },
        )
        for each, total in report.lines
    ]
    if drafts:
        append_events(run, drafts)
    elif report.refused or report.traffic:
        live.changed_on_commit(live.run_topic(run.pk))
    _charge(run, all_of_it=report.final)


def _ended(run: Run, ended: Ended) -> Draft:
    grant = EgressGrant.objects.get(run=run, public_id=ended.key)
    if ended.why == "expired" and grant.state == GrantState.ACTIVE:
        grant.state, grant.ended_at = GrantState.EXPIRED.value, database_now()
        grant.save(update_fields=["state", "ended_at"])
    facts = grant_facts(grant) | {"connections": ended.connections, "result": ended.why}
    return Draft(
        "egress.cut" if ended.why == "revoked" else "egress.expired", run_facts(run) | facts
    )


def _count(run: Run, refused: Refused) -> None:
    now = timezone.now()
    row, made = EgressRefusal.objects.get_or_create(
        run=run,
        host=refused.host,
        port=refused.port,
        defaults={
            "tenant_id": run.tenant_id,
            "why": refused.why,
            "times": refused.times,
            "first_at": now,
            "last_at": now,
        },
    )
    if not made:
        EgressRefusal.objects.filter(pk=row.pk).update(
            times=F("times") + refused.times, why=refused.why, last_at=now
        )


def _charge(run: Run, *, all_of_it: bool) -> None:
    """Charge the traffic that no charge covers yet, whoever counted it."""
    counted = EgressGrant.objects.filter(run=run).aggregate(
        sent=Sum("bytes_sent"), received=Sum("bytes_received")
    )
    charged = Charge.objects.filter(run=run, kind="egress").aggregate(total=Sum("quantity"))
    due = int(counted["sent"] or 0) + int(counted["received"] or 0) - int(charged["total"] or 0)
    if due > 0 and (all_of_it or due >= CHARGED_BYTES):
        Charge.objects.create(
            tenant_id=run.tenant_id,
            run=run,
            kind="egress",
            what="proxy",
            quantity=due,
            unit="bytes",
            micros=cost.unit_micros(settings.UNIT_PRICES, "egress", due),
            currency=lifecycle.contract_of(run).limits.currency,
        )


# --- The sweep -----------------------------------------------------------------------------------


def end_overdue(now: datetime) -> int:
    """Call rules expired whose time is over while no worker used them. Returns how many.

    The contract's own count minutes of work, and are left to the next stretch of it.
    """
    over = EgressGrant.objects.filter(state=GrantState.ACTIVE, expires_at__lte=now).exclude(
        origin=Origin.CONTRACT
    )
    ended = 0
    for grant in over.exclude(run__lease_expires_at__gte=now).select_related("run")[:500]:
        ended += _expire(grant.pk, grant.run_id)
    return ended


@transaction.atomic(durable=True)
def _expire(grant_id: int, run_id: int) -> int:
    run = locked_run(run_id)
    grant = EgressGrant.objects.select_for_update(no_key=True).get(pk=grant_id)
    if grant.state != GrantState.ACTIVE or grant.expires_at is None:
        return 0
    if database_now() < grant.expires_at:
        return 0
    grant.state, grant.ended_at = GrantState.EXPIRED.value, grant.expires_at
    grant.save(update_fields=["state", "ended_at"])
    append_events(
        run, [Draft("egress.expired", run_facts(run) | grant_facts(grant) | {"connections": 0})]
    )
    return 1
