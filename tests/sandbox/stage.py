"""What the tests of the sandboxes stand on: providers, sandboxes that are always closed, tars."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from runs.sandbox import (
    ExecResult,
    FailureReason,
    Limits,
    Sandbox,
    SandboxOperationFailed,
    SandboxProvider,
    SandboxSpec,
)

SMALL = Limits(
    wall_seconds=300,
    memory_mb=256,
    pids=64,
    workspace_mb=8,
    tmp_mb=8,
    output_bytes=1 << 20,
    file_mb=16,
)
SECONDS = 60.0
"""For a command that is expected to end by itself: no test waits that long."""


class Stage:
    """A provider and a folder of this test; whatever sandbox it makes is closed at the end."""

    def __init__(self, provider: SandboxProvider, folder: Path) -> None:
        self.provider = provider
        self.folder = folder
        self._boxes: list[Sandbox] = []

    async def box(
        self,
        run_id: str = "run-1",
        *,
        limits: Limits = SMALL,
        environment: Mapping[str, str] | None = None,
        restore: Path | io.BufferedReader | None = None,
        sha256: str | None = None,
    ) -> Sandbox:
        spec = SandboxSpec(run_id, "tenant-1", limits, environment or {})
        box = await self.provider.create(spec, restore=restore, restore_sha256=sha256)
        self._boxes.append(box)
        return box

    async def close(self) -> None:
        for box in self._boxes:
            await box.close()

    async def lose(self, box: Sandbox) -> None:
        """Take it away from outside, as a crash of the machine's parts would."""
        if box.provider == "scripted":
            box.lose("somebody took it away")  # type: ignore[attr-defined]
        elif box.provider == "docker":
            import docker

            client = docker.DockerClient(base_url=self.provider.host)  # type: ignore[attr-defined]
            await asyncio.to_thread(client.containers.get(box.ref).kill)
            client.close()
        else:
            await asyncio.to_thread(box.lose)  # type: ignore[attr-defined]


Story = Callable[[Stage], Awaitable[None]]


def behaviour(story: Story) -> Callable[[SandboxProvider, Path], None]:
    """A test told as one coroutine over a stage."""

    def test(provider: SandboxProvider, tmp_path: Path) -> None:
        async def told() -> None:
            stage = Stage(provider, tmp_path)
            try:
                await asyncio.wait_for(story(stage), 240)
            finally:
                await stage.close()

        asyncio.run(told())

    test.__name__ = story.__name__
    test.__doc__ = story.__doc__
    test.__module__ = story.__module__
    return test


async def sh(box: Sandbox, script: str, *, timeout: float = SECONDS, **more: Any) -> ExecResult:
    """Run a script in a sandbox."""
    return await box.exec(["sh", "-c", script], timeout=timeout, **more)


async def out(box: Sandbox, script: str, **more: Any) -> str:
    """What a script prints; it must end well."""
    result = await sh(box, script, **more)
    assert result.exit_code == 0, result
    return result.stdout.decode("utf-8", "surrogateescape")


class Failing:
    """`async with`: the body must fail with SandboxOperationFailed for one of these reasons."""

    def __init__(self, *reasons: FailureReason) -> None:
        self.reasons = reasons

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> bool:
        assert isinstance(error, SandboxOperationFailed), f"it did not fail as it should: {error!r}"
        assert error.reason in self.reasons, error
        assert error.boundary == "execution"
        return True


def tar(path: Path, *entries: tarfile.TarInfo | tuple[str, bytes], **options: Any) -> Path:
    """A tar with plain files (name, content) and with entries as odd as their headers say."""
    with tarfile.open(path, "w", **options) as writer:
        for entry in entries:
            if isinstance(entry, tuple):
                info = tarfile.TarInfo(entry[0])
                info.size = len(entry[1])
                writer.addfile(info, io.BytesIO(entry[1]))
            else:
                writer.addfile(entry)
    return path


def entry(name: str, kind: bytes, target: str = "", **more: Any) -> tarfile.TarInfo:
    """One odd header."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    for field, value in more.items():
        setattr(info, field, value)
    return info


def tree(folder: Path, files: Mapping[str, bytes]) -> Path:
    """A host folder with these files."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def listed(folder: Path) -> dict[str, str | bytes]:
    """What a host folder holds: content of files, `-> target` of links, `/` for folders."""
    found: dict[str, str | bytes] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_dir():
            found[name] = "/"
        else:
            found[name] = path.read_bytes()
    return found


async def until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for something that happens soon, however slow the machine is."""
    for _ in range(600):
        if await holds():
            return
        await asyncio.sleep(0.1)
    pytest.fail(f"it never came: {what}")
