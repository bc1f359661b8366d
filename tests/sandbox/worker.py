"""A worker of its own process, to be killed: makes a sandbox, lets a command run in it, waits."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from runs.sandbox import SandboxSpec, get_provider
from tests.sandbox.stage import SMALL


async def main(name: str, data: str, seconds: str) -> None:
    provider = get_provider(name, data_dir=Path(data))  # type: ignore[arg-type]
    box = await provider.create(SandboxSpec("run-of-the-dead", "tenant-1", SMALL))
    await box.start(["sleep", seconds])
    await box.start(["sh", "-c", f"setsid sleep {seconds} & sleep {seconds}"], tty=True)
    result = await box.exec(["sh", "-c", "echo running"], timeout=60)
    print(json.dumps({"ref": box.ref, "said": result.stdout.decode()}), flush=True)
    await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
