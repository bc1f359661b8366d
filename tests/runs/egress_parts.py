"""What the tests of the egress proxy stand on: servers of this machine, and clients of a socket."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from runs.egress.proxy import Cut, EgressProxy
from runs.egress.rules import Rule, Why

SOON = 30.0
"""No test waits that long for anything that works."""


# --- Certificates -----------------------------------------------------------------------------


@contextmanager
def certificate(*names: str) -> Iterator[Path]:
    """A file with a fresh key and a certificate for these hosts, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
    now = dt.datetime.now(dt.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "server.pem")
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + signed.public_bytes(serialization.Encoding.PEM)
        )
        yield path


# --- Servers ----------------------------------------------------------------------------------

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Server:
    """One server of this machine. `heard` is all that clients said, connection by connection."""

    port: int
    heard: list[bytearray] = field(default_factory=list)


@asynccontextmanager
async def serving(
    answer: Answer | None = None, *, tls: Path | None = None
) -> AsyncIterator[Server]:
    """A server that keeps what it hears, and answers one request unless told otherwise."""
    server = Server(0)
    context = None
    if tls is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tls)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = bytearray()
        server.heard.append(said)
        kept = _Kept(reader, said)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await (answer or hello)(kept, writer)  # type: ignore[arg-type]
        writer.close()

    listening = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


class _Kept:
    """A reader that keeps what it reads."""

    def __init__(self, reader: asyncio.StreamReader, said: bytearray) -> None:
        self._reader, self._said = reader, said

    async def read(self, count: int = -1) -> bytes:
        data = await self._reader.read(count)
        self._said += data
        return data

    async def readuntil(self, mark: bytes) -> bytes:
        data = await self._reader.readuntil(mark)
        self._said += data
        return data

    async def readexactly(self, count: int) -> bytes:
        data = await self._reader.readexactly(count)
        self._said += data
        return data


async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request with a word."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
    await writer.drain()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say everything back."""
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


# --- The proxy and its clients ----------------------------------------------------------------


@dataclass
class Stage:
    """A proxy, what it refused, and clients of its socket."""

    proxy: EgressProxy
    socket: Path
    refused: list[tuple[str, int, str]]
    ended: list[Cut]
    rules: dict[str, Rule] = field(default_factory=dict)

    def allow(self, host: str, port: int, *, seconds: float = 60, **more: object) -> Rule:
        """One more rule."""
        key = f"rule-{len(self.rules)}"
        self.rules[key] = Rule(key, host, port, "for a test", time.time() + seconds, **more)  # type: ignore[arg-type]
        self.proxy.set_rules(self.rules.values())
        return self.rules[key]

    def revoke(self, rule: Rule) -> list[Cut]:
        """One rule less."""
        del self.rules[rule.key]
        return self.proxy.set_rules(self.rules.values())

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the proxy, as the forwarder makes it."""
        return await asyncio.open_unix_connection(self.socket)

    async def ask(self, raw: bytes) -> bytes:
        """Everything the proxy says to these bytes."""
        reader, writer = await self.open()
        writer.write(raw)
        with contextlib.suppress(OSError):
            await writer.drain()
        try:
            async with asyncio.timeout(SOON):
                return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()

    async def get(self, host: str, port: int, path: str = "/", *headers: str) -> bytes:
        """The answer to one plain request."""
        lines = [f"GET http://{host}:{port}{path} HTTP/1.1", *headers, "", ""]
        return await self.ask("\r\n".join(lines).encode())

    async def tunnel(
        self, host: str, port: int
    ) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
        """The first line of the answer to CONNECT, and the connection."""
        reader, writer = await self.open()
        writer.write(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        async with asyncio.timeout(SOON):
            head = await reader.readuntil(b"\r\n\r\n")
        return head.split(b"\r\n")[0], reader, writer

    async def tls(
        self, host: str, port: int, trusted: Path, *, named: str | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A TLS connection through a tunnel to `host`, asking for `named` inside."""
        line, reader, writer = await self.tunnel(host, port)
        assert line == b"HTTP/1.1 200 Connection established", line
        context = ssl.create_default_context(cafile=str(trusted))
        async with asyncio.timeout(SOON):
            await writer.start_tls(context, server_hostname=named or host)
        return reader, writer


@asynccontextmanager
async def stage(
    names: Mapping[str, Sequence[str]] | None = None,
    *,
    private: Sequence[str] = (),
    **more: object,
) -> AsyncIterator[Stage]:
    """A proxy for which these names have these addresses, and all others have none."""
    refused: list[tuple[str, int, str]] = []
    ended: list[Cut] = []
    known = {"allowed.test": ["127.0.0.1"], **(names or {})}

    async def resolve(host: str, port: int) -> Sequence[str]:
        if host not in known:
            raise OSError("no such name")
        return known[host]

    def note(host: str, port: int, why: Why) -> None:
        refused.append((host, port, why.value))

    proxy = EgressProxy(
        resolve=resolve,
        private_hosts=["allowed.test", *private],
        refused=note,
        ended=ended.append,
        **more,  # type: ignore[arg-type]
    )
    with tempfile.TemporaryDirectory(prefix="egress-", dir="/tmp") as folder:
        await proxy.start(Path(folder))
        try:
            yield Stage(proxy, Path(folder, "proxy.sock"), refused, ended)
        finally:
            await proxy.close()


def run(story: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """A test told as one coroutine, with an end to all waiting."""

    def test() -> None:
        async def told() -> None:
            async with asyncio.timeout(4 * SOON):
                await story()

        asyncio.run(told())

    test.__name__, test.__doc__, test.__module__ = story.__name__, story.__doc__, story.__module__
    return test


async def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for something that happens soon, however slow the machine is."""
    deadline = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < deadline, f"it never came: {what}"
        await asyncio.sleep(0.01)
