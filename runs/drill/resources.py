"""Attacks on the machine: processes, memory, disk, output, files that are none, and helpers.

Each stops by itself a little beyond the limit, so that a provider that keeps no promise is reported
and the machine under it survives.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import time
from pathlib import Path

from runs.drill import Broken
from runs.drill.ground import SMALL, Ground, on_sandbox, python, said, sh
from runs.sandbox import ExecResult, Sandbox, SandboxError, SandboxOperationFailed
from runs.sandbox.base import MOST_FILES

MB = 1 << 20

PIPE_SECONDS = 20.0
"""For three operations that must not wait."""

# The children hold no output open, or the command would not end before them.
_FORKS = """
import os, signal, sys, time
made = 0
while made < int(sys.argv[1]):
    try:
        child = os.fork()
    except OSError:
        break
    if not child:
        for fd in (0, 1, 2):
            os.close(fd)
        time.sleep(60)
        os._exit(0)
    made += 1
print(made, flush=True)
os.kill(-1, signal.SIGKILL)
"""
_HOG = """
import sys
held = []
for _ in range(int(sys.argv[1]) // 8):
    held.append(bytearray(b"x") * (8 << 20))
    print(8 * len(held), flush=True)
"""
_EMPTY_FILES = """
import os, sys
made = 0
try:
    while made < int(sys.argv[1]):
        os.close(os.open(f"{made:x}", os.O_CREAT | os.O_WRONLY))
        made += 1
except OSError:
    pass
"""
_SWAPS = """
import os, sys
while True:
    try:
        os.symlink(sys.argv[1], "x"); os.rename("x", "spot")
        os.mkdir("y"); os.rename("y", "spot")
    except OSError:
        for remove in (os.unlink, os.rmdir):
            try:
                remove("spot")
            except OSError:
                pass
"""
_URING = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(425, 1, None), ctypes.get_errno())
"""
_FETCH = """
import socket, sys, time
for _ in range(40):
    try:
        with socket.create_connection(("127.0.0.1", 3128), 2) as proxy:
            proxy.sendall(b"GET http://drill.invalid/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
            if b"still here" in proxy.recv(1000):
                print("still here")
                break
    except OSError:
        pass
    time.sleep(0.25)
"""


async def _answers(box: Sandbox, after: str) -> None:
    """Raises `Broken` unless the next command works."""
    try:
        word = await said(box, "echo next")
    except SandboxError as error:
        raise Broken(f"{after}, and then the sandbox did not work any more: {error}") from error
    if word != "next":
        raise Broken(f"{after}, and then the next command did not work")


def _number(result: ExecResult) -> int:
    """The last number printed."""
    words = result.stdout.split()
    if not words or not words[-1].isdigit():
        raise Broken(f"the attack could not begin: {result.stderr[-300:].decode(errors='replace')}")
    return int(words[-1])


@on_sandbox(
    "fork-bomb",
    10,
    attack="starts processes until it may not any more",
    promised=f"at most {SMALL.pids} processes, and the sandbox goes on working",
)
async def fork_bomb(ground: Ground) -> str:
    """Processes of the whole sandbox."""
    async with ground.box() as box:
        made = _number(await python(box, _FORKS, str(5 * SMALL.pids)))
        # A provider may need a few of its own. Where all processes of a user are counted, others
        # of that user may end meanwhile.
        if made > SMALL.pids * (2 if ground.per_process else 1) + 8:
            raise Broken(f"{made} processes ran at once where {SMALL.pids} are allowed")
        await _answers(box, f"{made} processes ran")
        return f"{made} processes, then no more; the next command worked"


@on_sandbox(
    "memory",
    10,
    attack="takes memory until it may not any more",
    promised=f"at most {SMALL.memory_mb} MB, and the sandbox goes on working",
)
async def memory(ground: Ground) -> str:
    """Memory of one process."""
    async with ground.box() as box:
        held = _number(await python(box, _HOG, str(4 * SMALL.memory_mb)))
        if held > SMALL.memory_mb:
            raise Broken(f"one process held {held} MB where {SMALL.memory_mb} MB are allowed")
        await _answers(box, f"{held} MB were held")
        return f"{held} MB, then it was ended; the next command worked"


@on_sandbox(
    "disk",
    10,
    attack="fills workspace, /tmp and shared memory",
    promised=f"{SMALL.workspace_mb} MB of workspace and {SMALL.tmp_mb} MB of /tmp",
)
async def disk(ground: Ground) -> str:
    """Bytes on disk and in memory that looks like disk."""
    found = []
    places = (("/workspace/repo", SMALL.workspace_mb), ("/tmp", SMALL.tmp_mb), ("/dev/shm", 16))  # noqa: S108
    for place, allowed in places:
        async with ground.box() as box:
            for number in range(4):
                await sh(box, f"head -c {allowed * MB // 2} /dev/zero > {place}/{number}")
            written = int(await said(box, f"cat {place}/? 2>/dev/null | wc -c") or 0)
        # A watch sees a file only once it is there.
        slack = 1 if ground.watched and place != "/dev/shm" else 0  # noqa: S108
        if written > (allowed + slack * allowed // 2) * MB + MB // 2:
            raise Broken(f"{written / MB:.1f} MB lay in {place} where {allowed} MB are allowed")
        found.append(f"{written / MB:.1f} MB in {place}")
    return ", ".join(found) + ", then it was full"


@on_sandbox(
    "inodes",
    10,
    attack="makes empty files without end",
    promised=f"{MOST_FILES} files in a part of the workspace, and the sandbox can be removed",
)
async def inodes(ground: Ground) -> str:
    """Files that take no bytes."""
    # A watch counts all three parts, and needs its moment.
    allowed = 8 * MOST_FILES if ground.watched else MOST_FILES
    async with ground.box() as box:
        await python(box, _EMPTY_FILES, str(allowed + 5000))
        made = int(await said(box, "ls -f | wc -l"))
        if made > allowed + 100:
            raise Broken(f"{made} files lay in a part where {allowed} are allowed")
        await _answers(box, f"{made} files were made")
    return f"{made} files, then no more; all of it was removed"


@on_sandbox(
    "endless-output",
    10,
    attack="prints without end",
    promised=f"{SMALL.output_bytes} bytes are kept, then the command is killed",
)
async def endless_output(ground: Ground) -> str:
    """Output that the outer runtime would have to keep."""
    async with ground.box() as box:
        result = await box.exec(["yes", "0123456789"], timeout=20)
        kept = len(result.stdout)
        if kept > SMALL.output_bytes or not result.truncated:
            raise Broken(f"{kept} bytes were kept where {SMALL.output_bytes} are allowed")
        await _answers(box, "the output was cut")
        return f"{kept} bytes were kept and the command was killed after {result.duration_ms} ms"


@on_sandbox(
    "fifo",
    10,
    attack="lays named pipes where files are read, exported and saved",
    promised="nothing of the outer runtime waits at one, and what is left out is named",
)
async def fifo(ground: Ground) -> str:
    """A file that is read without end."""
    dest = ground.folder / secrets.token_hex(4)
    async with ground.box() as box:
        await sh(box, "mkfifo ../output/report.md pipe; echo kept > ../output/kept")
        try:
            async with asyncio.timeout(PIPE_SECONDS):
                with contextlib.suppress(SandboxOperationFailed):
                    await box.read("output/report.md", max_bytes=1000)
                    raise Broken("a named pipe was read as if it were a file")
                info = await box.export("output", dest, max_bytes=MB, max_files=10)
                saved = await box.snapshot(dest.with_suffix(".tar"))
        except TimeoutError:
            raise Broken("the outer runtime waited at a named pipe") from None
    if (dest / "report.md").exists() or not (dest / "kept").is_file():
        raise Broken("the pipe was exported, or a file beside it was not")
    if not any("report.md" in each for each in (*info.left_out, *saved.left_out)):
        raise Broken("the pipe was left out in silence")
    return "reading refused, export and snapshot done, the pipe named as left out"


@on_sandbox(
    "link-race",
    10,
    attack="swaps a folder for a link to the host while files are written and taken",
    promised="no write and no read leaves the workspace",
)
async def link_race(ground: Ground) -> str:
    """A path that was a folder when it was looked at."""
    victim = ground.folder / f"victim-{secrets.token_hex(4)}"
    victim.mkdir()
    victim.chmod(0o777)
    token = secrets.token_hex(16)
    (victim / "secret").write_text(token)
    dest = ground.folder / secrets.token_hex(4)
    async with ground.box() as box:
        await sh(box, 'ln -s "$1/secret" ../output/stolen', str(victim))
        command = await box.start(["python3", "-I", "-S", "-c", _SWAPS, str(victim)])
        written = 0
        for number in range(12):
            with contextlib.suppress(SandboxOperationFailed):
                await box.write(f"repo/spot/{number}", b"written")
                written += 1
        await command.kill()
        with contextlib.suppress(SandboxOperationFailed):
            if token.encode() in await box.read("output/stolen", max_bytes=1000):
                raise Broken("a file of the host was read through a link")
        await box.export("output", dest, max_bytes=MB, max_files=10)
    if sorted(each.name for each in victim.iterdir()) != ["secret"]:
        raise Broken("a file was written into a folder of the host through a link")
    if any(_holds(each, token) for each in dest.rglob("*")):
        raise Broken("a file of the host was exported through a link")
    return f"{written} of 12 writes landed inside, none outside; the link was taken as a link"


def _holds(path: Path, token: str) -> bool:
    return path.is_file() and not path.is_symlink() and token in path.read_text(errors="replace")


@on_sandbox(
    "kill-helpers",
    10,
    attack="kills every process it can reach, its own helpers among them",
    promised="commands, deadlines and the way to the proxy work afterwards",
)
async def kill_helpers(ground: Ground) -> str:
    """What the sandbox itself runs on inside."""
    egress = ground.folder / f"e{secrets.token_hex(3)}"
    egress.mkdir()
    egress.chmod(0o755)

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nstill here")
        writer.close()

    server = await asyncio.start_unix_server(proxy, egress / "proxy.sock")
    try:
        os.chmod(egress / "proxy.sock", 0o777)  # noqa: S103 - the folder has the fresh name
        async with ground.box(egress=egress) as box:
            # The shell that does it dies of it too, in some providers.
            await sh(box, "trap '' TERM INT HUP; kill -9 -1; kill -9 1; kill -9 $PPID; true")
            await _answers(box, "everything was killed")
            began = time.monotonic()
            late = await box.exec(["sleep", "60"], timeout=1)
            if not late.timed_out or time.monotonic() - began > 20:
                raise Broken("after the kill a deadline did not end a command")
            if b"still here" not in (await python(box, _FETCH)).stdout:
                raise Broken("after the kill nothing carries to the proxy any more")
    finally:
        server.close()
    return "the next command, its deadline and the proxy worked"


@on_sandbox(
    "io-uring",
    10,
    attack="sets up io_uring, which goes around every check of system calls",
    promised="the call is refused before the kernel looks at it",
)
async def io_uring(ground: Ground) -> str:
    """A second way into the kernel."""
    async with ground.box() as box:
        words = (await python(box, _URING)).stdout.split()
    if len(words) != 2 or words[0] != b"-1":
        raise Broken(f"io_uring_setup answered {words}")
    refused = int(words[1])
    if refused not in (errno.EPERM, errno.ENOSYS):
        raise Broken(f"io_uring_setup reached the kernel, which said {os.strerror(refused)}")
    return f"refused: {os.strerror(refused)}"


ATTACKS = (
    fork_bomb,
    memory,
    disk,
    inodes,
    endless_output,
    fifo,
    link_race,
    kill_helpers,
    io_uring,
)
"""All attacks on resources."""
