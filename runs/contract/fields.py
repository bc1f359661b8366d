"""Read fields out of untyped data and collect everything that is wrong with them.

A person who wrote ten mistakes is told ten, not the first. Each `Problem` says which field, on
which line when there is a file, what is wrong and what to write instead.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from portal.errors import Refusal

Path: TypeAlias = tuple[str | int, ...]
Lines: TypeAlias = Mapping[Path, int]
Fault: TypeAlias = tuple[str, str]
"""What is wrong, and what to do about it."""
Rule: TypeAlias = Callable[[str], Fault | None]

MAX_PROBLEMS = 50
BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Problem:
    """One thing to mend. `line` is None when the data did not come from a file."""

    field: str
    line: int | None
    reason: str
    remedy: str

    def __str__(self) -> str:
        where = f"line {self.line}, {self.field}" if self.line else self.field
        return f"{where}: {self.reason} {self.remedy}"


class ContractRefused(Refusal):
    """The text is not a contract. `problems` says why, in the order of the file."""

    code: ClassVar[str] = "runs.contract_refused"
    status: ClassVar[int] = 422
    text: ClassVar[str] = "The contract was not saved. {reasons}"

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda each: each.line or 0))
        super().__init__(reasons="\n".join(str(each) for each in self.problems))


class Problems:
    """The list being filled, and the place where a path becomes a name and a line."""

    def __init__(self, lines: Lines | None = None) -> None:
        self.lines = lines
        self.found: list[Problem] = []

    def add(self, path: Path, reason: str, remedy: str) -> None:
        """Note one problem. After the first fifty no more are kept: the text may be hostile."""
        if len(self.found) < MAX_PROBLEMS:
            self.found.append(Problem(dotted(path), self.line(path), reason, remedy))

    def line(self, path: Path) -> int | None:
        """The line of the field, or of the nearest part around it that is in the file."""
        if self.lines is None:
            return None
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def refuse_if_any(self) -> None:
        if self.found:
            raise ContractRefused(self.found)


def dotted(path: Path) -> str:
    """`("tools", "http", 0, "url")` as people write it: `tools.http[0].url`."""
    name = ""
    for part in path:
        if isinstance(part, int):
            name += f"[{part}]"
        else:
            name += ("." if name else "") + (part if BARE.fullmatch(part) else quoted(part))
    return name or "the file"


def quoted(text: object) -> str:
    """Text of unknown origin inside a message: short, and with nothing hidden in it."""
    shown = str(text)
    return ascii(shown if len(shown) <= 60 else shown[:57] + "...").replace("'", '"')


def kind_of(value: object) -> str:
    """What a value is, in words of the file and not of Python."""
    if isinstance(value, bool):
        return "true or false"
    names = {str: "text", int: "a number", dict: "a table", list: "a list", type(None): "nothing"}
    return names.get(type(value), "a number with a fraction")


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """The sentence that helps with a misspelt word."""
    near = difflib.get_close_matches(word[:60], known, n=1, cutoff=0.6)
    if near:
        return f"Did you mean {near[0]}?"
    return f"Known here: {', '.join(known)}." if known else "Remove it."


class Fields:
    """One table of the file. Getters return a usable value even after noting a problem, so that
    reading goes on; `done` refuses keys that no getter asked for."""

    def __init__(self, data: object, problems: Problems, path: Path = ()) -> None:
        self.path, self.problems = path, problems
        self.asked: list[str] = []
        self.data: Mapping[str, Any] = {}
        if isinstance(data, Mapping):
            self.data = data
        else:
            self.fault(
                None, f"This is {kind_of(data)}, not a table.", "Write key = value below it."
            )

    def fault(self, key: str | int | None, reason: str, remedy: str, *more: str | int) -> None:
        """Note a problem with a key of this table, or with the table."""
        at = self.path if key is None else (*self.path, key)
        self.problems.add((*at, *more), reason, remedy)

    def take(self, key: str) -> Any:
        """The raw value or None; from here on the key counts as known."""
        self.asked.append(key)
        return self.data.get(key)

    def missing(self, key: str, example: str) -> None:
        self.fault(key, "It is missing.", f"Add for example {key} = {example}.")

    def text(
        self,
        key: str,
        *,
        default: str | None = None,
        most: int = 200,
        example: str = '"..."',
        rule: Rule | None = None,
        lines: bool = False,
    ) -> str:
        """Text without surrounding blanks. No `default` means that it must be there."""
        value = self.take(key)
        if value is None:
            if default is None:
                self.missing(key, example)
            return default or ""
        return self.checked(value, key, most=most, rule=rule, lines=lines, empty=default == "")

    def checked(
        self,
        value: object,
        key: str,
        *more: str | int,
        most: int,
        rule: Rule | None,
        lines: bool = False,
        empty: bool = False,
    ) -> str:
        """The text at that place if it is text, short enough and as the rule wants it."""
        if not isinstance(value, str):
            self.fault(key, f"This is {kind_of(value)}, not text.", "Put it in quotes.", *more)
            return ""
        text = value.replace("\r\n", "\n").strip()
        if not text:
            if not empty:
                self.fault(key, "It is empty.", "Write something, or remove the key.", *more)
            return ""
        found = too_long(text, most) or (None if lines else one_line(text))
        found = found or (rule(text) if rule else None)
        if found:
            self.fault(key, *found, *more)
        return text

    def number(self, key: str, default: int, least: int, most: int) -> int:
        """A whole number within its bounds."""
        value = self.take(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            self.fault(key, f"This is {kind_of(value)}, not a whole number.", f"Write {default}.")
            return default
        if not least <= value <= most:
            self.fault(key, f"{quoted(value)} is out of bounds.", f"Write {least} to {most}.")
            return default
        return value

    def yes_or_no(self, key: str, default: bool = False) -> bool:
        value = self.take(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fault(key, f"This is {kind_of(value)}.", "Write true or false, without quotes.")
            return default
        return value

    def choice(self, key: str, options: Sequence[str], default: str | None = None) -> str:
        """One of a few words. No `default` means that it must be there."""
        value = self.take(key)
        if value is None:
            if default is None:
                self.missing(key, f'"{options[0]}"')
            return default or options[0]
        if not isinstance(value, str) or value not in options:
            hint = did_you_mean(value, options) if isinstance(value, str) else ""
            self.fault(key, f"{quoted(value)} is not known. {hint}".strip(), one_of(options))
            return default or options[0]
        return value

    def texts(
        self,
        key: str,
        *,
        required: bool = False,
        most: int = 50,
        longest: int = 500,
        rule: Rule | None = None,
        lines: bool = False,
    ) -> tuple[str, ...]:
        """A list of texts, each named with its place when something is wrong with it."""
        value = self.take(key)
        if value is None:
            if required:
                self.missing(key, '["..."]')
            return ()
        items = self.listed(key, value, most)
        if required and value == []:
            self.fault(key, "The list is empty.", "Write at least one entry.")
        found = [
            self.checked(each, key, at, most=longest, rule=rule, lines=lines)
            for at, each in enumerate(items)
        ]
        for at, each in enumerate(found):
            if each and each in found[:at]:
                self.fault(key, f"{quoted(each)} is listed twice.", "Remove one.", at)
        return tuple(found)

    def listed(self, key: str, value: object, most: int) -> list[Any]:
        if not isinstance(value, list | tuple):
            self.fault(key, f"This is {kind_of(value)}, not a list.", "Write it in [ ].")
            return []
        if len(value) > most:
            self.fault(key, f"There are {len(value)} entries.", f"Keep at most {most}.")
        return list(value[:most])

    def table(self, key: str, *, required: str = "") -> Fields | None:
        """The table below that key, or None. `required` is the example shown when absent."""
        value = self.take(key)
        if value is None:
            if required:
                self.fault(key, f"The section [{key}] is missing.", f"Add it, with {required}.")
            return None
        return Fields(value, self.problems, (*self.path, key))

    def tables(self, key: str, most: int = 50) -> list[Fields]:
        """The tables of a list."""
        value = self.take(key)
        items = [] if value is None else self.listed(key, value, most)
        return [Fields(each, self.problems, (*self.path, key, at)) for at, each in enumerate(items)]

    def done(self) -> None:
        """Refuse what nobody asked for: a misspelt limit must not silently be no limit."""
        known = list(dict.fromkeys(self.asked))
        for key in self.data:
            if not isinstance(key, str):
                self.fault(None, f"The key {quoted(key)} is not text.", "Put it in quotes.")
            elif key not in known:
                hint = did_you_mean(key, [each for each in known if each not in self.data] or known)
                self.fault(key, "This key is not known here.", hint)


def too_long(text: str, most: int) -> Fault | None:
    if len(text) <= most:
        return None
    return f"It has {len(text)} characters.", f"Keep it to {most}."


def one_line(text: str) -> Fault | None:
    if "\n" not in text:
        return None
    return "It has more than one line.", "Write it on one line."


def one_of(options: Sequence[str]) -> str:
    words = ", ".join(f'"{each}"' for each in options)
    return f"Write one of {words}."
