"""The second wall: on PostgreSQL every row of another tenant is invisible.

The first wall is `portal.access`. Row-level security (see the migrations) reads
the session variables set here; where they are not set, no row is seen. The web
process starts with none, workers and commands start with every tenant, because a
sweep serves all of them (settings.ROW_SCOPE).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db import connection

from portal import statements
from portal.database import FIRST, LAST, tenants_of


def _set(row_scope: str) -> None:
    first, last = tenants_of(row_scope)
    _SEEN.one(first, last)


_SEEN = statements.Text(f"SELECT set_config('{FIRST}', %s, false), set_config('{LAST}', %s, false)")


@contextmanager
def scope(tenant_id: int) -> Iterator[None]:
    """Inside, this connection sees one tenant. Afterwards it sees what the process may see."""
    if connection.vendor != "postgresql":
        yield
        return
    _set(str(tenant_id))
    try:
        yield
    finally:
        _set(settings.ROW_SCOPE)
