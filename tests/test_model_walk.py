"""The whole walk with a model behind an endpoint, which is not always there when it is asked."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from approvals.models import Candidate, Publication
from runs.models import Event
from tests.cast import PATCH, contract_text, git, make_run, make_version
from tests.real_walk import RealWalk
from tests.runs.model_server import Reply, custom, function, model_server, says, text

pytestmark = pytest.mark.bubblewrap

MODEL = "repairer-2"
# Made here, so that no secret stands in the code.
KEY = "-".join(("the", "key", "of", "the", "endpoint"))
BUSY = Reply(status=429, headers={"retry-after": "1"}, body=b'{"error": {"code": "slow_down"}}')
SILENT = Reply(then="silence")
# Each answer costs 100 input tokens, 40 of them cached, and 7 output tokens.
PRICES = f"{MODEL}=3/1/15"
MICROS = 60 * 3 + 40 * 1 + 7 * 15


def the_model() -> list[Reply]:
    """What the model says, in order: look, file, repair, report; with faults on the way."""
    look = says(text("I look first."), function("read", "exec_command", {"cmd": "cat adder.py"}))
    ask = says(function("file", "create_issue", {"title": "The adder subtracts"}))
    fix = says(custom("fix", "apply_patch", "\n".join(PATCH)))
    report = says(
        function("report", "exec_command", {"cmd": "echo Repaired. > ../output/report.md"})
    )
    done = says(text("The adder adds again."))
    return [BUSY, look, SILENT, ask, fix, BUSY, report, done]


def test_a_model_endpoint_from_contract_to_draft(real_walk: RealWalk) -> None:
    """A rate limit before the first answer, a silence, and another limit after the approval."""
    contract = contract_text(http=True, transcript="").replace('"recorded"', f'"{MODEL}"')
    with model_server(*the_model()) as server:
        real_walk.web()
        real_walk.worker(
            MODEL_BASE_URL=server.base_url,
            MODEL_API_KEY=KEY,
            MODEL_TIMEOUT="5",
            MODEL_PRICES=PRICES,
        )
        run = make_run(real_walk.cast, make_version(real_walk.cast, contract))
        asked = real_walk.until_asked(run, "call")
        assert len(server.received) == 4  # nobody works while a person is waited for
        real_walk.decide(asked, comment="Yes, file it.")
        offered = real_walk.until_asked(run, "publication")
        real_walk.decide(offered, member=real_walk.cast.bo)
        real_walk.until_status(run, "published")

    # Every fault was seen, told and survived; the model was asked eight times for five answers.
    assert server.replies == []
    events = Event.objects.filter(run=run).order_by("seq")
    retries = [each.facts["reason"] for each in events if each.kind == "model.retry"]
    assert retries == ["model_rate_limited", "model_timeout", "model_rate_limited"]
    assert Counter(each.kind for each in events)["model.answered"] == 5
    assert run.attempts == 2  # before the decision and after it, not once for each fault
    assert run.transcript_label == ""

    # Whoever goes on after the approval tells the endpoint all of it again; it stores nothing.
    bodies: list[Any] = [each.body for each in server.received]
    assert {each.headers["authorization"] for each in server.received} == {f"Bearer {KEY}"}
    assert [(body["model"], body["store"]) for body in bodies] == [(MODEL, False)] * 8
    told = {
        item["call_id"]: json.dumps(item["output"])
        for item in bodies[4]["input"]
        if item.get("type", "").endswith("_output")
    }
    assert set(told) == {"read", "file"}
    assert "return a - b" in told["read"]
    assert "7" in told["file"]  # the number, from the tracker's answer
    assert "kept back" not in told["file"]

    # What came of it, and what it cost: five answers, however often they were asked for.
    assert real_walk.problems(run, requests=1) == []
    candidate, published = Candidate.objects.get(run=run), Publication.objects.get(run=run)
    assert candidate.agent_words == "The adder adds again."
    assert published.tree == candidate.tree == offered.page["candidate"]["tree"]
    assert git("show", f"{published.branch}:adder.py", cwd=real_walk.remote).endswith("a + b")
    tokens = run.charges.filter(unit="tokens")
    assert sum(tokens.values_list("quantity", flat=True)) == 5 * 107
    assert sum(tokens.values_list("micros", flat=True)) == 5 * MICROS
    assert offered.page["agent"] | {"model": MODEL, "recorded": ""} == offered.page["agent"]
    with real_walk.browser(real_walk.cast.vic) as browser:
        page = browser.get(f"/t/acme/runs/{run.public_id}/").text
        timeline = browser.get(f"/t/acme/runs/{run.public_id}/events/").text
    assert MODEL in page
    assert "recorded transcript" not in page
    assert timeline.count("The model is asked again") == 3
    real_walk.until_clean()
