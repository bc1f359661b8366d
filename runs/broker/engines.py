"""The two databases that brokered tools read, each held to reading by its own means.

SQLite opens the file read-only, asks an authoriser about every table, function and pragma while it
compiles the statement, and is stopped by a progress handler. PostgreSQL gets a read-only
transaction, a statement timeout and a cursor, which takes nothing but a SELECT; the statement goes
by the extended protocol, which takes one statement only. Its own privileges stay the innermost
wall: give the tool a role that may only read what it should. Its driver is loaded when the first
server is read: an installation on SQLite may never need it.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import os
import socket
import sqlite3
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings

from runs.broker.addresses import checked_address, is_listed
from runs.broker.answers import BrokerFailed, BrokerRefused
from runs.contract.statements import Statement

if TYPE_CHECKING:
    import psycopg

SAFE_NUMBER = 2**53 - 1
GRACE_SECONDS = 2.0
LEAST_BYTES = 10_000
"""A single row may be this large, however little may come back in all."""
_BATCH = 50


@dataclass(frozen=True)
class Limits:
    """Where a read ends by itself."""

    rows: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Rows:
    """What a read brought, as JSON has it. `cut`: there was more, beyond a limit."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    cut: bool


def sqlite_file(tenant_slug: str, address: str) -> Path:
    """The file an address like `sqlite:orders.db` means. Raises `BrokerRefused`.

    It lies in the tenant's own folder of the deployment's databases, links followed.
    """
    folder = (Path(settings.BROKER_DATABASES) / tenant_slug).resolve()
    name = address.removeprefix("sqlite:")
    path = (folder / name).resolve()
    if not name or name.startswith("/") or not path.is_relative_to(folder) or not path.is_file():
        raise BrokerRefused(
            f"There is no database {name!r:.100} in this tenant's folder. Whoever runs the portal "
            "can put it there."
        )
    return path


def read_sqlite(
    path: Path,
    statement: Statement,
    values: Mapping[str, Any],
    limits: Limits,
    tables: Collection[str] | None,
) -> Rows:
    """Read a file. With `tables` only these. Raises `BrokerFailed`."""
    ends = time.monotonic() + limits.seconds
    address = f"file:{urllib.parse.quote(str(path))}?mode=ro"
    try:
        with contextlib.closing(
            sqlite3.connect(address, uri=True, timeout=min(limits.seconds, 5.0))
        ) as connection:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(limits.bytes, LEAST_BYTES))
            connection.set_authorizer(_authoriser(tables))
            connection.set_progress_handler(lambda: int(time.monotonic() > ends), 1_000)
            cursor = connection.execute(statement.sent, dict(values))
            columns = tuple(each[0] for each in cursor.description or ())
            return _taken(columns, cursor, limits)
    except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError) as error:
        if time.monotonic() > ends:
            raise BrokerFailed(f"It did not end in {limits.seconds:g} seconds.") from error
        raise BrokerFailed(f"The database refused it: {error}.") from error


def _authoriser(tables: Collection[str] | None) -> Callable[..., int]:
    """What SQLite asks while it compiles. Whatever is not known to be a read is denied."""
    allowed = None if tables is None else {each.rpartition(".")[2].lower() for each in tables}

    def may(action: int, one: str | None, two: str | None, _: str | None, via: str | None) -> int:
        if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE):
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION:
            harmful = (two or "").lower() in {"load_extension", "readfile", "writefile", "edit"}
            return sqlite3.SQLITE_DENY if harmful else sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ:
            # `via` is the view that reads the table for the statement.
            named = {(one or "").lower(), (via or "").lower()}
            fine = allowed is None or bool(named & allowed)
            return sqlite3.SQLITE_OK if fine else sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_DENY

    return may


def read_postgresql(
    address: str,
    password: str,
    statement: Statement,
    values: Mapping[str, Any],
    limits: Limits,
    person: str,
) -> Rows:
    """Read a server, as the role that `address` names. Raises `BrokerRefused`, `BrokerFailed`.

    The session knows for whom it reads as `imprimatur.acting_for`, so that row policies can ask.
    """
    import psycopg

    parts = urllib.parse.urlsplit(address)
    host, port = parts.hostname or "", parts.port or 5432
    try:
        connection = psycopg.connect(
            host=host,
            hostaddr=checked_address(host, port),
            port=port,
            user=urllib.parse.unquote(parts.username or ""),
            password=password or None,
            dbname=urllib.parse.unquote(parts.path.lstrip("/")),
            connect_timeout=min(10, max(2, int(limits.seconds))),
            # A host of the deployment's own may have a certificate of its own, or none.
            sslmode="prefer" if is_listed(host, port) else "verify-full",
            sslrootcert="" if is_listed(host, port) else "system",
            passfile=os.devnull,
            application_name="imprimatur",
        )
    except psycopg.Error as error:
        raise BrokerRefused(f"{host}:{port} could not be reached: {_first(error)}") from error
    with contextlib.closing(connection), _ended_by(connection, limits.seconds + GRACE_SECONDS):
        try:
            connection.read_only = True
            milliseconds = str(int(limits.seconds * 1000))
            connection.execute(
                "SELECT set_config('statement_timeout', %s, true), "
                "set_config('lock_timeout', %s, true), "
                "set_config('imprimatur.acting_for', %s, true)",
                (milliseconds, milliseconds, person),
            )
            with psycopg.RawServerCursor(connection, "imprimatur_read") as cursor:
                cursor.itersize = _BATCH
                bounded = _bounded(statement.sent, max(limits.bytes, LEAST_BYTES))
                cursor.execute(bounded, [values[name] for name in statement.parameters])
                columns = tuple(each.name for each in cursor.description or ())
                return _taken(columns, cursor, limits)
        except psycopg.Error as error:
            if _TOO_LARGE in str(error):
                raise BrokerFailed(f"It brought {_TOO_LARGE}. Select less of it.") from error
            raise BrokerFailed(f"The database refused it: {_first(error)}") from error
        except (ValueError, RecursionError) as error:
            # JSON that is nested too deeply, or a number without end.
            raise BrokerFailed("It brought a value that cannot be read.") from error


_TOO_LARGE = "a row that is larger than may come back"


def _bounded(statement: str, most: int) -> str:
    """The same read, which fails at the server at a row of more than `most` bytes.

    The driver reads a row whole, however large, before anybody can look at its size. The cast
    fails only where it is reached, because what it casts is not known before. `answer.*` is the
    row, also where a column of it is called answer.
    """
    return (
        # The statement was read, checked and written anew (`runs.contract.statements`).
        f"SELECT * FROM ({statement}) AS answer WHERE CASE WHEN pg_column_size(answer.*) > {most} "  # noqa: S608
        f"THEN CAST('{_TOO_LARGE}: ' || pg_column_size(answer.*) AS integer) = 0 ELSE true END"
    )


@contextlib.contextmanager
def _ended_by(connection: psycopg.Connection[Any], seconds: float) -> Iterator[None]:
    """Hang up after so long: a server that is silent does not look at its own clock either."""

    # A handle of one's own on the same line: the connection may be closed at any moment.
    with socket.socket(fileno=os.dup(connection.fileno())) as line:

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(seconds, hang_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _first(error: psycopg.Error) -> str:
    """A server's message without its details, which quote values."""
    diag = error.diag.message_primary
    return f"{diag or (str(error).splitlines() or [type(error).__name__])[0]}."


def _taken(columns: tuple[str, ...], rows: Iterable[Sequence[Any]], limits: Limits) -> Rows:
    """Rows until a limit is met; the first one beyond it only says that there are more."""
    taken: list[tuple[Any, ...]] = []
    size = sum(len(name) for name in columns)
    for row in rows:
        plain = tuple(plain_value(each) for each in row)
        size += sum(len(str(each)) + 4 for each in plain)
        if len(taken) >= limits.rows or size > limits.bytes:
            return Rows(columns, tuple(taken), cut=True)
        taken.append(plain)
    return Rows(columns, tuple(taken), cut=False)


def plain_value(value: Any) -> Any:
    """A database's value as every reader of JSON reads it: what JSON lacks becomes text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if -SAFE_NUMBER <= value <= SAFE_NUMBER else str(value)
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): plain_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(each) for each in value]
    return (
        str(value) if isinstance(value, Decimal | uuid.UUID | datetime.timedelta) else repr(value)
    )
