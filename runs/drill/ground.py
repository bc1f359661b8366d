"""What attacks on a provider stand on: the provider, a folder of the host, and sandboxes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from runs.drill import Attack
from runs.sandbox import ExecResult, Limits, Sandbox, SandboxProvider, SandboxSpec

SMALL = Limits(
    wall_seconds=300,
    memory_mb=128,
    pids=64,
    workspace_mb=8,
    tmp_mb=8,
    output_bytes=1 << 20,
    file_mb=8,
)
"""Small enough that going beyond them takes seconds and harms no machine, should it succeed."""

PATIENCE = 90.0
"""Seconds for one attack: nothing promised takes that long."""

SECONDS = 30.0
"""Seconds for one command."""


class Ground:
    """A provider under attack. `folder` lies on the host; no sandbox may reach it."""

    def __init__(self, provider: SandboxProvider, folder: Path) -> None:
        self.provider = provider
        self.folder = folder
        self.weaker = provider.check().weaker

    @property
    def watched(self) -> bool:
        """Whether the provider says itself that sizes are watched here, not enforced."""
        return any("watched" in each for each in self.weaker)

    @property
    def per_process(self) -> bool:
        """Whether the provider says itself that memory and processes are bounded one by one."""
        return any("per process" in each for each in self.weaker)

    @asynccontextmanager
    async def box(
        self, *, limits: Limits = SMALL, egress: Path | None = None
    ) -> AsyncIterator[Sandbox]:
        """A fresh sandbox, closed at the end of the block."""
        run = f"drill-{secrets.token_hex(4)}"
        box = await self.provider.create(SandboxSpec(run, "drill", limits, egress_dir=egress))
        try:
            yield box
        finally:
            await box.close()


def on_sandbox(
    key: str, promise: int, *, attack: str, promised: str
) -> Callable[[Callable[[Ground], Awaitable[str]]], Attack[Ground]]:
    """Make an attack of a coroutine; it gets an event loop of its own and `PATIENCE`."""

    def made(story: Callable[[Ground], Awaitable[str]]) -> Attack[Ground]:
        async def patiently(ground: Ground) -> str:
            async with asyncio.timeout(PATIENCE):
                return await story(ground)

        return Attack(key, promise, attack, promised, lambda ground: asyncio.run(patiently(ground)))

    return made


async def sh(box: Sandbox, script: str, *arguments: str, seconds: float = SECONDS) -> ExecResult:
    """Run a shell script in a sandbox."""
    return await box.exec(["sh", "-c", script, "sh", *arguments], timeout=seconds)


async def python(box: Sandbox, program: str, *arguments: str) -> ExecResult:
    """Run a Python program in a sandbox."""
    return await box.exec(["python3", "-I", "-S", "-c", program, *arguments], timeout=SECONDS)


async def said(box: Sandbox, script: str) -> str:
    """What a script prints to its output, without the space around it."""
    return (await sh(box, script)).stdout.decode(errors="replace").strip()
