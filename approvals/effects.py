"""What follows from an answer: the effect, or the hold before it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from approvals import bounds, canary, publication
from approvals.counting import seats_of
from approvals.models import Packet
from approvals.states import PacketState
from portal import audit, live, statements
from portal.handoff import Job
from portal.models import User
from runs import grants, lifecycle, resuming
from runs.credentials import grants as credential_grants
from runs.lifecycle import Draft, append_events, run_facts
from runs.models import EgressGrant, Run
from runs.states import CallState, CredentialState, GrantState, ResumeState, RunStatus


def end_packet(
    packet: Packet,
    run: Run,
    state: PacketState,
    words: str,
    person: User,
    now: datetime,
    *,
    self_approved: bool,
) -> None:
    """The packet is decided: `person` gave the last answer, with these words.

    `self_approved`: whether one of the votes that count is the word of whoever asked.
    """
    packet.state, packet.settled_at, packet.held_until = state.value, now, None
    packet.self_approved = self_approved
    if state is PacketState.APPROVED:
        packet.usable_until = now + timedelta(seconds=bounds.usable_seconds(packet))
        packet.filled = seats_of(packet).get("stages", [])
    statements.store(
        packet, "state", "settled_at", "held_until", "self_approved", "usable_until", "filled"
    )
    if packet.canary is not None:
        canary.end(packet, run)
        return
    _carry_out(packet, run, state, words, person)


def begin_hold(packet: Packet, run: Run, until: datetime) -> None:
    """Enough people approved. Nothing happens until then, and it can be undone."""
    packet.held_until = until
    packet.save(update_fields=["held_until"])
    note_hold(packet, run, "held", until=until.isoformat())


def note_hold(
    packet: Packet,
    run: Run,
    word: str,
    *,
    by: User | None = None,
    behalf: User | None = None,
    **facts: Any,
) -> None:
    """A line of evidence about a held packet, in the run's events and the audit log.

    `behalf`: in whose name `by` did it, if not in their own.
    """
    told = {"packet": packet.number, "approval": packet.digest} | facts
    if by is not None:
        told["by"] = by.name
    if behalf is not None:
        told["on_behalf_of"] = behalf.name
        facts["on_behalf_of"] = behalf.pk
    append_events(run, [Draft(f"packet.{word}", run_facts(run) | told)])
    audit.record(
        f"packet.{word}",
        tenant=packet.tenant,
        subject=packet,
        actor=by,
        digest=packet.digest,
        **facts,
    )


def tell(packet: Packet) -> None:
    """Let every page that shows the packet look again."""
    live.changed_on_commit(
        live.queue_topic(packet.tenant_id),
        live.packet_topic(packet.pk),
        live.run_topic(packet.run_id),
    )


def _carry_out(packet: Packet, run: Run, state: PacketState, words: str, person: User) -> None:
    """Hand the answer on: to the waiting run, or to the publisher."""
    if packet.credential is not None:
        # An answer is called the same wherever it is kept.
        credential_grants.settle(
            packet.credential, run, CredentialState(state.value), by=person.name
        )
    if packet.call is not None:
        lifecycle.answer_call(
            packet.call,
            CallState(state.value),
            text=_words_for_agent(state, words, person),
            usable_until=packet.usable_until,
            run=run,
        )
        return
    if packet.egress is not None:
        _settle_rule(packet, packet.egress, run, state, words, person)
        return
    if packet.resumption is not None:
        packet.resumption.usable_until = packet.usable_until
        going_on = state is PacketState.APPROVED
        resuming.settle(
            packet.resumption,
            run,
            ResumeState.APPROVED if going_on else ResumeState.DENIED,
            by=person.name,
            words=words,
        )
        return
    if state is PacketState.APPROVED and packet.candidate is not None:
        made = publication.intend(packet, packet.candidate, run)
        lifecycle.advance(run, RunStatus.PUBLISHING, Job.PUBLISH, made.pk, packet=packet.number)
    elif state is PacketState.CHANGES_REQUESTED:
        lifecycle.request_changes(run, f"{person.name} requests changes:\n\n{words}")
    else:
        lifecycle.end_run(run, RunStatus.DENIED, by=person.name)


def _settle_rule(
    packet: Packet,
    grant: EgressGrant,
    run: Run,
    state: PacketState,
    words: str,
    person: User,
) -> None:
    """Open the rule, which uses the approval up, or let the agent know that it stays shut."""
    said = _words_for_agent(state, words, person)
    approved = state is PacketState.APPROVED
    opened = GrantState.ACTIVE if approved else GrantState.DENIED
    grants.settle(grant, run, grants.Settled(opened, said, person.name))
    if approved:
        packet.used_at = packet.settled_at
        packet.save(update_fields=["used_at"])


def _words_for_agent(state: PacketState, words: str, person: User) -> str:
    if state is PacketState.APPROVED:
        return words
    if state is PacketState.CHANGES_REQUESTED:
        return f"Changes requested by {person.name}: {words}"
    return f"Denied by {person.name}: {words}"
