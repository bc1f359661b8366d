"""The proxy between real clients and real servers of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from runs.egress import proxy as proxy_module
from runs.egress.rules import Limits, Why
from tests.runs.egress_parts import (
    SOON,
    Server,
    Stage,
    certificate,
    echo,
    run,
    serving,
    stage,
    until,
)
from tests.runs.hellos import CHANGE, DATA, EARLY_DATA, hello

HOST = "allowed.test"


# --- Plain requests ---------------------------------------------------------------------------


@run
async def test_a_listed_host_answers_and_nothing_else_does() -> None:
    async with stage() as on, serving() as server, serving() as other:
        on.allow(HOST, server.port)
        answer = await on.get(HOST, server.port)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\nhello")
        for host, port in ((HOST, other.port), ("other.test", server.port)):
            refused = await on.get(host, port)
            assert refused.startswith(b"HTTP/1.1 403 Forbidden\r\n")
            assert b"no rule of this run names it" in refused
        assert on.refused == [
            (HOST, other.port, "not_listed"),
            ("other.test", server.port, "not_listed"),
        ]
        assert len(server.heard) == 1
        assert not other.heard


@run
async def test_nothing_passes_before_the_first_rule() -> None:
    async with stage() as on, serving() as server:
        assert b"403" in await on.get(HOST, server.port)
        line, _, writer = await on.tunnel(HOST, server.port)
        assert line == b"HTTP/1.1 403 Forbidden"
        writer.close()
        assert not server.heard


@run
async def test_an_address_in_place_of_a_listed_name_is_not_listed() -> None:
    async with stage() as on, serving() as server:
        on.allow(HOST, server.port)
        for host in ("127.0.0.1", "127.1", "2130706433", "0x7f.1", "localhost", "[::1]"):
            assert b"403" in (await on.get(host, server.port)).split(b"\r\n")[0]
        assert not server.heard


@run
async def test_a_forged_host_header_is_written_anew() -> None:
    async with stage() as on, serving() as server:
        on.allow(HOST, server.port)
        await on.get(HOST, server.port, "/x?y=1", "Host: evil.test", "Proxy-Authorization: Basic x")
        said = bytes(server.heard[0]).split(b"\r\n")
        assert said[0] == b"GET /x?y=1 HTTP/1.1"
        assert said[1] == f"Host: {HOST}:{server.port}".encode()
        assert b"evil.test" not in server.heard[0]
        assert b"Proxy" not in server.heard[0]


@run
async def test_a_request_behind_a_request_goes_nowhere() -> None:
    async with stage() as on, serving(echo_head) as server:
        on.allow(HOST, server.port, methods=("GET", "POST"), path="/open")
        second = f"GET http://{HOST}:{server.port}/secret HTTP/1.1\r\n\r\n"
        for first in (
            "GET {}/open HTTP/1.1\r\n\r\n",
            "POST {}/open HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
            "POST {}/open HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        ):
            written = first.format(f"http://{HOST}:{server.port}") + second
            assert b"200 OK" in await on.ask(written.encode())
        assert len(server.heard) == 3
        assert not any(b"secret" in said for said in server.heard)


async def echo_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer, then listen for whatever else comes until the client is done."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    await writer.drain()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            while await reader.read(100):
                pass


@run
async def test_requests_that_can_be_read_in_two_ways_are_refused_and_go_nowhere() -> None:
    async with stage() as on, serving() as server:
        on.allow(HOST, server.port)
        there = f"http://{HOST}:{server.port}/"
        for raw in (
            f"POST {there} HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
            f"POST {there} HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
            f"GET {there} HTTP/1.1\r\nX: a\nY: b\r\n\r\n",
            f"GET {there} HTTP/1.1\r\n folded: yes\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n",
            "\x16\x03\x01 no request at all\r\n\r\n",
        ):
            assert b"400 Bad Request" in (await on.ask(raw.encode())).split(b"\r\n")[0]
        assert not server.heard
        assert {why for _, _, why in on.refused} == {"bad_request"}


@run
async def test_a_head_without_an_end_or_without_a_limit_is_refused() -> None:
    async with stage() as on:
        assert b"431" in await on.ask(b"GET http://a.test/ HTTP/1.1\r\nX: " + b"a" * 100_000)
        reader, writer = await on.open()
        writer.write(b"GET http://a.test/ HT")
        writer.write_eof()
        assert b"400" in await reader.read()
        writer.close()
        # Whoever says nothing at all is not counted.
        _, silent = await on.open()
        silent.close()
        assert [why for _, _, why in on.refused] == ["bad_request", "bad_request"]


@run
async def test_methods_and_paths_are_held_to_the_rule() -> None:
    async with stage() as on, serving() as server:
        on.allow(HOST, server.port, methods=("GET",), path="/simple")
        assert b"200 OK" in await on.get(HOST, server.port, "/simple/x")
        assert b"does not permit this path" in await on.get(HOST, server.port, "/simple/../x")
        post = f"POST http://{HOST}:{server.port}/simple/x HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
        assert b"does not permit this method" in await on.ask(post.encode())
        line, _, writer = await on.tunnel(HOST, server.port)
        assert line == b"HTTP/1.1 403 Forbidden"
        writer.close()
        assert [why for _, _, why in on.refused] == ["path", "method", "not_tunnel"]
        assert len(server.heard) == 1


@run
async def test_bodies_arrive_whole_both_ways() -> None:
    big = bytes(range(256)) * 4000

    async def mirror(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"chunked" in head:
            body = await reader.readuntil(b"0\r\n\r\n")
        else:
            body = await reader.readexactly(len(big))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + body)
        await writer.drain()

    async with stage() as on, serving(mirror) as server:
        on.allow(HOST, server.port)
        head = f"POST http://{HOST}:{server.port}/ HTTP/1.1\r\n"
        sized = head + f"Content-Length: {len(big)}\r\nExpect: 100-continue\r\n\r\n"
        answer = await on.ask(sized.encode() + big)
        assert answer.split(b"\r\n\r\n", 1)[1] == big
        chunks = b"3E8\r\n" + big[:1000] + b"\r\n0\r\n\r\n"
        answer = await on.ask(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunks)
        assert answer.split(b"\r\n\r\n", 1)[1] == chunks.replace(b"3E8", b"3e8")


@run
async def test_an_answer_that_is_none_is_not_passed_on() -> None:
    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-server\r\n\r\n")

    async def switching(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n")

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    for answer in (odd, switching, silent):
        async with stage() as on, serving(answer) as server:
            on.allow(HOST, server.port)
            assert b"502 Bad Gateway" in await on.get(HOST, server.port)


@run
async def test_an_interim_answer_passes_before_the_last_one() -> None:
    async def twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n")

    async with stage() as on, serving(twice) as server:
        on.allow(HOST, server.port)
        answer = await on.get(HOST, server.port)
        assert answer == (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
        )


# --- Names and addresses ----------------------------------------------------------------------


@run
async def test_a_listed_name_that_leads_inside_is_refused() -> None:
    inside = {
        "loop.test": ["127.0.0.1"],
        "cloud.test": ["169.254.169.254"],
        "home.test": ["10.1.2.3"],
        "mapped.test": ["::ffff:127.0.0.1"],
        "six.test": ["::1"],
        "any.test": ["0.0.0.0"],
        "many.test": ["224.0.0.1"],
        # One bad address among good ones: which one would be taken is chance.
        "mixed.test": ["93.184.216.34", "127.0.0.1"],
    }
    async with stage(inside) as on, serving() as server:
        for host in inside:
            on.allow(host, server.port)
            refused = await on.get(host, server.port)
            assert b"403 Forbidden" in refused
            assert b"address that no sandbox may reach" in refused
            line, _, writer = await on.tunnel(host, server.port)
            assert line == b"HTTP/1.1 403 Forbidden"
            writer.close()
        assert {why for _, _, why in on.refused} == {"address"}
        assert not server.heard


@run
async def test_a_deployment_may_list_private_hosts_by_name_or_with_a_port() -> None:
    async with serving() as server, serving() as other:
        private = ["a.test", f"b.test:{server.port}"]
        names = {"a.test": ["127.0.0.1"], "b.test": ["127.0.0.1"], "c.test": ["127.0.0.1"]}
        async with stage(names, private=private) as on:
            for host in names:
                for port in (server.port, other.port):
                    on.allow(host, port)
            assert b"200 OK" in await on.get("a.test", other.port)
            assert b"200 OK" in await on.get("b.test", server.port)
            assert b"403" in await on.get("b.test", other.port)
            assert b"403" in await on.get("c.test", server.port)


@run
async def test_a_name_is_resolved_once_and_what_was_checked_is_connected_to() -> None:
    """A name server that answers differently the second time is not asked a second time."""
    asked: list[str] = []

    async with stage() as on, serving() as server:

        async def turning(host: str, port: int) -> list[str]:
            asked.append(host)
            return ["192.0.2.1"] if len(asked) > 1 else ["127.0.0.1"]

        on.proxy._resolve = turning
        on.allow(HOST, server.port)
        assert b"200 OK" in await on.get(HOST, server.port)
        assert asked == [HOST]


@run
async def test_names_are_not_resolved_for_attempts_that_no_rule_permits() -> None:
    """A question to a name server is a way out of its own."""
    async with stage() as on:

        async def never(host: str, port: int) -> list[str]:
            raise AssertionError(host)

        on.proxy._resolve = never
        assert b"403" in await on.get("data-of-a-tenant.evil.test", 80)
        line, _, writer = await on.tunnel("data-of-a-tenant.evil.test", 443)
        assert line == b"HTTP/1.1 403 Forbidden"
        writer.close()


@run
async def test_what_cannot_be_resolved_or_reached_is_said() -> None:
    async with stage() as on, serving() as server:
        on.allow("nowhere.test", 80)
        assert b"could not be resolved" in await on.get("nowhere.test", 80)
        gone = server.port
    async with stage() as on:
        on.allow(HOST, gone)
        assert b"nothing answered there" in await on.get(HOST, gone)
        assert on.refused == [(HOST, gone, "unreachable")]


# --- Tunnels ----------------------------------------------------------------------------------


@run
async def test_tls_to_the_named_host_passes_both_ways() -> None:
    with certificate(HOST) as trusted:
        async with stage() as on, serving(echo, tls=trusted) as server:
            rule = on.allow(HOST, server.port)
            reader, writer = await on.tls(HOST, server.port, trusted)
            for size in (1, 1000, 300_000):
                writer.write(b"x" * size)
                await writer.drain()
                assert len(await reader.readexactly(size)) == size
            writer.close()
            usage = on.proxy.usage[rule.key]
            assert usage.connections == 1
            assert usage.sent > 301_001
            assert usage.received > 301_001
            await until(lambda: usage.open == 0, "the tunnel is closed")
            assert not on.refused


@run
async def test_a_tunnel_whose_tls_names_another_host_is_cut() -> None:
    """A host behind the same door as the permitted one is not reached through it."""
    with certificate(HOST, "evil.test") as trusted:
        async with stage() as on, serving(echo, tls=trusted) as server:
            on.allow(HOST, server.port)
            with pytest.raises((ssl.SSLError, OSError)):
                await on.tls(HOST, server.port, trusted, named="evil.test")
            await until(lambda: bool(on.refused), "the refusal")
            assert on.refused == [(HOST, server.port, "other_name")]
            assert not any(server.heard)


@run
async def test_a_tunnel_that_is_no_tls_is_cut_before_anything_passes() -> None:
    beginnings = {
        b"GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n": "not_tls",
        b"SSH-2.0-agent\r\n": "not_tls",
        b"\x00\x01\x02\x03": "not_tls",
        hello(): "no_name",
        hello("evil.test"): "other_name",
        hello(HOST, more=[(0xFE0D, b"\0" * 40)]): "hidden_name",
        hello(HOST, more=[EARLY_DATA]): "early_data",
    }
    async with stage() as on, serving(echo) as server:
        on.allow(HOST, server.port)
        for said in beginnings:
            line, reader, writer = await on.tunnel(HOST, server.port)
            assert line.endswith(b"200 Connection established")
            writer.write(said)
            async with asyncio.timeout(SOON):
                # The alert `unrecognized_name`, and the end.
                assert await reader.read() == b"\x15\x03\x03\x00\x02\x02\x70"
            writer.close()
        assert [why for _, _, why in on.refused] == list(beginnings.values())
        assert not any(server.heard)


@run
async def test_a_second_hello_with_another_name_cuts_the_tunnel() -> None:
    async with stage() as on, serving(echo) as server:
        on.allow(HOST, server.port)
        _, reader, writer = await on.tunnel(HOST, server.port)
        writer.write(hello(HOST))
        assert await reader.readexactly(len(hello(HOST))) == hello(HOST)
        writer.write(CHANGE + hello("evil.test"))
        async with asyncio.timeout(SOON):
            rest = await reader.read()
        assert b"evil.test" not in rest
        assert b"evil.test" not in server.heard[0]
        assert on.refused == [(HOST, server.port, "other_name")]
        writer.close()


@run
async def test_a_tunnel_in_which_nobody_speaks_is_cut() -> None:
    with mock.patch.object(proxy_module, "HELLO_SECONDS", 0.05):
        async with stage() as on, serving(echo) as server:
            on.allow(HOST, server.port)
            _, reader, writer = await on.tunnel(HOST, server.port)
            async with asyncio.timeout(SOON):
                await reader.read()
            writer.close()
            assert on.refused == [(HOST, server.port, "not_tls")]


# --- Ends -------------------------------------------------------------------------------------


async def _opened(on: Stage, server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A tunnel through which something went."""
    _, reader, writer = await on.tunnel(HOST, server.port)
    writer.write(hello(HOST) + DATA)
    await reader.readexactly(len(hello(HOST) + DATA))
    return reader, writer


@run
async def test_taking_a_rule_back_cuts_its_open_tunnels_at_once_and_no_others() -> None:
    async with stage() as on, serving(echo) as server, serving(echo) as other:
        rule, kept = on.allow(HOST, server.port), on.allow(HOST, other.port)
        reader, writer = await _opened(on, server)
        other_reader, other_writer = await _opened(on, other)
        cuts = on.revoke(rule)
        assert [(cut.rule, cut.why, cut.connections) for cut in cuts] == [(rule, Why.REVOKED, 1)]
        async with asyncio.timeout(SOON):
            assert await reader.read() == b""
        other_writer.write(b"still there")
        assert await other_reader.readexactly(11) == b"still there"
        line, _, late = await on.tunnel(HOST, server.port)
        assert line == b"HTTP/1.1 403 Forbidden"
        assert on.proxy.usage[kept.key].open == 1
        for each in (writer, other_writer, late):
            each.close()


@run
async def test_a_rule_ends_by_itself_and_cuts_what_is_open() -> None:
    async with stage() as on, serving(echo) as server:
        rule = on.allow(HOST, server.port, seconds=1)
        reader, writer = await _opened(on, server)
        async with asyncio.timeout(SOON):
            assert await reader.read() == b""
        assert time.time() >= rule.expires_at
        writer.close()
        assert [(cut.rule, cut.why, cut.connections) for cut in on.ended] == [
            (rule, Why.EXPIRED, 1)
        ]
        assert b"the rule for it is over" in await on.get(HOST, server.port)


@run
async def test_the_end_of_a_rule_may_be_moved() -> None:
    async with stage() as on, serving(echo) as server:
        rule = on.allow(HOST, server.port, seconds=60)
        reader, writer = await _opened(on, server)
        on.rules[rule.key] = replace(rule, expires_at=time.time() + 90)
        assert on.proxy.set_rules(on.rules.values()) == []
        writer.write(b"still there")
        assert await reader.readexactly(11) == b"still there"
        writer.close()


@run
async def test_a_narrower_rule_under_the_same_key_cuts_what_the_wider_one_let_through() -> None:
    async with stage() as on, serving(echo) as server:
        rule = on.allow(HOST, server.port)
        reader, writer = await _opened(on, server)
        on.rules[rule.key] = replace(rule, tls=False)
        assert len(on.proxy.set_rules(on.rules.values())) == 1
        async with asyncio.timeout(SOON):
            assert await reader.read() == b""
        writer.close()


@run
async def test_a_plain_answer_is_cut_as_well() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 1000)
            await writer.drain()
            await asyncio.sleep(0.01)

    async with stage() as on, serving(endless) as server:
        rule = on.allow(HOST, server.port)
        reader, writer = await on.open()
        writer.write(f"GET http://{HOST}:{server.port}/ HTTP/1.1\r\n\r\n".encode())
        assert await reader.read(10)
        on.revoke(rule)
        async with asyncio.timeout(SOON):
            while await reader.read(1 << 16):
                pass
        writer.close()


@run
async def test_closing_cuts_everything_and_leaves_nothing() -> None:
    async with stage() as on, serving(echo) as server:
        on.allow(HOST, server.port)
        reader, writer = await _opened(on, server)
        _, waiting = await on.open()
        await on.proxy.close()
        async with asyncio.timeout(SOON):
            assert await reader.read() == b""
        assert not on.socket.exists()
        await on.proxy.close()
        with pytest.raises(FileNotFoundError):
            await on.open()
        for each in (writer, waiting):
            each.close()
        await until(lambda: len(asyncio.all_tasks()) <= 3, "no task of the proxy is left")


@run
async def test_a_client_that_hangs_up_leaves_nothing_open() -> None:
    async with stage() as on, serving(echo) as server:
        rule = on.allow(HOST, server.port)
        _, writer = await _opened(on, server)
        writer.transport.abort()
        await until(lambda: on.proxy.usage[rule.key].open == 0, "the tunnel is closed")
        _, writer = await on.open()
        there = f"http://{HOST}:{server.port}/"
        writer.write(f"POST {there} HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc".encode())
        writer.close()
        await until(lambda: on.proxy.usage[rule.key].connections == 2, "the request")
        await until(lambda: on.proxy.usage[rule.key].open == 0, "the request is closed")


@run
async def test_a_silent_connection_is_cut() -> None:
    with mock.patch.multiple(proxy_module, IDLE_SECONDS=0.1, LOOK_SECONDS=0.05):
        async with stage() as on, serving(echo) as server:
            on.allow(HOST, server.port)
            reader, writer = await _opened(on, server)
            async with asyncio.timeout(SOON):
                assert await reader.read() == b""
            writer.close()
            await until(lambda: bool(on.refused), "the reason")
            assert on.refused == [(HOST, server.port, "idle")]


# --- Limits -----------------------------------------------------------------------------------


@run
async def test_a_rule_s_bytes_are_counted_over_all_its_connections_and_then_it_is_over() -> None:
    async with stage() as on, serving(echo) as server:
        rule = on.allow(HOST, server.port, limits=Limits(bytes=100_000), used_bytes=40_000)
        reader, writer = await _opened(on, server)
        writer.write(b"x" * 10_000)
        await reader.readexactly(10_000)
        writer.write(b"x" * 40_000)
        got = 0
        async with asyncio.timeout(SOON):
            while data := await reader.read(1 << 16):
                got += len(data)
        writer.close()
        usage = on.proxy.usage[rule.key]
        assert 40_000 + usage.sent + usage.received <= 100_000
        # Whatever is left is too little for a request and its answer.
        on.rules[rule.key] = replace(rule, limits=Limits(bytes=1))
        on.proxy.set_rules(on.rules.values())
        assert b"bytes are used up" in await on.get(HOST, server.port)
        assert {why for _, _, why in on.refused} == {"bytes"}


@run
async def test_a_rule_s_connections_are_limited_at_once() -> None:
    async with stage() as on, serving(echo) as server:
        rule = on.allow(HOST, server.port, limits=Limits(connections=2))
        opened = [await _opened(on, server) for _ in range(2)]
        assert b"429" in await on.get(HOST, server.port)
        opened[0][1].close()
        await until(lambda: on.proxy.usage[rule.key].open == 1, "one is closed")
        opened.append(await _opened(on, server))
        for _, writer in opened:
            writer.close()
        assert [why for _, _, why in on.refused] == ["connections"]


@run
async def test_a_run_s_connections_are_limited_over_all_rules() -> None:
    async with stage() as on, serving(echo) as server, serving(echo) as other:
        wide = Limits(connections=100)
        on.allow(HOST, server.port, limits=wide)
        on.allow(HOST, other.port, limits=wide)
        opened = [await _opened(on, server) for _ in range(proxy_module.OPEN_AT_ONCE)]
        assert b"429" in await on.get(HOST, other.port)
        for _, writer in opened:
            writer.close()
        assert [why for _, _, why in on.refused] == ["busy"]


@run
async def test_a_flood_of_refused_attempts_is_slowed_down_and_passed_by() -> None:
    """What is permitted goes on beside it."""
    async with stage() as on, serving() as server:
        on.allow(HOST, server.port)
        began = time.monotonic()
        count = proxy_module.REFUSALS_AT_ONCE + 10
        answers = await asyncio.gather(*(on.get(f"x{n}.test", 80) for n in range(count)))
        assert all(b"403" in answer for answer in answers)
        assert len(on.refused) == count
        # Ten more than go at once, at ten in a second.
        assert time.monotonic() - began > 0.5
        assert b"200 OK" in await on.get(HOST, server.port)


@run
async def test_more_connections_than_are_taken_wait_and_then_are_served() -> None:
    async with stage() as on, serving() as server:
        on.allow(HOST, server.port, limits=Limits(connections=100))
        silent = [await on.open() for _ in range(proxy_module.TAKEN_AT_ONCE)]
        asked = asyncio.create_task(on.get(HOST, server.port))
        await asyncio.sleep(0.1)
        assert not asked.done()
        for _, writer in silent:
            writer.close()
        assert b"200 OK" in await asked


@run
async def test_the_folder_of_the_socket_may_lie_deep() -> None:
    with tempfile.TemporaryDirectory() as folder:
        deep = Path(folder, *["a-rather-long-name-of-a-folder"] * 6)
        deep.mkdir(parents=True)
        proxy = proxy_module.EgressProxy()
        await proxy.start(deep)
        assert (deep / "proxy.sock").is_socket()
        await proxy.close()
        assert list(deep.iterdir()) == []
