"""One clock for deadlines: the database's, whatever the web and worker machines think."""

from __future__ import annotations

from datetime import datetime

from django.db import connection
from django.utils import timezone

from portal import statements


def database_now() -> datetime:
    """Now, by the database server; SQLite lives on this machine and has no other clock."""
    if connection.vendor != "postgresql":
        return timezone.now()
    now: datetime = _NOW.one()[0]
    return now


_NOW = statements.Text("SELECT clock_timestamp()")
