"""Migration operations for what the tables themselves must refuse, on both databases."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations import RunPython
from django.db.migrations.state import StateApps

from portal.database import FIRST, LAST

Statements = tuple[str, ...]

# Two comparisons with numbers, because PostgreSQL knows beforehand how many rows will pass them.
# A comparison of texts is taken for one that hardly any row passes, and 100,000 open packets were
# sorted to show the first fifty. A variable that is not set is NULL, and no row is seen.
_SEEN = (
    f"tenant_id >= current_setting('{FIRST}', true)::bigint "
    f"AND tenant_id <= current_setting('{LAST}', true)::bigint"
)


def isolation_sql(table: str) -> Statements:
    """PostgreSQL: rows of another tenant do not exist, not even for the table's owner."""
    return (
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
        f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
        f"CREATE POLICY one_tenant ON {table} USING ({_SEEN}) WITH CHECK ({_SEEN})",
    )


def append_only_sql(vendor: str, table: str) -> Statements:
    """Refuse UPDATE, DELETE and (where it exists) TRUNCATE of a table of evidence."""
    if vendor == "postgresql":
        return (
            "CREATE OR REPLACE FUNCTION imprimatur_append_only() RETURNS trigger LANGUAGE "
            "plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'evidence is append-only: %', TG_TABLE_NAME; END $$",
            f"CREATE TRIGGER append_only_rows BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION imprimatur_append_only()",
            f"CREATE TRIGGER append_only_table BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION imprimatur_append_only()",
        )
    return tuple(
        f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
        "BEGIN SELECT RAISE(ABORT, 'evidence is append-only'); END"
        for verb in ("UPDATE", "DELETE")
    )


def writable_sql(vendor: str, table: str) -> Statements:
    """Take away what `append_only_sql` made."""
    if vendor == "postgresql":
        return tuple(
            f"DROP TRIGGER IF EXISTS append_only_{each} ON {table}" for each in ("rows", "table")
        )
    return tuple(f"DROP TRIGGER IF EXISTS {table}_no_{verb}" for verb in ("update", "delete"))


def isolate(*tables: str) -> RunPython:
    """Row-level security for tables with a tenant_id. On SQLite the guarded door stands alone."""

    def forwards(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
        if editor.connection.vendor == "postgresql":
            for table in tables:
                for statement in isolation_sql(table):
                    editor.execute(statement, params=None)

    return RunPython(forwards, RunPython.noop)


def append_only(*tables: str) -> RunPython:
    """Make tables append-only; undone, they can be changed again."""
    return RunPython(_executed(append_only_sql, tables), _executed(writable_sql, tables))


def writable(*tables: str) -> RunPython:
    """Let append-only tables be changed, until a later operation of the same migration."""
    return RunPython(_executed(writable_sql, tables), _executed(append_only_sql, tables))


def _executed(
    made: Callable[[str, str], Statements], tables: Sequence[str]
) -> Callable[[StateApps, BaseDatabaseSchemaEditor], None]:
    def execute(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
        for table in tables:
            for statement in made(editor.connection.vendor, table):
                # No parameters at all, or the percent sign above would be taken for one.
                editor.execute(statement, params=None)

    return execute
