"""The demo's content is true: the bug is there, the recording repairs it, and policy asks once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import apply_diff
from agents.sandbox.capabilities.tools.apply_patch_tool import _parse_custom_tool_input

from approvals.facts import call_facts
from approvals.policy import DEFAULT_POLICY, decide
from portal import demo
from portal.demo.tracker import Tracker, start_tracker
from runs.agent.transcript import Call, Choice, Step, Transcript, load
from runs.contract import Contract, parse_contract

KINDS = {"exec_command": "shell", "apply_patch": "patch", "tracker_create_issue": "http"}


@pytest.fixture(scope="module")
def contract() -> Contract:
    return parse_contract(demo.contract_text(), "toml")


@pytest.fixture(scope="module")
def recording() -> Transcript:
    return load(demo.transcript())


@pytest.fixture
def workspace(tmp_path: Path, contract: Contract) -> Path:
    """The workspace as a run would have it, without a sandbox: the commands are our own."""
    shutil.copytree(demo.PROJECT, tmp_path / "repo")
    (tmp_path / "output").mkdir()
    for name, text in contract.files.items():
        (tmp_path / "input" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "input" / name).write_text(text)
    return tmp_path


def steps(entries: Any, branch: int) -> Iterator[Step]:
    """The steps when every choice is answered with the same branch."""
    for entry in entries:
        if isinstance(entry, Choice):
            yield from steps(entry.branches[branch].steps, branch)
        else:
            yield entry


def run(command: str, repo: Path) -> str:
    """A command of the recording; `python3` is the one that has pytest."""
    command = command.replace("python3", sys.executable)
    ran = subprocess.run(
        ["sh", "-c", command],
        cwd=repo,
        capture_output=True,
        text=True,
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        check=False,
    )
    return ran.stdout + ran.stderr


def patch(text: str, workspace: Path) -> None:
    """Apply a patch as the agent's tool does, with the SDK's own reader."""
    for operation in _parse_custom_tool_input(text):
        path = workspace / operation.path
        if operation.type == "create_file":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(apply_diff("", operation.diff or "", mode="create"))
        else:
            path.write_text(apply_diff(path.read_text(), operation.diff or ""))


def play(turn: int, branch: int, recording: Transcript, workspace: Path, said: str) -> None:
    """Do what the recording does, and hold every expectation against what came out."""
    outputs: dict[str, str] = {}
    for step in steps(recording.turns[turn], branch):
        for wanted in step.expects:
            assert wanted.holds(outputs), f"{step.where}: {wanted}: {outputs[wanted.call][-800:]}"
        for item in step.output:
            if not isinstance(item, Call) or item.arguments is None:
                continue
            if item.tool == "exec_command":
                outputs[item.id] = run(item.arguments["cmd"], workspace / "repo")
                if item.id == "network":
                    outputs[item.id] += "URLError"  # whatever the network of this machine is
            elif item.tool == "apply_patch":
                patch(item.arguments["patch"], workspace)
                outputs[item.id] = "Done"
            else:
                outputs[item.id] = said


def test_the_bug_is_one_failing_test(workspace: Path) -> None:
    out = run("python3 -m pytest -q", workspace / "repo")
    assert "1 failed, 10 passed" in out
    assert "test_a_weight_on_a_limit_belongs_to_that_band" in out


@pytest.mark.parametrize(
    ("branch", "said", "ending"),
    [
        (0, '{"status": 201, "number": 1, "url": "http://127.0.0.1/1"}', "An issue was opened"),
        (1, "A person denied this call: we know already.", "No issue was opened"),
    ],
)
def test_the_recording_repairs_it(
    recording: Transcript, workspace: Path, branch: int, said: str, ending: str
) -> None:
    """After an approval and after a denial, and then once more after a request for changes."""
    play(0, branch, recording, workspace, said)
    report = (workspace / "output/report.md").read_text()
    assert ending in report
    assert "12 passed" in run("python3 -m pytest -q", workspace / "repo")

    play(1, branch, recording, workspace, said)
    assert "13 passed" in run("python3 -m pytest -q", workspace / "repo")
    assert "13 passed" in (workspace / "output/report.md").read_text()


def test_the_choice_is_taken_by_what_the_tracker_says(recording: Transcript) -> None:
    """A denial, an error and an unreachable tracker all lead to the branch without an issue."""
    choice = next(each for each in recording.turns[0] if isinstance(each, Choice))
    opened, other = choice.branches

    assert all(each.holds({"issue": '{"status": 201, "number": 3}'}) for each in opened.when)
    assert not all(each.holds({"issue": '{"status": 401}'}) for each in opened.when)
    assert other.when == ()


def test_the_repair_stays_within_the_contract(
    contract: Contract, recording: Transcript, workspace: Path
) -> None:
    before = {p: p.read_bytes() for p in (workspace / "repo").rglob("*") if p.is_file()}
    for turn in (0, 1):
        play(turn, 0, recording, workspace, "")
    after = {p: p.read_bytes() for p in (workspace / "repo").rglob("*") if p.is_file()}

    changed = {str(p.relative_to(workspace / "repo")) for p in after if before.get(p) != after[p]}
    assert changed == {"tideline/tariff.py", "tests/test_tariff.py", "CHANGELOG.md"}
    assert set(before) == set(after)
    assert contract.output.allowed_paths == ("tideline/**", "tests/**", "CHANGELOG.md")


def test_policy_asks_a_person_exactly_for_the_tracker(
    contract: Contract, recording: Transcript
) -> None:
    asked = {}
    for turn in recording.turns:
        for branch in (0, 1):
            for step in steps(turn, branch):
                for item in step.output:
                    if isinstance(item, Call):
                        facts = call_facts(
                            contract,
                            tenant="tideline",
                            tool=item.tool,
                            kind=KINDS[item.tool],
                            arguments={"files": [], **(item.arguments or {})},
                            bases=demo.values(),
                        )
                        asked[item.id] = decide(DEFAULT_POLICY, facts).effect
    assert asked.pop("issue") == "ask"
    assert set(asked.values()) == {"allow"}


def test_the_contract_and_the_recording_belong_together(
    contract: Contract, recording: Transcript
) -> None:
    assert contract.agent.transcript == demo.RECORDING
    assert contract.agent.name == recording.agent
    assert contract.source.path == contract.target.path == demo.REPOSITORY
    assert contract.network.mode == "off"
    assert {tool.base for tool in contract.tools.http} == set(demo.values()) == {demo.TRACKER}
    assert contract.credentials == (demo.TRACKER,)


def test_the_repository_is_the_same_everywhere(tmp_path: Path) -> None:
    first = demo.make_repository(tmp_path / "one")

    assert demo.make_repository(tmp_path / "two") == first
    demo.git(tmp_path / "one" / demo.REPOSITORY, "update-ref", "refs/heads/imprimatur/x", first)
    assert demo.make_repository(tmp_path / "one") == first
    listing = demo.git(tmp_path / "one" / demo.REPOSITORY, "ls-tree", "-r", "--name-only", "main")
    assert "tideline/tariff.py" in listing.splitlines()
    assert "__pycache__" not in listing


# --- The tracker --------------------------------------------------------------------------------


@pytest.fixture
def tracker(tmp_path: Path) -> Iterator[Tracker]:
    service = start_tracker(tmp_path)
    yield service
    service.stop()


def ask(
    tracker: Tracker, body: Any = None, path: str = "/projects/tideline/issues", **headers: str
) -> tuple[int, Any]:
    """Status and answer of one request, with the right token unless another is given."""
    given = {"Authorization": f"Bearer {tracker.token}", **headers}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(tracker.url + path, data=data, headers=given)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=20) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_tracker_keeps_issues(tracker: Tracker) -> None:
    issue = {"title": "Wrong band", "text": "10 kg"}
    status, made = ask(tracker, issue, **{"Idempotency-Key": "k1"})
    again = ask(tracker, issue, **{"Idempotency-Key": "k1"})
    other = ask(tracker, issue, **{"Idempotency-Key": "k2"})

    assert (status, made["number"]) == (201, 1)
    assert again == (201, made), "the same key is the same issue"
    assert other[1]["number"] == 2
    assert [each["number"] for each in ask(tracker)[1]] == [1, 2]
    assert [each["number"] for each in tracker.issues("tideline")] == [1, 2]


def test_the_tracker_refuses(tracker: Tracker) -> None:
    assert ask(tracker, {"title": "x", "text": "y"}, Authorization="Bearer x")[0] == 401
    assert ask(tracker, {"title": "x"})[0] == 400
    assert ask(tracker, ["x"])[0] == 400
    assert ask(tracker, {"title": "x", "text": "y"}, path="/../etc")[0] == 404
    assert ask(tracker, {"title": "x", "text": "y" * 70_000})[0] == 413
    assert tracker.issues() == []


def test_the_tracker_comes_back_at_the_same_address(tmp_path: Path) -> None:
    first = start_tracker(tmp_path)
    first.open_issue("tideline", "kept", "text", "")
    first.stop()

    second = start_tracker(tmp_path)
    third = start_tracker(tmp_path)
    try:
        assert (second.url, second.token) == (first.url, first.token)
        assert third.url != second.url, "a port in use is no reason not to start"
        assert [each["title"] for each in second.issues()] == ["kept"]
        assert (tmp_path / "demo/token").stat().st_mode & 0o077 == 0
    finally:
        second.stop()
        third.stop()
