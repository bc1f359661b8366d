"""Read one SQL statement, refuse whatever is no plain read, and write it in one way.

What is sent to a database is the text written here from the tree that was checked, never the text
that came: two readers of SQL that disagree about a text have then nothing to disagree about. A
statement whose own text reads differently is refused.

That a statement only reads is the database's to enforce as well (`runs.broker.engines`). What is
checked here lets a contract be refused on its page, a call before anybody is asked, and shows
people a statement in one spelling.

sqlglot is loaded when the first statement is read: most processes never read one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlglot import exp

DIALECTS: Mapping[str, str] = {"postgresql": "postgres", "sqlite": "sqlite"}
ACTING_FOR = "acting_for"
"""The parameter that is always the e-mail address of the person the run acts for."""

MAX_STATEMENT = 8_000
TABLE = re.compile(r"[a-z_][a-z0-9_]{0,62}(?:\.[a-z_][a-z0-9_]{0,62})?")
_PARAMETER = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class StatementRefused(Exception):
    """The text is no statement that may be sent. Says why, for people and agents."""


@dataclass(frozen=True)
class Statement:
    """One read.

    `shown` is the statement in its one spelling, with `:name` for parameters. `sent` is the same
    as its database wants it: `$1`, `$2`, … for PostgreSQL. `parameters` are their names, by number.
    """

    shown: str
    sent: str
    parameters: tuple[str, ...]


def read_statement(text: str, engine: str, tables: Collection[str] | None = None) -> Statement:
    """The one SELECT in `text`. Raises `StatementRefused`.

    With `tables` only these may be read, only functions the parser knows may be called, and what
    locks, samples or writes is refused: for a text that no person has read before. Every table it
    reads stands behind a FROM or JOIN there, and no WITH has the name of one.
    """
    from sqlglot import exp

    dialect = DIALECTS[engine]
    tree = _parsed(text, dialect)
    if not isinstance(tree, exp.Query):
        raise StatementRefused("It is no SELECT. Only reads may be sent.")
    for kind in (exp.DML, exp.DDL, exp.Into, exp.Command):
        # A SELECT is a query and, to the parser, DML as well; whatever writes is no query.
        if any(not isinstance(each, exp.Query) for each in tree.find_all(kind)):
            raise StatementRefused("It would write. Only reads may be sent.")
    if tables is not None:
        _check_reach(tree, tables, folds_quoted=engine == "sqlite")
    shown = _written(tree, dialect, named=True)
    parameters = _names(tree)
    if _written(_parsed(shown, dialect), dialect, named=True) != shown:
        raise StatementRefused("It can be read in more than one way. Write it more plainly.")
    sent = shown if engine == "sqlite" else _written(_numbered(tree, parameters), dialect)
    return Statement(shown, sent, parameters)


def _parsed(text: str, dialect: str) -> exp.Expr:
    import sqlglot
    from sqlglot.errors import SqlglotError

    if len(text) > MAX_STATEMENT:
        raise StatementRefused(f"It has {len(text)} characters. Keep it to {MAX_STATEMENT}.")
    if "\x00" in text:
        raise StatementRefused("It contains a NUL character.")
    try:
        found = [each for each in sqlglot.parse(text, dialect=dialect) if each is not None]
    except (SqlglotError, RecursionError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise StatementRefused(f"It cannot be read: {_plain(reason)}") from error
    if len(found) != 1:
        raise StatementRefused(f"It holds {len(found)} statements. Write exactly one.")
    return found[0]


def _plain(text: str) -> str:
    """A parser's message without the colours it writes for terminals."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)[:200]


def _written(tree: exp.Expr, dialect: str, *, named: bool = False) -> str:
    from sqlglot import ErrorLevel, exp
    from sqlglot.errors import SqlglotError

    copy = tree.copy()
    if named:
        for place in list(copy.find_all(exp.Placeholder)):
            place.replace(exp.Var(this=f":{place.name}"))
    try:
        return copy.sql(dialect=dialect, comments=False, unsupported_level=ErrorLevel.RAISE)
    except (SqlglotError, RecursionError, ValueError) as error:
        raise StatementRefused(f"It cannot be written: {_plain(str(error))}") from error


def _names(tree: exp.Expr) -> tuple[str, ...]:
    from sqlglot import exp

    names = [place.name for place in tree.find_all(exp.Placeholder)]
    if wrong := [name for name in names if not _PARAMETER.fullmatch(name)]:
        raise StatementRefused(
            f"{wrong[0] or '?'} is no parameter. Write :name, in lower-case letters and digits."
        )
    if any(True for _ in tree.find_all(exp.Parameter)):
        raise StatementRefused("It has a parameter with a number. Write :name.")
    return tuple(dict.fromkeys(names))


def _numbered(tree: exp.Expr, names: tuple[str, ...]) -> exp.Expr:
    from sqlglot import exp

    copy = tree.copy()
    for place in list(copy.find_all(exp.Placeholder)):
        place.replace(exp.Var(this=f"${names.index(place.name) + 1}"))
    return copy


def _check_reach(tree: exp.Expr, allowed: Collection[str], *, folds_quoted: bool) -> None:
    from sqlglot import exp

    unknown = (exp.Anonymous, exp.AnonymousAggFunc, exp.CombinedAggFunc, exp.UserDefinedFunction)
    if call := tree.find(*unknown):
        raise StatementRefused(f"The function {call.name or '?'} is not known here.")
    if tree.find(exp.Lock, exp.TableSample, exp.Lateral, exp.Dot):
        raise StatementRefused("It locks, samples, or calls what is no table.")
    # SQLite reads `IN name` as a table, and the parser as a column.
    if any(each.args.get("field") for each in tree.find_all(exp.In)):
        raise StatementRefused("After IN stands a list or a SELECT in parentheses.")
    for entry in tree.find_all(exp.CTE):
        name = _folded(entry.args["alias"].this, folds_quoted=folds_quoted)
        # SQLite tells its authoriser the name of a WITH as it tells that of a view.
        if name in {each.rpartition(".")[2] for each in allowed}:
            raise StatementRefused(f"{name} is the name of a table. Give the WITH another one.")
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier) or table.args.get("catalog"):
            raise StatementRefused("It reads from what is no table of this database.")
        parts = [part for part in (table.args.get("db"), table.this) if part]
        name = ".".join(_folded(each, folds_quoted=folds_quoted) for each in parts)
        if name not in allowed and not _is_named_before(table, folds_quoted=folds_quoted):
            raise StatementRefused(
                f"The table {name} may not be read. Allowed: {', '.join(sorted(allowed))}."
            )


def _folded(name: exp.Expr, *, folds_quoted: bool) -> str:
    """The name as its database compares it.

    PostgreSQL keeps the case of what is quoted, SQLite of nothing.
    """
    quoted = bool(name.args.get("quoted"))
    return name.name if quoted and not folds_quoted else name.name.lower()


def _is_named_before(table: exp.Table, *, folds_quoted: bool) -> bool:
    """Is this the name of a WITH that holds where it stands?

    Followed outwards, because a name means its WITH only inside it: in the text of a WITH's own
    entries only the earlier ones count, unless it is recursive.
    """
    from sqlglot import exp

    if table.args.get("db"):
        return False
    wanted = _folded(table.this, folds_quoted=folds_quoted)
    inner: exp.Expr | None = None
    node: exp.Expr | None = table.parent
    came_from: exp.With | None = None
    while node is not None:
        if isinstance(node, exp.With):
            came_from = node
            known = node.expressions
            if not node.args.get("recursive"):
                known = known[: next(at for at, each in enumerate(known) if each is inner)]
        else:
            found = node.args.get("with_")
            known = found.expressions if found is not None and found is not came_from else []
        if any(
            _folded(entry.args["alias"].this, folds_quoted=folds_quoted) == wanted
            for entry in known
        ):
            return True
        inner, node = node, node.parent
    return False


def bound(statement: Statement, given: Mapping[str, Any], person: str) -> dict[str, Any]:
    """The value of every parameter by name, in the order of their numbers.

    One that is not given is NULL. Raises `StatementRefused` for what is no single value.
    """
    values: dict[str, Any] = {}
    for name in statement.parameters:
        value = person if name == ACTING_FOR else given.get(name)
        if not isinstance(value, str | int | float | bool | None):
            raise StatementRefused(f"The parameter {name} must be one text, number or truth value.")
        values[name] = value
    return values
