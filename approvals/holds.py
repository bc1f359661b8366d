"""Questions about a JSON list, on both databases.

`excluded__holds=7`: whether it holds this value. `routes__open_to=(["role:admin"], 7)`: whether
it is empty, or holds one of these roles or a group of this membership, by primary key.
"""

from __future__ import annotations

import json
from typing import Any

from django.db.models import JSONField, Lookup


@JSONField.register_lookup
class Holds(Lookup):
    """Django's own `contains` for JSON does not exist on SQLite."""

    lookup_name = "holds"
    prepare_rhs = False

    def as_sqlite(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        column, params = self.process_lhs(compiler, connection)
        # `column` is what Django made of the field's name; the value travels as a parameter.
        sql = f"EXISTS (SELECT 1 FROM json_each({column}) WHERE value = %s)"  # noqa: S608
        return sql, [*params, self.rhs]

    def as_postgresql(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        column, params = self.process_lhs(compiler, connection)
        return f"({column} @> %s::jsonb)", [*params, json.dumps([self.rhs])]


@JSONField.register_lookup
class OpenTo(Lookup):
    """One condition, groups looked up inside it: it is in the query of every page."""

    lookup_name = "open_to"
    prepare_rhs = False

    def as_sqlite(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        column, params = self.process_lhs(compiler, connection)
        roles, member = self.rhs
        # As above: the texts travel as parameters, and there are as many marks as texts.
        marks = ", ".join(["%s"] * len(roles))
        among = f"value IN ({marks}) OR value IN ({_GROUPS})"
        shared = f"EXISTS (SELECT 1 FROM json_each({column}) WHERE {among})"  # noqa: S608
        return f"({column} = '[]' OR {shared})", [*params, *params, *roles, member]

    def as_postgresql(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        column, params = self.process_lhs(compiler, connection)
        roles, member = self.rhs
        shared = f"{column} ?| (%s::text[] || ARRAY({_GROUPS}))"
        return f"({column} = '[]'::jsonb OR {shared})", [*params, *params, list(roles), member]


_GROUPS = "SELECT 'group:' || group_id FROM approvals_groupmember WHERE membership_id = %s"
