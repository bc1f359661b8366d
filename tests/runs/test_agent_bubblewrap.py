"""An agent in a real sandbox: tools, a pause with a snapshot, and a stop that kills."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from runs import agent
from runs.sandbox import Sandbox, SandboxProvider, SandboxSpec, SandboxUnavailable, get_provider
from tests.runs.agent_parts import RecordingHost, brief, call, calls, say, yes

pytestmark = pytest.mark.bubblewrap


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> SandboxProvider:
    provider = get_provider("bubblewrap", data_dir=tmp_path_factory.mktemp("data"))
    try:
        provider.check()
    except SandboxUnavailable as unavailable:
        pytest.skip(str(unavailable))
    return provider


@pytest.fixture
def source(tmp_path: Path) -> Path:
    tree = tmp_path / "source"
    tree.mkdir()
    (tree / "sums.py").write_text("def plus(a, b):\n    return a - b\n")
    (tree / "test_sums.py").write_text(
        "from sums import plus\n\n\ndef test_plus():\n    assert plus(2, 3) == 5\n"
    )
    return tree


def within(provider: SandboxProvider, work: Callable[[Sandbox], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        box = await provider.create(SandboxSpec(run_id=secrets.token_hex(8), tenant="acme"))
        try:
            await work(box)
        finally:
            await box.close()

    asyncio.run(run())


REPAIR = "\n".join(
    [
        "*** Begin Patch",
        "*** Update File: repo/sums.py",
        "@@ def plus(a, b):",
        "-    return a - b",
        "+    return a + b",
        "*** Add File: output/report.md",
        "+# Report",
        "+Repaired.",
        "*** End Patch",
    ]
)


def test_a_repair_with_a_pause_in_the_middle_goes_on_in_a_new_sandbox(
    provider: SandboxProvider, source: Path, tmp_path: Path
) -> None:
    asked = brief(
        [
            calls(call("before", "exec_command", cmd="python3 -m pytest -q")),
            calls(
                call("repair", "apply_patch", patch=REPAIR),
                call("tell", "notify_team", text="Repaired."),
                expects=[{"call": "before", "contains": "1 failed"}],
            ),
            calls(
                call("after", "exec_command", cmd="python3 -m pytest -q"),
                call("report", "exec_command", cmd="cat ../output/report.md"),
                expects=[{"call": "tell", "contains": "delivered"}],
            ),
            say(
                "Done.",
                expects=[
                    {"call": "after", "contains": "1 passed"},
                    {"call": "report", "contains": "# Report\nRepaired.\n"},
                ],
            ),
        ]
    )
    host = RecordingHost()
    kept = tmp_path / "snapshot.tar"
    found: dict[str, Any] = {}

    async def first(box: Sandbox) -> None:
        await box.load(source, "repo")
        outcome = await agent.start(asked, box, host)
        assert outcome.status == "waiting", outcome
        host.approve(*(pending.call for pending in outcome.pending))
        found["state"] = outcome.state
        found["sha256"] = (await box.snapshot(kept)).sha256

    within(provider, first)

    async def second() -> None:
        box = await provider.create(
            SandboxSpec(run_id=secrets.token_hex(8), tenant="acme"),
            restore=kept,
            restore_sha256=found["sha256"],
        )
        try:
            outcome = await agent.resume(
                asked, box, host, state=found["state"], answers={"tell": yes()}
            )
            assert (outcome.status, outcome.output) == ("finished", "Done."), outcome
            assert b"a + b" in await box.read("repo/sums.py", max_bytes=1000)
        finally:
            await box.close()

    asyncio.run(second())
    assert host.ran() == ["before", "repair", "tell", "after", "report"]


def test_writing_to_a_terminal_is_judged_with_its_command(provider: SandboxProvider) -> None:
    def decide(proposed: Any) -> str:
        evil = proposed.kind == "stdin" and "touch" in proposed.arguments["chars"]
        return "deny" if evil else "allow"

    host = RecordingHost(decide=decide)
    session = {"$session_of": "open"}
    asked = brief(
        [
            calls(call("open", "exec_command", cmd="sh -i", tty=True, yield_time_ms=500)),
            calls(call("evil", "write_stdin", session_id=session, chars="touch ../output/x\n")),
            calls(call("good", "write_stdin", session_id=session, chars="echo $((6*7))\n")),
            calls(call("look", "exec_command", cmd="ls ../output")),
            say("Done.", expects=[{"call": "look", "lacks": "x\n"}]),
        ]
    )

    async def work(box: Sandbox) -> None:
        outcome = await agent.start(asked, box, host)
        assert outcome.status == "finished", outcome

    within(provider, work)
    written = [made for made in host.judged if made.kind == "stdin"]
    assert [made.arguments["command"] for made in written] == ["sh -i", "sh -i"]
    assert host.ran() == ["open", "good", "look"]


def test_links_and_the_read_only_folder_hold_against_the_tools(provider: SandboxProvider) -> None:
    def patch(*lines: str) -> str:
        return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])

    host = RecordingHost()
    through = patch("*** Update File: output/link", "@@", "-root:x:0:0:root:/root:/bin/bash", "+x")
    asked = brief(
        [
            calls(call("link", "exec_command", cmd="ln -s /etc/passwd ../output/link")),
            calls(
                call("through", "apply_patch", patch=through),
                call("input", "apply_patch", patch=patch("*** Add File: input/new", "+x")),
                call("view", "view_image", path="output/link"),
            ),
            say("Done."),
        ]
    )

    async def work(box: Sandbox) -> None:
        assert (await agent.start(asked, box, host)).status == "finished"

    within(provider, work)
    ended = {made.call_id: (ok, output) for made, ok, output, _ in host.done}
    assert [ended[name][0] for name in ("link", "through", "input", "view")] == [
        True,
        False,
        False,
        False,
    ]
    assert "root:x" not in ended["view"][1]


def test_a_stop_kills_the_command(
    provider: SandboxProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runs.agent.stretch.WATCH_EVERY_S", 0.05)
    mark = f"71{os.getpid()}"
    host = RecordingHost()
    asked = brief(
        [
            calls(call("c1", "exec_command", cmd=f"sleep {mark}", yield_time_ms=30000)),
            say("Never."),
        ]
    )

    async def work(box: Sandbox) -> None:
        working = asyncio.create_task(agent.start(asked, box, host))
        for _ in range(3000):
            if running(mark):
                break
            await asyncio.sleep(0.01)
        assert running(mark)
        host.stop = "cancelled"
        outcome = await working
        assert (outcome.status, outcome.stop) == ("stopped", "cancelled")

    within(provider, work)
    assert not running(mark)


def running(mark: str) -> list[str]:
    """Processes on this machine whose command line holds the mark as a word."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark.encode() in words:
                found.append(entry.name)
    return found


def test_a_sandbox_that_dies_is_execution_and_not_an_answer(provider: SandboxProvider) -> None:
    host = RecordingHost()
    asked = brief(
        [
            calls(call("c1", "exec_command", cmd="true")),
            calls(call("c2", "exec_command", cmd="true")),
            say("Never."),
        ]
    )

    async def work(box: Sandbox) -> None:
        finished = host.finished

        async def then_lose(*args: Any, **facts: Any) -> None:
            await finished(*args, **facts)
            await box.close()

        host.finished = then_lose  # type: ignore[method-assign]
        outcome = await agent.start(asked, box, host)
        assert outcome.status == "failed", outcome
        assert outcome.error is not None
        assert (outcome.error.boundary, outcome.error.code) == ("execution", "sandbox_lost")
        assert outcome.state is None

    within(provider, work)
