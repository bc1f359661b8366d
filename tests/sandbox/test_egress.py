"""The one way out, where a run has one: a unix socket of the host, and nothing beside it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from runs.sandbox import SandboxProvider, SandboxSpec
from tests.sandbox.stage import SECONDS, SMALL, out, sh

ASK = r"""
import os, socket, sys, urllib.request
print(urllib.request.urlopen("http://allowed.test/page", timeout=20).read().decode())
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), 3)
    print("REACHED")
except OSError:
    print("nothing beside it")
"""


@asynccontextmanager
async def _proxy() -> AsyncIterator[tuple[Path, list[str]]]:
    """A proxy that answers every request itself; gives its folder and what it was asked."""
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        asked.append(request.split(b"\r\n")[0].decode())
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nhello from the proxy")
        await writer.drain()
        writer.close()

    folder = Path(tempfile.mkdtemp(prefix="imprimatur-egress-", dir="/tmp"))
    folder.chmod(0o755)
    server = await asyncio.start_unix_server(answer, folder / "proxy.sock")
    (folder / "proxy.sock").chmod(0o666)
    try:
        yield folder, asked
    finally:
        server.close()
        shutil.rmtree(folder)


def test_a_run_with_a_way_out_has_that_and_no_other(real_provider: SandboxProvider) -> None:
    async def story() -> None:
        async with _proxy() as (folder, asked):
            other = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
            port = str(other.sockets[0].getsockname()[1])
            spec = SandboxSpec("run-1", "tenant-1", SMALL, egress_dir=folder)
            box = await real_provider.create(spec)
            try:
                said = await box.exec(["python3", "-c", ASK, port], timeout=SECONDS)
                assert said.stdout.decode() == "hello from the proxy\nnothing beside it\n", said
                assert asked == ["GET http://allowed.test/page HTTP/1.1"]
                assert (await sh(box, "echo x > /egress/new")).exit_code != 0
                assert (await box.exec(["no-such-program"], timeout=SECONDS)).exit_code == 127
                assert await out(box, "echo here") == "here\n"
            finally:
                await box.close()
                other.close()

    asyncio.run(story())


def test_a_run_without_a_way_out_has_none(real_provider: SandboxProvider) -> None:
    async def story() -> None:
        box = await real_provider.create(SandboxSpec("run-1", "tenant-1", SMALL))
        try:
            said = await box.exec(["python3", "-c", ASK, "9"], timeout=SECONDS)
            assert said.exit_code != 0
            assert "proxy" not in await out(box, "env")
        finally:
            await box.close()

    asyncio.run(story())
