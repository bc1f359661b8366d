"""A draft replayed over 100,000 packets, against the bare batch evaluation of the same requests.

Bare: `cedarpy.is_authorized_batch` over the very requests, made beforehand and handed over in
portions of the same size. Ours reads the rows, checks the facts, judges, counts, and makes the
links of the page. No two calls have the same facts, and the draft reads what they differ in, so
that every one of them is judged: the worst case. The default policy reads less, so that most
verdicts are known already; that is measured as well and needs no bar.

All happen in one process and take turns; what counts is the seconds of its own processor, and for
PostgreSQL the time of the clock too, because there the rows are read by another process.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from typing import Any

from tests.bench.ground import crowd, ground, small
from tests.bench.report import Report

PACKETS = 2_000 if small() else 100_000
ROUNDS = 3
BAR = 0.5
# What a whole history may need more than a hundredth of it, in megabytes.
MEMORY_BAR = 16.0
DAYS = 365
DRAFT = """
@id("small-ones-go")
permit (principal, action == Action::"do", resource)
when { context.kind == "http" && context.argument_bytes < 50000 };
"""


def main() -> None:
    with ground() as place:
        worker = place.worker()
        packet = place.park()
        worker.stop()
        crowd(packet.run, PACKETS - 1)
        _tell_apart()

        from approvals.policy_text import DEFAULT_POLICY
        from approvals.trials import tried

        text = DEFAULT_POLICY + DRAFT
        report = Report(f"simulator: {PACKETS:,} packets", place.database)
        few = _replayed(place.cast.acme, text, PACKETS // 100)
        before = _most()
        all_of_them = _replayed(place.cast.acme, text, PACKETS)
        grown = _most() - before
        assert (few, all_of_them) == (PACKETS // 100, PACKETS)

        bare, ours, clock, usual = [], [], [], []
        for _ in range(ROUNDS):
            bare.append(_bare(place.cast.acme, text))
            began, on_the_clock = time.process_time(), time.perf_counter()
            assert _replayed(place.cast.acme, text, PACKETS) == PACKETS
            ours.append(time.process_time() - began)
            clock.append(time.perf_counter() - on_the_clock)
            began = time.perf_counter()
            found = tried(place.cast.acme, DEFAULT_POLICY, days=DAYS, before=None)
            usual.append(time.perf_counter() - began)
            assert found.trial.asked_people == PACKETS or found.trial.cut
        floor = report.took("bare batch evaluation", bare)
        mine = report.took("simulator, every packet judged", ours)
        report.took("the same by the clock", clock)
        report.took("the page's trial of the default policy, by the clock", usual)
        report.say(
            f"{PACKETS / floor.median * 1000:,.0f} and {PACKETS / mine.median * 1000:,.0f}/s"
        )
        report.bar(
            "rate of the simulator / bare rate", floor.median / mine.median, BAR, at_least=True
        )
        report.bar("MB more than for a hundredth of the packets", grown, MEMORY_BAR)
    report.end()


def _tell_apart() -> None:
    """Give every call facts of its own; they are copies of one."""
    from django.db import connection

    made = (
        "json_set(facts, '$.argument_bytes', id)"
        if connection.vendor == "sqlite"
        else "jsonb_set(facts, '{argument_bytes}', to_jsonb(id))"
    )
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE runs_toolcall SET facts = {made}")


def _history(tenant: Any, most: int) -> Iterator[Any]:
    from datetime import timedelta
    from itertools import islice

    from approvals.history import judged_between
    from portal.clock import database_now

    now = database_now()
    packets = (
        past for past in judged_between(tenant, now - timedelta(days=DAYS), now) if past.packet
    )
    return islice(packets, most)


def _replayed(tenant: Any, text: str, most: int) -> int:
    """How many packets were replayed, of the newest ones."""
    from approvals.simulator import replay

    return replay(text, _history(tenant, most)).asked_people


def _bare(tenant: Any, text: str) -> float:
    """Seconds of the evaluation alone."""
    import cedarpy

    from approvals.policy import requests_of
    from approvals.policy_text import ENTITIES, SCHEMA_HANDLE, compile_policy
    from approvals.simulator import PORTION

    policies, taken = compile_policy(text).policies, 0.0
    requests: list[dict[str, Any]] = []

    def evaluate() -> float:
        began = time.process_time()
        answers = cedarpy.is_authorized_batch(requests, policies, ENTITIES, SCHEMA_HANDLE)
        assert len(answers) == len(requests)
        return time.process_time() - began

    for past in _history(tenant, PACKETS):
        requests += requests_of(past.facts)
        if len(requests) >= 2 * PORTION:
            taken += evaluate()
            requests.clear()
    return taken + (evaluate() if requests else 0.0)


def _most() -> float:
    """The most memory this process ever held, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
