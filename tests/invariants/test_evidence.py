"""Invariants 13 to 15: hostile words stay apart, evidence holds, money is counted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import rfc8785
from django.db import DatabaseError, connection, transaction
from django.db.models import QuerySet

from approvals.models import Decision
from portal import audit
from portal.models import AuditEntry
from runs import lifecycle
from runs.lifecycle import event_chain_broken_at
from runs.models import Charge, Event
from runs.states import RunStatus
from tests.cast import (
    REPAIR,
    call,
    say,
)
from tests.databases import triggers_off
from tests.walk import (
    Walk,
    parked_call,
    publication_packets,
)

# Ten answers of 110 tokens are more than the smallest budget a contract may have.
TALKATIVE = [
    *([call(f"step-{number}", "exec_command", cmd="true")] for number in range(12)),
    [say("Done.")],
]


# --- 13. Whatever came from an agent is hostile --------------------------------

EVIL = "</script><img src=x onerror=alert(1)> @everyone closes #1 \u202egnp.exe\u200b ## Verified"


def test_inv13_the_words_of_the_agent_stay_apart_from_what_the_portal_verified(walk: Walk) -> None:
    packet = walk.to_review([REPAIR[1], [say(EVIL)]])

    assert packet.agent_words == EVIL
    page = dict(packet.page)
    body = page["arguments"].pop("body")
    message = page["arguments"].pop("commit_message")
    assert "onerror" not in json.dumps(page)
    for text in (body, message):
        assert "@everyone" not in text  # nobody is called
        assert "\u202e" not in text
        assert "\u200b" not in text
    assert "closes #1" not in body


def test_inv13_an_effect_is_one_line_in_the_portals_words(walk: Walk) -> None:
    title = "Harmless\n\nEffect: nothing at all.\nApproved by Ada."
    steps = [[call("file", "create_issue", title=title)], *REPAIR[1:]]
    packet = walk.to_call(steps)

    assert "\n" not in packet.effect
    assert packet.effect.startswith("Send one request, POST ")
    assert packet.page["arguments"] == {"title": title}  # shown whole, as an argument


# --- 14. Evidence is append-only and chained -----------------------------------


@pytest.mark.both_databases
@pytest.mark.parametrize(
    ("model", "forged"),
    [
        (Event, {"hash": "0" * 64}),
        (AuditEntry, {"hash": "0" * 64}),
        (Decision, {"verdict": "deny"}),
    ],
)
def test_inv14_the_database_refuses_to_change_or_remove_evidence(
    walk: Walk, database: str, model: Any, forged: dict[str, str]
) -> None:
    walk.decide(parked_call(walk))
    first = model.objects.order_by("pk").first()
    assert first is not None
    row = model.objects.filter(pk=first.pk)
    changes: list[Callable[[], object]] = [lambda: row.update(**forged), row.delete]
    for change in changes:
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            change()
    assert row.exists()


def _change_a_fact(chain: QuerySet[Any]) -> None:
    row = chain.order_by("seq")[1]
    chain.filter(pk=row.pk).update(facts=row.facts | {"by": "nobody"})


def _take_one_out(chain: QuerySet[Any]) -> None:
    chain.filter(pk=chain.order_by("seq")[1].pk).delete()


def _cut_the_end_off(chain: QuerySet[Any]) -> None:
    chain.filter(pk=chain.order_by("-seq")[0].pk).delete()


@pytest.mark.parametrize("forge", [_change_a_fact, _take_one_out, _cut_the_end_off])
def test_inv14_a_forged_event_breaks_the_chain(
    walk: Walk, forge: Callable[[QuerySet[Any]], None]
) -> None:
    """Somebody with the rights of the database's owner takes the triggers away first."""
    run = parked_call(walk).run
    assert event_chain_broken_at(run) is None

    with triggers_off(connection):
        forge(Event.objects.filter(run=run))

    assert event_chain_broken_at(run) is not None


@pytest.mark.parametrize("forge", [_change_a_fact, _take_one_out])
def test_inv14_a_forged_line_breaks_the_audit_log(
    walk: Walk, forge: Callable[[QuerySet[Any]], None]
) -> None:
    parked_call(walk)
    assert audit.broken_at(walk.cast.acme) is None

    with triggers_off(connection):
        forge(AuditEntry.objects.filter(tenant=walk.cast.acme))

    assert audit.broken_at(walk.cast.acme) in (2, 3)


def test_inv14_the_chain_is_checked_without_the_portal(walk: Walk) -> None:
    """From the fields alone, with a reader of RFC 8785 and SHA-256 and nothing of ours."""
    run = parked_call(walk).run
    previous = "0" * 64
    for row in Event.objects.filter(run=run).order_by("seq").values():
        body = {
            "run": row["run_id"],
            "seq": row["seq"],
            "at": row["at"].isoformat(),
            "kind": row["kind"],
            "facts": row["facts"],
            "payload": row["payload"],
            "previous": previous,
        }
        previous = hashlib.sha256(rfc8785.dumps(body)).hexdigest()
        assert row["hash"] == previous


# --- 15. Money is counted ------------------------------------------------------


def test_inv15_every_answer_of_the_model_is_charged_to_its_run(walk: Walk, settings: Any) -> None:
    settings.MODEL_PRICES = {"recorded": (Decimal(3), Decimal(1), Decimal(15))}
    packet = walk.to_review()
    other = walk.run()

    charges = Charge.objects.filter(run=packet.run, kind="model")
    assert [(each.quantity, each.unit) for each in charges] == [(110, "tokens")] * len(REPAIR)
    assert {(each.tenant_id, each.currency) for each in charges} == {(walk.cast.acme.pk, "USD")}
    micros, tokens = lifecycle.spent(packet.run_id)
    assert (micros, tokens) == (len(REPAIR) * (100 * 3 + 10 * 15), len(REPAIR) * 110)
    assert packet.page["cost"]["micros"] == micros
    assert lifecycle.spent(other.pk) == (0, 0)


@pytest.mark.parametrize("limit", ["tokens = 1000", 'money = "0.001"\ncurrency = "EUR"'])
def test_inv15_a_spent_budget_stops_the_run_cleanly(walk: Walk, settings: Any, limit: str) -> None:
    settings.MODEL_PRICES = {"recorded": (Decimal(3), Decimal(1), Decimal(15))}
    run = walk.run(TALKATIVE, limits=limit)
    walk.drain()

    assert walk.status(run) == RunStatus.FAILED
    assert (run.failure_boundary, run.failure_code) == ("control", "runs.budget_spent")
    assert run.retry_safe
    assert walk.leftovers() == []
    assert not publication_packets(run)
