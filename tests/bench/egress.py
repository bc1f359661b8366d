"""A request through the egress proxy against the same request without it, and how fast a rule ends.

Server, proxy and client share one process and take turns, each request on a connection of its own.
The tunnels that are cut carry TLS and are open when their rule is taken back.
"""

from __future__ import annotations

import asyncio
import time

from tests.bench.ground import small
from tests.bench.report import Report
from tests.runs.egress_parts import Stage, certificate, echo, serving, stage

ROUNDS = 30 if small() else 400
CUTS = 3 if small() else 20
BAR = 5.0


def main() -> None:
    report = Report("egress: through the run's proxy", "loopback")
    asyncio.run(_requests(report))
    asyncio.run(_revoked(report))
    report.end()


async def _requests(report: Report) -> None:
    async with serving() as server, stage() as place:
        place.allow("allowed.test", server.port)
        for _ in range(5):
            await _direct(server.port), await _through(place, server.port)
        direct, through = [], []
        spent = [0.0, 0.0]
        for _ in range(ROUNDS):
            before = time.process_time()
            direct.append(await _direct(server.port))
            between = time.process_time()
            through.append(await _through(place, server.port))
            spent[0] += between - before
            spent[1] += time.process_time() - between
        floor = report.took("direct", direct)
        mine = report.took("through the proxy", through)
        report.say(
            f"processor time, server and client included: {spent[0] / ROUNDS * 1000:.2f} ms and "
            f"{spent[1] / ROUNDS * 1000:.2f} ms, {spent[1] / spent[0]:.1f} times"
        )
        report.bar("times the direct request", mine.median / floor.median, BAR)


async def _direct(port: int) -> float:
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n")
    assert (await reader.read()).endswith(b"hello")
    writer.close()
    return time.perf_counter() - began


async def _through(place: Stage, port: int) -> float:
    began = time.perf_counter()
    assert (await place.get("allowed.test", port)).endswith(b"hello")
    return time.perf_counter() - began


async def _revoked(report: Report) -> None:
    cut = []
    with certificate("allowed.test") as signed:
        async with serving(echo, tls=signed) as server, stage() as place:
            for _ in range(CUTS):
                rule = place.allow("allowed.test", server.port)
                reader, writer = await place.tls("allowed.test", server.port, signed)
                writer.write(b"ping")
                assert await reader.readexactly(4) == b"ping"
                began = time.perf_counter()
                place.revoke(rule)
                # A tunnel that is never cut is no reason to wait for ever.
                async with asyncio.timeout(10):
                    try:
                        while await reader.read(100):
                            pass
                    except OSError:
                        pass
                cut.append(time.perf_counter() - began)
                writer.transport.abort()
    report.took("from revoke to cut tunnel", cut)


if __name__ == "__main__":
    main()
