"""From the text of a contract to plain data, and to the line on which every field stands.

TOML: the standard library reads it; a small scanner beside it finds the lines.
YAML: only the part of it that cannot surprise. Anchors, aliases, merge keys, tags, several
documents, keys that are not text and keys written twice are refused; and `off`, `no` or `1_000`
mean what they look like, as in YAML 1.2: a network mode `off` must not become `false`.
"""

from __future__ import annotations

import re
import tomllib
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import yaml

from runs.contract.fields import ContractRefused, Path, Problem, quoted
from runs.contract.toml_lines import toml_lines

Format: TypeAlias = Literal["toml", "yaml"]

MAX_BYTES = 256 * 1024
MAX_DEPTH = 24
MAX_NODES = 20_000
# tomllib needs quadratic time for one key of thousands of parts.
LONG_KEY = re.compile(r"(?<![\w-])(?:(?:[\w-]+|\"[^\"\n]*\"|'[^'\n]*')[ \t]*\.[ \t]*){24}")


def read_text(text: str, fmt: Format) -> tuple[dict[str, Any], dict[Path, int]]:
    """Data and lines, or `ContractRefused` with the one place where reading stopped."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise refused(1, "The file is larger than 256 KiB.", "Move long texts into the repository.")
    if "\x00" in text:
        line = text.count("\n", 0, text.index("\x00")) + 1
        raise refused(line, "The file contains a NUL byte.", "Save it as plain UTF-8 text.")
    if not text.strip():
        raise refused(
            1, "The file is empty.", "Begin with the example on the page of new contracts."
        )
    try:
        return read_toml(text) if fmt == "toml" else read_yaml(text)
    except RecursionError:
        raise refused(1, "The file is nested too deeply.", "Flatten it.") from None


def refused(line: int, reason: str, remedy: str) -> ContractRefused:
    return ContractRefused([Problem("the file", line, reason, remedy)])


# --- TOML ---------------------------------------------------------------------------------------


def read_toml(text: str) -> tuple[dict[str, Any], dict[Path, int]]:
    found = LONG_KEY.search(text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        raise refused(line, "A key has too many parts.", "No key of a contract has more than four.")
    try:
        data = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise toml_refused(text, str(error)) from None
    return data, toml_lines(text)


def toml_refused(text: str, message: str) -> ContractRefused:
    """tomllib says where in words at the end of its message."""
    at = re.search(r" \(at line (\d+), column \d+\)$", message)
    line = int(at[1]) if at else text.rstrip("\n").count("\n") + 1
    reason = re.sub(r" \(at [^()]*\)$", "", message)
    twice = re.search(r"overwrite|twice|already", reason)
    remedy = (
        "A name is given twice; keep one." if twice else "Check quotes, brackets and commas there."
    )
    return refused(line, f"This is not TOML: {reason}.", remedy)


# --- YAML ---------------------------------------------------------------------------------------


class PlainLoader(yaml.SafeLoader):
    """Composes nodes with only the four kinds of plain scalars below; never constructs objects."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}
    depth = 0
    nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise refused(
                line, "Anchors and aliases (& and *) are not used here.", "Write the value out."
            )
        tag = getattr(event, "tag", None)
        if tag:
            raise refused(
                line, f"The tag {quoted(tag)} is not used here.", "Remove it; put text in quotes."
            )
        self.depth, self.nodes = self.depth + 1, self.nodes + 1
        if self.depth > MAX_DEPTH or self.nodes > MAX_NODES:
            raise refused(
                line, "The file is nested too deeply or has too many entries.", "Flatten it."
            )
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


PlainLoader.add_implicit_resolver("null", re.compile(r"(?:~|null|)\Z"), ["~", "n", ""])
PlainLoader.add_implicit_resolver("bool", re.compile(r"(?:true|false)\Z"), ["t", "f"])
PlainLoader.add_implicit_resolver("int", re.compile(r"[-+]?[0-9]{1,18}\Z"), list("-+0123456789"))
PlainLoader.add_implicit_resolver(
    "float", re.compile(r"[-+]?[0-9]{1,18}\.[0-9]{1,18}\Z"), list("-+0123456789")
)


def read_yaml(text: str) -> tuple[dict[str, Any], dict[Path, int]]:
    lines: dict[Path, int] = {}
    try:
        loader = PlainLoader(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = f"This is not YAML: {error.problem or error.context}."
        raise refused(
            mark.line + 1 if mark else 1, reason, "Check indentation and colons there."
        ) from None
    except yaml.YAMLError as error:
        position = getattr(error, "position", 0)
        line = text.count("\n", 0, position if isinstance(position, int) else 0) + 1
        raise refused(
            line, "The file contains a character YAML forbids.", "Save it as plain text."
        ) from None
    if not isinstance(node, yaml.MappingNode):
        raise refused(1, "The file is not a table of fields.", "Begin with name: my-job.")
    return yaml_table(node, (), lines), lines


def yaml_data(node: Any, path: Path, lines: dict[Path, int]) -> Any:
    """Plain data of a node."""
    if isinstance(node, yaml.ScalarNode):
        return scalar(node.tag, node.value)
    if isinstance(node, yaml.SequenceNode):
        for at, item in enumerate(node.value):
            lines[(*path, at)] = item.start_mark.line + 1
        return [yaml_data(item, (*path, at), lines) for at, item in enumerate(node.value)]
    return yaml_table(node, path, lines)


def yaml_table(node: Any, path: Path, lines: dict[Path, int]) -> dict[str, Any]:
    """Keys are text and stand once."""
    table: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = yaml_key(key_node, line)
        if key in table:
            first = lines[(*path, key)]
            raise refused(
                line,
                f"The key {quoted(key)} stands on line {first} already.",
                "Keep one of the two.",
            )
        lines[(*path, key)] = line
        table[key] = yaml_data(value_node, (*path, key), lines)
    return table


def yaml_key(node: Any, line: int) -> str:
    if not isinstance(node, yaml.ScalarNode) or node.value == "<<":
        raise refused(
            line, "A key is not plain text.", "Write key: value; merge keys are not used here."
        )
    return str(node.value)


def scalar(tag: str, value: str) -> Any:
    if tag == "null":
        return None
    if tag == "bool":
        return value == "true"
    return {"int": int, "float": Decimal}.get(tag, str)(value)
