"""A run stops when it is asked to, cleanly, and where possible with a state to go on from."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from runs import agent
from runs.agent.gate import CUT_SHORT, NOT_EXECUTED
from runs.agent.port import ModelEndpoint, Outcome, ProposedCall, StopReason
from tests.runs.agent_parts import RecordingHost, brief, call, calls, sandbox, say, yes
from tests.runs.model_server import Reply, model_server


@pytest.fixture(autouse=True)
def _watch_often(monkeypatch: pytest.MonkeyPatch) -> None:
    # The module is loaded with the first agent; naming it loads it.
    monkeypatch.setattr("runs.agent.stretch.WATCH_EVERY_S", 0.02)


def run(asked: Any, host: RecordingHost, box: Any = None) -> Outcome:
    return asyncio.run(agent.start(asked, box or sandbox(), host))


def told(outcome: Outcome) -> dict[str, str]:
    conversation = json.loads(outcome.state or "")["conversation"]
    return {i["call_id"]: i["output"] for i in conversation if i.get("type", "").endswith("output")}


@pytest.mark.parametrize("reason", ["cancelled", "timed_out", "budget", "lease_lost"])
def test_a_stop_before_the_first_turn_does_nothing_at_all(reason: StopReason) -> None:
    host, box = RecordingHost(stop=reason), sandbox()
    outcome = run(brief([calls(call("c1", "exec_command", cmd="ls")), say("x")]), host, box)
    assert (outcome.status, outcome.stop) == ("stopped", reason)
    assert (host.log, host.charges, box.session.commands) == ([], [], [])


def test_a_long_command_is_cut_short_and_its_siblings_do_not_start() -> None:
    host = RecordingHost()
    ended: list[str] = []

    async def forever(command: str) -> tuple[int, bytes]:
        host.stop = "cancelled"
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(command)
        raise AssertionError

    box = sandbox(forever)
    asked = brief(
        [
            calls(
                call("c1", "exec_command", cmd="forever"),
                call("c2", "exec_command", cmd="next"),
                call("c3", "notify_team", text="x"),
            ),
            say("Gone on."),
        ]
    )
    outcome = run(asked, host, box)
    assert (outcome.status, outcome.stop) == ("stopped", "cancelled")
    assert len(ended) == 1
    assert host.ran() == ["c1"]
    assert host.done[0][1:3] == (False, CUT_SHORT)
    assert told(outcome) == {"c1": CUT_SHORT, "c2": NOT_EXECUTED, "c3": NOT_EXECUTED}
    host.stop = None
    again = asyncio.run(agent.resume(asked, sandbox(), host, state=outcome.state or "", answers={}))
    assert (again.status, again.output) == ("finished", "Gone on.")


def test_a_request_outside_is_not_cut_short_by_a_stop() -> None:
    async def slowly(proposed: ProposedCall) -> str:
        host.stop = "cancelled"
        for _ in range(20):
            await asyncio.sleep(0.01)
        return "it took effect"

    host = RecordingHost(decide=lambda call: "allow", broker_answer=slowly)
    asked = brief([calls(call("c1", "notify_team", text="x")), say("Never.")])
    outcome = run(asked, host)
    assert (outcome.status, outcome.stop) == ("stopped", "cancelled")
    assert [(ok, output) for _, ok, output, _ in host.done] == [(True, "it took effect")]
    assert told(outcome) == {"c1": "it took effect"}


def test_a_long_answer_of_the_model_is_interrupted() -> None:
    host = RecordingHost()
    with model_server(Reply(then="silence")) as server:
        asked = brief(endpoint=ModelEndpoint(server.base_url, "k", timeout_s=60.0))

        async def stop_when_silent() -> Outcome:
            working = asyncio.create_task(agent.start(asked, sandbox(), host))
            await asyncio.to_thread(server.silent.wait, 30)
            host.stop = "timed_out"
            return await working

        outcome = asyncio.run(stop_when_silent())
    assert (outcome.status, outcome.stop) == ("stopped", "timed_out")
    assert host.charges == []
    assert outcome.state is not None


def test_a_wait_for_the_rate_limit_is_interrupted() -> None:
    host = RecordingHost()
    limited = Reply(status=429, headers={"retry-after": "25"})
    with model_server(limited) as server:
        asked = brief(endpoint=ModelEndpoint(server.base_url, "k"))

        async def stop_when_told(*args: Any) -> None:
            host.stop = "cancelled"

        host.event = stop_when_told  # type: ignore[assignment, method-assign]
        outcome = run(asked, host)
    assert (outcome.status, outcome.stop) == ("stopped", "cancelled")


def test_a_host_that_fails_while_a_rate_limit_is_waited_for_ends_the_run() -> None:
    host = RecordingHost()
    with model_server(Reply(status=429, headers={"retry-after": "0"})) as server:
        asked = brief(endpoint=ModelEndpoint(server.base_url, "k"))

        async def fail(*args: Any) -> None:
            raise ValueError

        host.event = fail  # type: ignore[assignment, method-assign]
        outcome = run(asked, host)
    assert outcome.error is not None
    assert outcome.error.code == "host_event_failed"


def test_a_spent_budget_stops_before_the_calls_of_the_answer_that_spent_it() -> None:
    host, box = RecordingHost(budget=150), sandbox()
    asked = brief(
        [
            calls(call("c1", "exec_command", cmd="one")),
            calls(call("c2", "exec_command", cmd="two")),
            say("Done."),
        ]
    )
    outcome = run(asked, host, box)
    assert (outcome.status, outcome.stop) == ("stopped", "budget")
    assert host.ran() == ["c1"]
    assert len(host.charges) == 2
    host.budget = None
    again = asyncio.run(agent.resume(asked, box, host, state=outcome.state or "", answers={}))
    assert (again.status, again.output) == ("finished", "Done.")
    assert told(again)["c2"] == NOT_EXECUTED
    assert len(host.charges) == 3


def test_the_turns_of_all_stretches_count_together() -> None:
    host = RecordingHost()
    asked = brief(
        [
            calls(call("c1", "exec_command", cmd="one")),
            calls(call("c2", "notify_team", text="x")),
            calls(call("c3", "exec_command", cmd="three")),
            say("Done."),
        ],
        max_turns=3,
    )
    first = run(asked, host)
    assert first.status == "waiting"
    host.approve(first.pending[0].call)
    second = asyncio.run(
        agent.resume(asked, sandbox(), host, state=first.state or "", answers={"c2": yes()})
    )
    assert (second.status, second.stop) == ("stopped", "budget")
    assert second.error is not None
    assert second.error.code == "turns_spent"
    assert host.ran() == ["c1", "c2", "c3"]
    more = brief(transcript=asked.transcript, max_turns=4)
    third = asyncio.run(agent.resume(more, sandbox(), host, state=second.state or "", answers={}))
    assert third.status == "finished"


def test_a_stop_beside_a_waiting_call_keeps_the_waiting_state() -> None:
    host, box = RecordingHost(), sandbox()

    async def execute(command: str) -> tuple[int, bytes]:
        host.stop = "timed_out"
        return 0, b"done"

    box.session.execute = execute
    asked = brief(
        [
            calls(call("c1", "notify_team", text="x"), call("c2", "exec_command", cmd="ls")),
            say("Done."),
        ]
    )
    outcome = run(asked, host, box)
    assert (outcome.status, outcome.stop) == ("stopped", "timed_out")
    assert agent.verify_state(asked, outcome.state or "") == ("c1",)


def test_cancelling_the_task_leaves_nothing_running() -> None:
    host = RecordingHost()
    begun, ended = asyncio.Event(), []

    async def forever(command: str) -> tuple[int, bytes]:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(command)
        raise AssertionError

    asked = brief([calls(call("c1", "exec_command", cmd="forever")), say("x")])

    async def cancel() -> int:
        working = asyncio.create_task(agent.start(asked, sandbox(forever), host))
        await begun.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        for _ in range(1000):
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if not others:
                break
            await asyncio.sleep(0.01)
        return len(others)

    assert asyncio.run(cancel()) == 0
    assert len(ended) == 1
