"""A team's own functions: allowed by the deployment, run apart from the portal, for a person."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from runs import broker
from tests.cast import Cast
from tests.runs.broker_parts import carried_out, run_of, seconds

MODULE = """
import os, subprocess, sys, time

def price(call):
    print("this goes nowhere")
    if "operator" not in call["person"]["roles"]:
        raise PermissionError("Only operators may ask for prices.")
    return {
        "price": call["arguments"]["kilos"] * 2,
        "for": call["person"]["email"],
        "key": call["idempotency_key"],
        "environment": sorted(os.environ),
        "django": "django" in sys.modules,
        "inner": "kept back",
    }

def refuse(call):
    raise PermissionError(f"Not for {call['person']['name']}.")

def fail(call):
    raise ValueError(call["secret"] or "no secret")

def hang(call):
    child = subprocess.Popen(["sleep", "60"])
    open(call["arguments"]["file"], "w").write(str(child.pid))
    time.sleep(60)

def leave(call):
    os._exit(3)

def nest(call):
    deep = {}
    for _ in range(200):
        deep = {"price": deep}
    return deep
"""
TOOL = {
    "entry_point": "price",
    "response": ["price", "for", "environment", "django"],
    "parameters": {
        "properties": {"kilos": {"type": "integer"}, "file": {"type": "string"}},
    },
}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """A distribution with functions, where Python finds it; the deployment allows them."""
    names = ("price", "refuse", "fail", "hang", "leave", "nest")
    info = tmp_path / "tideline_tools-1.2.dist-info"
    info.mkdir()
    (tmp_path / "tideline_tools.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tideline-tools\nVersion: 1.2\n")
    lines = "\n".join(f"{name} = tideline_tools:{name}" for name in names)
    (info / "entry_points.txt").write_text(f"[imprimatur.tools]\n{lines}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    settings.BROKER_TOOLS = ["acme/price", "refuse", "fail", "hang", "leave", "nest"]


def test_a_function_answers_for_the_person_the_run_acts_for(cast: Cast) -> None:
    done = carried_out(run_of(cast), "python", TOOL, {"kilos": 4})

    said = json.loads(done.words)
    assert (said["price"], said["for"], said["django"]) == (8, "olu@example.com", False)
    assert "inner" not in said
    # Nothing of the portal's: no key, no address, no database.
    assert os.environ["SECRET_KEY"]
    assert set(said["environment"]) <= {"PATH", "LANG", "LC_CTYPE"}
    assert done.receipt["function"] == "tideline_tools:price of tideline-tools 1.2"


def test_a_function_refuses_in_its_own_words(cast: Cast) -> None:
    with pytest.raises(broker.BrokerRefused, match=r"Not for Olu Adeyemi\."):
        carried_out(run_of(cast), "python", {**TOOL, "entry_point": "refuse"})


@pytest.mark.parametrize(
    ("name", "words"), [("fail", "ValueError"), ("leave", "exit 3"), ("nest", "nested too deeply")]
)
def test_a_function_that_breaks_may_have_had_its_effect(cast: Cast, name: str, words: str) -> None:
    """And its error is not told with its words, which may hold what it was given."""
    with pytest.raises(broker.BrokerUnknown, match=words) as caught:
        carried_out(run_of(cast), "python", {**TOOL, "entry_point": name})
    assert "no secret" not in str(caught.value)


def test_a_function_that_does_not_end_is_ended_with_all_it_started(
    cast: Cast, tmp_path: Path
) -> None:
    file = tmp_path / "child"
    run, tool = run_of(cast), {**TOOL, "entry_point": "hang", "timeout_seconds": 6}

    def calls() -> None:
        with pytest.raises(broker.BrokerUnknown, match="in 6 seconds"):
            carried_out(run, "python", tool, {"file": str(file)})

    assert seconds(calls) < 30
    state = Path(f"/proc/{file.read_text()}/stat")
    deadline = time.monotonic() + 10
    while _lives(state) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _lives(state)


def _lives(state: Path) -> bool:
    """Neither gone, nor dead and waiting for whoever reaps orphans here."""
    try:
        return state.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_function_is_allowed_by_the_deployment_or_refused(cast: Cast, settings: Any) -> None:
    run = run_of(cast)
    for listed in ([], ["globex/price"], ["pric"]):
        settings.BROKER_TOOLS = listed
        with pytest.raises(broker.BrokerRefused, match="does not allow this tenant"):
            carried_out(run, "python", TOOL, {"kilos": 1})
    settings.BROKER_TOOLS = ["absent"]
    with pytest.raises(broker.BrokerRefused, match="No installed functions"):
        carried_out(run, "python", {**TOOL, "entry_point": "absent"})
