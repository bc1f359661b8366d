"""`excluded__holds=7`: whether a JSON list holds a number or a text, on both databases."""

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
