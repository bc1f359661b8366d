"""Events stored with their chain, against a bare batch insert of the same rows.

One transaction stores a hundred events of one run. Bare: `bulk_create` of a hundred rows that
somebody else has redacted, chained and hashed before. The two take turns.
"""

from __future__ import annotations

import time
from typing import Any

from tests.bench.ground import ground, small
from tests.bench.report import Report

BATCH = 100
ROUNDS = 10 if small() else 60
BAR = 0.3


def main() -> None:
    with ground() as place:
        from django.db import transaction

        from runs import lifecycle
        from runs.models import Event
        from tests.cast import make_run

        report = Report("events: stored with their chain", place.database)
        ours, theirs = make_run(place.cast), make_run(place.cast)
        facts = lifecycle.run_facts(ours)
        drafts = [lifecycle.Draft(*_step(facts, number)) for number in range(BATCH)]
        outputs = [
            lifecycle.Draft(draft.kind, draft.facts, payload=f"{number} {'line of output ' * 60}")
            for number, draft in enumerate(drafts)
        ]

        def chained(some: list[lifecycle.Draft]) -> float:
            began = time.perf_counter()
            with transaction.atomic(durable=True):
                lifecycle.append_events(ours, some)
            return time.perf_counter() - began

        def bare() -> float:
            last = Event.objects.filter(run=theirs).order_by("-seq").first()
            assert last is not None
            made = Event.objects.filter(run=ours).order_by("-seq")[:BATCH]
            rows = list(made)
            for offset, row in enumerate(reversed(rows), start=1):
                row.pk, row.run_id, row.seq = None, theirs.pk, last.seq + offset
            began = time.perf_counter()
            with transaction.atomic(durable=True):
                Event.objects.bulk_create(rows)
            return time.perf_counter() - began

        for _ in range(5):
            chained(drafts), bare()
        kept, stored = [], []
        for _ in range(ROUNDS):
            kept.append(chained(drafts))
            stored.append(bare())
        with_payload = [chained(outputs) for _ in range(max(3, ROUNDS // 10))]
        assert lifecycle.event_chain_broken_at(ours) is None

        floor = report.took(f"bare insert of {BATCH} rows", stored)
        mine = report.took(f"{BATCH} events, redacted, chained, head moved", kept)
        report.took("the same, each with 900 bytes of output, first time", with_payload[:1])
        report.took("the same output again", with_payload[1:])
        report.say(
            f"{BATCH / mine.median * 1000:,.0f} events/s against "
            f"{BATCH / floor.median * 1000:,.0f} rows/s"
        )
        report.bar(
            "share of the bare insert's speed", floor.median / mine.median, BAR, at_least=True
        )
    report.end()


def _step(facts: dict[str, Any], number: int) -> tuple[str, dict[str, Any]]:
    """A finished call, the most frequent event of a run, with all the fields it has."""
    return "call.finished", facts | {
        "operation": "exec_command",
        "call": f"call_{number:024x}",
        "result": "done",
        "exit_code": 0,
        "duration_ms": 41 + number,
    }


if __name__ == "__main__":
    main()
