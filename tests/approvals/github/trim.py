"""Cut GitHub's published API description down to what the publisher uses.

Source: `generated/api.github.com.json` of the npm package `@octokit/openapi`
23.0.2 (MIT licence). Get it with `npm pack @octokit/openapi@23.0.2`, unpack it,
and run `python -m tests.approvals.github.trim PATH/TO/api.github.com.json`.

Prose and examples go; every schema that is left says what it said before.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OPERATIONS = {"/repos/{owner}/{repo}/pulls": ("get", "post")}
TRIMMED = Path(__file__).with_name("api.json")
PROSE = frozenset(
    {"description", "summary", "example", "examples", "externalDocs", "tags", "title", "deprecated"}
)
# Below these keys stand names that somebody chose; "description" may be one.
NAMES = frozenset({"properties", "schemas", "responses", "parameters", "headers", "content"})


def without_prose(node: Any, within: str = "") -> Any:
    """The same node without what a validator does not read; `within` is the key above it."""
    if isinstance(node, list):
        return [without_prose(item) for item in node]
    if not isinstance(node, dict):
        return node
    if within in NAMES:
        named = {name: without_prose(value) for name, value in node.items()}
        # A response must have a description, if only an empty one.
        empty = {"description": ""} if within == "responses" else {}
        return {
            name: value if "$ref" in value else {**value, **empty} for name, value in named.items()
        }
    return {
        key: without_prose(value, within=key)
        for key, value in node.items()
        if key not in PROSE and not key.startswith("x-")
    }


def references(node: Any) -> Iterator[tuple[str, str]]:
    """Every component that a node points to, as (section, name)."""
    if isinstance(node, dict):
        if isinstance(pointer := node.get("$ref"), str):
            _, _, section, name = pointer.split("/")
            yield section, name
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for item in node:
            yield from references(item)


def trim(whole: dict[str, Any]) -> dict[str, Any]:
    """The description of `OPERATIONS` alone, with every component they need."""
    paths = {
        path: {method: without_prose(whole["paths"][path][method]) for method in methods}
        for path, methods in OPERATIONS.items()
    }
    components: dict[str, dict[str, Any]] = {}
    waiting = list(references(paths))
    while waiting:
        section, name = waiting.pop()
        if name in components.setdefault(section, {}):
            continue
        component = without_prose({name: whole["components"][section][name]}, within=section)
        components[section].update(component)
        waiting.extend(references(component))
    info = whole["info"]
    return {
        "openapi": whole["openapi"],
        "info": {
            "title": info["title"],
            "version": info["version"],
            "license": {"name": info["license"]["name"]},
        },
        "servers": [{"url": "http://stub.invalid"}],
        "paths": paths,
        "components": {
            section: dict(sorted(named.items())) for section, named in sorted(components.items())
        },
    }


def main(source: str) -> None:
    whole = json.loads(Path(source).read_text(encoding="utf-8"))
    TRIMMED.write_text(json.dumps(trim(whole), separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
