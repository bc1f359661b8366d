"""Every tool call passes the gate, and no call passes in another way."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from runs import agent
from runs.agent.port import Outcome, ProposedCall, StopRun
from tests.runs.agent_parts import (
    MemorySandbox,
    RecordingHost,
    brief,
    call,
    calls,
    no,
    raw,
    sandbox,
    say,
    yes,
)


def run(asked: Any, host: RecordingHost, box: Any = None) -> Outcome:
    return asyncio.run(agent.start(asked, box or sandbox(), host))


def outputs(outcome: Outcome) -> dict[str, str]:
    """What the model was told for each call, read from the saved state."""
    assert outcome.state is not None
    state = json.loads(outcome.state)
    return {
        item["call_id"]: item["output"]
        for item in state["conversation"] or []
        if item.get("type", "").endswith("_output")
    }


def test_an_allowed_call_is_judged_begun_executed_and_reported() -> None:
    host, box = RecordingHost(), sandbox()
    outcome = run(brief([calls(call("c1", "exec_command", cmd="ls")), say("Done.")]), host, box)
    assert (outcome.status, outcome.output) == ("finished", "Done.")
    assert host.log == [("judge", "c1"), ("begin", "c1"), ("finished", "c1")]
    assert host.judged[0].arguments["cmd"] == "ls"
    assert host.judged[0].arguments["workdir"] == "repo"
    assert box.session.commands == ["cd /workspace/repo || exit\nls"]
    _, ok, output, code = host.done[0]
    assert (ok, code) == (True, 0)
    assert "ran: cd /workspace/repo" in output
    assert outputs(outcome)["c1"] == output


def test_a_denied_call_gives_the_model_the_reason_and_does_nothing() -> None:
    host, box = RecordingHost(decide=lambda call: "deny"), sandbox()
    outcome = run(brief([calls(call("c1", "exec_command", cmd="curl x")), say("Ok.")]), host, box)
    assert outputs(outcome)["c1"] == "deny: exec_command"
    assert host.log == [("judge", "c1")]
    assert box.session.commands == []


def test_a_call_that_needs_a_person_ends_the_stretch_with_what_was_judged() -> None:
    host = RecordingHost()
    asked = brief([calls(call("c1", "notify_team", text="hello")), say("Sent.")])
    outcome = run(asked, host)
    assert outcome.status == "waiting"
    assert [pending.call.call_id for pending in outcome.pending] == ["c1"]
    assert outcome.pending[0].call.arguments == {"text": "hello"}
    assert outcome.pending[0].verdict.rules == ("a-rule",)
    assert host.brokered == []
    assert agent.verify_state(asked, outcome.state or "") == ("c1",)


def test_an_approved_call_runs_once_with_what_was_approved() -> None:
    host = RecordingHost()
    asked = brief([calls(call("c1", "notify_team", text="hello")), say("Sent.")])
    first = run(asked, host)
    host.approve(*(pending.call for pending in first.pending))
    second = asyncio.run(
        agent.resume(asked, sandbox(), host, state=first.state or "", answers={"c1": yes()})
    )
    assert (second.status, second.output) == ("finished", "Sent.")
    assert [made.arguments for made in host.brokered] == [{"text": "hello"}]
    assert outputs(second)["c1"] == "delivered"
    assert host.log == [("judge", "c1"), ("begin", "c1"), ("broker", "c1"), ("finished", "c1")]


def test_the_words_of_a_denial_reach_the_model_exactly() -> None:
    words = "Ann: not today.\n  - \u201csp\xe4ter\u201d  \u202egnp.exe <b>"
    host = RecordingHost()
    asked = brief([calls(call("c1", "notify_team", text="hello")), say("Understood.")])
    first = run(asked, host)
    second = asyncio.run(
        agent.resume(asked, sandbox(), host, state=first.state or "", answers={"c1": no(words)})
    )
    assert second.status == "finished"
    assert outputs(second)["c1"] == words
    assert host.brokered == []


def test_the_answer_to_a_question_is_what_the_tool_returns() -> None:
    host = RecordingHost()
    asked = brief(
        [
            calls(call("c1", "ask_person", question="Which?", choices=["left", "right"])),
            say("Right it is.", expects=[{"call": "c1", "contains": "right"}]),
        ]
    )
    first = run(asked, host)
    assert first.pending[0].call.arguments == {"question": "Which?", "choices": ["left", "right"]}
    host.approve(first.pending[0].call)
    second = asyncio.run(
        agent.resume(asked, sandbox(), host, state=first.state or "", answers={"c1": yes("right")})
    )
    assert second.output == "Right it is."
    assert outputs(second)["c1"] == "right"


def test_a_question_is_put_to_a_person_even_if_policy_would_just_allow_it() -> None:
    host = RecordingHost(decide=lambda call: "allow")
    asked = brief([calls(call("c1", "ask_person", question="?", choices=["a", "b"])), say("Ok.")])
    assert run(asked, host).status == "waiting"


# -- siblings ---------------------------------------------------------------------------------


def test_siblings_are_judged_each_on_its_own() -> None:
    host, box = RecordingHost(), sandbox()
    asked = brief(
        [
            calls(
                call("c1", "notify_team", text="hello"),
                call("c2", "exec_command", cmd="make"),
                call("c3", "notify_team", text="again"),
                call("c4", "exec_command", cmd="forbidden"),
            ),
            say("Done."),
        ]
    )

    def decide(proposed: ProposedCall) -> str:
        if proposed.arguments.get("cmd") == "forbidden":
            return "deny"
        return "ask" if proposed.kind == "http" else "allow"

    host.decide = decide
    first = run(asked, host, box)
    assert first.status == "waiting"
    assert [pending.call.call_id for pending in first.pending] == ["c1", "c3"]
    assert host.ran() == ["c2"]
    host.approve(first.pending[0].call)
    second = asyncio.run(
        agent.resume(
            asked,
            box,
            host,
            state=first.state or "",
            answers={"c1": yes(), "c3": no("Once is enough.")},
        )
    )
    assert second.status == "finished"
    assert host.ran() == ["c2", "c1"]
    told = outputs(second)
    assert told["c3"] == "Once is enough."
    assert told["c4"] == "deny: exec_command"
    assert "ran:" in told["c2"]
    assert len(box.session.commands) == 1


def test_calls_of_one_turn_happen_one_after_another_in_the_order_written() -> None:
    box = sandbox()
    patch = "*** Begin Patch\n*** Add File: repo/a.txt\n+a\n*** End Patch"
    seen: list[bool] = []

    async def execute(command: str) -> tuple[int, bytes]:
        seen.append("/workspace/repo/a.txt" in box.session.files)
        await asyncio.sleep(0)
        return 0, b""

    box.session.execute = execute
    host = RecordingHost()
    asked = brief(
        [
            calls(
                call("c1", "exec_command", cmd="before"),
                call("c2", "apply_patch", patch=patch),
                call("c3", "exec_command", cmd="after"),
            ),
            say("Done."),
        ]
    )
    assert run(asked, host, box).status == "finished"
    assert host.ran() == ["c1", "c2", "c3"]
    assert seen == [False, True]
    steps = [entry for entry in host.log if entry[0] != "judge"]
    assert steps == [(step, c) for c in ("c1", "c2", "c3") for step in ("begin", "finished")]


# -- attempts to get around -------------------------------------------------------------------


def test_stdin_is_judged_with_the_command_it_goes_to() -> None:
    host, box = RecordingHost(), sandbox()

    def decide(proposed: ProposedCall) -> str:
        if proposed.kind == "stdin" and "rm" in proposed.arguments["chars"]:
            return "deny"
        return "allow"

    host.decide = decide
    asked = brief(
        [
            calls(call("c1", "exec_command", cmd="bash", tty=True)),
            calls(call("c2", "write_stdin", session_id={"$session_of": "c1"}, chars="rm -rf /\n")),
            calls(call("c3", "write_stdin", session_id={"$session_of": "c1"}, chars="ls\n")),
            say("Done."),
        ]
    )
    outcome = run(asked, host, box)
    assert outcome.status == "finished"
    stdin = [made for made in host.judged if made.kind == "stdin"]
    assert [made.arguments["command"] for made in stdin] == ["bash", "bash"]
    assert outputs(outcome)["c2"] == "deny: write_stdin"
    assert [chars for _, chars in box.session.typed] == ["ls\n"]


def test_stdin_that_needs_a_person_is_refused_since_the_process_cannot_wait() -> None:
    host, box = RecordingHost(), sandbox()
    host.decide = lambda proposed: "ask" if proposed.kind == "stdin" else "allow"
    asked = brief(
        [
            calls(call("c1", "exec_command", cmd="bash", tty=True)),
            calls(call("c2", "write_stdin", session_id={"$session_of": "c1"}, chars="x\n")),
            say("Done."),
        ]
    )
    outcome = run(asked, host, box)
    assert outcome.status == "finished"
    assert "would not survive" in outputs(outcome)["c2"]
    assert box.session.typed == []


def test_stdin_of_a_process_that_is_not_there_is_refused() -> None:
    host, box = RecordingHost(), sandbox()
    box.session.open.add(4711)
    asked = brief([calls(call("c1", "write_stdin", session_id=4711, chars="x")), say("Ok.")])
    outcome = run(asked, host, box)
    assert "no running process" in outputs(outcome)["c1"]
    assert host.log == []
    assert box.session.typed == []


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("exec_command", "{not json"),
        ("exec_command", ""),
        ("exec_command", "[]"),
        ("exec_command", '"ls"'),
        ("exec_command", '{"cmd": "ls", "cmd": "rm -rf /"}'),
        ("exec_command", '{"cmd": "ls", "confirm": true}'),
        ("exec_command", '{"cmd": "ls", "approved": true}'),
        ("exec_command", '{"cmd": ["ls"]}'),
        ("exec_command", '{"cmd": ""}'),
        ("exec_command", '{"cmd": "ls", "yield_time_ms": NaN}'),
        ("exec_command", '{"cmd": "ls", "yield_time_ms": -1}'),
        ("exec_command", '{"cmd": "ls", "workdir": "../../etc"}'),
        ("exec_command", '{"cmd": "ls", "workdir": "/etc"}'),
        ("exec_command", "[" * 5000),
        ("exec_command", '{"a":' * 5000 + "1" + "}" * 5000),
        ("exec_command", '{"cmd": "' + "x" * 1_000_001 + '"}'),
        ("exec_command", '{"cmd": ' + "1" * 5000 + "}"),
        ("exec_command", '{"cmd": "a\\u0000b"}'),
        ("exec_command", '{"cmd": "a\\ud800b"}'),
        ("notify_team", '{"text": "hi", "confirm": true}'),
        ("notify_team", '{"text": 1}'),
        ("notify_team", "{}"),
        ("notify_team", "null"),
        ("ask_person", '{"question": "?", "choices": ["a"]}'),
        ("ask_person", '{"question": "?", "choices": ["a", "a "]}'),
        ("ask_person", '{"question": "?", "choices": ["a", "b"], "answer": "a"}'),
        ("write_stdin", '{"session_id": "1", "chars": "x"}'),
        ("view_image", '{"path": "../../etc/passwd"}'),
        ("apply_patch", "not a patch"),
        ("apply_patch", "*** Begin Patch\n*** End Patch"),
        ("apply_patch", "*** Begin Patch\n*** Add File: ../x\n+a\n*** End Patch"),
        ("apply_patch", "*** Begin Patch\n*** Delete File: /etc/passwd\n*** End Patch"),
        ("apply_patch", "*** Begin Patch\n*** Add File: /workspace\n+a\n*** End Patch"),
        (
            "apply_patch",
            "*** Begin Patch\n*** Update File: repo/a\n*** Move to: ../../b\n@@\n-a\n+b\n"
            "*** End Patch",
        ),
    ],
)
def test_arguments_that_cannot_be_read_with_certainty_do_nothing(tool: str, text: str) -> None:
    host, box = RecordingHost(), sandbox()
    outcome = run(brief([calls(raw("c1", tool, text)), say("Ok.")]), host, box)
    assert outcome.status == "finished"
    assert host.log == []
    assert (box.session.commands, box.session.files, host.brokered) == ([], {}, [])
    assert outputs(outcome)["c1"]


def test_a_tool_that_is_not_declared_does_not_exist() -> None:
    host, box = RecordingHost(), sandbox()
    asked = brief(
        [calls(call("c1", "exec_command", cmd="ls"), call("c2", "transfer", x=1)), say("Ok.")],
        tools=(),
    )
    outcome = run(asked, host, box)
    assert outcome.status == "finished"
    assert outputs(outcome)["c1"] == "There is no tool 'exec_command'. Nothing was done."
    assert host.log == []
    assert box.session.commands == []


def test_a_patch_is_judged_with_all_its_files() -> None:
    host, box = RecordingHost(), sandbox()
    box.session.files = {"/workspace/repo/a.py": b"a\n", "/workspace/repo/old.py": b"x\n"}
    patch = "\n".join(
        [
            "*** Begin Patch",
            "*** Update File: repo/a.py",
            "*** Move to: repo/lib/../b.py",
            "@@",
            "-a",
            "+b",
            "*** Delete File: /workspace/repo/old.py",
            "*** Add File: output/new.py",
            "+n",
            "*** End Patch",
        ]
    )
    asked = brief([calls(call("c1", "apply_patch", patch=patch)), say("Done.")])
    assert run(asked, host, box).status == "finished"
    assert host.judged[0].arguments["files"] == [
        {"action": "update", "path": "repo/a.py", "move_to": "repo/b.py"},
        {"action": "delete", "path": "repo/old.py", "move_to": None},
        {"action": "add", "path": "output/new.py", "move_to": None},
    ]
    assert box.session.files == {
        "/workspace/repo/b.py": b"b\n",
        "/workspace/output/new.py": b"n\n",
    }


def test_a_patch_that_fails_says_how_far_it_came() -> None:
    host, box = RecordingHost(), sandbox()
    patch = "*** Begin Patch\n*** Add File: repo/a\n+a\n*** Delete File: repo/none\n*** End Patch"
    outcome = run(brief([calls(call("c1", "apply_patch", patch=patch)), say("Ok.")]), host, box)
    assert "1 of 2 operations were carried out." in outputs(outcome)["c1"]
    assert host.done[0][1] is False


def test_a_recorded_result_is_given_instead_of_executing_again() -> None:
    host, box = RecordingHost(), sandbox()
    host.used["c1"] = "what it said the first time"
    outcome = run(brief([calls(call("c1", "exec_command", cmd="ls")), say("Ok.")]), host, box)
    assert outputs(outcome)["c1"] == "what it said the first time"
    assert box.session.commands == []


# -- when something fails ---------------------------------------------------------------------


@pytest.mark.parametrize("method", ["judge", "begin", "finished", "broker", "charge", "event"])
def test_a_failing_host_ends_the_run_closed(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host, box = RecordingHost(decide=lambda call: "allow"), sandbox()

    async def fail(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("a secret detail")

    monkeypatch.setattr(host, method, fail)
    asked = brief(
        [
            calls(call("c1", "notify_team", text="a"), call("c2", "exec_command", cmd="ls")),
            say("Never said."),
        ]
    )
    outcome = run(asked, host, box)
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert outcome.error.boundary == "control"
    assert outcome.error.code == f"host_{method}_failed"
    assert "secret" not in outcome.error.text
    assert box.session.commands == []


@pytest.mark.parametrize("method", ["judge", "begin", "finished", "broker", "charge", "event"])
def test_any_method_of_the_host_may_stop_the_run(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, box = RecordingHost(decide=lambda call: "allow"), sandbox()

    async def stop(*args: Any, **kwargs: Any) -> Any:
        raise StopRun("lease_lost")

    monkeypatch.setattr(host, method, stop)
    asked = brief(
        [
            calls(call("c1", "notify_team", text="a"), call("c2", "exec_command", cmd="ls")),
            say("Never said."),
        ]
    )
    outcome = run(asked, host, box)
    assert (outcome.status, outcome.stop) == ("stopped", "lease_lost")
    assert box.session.commands == []


def test_a_lost_sandbox_ends_the_run_as_execution() -> None:
    box = sandbox()

    async def execute(command: str) -> tuple[int, bytes]:
        box.stands = False
        raise OSError("gone")

    box.session.execute = execute
    host = RecordingHost()
    asked = brief(
        [calls(call("c1", "exec_command", cmd="a"), call("c2", "exec_command", cmd="b")), say("x")]
    )
    outcome = run(asked, host, box)
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert (outcome.error.boundary, outcome.error.code) == ("execution", "sandbox_lost")
    assert outcome.state is None
    assert host.ran() == ["c1"]
    assert host.done[0][1] is False


def test_a_retry_is_not_called_safe_after_an_effect_outside() -> None:
    box = sandbox()

    async def execute(command: str) -> tuple[int, bytes]:
        box.stands = False
        raise OSError("gone")

    box.session.execute = execute
    host = RecordingHost(decide=lambda call: "allow")
    steps = [call("c1", "exec_command", cmd="a"), say("x")]
    for outward in (False, True):
        box.stands = True
        first = [call("c0", "notify_team", text="x")] if outward else []
        asked = brief([calls(*first, steps[0]), steps[1]])
        outcome = run(asked, RecordingHost(decide=host.decide), box)
        assert outcome.error is not None
        assert outcome.error.code == "sandbox_lost"
        assert outcome.error.retry_safe is not outward


def test_a_sandbox_that_stands_tells_the_model_what_failed() -> None:
    async def execute(command: str) -> tuple[int, bytes]:
        raise OSError("no space")

    host = RecordingHost()
    asked = brief([calls(call("c1", "exec_command", cmd="a")), say("I see.")])
    outcome = run(asked, host, MemorySandbox(execute))
    assert outcome.status == "finished"
    assert "failed in the sandbox" in outputs(outcome)["c1"]
