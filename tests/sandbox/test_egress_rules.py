"""Real sandboxes on the real proxy: what a hostile command reaches, and what it does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from runs.sandbox import Sandbox, SandboxProvider, SandboxSpec
from tests.runs.egress_parts import Server, Stage, certificate, echo, serving, stage
from tests.sandbox.stage import SECONDS, SMALL, out, sh, until

HOST = "allowed.test"


@dataclass
class Scene:
    """A sandbox whose one way out is a proxy, and a server that may be reached."""

    on: Stage
    box: Sandbox
    server: Server

    async def python(self, script: str, *arguments: object, timeout: float = SECONDS) -> str:
        """What a script prints inside; it must end well."""
        ran = await self.box.exec(["python3", "-c", script, *map(str, arguments)], timeout=timeout)
        assert ran.exit_code == 0, ran
        return ran.stdout.decode()


@asynccontextmanager
async def scene(provider: SandboxProvider) -> AsyncIterator[Scene]:
    async with stage() as on, serving() as server:
        folder = on.socket.parent
        folder.chmod(0o755)
        spec = SandboxSpec("run-1", "tenant-1", SMALL, egress_dir=folder)
        box = await provider.create(spec)
        try:
            yield Scene(on, box, server)
        finally:
            await box.close()


def told(provider: SandboxProvider, story: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        async with scene(provider) as at:
            await story(at)

    asyncio.run(run())


FETCH = """
import sys, urllib.error, urllib.request
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=30).read().decode())
    except urllib.error.HTTPError as error:
        print(error.code)
    except OSError as error:
        print(type(error).__name__)
"""


def test_a_rule_opens_one_place_in_a_sandbox_that_lives(real_provider: SandboxProvider) -> None:
    async def story(at: Scene) -> None:
        url = f"http://{HOST}:{at.server.port}/"
        other = f"http://other.test:{at.server.port}/"
        assert await at.python(FETCH, url, other) == "403\n403\n"
        rule = at.on.allow(HOST, at.server.port)
        assert await at.python(FETCH, url, other) == "hello\n403\n"
        at.on.revoke(rule)
        assert await at.python(FETCH, url) == "403\n"
        assert len(at.server.heard) == 1

    told(real_provider, story)


def test_tls_passes_for_the_named_host_alone(real_provider: SandboxProvider) -> None:
    script = """
import socket, ssl, sys
host, port, named = sys.argv[1], int(sys.argv[2]), sys.argv[3]
raw = socket.create_connection(("127.0.0.1", 3128), 30)
raw.sendall(f"CONNECT {host}:{port} HTTP/1.1\\r\\n\\r\\n".encode())
print(raw.recv(4096).split(b"\\r\\n")[0].decode())
context = ssl.create_default_context(cafile="trusted.pem")
try:
    tls = context.wrap_socket(raw, server_hostname=named)
    tls.sendall(b"ping")
    print(tls.recv(4).decode())
except OSError as error:
    print(type(error).__name__)
"""

    async def run() -> None:
        with certificate(HOST, "evil.test") as trusted:
            async with scene(real_provider) as at, serving(echo, tls=trusted) as server:
                await at.box.write("repo/trusted.pem", trusted.read_bytes())
                at.on.allow(HOST, server.port)
                opened = "HTTP/1.1 200 Connection established\n"
                assert await at.python(script, HOST, server.port, HOST) == opened + "ping\n"
                refused = await at.python(script, HOST, server.port, "evil.test")
                assert refused.startswith(opened)
                assert "ping" not in refused
                assert ("allowed.test", server.port, "other_name") in at.on.refused

    asyncio.run(run())


def test_there_is_no_other_way_out(real_provider: SandboxProvider) -> None:
    """Addresses, names and the host's own ports, with a rule in force beside them."""
    script = """
import socket, sys
def tried(what, act):
    try:
        act()
        print(what, "REACHED")
    except OSError:
        print(what, "nothing")
port = int(sys.argv[1])
tried("host", lambda: socket.create_connection(("127.0.0.1", port), 3))
tried("address", lambda: socket.create_connection(("192.0.2.1", 80), 3))
tried("six", lambda: socket.create_connection(("2001:db8::1", 80), 3))
tried("name", lambda: socket.getaddrinfo("allowed.test", 80))
datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
tried("datagram", lambda: datagram.sendto(b"x", ("192.0.2.1", 53)))
tried("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
tried("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
"""

    async def story(at: Scene) -> None:
        at.on.allow(HOST, at.server.port)
        said = await at.python(script, at.server.port)
        assert said.split() == [
            word
            for name in ("host", "address", "six", "name", "datagram", "raw", "packet")
            for word in (name, "nothing")
        ]
        assert not at.server.heard
        # The folder can be looked into and not changed, the socket not replaced.
        for command in ("rm /egress/proxy.sock", "mv /egress/proxy.sock /tmp/", "echo > /egress/x"):
            assert (await sh(at.box, command)).exit_code != 0
        assert await out(at.box, "ls /egress") == "proxy.sock\n"

    told(real_provider, story)


def test_programs_are_told_of_the_proxy_and_go_past_it_for_themselves(
    real_provider: SandboxProvider,
) -> None:
    async def story(at: Scene) -> None:
        names = "http_proxy https_proxy HTTP_PROXY HTTPS_PROXY no_proxy NO_PROXY"
        said = await out(at.box, f'for name in {names}; do eval echo "\\$$name"; done')
        assert said.split() == ["http://127.0.0.1:3128"] * 4 + ["127.0.0.1,localhost"] * 2
        own = """
import http.server, threading, urllib.request
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f"http://localhost:{server.server_port}/", timeout=30).status)
"""
        assert await at.python(own) == "200\n"
        assert not at.on.refused

    told(real_provider, story)


def test_taking_a_rule_back_ends_a_stream_in_the_middle(real_provider: SandboxProvider) -> None:
    script = """
import sys, urllib.request
stream = urllib.request.urlopen(sys.argv[1], timeout=60)
print("began", flush=True)
try:
    while stream.read(1000):
        pass
except OSError:
    pass
print("over", flush=True)
"""

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 1000)
            await writer.drain()
            await asyncio.sleep(0.01)

    async def run() -> None:
        async with scene(real_provider) as at, serving(endless) as server:
            rule = at.on.allow(HOST, server.port)
            command = await at.box.start(
                ["python3", "-u", "-c", script, f"http://{HOST}:{server.port}/"]
            )
            said = b""
            while b"began" not in said:
                said += await command.read()
            at.on.revoke(rule)
            while b"over" not in said:
                more = await command.read()
                assert more, said
                said += more
            assert await command.wait() == 0

    asyncio.run(run())


def test_whoever_kills_the_forwarder_has_no_network_and_then_has_it_again(
    real_provider: SandboxProvider,
) -> None:
    async def story(at: Scene) -> None:
        at.on.allow(HOST, at.server.port)
        url = f"http://{HOST}:{at.server.port}/"
        kill = (
            "for p in /proc/[0-9]*; do grep -qa forward.py $p/cmdline && kill -9 ${p#/proc/}; done"
        )
        await sh(at.box, f"{kill}; true")

        async def again() -> bool:
            return await at.python(FETCH, url) == "hello\n"

        await until(again, "the forwarder carries again")

    told(real_provider, story)


def test_commands_at_once_have_a_way_out_each(real_provider: SandboxProvider) -> None:
    async def story(at: Scene) -> None:
        at.on.allow(HOST, at.server.port)
        url = f"http://{HOST}:{at.server.port}/"
        said = await asyncio.gather(*(at.python(FETCH, url, url) for _ in range(3)))
        assert said == ["hello\nhello\n"] * 3

    told(real_provider, story)


def test_much_data_arrives_whole_both_ways(real_provider: SandboxProvider) -> None:
    script = """
import hashlib, sys, urllib.request
data = bytes(range(256)) * 8000
request = urllib.request.Request(sys.argv[1], data=data, method="POST")
print(urllib.request.urlopen(request, timeout=60).read() == data)
"""

    async def mirror(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(256 * 8000)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + body)
        await writer.drain()

    async def run() -> None:
        async with scene(real_provider) as at, serving(mirror) as server:
            at.on.allow(HOST, server.port)
            assert await at.python(script, f"http://{HOST}:{server.port}/") == "True\n"

    asyncio.run(run())


def test_a_flood_of_attempts_does_not_keep_what_is_permitted_from_passing(
    real_provider: SandboxProvider,
) -> None:
    script = """
import socket, time
until, tried = time.time() + 3, 0
while time.time() < until:
    try:
        with socket.create_connection(("127.0.0.1", 3128), 1) as one:
            one.sendall(b"GET http://evil.test/ HTTP/1.1\\r\\n\\r\\n")
        tried += 1
    except OSError:
        pass
print(tried)
"""

    async def story(at: Scene) -> None:
        at.on.allow(HOST, at.server.port)
        assert int(await at.python(script)) > 0
        assert at.on.refused
        assert await at.python(FETCH, f"http://{HOST}:{at.server.port}/") == "hello\n"

    told(real_provider, story)
