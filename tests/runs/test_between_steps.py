"""What somebody changes or settles in the moment between two steps of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from approvals.policies import decide_policy, propose_policy
from approvals.policy_text import DEFAULT_POLICY
from portal.models import AuditEntry
from portal.roles import Role
from runs import lifecycle
from runs.models import Event, Run, ToolCall
from runs.states import CallState, RunStatus
from tests.cast import REPAIR, call, contract_text, say, set_value
from tests.visits import Visitor
from tests.walk import Walk, call_of

AT_ONCE = "timeout_seconds = 1"

PING_IS_ALLOWED = """
@id("ping")
@why("It changes nothing there.")
permit (principal, action == Action::"do", resource)
when { context.tool == "ping" };
"""


@pytest.fixture
def just(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let something happen immediately before or after a step of `runs.lifecycle`."""

    def arrange(
        step: str,
        *,
        before: Callable[[], object] = lambda: None,
        after: Callable[[], object] = lambda: None,
    ) -> None:
        real = getattr(lifecycle, step)

        def disturbed(*given: Any, **named: Any) -> Any:
            before()
            result = real(*given, **named)
            after()
            return result

        monkeypatch.setattr(lifecycle, step, disturbed)

    return arrange


def test_a_policy_of_the_last_moment_is_the_one_that_counts(
    walk: Walk, just: Callable[..., None]
) -> None:
    packet = walk.to_call()
    walk.decide(packet)
    just("begin_call", before=lambda: walk.new_policy(deny_http=True))

    walk.drain()

    assert walk.tracker.requests == []
    assert "now denies this" in walk.heard(packet.run)
    assert call_of(packet).acted_at is None


def test_an_address_that_changes_after_the_approval_was_used_gets_nothing(
    walk: Walk, just: Callable[..., None]
) -> None:
    packet = walk.to_call()
    walk.decide(packet)
    elsewhere = f"{walk.tracker.url}/elsewhere"
    just("begin_call", after=lambda: set_value(walk.cast, "tracker", elsewhere))

    walk.drain()

    assert walk.tracker.requests == []
    assert "Not sent: The target is not the approved one any more" in walk.heard(packet.run)


def test_an_unknown_outcome_is_settled_while_the_worker_still_tidies_up(
    walk: Walk, just: Callable[..., None]
) -> None:
    """The run would wait for ever for an answer that was given already."""
    walk.tracker.manner = "drop"
    packet = walk.to_call()
    walk.decide(packet)
    just("park_unknown", before=lambda: settle(walk, call_of(packet)))

    walk.drain()

    assert walk.status(packet.run) == RunStatus.IN_REVIEW
    assert len(walk.tracker.requests) == 1


def test_a_call_nobody_was_asked_about_does_not_hold_up_a_settled_one(walk: Walk) -> None:
    """One call of a turn waits for a person and was not parked, because a sibling broke off."""
    admin = walk.cast.member("Second Admin", [Role.ADMIN])
    version = propose_policy(DEFAULT_POLICY + PING_IS_ALLOWED, member=walk.cast.max)
    decide_policy(version, approve=True, seen=version.digest, member=admin)
    walk.tracker.manner = "drop"
    turn = [
        call("file", "create_issue", title="The adder subtracts"),
        call("ping", "ping", title="Are you there?"),
    ]
    run = walk.run([turn, [say("Done.")]], text=contract_with_ping())
    walk.drain()
    file, ping = ToolCall.objects.order_by("call_id")
    assert (file.state, file.checkpoint) == (CallState.WAITING, None)
    assert ping.state == CallState.UNKNOWN

    settle(walk, ping)
    walk.drain()

    assert walk.open_packet(run).call == file
    assert len(walk.tracker.requests) == 1


def test_what_did_not_happen_can_be_proposed_again(walk: Walk) -> None:
    """It is a call of its own, with a question of its own; one that did happen is not done twice.

    Both are proposed once more before the run has another checkpoint.
    """
    again = [call("again", "create_issue", title="The adder subtracts")]
    for happened, requests in ((True, 1), (False, 2)):
        walk.tracker.requests.clear()
        walk.tracker.manner = "drop"
        first = [call("file", "create_issue", title="The adder subtracts")]
        packet = walk.to_call([first, again, *REPAIR[2:]], name=f"happened-{happened}".lower())
        walk.decide(packet)
        walk.drain()
        walk.tracker.manner = "answer"
        unknown = call_of(packet)
        lifecycle.settle_unknown_call(
            unknown, happened=happened, note="I looked.", member=walk.cast.ada
        )
        walk.drain()
        asked = walk.open_packet(packet.run)
        assert (asked.kind == "call") is not happened
        if not happened:
            assert asked.call is not None
            assert asked.call.call_id == "again"
            walk.decide(asked)
            walk.drain()
        assert len(walk.tracker.requests) == requests
        assert walk.status(packet.run) == RunStatus.IN_REVIEW


def test_a_run_out_of_time_does_not_wait_for_an_unknown_outcome(walk: Walk) -> None:
    """It could do nothing with the answer. The call itself is settled as any other."""
    walk.tracker.manner = "hang"
    text = contract_text(http=True, verification=False, limits="wall_minutes = 1")
    packet = walk.to_call(text=text.replace('base = "tracker"', f'base = "tracker"\n{AT_ONCE}'))
    run = packet.run
    Run.objects.filter(pk=run.pk).update(seconds_used=60)
    walk.decide(packet)

    walk.drain()

    assert walk.status(run) == RunStatus.FAILED
    assert (run.failure_code, run.retry_safe) == ("runs.timed_out", False)
    assert "nobody knows what became of it" in run.failure_text
    unknown = call_of(packet)
    assert unknown.state == CallState.UNKNOWN
    settle(walk, unknown)
    walk.sweep()
    assert (walk.status(run), call_of(packet).state) == (RunStatus.FAILED, CallState.DONE)
    assert len(walk.tracker.requests) == 1


@pytest.mark.parametrize("found", ["contradicting", "unreachable"])
def test_somebody_who_cannot_tell_says_so_and_it_stays_unknown(walk: Walk, found: str) -> None:
    walk.tracker.manner = "drop"
    packet = walk.to_call()
    walk.decide(packet)
    walk.drain()
    unknown = call_of(packet)
    place = f"/t/acme/unknown/calls/{unknown.pk}/settle/"
    note = "Two issues have this title."

    assert Visitor(walk.cast.vic).post(place, happened=found, note=note).status_code == 403
    assert Visitor(walk.cast.eve).post(place, happened=found, note=note).status_code == 404
    assert Visitor(walk.cast.ada).post(place, happened=found, note=" ").status_code == 400
    assert "call.unclear" not in walk.kinds(packet.run)
    assert Visitor(walk.cast.ada).post(place, happened=found, note=note).status_code == 302
    walk.sweep()

    assert walk.status(packet.run) == RunStatus.WAITING
    assert call_of(packet).state == CallState.UNKNOWN
    (told,) = Event.objects.filter(run=packet.run, kind="call.unclear")
    assert (told.facts["result"], told.facts["by"]) == (found, "Ada Obi")
    (line,) = AuditEntry.objects.filter(action="call.unclear")
    assert (line.facts["found"], line.facts["note"]) == (found, note)
    assert len(walk.tracker.requests) == 1
    # Whoever looks again may know, and then nobody can be unsure any more.
    settle(walk, unknown)
    assert Visitor(walk.cast.ada).post(place, happened=found, note=note).status_code == 409


def contract_with_ping() -> str:
    """The usual contract with one more tool, like the first one."""
    text = contract_text(http=True, verification=False)
    first = text[text.index("[[tools.http]]") : text.index("[output]")]
    return text.replace("[output]", first.replace("create_issue", "ping") + "[output]")


def settle(walk: Walk, unknown: ToolCall) -> None:
    lifecycle.settle_unknown_call(unknown, happened=True, note="I looked.", member=walk.cast.ada)
