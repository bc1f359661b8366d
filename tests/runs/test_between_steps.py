"""What somebody changes or settles in the moment between two steps of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from approvals.policies import decide_policy, propose_policy
from approvals.policy_text import DEFAULT_POLICY
from portal.roles import Role
from runs import lifecycle
from runs.models import ToolCall
from runs.states import CallState, RunStatus
from tests.cast import call, contract_text, say, set_value
from tests.walk import Walk, call_of

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


def contract_with_ping() -> str:
    """The usual contract with one more tool, like the first one."""
    text = contract_text(http=True, verification=False)
    first = text[text.index("[[tools.http]]") : text.index("[output]")]
    return text.replace("[output]", first.replace("create_issue", "ping") + "[output]")


def settle(walk: Walk, unknown: ToolCall) -> None:
    lifecycle.settle_unknown_call(unknown, happened=True, note="I looked.", member=walk.cast.ada)
