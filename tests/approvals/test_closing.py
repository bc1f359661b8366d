"""How a packet ends that nobody decided: in which word, and what becomes of what it asked about."""

from __future__ import annotations

import pytest

from approvals import closing
from approvals.closing import close_packets_of, expire_packet
from approvals.models import Packet
from approvals.states import PacketKind, PacketState
from portal.models import AuditEntry
from runs import lifecycle
from runs.models import Event, Run, ToolCall
from runs.states import CallState, RunStatus
from tests.approvals.test_canaries import opened
from tests.walk import Walk, call_of, parked_call


def told(packet: Packet, word: str) -> tuple[list[object], list[object]]:
    """The packets that lines of evidence of that word name, and the lines of the audit log."""
    events = Event.objects.filter(run=packet.run, kind=f"packet.{word}")
    log = AuditEntry.objects.filter(action=f"packet.{word}", subject=f"packet:{packet.pk}")
    return (
        [each.facts["packet"] for each in events],
        [(each.actor, each.facts) for each in log],
    )


def fail(run: Run) -> None:
    """A parked run fails for a reason of its own."""
    lifecycle.fail_step(
        *(run.pk, RunStatus.WAITING),
        boundary="recovery",
        code="runs.no_checkpoint",
        operation="resume",
        text="It is lost.",
    )


def test_a_call_that_nobody_decided_in_time(walk: Walk) -> None:
    packet = walk.run_out(parked_call(walk))

    assert expire_packet(packet.pk)

    packet = walk.fresh(packet)
    assert (packet.state, packet.settled_at is not None) == (PacketState.EXPIRED, True)
    assert call_of(packet).state == CallState.EXPIRED
    assert call_of(packet).usable_until is None
    assert walk.status(packet.run) == RunStatus.QUEUED
    assert told(packet, "expired") == ([packet.number], [(None, {"digest": packet.digest})])
    assert not expire_packet(packet.pk)
    assert told(packet, "expired") == ([packet.number], [(None, {"digest": packet.digest})])


def test_what_was_decided_in_time_does_not_expire_afterwards(walk: Walk) -> None:
    packet = walk.run_out(walk.decide(parked_call(walk)))

    assert not expire_packet(packet.pk)

    assert walk.fresh(packet).state == PacketState.APPROVED
    assert call_of(packet).state == CallState.APPROVED
    assert told(packet, "expired") == ([], [])


def test_what_is_held_has_been_decided_and_does_not_expire(walk: Walk) -> None:
    walk.hold_policy()
    packet = walk.decide(parked_call(walk))
    assert packet.held_until is not None
    walk.run_out(packet)

    assert not expire_packet(packet.pk)

    packet = walk.fresh(packet)
    assert (packet.state, packet.held_until is not None) == (PacketState.OPEN, True)
    assert call_of(packet).state == CallState.WAITING


def test_a_publication_that_nobody_decided_ends_its_run(walk: Walk) -> None:
    packet = walk.run_out(walk.to_review())

    assert expire_packet(packet.pk)

    assert walk.fresh(packet).state == PacketState.EXPIRED
    assert walk.status(packet.run) == RunStatus.EXPIRED
    assert len(walk.branches()) == 1


def test_time_that_ends_after_the_run_changes_neither_run_nor_call(walk: Walk) -> None:
    """The run was stopped, and no sweep had come by yet."""
    packet = walk.run_out(parked_call(walk))
    lifecycle.ask_cancel(packet.run, member=walk.cast.olu)

    assert expire_packet(packet.pk)

    assert walk.fresh(packet).state == PacketState.EXPIRED
    assert call_of(packet).state == CallState.CANCELLED
    assert walk.status(packet.run) == RunStatus.CANCELLED


@pytest.mark.parametrize("live", [True, False])
def test_a_call_that_needs_no_answer_gets_none(walk: Walk, live: bool) -> None:
    """However its row came to say so: the packet ends, and no sweep stumbles over it for ever."""
    packet = walk.run_out(parked_call(walk))
    if not live:
        lifecycle.ask_cancel(packet.run, member=walk.cast.olu)
    state = CallState.CANCELLED if live else CallState.WAITING
    ToolCall.objects.filter(packet=packet).update(state=state)

    assert expire_packet(packet.pk)

    assert walk.fresh(packet).state == PacketState.EXPIRED
    assert call_of(packet).state == state
    assert walk.status(packet.run) == (RunStatus.WAITING if live else RunStatus.CANCELLED)


def test_a_run_is_ended_by_its_publication_alone_and_only_in_review(walk: Walk) -> None:
    stopped = walk.run_out(walk.to_review(name="stopped"))
    lifecycle.ask_cancel(stopped.run, member=walk.cast.olu)
    assert expire_packet(stopped.pk)
    assert walk.status(stopped.run) == RunStatus.CANCELLED

    other = walk.run_out(walk.to_review(name="other"))
    Packet.objects.filter(pk=other.pk).update(kind=PacketKind.RESUME)
    assert expire_packet(other.pk)
    assert walk.status(other.run) == RunStatus.IN_REVIEW


@pytest.mark.parametrize("word", ["cancelled", "withdrawn"])
def test_the_packets_of_an_ended_run_are_closed_in_its_word(walk: Walk, word: str) -> None:
    packet, other = parked_call(walk), parked_call(walk)
    assert close_packets_of(packet.run_id) == 0
    assert walk.fresh(packet).state == PacketState.OPEN
    if word == "cancelled":
        lifecycle.ask_cancel(packet.run, member=walk.cast.olu)
    else:
        fail(packet.run)

    assert close_packets_of(packet.run_id) == 1

    packet = walk.fresh(packet)
    assert (packet.state, packet.settled_at is not None) == (word, True)
    assert told(packet, word) == ([packet.number], [(None, {"digest": packet.digest})])
    assert walk.fresh(other).state == PacketState.OPEN
    assert close_packets_of(packet.run_id) == 0
    assert close_packets_of(other.run_id) == 0


def test_a_hold_ends_with_its_run(walk: Walk) -> None:
    """Nothing is left that a later sweep could release."""
    walk.hold_policy()
    packet = walk.decide(parked_call(walk))
    lifecycle.ask_cancel(packet.run, member=walk.cast.olu)

    assert close_packets_of(packet.run_id) == 1

    packet = walk.fresh(packet)
    assert (packet.state, packet.held_until) == (PacketState.CANCELLED, None)


@pytest.mark.parametrize("ended", [False, True])
def test_all_of_it_is_there_or_nothing(
    walk: Walk, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """What fails after the packet was closed leaves it open, for the next sweep."""
    packet = walk.run_out(parked_call(walk))
    if ended:
        lifecycle.ask_cancel(packet.run, member=walk.cast.olu)

    def fails(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(closing, "append_events", fails)
    with pytest.raises(ZeroDivisionError):
        close_packets_of(packet.run_id) if ended else expire_packet(packet.pk)

    assert walk.fresh(packet).state == PacketState.OPEN
    assert not AuditEntry.objects.filter(subject=f"packet:{packet.pk}").exclude(
        action="packet.opened"
    )


def test_whoever_looks_at_it_looks_again(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    packet = walk.run_out(parked_call(walk))
    seen: list[Packet] = []
    monkeypatch.setattr(closing, "tell", seen.append)
    expire_packet(packet.pk)
    assert seen == [packet]


def test_a_test_packet_ends_once_as_well(walk: Walk) -> None:
    packet = walk.run_out(opened(walk))
    assert expire_packet(packet.pk)
    assert not expire_packet(packet.pk)
