"""Secrets: none in a new line, a new name or a tray file.

Two sources judge together: the kingfisher library (in this process, offline, one scanner for each
process) and the shapes of `shapes.py`. Values that the portal knows (`Subject.known`) are looked
for by their bytes, in every usual spelling. A finding is blocking, and names kind and place. A
value that the old content already had is a note, and so is one that is plainly a placeholder.
Comments that tell scanners to look away are not obeyed.

No value is ever part of a finding, the evidence or an error. The evidence holds the places
(`masks`), so that the page can leave the values out too.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kingfisher_sdk

from approvals import hidden
from approvals.changes import Status
from approvals.checks import shapes
from approvals.checks.base import CheckResult, Content, Notebook, Subject
from approvals.diff import Mask
from portal.redact import forms

NAME = "secrets"
VERSION = f"portal 1, kingfisher {version('kingfisher-secret-scanner')}"
SCAN_SECONDS = 20.0
KNOWN = "known value"
_SHORTEST_KNOWN = 6
# Of one file; with more, none of its lines is shown.
_MOST_MASKS = 2_000


@dataclass(frozen=True, slots=True)
class _Secret:
    """A value and where it stands; never handed out of this module."""

    rule: str
    what: str
    value: bytes
    start: int
    end: int
    line: int
    last_line: int

    def __repr__(self) -> str:
        return f"<{self.rule} at line {self.line}>"


class _NotScanned(Exception):
    """The library gave up on a content; what it holds is not known."""


_BUILDING = threading.Lock()
_built: list[kingfisher_sdk.Scanner] = []


def prepare(cache: Path | None = None) -> None:
    """Build the scanner, if this process has none yet. The first time takes seconds.

    `cache` is a private directory in which the compiled rules are kept between processes; without
    one nothing is kept.
    """
    with _BUILDING:
        if _built:
            return
        if cache is not None:
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        rules = kingfisher_sdk.Rules(
            cache=cache is not None, cache_dir=str(cache) if cache is not None else None
        )
        _built.append(kingfisher_sdk.Scanner(rules))


def _scanner() -> kingfisher_sdk.Scanner:
    prepare()
    return _built[0]


def check(subject: Subject) -> CheckResult:
    notes = Notebook(NAME, VERSION, subject)
    masks: dict[str, list[list[int]]] = {}
    scanned = 0
    for content in subject.contents():
        scanned += len(content.data)
        _content(content, subject.known, notes, masks)
    for change in subject.changes:
        if change.status is Status.DELETED:
            old = subject.old(change)
            found = _careful(old, change.path, subject.known, notes, change.name)
            _mask(change.old_blob, old, found, masks)
        for path in {change.path, change.before}:
            _name(change.name, path, subject.known, notes)
    notes.evidence |= {
        "bytes": scanned,
        "known_values": len(subject.known),
        "masks": {blob: sorted(places) for blob, places in sorted(masks.items())},
    }
    return notes.result()


def masks_from(evidence: Mapping[str, Any]) -> dict[str, tuple[Mask, ...]]:
    """What the page must not show, from the evidence of this check, for `diff.Diff`."""
    return {
        blob: tuple(Mask(*place) for place in places)
        for blob, places in evidence.get("masks", {}).items()
    }


def _content(
    content: Content,
    known: Mapping[str, str],
    notes: Notebook,
    masks: dict[str, list[list[int]]],
) -> None:
    found = _careful(content.data, content.path, known, notes, content.shown)
    before: Sequence[_Secret] = ()
    if content.before is not None and content.change is not None:
        before = _careful(content.before, content.change.before, known, notes, content.shown)
        _mask(content.change.old_blob, content.before, before, masks)
    had = {secret.value for secret in before}
    blob = content.change.new_blob if content.change is not None else content.shown
    _mask(blob, content.data, found, masks)
    for secret in found:
        length = f"{len(secret.value):,} characters"
        if secret.rule != KNOWN and shapes.is_placeholder(secret.value):
            notes.add(
                "note", secret.rule, content.shown, f"the shape of {secret.what}, a placeholder",
                line=secret.line,
            )  # fmt: skip
        elif secret.value in had:
            notes.add(
                "note", secret.rule, content.shown,
                f"{secret.what}, {length}, which the source already has", line=secret.line,
            )  # fmt: skip
        else:
            notes.add(
                "blocking", secret.rule, content.shown,
                f"{secret.what}, {length}; the value is not shown", line=secret.line,
            )  # fmt: skip


def _name(shown: str, path: bytes, known: Mapping[str, str], notes: Notebook) -> None:
    for secret in _careful(path, b"", known, notes, shown):
        if secret.rule == KNOWN or not shapes.is_placeholder(secret.value):
            # The path holds the value, so it cannot be told as the place.
            notes.add("blocking", secret.rule, "", f"{secret.what} in the name of a file")
            return


def _careful(
    data: bytes, path: bytes, known: Mapping[str, str], notes: Notebook, shown: str
) -> Sequence[_Secret]:
    """What `_find` finds; where the library gave up, that blocks."""
    try:
        return _find(data, path, known)
    except _NotScanned:
        notes.add("blocking", "not scanned", shown, "could not be scanned in its time")
        return ()


def _find(data: bytes, path: bytes, known: Mapping[str, str]) -> list[_Secret]:
    """Every secret in `data`, each place once, the longest name for it first."""
    lines = _Lines(data)
    found = [*_library(data), *_shapes(data, path, lines), *_known(data, known, lines)]
    found.sort(key=lambda secret: (secret.start, -secret.end))
    out: list[_Secret] = []
    for secret in found:
        if not any(other.start < secret.end and secret.start < other.end for other in out[-3:]):
            out.append(secret)
    return out


class _Lines:
    """Line numbers of offsets, without counting from the start each time."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._ends: list[int] | None = None

    def number(self, offset: int) -> int:
        if self._ends is None:
            self._ends = [match.start() for match in re.finditer(rb"\n", self._data)]
        return bisect_left(self._ends, offset) + 1


def _library(data: bytes) -> Iterator[_Secret]:
    try:
        findings = _scanner().scan(data, timeout=SCAN_SECONDS)
    except (TimeoutError, RuntimeError, ValueError) as error:
        # The library's message is not repeated: it could quote what it stumbled over.
        raise _NotScanned from error
    for finding in findings:
        if not finding.visible:
            continue
        place = finding.location
        kind = finding.rule_id.replace("/", ".").rpartition(".")[2]
        yield _Secret(
            rule=finding.rule_id,
            what=f"a secret of the kind {kind}",
            value=finding.secret.encode("utf-8", "surrogateescape"),
            start=place["start_offset"],
            end=place["end_offset"],
            line=place["line"],
            last_line=place["end_line"],
        )


def _shapes(data: bytes, path: bytes, lines: _Lines) -> Iterator[_Secret]:
    for found in shapes.shapes_in(data, path):
        value, line = data[found.start : found.end], lines.number(found.start)
        yield _Secret(found.rule, found.what, value, found.start, found.end, line, line)


def _known(data: bytes, known: Mapping[str, str], lines: _Lines) -> Iterator[_Secret]:
    for name, value in known.items():
        if len(value) < _SHORTEST_KNOWN:
            continue
        for form in {form.encode() for form in forms(value)}:
            at = data.find(form)
            while at >= 0:
                line, end = lines.number(at), at + len(form)
                yield _Secret(KNOWN, f"the value of “{name}”", form, at, end, line, line)
                at = data.find(form, end)


def _mask(
    blob: str, data: bytes, found: Sequence[_Secret], masks: dict[str, list[list[int]]]
) -> None:
    """Note the places of what was found, as characters of lines as the page counts them."""
    if not found:
        return
    if len(found) > _MOST_MASKS:
        masks[blob] = [[0, 0, 0]]
        return
    lines = data.split(b"\n")
    places = {tuple(place) for place in masks.get(blob, ())}
    for secret in found:
        exact = data[secret.start : secret.end] == secret.value
        if exact and secret.line == secret.last_line and secret.line <= len(lines):
            before = data.rfind(b"\n", 0, secret.start) + 1
            low = len(hidden.decode(data[before : secret.start]))
            places.add((secret.line, low, low + len(hidden.decode(secret.value))))
            continue
        # Over several lines, or decoded from something else: the whole lines are left out.
        for number in range(secret.line, min(secret.last_line, len(lines)) + 1):
            places.add((number, 0, max(1, len(hidden.decode(lines[number - 1])))))
    masks[blob] = [list(place) for place in places]
