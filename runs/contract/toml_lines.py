"""Find the line of every key and list entry in a TOML text that is known to be valid.

The standard library's reader forgets positions. This scanner only follows the structure, tables,
keys, strings, brackets, and never interprets a value; where it does not understand the text it
stops, and the fields after that place are reported with the line of the table around them.
"""

from __future__ import annotations

import contextlib
import json
import re

from runs.contract.fields import Path

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
BLANK = re.compile(r"[ \t]*")
ATOM = re.compile(r"[^\s,\]\}#]+(?:[ ][0-9:.]+)?")
STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)


class Lost(Exception):
    """The scanner met something it does not know."""


def toml_lines(text: str) -> dict[Path, int]:
    """Path of keys and list places → line, counted from 1."""
    scanner = Scanner(text)
    with contextlib.suppress(Lost, IndexError):
        scanner.document()
    return scanner.lines


class Scanner:
    """Walks once over the text. `at` is the position, `row` the line of that position."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.row = text, 0, 1
        self.lines: dict[Path, int] = {}
        self.counts: dict[Path, int] = {}

    def match(self, pattern: re.Pattern[str]) -> str:
        """Step over what the pattern matches here, counting the lines in it."""
        found = pattern.match(self.text, self.at)
        if found is None:
            raise Lost
        self.at = found.end()
        self.row += found[0].count("\n")
        return found[0]

    def peek(self, word: str) -> bool:
        return self.text.startswith(word, self.at)

    def step(self, word: str) -> None:
        if not self.peek(word):
            raise Lost
        self.at += len(word)

    def note(self, path: Path) -> None:
        self.lines.setdefault(path, self.row)

    def document(self) -> None:
        table: Path = ()
        while True:
            self.match(SPACE)
            if self.at >= len(self.text):
                return
            if self.peek("[["):
                table = self.header("[[", "]]")
            elif self.peek("["):
                table = self.header("[", "]")
            else:
                self.pair(table)

    def header(self, opens: str, closes: str) -> Path:
        """The table a header opens. The last entry of a list of tables stands for the list."""
        self.step(opens)
        keys = self.keys()
        path: Path = ()
        for key in keys[:-1]:
            path = self.last_entry((*path, key))
            self.note(path)
        path = (*path, keys[-1])
        self.note(path)
        if opens == "[[":
            self.counts[path] = self.counts.get(path, -1) + 1
            path = (*path, self.counts[path])
            self.note(path)
        self.step(closes)
        return path

    def last_entry(self, path: Path) -> Path:
        return (*path, self.counts[path]) if path in self.counts else path

    def keys(self) -> list[str]:
        """`a."b c".d`, with blanks around the dots."""
        found = [self.key()]
        while self.peek("."):
            self.step(".")
            found.append(self.key())
        return found

    def key(self) -> str:
        self.match(BLANK)
        if self.peek('"'):
            # A basic string of TOML is one of JSON but for \UXXXXXXXX, which no key here needs.
            try:
                key = str(json.loads(self.match(STRING)))
            except ValueError:
                raise Lost from None
        elif self.peek("'"):
            key = self.match(STRING)[1:-1]
        else:
            key = self.match(BARE_KEY)
        self.match(BLANK)
        return key

    def pair(self, table: Path) -> None:
        """`key = value`; a dotted key opens the tables on its way."""
        path = table
        row = self.row
        for key in self.keys():
            path = (*path, key)
            self.lines.setdefault(path, row)
        self.step("=")
        self.match(BLANK)
        self.value(path)

    def value(self, path: Path) -> None:
        if self.peek("["):
            self.list_entries(path)
        elif self.peek("{"):
            self.inline_table(path)
        elif self.peek('"') or self.peek("'"):
            self.match(STRING)
        else:
            self.match(ATOM)

    def list_entries(self, path: Path) -> None:
        self.step("[")
        place = 0
        while True:
            self.match(SPACE)
            if self.peek("]"):
                break
            self.note((*path, place))
            self.value((*path, place))
            self.match(SPACE)
            if self.peek(","):
                self.step(",")
            place += 1
        self.step("]")

    def inline_table(self, path: Path) -> None:
        self.step("{")
        while True:
            self.match(SPACE)
            if self.peek("}"):
                break
            self.pair(path)
            self.match(SPACE)
            if self.peek(","):
                self.step(",")
        self.step("}")
