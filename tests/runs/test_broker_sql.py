"""SQL tools: one read, by a declared statement or from listed tables, with a receipt."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from portal.canonical import digest
from runs import broker
from runs.broker import engines
from runs.contract import ContractRefused
from runs.contract.statements import StatementRefused, read_statement
from runs.models import TenantValue
from tests import databases
from tests.cast import Cast, set_value
from tests.runs.broker_parts import carried_out, contract_of_tool, relay, run_of, seconds

ROWS = (
    "CREATE TABLE orders (id integer, customer text, total integer);"
    "INSERT INTO orders VALUES (1, 'ada', 30), (2, 'ada', 5), (3, 'bo', 7);"
    "CREATE TABLE secrets (word text); INSERT INTO secrets VALUES ('plum');"
    "CREATE VIEW totals AS SELECT customer, sum(total) AS total FROM orders GROUP BY customer;"
)
BY_CUSTOMER: dict[str, Any] = {
    "statement": "SELECT id, total FROM orders WHERE customer = :customer ORDER BY id",
    "parameters": {
        "required": ["customer"],
        "properties": {"customer": {"type": "string"}},
    },
}
FREE: dict[str, Any] = {"tables": ["orders", "totals"]}
FOREVER = "WITH RECURSIVE n AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"


@pytest.fixture(scope="module")
def orders_on_a_server() -> Iterator[str]:
    """The address of the orders on PostgreSQL."""
    server = databases.cluster()
    url = server.create("orders")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(ROWS)
    with relay(server.home / ".s.PGSQL.5432") as port:
        yield f"postgresql://{server.ROLE}@127.0.0.1:{port}/orders"


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)],
)
def engine(request: pytest.FixtureRequest, cast: Cast, tmp_path: Path, settings: Any) -> str:
    """The tenant's value `orders` leads to a database of this engine."""
    settings.BROKER_DATABASES = tmp_path
    settings.BROKER_PRIVATE_HOSTS = ["127.0.0.1"]
    if request.param == "postgresql":
        set_value(cast, "orders", request.getfixturevalue("orders_on_a_server"))
        return "postgresql"
    (tmp_path / "acme").mkdir()
    with contextlib.closing(sqlite3.connect(tmp_path / "acme" / "orders.db")) as connection:
        connection.executescript(ROWS)
    set_value(cast, "orders", "sqlite:orders.db")
    return "sqlite"


def ask(cast: Cast, engine: str, tool: dict[str, Any], **arguments: Any) -> broker.Done:
    """The tool's one call."""
    declared = {"engine": engine, "database": "orders", **tool}
    return carried_out(run_of(cast), "sql", declared, arguments)


def free(cast: Cast, engine: str, statement: str, **parameters: Any) -> Any:
    """The rows of a statement of the agent's own."""
    done = ask(cast, engine, FREE, statement=statement, parameters=parameters)
    return json.loads(done.words)["rows"]


def test_a_declared_statement_with_bound_parameters(cast: Cast, engine: str) -> None:
    done = ask(cast, engine, BY_CUSTOMER, customer="ada' OR 'a' = 'a")
    assert json.loads(done.words)["rows"] == []

    done = ask(cast, engine, BY_CUSTOMER, customer="ada")

    assert json.loads(done.words) == {
        "columns": ["id", "total"],
        "rows": [[1, 30], [2, 5]],
        "more": False,
    }
    # In the one spelling of its engine, which is what was sent.
    shown = read_statement(BY_CUSTOMER["statement"], engine).shown
    assert done.receipt == {
        "kind": "query",
        "database": "orders",
        "statement": hashlib.sha256(shown.encode()).hexdigest(),
        "parameters": digest({"customer": "ada"}),
        "rows": 2,
        "more": False,
    }


@pytest.mark.postgres
def test_a_value_that_cannot_be_read_is_a_failure(
    cast: Cast, orders_on_a_server: str, settings: Any
) -> None:
    settings.BROKER_PRIVATE_HOSTS = ["127.0.0.1"]
    set_value(cast, "orders", orders_on_a_server)
    deep = "SELECT CAST(REPEAT('[', 5000) || REPEAT(']', 5000) AS JSON) AS deep FROM orders"
    with pytest.raises(broker.BrokerFailed, match="cannot be read"):
        ask(cast, "postgresql", {"statement": deep})


def test_rows_end_at_the_limit_and_say_so(cast: Cast, engine: str) -> None:
    tool = {"statement": "SELECT id FROM orders ORDER BY id", "max_rows": 2}
    done = ask(cast, engine, tool)
    assert json.loads(done.words) == {"columns": ["id"], "rows": [[1], [2]], "more": True}
    assert (done.receipt["rows"], done.receipt["more"]) == (2, True)


def test_rows_end_at_the_size_too(cast: Cast, engine: str) -> None:
    wide = "SELECT customer || CAST(:pad AS text) AS wide FROM orders"
    tool = {
        "statement": wide,
        "parameters": {"properties": {"pad": {"type": "string"}}},
        "max_kilobytes": 1,
    }
    found = json.loads(ask(cast, engine, tool, pad="x" * 500).words)
    assert (len(found["rows"]), found["more"]) == (2, True)


def test_a_row_without_end_fails_where_it_is_made(cast: Cast, engine: str) -> None:
    """A worker that reads it whole before it looks would run out of memory."""
    # A column may be called as the row is where its size is looked at.
    wide = "SELECT id AS answer, REPEAT(customer, :times) AS wide FROM orders ORDER BY id"
    if engine == "sqlite":
        wide = "SELECT id, hex(zeroblob(:times)) AS wide FROM orders ORDER BY id"
    tool = {
        "statement": wide,
        "parameters": {"properties": {"times": {"type": "integer"}}},
        "max_kilobytes": 64,
    }
    assert len(json.loads(ask(cast, engine, tool, times=1_000).words)["rows"]) == 3
    with pytest.raises(broker.BrokerFailed, match=r"larger than may come back|too big"):
        ask(cast, engine, tool, times=5_000_000)


def test_hidden_columns_are_masked(cast: Cast, engine: str) -> None:
    tool = {"statement": "SELECT * FROM orders WHERE id = 3", "redact": ["customer"]}
    assert json.loads(ask(cast, engine, tool).words)["rows"] == [[3, "[redacted]", 7]]


def test_a_read_that_does_not_end_is_ended(cast: Cast, engine: str) -> None:
    tool = {"statement": FOREVER, "timeout_seconds": 1}

    def reads() -> None:
        with pytest.raises(broker.BrokerFailed):
            ask(cast, engine, tool)

    assert seconds(reads) < 10


def test_the_person_is_a_parameter_that_no_argument_sets(cast: Cast, engine: str) -> None:
    tool = {"statement": "SELECT CAST(:acting_for AS text) AS me"}
    assert json.loads(ask(cast, engine, tool).words)["rows"] == [["olu@example.com"]]
    with pytest.raises(ContractRefused, match="is the person the run acts for"):
        contract_of_tool(
            "sql",
            {
                "engine": engine,
                "database": "orders",
                **tool,
                "parameters": {"properties": {"acting_for": {"type": "string"}}},
            },
        )


@pytest.mark.postgres
def test_row_policies_of_a_server_can_ask_for_the_person(
    cast: Cast, settings: Any, orders_on_a_server: str
) -> None:
    settings.BROKER_PRIVATE_HOSTS = ["127.0.0.1"]
    set_value(cast, "orders", orders_on_a_server)
    tool = {"statement": "SELECT current_setting('imprimatur.acting_for') AS me"}
    assert json.loads(ask(cast, "postgresql", tool).words)["rows"] == [["olu@example.com"]]


@pytest.mark.postgres
def test_a_server_that_does_not_look_at_its_clock_is_hung_up_on(
    cast: Cast, settings: Any, orders_on_a_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.BROKER_PRIVATE_HOSTS = ["127.0.0.1"]
    set_value(cast, "orders", orders_on_a_server)
    # Before the server's own time is over, as if it never were.
    monkeypatch.setattr(engines, "GRACE_SECONDS", -59)
    tool = {"statement": "SELECT pg_sleep(50)", "timeout_seconds": 60}

    def reads() -> None:
        with pytest.raises(broker.BrokerFailed):
            ask(cast, "postgresql", tool)

    assert seconds(reads) < 30


def test_a_statement_of_the_agents_reads_only_the_listed_tables(cast: Cast, engine: str) -> None:
    both = "SELECT customer, total FROM totals WHERE total > :least ORDER BY total"
    assert free(cast, engine, both, least=6) == [["bo", 7], ["ada", 35]]
    shadow = "WITH few AS (SELECT id FROM orders WHERE id < 3) SELECT count(*) FROM few"
    assert free(cast, engine, shadow) == [[2]]
    for statement in (
        "SELECT * FROM secrets",
        "WITH few AS (SELECT * FROM secrets) SELECT * FROM few",
        # The name of a WITH means nothing outside it, nor in its own text.
        "SELECT * FROM secrets WHERE EXISTS (WITH secrets AS (SELECT 1) SELECT * FROM secrets)",
        "WITH secrets AS (SELECT * FROM secrets) SELECT * FROM secrets",
        "WITH a AS (SELECT * FROM secrets), secrets AS (SELECT 1) SELECT * FROM a",
        "SELECT id FROM orders UNION SELECT word FROM secrets",
        "SELECT (SELECT max(word) FROM secrets) FROM orders",
    ):
        with pytest.raises(broker.BrokerRefused, match="The table secrets may not be read"):
            free(cast, engine, statement)


def test_the_name_of_a_with_is_compared_as_the_database_compares_it(
    cast: Cast, engine: str
) -> None:
    # To PostgreSQL these are two names, and the second one is the table's.
    other_case = (
        'WITH "SECRETS" AS (SELECT 1) SELECT * FROM secrets',
        'WITH secrets AS (SELECT 1) SELECT * FROM "SECRETS"',
    )
    for statement in other_case:
        if engine == "sqlite":
            assert free(cast, engine, statement) == [[1]]
        else:
            with pytest.raises(broker.BrokerRefused, match="may not be read"):
                free(cast, engine, statement)


@pytest.mark.parametrize(
    "statement",
    [
        # To SQLite, what stands behind IN without parentheses is a table.
        "SELECT id FROM orders WHERE 'plum' IN secrets",
        "SELECT id FROM orders WHERE 'plum' NOT IN \"secrets\"",
        # And to its authoriser a WITH of an allowed name is a view of that name.
        "WITH orders AS (SELECT 1 AS id WHERE 'plum' IN secrets) SELECT * FROM orders",
        "WITH Totals AS (SELECT 1 AS id) SELECT * FROM totals",
    ],
)
@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_no_table_is_read_under_the_name_of_another(statement: str, dialect: str) -> None:
    with pytest.raises(StatementRefused, match=r"After IN|name of a table"):
        read_statement(statement, dialect, ["orders", "totals"])


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1; DROP TABLE orders",
        "DELETE FROM orders",
        "WITH gone AS (DELETE FROM orders RETURNING id) SELECT * FROM gone",
        "SELECT * INTO copy FROM orders",
        "PRAGMA query_only = OFF",
        "ATTACH 'other.db' AS other",
        "SELECT load_extension('x')",
        "SELECT pg_read_file('/etc/passwd')",
        "SELECT pg_catalog.pg_read_file('/etc/passwd') FROM orders",
        "SELECT query_to_xml('select * from secrets', true, true, '')",
        "SELECT set_config('transaction_read_only', 'off', false)",
        "SELECT * FROM generate_series(1, 10)",
        "SELECT * FROM pg_catalog.pg_authid",
        "SELECT * FROM sqlite_master",
        "SELECT * FROM orders FOR UPDATE",
        "COPY orders TO '/tmp/x'",
        "SET x = 1",
        "SELECT " + "(" * 500 + "1" + ")" * 500,
        "",
    ],
)
@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_what_is_no_plain_read_is_no_statement(statement: str, dialect: str) -> None:
    with pytest.raises(StatementRefused):
        read_statement(statement, dialect, ["orders"])


def test_the_databases_themselves_refuse_to_write(cast: Cast, engine: str) -> None:
    """A function may write although its statement reads: the innermost wall is the database's."""
    writes = "SELECT name FROM pragma_table_info('secrets')"
    if engine == "postgresql":
        writes = "SELECT nextval('counter')"
        address = TenantValue.objects.get(name="orders").value
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("CREATE SEQUENCE IF NOT EXISTS counter")
    with pytest.raises(broker.BrokerFailed, match=r"read-only|not authorized|prohibited"):
        ask(cast, engine, {"statement": writes})


@pytest.mark.parametrize("address", ["sqlite:../globex/orders.db", "sqlite:/etc/passwd", "sqlite:"])
def test_a_file_of_another_tenant_is_out_of_reach(
    cast: Cast, tmp_path: Path, settings: Any, address: str
) -> None:
    settings.BROKER_DATABASES = tmp_path
    for slug in ("acme", "globex"):
        (tmp_path / slug).mkdir()
    sqlite3.connect(tmp_path / "globex" / "orders.db").close()
    (tmp_path / "acme" / "link.db").symlink_to(tmp_path / "globex" / "orders.db")
    for each in (address, "sqlite:link.db"):
        set_value(cast, "orders", each)
        with pytest.raises(broker.BrokerRefused, match="There is no database"):
            ask(cast, "sqlite", {"statement": "SELECT 1"})


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:word@127.0.0.1/orders",
        "postgresql://127.0.0.1/orders",
        "postgresql://me@127.0.0.1/orders?host=/var/run",
        "sqlite:orders.db",
        "orders",
    ],
)
def test_an_address_that_is_none(cast: Cast, address: str) -> None:
    set_value(cast, "orders", address)
    with pytest.raises(broker.BrokerRefused, match="is not an address like") as caught:
        ask(cast, "postgresql", {"statement": "SELECT 1"})
    assert "word" not in str(caught.value).replace("password", "")


def test_a_server_on_a_private_address_must_be_listed(cast: Cast, settings: Any) -> None:
    settings.BROKER_PRIVATE_HOSTS = []
    set_value(cast, "orders", "postgresql://me@127.0.0.1:1/orders")
    with pytest.raises(broker.BrokerRefused, match="not a public address"):
        ask(cast, "postgresql", {"statement": "SELECT 1"})


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ({}, "it says neither"),
        ({"statement": "SELECT 1", "tables": ["orders"]}, "it says both"),
        ({"statement": "DELETE FROM orders"}, "no SELECT"),
        ({"statement": "SELECT :x"}, ":x is not an argument"),
        (
            {"statement": "SELECT 1", "parameters": {"properties": {"x": {"type": "string"}}}},
            "x does not occur in the statement",
        ),
        (
            {"statement": "SELECT :x", "parameters": {"properties": {"x": {"type": "array"}}}},
            "is no single value",
        ),
        ({"tables": ["orders; drop"]}, "is not the name of a table"),
        ({"tables": ["orders"], "redact": ["total"]}, "could come under any name"),
        ({"tables": ["orders"], "parameters": {"properties": {"x": {}}}}, "as always"),
    ],
)
def test_a_contract_that_reads_wrongly_is_refused(tool: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractRefused, match=words):
        contract_of_tool("sql", {"engine": "sqlite", "database": "orders", **tool})
