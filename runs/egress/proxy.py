"""The proxy of one run: decides every attempt, connects to what it checked, cuts what is over.

It lives in the event loop of the run it serves and answers on a unix socket in a folder of its
own. Nothing it is told by the sandbox is believed: heads and ClientHellos are read with bounds,
names are resolved here, and the address that was checked is the one that is connected to. A run
that floods it waits: few connections are taken at a time, and refusals have a pace.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from runs.egress import addresses
from runs.egress.heads import (
    LONGEST_ANSWER_HEAD,
    LONGEST_HEAD,
    Body,
    HeadRefused,
    Request,
    read_answer,
    read_request,
)
from runs.egress.rules import CONNECT, WORDS, Rule, Why, decide, place
from runs.egress.sni import REFUSAL, NameGate, NameRefused

SOCKET = "proxy.sock"

HEAD_SECONDS = 10.0
HELLO_SECONDS = 10.0
RESOLVE_SECONDS = 5.0
CONNECT_SECONDS = 10.0
IDLE_SECONDS = 120.0
LOOK_SECONDS = 5.0
"""How often connections are looked at for having said nothing."""

CHUNK = 1 << 16
TAKEN_AT_ONCE = 64
"""Connections from the sandbox; more wait in the kernel, and then inside the sandbox."""

OPEN_AT_ONCE = 32
"""Of those, connections that were let out."""

REFUSALS_AT_ONCE, REFUSALS_PER_SECOND = 20, 10.0
MOST_ADDRESSES = 4

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
Refused: TypeAlias = Callable[[str, int, Why], None]


async def system_names(host: str, port: int) -> Sequence[str]:
    """The addresses of a name, as this machine resolves it. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


@dataclass
class Usage:
    """What went through by one rule."""

    connections: int = 0
    open: int = 0
    sent: int = 0
    received: int = 0


@dataclass(frozen=True)
class Cut:
    """A rule that ended, and how many connections ended with it."""

    rule: Rule
    why: Why
    connections: int


class _Refused(Exception):
    """An attempt that does not pass. `note` is for whoever asked."""

    def __init__(self, why: Why, status: str = "403 Forbidden", note: str = "") -> None:
        super().__init__(why.value)
        self.why, self.status, self.note = why, status, note


@dataclass(eq=False)
class _Live:
    """One connection that was let out."""

    rule: Rule
    usage: Usage
    task: asyncio.Task[None]
    heard: float
    answered: bool = False
    """Whether the client was told anything yet."""
    ends: list[asyncio.WriteTransport] = field(default_factory=list)
    why: Why | None = None

    def cut(self, why: Why) -> None:
        """End it now: what waits to be sent is not sent any more."""
        self.why = why
        for end in self.ends:
            end.abort()
        self.task.cancel()


class EgressProxy:
    """See the module. `refused` is told of every attempt that did not pass, `ended` of rules."""

    def __init__(
        self,
        *,
        resolve: Resolve = system_names,
        private_hosts: Collection[str] = (),
        clock: Callable[[], float] = time.time,
        refused: Refused = lambda host, port, why: None,
        ended: Callable[[Cut], None] = lambda cut: None,
        advice: str = "",
    ) -> None:
        self._resolve = resolve
        self._private = frozenset(private_hosts)
        self._clock = clock
        self._refused = refused
        self._ended = ended
        self._advice = advice
        self._rules: dict[str, Rule] = {}
        self._before: dict[str, int] = {}
        self._over: set[str] = set()
        self.usage: dict[str, Usage] = {}
        self._live: set[_Live] = set()
        self._clients: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        self._path: Path | None = None
        self._helpers: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._room = asyncio.Semaphore(TAKEN_AT_ONCE)
        self._patience = float(REFUSALS_AT_ONCE)
        self._patience_at = time.monotonic()

    # --- The outer runtime's side ------------------------------------------------------------

    async def start(self, folder: Path) -> None:
        """Answer on `folder/proxy.sock`. Whoever can enter the folder can ask."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        entry = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        try:
            # By way of the descriptor: the path of a socket is short, a folder's may not be.
            listener.bind(f"/proc/self/fd/{entry}/{SOCKET}")
            (folder / SOCKET).chmod(0o666)
            listener.listen(TAKEN_AT_ONCE)
        except BaseException:
            listener.close()
            raise
        finally:
            os.close(entry)
        self._listener, self._path = listener, folder / SOCKET
        self._helpers = [
            asyncio.create_task(self._take(listener), name="egress proxy"),
            asyncio.create_task(self._look(), name="egress proxy, idle connections"),
        ]

    def set_rules(self, rules: Iterable[Rule]) -> list[Cut]:
        """These and no others, from now on. Connections of a rule that is gone are cut here.

        A rule that another one replaces under the same key is gone as well, unless the two say
        the same but for their end.
        """
        before, self._rules = self._rules, {rule.key: rule for rule in rules}
        cuts = []
        for key, rule in before.items():
            now = self._rules.get(key)
            if now is None and key in self._over:
                self._over.discard(key)
            elif now is None or _reach(now) != _reach(rule):
                cuts.append(Cut(rule, Why.REVOKED, self._cut(key, Why.REVOKED)))
        for key, rule in self._rules.items():
            self._before.setdefault(key, rule.used_bytes)
            self.usage.setdefault(key, Usage())
        self._expire()
        return cuts

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of now, those whose time is over included."""
        return tuple(self._rules.values())

    async def close(self) -> None:
        """Cut everything and leave nothing. Safe to repeat."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._helpers, *self._clients]
        for live in list(self._live):
            live.cut(Why.OVER)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._helpers.clear()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _cut(self, key: str, why: Why) -> int:
        """Cut the connections of one rule; how many there were."""
        cut = [live for live in self._live if live.rule.key == key and live.why is None]
        for live in cut:
            live.cut(why)
        return len(cut)

    def _expire(self) -> None:
        """Cut the connections of rules whose time is over, and come back for the next one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now, nexts = self._clock(), []
        for key, rule in self._rules.items():
            if now < rule.expires_at:
                self._over.discard(key)
                nexts.append(rule.expires_at)
            elif key not in self._over:
                self._over.add(key)
                self._ended(Cut(rule, Why.EXPIRED, self._cut(key, Why.EXPIRED)))
        if nexts:
            loop = asyncio.get_running_loop()
            # A little late rather than a little early: then it is over for sure.
            self._timer = loop.call_later(max(0.0, min(nexts) - now) + 0.001, self._expire)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            silent = time.monotonic() - IDLE_SECONDS
            for live in list(self._live):
                if live.heard < silent:
                    live.cut(Why.IDLE)

    # --- The sandbox's side ------------------------------------------------------------------

    async def _take(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._room.acquire()
            try:
                taken, _ = await loop.sock_accept(listener)
            except OSError:
                # Out of descriptors, for instance: that passes.
                self._room.release()
                await asyncio.sleep(0.1)
                continue
            except BaseException:
                self._room.release()
                raise
            task = asyncio.create_task(self._client(taken), name="egress connection")
            self._clients.add(task)
            task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._clients.discard(task)
        self._room.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            # Nothing a sandbox says should come to this; the run goes on without the connection.
            asyncio.get_running_loop().call_exception_handler(
                {"message": "an egress connection failed", "exception": error, "task": task}
            )

    async def _client(self, taken: socket.socket) -> None:
        try:
            reader, writer = await _streams(taken, LONGEST_HEAD)
        except BaseException:
            taken.close()
            raise
        try:
            await self._answer(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        place_of = ("", 0)
        try:
            request = await self._request(reader)
            if request is None:
                return
            place_of = (request.wanted.host, request.wanted.port)
            await self._pass(request, reader, writer)
        except _Refused as refused:
            self._refused(*place_of, refused.why)
            await self._patiently()
            await self._refuse(writer, place_of, refused)
        except NameRefused as refused:
            self._refused(*place_of, refused.why)
            await self._patiently()
            with contextlib.suppress(OSError):
                writer.write(REFUSAL)
                await writer.drain()
        except OSError:
            pass  # one of the two hung up

    async def _request(self, reader: asyncio.StreamReader) -> Request | None:
        """What is asked for, or None if nothing is. Raises `_Refused`."""
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            return read_request(head)
        except asyncio.IncompleteReadError as incomplete:
            if not incomplete.partial:
                return None
            raise _Refused(Why.BAD_REQUEST, "400 Bad Request", "The head has no end.") from None
        except asyncio.LimitOverrunError:
            status = "431 Request Header Fields Too Large"
            raise _Refused(Why.BAD_REQUEST, status, "The head is too long.") from None
        except TimeoutError:
            raise _Refused(
                Why.BAD_REQUEST, "408 Request Timeout", "The head never ended."
            ) from None
        except HeadRefused as refused:
            raise _Refused(Why.BAD_REQUEST, "400 Bad Request", str(refused)) from None

    async def _pass(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Let it out if a rule permits it. Raises `_Refused` and `NameRefused`."""
        rule = self._permitted(request)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this is a coroutine
        live = _Live(rule, self.usage[rule.key], task, time.monotonic(), ends=[writer.transport])
        self._live.add(live)
        live.usage.open += 1
        try:
            server_reader, server = await self._connected(rule)
            live.usage.connections += 1
            live.ends.append(server.transport)
            try:
                if request.wanted.method == CONNECT:
                    await self._tunnel(live, reader, writer, server_reader, server)
                else:
                    await self._plain(live, request, reader, writer, server_reader, server)
            finally:
                server.close()
        except asyncio.CancelledError:
            if live.why is None:
                raise
            # Cut by us: the connection is over, this task has only to end.
            self._tell_cut(live)
        except NameRefused:
            server_gone = live.ends[-1]
            server_gone.abort()
            raise
        finally:
            live.usage.open -= 1
            self._live.discard(live)

    def _tell_cut(self, live: _Live) -> None:
        if live.why in (Why.BYTES, Why.IDLE):
            self._refused(live.rule.host, live.rule.port, live.why)

    def _permitted(self, request: Request) -> Rule:
        decision = decide(self._rules.values(), request.wanted, self._clock())
        rule = decision.rule
        if rule is None:
            raise _Refused(decision.why or Why.NOT_LISTED)
        usage = self.usage[rule.key]
        if self._left(rule, usage) <= 0:
            raise _Refused(Why.BYTES)
        if usage.open >= rule.limits.connections:
            raise _Refused(Why.CONNECTIONS, "429 Too Many Requests")
        if len(self._live) >= OPEN_AT_ONCE:
            raise _Refused(Why.BUSY, "429 Too Many Requests")
        return rule

    def _left(self, rule: Rule, usage: Usage) -> int:
        used = self._before.get(rule.key, 0) + usage.sent + usage.received
        return rule.limits.bytes - used

    async def _connected(self, rule: Rule) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to an address of the rule's host that was checked. Raises `_Refused`."""
        for address in await self._addresses(rule):
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    return await asyncio.open_connection(
                        address, rule.port, limit=LONGEST_ANSWER_HEAD
                    )
            except (OSError, TimeoutError):
                continue
        raise _Refused(Why.UNREACHABLE, "502 Bad Gateway")

    async def _addresses(self, rule: Rule) -> Sequence[str]:
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                found = await self._resolve(rule.host, rule.port)
        except (OSError, UnicodeError, TimeoutError):
            found = ()
        if not found:
            raise _Refused(Why.UNRESOLVED, "502 Bad Gateway")
        if not {rule.host, place(rule.host, rule.port)} & self._private:
            for address in found:
                # One bad address among good ones is reason enough: which one is taken is chance.
                if word := addresses.why_refused(address):
                    note = f"It resolves to {address}, a {word} address."
                    raise _Refused(Why.ADDRESS, note=note)
        return found[:MOST_ADDRESSES]

    # --- What passes ---------------------------------------------------------------------------

    async def _tunnel(
        self,
        live: _Live,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server: asyncio.StreamWriter,
    ) -> None:
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        gate = NameGate(live.rule.host)
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                while not gate.named:
                    data = await reader.read(CHUNK)
                    if not data:
                        return
                    await self._forth(live, gate.feed(data), server)
        except TimeoutError:
            raise NameRefused(Why.NOT_TLS) from None

        async def up() -> None:
            while data := await reader.read(CHUNK):
                await self._forth(live, gate.feed(data), server)
            _end(server)

        await self._both(up(), self._back(live, server_reader, writer))

    async def _plain(
        self,
        live: _Live,
        request: Request,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server: asyncio.StreamWriter,
    ) -> None:
        await self._forth(live, request.written(), server)
        body = Body(request.body)

        async def up() -> None:
            while not body.over:
                data = await reader.read(CHUNK)
                if not data:
                    raise ConnectionResetError
                try:
                    await self._forth(live, body.feed(data), server)
                except HeadRefused as refused:
                    if live.answered:
                        raise ConnectionResetError from None
                    note = str(refused)
                    raise _Refused(Why.BAD_REQUEST, "400 Bad Request", note) from None

        async def down() -> None:
            await self._answer_head(live, server_reader, writer)
            await self._back(live, server_reader, writer)

        if body.over:
            await down()
        else:
            await self._both(up(), down())

    async def _answer_head(
        self, live: _Live, server_reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        status = 100
        while status < 200:
            try:
                head = await server_reader.readuntil(b"\r\n\r\n")
                status, rewritten = read_answer(head)
                if status == 101:
                    raise HeadRefused
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, HeadRefused):
                if live.answered:
                    raise ConnectionResetError from None
                note = "It did not answer with HTTP/1."
                raise _Refused(Why.UNREACHABLE, "502 Bad Gateway", note) from None
            self._count(live, received=len(head))
            live.answered = True
            writer.write(rewritten)
        await writer.drain()

    async def _forth(self, live: _Live, data: bytes, server: asyncio.StreamWriter) -> None:
        if data:
            self._count(live, sent=len(data))
            server.write(data)
            await server.drain()

    async def _back(
        self, live: _Live, server_reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await server_reader.read(CHUNK):
            self._count(live, received=len(data))
            writer.write(data)
            await writer.drain()
        _end(writer)

    def _count(self, live: _Live, *, sent: int = 0, received: int = 0) -> None:
        """Count bytes before they pass; what would be too much does not pass."""
        if self._left(live.rule, live.usage) < sent + received:
            live.cut(Why.BYTES)
            raise asyncio.CancelledError
        live.usage.sent += sent
        live.usage.received += received
        live.heard = time.monotonic()

    async def _both(self, up: Awaitable[None], down: Awaitable[None]) -> None:
        """Both directions, until the answer is over or one of them fails."""
        forth = asyncio.ensure_future(up)
        back = asyncio.ensure_future(down)
        try:
            done, _ = await asyncio.wait({forth, back}, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
            await back
        finally:
            for each in (forth, back):
                each.cancel()
            await asyncio.wait({forth, back})
            for each in (forth, back):
                if not each.cancelled():
                    each.exception()

    # --- What does not -------------------------------------------------------------------------

    async def _patiently(self) -> None:
        """Refusals have a pace: the first ones are quick, a flood of them is not."""
        now = time.monotonic()
        grown = self._patience + (now - self._patience_at) * REFUSALS_PER_SECOND
        self._patience = min(float(REFUSALS_AT_ONCE), grown) - 1
        self._patience_at = now
        if self._patience < 0:
            await asyncio.sleep(-self._patience / REFUSALS_PER_SECOND)

    async def _refuse(
        self, writer: asyncio.StreamWriter, place_of: tuple[str, int], refused: _Refused
    ) -> None:
        where = place(*place_of) if place_of[0] else "this"
        words = [f"Refused: {where}: {WORDS[refused.why]}.", refused.note, self._advice]
        body = f"{' '.join(word for word in words if word)}\n".encode()
        head = (
            f"HTTP/1.1 {refused.status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
            f"X-Egress-Refused: {refused.why.value}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        with contextlib.suppress(OSError):
            writer.write(head.encode() + body)
            await writer.drain()


def _reach(rule: Rule) -> tuple[object, ...]:
    return (rule.host, rule.port, rule.tls, rule.plain, rule.methods, rule.path)


def _end(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        if writer.can_write_eof():
            writer.write_eof()


async def _streams(
    taken: socket.socket, limit: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    taken.setblocking(False)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, taken)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
