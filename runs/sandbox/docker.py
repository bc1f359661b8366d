"""Sandboxes made of Docker containers: one hardened container per sandbox, no registry, no network.

The container's root is read-only and its workspace lives in sized tmpfs, so the quotas are the
kernel's. Commands are execs of the engine; their streams are read over its socket here, bounded
and always to the end, because an exec that nobody reads makes a later one of the same container
hang. What has to be killed is killed with everything else that runs in the container: a child that
left its session can be found in no other way.

A container that is gone is never started anew: its tmpfs, and the work in it, went with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import os
import secrets
import signal
import struct
import tempfile
import time
from collections import abc
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests
from docker.models.containers import Container
from docker.types import LogConfig, Mount, Ulimit

from runs.sandbox import (
    DEFAULT_PACKAGES,
    INPUT,
    PARTS,
    WORKSPACE,
    Command,
    ExecResult,
    Limits,
    ProviderReport,
    SandboxError,
    SandboxLost,
    SandboxOperationFailed,
    SandboxSpec,
    SandboxUnavailable,
    image,
    seccomp,
)
from runs.sandbox.base import (
    MOST_FILES,
    ConfinedSandbox,
    checked_spec,
    owner_mark,
    remove_tree,
)
from runs.sandbox.meeting import INSIDE, Meeting
from runs.sandbox.running import Flow, Gathered, Pipe, Unread

log = logging.getLogger(__name__)

NAME = "docker"
LABEL, RUN_LABEL, OWNER_LABEL = "imprimatur.sandbox", "imprimatur.run", "imprimatur.owner"
DEFAULT_HOST = "unix:///var/run/docker.sock"

_AGENT = f"{image.AGENT_UID}:{image.AGENT_UID}"
_OWNER = "0:0"
"""Owns input/. Without capabilities it owns nothing else that can be written."""

_PYTHON = ("/usr/bin/python3", "-I", "-S")
_FORWARD = (*_PYTHON, f"{image.HELPERS}/forward.py")
_CARRY = (*_PYTHON, f"{image.HELPERS}/carry.py")
_CONFINED = (*_PYTHON, f"{image.HELPERS}/seccomp.py")
_SILENT = "the engine does not answer"
_REQUEST_SECONDS = 60
_GRACE_SECONDS = 60
"""How long a container outlives its sandbox's time, should nobody remove it."""

_CARRIED_AT_ONCE = 1 << 20
_UNMADE_SECONDS = 600.0
"""A folder that is that old and has no container was left by a worker that died."""

_OVERHEAD_PIDS = 4
"""The first process, what it keeps running, and the exec that kills the others."""

_CANARY_RUN = "canary"
_CANARY = r"""
test -e /var/run/docker.sock && echo "sees: the engine's socket"
test "$(id -u)" = 0 && echo "is: root"
test -w /proc/sys/kernel/core_pattern && echo "writes: /proc/sys"
test -w /usr && echo "writes: /usr"
test -w /workspace/input && echo "writes: input/"
grep -q '^CapEff:.0*$' /proc/self/status || echo "has: capabilities"
grep -q '^NoNewPrivs:.1$' /proc/self/status || echo "may: gain privileges"
grep -q '^Seccomp:.2$' /proc/self/status || echo "lacks: the system call filter"
test "$(grep -c : /proc/net/dev)" = 1 || echo "has: a network device"
echo ISOLATED
"""


class Provider:
    """The Docker engine at DOCKER_HOST, or at its usual socket.

    DOCKER_RUNTIME names one of its runtimes; without it the engine's default runs the containers.
    """

    name = NAME

    def __init__(
        self, *, data_dir: Path, packages: Sequence[str] = (), host: str | None = None
    ) -> None:
        self.data_dir = data_dir.resolve()
        self.packages = tuple(packages) or DEFAULT_PACKAGES
        self.home = self.data_dir / "sandbox" / NAME
        self.owner = owner_mark(self.data_dir)
        self.host = host or os.environ.get("DOCKER_HOST") or DEFAULT_HOST
        self.runtime = os.environ.get("DOCKER_RUNTIME") or None
        self._engine: _Engine | None = None
        self._report: ProviderReport | None = None

    def check(self) -> ProviderReport:
        if self._report is None:
            engine = self._connected()
            self._prove(engine)
            self._report = ProviderReport(
                provider=NAME,
                version=f"Docker {engine.version}"
                + (f", runtime {self.runtime}" if self.runtime else ""),
                image_digest=engine.image_digest,
                isolation=(
                    "own process, network, mount, IPC and host name spaces",
                    "no capability, no new privileges",
                    "read-only root file system of its own",
                    "no network device",
                    "the engine's system call filter, and one of our own",
                    "memory, processes, processor and disk bounded for the whole sandbox",
                ),
                weaker=(
                    ()
                    if seccomp.compiled()
                    else ("no system call filter of our own for this machine",)
                ),
            )
        return self._report

    async def create(
        self,
        spec: SandboxSpec,
        *,
        restore: Path | io.BufferedReader | None = None,
        restore_sha256: str | None = None,
    ) -> DockerSandbox:
        await asyncio.to_thread(self.check)
        engine = await asyncio.to_thread(self._connected)
        sandbox = DockerSandbox(
            f"imprimatur-{secrets.token_hex(8)}", checked_spec(spec), engine, self.home
        )
        try:
            make = partial(sandbox.make, self.owner)
            if restore is None:
                await asyncio.to_thread(make)
            else:
                await sandbox.filled(make, restore, restore_sha256)
        except SandboxOperationFailed as failed:
            await sandbox.close()
            silent = await asyncio.to_thread(engine.silent)
            if silent:
                raise _unavailable(self.host, silent) from failed
            raise
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def reap(self, alive_run_ids: abc.Container[str]) -> list[str]:
        engine = await asyncio.to_thread(self._connected)
        try:
            return await asyncio.to_thread(self._reap, engine, alive_run_ids)
        except SandboxOperationFailed as failed:
            raise _unavailable(self.host, failed.detail) from failed

    def _reap(self, engine: _Engine, alive: abc.Container[str]) -> list[str]:
        removed = []
        with _engine_errors("list the containers"):
            found = engine.client.containers.list(
                all=True, filters={"label": [f"{LABEL}=1", f"{OWNER_LABEL}={self.owner}"]}
            )
        for container in found:
            run_id = container.labels.get(RUN_LABEL, "")
            # A canary is nobody's run. It ends by itself, and is removed then if its worker died.
            if run_id in alive or (run_id == _CANARY_RUN and container.status == "running"):
                continue
            with contextlib.suppress(docker.errors.NotFound):
                with _engine_errors("remove a container", docker.errors.NotFound):
                    container.remove(force=True, v=True)
                removed.append(f"sandbox {container.name} of run {run_id or 'unknown'}")
            remove_tree(self.home / str(container.name))
        standing = {container.name for container in found}
        for folder in self.home.iterdir() if self.home.is_dir() else ():
            if folder.name not in standing and _age(folder) > _UNMADE_SECONDS:
                remove_tree(folder)
                removed.append(f"folder of {folder.name}")
        return removed

    def _connected(self) -> _Engine:
        if self._engine is None:
            built = image.ensure(self.data_dir, self.packages)
            self._engine = _Engine.at(self.host, built, self.runtime)
        return self._engine

    def _prove(self, engine: _Engine) -> None:
        try:
            self._canary(engine)
        except SandboxUnavailable:
            if not engine.carries:
                raise
            # An engine that does not see this machine's folders cannot mount one.
            engine.carries = False
            self._canary(engine)

    def _canary(self, engine: _Engine) -> None:
        spec = SandboxSpec(
            _CANARY_RUN, _CANARY_RUN, Limits(wall_seconds=60, workspace_mb=1, tmp_mb=1)
        )
        ref = f"imprimatur-canary-{secrets.token_hex(4)}"
        sandbox = DockerSandbox(ref, spec, engine, self.home)
        try:
            container = sandbox.make(self.owner)
            code, said = container.exec_run(["/bin/sh", "-c", _CANARY], user=_AGENT)
            # A runtime with a kernel of its own may not know the sockets of this one.
            engine.carries = engine.carries and sandbox.meets(container)
        except (docker.errors.DockerException, requests.RequestException) as failed:
            raise _unavailable(self.host, str(failed)) from failed
        except SandboxError as failed:
            raise _unavailable(self.host, str(failed)) from failed
        finally:
            sandbox.unmake()
        words = said if isinstance(said, bytes) else b"".join(said)
        lines = words.decode(errors="replace").splitlines()
        if code or lines != ["ISOLATED"]:
            raise _unavailable(self.host, "a canary was not isolated: " + "; ".join(lines))


def _age(folder: Path) -> float:
    try:
        return time.time() - folder.stat().st_mtime
    except OSError:
        return 0.0


def runtimes() -> frozenset[str]:
    """The names that DOCKER_RUNTIME may have here; none where no engine answers."""
    host = os.environ.get("DOCKER_HOST") or DEFAULT_HOST
    try:
        client = docker.DockerClient(base_url=host, timeout=_REQUEST_SECONDS)
        with contextlib.closing(client):
            return frozenset(client.info().get("Runtimes") or ())
    except (docker.errors.DockerException, requests.RequestException):
        return frozenset()


def _unavailable(host: str, reason: str) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"The Docker engine at {host} cannot be used: {reason}.",
        "Start it (Debian: apt-get install docker.io; without systemd: .ci/start-docker), and let "
        "this user reach its socket.",
    )


class _Engine:
    """A connected engine that holds the sandbox image."""

    def __init__(
        self,
        client: docker.DockerClient,
        socket: str,
        version: str,
        built: image.Image,
        runtime: str | None,
    ) -> None:
        self.client = client
        self.runtime = runtime
        self.socket = socket
        self.version = version
        self.image = built
        self.image_digest = built.digest
        self.carries = True
        """Whether a command in a container can reach a socket of ours; a canary tells."""

    def silent(self) -> str:
        """Why the engine does not answer; an empty string if it does."""
        try:
            self.client.ping()
        except (docker.errors.DockerException, requests.RequestException) as failed:
            return str(failed)
        return ""

    def load(self) -> None:
        """Bring the image to the engine unless it is there; nothing is ever pulled."""
        _load(self.client, self.image)

    @classmethod
    def at(cls, host: str, built: image.Image, runtime: str | None) -> _Engine:
        if not host.startswith("unix://"):
            raise SandboxUnavailable(
                f"The Docker engine at {host} is not on a unix socket.",
                "Let the worker run beside the engine, with DOCKER_HOST=unix://… as its address.",
            )
        try:
            client = docker.DockerClient(base_url=host, timeout=_REQUEST_SECONDS, version="auto")
            version = str(client.version()["Version"])
            _load(client, built)
        except (docker.errors.DockerException, requests.RequestException, OSError) as failed:
            raise _unavailable(host, str(failed)) from failed
        return cls(client, host.removeprefix("unix://"), version, built, runtime)

    async def started(
        self, exec_id: str, *, tty: bool
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Start an exec and take over its connection, which then is its terminal or its streams."""
        reader, writer = await asyncio.open_unix_connection(self.socket, limit=1 << 18)
        try:
            body = json.dumps({"Detach": False, "Tty": tty}).encode()
            version = self.client.api.api_version
            writer.write(
                f"POST /v{version}/exec/{exec_id}/start HTTP/1.1\r\nHost: docker\r\n"
                "Content-Type: application/json\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            await writer.drain()
            status = await reader.readline()
            while (await reader.readline()).strip():
                pass
            if status.split(b" ")[1:2] not in ([b"101"], [b"200"]):
                words = (await reader.read(2000)).decode(errors="replace")
                raise SandboxOperationFailed("run a command", "engine", words.strip())
        except BaseException:
            writer.close()
            raise
        return reader, writer


def _load(client: docker.DockerClient, built: image.Image) -> None:
    try:
        client.images.get(built.digest)
    except docker.errors.ImageNotFound:
        tag = f"imprimatur-sandbox:{built.digest.removeprefix('sha256:')[:12]}"
        with tempfile.TemporaryFile() as bundle:
            image.write_docker_archive(built, bundle, tag=tag)
            bundle.seek(0)
            client.images.load(bundle)
        got = client.images.get(tag).id
        if got != built.digest:
            raise OSError(f"it shows the image as {got}, built was {built.digest}") from None
        _forget_others(client, built.digest)


def _forget_others(client: docker.DockerClient, keep: str) -> None:
    """Remove the sandbox images that this one replaces, as far as no container uses them.

    Whoever still wants one of them brings it again.
    """
    for other in client.images.list(filters={"label": image.RECIPE_LABEL}):
        if other.id is not None and other.id != keep:
            with contextlib.suppress(docker.errors.APIError):
                client.images.remove(other.id)


@contextlib.contextmanager
def _engine_errors(operation: str, *but: type[Exception]) -> Iterator[None]:
    try:
        yield
    except but:
        raise
    except (docker.errors.DockerException, requests.RequestException) as failed:
        raise SandboxOperationFailed(operation, "engine", str(failed)) from failed


def _file_systems(limits: Limits) -> dict[str, str]:
    """What can be written: the three parts and /tmp, in memory, each with its size."""
    agent = f"uid={image.AGENT_UID},gid={image.AGENT_UID}"
    part = f"rw,exec,nosuid,nodev,mode=0755,size={limits.workspace_mb}m,nr_inodes={MOST_FILES}"
    tmp = f"rw,exec,nosuid,nodev,mode=1777,size={limits.tmp_mb}m,nr_inodes={MOST_FILES}"
    made = {f"{WORKSPACE}/{name}": f"{part},{agent}" for name in PARTS if name != INPUT}
    return {**made, f"{WORKSPACE}/{INPUT}": f"{part},uid=0,gid=0", image.INNER_HOME: tmp}


class DockerSandbox(ConfinedSandbox):
    """One container."""

    provider = NAME

    def __init__(self, ref: str, spec: SandboxSpec, engine: _Engine, home: Path) -> None:
        super().__init__(ref, spec, engine.image_digest)
        self._engine = engine
        self._folder = home / ref
        self._container: Container | None = None
        self._streams = 0

    def make(self, owner: str) -> Container:
        """Make and start the container. Raises SandboxOperationFailed."""
        if self._engine.carries:
            try:
                self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._folder.mkdir()
                # Who is inside has another identity; nobody else gets past the folder above.
                self._folder.chmod(0o711)
            except OSError as failed:
                raise SandboxOperationFailed("be made", "engine", str(failed)) from failed
        with _engine_errors("be made"):
            try:
                self._container = self._made(owner)
            except docker.errors.ImageNotFound:
                # Somebody tidied up the engine since the image was brought there.
                self._engine.load()
                self._container = self._made(owner)
            self._container.start()
            if self.spec.egress_dir is not None:
                self._container.exec_run([*_FORWARD, "--wait"], user=_AGENT)
        return self._container

    def _made(self, owner: str) -> Container:
        limits, spec = self.limits, self.spec
        memory = limits.memory_mb << 20
        largest = min(limits.file_mb, limits.workspace_mb) << 20
        keep, mounts = [], []
        if spec.egress_dir is not None:
            keep = [*_FORWARD, "/egress/proxy.sock"]
            mounts.append(Mount("/egress", str(spec.egress_dir), type="bind", read_only=True))
        if self._engine.carries:
            mounts.append(Mount(INSIDE, str(self._folder), type="bind", read_only=True))
        # One whose worker died ends by itself, so that it does not stay for ever.
        seconds = str(limits.wall_seconds + _GRACE_SECONDS)
        return self._engine.client.containers.create(
            self.image_digest,
            [*_PYTHON, f"{image.HELPERS}/first.py", seconds, *keep],
            name=self.ref,
            labels={**spec.labels, LABEL: "1", RUN_LABEL: spec.run_id, OWNER_LABEL: owner},
            hostname="sandbox",
            runtime=self._engine.runtime,
            user=_AGENT,
            working_dir=WORKSPACE,
            network_mode="none",
            read_only=True,
            privileged=False,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges:true"],
            pids_limit=limits.pids + _OVERHEAD_PIDS,
            mem_limit=memory,
            memswap_limit=memory,
            nano_cpus=int(limits.cpus * 1e9),
            ipc_mode="private",
            shm_size=16 << 20,
            tmpfs=_file_systems(limits),
            mounts=mounts,
            ulimits=[
                Ulimit(name="core", soft=0, hard=0),
                Ulimit(name="nofile", soft=1024, hard=1024),
                Ulimit(name="fsize", soft=largest, hard=largest),
            ],
            log_config=LogConfig(type="none"),
            stop_signal="SIGKILL",
        )

    def meets(self, container: Container) -> bool:
        """Whether a command in it reaches a socket of ours. For a container without an agent."""
        meeting = Meeting(self._folder, lambda descriptor: None)
        try:
            container.exec_run([*_CARRY, "1", meeting.inside, "true"], user=_AGENT)
            meeting.over()
            return meeting.meet()
        finally:
            meeting.close()

    def unmake(self) -> None:
        """Remove the container. What cannot be removed now is left to the reaper, and logged."""
        try:
            if self._container is not None:
                self._container.remove(force=True, v=True)
        except docker.errors.NotFound:
            pass
        except (docker.errors.DockerException, requests.RequestException) as failed:
            log.warning("the container %s could not be removed: %s", self.ref, failed)
            return
        remove_tree(self._folder)

    async def _remove(self) -> None:
        await asyncio.to_thread(self.unmake)

    async def _stands(self) -> str:
        return await asyncio.to_thread(self._missing)

    def _missing(self) -> str:
        try:
            state = self._inspected()["State"]
        except docker.errors.NotFound:
            return "its container was removed"
        except (docker.errors.DockerException, requests.RequestException) as failed:
            return f"{_SILENT} ({failed})"
        if state.get("Running"):
            return ""
        if state.get("OOMKilled"):
            return "its container ran out of memory"
        return f"its container has ended with {state.get('ExitCode')}"

    def _inspected(self) -> dict[str, Any]:
        facts: dict[str, Any] = self._engine.client.api.inspect_container(self.ref)
        return facts

    def _entering(self, argv: Sequence[str], workdir: str, operation: str) -> list[str]:
        return [*_CONFINED, *super()._entering(argv, workdir, operation)]

    async def _run(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str],
        stdin: bytes = b"",
        giving: Flow | None = None,
        taking: Flow | None = None,
        output_bytes: int,
        as_owner: bool = False,
    ) -> ExecResult:
        began = time.monotonic()
        killing: list[asyncio.Task[None]] = []

        def kill() -> None:
            killing.append(asyncio.create_task(self._kill_all()))

        gathered = Gathered(output_bytes, kill)
        timed_out = False
        carried = self._carried(argv, giving, taking)
        async with (
            carried as (argv, into, out),
            self._opened(
                argv,
                environment,
                tty=False,
                stdin=stdin != b"" or into is not None,
                user=_OWNER if as_owner else _AGENT,
            ) as (exec_id, reader, writer),
        ):
            work = asyncio.ensure_future(_talked(reader, writer, stdin, into, out, gathered))
            try:
                await asyncio.wait_for(asyncio.shield(work), timeout)
            except TimeoutError:
                timed_out = True
                await self._kill_all()
            except asyncio.CancelledError:
                work.cancel()
                await asyncio.shield(self._kill_all())
                raise
            if timed_out:
                # Read on while it dies, or the next exec may hang behind this one.
                await _settled(work)
            for task in killing:
                await task
            code = await self._exit_code(exec_id)
        if timed_out or gathered.truncated:
            code = 128 + signal.SIGKILL
        else:
            code = await self._own_end(code)
        return gathered.result(code, began=began, timed_out=timed_out)

    @asynccontextmanager
    async def _carried(
        self, argv: Sequence[str], giving: Flow | None, taking: Flow | None
    ) -> AsyncIterator[tuple[Sequence[str], Pipe | None, Pipe | None]]:
        """The command as it is to be run for its flow, and pipes for what the engine carries.

        At the end of the block, which is the command's, the flow has ended as well.
        """
        flow = giving or taking
        if flow is None:
            yield argv, None, None
        elif self._engine.carries:
            meeting = Meeting(self._folder, flow)
            met = asyncio.ensure_future(asyncio.to_thread(meeting.meet))
            try:
                descriptor = "1" if giving is None else "0"
                yield [*_CARRY, descriptor, meeting.inside, *argv], None, None
            finally:
                meeting.over()
                await asyncio.shield(met)
                meeting.close()
        else:
            pipe = Pipe(flow, written=giving is not None)
            pipe.begin()
            try:
                yield argv, *((None, pipe) if giving is None else (pipe, None))
            finally:
                await pipe.end()

    async def _start(
        self, argv: Sequence[str], *, tty: bool, lifetime: float, environment: Mapping[str, str]
    ) -> Command:
        opened = self._opened(argv, environment, tty=tty, stdin=tty, user=_AGENT)
        return await _Started.begun(self, opened, tty, lifetime)

    @asynccontextmanager
    async def _opened(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        tty: bool,
        stdin: bool,
        user: str,
    ) -> AsyncIterator[tuple[str, asyncio.StreamReader, asyncio.StreamWriter]]:
        self._check_open()
        try:
            made = await asyncio.to_thread(
                self._engine.client.api.exec_create,
                self.ref,
                list(argv),
                stdout=True,
                stderr=True,
                stdin=stdin,
                tty=tty,
                environment=dict(environment),
                user=user,
            )
            reader, writer = await self._engine.started(made["Id"], tty=tty)
        except (
            docker.errors.DockerException,
            requests.RequestException,
            OSError,
            SandboxOperationFailed,
        ) as failed:
            self._check_open()
            reason = await self._stands()
            if reason and not reason.startswith(_SILENT):
                raise SandboxLost(self.ref, reason) from failed
            raise SandboxOperationFailed("run a command", "engine", str(failed)) from failed
        self._streams += 1
        try:
            yield made["Id"], reader, writer
        finally:
            self._streams -= 1
            writer.close()

    async def _exit_code(self, exec_id: str) -> int | None:
        """The exit code of an exec whose stream has ended; None if the engine does not know it."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                facts = await asyncio.to_thread(self._engine.client.api.exec_inspect, exec_id)
            except docker.errors.NotFound:
                return None
            except (docker.errors.DockerException, requests.RequestException):
                return None
            if not facts.get("Running") and facts.get("ExitCode") is not None:
                return int(facts["ExitCode"])
            await asyncio.sleep(0.02)
        return None

    async def _own_end(self, code: int | None) -> int:
        """The code, if the command ended by itself. Raises SandboxLost if its container did.

        The engine gives a command that went with its container one of these codes, and shows the
        container as running for a moment longer.
        """
        if code is not None and code not in (126, 128 + signal.SIGKILL):
            return code
        for _ in range(3):
            reason = await self._stands()
            if reason.startswith(_SILENT):
                unknown = SandboxOperationFailed("say how a command ended", "engine", reason)
                unknown.retry_safe = False  # it may have done its work
                raise unknown
            if reason:
                self._check_open()
                raise SandboxLost(self.ref, reason)
            await asyncio.sleep(0.2)
        return 128 + signal.SIGKILL if code is None else code

    async def _still(self) -> None:
        # Whoever left its session and its streams may run although nothing is left to be read.
        await self._kill_all()
        deadline = time.monotonic() + 10
        while self._streams and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    async def _kill_all(self) -> None:
        await asyncio.to_thread(self._kill_processes)

    def _kill_processes(self) -> None:
        """Kill all that the agent runs; if even that cannot start, kill the container."""
        api = self._engine.client.api
        for _ in range(5):
            try:
                # Not attached: an attached one could hang behind a stream that nobody reads.
                made = api.exec_create(
                    self.ref,
                    ["/bin/sh", "-c", "kill -9 -1; :"],
                    user=_AGENT,
                    stdout=False,
                    stderr=False,
                )
                api.exec_start(made["Id"], detach=True)
                for _ in range(100):
                    facts = api.exec_inspect(made["Id"])
                    if not facts["Running"]:
                        break
                    time.sleep(0.02)
                if facts["ExitCode"] == 0:
                    return
            except docker.errors.NotFound:
                return
            except (docker.errors.DockerException, requests.RequestException):
                pass
            time.sleep(0.05)
        with contextlib.suppress(docker.errors.DockerException, requests.RequestException):
            api.kill(self.ref)


async def _settled(work: asyncio.Future[Any]) -> None:
    """Wait until the killed command's stream has ended, but not for ever."""
    with contextlib.suppress(TimeoutError, OSError):
        await asyncio.wait_for(work, 10)


async def _talked(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    stdin: bytes,
    into: Pipe | None,
    out: Pipe | None,
    gathered: Gathered,
) -> None:
    """Give a command its input and take its output, until the output ends."""
    feeding = asyncio.create_task(_feed(writer, stdin, into)) if stdin or into else None
    kept = bytearray()
    try:
        async for data, error in _frames(reader):
            if out is None or error:
                gathered.take(data, error=error)
                continue
            kept += data
            if len(kept) >= _CARRIED_AT_ONCE:
                await asyncio.to_thread(_write, out.theirs, bytes(kept))
                kept.clear()
        if out is not None:
            await asyncio.to_thread(_write, out.theirs, bytes(kept))
    finally:
        # A command that does not read all of its input leaves the rest where it is.
        if feeding is not None:
            feeding.cancel()
            await asyncio.wait({feeding})


def _write(descriptor: int, data: bytes) -> None:
    """Write all of it, as long as somebody reads."""
    view = memoryview(data)
    with contextlib.suppress(BrokenPipeError):
        while view:
            view = view[os.write(descriptor, view) :]


async def _feed(writer: asyncio.StreamWriter, data: bytes, into: Pipe | None) -> None:
    try:
        writer.write(data)
        while into is not None and (
            chunk := await asyncio.to_thread(os.read, into.theirs, _CARRIED_AT_ONCE)
        ):
            writer.write(chunk)
            await writer.drain()
        await writer.drain()
        writer.write_eof()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the command does not want to read it all


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bool]]:
    """The two streams of an exec, which the engine sends in frames; True with what are errors."""
    try:
        while True:
            kind, length = struct.unpack(">BxxxI", await reader.readexactly(8))
            while length:
                data = await reader.read(min(length, 1 << 18))
                if not data:
                    return
                length -= len(data)
                yield data, kind == 2
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return


class _Started:
    """A command left running; see `runs.sandbox.Command`."""

    def __init__(self, sandbox: DockerSandbox, tty: bool) -> None:
        self._sandbox = sandbox
        self._tty = tty
        self._writer: asyncio.StreamWriter | None = None
        self._killing: asyncio.Task[None] | None = None
        self._unread = Unread(sandbox.limits.output_bytes, self._kill_soon)
        self._watcher: asyncio.Task[None] | None = None

    @classmethod
    async def begun(
        cls,
        sandbox: DockerSandbox,
        opened: Any,
        tty: bool,
        lifetime: float,
    ) -> _Started:
        command = cls(sandbox, tty)
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        command._watcher = asyncio.create_task(command._until_end(opened, lifetime, begun))
        await begun
        return command

    async def read(self, max_bytes: int = 65536) -> bytes:
        return await self._unread.read(max_bytes)

    async def write(self, data: bytes) -> None:
        if not self._tty:
            raise SandboxOperationFailed("type", "refused", "the command has no terminal")
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.write(data)
                await self._writer.drain()

    async def wait(self) -> int:
        return await self._unread.ended()

    async def kill(self) -> None:
        if self._watcher is not None and not self._watcher.done():
            await self._sandbox._kill_all()
            await asyncio.shield(self._watcher)

    def _kill_soon(self) -> None:
        self._killing = asyncio.create_task(self._sandbox._kill_all())

    async def _until_end(self, opened: Any, lifetime: float, begun: asyncio.Future[None]) -> None:
        code: int | None = None
        failure: SandboxError | None = None
        try:
            async with opened as (exec_id, reader, writer):
                self._writer = writer
                begun.set_result(None)
                reading = asyncio.ensure_future(self._from(reader))
                try:
                    await asyncio.wait_for(asyncio.shield(reading), lifetime)
                except TimeoutError:
                    self._unread.note(f"killed: its time of {lifetime:g} s is over")
                    await self._sandbox._kill_all()
                    await _settled(reading)
                code = await self._sandbox._exit_code(exec_id)
            code = await self._sandbox._own_end(code)
        except SandboxError as failed:
            failure = failed
        finally:
            self._writer = None
            if not begun.done():
                begun.set_exception(
                    failure or SandboxOperationFailed("start a command", "engine", "it was stopped")
                )
            self._unread.end(128 + signal.SIGKILL if code is None else code, failure)

    async def _from(self, reader: asyncio.StreamReader) -> None:
        if not self._tty:
            async for data, _ in _frames(reader):
                self._unread.take(data)
            return
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                self._unread.take(data)
