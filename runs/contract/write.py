"""Write a contract as TOML, so that what the browser form makes and what a file holds are the same.

`parse_contract(render_toml(contract), "toml") == contract` for every contract. Long text is written
in lines, as a person would, where that keeps it exactly; everything else on one line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from runs.contract.shape import Contract

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
FIRST = ("name", "outcome", "acceptance", "owner", "capabilities")
SECTIONS = (
    "agent",
    "source",
    "inputs",
    "files",
    "environment",
    "tools",
    "fallback",
    "network",
    "limits",
    "verification",
    "output",
    "gate",
    "target",
)


def render_toml(contract: Contract) -> str:
    """The contract as a file; every default is written out, empty optional fields are not."""
    data = contract.to_data()
    lines = [pair(key, data[key]) for key in FIRST if data[key]]
    for name in SECTIONS:
        if data[name]:
            lines += ["", *section(name, data[name])]
    return "\n".join(lines) + "\n"


def with_rule(text: str, fmt: str, place: str) -> str:
    """A contract's text with a network rule for `host:port` at its end, still to be completed.

    A proposal for whoever writes the next version: text that is no TOML is left as it is.
    """
    host, _, port = place.rpartition(":")
    if fmt != "toml" or not host or not port.isdecimal() or len(port) > 5:
        return text
    mode = (
        [] if re.search(r"(?m)^\s*\[network\]", text) else ["[network]", pair("mode", "allowlist")]
    )
    rule = ["[[network.allow]]", pair("host", host), pair("port", int(port)), pair("purpose", "")]
    return "\n".join([text.rstrip(), "", *mode, *rule, pair("minutes", 10), ""])


def section(name: str, table: Mapping[str, Any]) -> list[str]:
    """A table, then the lists of tables in it."""
    lists = {key: value for key, value in table.items() if is_list_of_tables(value)}
    plain = {key: value for key, value in table.items() if key not in lists and shown(name, value)}
    lines = [f"[{name}]"] + [pair(key, value) for key, value in plain.items()]
    for key, entries in lists.items():
        for entry in entries:
            fields = [pair(each, value) for each, value in entry.items() if shown(key, value)]
            lines += ["", f"[[{name}.{key}]]", *fields]
    return lines


def is_list_of_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def shown(section_name: str, value: Any) -> bool:
    """Empty text means "not given" everywhere but where the keys are the author's own."""
    return section_name in {"files", "environment", "inputs"} or value not in ("", [])


def pair(key: str, value: Any) -> str:
    return f"{toml_key(key)} = {toml_value(value, top=True)}"


def toml_key(key: str) -> str:
    return key if BARE_KEY.fullmatch(key) else basic(key)


def toml_value(value: Any, top: bool = False) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return block(value) if top and "\n" in value else basic(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{toml_key(k)} = {toml_value(v)}" for k, v in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    items = [toml_value(item) for item in value]
    line = f"[{', '.join(items)}]"
    if top and len(line) > 80 and items:
        return "[\n" + "".join(f"    {item},\n" for item in items) + "]"
    return line


def basic(text: str) -> str:
    return '"' + "".join(escape(each) for each in text) + '"'


def escape(each: str) -> str:
    if each in ESCAPES:
        return ESCAPES[each]
    return each if each >= " " and each != "\x7f" else f"\\u{ord(each):04X}"


def block(text: str) -> str:
    """The text between triple quotes, line by line; the first newline after them does not count."""
    body = "".join(each if each in "\n\t" else escape(each) for each in text)
    return '"""\n' + body + '"""'
