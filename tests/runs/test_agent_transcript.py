"""Recorded transcripts: the file, and how the place to go on is found."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from runs import agent
from runs.agent.port import BriefRefused, Outcome
from runs.agent.transcript import (
    MAX_BYTES,
    Message,
    Said,
    TranscriptMismatch,
    TranscriptRefused,
    load,
    next_step,
)
from tests.runs.agent_parts import (
    RecordingHost,
    brief,
    call,
    calls,
    no,
    raw,
    recorded,
    sandbox,
    say,
    yes,
)

GOOD = json.loads(recorded([calls(call("c1", "exec_command", cmd="ls")), say("Done.")]))


def problems(change: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(TranscriptRefused) as refused:
        load(json.dumps({**GOOD, **change}).encode())
    return refused.value.problems


def one(*steps: Any) -> dict[str, Any]:
    return {"turns": [{"steps": list(steps)}]}


def test_a_file_is_read_with_all_it_says() -> None:
    transcript = load(json.dumps({**GOOD, "after_last": ["No", "more."]}).encode())
    assert (transcript.label, transcript.model, transcript.agent) == (
        "A test",
        "recorded-model",
        "repairer",
    )
    assert transcript.tools() == {"exec_command"}
    assert transcript.after_last == "No\nmore."


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": "other"}, "format: must be 'imprimatur-transcript'"),
        ({"version": 2}, "version: must be 1, the only version this program reads"),
        ({"label": ""}, "label: must be a text that is not empty"),
        ({"turns": []}, "turns: must be a list with at least one entry"),
        ({"tunrs": 1}, "the file: has an unknown member 'tunrs'; known are after_last, agent,"),
        (one({}), "turns[0].steps[0]: lacks 'output'"),
        (one(say("x", usage={"input_tokens": -1})), "usage.input_tokens: must be a whole number"),
        (one(calls(call("c1", "t"), call("c1", "t")), say("x")), "ids of calls are unique"),
        (one(calls(call("c1", "t"))), "the last step of a turn calls 'c1'"),
        (one(calls({"type": "song"}), say("x")), "output[0].type: must be 'message' or 'call'"),
        (one(calls({**raw("c1", "t", "x"), "arguments": {}}), say("x")), "give exactly one of"),
        (one(say("x", expects=[{"call": "c9", "contains": "x"}])), "no earlier step makes a call"),
        (one(say("x", expects=[{"call": "c9"}])), "exactly one of 'contains' and 'lacks'"),
        (one({"choose": []}), "turns[0].steps[0].choose: must be a list"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_and_what_is_wanted(
    change: dict[str, Any], problem: str
) -> None:
    assert any(problem in found for found in problems(change)), problems(change)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff{}", b"[]", b"null", b"[" * 100_000, b" " * (MAX_BYTES + 1)],
)
def test_what_is_no_transcript_at_all_is_refused(data: bytes) -> None:
    with pytest.raises(TranscriptRefused):
        load(data)


def test_all_problems_are_told_at_once() -> None:
    assert len(problems({"label": 1, "model": 2, "turns": [{"steps": [{}]}]})) >= 4


# -- playing ----------------------------------------------------------------------------------

PERSON = Said("person")
TWO_WAYS = load(
    recorded(
        [
            calls(call("c1", "notify_team", text="x")),
            {
                "choose": [
                    {
                        "when": [{"call": "c1", "contains": "delivered"}],
                        "steps": [calls(call("c2", "exec_command", cmd="go"))],
                    },
                    {"steps": []},
                ]
            },
            say("The end."),
        ],
        after_last="Nothing more.",
    )
)


def test_the_place_is_found_from_what_was_said() -> None:
    sent = Said("call", "c1")
    assert next_step(TWO_WAYS, [PERSON]).where == "turns[0].steps[0]"
    went_well = [PERSON, sent, Said("output", "c1", "delivered")]
    assert next_step(TWO_WAYS, went_well).where == "turns[0].steps[1].choose[0].steps[0]"
    refused = [PERSON, sent, Said("output", "c1", "A person said no")]
    assert next_step(TWO_WAYS, refused).where == "turns[0].steps[2]"
    over = [*refused, Said("message"), PERSON]
    assert next_step(TWO_WAYS, over).output == (Message("Nothing more."),)
    assert next_step(TWO_WAYS, [*over, Said("message"), PERSON]).where == "after_last"


@pytest.mark.parametrize(
    "conversation",
    [
        [],
        [Said("message"), PERSON],
        [PERSON, Said("call", "c7")],
        [PERSON, Said("message")],
        [PERSON, Said("call", "c1"), Said("output", "c1", "no"), Said("call", "c2")],
        [PERSON, Said("call", "c1"), Said("output", "c1", "no"), Said("message")],
    ],
)
def test_a_conversation_of_another_transcript_is_not_gone_on_with(conversation: list[Said]) -> None:
    with pytest.raises(TranscriptMismatch):
        next_step(TWO_WAYS, conversation)


def run(asked: Any, host: RecordingHost | None = None) -> Outcome:
    return asyncio.run(agent.start(asked, sandbox(), host or RecordingHost()))


def test_both_ways_of_a_choice_are_gone_in_a_real_run() -> None:
    steps = [
        calls(call("c1", "notify_team", text="x")),
        {
            "choose": [
                {"when": [{"call": "c1", "contains": "delivered"}], "steps": [say("Thank you.")]},
                {"steps": [say("I did without.")]},
            ]
        },
    ]
    asked = brief(steps)
    for answer, output in ((yes(), "Thank you."), (no("No."), "I did without.")):
        host = RecordingHost()
        first = run(asked, host)
        host.approve(first.pending[0].call)
        second = asyncio.run(
            agent.resume(asked, sandbox(), host, state=first.state or "", answers={"c1": answer})
        )
        assert second.output == output


def test_an_expectation_that_does_not_hold_ends_the_run_and_says_so() -> None:
    outcome = run(
        brief(
            [
                calls(call("c1", "exec_command", cmd="pytest")),
                say("x", expects=[{"call": "c1", "contains": "1 passed"}]),
            ]
        )
    )
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert (outcome.error.boundary, outcome.error.code) == ("control", "transcript_mismatch")
    assert "turns[0].steps[1]" in outcome.error.text
    assert "should contain '1 passed'" in outcome.error.text
    assert "ran: cd /workspace/repo" in outcome.error.text


def test_usage_and_model_are_the_recorded_ones() -> None:
    host = RecordingHost()
    run(brief([say("Done.")]), host)
    assert [(c.model, c.input_tokens, c.cached_tokens, c.output_tokens) for c in host.charges] == [
        ("recorded-model", 100, 10, 5)
    ]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"transcript": b"{}"}, "transcript"),
        ({"transcript": None}, "no_model"),
        ({"agent_name": "somebody"}, "transcript_agent"),
    ],
)
def test_a_brief_without_a_usable_model_is_refused_before_anything_happens(
    changes: dict[str, Any], code: str
) -> None:
    host = RecordingHost()
    with pytest.raises(BriefRefused) as refused:
        run(brief([say("x")], **changes), host)
    assert refused.value.code == code
    assert refused.value.remedy
    assert (host.log, host.events) == ([], [])
