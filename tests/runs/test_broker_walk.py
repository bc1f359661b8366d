"""Brokered tools in a whole run: what people are shown, what the agent hears, what is kept."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.urls import reverse

from approvals.states import Verdict
from runs.models import Event, Run, ToolCall
from runs.states import CallState, RunStatus
from tests import databases
from tests.acceptance.kit import contract_with, give_credential
from tests.cast import ASKING, REPAIR, call, contract_text, say, set_value
from tests.runs.broker_parts import relay
from tests.visits import Visitor, text_of
from tests.walk import Walk

SQL = """
[[tools.sql]]
name = "orders_of"
description = "Read the orders of a customer."
engine = "sqlite"
database = "orders"
statement = "select id, total from orders where customer = :customer"
max_rows = 20
[tools.sql.parameters]
required = ["customer"]
[tools.sql.parameters.properties]
customer = { type = "string" }

[[tools.sql]]
name = "look_up"
description = "Read orders by a statement of your own."
engine = "sqlite"
database = "orders"
tables = ["orders"]
"""


@pytest.fixture
def orders(walk: Walk, tmp_path: Path, settings: Any) -> str:
    """The text of a contract whose run may read the orders."""
    settings.BROKER_DATABASES = tmp_path / "databases"
    (tmp_path / "databases" / "acme").mkdir(parents=True)
    file = tmp_path / "databases" / "acme" / "orders.db"
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.executescript(
            "CREATE TABLE orders (id, customer, total); CREATE TABLE secrets (word);"
            "INSERT INTO orders VALUES (1, 'ada', 30);"
        )
    set_value(walk.cast, "orders", "sqlite:orders.db")
    return contract_text(verification=False) + SQL


def test_a_read_from_the_packet_to_the_receipt(walk: Walk, orders: str) -> None:
    packet = walk.to_call([[call("look", "orders_of", customer="ada")], *REPAIR], text=orders)

    page = text_of(Visitor(walk.cast.ada).get(f"/t/acme/packets/{packet.public_id}/"))
    for shown in (
        "SELECT id, total FROM orders WHERE customer = :customer",
        ":customer",
        "sqlite:orders.db",
        "20 rows, 64 kB, 10 seconds",
        "Approve and read",
    ):
        assert shown in page
    assert "Acts for" not in page  # nobody tells a file
    version = packet.run.version
    terms = reverse(
        "runs:version",
        kwargs={
            "tenant": "acme",
            "public_id": version.contract.public_id,
            "number": version.number,
        },
    )
    assert "reads the database" in text_of(Visitor(walk.cast.ada).get(terms))
    walk.decide(packet)
    walk.drain()

    assert "[[1,30]]" in walk.heard(packet.run)
    done = ToolCall.objects.get(run=packet.run, call_id="look")
    assert (done.state, done.receipt["kind"], done.receipt["rows"]) == (CallState.DONE, "query", 1)
    # The digest of the result is that of what the agent was told, which the evidence keeps.
    event = next(
        each
        for each in Event.objects.filter(run=packet.run, kind="call.finished")
        if each.facts["call"] == "look"
    )
    told = hashlib.sha256(done.result.encode()).hexdigest()
    assert event.payload == event.facts["receipt"]["result"] == done.receipt["result"] == told
    # And it goes along to those who let the candidate out.
    publication = walk.open_packet(packet.run)
    assert [each["receipt"] for each in publication.page["brokered"]] == [done.receipt]
    ada = Visitor(walk.cast.ada)
    assert "Receipts of brokered calls" in text_of(
        ada.get(f"/t/acme/packets/{publication.public_id}/provenance/")
    )
    assert "1 row" in text_of(ada.get(f"/t/acme/runs/{packet.run.public_id}/"))


FUNCTION = """
[[tools.python]]
name = "price"
description = "Ask for a price."
entry_point = "price"
credential = "prices"
response = ["said"]
"""


def test_a_function_gets_its_secret_and_cannot_give_it_away(
    walk: Walk, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "s" + "Xq7" * 10
    give_credential(walk, secret, "prices", "price.python")
    info = tmp_path / "tools-1.dist-info"
    info.mkdir()
    (tmp_path / "tools_of_ours.py").write_text(
        "def price(call):\n    return {'said': call['secret'][::-1]}\n"
    )
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tools\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[imprimatur.tools]\nprice = tools_of_ours:price\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    settings.BROKER_TOOLS = ["acme/price"]
    text = contract_text(verification=False) + FUNCTION
    packet = walk.to_call([[call("ask", "price")], *REPAIR], text=text)

    page = text_of(Visitor(walk.cast.ada).get(f"/t/acme/packets/{packet.public_id}/"))
    for shown in ("tools_of_ours:price of tools 1", "price.python", "olu@example.com"):
        assert shown in page
    walk.decide(packet)
    walk.drain()

    done = ToolCall.objects.get(run=packet.run, call_id="ask")
    assert (done.state, done.result) == (CallState.DONE, '{"said":"[redacted]"}')
    assert secret[::-1] not in walk.heard(packet.run)


@pytest.mark.postgres
def test_a_server_is_read_with_the_credential_that_was_approved(walk: Walk) -> None:
    server = databases.cluster()
    url = server.create("stock")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id integer, customer text, total integer)")
        connection.execute("INSERT INTO orders VALUES (1, 'ada', 30)")
    with relay(server.home / ".s.PGSQL.5432") as port:
        give_credential(walk, "w" * 20, "reader", f"127.0.0.1:{port}")
        set_value(walk.cast, "orders", f"postgresql://{server.ROLE}@127.0.0.1:{port}/stock")
        tools = SQL.replace('engine = "sqlite"', 'engine = "postgresql"\ncredential = "reader"')
        steps = [[call("look", "orders_of", customer="ada")], *REPAIR]
        packet = walk.to_call(steps, text=contract_text(verification=False) + tools)
        assert [each["credential"] for each in packet.page["scope"]] == ["reader"]
        walk.decide(packet)
        walk.drain()

    assert "[[1,30]]" in walk.heard(packet.run)
    receipt = ToolCall.objects.get(run=packet.run, call_id="look").receipt
    assert (receipt["kind"], receipt["rows"]) == ("query", 1)


def test_the_agent_is_told_why_a_statement_of_its_own_cannot_be_sent(
    walk: Walk, orders: str
) -> None:
    steps = [[call("steal", "look_up", statement="SELECT word FROM secrets")], [say("Well.")]]
    run = walk.run(steps, text=orders)
    walk.drain()

    assert "The table secrets may not be read" in walk.heard(run)
    assert ToolCall.objects.get(run=run).state == CallState.REFUSED


def test_a_call_that_was_not_sent_is_recorded_as_failed(walk: Walk) -> None:
    packet = walk.to_call(text=contract_with(credential="token"))
    walk.decide(packet)
    walk.drain()

    assert walk.tracker.requests == []
    assert "Not sent: The tenant has no credential" in walk.heard(packet.run)
    assert ToolCall.objects.get(run=packet.run, call_id="file").state == CallState.FAILED
    assert walk.status(packet.run) == RunStatus.IN_REVIEW


def test_a_call_that_was_refused_by_the_service_is_recorded_as_failed(walk: Walk) -> None:
    walk.tracker.status = 403
    packet = walk.to_call(ASKING)
    walk.decide(packet)
    walk.drain()
    filed = ToolCall.objects.get(run=packet.run, call_id="file")
    assert (filed.state, filed.receipt["status"]) == (CallState.FAILED, 403)


def test_A10_an_approval_is_not_for_a_second_call_that_is_the_same(walk: Walk) -> None:
    """One approval, one effect: the same words under a new id are asked about again."""
    again = [call("again", "create_issue", title="The adder subtracts")]
    packet = walk.to_call([ASKING[0], ASKING[1], again, *REPAIR[1:]])
    walk.decide(packet)
    walk.drain()

    assert len(walk.tracker.requests) == 1
    second = walk.open_packet(packet.run)
    assert second.public_id != packet.public_id
    assert second.page["arguments"] == packet.page["arguments"]
    walk.decide(second)
    walk.drain()
    assert len(walk.tracker.requests) == 2
    keys = {each.headers["Idempotency-Key"] for each in walk.tracker.requests}
    assert len(keys) == 2
    assert Run.objects.get().status == RunStatus.IN_REVIEW


def test_A12_a_denied_intent_comes_back_through_the_shell(walk: Walk) -> None:
    """What a person denied stays denied by name, and the shell has no credential to do it with."""
    shell = [call("push", "exec_command", cmd="env; git push origin HEAD:main; echo ended")]
    same = [call("twice", "create_issue", title="The adder subtracts")]
    packet = walk.to_call([ASKING[0], ASKING[1], same, shell, *REPAIR[1:]])
    walk.decide(packet, verdict=Verdict.DENY)
    walk.drain()

    assert walk.tracker.requests == []
    states = dict(ToolCall.objects.filter(run=packet.run).values_list("call_id", "state"))
    assert (states["file"], states["twice"]) == (CallState.DENIED, CallState.REFUSED)
    assert "denied exactly this call" in walk.heard(packet.run)
    assert walk.branches() == ["main"]
    assert walk.tree("main") == walk.tree(walk.commit)
