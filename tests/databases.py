"""Run one test on SQLite and on PostgreSQL, in one process.

The suite runs on SQLite. A test marked `both_databases` runs twice: for the
second time the entry `default` of Django's connections is exchanged for a
database in a throwaway cluster, before the test's own database fixture sets up.
With IMPRIMATUR_TEST_DATABASE=postgres the whole suite runs on PostgreSQL.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.apps import apps
from django.contrib.contenttypes.management import create_contenttypes
from django.core.management import call_command
from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.signals import post_migrate

from portal.database import configured
from portal.env import parse_database
from tests.services import PostgreSQL


@functools.cache
def cluster() -> PostgreSQL:
    """The throwaway cluster of this process, started when the first test needs it."""
    server = PostgreSQL()
    server.start()
    return server


def stop_cluster() -> None:
    """Stop it, if there is one."""
    if cluster.cache_info().currsize:
        cluster().stop()


def url() -> str:
    """The current test database as DATABASE_URL says it, for processes a test starts."""
    facts = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{facts['NAME']}"
    return cluster().url(str(facts["NAME"]))


@contextmanager
def postgresql_as_default() -> Iterator[None]:
    """Inside, `default` is a migrated PostgreSQL database, in every thread that asks anew."""
    address = parse_database("DATABASE_URL", cluster().create("walk"))
    entry = configured(address, row_scope="*", pool=40)
    before = connections.settings[DEFAULT_DB_ALIAS]
    connections.close_all()
    _exchange({**before, **entry, "TEST": before["TEST"]})
    try:
        call_command("migrate", interactive=False, verbosity=0)
        yield
    finally:
        connections.close_all()
        connection.close_pool()  # type: ignore[attr-defined]
        _exchange(before)


def _exchange(entry: dict[str, Any]) -> None:
    connections.settings[DEFAULT_DB_ALIAS] = entry
    # Other threads of the suite hold none: each test closes what its threads opened.
    del connections[DEFAULT_DB_ALIAS]
    apps.get_model("contenttypes", "ContentType").objects.clear_cache()


@contextmanager
def triggers_off(wrapper: BaseDatabaseWrapper) -> Iterator[None]:
    """The evidence tables refuse to be emptied; between two tests they must be."""
    with wrapper.cursor() as cursor:
        if wrapper.vendor == "sqlite":
            cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
            off = [(f'DROP TRIGGER "{name}"', sql) for name, sql in cursor.fetchall()]
        else:
            cursor.execute(
                "SELECT DISTINCT tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal"
            )
            off = [
                (
                    f"ALTER TABLE {table} DISABLE TRIGGER USER",
                    f"ALTER TABLE {table} ENABLE TRIGGER USER",
                )
                for (table,) in cursor.fetchall()
            ]
        for statement, _ in off:
            cursor.execute(statement)
    try:
        yield
    finally:
        with wrapper.cursor() as cursor:
            if wrapper.vendor == "postgresql":
                # A foreign key still to be checked at commit forbids to alter its table.
                cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            for _, statement in off:
                cursor.execute(statement)


def let_tests_empty_tables() -> None:
    """Wrap Django's flush, which a test with real transactions ends with."""
    # Nothing here asks for what Django writes about each model after every flush.
    post_migrate.disconnect(dispatch_uid="django.contrib.auth.management.create_permissions")
    post_migrate.disconnect(create_contenttypes)
    operations: Any = next(
        each for each in type(connection.ops).__mro__ if "execute_sql_flush" in vars(each)
    )
    flush = operations.execute_sql_flush

    def execute_sql_flush(self: Any, sql_list: Any) -> None:
        with triggers_off(self.connection):
            flush(self, sql_list)

    operations.execute_sql_flush = execute_sql_flush
