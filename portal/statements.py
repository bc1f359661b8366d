"""Statements that are compiled once: the ORM's own SQL, kept, with places for values.

Django works out the SQL of a query each time it is asked, which for a short statement takes longer
than the database does. What is asked at every request, or in a transaction that others wait for,
is declared here once and asked again with other values. Whatever else the ORM does stays as it is:
field types, converters, related rows, row locks, the log of statements.

What the ORM does around each value, row and statement is left out where it comes to nothing: a text
is a text to every text field, a row that was read sets no defaults, and nobody listens.
"""

from __future__ import annotations

import uuid
from asyncio import _get_running_loop
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from operator import attrgetter, methodcaller
from typing import Any, Generic, TypeAlias, TypeVar, cast

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.postgresql import base as postgresql
from django.db.models import Expression, Field, Model, QuerySet, sql
from django.db.models.base import ModelState
from django.db.models.fields.related_descriptors import ForeignKeyDeferredAttribute
from django.db.models.query import ModelIterable, ValuesListIterable, get_related_populators
from django.db.models.query_utils import DeferredAttribute
from django.db.transaction import TransactionManagementError

from portal.sqlite.base import DatabaseWrapper as SQLite
from portal.sqlite.base import PatientCursor

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


# Values of exactly these types are what the database is given, whatever else a field of these
# classes would look at first.
_TEXTS = {models.CharField, models.TextField, models.SlugField, models.EmailField}
_NUMBERS = {
    *(models.AutoField, models.BigAutoField, models.IntegerField, models.BigIntegerField),
    *(models.PositiveIntegerField, models.PositiveBigIntegerField, models.SmallIntegerField),
}
_AS_THEY_ARE: dict[str, list[tuple[set[Any], type]]] = {
    # PostgreSQL is told how large a number is, SQLite when it is in words.
    "postgresql": [
        (_TEXTS, str),
        ({models.BooleanField}, bool),
        ({models.UUIDField}, uuid.UUID),
        ({models.DateTimeField}, datetime),
    ],
    "sqlite": [(_TEXTS, str), ({models.BooleanField}, bool), (_NUMBERS, int)],
}


class _Place:
    """Where a value of one field goes."""

    def __init__(self, field: Field[Any, Any], vendor: str) -> None:
        kind = type(getattr(field, "target_field", field))
        known = (each for kinds, each in _AS_THEY_ARE[vendor] if kind in kinds)
        self._same, self._prepared = next(known, None), field.get_db_prep_save

    def __call__(self, value: Any, database: BaseDatabaseWrapper) -> Any:
        return value if type(value) is self._same else self._prepared(value, database)


class _Statement:
    """SQL of one kind of database, with its places."""

    def __init__(self, text: str, parameters: Iterable[Any], vendor: str) -> None:
        self._text = text
        # As SQLite itself has places, which Django writes in whenever it executes a statement.
        self._bare = PatientCursor.convert_query(cast(Any, None), text)
        self._places = [
            (each.name, _Place(each.field, vendor)) if isinstance(each, Given) else (None, each)
            for each in parameters
        ]

    def rows(self, database: BaseDatabaseWrapper, given: dict[str, Any]) -> list[Row]:
        """What is found with these values."""
        return self.asked(database, self._values(database, given))

    def count(self, database: BaseDatabaseWrapper, given: dict[str, Any]) -> int:
        """How many rows are changed with these values."""
        return int(self.changed(database, self._values(database, given)))

    def asked(self, database: BaseDatabaseWrapper, values: list[Any]) -> list[Row]:
        """`rows`, with values as the database has them, in the order of the places."""
        return cast(list[Row], self._run(database, values, _EVERY_ROW))

    def changed(self, database: BaseDatabaseWrapper, values: list[Any]) -> int:
        """`count`, with values as the database has them, in the order of the places."""
        return int(self._run(database, values, _ROW_COUNT))

    def _values(self, database: BaseDatabaseWrapper, given: dict[str, Any]) -> list[Any]:
        return [
            known if name is None else known(given[name], database) for name, known in self._places
        ]

    def _run(
        self, database: BaseDatabaseWrapper, values: list[Any], of: Callable[[Any], Any]
    ) -> Any:
        if database.execute_wrappers or database.queries_logged or _get_running_loop():
            # Somebody looks on, or must be told that this is no place to wait in.
            with _cursor(database) as cursor:
                cursor.execute(self._text, values)
                return of(cursor)
        if database.connection is None or database.health_check_enabled:  # type: ignore[attr-defined]
            database.close_if_health_check_failed()
            database.ensure_connection()
        database.validate_no_broken_transaction()
        with database.wrap_database_errors:
            if isinstance(database, SQLite):
                return of(database.ready(self._bare, values))
            return of(_server_bound(database).execute(self._text, values))


class Text:
    """A statement of PostgreSQL's own, written down as it is, with `%s` in the places."""

    def __init__(self, text: str) -> None:
        self._statement = _Statement(text, (), "postgresql")

    def one(self, *values: Any) -> Row:
        """The one row it answers with."""
        (row,) = self._statement.asked(_database(), list(values))
        return row


_EVERY_ROW, _ROW_COUNT = methodcaller("fetchall"), attrgetter("rowcount")


def _database() -> BaseDatabaseWrapper:
    """This thread's connection itself: the proxy looks it up again at every attribute."""
    return connections[DEFAULT_DB_ALIAS]


def _server_bound(database: BaseDatabaseWrapper) -> Any:
    """A cursor of PostgreSQL whose statements the server plans once for each connection.

    Django's own writes the values into the text, so that to the server every statement is new.
    """
    return postgresql.ServerBindingCursor(database.connection)  # type: ignore[call-arg]


def _cursor(database: BaseDatabaseWrapper) -> Any:
    """A cursor as Django has it, on PostgreSQL with a server-bound one inside."""
    if not isinstance(database, postgresql.DatabaseWrapper):
        return database.cursor()
    database.ensure_connection()
    return database._prepare_cursor(_server_bound(database))  # type: ignore[attr-defined]


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
        found = statement.rows(database, values)
        return read(found, database) if found else []

    def first(self, **values: Any) -> T | None:
        """The first row, or None. Let the queryset ask for no more than one."""
        found = self.all(**values)
        return found[0] if found else None

    def _compiled(self, database: BaseDatabaseWrapper) -> tuple[_Statement, Reader[T], bool]:
        rows = self._rows()
        query = rows.query
        compiler = query.get_compiler(connection=database)
        text, parameters = compiler.as_sql()
        statement = _Statement(text, parameters, database.vendor)
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
    made_as = _Maker(model)
    _make_fast(related)
    more = dict(compiler.annotation_col_map or {})

    def read(rows: list[Row], database: BaseDatabaseWrapper) -> list[Any]:
        found = []
        for each in rows:
            row = _converted(each, converters, database)
            made = made_as.from_db(database.alias, names, row[begin:end])
            for populator in related:
                populator.populate(row, made)
            for name, at in more.items():
                setattr(made, name, row[at])
            found.append(made)
        return found

    return read


class _Maker:
    """Makes the row that was read, as `Model.from_db` does."""

    def __init__(self, model: type[Model]) -> None:
        self._model = model
        self._every = [each.attname for each in model._meta.concrete_fields]
        # Nothing of the model's own happens, setting a value is only that, and nobody is told:
        # there are no signals here.
        self._plain = (
            model.__init__ is Model.__init__
            and model.from_db.__func__ is Model.from_db.__func__  # type: ignore[attr-defined]
            and all(
                each.descriptor_class in (DeferredAttribute, ForeignKeyDeferredAttribute)
                for each in model._meta.concrete_fields
            )
        )

    def from_db(self, alias: str, names: Sequence[str], values: Sequence[Any]) -> Model:
        """The row with these values."""
        if not self._plain or len(values) != len(self._every):
            return self._model.from_db(alias, names, values)
        made = self._model.__new__(self._model)
        made._state = state = ModelState()
        state.adding, state.db = False, alias
        made.__dict__.update(zip(self._every, values, strict=True))
        return made


def _make_fast(populators: Iterable[Any]) -> None:
    for each in populators:
        each.model_cls = _Maker(each.model_cls)
        _make_fast(each.related_populators)


class Change:
    """An UPDATE of the queryset's rows; `changes` are fields with values or with `given`."""

    def __init__(self, rows: Callable[[], QuerySet[Any]], **changes: Any) -> None:
        self._rows, self._changes = rows, changes
        self._ready: dict[str, _Statement] = {}

    def __call__(self, **values: Any) -> int:
        """How many rows were changed."""
        database = _database()
        statement = self._ready.get(database.vendor) or self._compiled(database)
        return statement.count(database, values)

    def _compiled(self, database: BaseDatabaseWrapper) -> _Statement:
        query = cast(sql.UpdateQuery, self._rows().query.chain(sql.UpdateQuery))
        query.add_update_values(self._changes)
        text, parameters = query.get_compiler(connection=database).as_sql()
        made = _Statement(text, parameters, database.vendor)
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


_Places: TypeAlias = "list[tuple[Field[Any, Any], _Place]]"
_inserts: dict[tuple[type[Model], int, str], tuple[_Statement, _Places]] = {}


def insert(*rows: Model) -> None:
    """Insert new rows of one model in one statement. Their keys are not read back."""
    database = _database()
    key = type(rows[0]), len(rows), database.vendor
    if key not in _inserts:
        _inserts[key] = _insert_of(*key, database)
    statement, places = _inserts[key]
    values = [place(field.pre_save(row, True), database) for row in rows for field, place in places]
    statement.changed(database, values)


def _insert_of(
    model: type[Model], count: int, vendor: str, database: BaseDatabaseWrapper
) -> tuple[_Statement, _Places]:
    fields = [each for each in model._meta.local_concrete_fields if not each.primary_key]
    quoted = database.ops.quote_name
    columns = ", ".join(quoted(str(each.column)) for each in fields)
    places = f"({', '.join(['%s'] * len(fields))})"
    table = quoted(model._meta.db_table)
    rows = ", ".join([places] * count)
    text = f"INSERT INTO {table} ({columns}) VALUES {rows}"  # noqa: S608
    return _Statement(text, (), vendor), [(each, _Place(each, vendor)) for each in fields]
