"""What a hostile agent tries, on the providers that run real programs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from runs.sandbox import SandboxOperationFailed, SandboxProvider
from tests.sandbox.stage import SECONDS, SMALL, Stage, Story, behaviour, listed, out, sh

TRIES = r"""
import ctypes, errno, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)

def tried(name, call):
    try:
        print(name, "DONE" if call() else "no")
    except (OSError, ValueError) as failed:
        print(name, "no", failed)

def system(number, *arguments):
    def call():
        if libc.syscall(number, *arguments) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return True
    return call

here = {"x86_64": 0, "aarch64": 1}[os.uname().machine]
NEWUSER, NEWNS = 0x10000000, 0x00020000
tried("unshare-user", system((272, 97)[here], NEWUSER))
tried("unshare-mount", system((272, 97)[here], NEWNS))
tried("mount", system((165, 40)[here], b"none", b"/tmp", b"tmpfs", 0, None))
tried("setns", system((308, 268)[here], 0, 0))
tried("bpf", system((321, 280)[here], 0, None, 0))
tried("keyctl", system((250, 219)[here], 0, -3, 1))
tried("chroot", lambda: os.chroot("/tmp") is None)
tried("setuid", lambda: os.setuid(0) is None)
tried("mknod", lambda: os.mknod("/tmp/null", 0o20666, os.makedev(1, 3)) is None)
tried("nice", lambda: os.nice(-5) < 0)
tried("sethostname", lambda: socket.sethostname("owned") is None)
tried("kill-parent-space", lambda: os.kill(os.getppid() + 100000, 0) is None)
for path in sys.argv[1:]:
    tried("open " + path, lambda: open(path, "ab").close() is None)
"""


def hostile(story: Story) -> object:
    """As `behaviour`, on the real providers only."""
    test = behaviour(story)

    def on_real(real_provider: SandboxProvider, tmp_path: Path) -> None:
        test(real_provider, tmp_path)

    on_real.__name__, on_real.__doc__ = story.__name__, story.__doc__
    return on_real


@hostile
async def test_the_kernel_s_doors_are_shut(stage: Stage) -> None:
    box = await stage.box()
    doors = (
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sysrq-trigger",
        "/proc/irq/default_smp_affinity",
        "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/cgroup.procs",
        "/dev/mem",
        "/dev/sda",
        "/dev/vda",
        "/dev/kmsg",
        "/etc/ld.so.preload",
        "/usr/bin/python3",
    )
    said = await box.exec(["python3", "-c", TRIES, *doors], timeout=SECONDS)
    lines = said.stdout.decode().splitlines()
    assert len(lines) == 12 + len(doors), said
    assert not [line for line in lines if "DONE" in line]


@hostile
async def test_no_device_can_be_made_and_none_of_the_host_s_is_there(stage: Stage) -> None:
    box = await stage.box()
    devices = set((await out(box, "ls /dev")).split())
    usual = {"null", "zero", "full", "random", "urandom", "tty", "console", "ptmx", "pts", "shm"}
    assert devices <= usual | {"fd", "stdin", "stdout", "stderr", "core", "mqueue"}


@hostile
async def test_no_process_of_the_host_can_be_seen_or_reached(stage: Stage) -> None:
    box = await stage.box()
    script = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done"
    seen = await out(box, script)
    assert "pytest" not in seen
    assert "dockerd" not in seen
    inside = (await out(box, "ls -d /proc/[0-9]*")).split()
    assert len(inside) < 12
    await sh(box, "kill -9 -1; kill -9 1; true")
    os.kill(os.getpid(), 0)
    assert await box.alive()
    assert await out(box, "echo here") == "here\n"


@contextmanager
def _listening() -> Iterator[tuple[int, list[str]]]:
    """A server of the host, on its loopback address and on a socket without a file."""
    called: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        abstract = socket.socket(socket.AF_UNIX)
        abstract.bind(f"\0imprimatur-test-{os.getpid()}")
        abstract.listen()

        def answer(listener: socket.socket, name: str) -> None:
            while True:
                try:
                    listener.accept()[0].close()
                except OSError:
                    return
                called.append(name)

        for listener, name in ((server, "tcp"), (abstract, "abstract")):
            threading.Thread(target=answer, args=(listener, name), daemon=True).start()
        try:
            yield server.getsockname()[1], called
        finally:
            for listener in (server, abstract):
                listener.shutdown(socket.SHUT_RDWR)
                listener.close()


CALLS = r"""
import socket, sys
port, own = int(sys.argv[1]), sys.argv[2]
def call(name, *address, family=socket.AF_INET):
    s = socket.socket(family)
    s.settimeout(3)
    try:
        s.connect(*address)
        print(name, "REACHED")
    except OSError as failed:
        print(name, "no", failed)
for host in ("127.0.0.1", "127.0.0.2", "0.0.0.0", own, "10.0.0.1", "172.17.0.1", "169.254.169.254"):
    call(host, (host, port))
call("abstract", "\0imprimatur-test-" + sys.argv[3], family=socket.AF_UNIX)
call("docker", "/var/run/docker.sock", family=socket.AF_UNIX)
try:
    print("name", socket.getaddrinfo("example.com", 80), "REACHED")
except OSError as failed:
    print("name no", failed)
"""


@hostile
async def test_nothing_of_the_host_s_network_can_be_reached(stage: Stage) -> None:
    own = socket.gethostbyname(socket.gethostname())
    with _listening() as (port, called):
        box = await stage.box()
        argv = ["python3", "-c", CALLS, str(port), own, str(os.getpid())]
        said = await box.exec(argv, timeout=SECONDS)
    lines = said.stdout.decode().splitlines()
    assert len(lines) == 10, said
    assert not [line for line in lines if "REACHED" in line]
    assert called == []


@hostile
async def test_a_child_that_left_its_session_dies_at_the_time_out(stage: Stage) -> None:
    box = await stage.box()
    beats = "while true; do date +%N > ../output/beat; sleep 0.05; done"
    script = f"setsid sh -c '{beats}' & sleep 1000"
    result = await sh(box, script, timeout=1)
    assert (result.timed_out, result.exit_code) == (True, 137)
    beat = await out(box, "cat ../output/beat; sleep 1; cat ../output/beat")
    first, second = beat.split()
    assert first == second


@hostile
async def test_killing_every_process_it_can_does_not_save_an_agent(stage: Stage) -> None:
    box = await stage.box()
    result = await sh(box, "trap '' TERM INT HUP; kill -9 -1; sleep 1000", timeout=2)
    assert result.timed_out
    assert await out(box, "echo next") == "next\n"


@hostile
async def test_a_fork_bomb_is_contained(stage: Stage) -> None:
    box = await stage.box()
    bomb = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
    result = await box.exec(["python3", "-c", bomb], timeout=3)
    assert result.timed_out
    assert result.exit_code == 137
    assert await out(box, "echo next") == "next\n"


@hostile
async def test_memory_is_bounded(stage: Stage) -> None:
    box = await stage.box()
    hog = "data = []\nwhile True: data.append(bytearray(16 << 20))"
    result = await box.exec(["python3", "-c", hog], timeout=SECONDS)
    assert result.exit_code != 0
    assert not result.timed_out
    assert await out(box, "echo next") == "next\n"


@hostile
async def test_tmp_is_bounded(stage: Stage) -> None:
    box = await stage.box()
    for number in range(4):
        await sh(box, f"head -c 7M /dev/zero > /tmp/{number}")
    total = int((await out(box, "cat /tmp/? | wc -c")).strip())
    watched = any("watched" in line for line in stage.provider.check().weaker)
    assert total <= (SMALL.tmp_mb * (2 if watched else 1) + 1) << 20


@hostile
async def test_a_file_is_bounded(stage: Stage) -> None:
    box = await stage.box(limits=replace(SMALL, file_mb=1))
    await sh(box, "head -c 3M /dev/zero > big")
    assert int((await out(box, "cat big | wc -c")).strip()) <= 1 << 20


@hostile
async def test_no_program_gains_a_right(stage: Stage) -> None:
    box = await stage.box()
    script = "cp /usr/bin/id mine && chmod 6755 mine && ./mine -u; find / -perm /6000 -type f"
    user, *found = (await sh(box, f"({script}) 2>/dev/null")).stdout.decode().splitlines()
    assert user == "1000"
    assert [path for path in found if not path.startswith("/workspace/")] == []
    info = await box.export("repo", stage.folder / "taken", max_bytes=8 << 20, max_files=10)
    assert info.files == 1
    assert (stage.folder / "taken/mine").stat().st_mode & 0o7000 == 0


@hostile
async def test_a_library_in_the_environment_reaches_nothing_but_the_agent_s_own(
    stage: Stage,
) -> None:
    environment = {"LD_PRELOAD": "/workspace/output/evil.so", "PYTHONPATH": "/workspace/output"}
    environment |= {"BASH_ENV": "/workspace/output/evil.sh", "ENV": "/workspace/output/evil.sh"}
    box = await stage.box(environment=environment)
    await sh(box, "printf 'import os; os._exit(9)' > ../output/sitecustomize.py")
    await sh(box, "printf 'exit 9' > ../output/evil.sh; printf 'exit 9' > ../output/os.py")
    await box.write("repo/file", b"content")
    assert await box.read("repo/file", max_bytes=100) == b"content"
    assert (await box.snapshot(stage.folder / "snapshot.tar")).left_out == ()


@hostile
async def test_a_tree_deeper_than_a_path_can_be_named_is_removed(stage: Stage) -> None:
    box = await stage.box()
    deep = "import os\nfor _ in range(3000):\n os.mkdir('d'); os.chdir('d')\nopen('x', 'w').close()"
    result = await box.exec(["python3", "-c", deep], timeout=SECONDS)
    assert result.exit_code == 0, result
    info = await box.export("repo", stage.folder / "taken", max_bytes=1000, max_files=5000)
    assert info.left_out, "what cannot be written on the host is named"
    await box.close()
    assert await stage.provider.reap([]) == []


@hostile
async def test_names_that_look_like_options_or_lines_change_nothing(stage: Stage) -> None:
    box = await stage.box()
    make = (
        "import os\n"
        "for name in ('--checkpoint-action=exec=sh x', '-rf', 'a\\ntar: b: c', '--', "
        "'--to-command=x', '\\x1b[31m'): open(name, 'w').write(name)"
    )
    assert (await box.exec(["python3", "-c", make], timeout=SECONDS)).exit_code == 0
    info = await box.snapshot(stage.folder / "snapshot.tar")
    assert info.left_out == ()
    again = await stage.box(restore=stage.folder / "snapshot.tar", sha256=info.sha256)
    await again.export("repo", stage.folder / "taken", max_bytes=1000, max_files=10)
    taken = listed(stage.folder / "taken")
    assert len(taken) == 6
    assert all(content == name.encode() for name, content in taken.items())


@hostile
async def test_a_socket_is_left_out_and_named(stage: Stage) -> None:
    box = await stage.box()
    make = "import socket; socket.socket(socket.AF_UNIX).bind('plug')"
    assert (await box.exec(["python3", "-c", make], timeout=SECONDS)).exit_code == 0
    info = await box.export("repo", stage.folder / "taken", max_bytes=1000, max_files=10)
    assert listed(stage.folder / "taken") == {}
    assert [line for line in info.left_out if "plug" in line]


@hostile
async def test_a_link_swapped_in_while_it_is_written_leads_nowhere(stage: Stage) -> None:
    box = await stage.box()
    swap = (
        "import os\nos.makedirs('real', exist_ok=True)\n"
        "while True:\n"
        " try:\n"
        "  os.symlink('/tmp', 'x'); os.rename('x', 'spot')\n"
        "  os.mkdir('y'); os.rename('y', 'spot')\n"
        " except OSError:\n"
        "  try: os.unlink('spot')\n"
        "  except OSError:\n"
        "   try: os.rmdir('spot')\n"
        "   except OSError: pass"
    )
    command = await box.start(["python3", "-c", swap])
    for number in range(10):
        with contextlib.suppress(SandboxOperationFailed):  # or it is written; see below
            await box.write(f"repo/spot/{number}", b"data")
    await command.kill()
    # Whatever happened, it happened in the sandbox: its own /tmp at the worst.
    assert await box.alive()
    assert not list(Path("/tmp").glob("[0-9]"))


@hostile
async def test_pytest_and_git_work_inside(stage: Stage) -> None:
    box = await stage.box(limits=replace(SMALL, memory_mb=512))
    said = await box.exec(["python3", "-m", "pytest", "--version"], timeout=SECONDS)
    assert said.exit_code == 0, said
    assert said.stdout.startswith(b"pytest ")
    await box.write("repo/test_it.py", b"def test_it(tmp_path):\n    assert 1 + 1 == 2\n")
    said = await box.exec(["python3", "-m", "pytest", "-q"], timeout=SECONDS)
    assert (said.exit_code, b"1 passed" in said.stdout) == (0, True), said
    script = "git init -q . && git add . && git commit -q -m one && git log --oneline | wc -l"
    assert await out(box, script) == "1\n"


@hostile
async def test_many_sandboxes_at_once_do_not_mix(stage: Stage) -> None:
    async def one(number: int) -> str:
        box = await stage.box(f"run-{number}")
        await sh(box, f"echo {number} > mine")
        return await out(box, "cat mine; ls")

    said = await asyncio.gather(*(one(number) for number in range(4)))
    assert said == [f"{number}\nmine\n" for number in range(4)]
