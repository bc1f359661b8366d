"""Hidden characters: what a reader of the new lines and names could not see.

Warnings, each to be acknowledged: bidirectional controls, zero-width and tag characters, terminal
escapes and other controls, letters that pose as Latin ones, words of another script that shadow a
Latin name in code, text pushed out of sight by blanks. Notes: characters at home where they stand
(the parts of an emoji, joiners in Persian or Hindi, marks in right-to-left prose, a byte order mark
at the start of a file) and bytes that are not UTF-8. Nothing here blocks: such characters have
honest uses, and the page shows each of them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from approvals import hidden
from approvals.changes import Status, unspell
from approvals.checks.base import CheckResult, Content, Notebook, Subject, is_text
from approvals.checks.size_and_type import sniff

NAME, VERSION = "hidden_characters", "portal 1"

# Prose in another script is full of words that look Latin; only in code can one shadow a name.
_PROSE = (
    ".md", ".rst", ".txt", ".po", ".pot", ".adoc", ".html", ".htm", ".csv", ".tex", ".srt", ".log",
)  # fmt: skip
_GAP = re.compile(rb"(?<=\S)(?:[ \t]|\xc2\xa0){80,}(?=[^\s\xc2])")
_LONG = 100_000  # characters of one line that are looked at one by one
_MANY = 2_000  # findings after which the rest is only counted
_ODD = re.compile(rb"[^\t\r\x20-\x7e]|\r(?!$)")


def check(subject: Subject) -> CheckResult:
    notes = Notebook(NAME, VERSION, subject)
    seen: Counter[str] = Counter()
    for change in subject.changes:
        if change.status is not Status.DELETED and change.path != change.old_path:
            _name(change.path, subject, notes, seen)
    for path in subject.tray:
        _name(unspell(path), subject, notes, seen)
    for content in subject.contents():
        if is_text(content.data) and not sniff(content.data):
            _content(content, notes, seen)
    notes.evidence["characters"] = dict(sorted(seen.items()))
    return notes.result()


def _name(path: bytes, subject: Subject, notes: Notebook, seen: Counter[str]) -> None:
    for mark in hidden.marks(hidden.decode(path), look_alikes=True):
        if mark.kind == "byte" or not mark.loud:
            continue
        seen[mark.name] += 1
        text = f"{mark.name} in the name"
        notes.add("warning", mark.kind, path, text, acknowledge=True)
    for part in hidden.decode(path).split("/"):
        plain = hidden.skeleton(part)
        if part == plain or not plain.isascii():
            continue
        twins = {
            other.decode("utf-8", "replace")
            for whole in subject.paths or ()
            for other in whole.split(b"/")
        }
        if plain in twins:
            text = f"“{part}” looks like the other name “{plain}”"
            notes.add("warning", "look-alike", path, text, acknowledge=True)


def _content(content: Content, notes: Notebook, seen: Counter[str]) -> None:
    code = not content.path.lower().endswith(tuple(end.encode() for end in _PROSE))
    bad_bytes = found = 0
    foreign: defaultdict[str, int] = defaultdict(int)
    for number, raw in content.new_lines():
        if _GAP.search(raw):
            notes.add(
                "warning", "out of sight", content.shown,
                "text stands after a long run of blanks, out of sight to the right",
                line=number, acknowledge=True,
            )  # fmt: skip
        if not _ODD.search(raw):
            continue
        text = hidden.decode(raw.removesuffix(b"\r"))
        if len(text) > _LONG or found > _MANY:
            found += 1
            notes.add(
                "warning", "not looked at", content.shown,
                "too long, or too many findings before it, to look at each character",
                line=number, acknowledge=True,
            )  # fmt: skip
            continue
        marks = hidden.marks(text, at_start=number == 1)
        marks += hidden.look_alike_letters(text, code=code)
        bad_bytes += sum(mark.kind == "byte" for mark in marks)
        found += _line(content.shown, number, marks, notes, seen)
        if code and not text.isascii():
            for word in re.findall(r"\w+", text):
                plain = hidden.skeleton(word)
                if not word.isascii() and plain.isascii() and len(word) > 2:
                    foreign.setdefault(word, number)
    _shadows(content, foreign, notes)
    if bad_bytes:
        notes.add(
            "note", "not UTF-8", content.shown,
            f"{bad_bytes:,} bytes of new lines are not UTF-8 and are shown by their value",
        )  # fmt: skip


def _line(
    shown: str, number: int, marks: list[hidden.Mark], notes: Notebook, seen: Counter[str]
) -> int:
    """One finding for each kind of character in the line, with its count."""
    kinds: defaultdict[tuple[str, bool], list[hidden.Mark]] = defaultdict(list)
    for mark in marks:
        if mark.kind == "byte":
            continue
        seen[mark.name] += 1
        kinds[mark.kind, mark.loud].append(mark)
    for (kind, loud), group in kinds.items():
        names = list(dict.fromkeys(mark.name for mark in group))
        more = f" and {len(names) - 3} more kinds" if len(names) > 3 else ""
        count = f"{len(group):,} characters: " if len(group) > 1 else ""
        text = f"{count}{', '.join(names[:3])}{more}"
        if loud:
            notes.add("warning", kind, shown, text, line=number, acknowledge=True)
        else:
            notes.add("note", kind, shown, f"{text} (at home here)", line=number)
    return sum(loud for _, loud in kinds)


def _shadows(content: Content, foreign: dict[str, int], notes: Notebook) -> None:
    """Words wholly in another script that read like a Latin word of the same file."""
    if not foreign:
        return
    words = set(re.findall(r"\w+", hidden.decode(content.data)))
    for word, number in foreign.items():
        plain = hidden.skeleton(word)
        if plain in words and not any(c.isascii() and c.isalpha() for c in word):
            notes.add(
                "warning", "look-alike", content.shown,
                f"“{word}” is not “{plain}”, which the file also has",
                line=number, acknowledge=True,
            )  # fmt: skip
