"""Statements that are compiled once: the ORM's own SQL, kept, with places for values.

Django works out the SQL of a query each time it is asked, which for a short statement takes longer
than the database does. What is asked at every request, or in a transaction that others wait for,
is declared here once and asked again with other values. Whatever else the ORM does stays as it is:
field types, converters, related rows, row locks, the log of statements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar, cast

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.postgresql import base as postgresql
from django.db.models import Expression, Field, Model, QuerySet, sql
from django.db.models.query import ModelIterable, ValuesListIterable, get_related_populators
from django.db.transaction import TransactionManagementError

T = TypeVar("T")
M = TypeVar("M", bound=Model)

Row = Sequence[Any]
Reader: TypeAlias = Callable[[list[Row], BaseDatabaseWrapper], list[T]]
Converters = list[tuple[int, list[Callable[..., Any]], Any]]


class Given(Expression):
    """The place of a value that comes with each question."""

    def __init__(self, name: str, field: Field[Any, Any]) -> None:
        super().__init__(output_field=field)
        self.name = name

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:  # type: ignore[override]
        return "%s", [self]


def given(name: str, model: type[Model], field: str = "pk") -> Given:
    """A value of the kind that this field of the model holds."""
    found = model._meta.pk if field == "pk" else model._meta.get_field(field)
    # The foreign key's place takes the key.
    return Given(name, cast("Field[Any, Any]", getattr(found, "target_field", found)))


class _Statement:
    """SQL of one kind of database, with its places."""

    def __init__(self, text: str, parameters: Iterable[Any]) -> None:
        self.text = text
        self._places = [
            (each.name, each.field.get_db_prep_save) if isinstance(each, Given) else (None, each)
            for each in parameters
        ]

    def run(self, database: BaseDatabaseWrapper, cursor: Any, given: dict[str, Any]) -> None:
        values = [
            known if name is None else known(given[name], database) for name, known in self._places
        ]
        cursor.execute(self.text, values)


def _database() -> BaseDatabaseWrapper:
    """This thread's connection itself: the proxy looks it up again at every attribute."""
    return connections[DEFAULT_DB_ALIAS]


def _cursor(database: BaseDatabaseWrapper) -> Any:
    """A cursor; on PostgreSQL one whose statements the server plans once for each connection.

    Django's own writes the values into the text, so that to the server every statement is new.
    """
    if not isinstance(database, postgresql.DatabaseWrapper):
        return database.cursor()
    database.ensure_connection()
    cursor = postgresql.ServerBindingCursor(database.connection)  # type: ignore[call-arg]
    return database._prepare_cursor(cursor)  # type: ignore[attr-defined]


class Query(Generic[T]):
    """Rows as the queryset would give them: models with what it selects along, or its tuples.

    `rows` makes the queryset, with `given` in place of values. It is called once for each kind of
    database.
    """

    def __init__(self, rows: Callable[[], QuerySet[Any, T]]) -> None:
        self._rows = rows
        self._ready: dict[str, tuple[_Statement, Reader[T], bool]] = {}

    def all(self, **values: Any) -> list[T]:
        """Every row, with these values in the places."""
        database = _database()
        statement, read, locks = self._ready.get(database.vendor) or self._compiled(database)
        if locks and not database.in_atomic_block:
            raise TransactionManagementError("Rows can only be locked in a transaction.")
        with _cursor(database) as cursor:
            statement.run(database, cursor, values)
            found = cursor.fetchall()
        return read(found, database) if found else []

    def first(self, **values: Any) -> T | None:
        """The first row, or None. Let the queryset ask for no more than one."""
        found = self.all(**values)
        return found[0] if found else None

    def _compiled(self, database: BaseDatabaseWrapper) -> tuple[_Statement, Reader[T], bool]:
        rows = self._rows()
        query = rows.query
        compiler = query.get_compiler(connection=database)
        statement = _Statement(*compiler.as_sql())
        found = compiler.get_converters([each[0] for each in compiler.select])
        converters = [(at, convert, column) for at, (convert, column) in found.items()]
        kind = rows._iterable_class
        if kind is ModelIterable:
            read = _models(compiler, converters)
        elif kind is ValuesListIterable:
            read = _tuples(converters)
        else:
            raise TypeError(f"Ask for models or for tuples, not with {kind.__name__}.")
        locks = query.select_for_update and database.features.has_select_for_update
        ready = statement, cast(Reader[T], read), locks
        self._ready[database.vendor] = ready
        return ready


def _converted(row: Row, converters: Converters, database: BaseDatabaseWrapper) -> list[Any]:
    values = list(row)
    for at, convert, column in converters:
        value = values[at]
        for each in convert:
            value = each(value, column, database)
        values[at] = value
    return values


def _tuples(converters: Converters) -> Reader[Any]:
    def read(rows: list[Row], database: BaseDatabaseWrapper) -> list[Any]:
        return [tuple(_converted(row, converters, database)) for row in rows]

    return read


def _models(compiler: Any, converters: Converters) -> Reader[Any]:
    """As `django.db.models.query.ModelIterable` reads them."""
    model, columns = compiler.klass_info["model"], compiler.klass_info["select_fields"]
    begin, end = columns[0], columns[-1] + 1
    names = [each[0].target.attname for each in compiler.select[begin:end]]
    alias = compiler.connection.alias
    related = get_related_populators(compiler.klass_info, compiler.select, alias)  # type: ignore[call-arg]
    more = dict(compiler.annotation_col_map or {})

    def read(rows: list[Row], database: BaseDatabaseWrapper) -> list[Any]:
        found = []
        for each in rows:
            row = _converted(each, converters, database)
            made = model.from_db(database.alias, names, row[begin:end])
            for populator in related:
                populator.populate(row, made)
            for name, at in more.items():
                setattr(made, name, row[at])
            found.append(made)
        return found

    return read


class Change:
    """An UPDATE of the queryset's rows; `changes` are fields with values or with `given`."""

    def __init__(self, rows: Callable[[], QuerySet[Any]], **changes: Any) -> None:
        self._rows, self._changes = rows, changes
        self._ready: dict[str, _Statement] = {}

    def __call__(self, **values: Any) -> int:
        """How many rows were changed."""
        database = _database()
        statement = self._ready.get(database.vendor) or self._compiled(database)
        with _cursor(database) as cursor:
            statement.run(database, cursor, values)
            return int(cursor.rowcount)

    def _compiled(self, database: BaseDatabaseWrapper) -> _Statement:
        query = cast(sql.UpdateQuery, self._rows().query.chain(sql.UpdateQuery))
        query.add_update_values(self._changes)
        made = _Statement(*query.get_compiler(connection=database).as_sql())
        self._ready[database.vendor] = made
        return made


_stores: dict[tuple[type[Model], tuple[str, ...]], tuple[Change, list[Field[Any, Any]]]] = {}


def store(row: Model, *names: str) -> None:
    """Save these fields of a row that exists: `save(update_fields=…)` in one statement.

    Raises `DatabaseError` if the row is not there.
    """
    key = type(row), names
    if key not in _stores:
        _stores[key] = _store_of(*key)
    change, fields = _stores[key]
    if change(pk=row.pk, **{each.name: each.pre_save(row, False) for each in fields}) != 1:
        raise DatabaseError("What was to be saved is not there.")


def _store_of(model: type[Model], names: tuple[str, ...]) -> tuple[Change, list[Field[Any, Any]]]:
    fields = [cast("Field[Any, Any]", model._meta.get_field(name)) for name in names]
    places = {name: given(name, model, name) for name in names}
    rows = model._default_manager
    return Change(lambda: rows.filter(pk=given("pk", model)), **places), fields


_inserts: dict[tuple[type[Model], int], tuple[str, list[Field[Any, Any]]]] = {}


def insert(*rows: Model) -> None:
    """Insert new rows of one model in one statement. Their keys are not read back."""
    database, key = _database(), (type(rows[0]), len(rows))
    if key not in _inserts:
        _inserts[key] = _insert_of(*key, database)
    text, fields = _inserts[key]
    values = [
        each.get_db_prep_save(each.pre_save(row, True), database) for row in rows for each in fields
    ]
    with _cursor(database) as cursor:
        cursor.execute(text, values)


def _insert_of(
    model: type[Model], count: int, database: BaseDatabaseWrapper
) -> tuple[str, list[Field[Any, Any]]]:
    fields = [each for each in model._meta.local_concrete_fields if not each.primary_key]
    quoted = database.ops.quote_name
    columns = ", ".join(quoted(str(each.column)) for each in fields)
    places = f"({', '.join(['%s'] * len(fields))})"
    table = quoted(model._meta.db_table)
    rows = ", ".join([places] * count)
    return f"INSERT INTO {table} ({columns}) VALUES {rows}", fields  # noqa: S608
