"""What a model wrote as arguments, read strictly.

What policy judges, a person approves and the sandbox executes must be one and the same thing.
So the text a model wrote is parsed once, refused when two readers could understand it in two
ways, and afterwards only the parsed form is used: the tool gets it written anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jsonschema_rs

from portal.redact import printable

MAX_RAW_CHARS = 1_000_000
MAX_DEPTH = 50

_BRACKETS = re.compile(r"[][{}]")

Check: TypeAlias = Callable[[Mapping[str, Any]], str | None]
"""Says what is wrong with arguments, or None."""


class ArgumentsRefused(Exception):
    """The arguments cannot be used. The text is what the model is told."""


class SchemaRefused(Exception):
    """The parameters of a declared tool are no usable JSON schema."""


def read_object(raw: str) -> dict[str, Any]:
    """Parse one JSON object. Refuses duplicate names, NaN, other types, and what is too large."""
    if too_much(raw):
        raise ArgumentsRefused("The arguments are too long or nested too deeply. Nothing was done.")
    try:
        value = json.loads(raw or "{}", object_pairs_hook=_no_duplicates, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ArgumentsRefused(
            f"The arguments are not one valid JSON object ({_short(error)}). Nothing was done."
        ) from error
    if not isinstance(value, dict):
        raise ArgumentsRefused("The arguments must be one JSON object. Nothing was done.")
    if not _storable(write_object(value)):
        raise ArgumentsRefused(
            "The arguments hold a NUL or half a character, which nothing can store. "
            "Nothing was done."
        )
    return value


def too_much(raw: str) -> bool:
    """Longer, or nested deeper, than any honest arguments: readers of JSON give up on it."""
    if len(raw) > MAX_RAW_CHARS:
        return True
    depth = 0
    for bracket in _BRACKETS.finditer(raw):
        depth += 1 if bracket.group() in "[{" else -1
        if depth > MAX_DEPTH:
            return True
    return False


def _storable(text: str) -> bool:
    return "\\u0000" not in text and printable(text) == text


def write_object(arguments: Mapping[str, Any]) -> str:
    """The one way arguments are written again."""
    return json.dumps(arguments, ensure_ascii=False, allow_nan=False, sort_keys=True)


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object tool parameter, with undeclared names refused at the top.

    Raises `SchemaRefused` when it is no schema, not one of an object, or fetches another one.
    """
    document = json.loads(json.dumps(schema))
    if document.get("type", "object") != "object":
        raise SchemaRefused("parameters must be a JSON schema of type object")
    document["type"] = "object"
    document.setdefault("properties", {})
    document["additionalProperties"] = False
    checker(document)
    return document  # type: ignore[no-any-return]


def checker(schema: Mapping[str, Any]) -> Check:
    """A function that says what is wrong with arguments."""
    try:
        validator = jsonschema_rs.validator_for(dict(schema), retriever=_no_fetching)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        message = getattr(error, "message", str(error))
        raise SchemaRefused(f"parameters are not a usable JSON schema: {message}") from error

    def check(arguments: Mapping[str, Any]) -> str | None:
        problems = [
            f"{'/'.join(str(part) for part in error.instance_path) or 'arguments'}: {error.message}"
            for error in validator.iter_errors(dict(arguments))
        ]
        if not problems:
            return None
        shown = "; ".join(problems[:5])
        return f"The arguments do not fit this tool: {shown}. Nothing was done."

    return check


def reader(schema: Mapping[str, Any]) -> Callable[[str], dict[str, Any]]:
    """The function that reads what a model wrote for a tool with a `closed` schema.

    What the schema says about an argument that was left out stands in the result: a person reads
    the whole call, and nobody behind them adds to it. Raises `ArgumentsRefused`.
    """
    check = checker(schema)

    def read(raw: str) -> dict[str, Any]:
        arguments = filled(schema, read_object(raw))
        problem = check(arguments)
        if problem is not None:
            raise ArgumentsRefused(problem)
        return arguments

    return read


def filled(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with the defaults of the schema's own properties, at every depth."""
    whole = dict(arguments)
    for name, property_schema in schema.get("properties", {}).items():
        if not isinstance(property_schema, Mapping):
            continue
        if name not in whole and "default" in property_schema:
            whole[name] = json.loads(json.dumps(property_schema["default"]))
        if isinstance(whole.get(name), dict):
            whole[name] = filled(property_schema, whole[name])
    return whole


def can_be_strict(schema: Any) -> bool:
    """Would the strict mode of model endpoints mean the same as this schema?

    Strict mode makes every property required and closes every object; where that would change
    what is allowed the schema is sent as it is, and `checker` alone decides.
    """
    if isinstance(schema, list):
        return all(can_be_strict(inner) for inner in schema)
    if not isinstance(schema, dict):
        return True
    if _UNSUPPORTED_BY_STRICT & set(schema):
        return False
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties", {})
        if schema.get("additionalProperties", True) is not False:
            return False
        if set(schema.get("required", ())) != set(properties):
            return False
        return all(can_be_strict(inner) for inner in properties.values())
    return all(can_be_strict(inner) for key, inner in schema.items() if key != "enum")


_UNSUPPORTED_BY_STRICT = {
    "allOf",
    "oneOf",
    "not",
    "if",
    "patternProperties",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "default",
    "$ref",
    "minProperties",
    "maxProperties",
    "uniqueItems",
    "contains",
}


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {name!r} is given twice")
        found[name] = value
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _no_fetching(uri: str) -> Any:
    raise ValueError(f"a schema may not fetch another one ({uri})")


def _short(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}…"
