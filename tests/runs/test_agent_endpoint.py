"""Models behind an endpoint: the wire, its failures, and what is sent to whom."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from runs import agent
from runs.agent.port import ModelEndpoint, Outcome
from tests.runs.agent_parts import NOTIFY, RecordingHost, brief, sandbox, yes
from tests.runs.model_server import (
    ModelServer,
    Reply,
    custom,
    function,
    model_server,
    reasoning,
    refusal,
    says,
    text,
)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runs.agent.endpoint.FIRST_WAIT_S", 0.01)


ROOT = Path(__file__).resolve().parents[2]
PATCH = "*** Begin Patch\n*** Add File: repo/new.txt\n+hello\n*** End Patch"
KEY = "the-key-of-the-endpoint"


def endpoint(server: ModelServer, **changes: Any) -> ModelEndpoint:
    defaults: dict[str, Any] = {"timeout_s": 20.0, "max_retries": 2, "max_retry_wait_s": 5.0}
    return ModelEndpoint(server.base_url, KEY, **{**defaults, **changes})


def run(server: ModelServer, host: RecordingHost, box: Any = None, **changes: Any) -> Outcome:
    asked = brief(endpoint=endpoint(server, **changes))
    return asyncio.run(agent.start(asked, box or sandbox(), host))


def test_a_whole_run_over_the_responses_wire() -> None:
    host, box = RecordingHost(), sandbox()
    with model_server(
        says(
            text("I look first."),
            function("a", "exec_command", {"cmd": "ls"}),
            custom("b", "apply_patch", PATCH),
        ),
        says(text("All done.")),
    ) as server:
        outcome = run(server, host, box)
    assert (outcome.status, outcome.output) == ("finished", "All done.")
    assert host.ran() == ["a", "b"]
    assert box.session.files == {"/workspace/repo/new.txt": b"hello\n"}
    first, second = (received.body for received in server.received)
    assert first["model"] == "a-model"
    assert first["input"] == [{"role": "user", "content": "The test fails. Repair it."}]
    assert "Repair it." in first["instructions"]
    tools = {tool["name"]: tool for tool in first["tools"]}
    assert tools["apply_patch"]["type"] == "custom"
    assert tools["notify_team"]["parameters"]["additionalProperties"] is False
    outputs = [item for item in second["input"] if item.get("type", "").endswith("_output")]
    assert [item["call_id"] for item in outputs] == ["a", "b"]
    assert server.received[0].headers["authorization"] == f"Bearer {KEY}"
    assert [
        (charge.input_tokens, charge.cached_tokens, charge.output_tokens) for charge in host.charges
    ] == [(100, 40, 7), (100, 40, 7)]
    messages = [payload for kind, _, payload in host.events if kind == "agent.message"]
    assert messages == ["I look first.", "All done."]


def test_a_whole_run_over_chat_completions_with_a_pause() -> None:
    host, box = RecordingHost(), sandbox()
    with model_server(
        says(function("a", "apply_patch", {"patch": PATCH})),
        says(function("b", "notify_team", {"text": "hi"})),
        says(text("Done.")),
    ) as server:
        asked = brief(endpoint=endpoint(server, wire="chat_completions"))
        first = asyncio.run(agent.start(asked, box, host))
        assert first.status == "waiting"
        host.approve(first.pending[0].call)
        second = asyncio.run(
            agent.resume(asked, box, host, state=first.state or "", answers={"b": yes()})
        )
    assert (second.status, second.output) == ("finished", "Done.")
    assert box.session.files == {"/workspace/repo/new.txt": b"hello\n"}
    assert host.judged[0].arguments["files"][0]["path"] == "repo/new.txt"
    assert [received.path for received in server.received] == ["/v1/chat/completions"] * 3
    assert [charge.input_tokens for charge in host.charges] == [100, 100, 100]


def test_an_endpoint_that_counts_no_tokens_is_charged_by_an_estimate() -> None:
    host = RecordingHost()
    with model_server(says(text("Done."), usage=None)) as server:
        assert run(server, host).status == "finished"
    assert host.charges[0].input_tokens > 5
    assert host.charges[0].output_tokens > 5
    assert next(facts for kind, facts, _ in host.events if kind == "model.answered")[
        "tokens_estimated"
    ]


def test_call_ids_that_an_endpoint_uses_again_are_made_unique() -> None:
    host = RecordingHost(decide=lambda call: "allow")
    with model_server(
        says(
            function("0", "exec_command", {"cmd": "a"}), function("0", "exec_command", {"cmd": "b"})
        ),
        says(
            function("0", "exec_command", {"cmd": "c"}), function("", "exec_command", {"cmd": "d"})
        ),
        says(text("Done.")),
    ) as server:
        assert run(server, host).status == "finished"
    assert host.ran() == ["0", "0.2", "0.3", "call"]
    assert [made.arguments["cmd"] for made in host.begun] == ["a", "b", "c", "d"]


def test_a_patch_wrapped_in_json_and_a_custom_call_of_no_custom_tool_are_understood() -> None:
    host, box = RecordingHost(), sandbox()
    with model_server(
        says(function("a", "apply_patch", {"input": PATCH}), custom("b", "nothing", "x")),
        says(text("Done.")),
    ) as server:
        assert run(server, host, box).status == "finished"
        told = server.received[1].body["input"]
    assert box.session.files == {"/workspace/repo/new.txt": b"hello\n"}
    assert "There is no tool 'nothing'" in json.dumps(told)


def test_reasoning_is_sent_back_only_with_its_encrypted_content() -> None:
    host = RecordingHost()
    with model_server(
        says(reasoning(None), function("a", "exec_command", {"cmd": "a"})),
        says(reasoning("sealed"), function("b", "exec_command", {"cmd": "b"})),
        says(text("Done.")),
    ) as server:
        assert run(server, host).status == "finished"
        last = server.received[2].body["input"]
    kept = [item for item in last if item.get("type") == "reasoning"]
    assert [item["encrypted_content"] for item in kept] == ["sealed"]


PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


def look(server: ModelServer, image: bytes, wire: str) -> tuple[Any, Any]:
    """An agent looks at an image: what is sent to the model, and what the host is told."""
    host, box = RecordingHost(), sandbox()
    box.session.files["/workspace/output/plot.png"] = image
    assert run(server, host, box, wire=wire).status == "finished"
    sent = server.received[1].body
    items = sent.get("input") or sent["messages"]
    return items[-1].get("output", items[-1].get("content")), host.done[0]


LOOKS = says(function("a", "view_image", {"path": "output/plot.png"}))


def test_an_image_is_shown_to_a_model_that_can_see_it() -> None:
    with model_server(LOOKS, says(text("I see."))) as server:
        sent, (_, ok, output, _) = look(server, PNG, "responses")
    assert sent[0]["type"] == "input_image"
    assert sent[0]["image_url"].startswith("data:image/png;base64,")
    assert (ok, output.startswith("[image/png, ")) == (True, True)


def test_an_image_is_not_sent_where_it_would_be_lost_or_too_large() -> None:
    with model_server(LOOKS, says(text("Pity."))) as server:
        sent, (_, ok, _, _) = look(server, PNG, "chat_completions")
    assert (sent, ok) == ("This model cannot be shown images.", False)
    with model_server(LOOKS, says(text("Pity."))) as server:
        sent, (_, ok, _, _) = look(server, PNG + bytes(3_000_000), "responses")
    assert ("larger than 2 MB" in sent, ok) == (True, False)


def test_agents_in_several_threads_do_not_meet() -> None:
    """Celery's thread pool runs one event loop per thread, all in one process."""

    def one(number: int) -> tuple[str, list[str], int]:
        host = RecordingHost(decide=lambda call: "allow")
        with model_server(
            says(function("a", "notify_team", {"text": str(number)})), says(text(f"Done {number}."))
        ) as server:
            outcome = run(server, host)
        return outcome.output, [made.arguments["text"] for made in host.brokered], len(host.charges)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(one, range(12)))
    assert results == [(f"Done {number}.", [str(number)], 2) for number in range(12)]


# -- failures ---------------------------------------------------------------------------------

DONE = says(text("Done."))
LIMITED = Reply(status=429, headers={"retry-after": "0"}, body=b'{"error": {"code": "slow"}}')


def in_a_second() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=1), usegmt=True)


@pytest.mark.parametrize(
    "failure",
    [
        LIMITED,
        Reply(status=429, headers={"retry-after": "0.01"}),
        Reply(status=429, headers={"retry-after": in_a_second()}),
        Reply(status=429, headers={"retry-after": "soon"}),
        Reply(status=500),
        Reply(status=503, headers={"retry-after": "0"}, body=b"<html>"),
        says(text("Half an ans"), then="cut"),
        says(text("Half"), then="garbage"),
        says(then="failed", code="server_error"),
        says(then="error", code="rate_limit_exceeded"),
        says(),
    ],
)
def test_what_can_get_better_is_tried_again(failure: Reply) -> None:
    host = RecordingHost()
    with model_server(failure, failure, DONE) as server:
        outcome = run(server, host)
    assert (outcome.status, outcome.output) == ("finished", "Done.")
    assert len(server.received) == 3
    assert len(host.charges) == 1
    assert [facts["attempt"] for kind, facts, _ in host.events if kind == "model.retry"] == [2, 3]


@pytest.mark.parametrize(
    ("failure", "code", "retry_safe", "requests"),
    [
        (Reply(status=401, body=b'{"error": {"message": "key the-key is bad"}}'),
         "model_unauthorized", False, 1),
        (Reply(status=403), "model_unauthorized", False, 1),
        (Reply(status=404), "model_not_found", False, 1),
        (Reply(status=400), "model_bad_request", False, 1),
        (Reply(status=422), "model_bad_request", False, 1),
        (Reply(status=307, headers={"location": "http://127.0.0.1:9/"}),
         "model_bad_request", False, 1),
        (Reply(status=429, body=b'{"error": {"code": "insufficient_quota"}}'),
         "model_quota", False, 1),
        (Reply(status=429, headers={"retry-after": "600"}), "model_rate_limited", True, 1),
        (LIMITED, "model_rate_limited", True, 3),
        (Reply(status=502, headers={"retry-after": "0"}), "model_unavailable", True, 3),
        (says(text("x"), then="incomplete"), "model_incomplete", False, 1),
        (says(then="failed", code="invalid_prompt"), "model_error", False, 1),
        (says(refusal("I will not.")), "model_refused", False, 1),
        (says({"type": "web_search_call", "id": "w", "status": "completed",
               "action": {"type": "search", "query": "q"}}), "model_unexpected_item", False, 1),
    ],
)  # fmt: skip
def test_what_stays_broken_names_the_model_and_whether_to_retry(
    failure: Reply, code: str, retry_safe: bool, requests: int
) -> None:
    host = RecordingHost()
    with model_server(failure, failure, failure) as server:
        outcome = run(server, host)
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert (outcome.error.boundary, outcome.error.code) == ("control", code)
    assert outcome.error.retry_safe is retry_safe
    assert "key" not in outcome.error.text.replace("the key of the model", "")
    assert len(server.received) == requests


def test_a_silent_endpoint_runs_into_the_time_out() -> None:
    host = RecordingHost()
    silence = Reply(then="silence")
    with model_server(silence, silence) as server:
        outcome = run(server, host, timeout_s=0.3, max_retries=1)
    assert outcome.error is not None
    assert outcome.error.code == "model_timeout"
    assert outcome.error.retry_safe


def test_an_endpoint_that_is_not_there() -> None:
    with model_server() as server:
        gone = endpoint(server, max_retries=1)
    outcome = asyncio.run(agent.start(brief(endpoint=gone), sandbox(), RecordingHost()))
    assert outcome.error is not None
    assert outcome.error.code == "model_unreachable"
    assert outcome.error.retry_safe


def test_a_model_that_fails_late_leaves_a_state_to_go_on_from() -> None:
    host = RecordingHost()
    work = says(function("a", "exec_command", {"cmd": "long work"}))
    with model_server(work, Reply(status=401), DONE) as server:
        asked = brief(endpoint=endpoint(server))
        failed = asyncio.run(agent.start(asked, sandbox(), host))
        assert (failed.status, failed.state is not None) == ("failed", True)
        outcome = asyncio.run(
            agent.resume(asked, sandbox(), host, state=failed.state or "", answers={})
        )
        assert "long work" in json.dumps(server.received[2].body["input"])
    assert outcome.status == "finished"
    assert host.ran() == ["a"]
    assert len(host.charges) == 2


# -- what leaves this process -----------------------------------------------------------------


def test_nothing_is_sent_anywhere_but_to_the_endpoint(tmp_path: Path) -> None:
    """In a process of its own, with an OpenAI key set and every connection written down."""
    work = says(function("a", "notify_team", {"text": "hi"}))
    script = f"""
import asyncio, json, socket, sys
connected = []
def audit(event, args):
    if event == "socket.connect":
        connected.append(args[1])
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        connected.append([args[0], args[1] if len(args) > 1 else None])
sys.addaudithook(audit)
from runs import agent
from runs.agent.port import ModelEndpoint
from tests.runs import agent_parts as parts
host = parts.RecordingHost()
asked = parts.brief(endpoint=ModelEndpoint(sys.argv[1], {KEY!r}))
first = asyncio.run(agent.start(asked, parts.sandbox(), host))
assert first.status == "waiting", first
host.approve(first.pending[0].call)
second = asyncio.run(agent.resume(asked, parts.sandbox(), host, state=first.state,
    answers={{"a": parts.yes()}}))
assert second.status == "finished", second
from agents.tracing import flush_traces
flush_traces()
everything = first.state + second.state + repr(first) + repr(second) + repr(asked)
print(json.dumps([connected, {KEY!r} in everything]))
"""
    with model_server(work, DONE) as server:
        ended = subprocess.run(
            [sys.executable, "-c", script, server.base_url],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            env={
                **{key: value for key, value in os.environ.items() if "PROXY" not in key.upper()},
                "PYTHONPATH": str(ROOT),
                "OPENAI_API_KEY": "a-key-of-the-worker",
                "OPENAI_ORG_ID": "org-of-the-worker",
                "OPENAI_CUSTOM_HEADERS": "X-Worker: header-of-the-worker",
                "HTTP_PROXY": "http://127.0.0.1:9",
                "http_proxy": "http://127.0.0.1:9",
            },
        )
        assert ended.returncode == 0, ended.stderr
        connected, leaked = json.loads(ended.stdout.splitlines()[-1])
        assert not leaked
        assert {(host, port) for host, port, *_ in connected} == {("127.0.0.1", server.server_port)}
        sent = json.dumps([received.headers for received in server.received])
        assert "of-the-worker" not in sent


def test_an_optional_parameter_keeps_a_schema_from_being_strict() -> None:
    with model_server(DONE, DONE) as server:
        run(server, RecordingHost())
        required = {**NOTIFY.parameters, "required": ["text", "urgent"]}
        strict = brief(
            endpoint=endpoint(server),
            tools=(type(NOTIFY)("notify_team", "http", "x", required, outward=True),),
        )
        asyncio.run(agent.start(strict, sandbox(), RecordingHost()))
    first, second = (received.body["tools"] for received in server.received)
    assert next(tool for tool in first if tool["name"] == "notify_team")["strict"] is False
    assert second[0]["strict"] is True


def test_loading_the_package_does_not_load_the_sdk() -> None:
    script = "import sys, runs.agent, runs.agent.port; print('agents' in sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "False"
