"""A database URL in Django's words, with what each engine needs to be safe."""

from __future__ import annotations

from typing import Any

from portal.env import DatabaseUrl

# PostgreSQL's session variables for the keys of the first and the last tenant that are seen.
FIRST, LAST = "imprimatur.first_tenant", "imprimatur.last_tenant"


def tenants_of(row_scope: str) -> tuple[str, str]:
    """First and last tenant of a scope: every one (`*`), `none`, or the one of that key."""
    if row_scope == "*":
        return "0", str(2**63 - 1)
    if row_scope == "none":
        return "1", "0"
    return str(int(row_scope)), str(int(row_scope))


def configured(url: DatabaseUrl, *, row_scope: str, pool: int) -> dict[str, Any]:
    """One entry of DATABASES.

    `row_scope` is what a fresh PostgreSQL connection may see before
    `portal.tenancy.scope` names a tenant; SQLite has no second wall.
    """
    if url.is_sqlite:
        return {
            "ENGINE": "portal.sqlite",
            "NAME": url.name,
            "OPTIONS": _SQLITE,
            "CONN_MAX_AGE": _KEPT,
        }
    first, last = tenants_of(row_scope)
    settings = {FIRST: first, LAST: last, "lock_timeout": f"{_PATIENCE}s"}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.name,
        "USER": url.user,
        "PASSWORD": url.password,
        "HOST": url.host,
        "PORT": url.port,
        "CONN_MAX_AGE": 0,
        # Outside a transaction one would make the server copy the whole answer first.
        "DISABLE_SERVER_SIDE_CURSORS": True,
        "OPTIONS": {
            # What is asked again and again (`portal.statements`) is planned once.
            "prepare_threshold": 2,
            **url.options,
            "options": " ".join(f"-c {name}={value}" for name, value in settings.items()),
            "pool": {"min_size": 1, "max_size": pool, "timeout": 20},
        },
    }


# Seconds to wait for a lock that another transaction holds, as `portal.sqlite` does.
_PATIENCE = 20

# Seconds that a thread keeps its connection to a SQLite file, with the statements it prepared:
# opening one takes longer than most pages ask. PostgreSQL's lie in a pool.
_KEPT = 60

_SQLITE = {
    # SQLite has no row locks: a transaction that will write takes the one write
    # lock at its start, or two readers could both decide and one of them fail.
    "transaction_mode": "IMMEDIATE",
    "timeout": _PATIENCE,
    # Readers go on while one writes. Every commit is on the disk before it is answered: people are
    # told that they decided, and an attempt must be known before its effect is sent, or after a
    # power cut it would be sent twice. From then on `portal.sqlite` does the waiting.
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA busy_timeout=0;",
}
