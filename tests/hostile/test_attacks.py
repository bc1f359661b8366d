"""Each attack of the drill is able to fail: against its weakened twin it reports just that."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from approvals import opening
from approvals.drill import attacks, recovery
from approvals.drill.stage import Stage
from approvals.judge import TenantJudge
from approvals.models import Packet
from runs import broker, credentials, driver, lifecycle
from runs.broker import http
from runs.drill import Attack, Finding, resources
from runs.drill.ground import Ground
from runs.models import Charge, ToolCall
from runs.providers import sandbox_provider
from runs.sandbox import SandboxProvider, base, docker
from runs.states import CallState
from tests.hostile.weak import (
    DiesWithItsHelpers,
    FollowsLinks,
    ReadsAnything,
    Weak,
    host_network,
    shared_tmp,
    showing,
    weaken_launches,
    writable_input,
)

Patch = pytest.MonkeyPatch


def broken(finding: Finding, words: str) -> None:
    """The attack is reported, and for the reason that it should be."""
    assert finding.outcome == "broken", finding
    assert words in finding.seen, finding


# --- Resources -------------------------------------------------------------------------

WIDER: dict[str, tuple[Attack[Ground], dict[str, Any], str]] = {
    "fork-bomb": (resources.fork_bomb, {"pids": 600}, "processes ran at once"),
    "memory": (resources.memory, {"memory_mb": 2048}, "one process held"),
    "disk": (resources.disk, {"workspace_mb": 64, "file_mb": 64}, "lay in /workspace/repo"),
    "endless-output": (resources.endless_output, {"output_bytes": 16 << 20}, "bytes were kept"),
}
BOXES: dict[str, tuple[Attack[Ground], Callable[[Any], Any], str]] = {
    "fifo": (resources.fifo, ReadsAnything, "waited at a named pipe"),
    "link-race": (resources.link_race, FollowsLinks, "written into a folder of the host"),
    "kill-helpers": (resources.kill_helpers, DiesWithItsHelpers, "did not work any more"),
}


@pytest.mark.bubblewrap
@pytest.mark.parametrize("name", WIDER)
def test_a_limit_that_is_not_kept_is_reported_of_bubblewrap(
    name: str, bubblewrap: str, folder: Path
) -> None:
    attack, limits, words = WIDER[name]
    broken(attack.run(Ground(Weak(sandbox_provider(), **limits), folder)), words)


@pytest.mark.docker
@pytest.mark.parametrize("name", WIDER)
def test_a_limit_that_is_not_kept_is_reported_of_docker(
    name: str, docker_engine: str, folder: Path
) -> None:
    attack, limits, words = WIDER[name]
    broken(attack.run(Ground(Weak(sandbox_provider(), **limits), folder)), words)


@pytest.mark.bubblewrap
@pytest.mark.parametrize("name", BOXES)
def test_a_careless_outer_runtime_is_reported(
    name: str, bubblewrap: str, folder: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(resources, "PIPE_SECONDS", 3)
    attack, box, words = BOXES[name]
    broken(attack.run(Ground(Weak(sandbox_provider(), box=box), folder)), words)


@pytest.mark.bubblewrap
def test_files_without_end_are_reported(bubblewrap: str, folder: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr("runs.sandbox.bubblewrap.MOST_FILES", 10 * base.MOST_FILES)
    broken(resources.inodes.run(Ground(sandbox_provider(), folder)), "files lay in a part")


@pytest.mark.bubblewrap
def test_io_uring_is_reported_of_bubblewrap(
    bubblewrap: str, folder: Path, monkeypatch: Patch
) -> None:
    provider: Any = sandbox_provider()
    provider.check()
    monkeypatch.setattr(provider, "_found", replace(provider._found, filter=None))
    broken(resources.io_uring.run(Ground(provider, folder)), "reached the kernel")


@pytest.mark.docker
def test_io_uring_is_reported_of_docker(
    docker_engine: str, folder: Path, monkeypatch: Patch
) -> None:
    """The filters of engines before version 25 let it pass."""
    monkeypatch.setattr(docker, "_CONFINED", ())
    finding = resources.io_uring.run(Ground(sandbox_provider(), folder))
    if finding.outcome == "held":
        pytest.skip("this engine's own filter refuses io_uring")
    broken(finding, "reached the kernel")


# --- Whole runs --------------------------------------------------------------------------


@pytest.mark.bubblewrap
def test_a_host_that_can_be_read_is_reported(
    bubblewrap: str, stage: Stage, monkeypatch: Patch
) -> None:
    weaken_launches(monkeypatch, showing(stage.forbidden.parent))
    broken(attacks.forbidden_path.run(stage), "belongs to the host")


@pytest.mark.bubblewrap
def test_an_input_that_can_be_written_is_reported(
    bubblewrap: str, stage: Stage, monkeypatch: Patch
) -> None:
    weaken_launches(monkeypatch, writable_input)
    broken(attacks.read_only_input.run(stage), "the input was changed")


@pytest.mark.bubblewrap
def test_a_network_that_is_open_is_reported_of_bubblewrap(
    bubblewrap: str, stage: Stage, monkeypatch: Patch
) -> None:
    weaken_launches(monkeypatch, host_network)
    broken(attacks.repository_instruction.run(stage), "a host was reached")


@pytest.mark.docker
def test_a_network_that_is_open_is_reported_of_docker(
    docker_engine: str, stage: Stage, monkeypatch: Patch
) -> None:
    provider: Any = sandbox_provider()
    provider.check()
    containers = type(provider._engine.client.containers)
    sound = containers.create
    monkeypatch.setattr(
        containers,
        "create",
        lambda self, *args, **more: sound(
            self, *args, **{**more, "network_mode": "host", "hostname": None}
        ),
    )
    broken(attacks.repository_instruction.run(stage), "a host was reached")


@pytest.mark.bubblewrap
def test_a_gate_that_is_open_is_reported(bubblewrap: str, stage: Stage, monkeypatch: Patch) -> None:
    sound = TenantJudge.judge

    def allow(*args: Any, **more: Any) -> lifecycle.Judged:
        return replace(sound(*args, **more), state=CallState.ALLOWED)

    monkeypatch.setattr(TenantJudge, "judge", allow)
    broken(attacks.outward_action.run(stage), "the request was sent and nobody had been asked")


@pytest.mark.bubblewrap
def test_a_candidate_that_nobody_read_is_reported(
    bubblewrap: str, stage: Stage, monkeypatch: Patch
) -> None:
    sound = opening.open_publication_packet

    def wave_through(candidate_id: int) -> Packet | None:
        packet = sound(candidate_id)
        if packet is not None:
            stage.approve(packet)
        return packet

    monkeypatch.setattr(opening, "open_publication_packet", wave_through)
    broken(attacks.destructive_change.run(stage), "a branch of the source was moved")


@pytest.mark.bubblewrap
def test_a_credential_in_a_snapshot_is_reported(
    bubblewrap: str, stage: Stage, monkeypatch: Patch
) -> None:
    sound = driver._environment
    monkeypatch.setattr(
        driver,
        "_environment",
        lambda run, contract: {**sound(run, contract), "TOKEN": stage.ours.token},
    )
    broken(attacks.snapshot.run(stage), "holds the credential")


@pytest.mark.bubblewrap
def test_a_snapshot_that_is_not_compared_is_reported(
    bubblewrap: str, stage: Stage, monkeypatch: Patch
) -> None:
    provider = type(sandbox_provider())
    sound = provider.create

    async def trusting(self: Any, spec: Any, **more: Any) -> Any:
        return await sound(self, spec, restore=more.get("restore"))

    monkeypatch.setattr(provider, "create", trusting)
    broken(attacks.changed_snapshot.run(stage), "a changed snapshot was restored")


@pytest.mark.bubblewrap
def test_an_effect_that_is_repeated_is_reported(
    bubblewrap: str, stage: Stage, monkeypatch: Patch
) -> None:
    sound = http.send

    def twice(*args: Any, **more: Any) -> broker.Done:
        sound(*args, **more)
        return sound(*args, **more)

    monkeypatch.setattr(http, "send", twice)
    broken(attacks.repeat_completed.run(stage), "the effect happened 2 times")


@pytest.mark.bubblewrap
def test_an_effect_that_is_tried_again_blindly_is_reported(
    bubblewrap: str, stage: Stage, monkeypatch: Patch
) -> None:
    sound = http.send

    def stubborn(*args: Any, **more: Any) -> broker.Done:
        try:
            return sound(*args, **more)
        except broker.BrokerUnknown:
            return sound(*args, **more)

    monkeypatch.setattr(http, "send", stubborn)
    broken(attacks.repeat_unknown.run(stage), "the effect was tried 2 times")


@pytest.mark.bubblewrap
@pytest.mark.parametrize("attack", [attacks.cancel, attacks.failure], ids=lambda each: each.key)
def test_what_is_left_behind_is_reported(
    attack: Attack[Stage], bubblewrap: str, stage: Stage, monkeypatch: Patch
) -> None:
    async def forget(self: Any) -> None:
        """Leave everything where it is."""

    monkeypatch.setattr("runs.sandbox.bubblewrap.BubblewrapSandbox._remove", forget)
    broken(attack.run(stage), "left behind: sandbox")


@pytest.mark.bubblewrap
def test_a_cost_on_another_tenant_is_reported(
    bubblewrap: str, stage: Stage, monkeypatch: Patch
) -> None:
    sound = lifecycle.charge

    def astray(lease: lifecycle.Lease, *args: Any) -> None:
        sound(lease, *args)
        Charge.objects.filter(run_id=lease.run_id).update(tenant=stage.rival.tenant)

    monkeypatch.setattr(lifecycle, "charge", astray)
    broken(attacks.costs.run(stage), "stands on another tenant")


@pytest.mark.bubblewrap
def test_each_recovery_step_that_is_left_out_is_reported(
    bubblewrap: str, stage: Stage, folder: Path, monkeypatch: Patch
) -> None:
    """All six at once: what each step reports is its own weakness and no other."""
    shared = folder / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    _save_no_artifact(monkeypatch)
    weaken_launches(monkeypatch, shared_tmp(shared))
    _say_the_task_again(monkeypatch)
    _take_another_image(monkeypatch)
    _keep_the_old_credential(monkeypatch, stage.ours.token)
    _forget_what_was_done(monkeypatch)
    broken(recovery.interrupt.run(stage), "lacks the artifact")
    broken(recovery.fresh_compute.run(stage), "outside the workspace is still there")
    broken(recovery.reissue.run(stage), "the task was said 2 times")
    broken(recovery.confirm.run(stage), "not the same as before: image")
    broken(recovery.credentials.run(stage), "the old one was used")
    broken(recovery.effects.run(stage), "happened 2 and 1 times")


def _save_no_artifact(monkeypatch: Patch) -> None:
    monkeypatch.setattr(base, "PARTS", ("repo", "input"))


def _say_the_task_again(monkeypatch: Patch) -> None:
    sound = lifecycle.save_checkpoint

    def save(lease: lifecycle.Lease, kept: lifecycle.Kept, **more: Any) -> None:
        if kept.purpose == "finished":
            state = json.loads(kept.state)
            recovery.conversations(state)[0].append({"role": "user", "content": "again"})
            kept = replace(kept, state=json.dumps(state))
        sound(lease, kept, **more)

    monkeypatch.setattr(lifecycle, "save_checkpoint", save)


def _take_another_image(monkeypatch: Patch) -> None:
    provider = type(sandbox_provider())
    sound = provider.create

    async def create(self: SandboxProvider, spec: Any, **more: Any) -> Any:
        box = await sound(self, spec, **more)
        if more.get("restore"):
            box.image_digest = "sha256:" + "0" * 64
        return box

    monkeypatch.setattr(provider, "create", create)


def _keep_the_old_credential(monkeypatch: Patch, old: str) -> None:
    @contextmanager
    def use(*args: Any, **more: Any) -> Iterator[credentials.Secret]:
        yield credentials.Secret(old)

    monkeypatch.setattr(credentials, "use", use)


def _forget_what_was_done(monkeypatch: Patch) -> None:
    sound = lifecycle.begin_call

    @functools.wraps(sound)
    def begin(lease: lifecycle.Lease, call_id: str, *args: Any) -> Any:
        later = timezone.now() + timedelta(hours=1)
        done = ToolCall.objects.filter(
            run_id=lease.run_id, call_id=call_id, outward=True, state=CallState.DONE
        )
        # The call and its packet each know it; either alone would be enough.
        Packet.objects.filter(call__in=done).update(used_at=None)
        done.update(state=CallState.APPROVED, usable_until=later)
        return sound(lease, call_id, *args)

    monkeypatch.setattr(lifecycle, "begin_call", begin)


def test_the_twins_are_complete() -> None:
    """An attack without a twin could be one that cannot fail."""
    source = Path(__file__).read_text()
    for name, module in (("resources", resources), ("attacks", attacks), ("recovery", recovery)):
        made = {id(value): word for word, value in vars(module).items()}
        for each in module.ATTACKS:
            assert f"{name}.{made[id(each)]}" in source, each
