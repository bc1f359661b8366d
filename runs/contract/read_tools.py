"""Read the section [tools]: built-in names, `ask_person`, and what the outer runtime does."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any, cast
from urllib.parse import urlsplit

import jsonschema_rs

from runs.contract import rules
from runs.contract.fields import Fields, Problems, did_you_mean, quoted
from runs.contract.shape import (
    ASK_PERSON,
    BUILTIN_TOOLS,
    REQUEST_NETWORK,
    Body,
    Engine,
    HttpTool,
    PythonTool,
    SqlTool,
    Tools,
)
from runs.contract.statements import ACTING_FOR, DIALECTS, TABLE, StatementRefused, read_statement

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
FIELD_PATH = re.compile(r"[A-Za-z0-9_$-]+(?:\.[A-Za-z0-9_$-]+){0,7}")
MAX_SCHEMA = 16_000
SAFE_NUMBER = 2**53 - 1


def read_tools(top: Fields) -> Tools:
    part = top.table("tools", required='builtin = ["exec_command", "apply_patch"]')
    if part is None:
        return Tools(())
    tools = Tools(
        builtin=part.texts("builtin", longest=64),
        ask_person=part.yes_or_no("ask_person"),
        http=tuple(read_http(each) for each in part.tables("http", most=30)),
        sql=tuple(read_sql(each) for each in part.tables("sql", most=30)),
        python=tuple(read_python(each) for each in part.tables("python", most=30)),
    )
    for at, name in enumerate(tools.builtin):
        if name and name not in BUILTIN_TOOLS:
            hint = did_you_mean(name, BUILTIN_TOOLS)
            part.fault(
                "builtin",
                f"{quoted(name)} is not a built-in tool. {hint}",
                "Tools of your own go into [[tools.http]], [[tools.sql]] or [[tools.python]].",
                at,
            )
    check_names(part, tools)
    part.done()
    return tools


def check_names(part: Fields, tools: Tools) -> None:
    """The model tells tools apart by name only."""
    seen: set[str] = set()
    for kind in ("http", "sql", "python"):
        for at, tool in enumerate(getattr(tools, kind)):
            if tool.name in (*BUILTIN_TOOLS, ASK_PERSON, REQUEST_NETWORK):
                reason, remedy = f"{tool.name} is a built-in tool.", "Choose another name."
                part.fault(kind, reason, remedy, at, "name")
            elif tool.name and tool.name in seen:
                part.fault(kind, f"{tool.name} is declared twice.", "Rename one.", at, "name")
            seen.add(tool.name)


def read_http(part: Fields) -> HttpTool:
    method = part.choice("method", METHODS)
    tool = HttpTool(
        name=part.text("name", example='"tracker_create_issue"', rule=rules.tool_name),
        description=part.text("description", most=1_000, example='"Open an issue."', lines=True),
        method=method,
        url=part.text("url", most=500, example='"https://host/path"'),
        base=part.text("base", default="", rule=rules.slug),
        parameters=read_schema(part),
        body=cast(Body, part.choice("body", ("json", "none"), default_body(method))),
        response=part.texts("response", longest=200, rule=field_path),
        credential=part.text("credential", default="", rule=rules.slug),
        idempotent=part.yes_or_no("idempotent", method in {"GET", "PUT", "DELETE"}),
        timeout_seconds=part.number("timeout_seconds", 20, 1, 300),
        response_schema=read_answer_schema(part),
        redact=part.texts("redact", longest=200, rule=field_path),
        max_kilobytes=part.number("max_kilobytes", 256, 1, 1_024),
        retries=part.number("retries", 0, 0, 3),
        acting_for=part.yes_or_no("acting_for"),
    )
    if tool.body == "json" and method in {"GET", "DELETE"}:
        part.fault("body", f"{method} sends no body.", 'Write body = "none".')
    if tool.retries and not tool.idempotent:
        part.fault(
            "retries",
            f"{method} may have had its effect when no answer comes, so it is sent once.",
            "Remove it, or write idempotent = true if the service does a request with the same "
            "Idempotency-Key only once.",
        )
    check_url(part, tool)
    part.done()
    return tool


def read_sql(part: Fields) -> SqlTool:
    tool = SqlTool(
        name=part.text("name", example='"orders_of_customer"', rule=rules.tool_name),
        description=part.text("description", most=1_000, example='"Read orders."', lines=True),
        engine=cast(Engine, part.choice("engine", tuple(DIALECTS))),
        database=part.text("database", example='"orders"', rule=rules.slug),
        parameters=read_schema(part),
        statement=part.text("statement", default="", most=8_000, lines=True),
        tables=part.texts("tables", longest=127, rule=table_name),
        credential=part.text("credential", default="", rule=rules.slug),
        redact=part.texts("redact", longest=100),
        max_rows=part.number("max_rows", 100, 1, 10_000),
        max_kilobytes=part.number("max_kilobytes", 64, 1, 128),
        timeout_seconds=part.number("timeout_seconds", 10, 1, 300),
    )
    if bool(tool.statement) == bool(tool.tables):
        part.fault(
            "statement" if tool.statement else None,
            "A tool reads by one statement, or from some tables, and it says "
            + ("both." if tool.statement else "neither."),
            "Write either statement = a SELECT with :name for arguments, or tables = a list.",
        )
    elif tool.tables:
        return read_free_sql(part, tool)
    else:
        check_statement(part, tool)
    part.done()
    return tool


def read_free_sql(part: Fields, tool: SqlTool) -> SqlTool:
    """The agent writes the SELECT; its arguments are the text and the values of its parameters."""
    if tool.redact:
        # Under another name, or inside an expression, nobody would know the column again.
        part.fault(
            "redact",
            "The statement is the agent's, and a column could come under any name.",
            "List a view that leaves the column out.",
        )
    if part.data.get("parameters") not in (None, FREE_PARAMETERS):
        part.fault(
            "parameters",
            "A tool with tables takes a statement of the agent's and its parameters, as always.",
            "Remove it.",
        )
    part.done()
    return replace(tool, parameters=json.loads(json.dumps(FREE_PARAMETERS)))


FREE_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "statement": {"type": "string", "minLength": 1, "maxLength": 4_000},
        "parameters": {
            "type": "object",
            "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
        },
    },
    "required": ["statement"],
    "additionalProperties": False,
}


def check_statement(part: Fields, tool: SqlTool) -> None:
    """One SELECT whose parameters are the declared arguments, each a single value."""
    try:
        statement = read_statement(tool.statement, tool.engine)
    except StatementRefused as refused:
        part.fault("statement", str(refused), "Write one SELECT that only reads.")
        return
    properties = tool.parameters.get("properties", {})
    for name in statement.parameters:
        if name != ACTING_FOR and name not in properties:
            part.fault(
                "statement",
                f":{name} is not an argument. {did_you_mean(name, list(properties))}",
                "Declare it under parameters.properties.",
            )
    for name, declared in properties.items():
        if name == ACTING_FOR:
            reason = "acting_for is the person the run acts for, and no argument."
            part.fault("parameters", reason, "Remove it.", "properties", name)
        elif name not in statement.parameters:
            reason = f"{name} does not occur in the statement."
            part.fault("parameters", reason, f"Use :{name}, or remove it.", "properties", name)
        elif declared.get("type") not in {"string", "integer", "number", "boolean"}:
            part.fault(
                "parameters",
                f"{name} is bound to the statement and is no single value.",
                'Write type = "string", "integer", "number" or "boolean".',
                "properties",
                name,
            )


def table_name(text: str) -> tuple[str, str] | None:
    """A table, with its schema if it is not found without."""
    if TABLE.fullmatch(text):
        return None
    return f"{quoted(text)} is not the name of a table.", "Write orders, or shop.orders."


def read_python(part: Fields) -> PythonTool:
    tool = PythonTool(
        name=part.text("name", example='"price_of_parcel"', rule=rules.tool_name),
        description=part.text("description", most=1_000, example='"Ask for a price."', lines=True),
        entry_point=part.text("entry_point", example='"price_of_parcel"', rule=rules.tool_name),
        parameters=read_schema(part),
        response=part.texts("response", longest=200, rule=field_path),
        credential=part.text("credential", default="", rule=rules.slug),
        redact=part.texts("redact", longest=200, rule=field_path),
        max_kilobytes=part.number("max_kilobytes", 256, 1, 1_024),
        timeout_seconds=part.number("timeout_seconds", 20, 1, 300),
    )
    part.done()
    return tool


def default_body(method: str) -> str:
    return "none" if method in {"GET", "DELETE"} else "json"


def field_path(text: str) -> tuple[str, str] | None:
    """Field of the answer the agent may see, with dots for deeper ones."""
    if FIELD_PATH.fullmatch(text):
        return None
    return f"{quoted(text)} is not a field of an answer.", "Write number, or issue.number."


def check_url(part: Fields, tool: HttpTool) -> None:
    """The host is fixed by the contract; arguments may only fill parts of the path."""
    url = tool.url
    if not url:
        return
    if tool.base:
        if not url.startswith("{base}/"):
            part.fault(
                "url",
                "The tool names a base, and the address does not begin with it.",
                'Write url = "{base}/path".',
            )
            return
        url = "https://base.invalid" + url.removeprefix("{base}")
    elif "{base}" in url:
        part.fault(
            "base",
            "The address begins with {base}, and no base is named.",
            'Name an address from the portal\'s settings: base = "tracker".',
        )
        return
    names = PLACEHOLDER.findall(url)
    if found := rules.web_url(PLACEHOLDER.sub("x", url)):
        part.fault("url", *found)
    elif PLACEHOLDER.search("".join(urlsplit(url)[:2])):
        part.fault(
            "url", "An argument stands in the host name.", "Arguments may fill only the path."
        )
    elif re.search(r"[{}]", PLACEHOLDER.sub("", url)):
        part.fault("url", "A brace is left open.", "Write {argument}.")
    check_placeholders(part, names, tool.parameters)


def check_placeholders(part: Fields, names: list[str], schema: Mapping[str, Any]) -> None:
    """What goes into the address must be there, and be short text or a whole number."""
    properties = schema.get("properties", {})
    for name in names:
        if name not in properties:
            part.fault(
                "url",
                f"{{{name}}} is not an argument. {did_you_mean(name, list(properties))}",
                "Declare it under parameters.properties.",
            )
        elif properties[name].get("type") not in {"string", "integer"}:
            part.fault(
                "parameters",
                f"{name} goes into the address and is neither text nor a number.",
                'Write type = "string" or "integer".',
                "properties",
                name,
            )
        elif name not in schema.get("required", []):
            part.fault(
                "parameters",
                f"{name} goes into the address and may be missing.",
                f'Add "{name}" to required.',
                "required",
            )


# --- Argument schemas ---------------------------------------------------------------------------


def no_retrieval(uri: str) -> Any:
    """The schema library would fetch remote references; nothing in a contract may do that."""
    raise ValueError(f"reference to {uri}")


def read_schema(part: Fields) -> dict[str, Any]:
    """A JSON schema of type object, closed unless it says otherwise, without references."""
    raw = part.take("parameters")
    if raw is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(raw, Mapping):
        Fields(raw, part.problems, (*part.path, "parameters"))
        return {"type": "object", "properties": {}}
    schema = json_value(raw, part.problems, (*part.path, "parameters"))
    if not isinstance(schema, dict) or schema.setdefault("type", "object") != "object":
        part.fault(
            "parameters",
            "The arguments of a tool are always a table.",
            'Write type = "object".',
            "type",
        )
        return {"type": "object", "properties": {}}
    schema.setdefault("additionalProperties", False)
    check_schema(part, schema)
    return schema


def read_answer_schema(part: Fields) -> dict[str, Any]:
    """What an answer must look like, or nothing. Open unless it says otherwise: services grow."""
    raw = part.take("response_schema")
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        Fields(raw, part.problems, (*part.path, "response_schema"))
        return {}
    schema = json_value(raw, part.problems, (*part.path, "response_schema"))
    if not isinstance(schema, dict) or len(json.dumps(schema)) > MAX_SCHEMA:
        reason = "The schema is larger than 16 KB."
        part.fault("response_schema", reason, "Describe fewer fields.")
        return {}
    check_json_schema(part, "response_schema", schema)
    return schema


def check_schema(part: Fields, schema: dict[str, Any]) -> None:
    if len(json.dumps(schema)) > MAX_SCHEMA:
        part.fault("parameters", "The schema is larger than 16 KB.", "Describe fewer arguments.")
        return
    properties = schema.setdefault("properties", {})
    if not isinstance(properties, dict) or not all(
        isinstance(v, dict) for v in properties.values()
    ):
        part.fault(
            "parameters",
            "Every argument is described by a table.",
            'Write title = { type = "string" }.',
            "properties",
        )
        schema["properties"] = {}
        return
    for name in properties:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", name) or name == "base":
            part.fault(
                "parameters",
                f"{quoted(name)} cannot be the name of an argument.",
                "Use letters, digits and underscores; base is taken.",
                "properties",
                name,
            )
    check_json_schema(part, "parameters", schema)


def check_json_schema(part: Fields, key: str, schema: dict[str, Any]) -> None:
    if "$ref" in json.dumps(schema) or "$dynamicRef" in json.dumps(schema):
        part.fault(key, "The schema refers to another one with $ref.", "Write it out.")
        return
    try:
        jsonschema_rs.Draft202012Validator(schema, retriever=no_retrieval)
    except (ValueError, jsonschema_rs.ValidationError) as error:
        reason = str(getattr(error, "message", error)).splitlines()[0][:200]
        part.fault(key, f"This is not a JSON schema: {reason}.", "Mend it there.")


def json_value(value: Any, problems: Problems, path: tuple[str | int, ...]) -> Any:
    """The value with only what JSON has and what every reader of JSON reads alike."""
    if isinstance(value, Mapping):
        return {str(k): json_value(v, problems, (*path, str(k))) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item, problems, (*path, at)) for at, item in enumerate(value)]
    if isinstance(value, bool | str):
        return value.replace("\r\n", "\n") if isinstance(value, str) else value
    if isinstance(value, int | float | Decimal) and abs(float(value)) <= SAFE_NUMBER:
        whole = int(value)
        return whole if whole == value else float(value)
    problems.add(
        path, f"{quoted(value)} has no place in a schema.", "Write text, true, or a number."
    )
    return ""
