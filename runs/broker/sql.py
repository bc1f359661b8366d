"""SQL tools: one read of a database, with a receipt of what was asked and what came back."""

from __future__ import annotations

import hashlib
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from portal.canonical import digest
from portal.redact import MASK
from runs import credentials
from runs.broker import engines
from runs.broker.answers import BrokerRefused, Done, Plan, written
from runs.broker.person import Person, acting_for
from runs.contract import SqlTool
from runs.contract.statements import (
    ACTING_FOR,
    Statement,
    StatementRefused,
    bound,
    read_statement,
)
from runs.models import Run, TenantValue


@dataclass(frozen=True)
class Query:
    """One read as it will be made, without its credential."""

    address: str
    statement: Statement
    values: Mapping[str, Any]
    person: Person

    @property
    def target(self) -> str:
        """Where the read goes, and which one it is: a permission is for this."""
        return f"{self.address} {self.statement.shown}"

    @property
    def place(self) -> str:
        """The address without the role: audiences are hosts, and no role is part of one."""
        parts = urllib.parse.urlsplit(self.address)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def plan(run: Run, tool: SqlTool, arguments: Mapping[str, Any]) -> Plan:
    """What a packet shows of the call. Raises `BrokerRefused`."""
    query = prepare(run, tool, arguments)
    # A server always knows; a file only where the statement has the parameter.
    told = tool.engine == "postgresql" or ACTING_FOR in query.statement.parameters
    return Plan(
        query.target,
        query.place,
        {
            "database": tool.database,
            "address": query.address,
            "statement": query.statement.shown,
            "parameters": [{"name": name, "value": each} for name, each in query.values.items()],
            "rows": tool.max_rows,
            "kilobytes": tool.max_kilobytes,
            "seconds": tool.timeout_seconds,
            "tables": list(tool.tables),
            "hides": list(tool.redact),
        }
        | ({"acting_for": query.person.email} if told else {}),
    )


def prepare(run: Run, tool: SqlTool, arguments: Mapping[str, Any]) -> Query:
    """Read the statement and bind its parameters. Raises `BrokerRefused`."""
    row = TenantValue.objects.filter(tenant_id=run.tenant_id, name=tool.database).first()
    if row is None:
        raise BrokerRefused(
            f"The tenant has no value named “{tool.database}”, the address of the database that "
            f"the tool {tool.name} reads. A tenant admin can add it."
        )
    address = _address(tool, row.value.strip())
    person = acting_for(run)
    try:
        if tool.tables:
            statement = read_statement(
                str(arguments.get("statement", "")), tool.engine, tool.tables
            )
            given = arguments.get("parameters") or {}
        else:
            statement, given = read_statement(tool.statement, tool.engine), arguments
        unknown = sorted(set(given) - set(statement.parameters)) if tool.tables else []
        if unknown:
            raise StatementRefused(f"The statement has no parameter {unknown[0]}.")
        return Query(address, statement, bound(statement, given, person.email), person)
    except StatementRefused as refused:
        raise BrokerRefused(str(refused)) from refused


def _address(tool: SqlTool, address: str) -> str:
    """The address, if it is one of the tool's engine and holds no secret."""
    try:
        parts = urllib.parse.urlsplit(address)
        fits = parts.scheme == tool.engine and parts.password is None
        if tool.engine == "postgresql":
            fits = fits and bool(parts.hostname and parts.username and parts.path.strip("/"))
            fits = fits and not (parts.query or parts.fragment) and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        wanted = {
            "postgresql": "postgresql://user@host:5432/name, its password a credential",
            "sqlite": "sqlite:file.db",
        }[tool.engine]
        raise BrokerRefused(
            f"The tenant's value “{tool.database}” is not an address like {wanted}. "
            "A tenant admin can correct it."
        )
    return address


def read(run: Run, tool: SqlTool, query: Query, *, call_id: str) -> Done:
    """Make the read. Raises `BrokerRefused` and `BrokerFailed`; nothing is ever changed by it."""
    limits = engines.Limits(tool.max_rows, tool.max_kilobytes * 1024, tool.timeout_seconds)
    if tool.engine == "sqlite":
        path = engines.sqlite_file(run.tenant.slug, query.address)
        tables = tool.tables or None
        found = engines.read_sqlite(path, query.statement, query.values, limits, tables)
    else:
        found = _read_server(run, tool, query, limits, call_id)
    return _answer(tool, query, found)


def _read_server(
    run: Run, tool: SqlTool, query: Query, limits: engines.Limits, call_id: str
) -> engines.Rows:
    def with_password(password: str) -> engines.Rows:
        return engines.read_postgresql(
            query.address, password, query.statement, query.values, limits, query.person.email
        )

    if not tool.credential:
        return with_password("")
    try:
        with credentials.use(
            run,
            tool.credential,
            address=query.place,
            consumer=f"tool {tool.name}",
            call_id=call_id,
        ) as secret:
            return with_password(secret.value)
    except credentials.CredentialRefused as refused:
        raise BrokerRefused(str(refused)) from refused


def _answer(tool: SqlTool, query: Query, found: engines.Rows) -> Done:
    hidden = {name.lower() for name in tool.redact}
    masked = [name.lower() in hidden for name in found.columns]
    rows = [
        [
            MASK if hide and each is not None else each
            for hide, each in zip(masked, row, strict=True)
        ]
        for row in found.rows
    ]
    words = written({"columns": list(found.columns), "rows": rows, "more": found.cut})
    return Done(
        True,
        words,
        {
            "kind": "query",
            "database": tool.database,
            "statement": hashlib.sha256(query.statement.shown.encode()).hexdigest(),
            "parameters": digest(dict(query.values)),
            "rows": len(rows),
            "more": found.cut,
        },
    )
