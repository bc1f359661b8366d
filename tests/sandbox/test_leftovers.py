"""What is left when a worker is killed, and that the reaper finds all of it and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runs.sandbox import SandboxProvider, SandboxSpec, get_provider, image
from runs.sandbox.base import remove_tree
from runs.sandbox.cgroups import Cgroup
from tests.sandbox.stage import SMALL

HERE = Path(__file__).resolve().parents[2]


@contextmanager
def _dead_worker(name: str, data: Path) -> Iterator[tuple[str, str]]:
    """A worker that was killed with -9; gives its sandbox and what its commands are called."""
    seconds = str(random.randint(10**6, 10**9))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.sandbox.worker", name, str(data), seconds],
        cwd=HERE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        assert said["said"] == "running\n"
        _until(lambda: len(_processes(seconds)) >= 3, "the commands run")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    yield said["ref"], seconds


def _processes(word: str) -> list[int]:
    """The processes of this machine that were started with this word."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            try:
                words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if word.encode() in words:
                found.append(int(entry.name))
    return found


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, f"it never came: {what}"
        time.sleep(0.05)


@pytest.mark.bubblewrap
def test_what_ran_in_bubblewrap_dies_with_its_worker_and_the_rest_is_reaped(
    bubblewrap: SandboxProvider, sandbox_data: Path
) -> None:
    with _dead_worker("bubblewrap", sandbox_data) as (ref, seconds):
        _until(lambda: not _processes(seconds), "its commands have ended")
        folder = sandbox_data / "sandbox/bubblewrap" / ref
        assert folder.is_dir()
        assert asyncio.run(bubblewrap.reap(["run-of-the-dead"])) == []
        removed = asyncio.run(bubblewrap.reap([]))
    assert removed == [f"sandbox {ref} of run run-of-the-dead"]
    assert not folder.exists()
    assert ref not in Path("/proc/mounts").read_text()
    assert not [path for path in Path("/sys/fs/cgroup").glob("*") if ref in path.name]
    assert not [path for path in Path("/sys/fs/cgroup").glob("*/*") if ref in path.name]
    assert asyncio.run(bubblewrap.reap([])) == []


@pytest.mark.docker
def test_a_container_outlives_its_worker_and_is_reaped(
    docker_engine: SandboxProvider, sandbox_data: Path
) -> None:
    with _dead_worker("docker", sandbox_data) as (ref, seconds):
        assert asyncio.run(docker_engine.reap(["run-of-the-dead"])) == []
        assert _processes(seconds)
        removed = asyncio.run(docker_engine.reap([]))
        assert removed == [f"sandbox {ref} of run run-of-the-dead"]
        _until(lambda: not _processes(seconds), "its commands have ended")
        assert not (sandbox_data / "sandbox/docker" / ref).exists()
    assert asyncio.run(docker_engine.reap([])) == []


@pytest.mark.docker
def test_a_folder_without_its_container_is_reaped_once_it_is_old(
    docker_engine: SandboxProvider, sandbox_data: Path
) -> None:
    home = sandbox_data / "sandbox/docker"
    home.mkdir(parents=True, exist_ok=True)
    young, old = home / "imprimatur-young", home / "imprimatur-old"
    for folder in (young, old):
        folder.mkdir()
    os.utime(old, (time.time() - 10_000, time.time() - 10_000))
    assert asyncio.run(docker_engine.reap([])) == ["folder of imprimatur-old"]
    assert young.is_dir()
    young.rmdir()


def test_another_installation_s_sandboxes_are_not_touched(
    real_provider: SandboxProvider, sandbox_data: Path, tmp_path: Path
) -> None:
    # The same image, so that it need not be built: what tells them apart is the directory.
    (tmp_path / "other/sandbox").mkdir(parents=True)
    (tmp_path / "other/sandbox/images").symlink_to(sandbox_data / "sandbox/images")
    other = get_provider(real_provider.name, data_dir=tmp_path / "other")  # type: ignore[arg-type]

    async def story() -> None:
        box = await real_provider.create(SandboxSpec("run-1", "tenant-1", SMALL))
        try:
            assert [line for line in await other.reap([]) if "sandbox" in line] == []
            assert await box.alive()
        finally:
            await box.close()

    asyncio.run(story())


@pytest.mark.bubblewrap
def test_a_folder_that_is_being_made_is_left_alone_and_an_old_one_is_not(
    bubblewrap: SandboxProvider, sandbox_data: Path
) -> None:
    home = sandbox_data / "sandbox/bubblewrap"
    home.mkdir(parents=True, exist_ok=True)
    young, old = home / ".bw-young", home / ".bw-old"
    for folder in (young, old):
        folder.mkdir()
    os.utime(old, (time.time() - 10_000, time.time() - 10_000))
    assert asyncio.run(bubblewrap.reap([])) == ["sandbox .bw-old of an unknown run"]
    assert young.is_dir()
    young.rmdir()


@pytest.mark.bubblewrap
def test_a_folder_that_is_being_unmade_is_left_to_whoever_does_it(
    bubblewrap: SandboxProvider, sandbox_data: Path
) -> None:
    """It has lost its owner already, and its worker is not dead."""
    half = sandbox_data / "sandbox/bubblewrap/bw-half"
    half.mkdir(parents=True)
    assert asyncio.run(bubblewrap.reap([])) == []
    assert half.is_dir()
    os.utime(half, (time.time() - 100, time.time() - 100))
    assert asyncio.run(bubblewrap.reap([])) == ["sandbox bw-half of an unknown run"]
    assert not half.exists()


@pytest.fixture
def nobody_s_home() -> Iterator[tuple[int, Path]]:
    """A user that nothing belongs to, and a folder that does."""
    home = Path(tempfile.mkdtemp(prefix="imprimatur-nobody-", dir="/tmp"))
    nobody = 64_000 + random.randint(0, 999)
    os.chown(home, nobody, nobody)
    yield nobody, home
    remove_tree(home)


@pytest.mark.bubblewrap
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_unprivileged_worker_can_use_bubblewrap_too(nobody_s_home: tuple[int, Path]) -> None:
    """The same promises, kept for a user who may mount nothing and make no cgroup."""
    python = Path(f"/usr/bin/python3.{sys.version_info.minor}")
    readable = all(parent.stat().st_mode & 0o001 for parent in [HERE, *HERE.parents])
    if not python.exists() or not readable:
        pytest.skip("no Python of this version, or no copy of the source, that anybody may read")
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    nobody, home = nobody_s_home
    ran = subprocess.run(
        [
            *("setpriv", f"--reuid={nobody}", f"--regid={nobody}", "--clear-groups", str(python)),
            *("-m", "pytest", "-c", os.devnull, f"--rootdir={HERE}", "-p", "no:cacheprovider"),
            *("--confcutdir=tests/sandbox", f"--basetemp={home}/t", "-q", "-W", "ignore"),
            *("tests/sandbox/test_conformance.py", "tests/sandbox/test_escapes.py"),
            "tests/sandbox/test_egress.py",
            *("-k", f"bubblewrap and ({UNPRIVILEGED})"),
        ],
        cwd=HERE,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(home),
            "PYTHONPATH": f"{HERE}:{packages}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    assert " passed" in ran.stdout


UNPRIVILEGED = (
    "check or doors or bomb or memory or bounded or full or snapshot_brings or unchanged or input "
    "or typed or lost or network or reaper or pytest or way_out"
)


@pytest.mark.bubblewrap
def test_an_image_that_is_found_while_the_reaper_looks_around_is_kept(
    sandbox_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's first run and its first sweep begin together."""
    found = image.ensure(sandbox_data)
    provider = get_provider("bubblewrap", data_dir=sandbox_data)

    def meanwhile(mark: str) -> list[Cgroup]:
        provider.check()
        os.utime(found.root.parent, (0, 0))
        return []

    monkeypatch.setattr(Cgroup, "all_of", meanwhile)
    assert asyncio.run(provider.reap([])) == []
    assert found.root.is_dir()
