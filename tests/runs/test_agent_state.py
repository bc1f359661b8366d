"""A run rests in one process and goes on in another, or is refused by name."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runs import agent
from runs.agent.port import (
    AgentBrief,
    Answer,
    BriefRefused,
    Outcome,
    RecoveryError,
    ToolDeclaration,
)
from tests.runs.agent_parts import (
    ASK,
    NOTIFY,
    PATCH,
    SHELL,
    RecordingHost,
    brief,
    call,
    calls,
    no,
    sandbox,
    say,
    yes,
)

ROOT = Path(__file__).resolve().parents[2]

WAITS = brief(
    [
        calls(
            call("c1", "exec_command", cmd="pytest"),
            call("c2", "notify_team", text="hello"),
            call(
                "c3",
                "apply_patch",
                patch="*** Begin Patch\n*** Add File: repo/x\n+x\n*** End Patch",
            ),
        ),
        say("Done.", expects=[{"call": "c1", "contains": "ran:"}]),
    ]
)


def asks_for_patches(proposed: Any) -> str:
    return "ask" if proposed.kind in ("patch", "http", "question") else "allow"


def paused(host: RecordingHost, asked: AgentBrief = WAITS, box: Any = None) -> str:
    outcome = asyncio.run(agent.start(asked, box or sandbox(), host))
    assert outcome.status == "waiting"
    host.approve(*(pending.call for pending in outcome.pending))
    return outcome.state or ""


def resumed(state: str, host: RecordingHost, answers: Any, asked: AgentBrief = WAITS) -> Outcome:
    return asyncio.run(agent.resume(asked, sandbox(), host, state=state, answers=answers))


BOTH = {"c2": yes(), "c3": yes()}


def test_a_run_goes_on_in_another_process(tmp_path: Path) -> None:
    state = paused(RecordingHost(decide=asks_for_patches))
    (tmp_path / "state").write_text(state)
    script = f"""
import asyncio, json, pathlib
from runs import agent
from runs.agent.state import open_state
from tests.runs import agent_parts as parts
from tests.runs.test_agent_state import WAITS, asks_for_patches
state = pathlib.Path({str(tmp_path / "state")!r}).read_text()
host, box = parts.RecordingHost(decide=asks_for_patches), parts.sandbox()
for pending in open_state(WAITS, state).pending:
    host.approve(pending.call)
outcome = asyncio.run(agent.resume(WAITS, box, host, state=state,
    answers={{"c2": parts.yes(), "c3": parts.no("No.")}}))
print(json.dumps([outcome.status, outcome.output, host.ran(), box.session.commands,
    len(host.charges), agent.verify_state(WAITS, outcome.state)]))
"""
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == ["finished", "Done.", ["c2"], [], 1, []]


def test_the_same_state_resumed_twice_acts_once() -> None:
    host = RecordingHost(decide=asks_for_patches)
    state = paused(host)
    assert resumed(state, host, BOTH).status == "finished"
    again = resumed(state, host, BOTH)
    assert again.status == "finished"
    assert [made.call_id for made in host.brokered] == ["c2"]
    assert host.ran() == ["c1", "c2", "c3"]


def test_a_host_that_has_no_approval_is_not_got_around_by_an_answer() -> None:
    host = RecordingHost(decide=asks_for_patches)
    state = paused(host)
    host.approvals.clear()
    outcome = resumed(state, host, BOTH)
    assert outcome.status == "finished"
    assert host.brokered == []


def test_arguments_changed_in_the_sdks_part_of_the_state_are_refused() -> None:
    host = RecordingHost(decide=asks_for_patches)
    state = json.loads(paused(host))
    text = json.dumps(state["run"])
    assert "hello" in text
    state["run"] = json.loads(text.replace("hello", "goodbye"))
    with pytest.raises(RecoveryError) as refused:
        resumed(sealed(state), host, BOTH)
    assert refused.value.code == "call_changed"
    assert host.brokered == []


def test_arguments_changed_in_our_part_of_the_state_are_not_executed() -> None:
    host = RecordingHost(decide=asks_for_patches)
    state = json.loads(paused(host))
    state["pending"][0]["call"]["arguments"]["text"] = "goodbye"
    outcome = resumed(sealed(state), host, BOTH)
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert (outcome.error.boundary, outcome.error.code) == ("recovery", "call_changed")
    assert host.brokered == []
    assert host.ran() == ["c1"]


def test_several_pauses_count_every_response_once() -> None:
    asked = brief(
        [
            calls(call("c1", "notify_team", text="one")),
            calls(call("c2", "exec_command", cmd="ls"), call("c3", "notify_team", text="two")),
            calls(call("c4", "ask_person", question="?", choices=["a", "b"])),
            say("Done.", expects=[{"call": "c4", "contains": "b"}]),
        ]
    )
    host = RecordingHost()
    outcome = asyncio.run(agent.start(asked, sandbox(), host))
    rounds = 0
    while outcome.status == "waiting":
        rounds += 1
        host.approve(*(pending.call for pending in outcome.pending))
        answers = {pending.call.call_id: yes("b") for pending in outcome.pending}
        outcome = resumed(outcome.state or "", host, answers, asked)
    assert (outcome.status, outcome.output, rounds) == ("finished", "Done.", 3)
    assert host.ran() == ["c1", "c2", "c3", "c4"]
    assert len(host.charges) == 4
    assert sum(charge.input_tokens for charge in host.charges) == 400
    assert [facts["turn"] for kind, facts, _ in host.events if kind == "model.answered"] == [
        1,
        2,
        3,
        4,
    ]


def test_a_request_for_changes_goes_on_from_what_was_said() -> None:
    asked = brief(
        [calls(call("c1", "exec_command", cmd="first")), say("First version.")],
        [
            calls(
                call("c2", "exec_command", cmd="second"),
                expects=[{"call": "c1", "contains": "first"}],
            ),
            say("Second version."),
        ],
    )
    host = RecordingHost()
    first = asyncio.run(agent.start(asked, sandbox(), host))
    assert (first.status, first.output) == ("finished", "First version.")
    second = asyncio.run(
        agent.carry_on(asked, sandbox(), host, state=first.state or "", message="Shorter, please.")
    )
    assert (second.status, second.output) == ("finished", "Second version.")
    conversation = json.loads(second.state or "")["conversation"]
    assert [item["content"] for item in conversation if item.get("role") == "user"] == [
        "The test fails. Repair it.",
        "Shorter, please.",
    ]
    third = asyncio.run(
        agent.carry_on(asked, sandbox(), host, state=second.state or "", message="And again.")
    )
    assert third.status == "failed"
    assert third.error is not None
    assert third.error.code == "transcript_mismatch"
    assert host.ran() == ["c1", "c2"]


def test_a_request_for_changes_can_pause_too() -> None:
    asked = brief(
        [say("First.")],
        [calls(call("c1", "notify_team", text="x")), say("Second.")],
    )
    host = RecordingHost()
    first = asyncio.run(agent.start(asked, sandbox(), host))
    second = asyncio.run(
        agent.carry_on(asked, sandbox(), host, state=first.state or "", message="More.")
    )
    assert second.status == "waiting"
    host.approve(second.pending[0].call)
    third = resumed(second.state or "", host, {"c1": yes()}, asked)
    assert (third.status, third.output) == ("finished", "Second.")


def test_nothing_secret_becomes_part_of_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    marker = "marker-" + hashlib.sha256(os.urandom(8)).hexdigest()
    monkeypatch.setenv("OPENAI_API_KEY", marker)
    monkeypatch.setenv("SOME_SECRET", marker)
    host = RecordingHost(decide=asks_for_patches)
    host.password = marker  # type: ignore[attr-defined]
    box = sandbox()
    box.secret = marker
    state = paused(host, box=box)
    assert marker not in state
    finished = resumed(state, host, BOTH)
    assert marker not in (finished.state or "")
    assert json.loads(state)["run"]["context"]["context"] == {"run_id": "run-1", "tenant": "acme"}


# -- refusals ---------------------------------------------------------------------------------


def sealed(body: dict[str, Any]) -> str:
    """An edited state with a digest that fits, as an attacker or a bug of ours would have it."""
    body = {key: value for key, value in body.items() if key != "sha256"}
    text = json.dumps(body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return json.dumps({**body, "sha256": hashlib.sha256(text.encode()).hexdigest()})


def edited(**changes: Any) -> Callable[[str], str]:
    return lambda state: sealed({**json.loads(state), **changes})


def without_interruptions(state: str) -> str:
    body = json.loads(state)
    body["run"]["current_step"]["data"]["interruptions"].pop()
    return sealed(body)


REFUSALS: dict[str, list[Callable[[str], str]]] = {
    "state_truncated": [lambda state: "", lambda state: state[: len(state) // 2]],
    "state_format": [
        lambda state: "[]",
        lambda state: "{}",
        edited(version=2),
        edited(format="something else"),
    ],
    "state_damaged": [
        lambda state: state.replace("hello", "jello"),
        lambda state: json.dumps({**json.loads(state), "sha256": None}),
        edited(step="dancing"),
        edited(run=None),
        edited(pending=[{}]),
        edited(pending=[]),
        edited(turns_used="many"),
    ],
    "sdk_version": [edited(sdk="0.1.0")],
    "other_run": [edited(run_id="run-2"), edited(tenant="umbrella")],
    "agent_renamed": [edited(agent="somebody")],
    "agent_version": [edited(agent_version="2"), edited(prompt_version="9")],
    "pending_unknown": [without_interruptions],
}


@pytest.mark.parametrize(
    ("code", "spoil"), [(code, spoil) for code, ways in REFUSALS.items() for spoil in ways]
)
def test_a_state_that_cannot_be_trusted_is_refused_by_name(
    code: str, spoil: Callable[[str], str]
) -> None:
    host = RecordingHost(decide=asks_for_patches)
    spoilt = spoil(paused(host))
    before = list(host.log)
    with pytest.raises(RecoveryError) as refused:
        agent.verify_state(WAITS, spoilt)
    assert refused.value.code == code
    assert refused.value.boundary == "recovery"
    assert refused.value.remedy
    with pytest.raises(RecoveryError):
        resumed(spoilt, host, BOTH)
    assert host.log == before


def test_a_state_whose_tool_is_gone_is_refused() -> None:
    state = paused(RecordingHost(decide=asks_for_patches))
    with pytest.raises(RecoveryError) as refused:
        agent.verify_state(replace(WAITS, tools=(SHELL, PATCH, ASK)), state)
    assert refused.value.code == "tool_gone"


def test_a_state_the_sdk_cannot_read_is_refused_before_anything_happens() -> None:
    host = RecordingHost(decide=asks_for_patches)
    body = json.loads(paused(host))
    body["run"]["$schemaVersion"] = "99.0"
    before = list(host.log)
    with pytest.raises(RecoveryError) as refused:
        resumed(sealed(body), host, BOTH)
    assert refused.value.code == "state_refused"
    assert host.log == before


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ({}, "answer_missing"),
        ({"c2": yes()}, "answer_missing"),
        ({**BOTH, "c9": yes()}, "answer_unknown"),
        ({**BOTH, "c1": yes()}, "answer_unknown"),
    ],
)
def test_answers_must_be_to_exactly_the_waiting_calls(
    answers: dict[str, Answer], code: str
) -> None:
    host = RecordingHost(decide=asks_for_patches)
    state = paused(host)
    with pytest.raises(RecoveryError) as refused:
        resumed(state, host, answers)
    assert refused.value.code == code
    assert host.ran() == ["c1"]


def test_a_waiting_agent_takes_no_message_and_a_finished_one_is_not_resumed() -> None:
    host = RecordingHost(decide=asks_for_patches)
    state = paused(host)
    with pytest.raises(RecoveryError) as refused:
        asyncio.run(agent.carry_on(WAITS, sandbox(), host, state=state, message="Hi"))
    assert refused.value.code == "state_waiting"
    finished = resumed(state, host, {"c2": no("No."), "c3": no("No.")})
    with pytest.raises(RecoveryError) as refused:
        resumed(finished.state or "", host, {})
    assert refused.value.code == "state_finished"


def test_a_tool_may_not_take_the_name_of_another_kind() -> None:
    bad = [
        (SHELL, SHELL),
        (ToolDeclaration("exec_command", "http", "x"),),
        (ToolDeclaration("run", "shell", "x"),),
        (ToolDeclaration("a b", "http", "x"),),
        (replace(NOTIFY, parameters={"type": "array"}),),
        (replace(NOTIFY, parameters={"type": "object", "properties": {"a": {"type": "texts"}}}),),
        (replace(NOTIFY, parameters={"properties": {"a": {"$ref": "http://127.0.0.1:9/"}}}),),
    ]
    for tools in bad:
        with pytest.raises(BriefRefused):
            asyncio.run(agent.start(brief([say("x")], tools=tools), sandbox(), RecordingHost()))
