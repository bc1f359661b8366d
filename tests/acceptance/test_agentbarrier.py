"""AgentBarrier's scenarios, through a real worker and the real pages; from the package index."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from tests.acceptance.barrier.desk import Desk
from tests.acceptance.barrier.model import GATED, model
from tests.packages import AGENTBARRIER
from tests.real_walk import RealWalk

pytestmark = [pytest.mark.package_index, pytest.mark.bubblewrap]

SCENARIOS = (
    *("approval_hold", "rejection", "argument_binding", "replay", "outcome_ambiguity"),
    *("outcome_reconciliation", "cancellation", "timeout", "parallel_barrier", "delegation"),
    "audit_receipts",
)
PROFILE = "per-action"
"""Of calls that are proposed together each is judged on its own: one that policy permits happens
while another one waits for a person (`runs.agent.gate`)."""

PATIENCE = 90
"""Seconds for a step of a scenario; waited for in full only when something is wrong."""


@pytest.fixture(scope="module")
def agentbarrier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distribution, unpacked and never imported here."""
    return AGENTBARRIER.unpacked(tmp_path_factory.mktemp("agentbarrier"))


def judged(
    agentbarrier: Path, desk: Desk, place: Path, *only: str, patience: int = PATIENCE
) -> dict[str, Any]:
    """The suite's report; the desk answers while it runs."""
    place.mkdir()
    address, report = place / "desk", place / "report.json"
    command = (
        *(sys.executable, "-m", "agentbarrier", "verify"),
        *("tests.acceptance.barrier.adapter:create", "--approval-profile", PROFILE),
        *("--strict-skips", "--json", str(report), "--color", "never"),
        *("--settle", "0.5", "--operation-timeout", str(patience), "--tool-timeout", "1"),
        *(word for name in only for word in ("--scenario", name)),
    )
    environment = {
        **os.environ,
        "PYTHONPATH": f"{agentbarrier}{os.pathsep}{settings.BASE_DIR}",
        "AGENTBARRIER_DESK": str(address),
    }
    with socket.socket(socket.AF_UNIX) as listening, (place / "said").open("w+") as said:
        listening.bind(str(address))
        listening.listen()
        listening.settimeout(0.2)
        suite = subprocess.Popen(command, cwd=place, env=environment, stdout=said, stderr=said)
        try:
            while suite.poll() is None:
                try:
                    asking, _ = listening.accept()
                except TimeoutError:
                    continue
                asking.settimeout(60)
                with asking, asking.makefile("rw") as line:
                    line.write(json.dumps(_answered(desk, json.loads(line.readline()))) + "\n")
        finally:
            suite.kill()
            suite.wait()
        said.seek(0)
        assert report.exists(), said.read()[-4000:]
    found: dict[str, Any] = json.loads(report.read_text())
    return found | {"exit": suite.returncode}


def _answered(desk: Desk, question: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"answer": desk.answer(question)}
    except (AssertionError, LookupError, StopIteration, ValueError) as error:
        return {"failed": f"{question}: {type(error).__name__}: {error}"}


def test_every_scenario_of_agentbarrier(
    agentbarrier: Path, real_walk: RealWalk, tmp_path: Path
) -> None:
    with model() as answering:
        real_walk.web()
        worker = real_walk.worker(
            MODEL_BASE_URL=answering.base_url, EGRESS_PRIVATE_HOSTS="127.0.0.1"
        )
        desk = Desk(real_walk)
        report = judged(agentbarrier, desk, tmp_path / "strict")
        desk.permit(GATED)
        lax = judged(agentbarrier, desk, tmp_path / "lax", SCENARIOS[0], patience=10)

    wrong = [each for each in report["results"] if each["status"] != "passed"]
    assert not wrong, wrong
    assert [each["id"] for each in report["results"]] == list(SCENARIOS)
    assert (report["exit"], report["approval_profile"]) == (0, PROFILE)
    # The probe is where the effect is: where policy asks nobody, the suite sees it happen.
    (seen,) = lax["results"]
    assert (lax["exit"], seen["status"]) == (1, "error")
    assert [each["phase"] for each in seen["events"]] == ["started", "committed"]
    assert worker.alive
