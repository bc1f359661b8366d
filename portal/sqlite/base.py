"""Django's SQLite, with a fairer way to wait for its one write lock.

SQLite waits by asking again, at ever longer intervals of up to 100 ms. Where several processes
write all the time, whoever has waited longest asks least often, and newcomers pass them: under
load some wait until their patience ends, with nothing wrong anywhere. Here one thread of each
process asks at a time, at short intervals that never grow, and the others wait behind it; one
that has just written and begins again goes to the end of the line.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from django.db.backends.sqlite3 import base

T = TypeVar("T")

# Seconds to wait for the lock that another transaction holds. Nobody holds it for long; a person
# who waited in vain is told to try again.
PATIENCE = 20
# Seconds between two questions of the one that asks.
PAUSE = 0.003

# `SQLITE_BUSY_SNAPSHOT` is none of them: what was read is outdated, and waiting cannot help.
_WAIT = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_RECOVERY}
_turn = threading.Lock()


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection whose statements wait in line."""

    def create_cursor(self, name: str | None = None) -> PatientCursor:
        return self.connection.cursor(factory=PatientCursor)  # type: ignore[no-any-return]

    def ready(self, query: str, params: Any) -> sqlite3.Cursor:
        """Execute what is in SQLite's own words, with `?` for values. Raises SQLite's own errors.

        Inside a transaction nothing is waited for.
        """
        if self.connection.in_transaction:
            return self.connection.execute(query, params)  # type: ignore[no-any-return]
        return self.create_cursor().ready(query, params)


class PatientCursor(base.SQLiteCursorWrapper):
    """A cursor that waits where SQLite says that it is busy."""

    def execute(self, query: str, params: Any = None) -> Any:
        begins = query.startswith("BEGIN IMMEDIATE")
        return self._patiently(lambda: super(PatientCursor, self).execute(query, params), begins)

    def ready(self, query: str, params: Any) -> PatientCursor:
        """The same for what is in SQLite's own words."""
        self._patiently(lambda: sqlite3.Cursor.execute(self, query, params))
        return self

    def executemany(self, query: str, param_list: Any) -> Any:
        if iter(param_list) is param_list:
            # Half of it may be used up when SQLite says no.
            param_list = list(param_list)
        return self._patiently(lambda: super(PatientCursor, self).executemany(query, param_list))

    def _patiently(self, do: Callable[[], T], lines_up: bool = False) -> T:
        """The result of `do`. Raises SQLite's own error after `PATIENCE` seconds.

        What reads never waits, so a statement that does not begin a transaction is tried once
        before it lines up. Inside a transaction nothing is waited for: it holds the lock already,
        or has read what is outdated by now.
        """
        if not lines_up:
            try:
                return do()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode not in _WAIT or self.connection.in_transaction:
                    raise
        deadline = time.monotonic() + PATIENCE
        in_turn = _turn.acquire(timeout=PATIENCE)
        try:
            while True:
                try:
                    return do()
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode not in _WAIT or time.monotonic() > deadline:
                        raise
                time.sleep(PAUSE)
        finally:
            if in_turn:
                _turn.release()
