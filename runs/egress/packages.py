"""Which packages a request for network is about, where its own words or its path say so.

Whoever asks wrote these words, so what is read here is a hint for people who look for what to put
into a contract, and decides nothing.
"""

from __future__ import annotations

import re

MOST = 8
"""Packages taken from one request."""
LONGEST = 100

_COMMAND = re.compile(
    r"\b(pip3?|uv pip|uv|poetry|conda|npm|pnpm|yarn|apt-get|apt|cargo|gem|go)\s+"
    r"(?:install|add|get|i)\s+([^\n;&|`'\"]+)",
    re.IGNORECASE,
)
_NAMES = {"pip3": "pip", "uv pip": "pip", "uv": "pip", "poetry": "pip", "apt-get": "apt"}
_INDEX = re.compile(r"^/(?:simple|pypi)/([A-Za-z0-9][A-Za-z0-9._-]*)(?:/|$)")
# A name, maybe with a scope before it and a version behind it.
_PACKAGE = re.compile(
    r"((?:@[a-z0-9._-]+/)?[A-Za-z0-9](?:[A-Za-z0-9._/+-]*[A-Za-z0-9+])?)"
    r"(?:\[[\w,.-]*\])?(?:[=<>~!^@]=?[\w.*+-]*)?[,.]?"
)
_PROSE = frozenset(
    {"a", "and", "at", "for", "from", "in", "into", "it", "its", "the", "to", "with"}
)


def packages_of(purpose: str, path: str = "") -> tuple[str, ...]:
    """`manager package` for each package that is named, such as `pip requests`; in order, once."""
    found: dict[str, None] = {}
    if in_path := _INDEX.match(path):
        found[f"pip {in_path[1].lower()}"] = None
    for command in _COMMAND.finditer(purpose):
        manager = command[1].lower()
        for word in command[2].split():
            if word.startswith("-"):
                continue
            if len(word) > LONGEST or word.lower() in _PROSE:
                break
            package = _PACKAGE.fullmatch(word)
            if package is None:
                break
            found[f"{_NAMES.get(manager, manager)} {package[1].lower()}"] = None
            if word.endswith("."):
                break
    return tuple(found)[:MOST]
