"""What a check is given and what it gives back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from approvals.changes import GITLINK, NO_MODE, SYMLINK, Change, LeftOut, Status, spell, unspell

Severity = Literal["note", "warning", "blocking"]
Outcome = Literal["passed", "warned", "failed", "error"]

# A receipt is read by people and kept for years: this many findings are listed, the rest counted.
LISTED = 200
# Of one line that is searched for words. No honest control file has longer lines.
READ_CHARS = 10_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a check saw.

    `path` is spelled (`changes.spell`), `line` is of the new content. `rule` is a stable word.
    `text` never holds a secret. With `acknowledge` a person must say that they saw it before
    anything is published; a `blocking` finding cannot be approved at all.
    """

    path: str
    line: int | None
    text: str
    severity: Severity
    rule: str
    acknowledge: bool = False

    def to_data(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "line": self.line,
            "text": self.text,
            "severity": self.severity,
            "rule": self.rule,
            "acknowledge": self.acknowledge,
        }


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The record of one check of one candidate, before it becomes a receipt."""

    check: str
    version: str
    input_digest: str
    outcome: Outcome
    findings: tuple[Finding, ...]
    evidence: Mapping[str, Any]
    duration_ms: int


@dataclass(frozen=True)
class Subject:
    """A candidate as the checks see it: plain data, and contents when asked for.

    `digest` names the candidate and goes on every receipt. `read` gives a blob of the repository,
    `tray` the files of the output tray by their spelled path. `paths` are all paths of the
    candidate's tree (only the changed ones if not given), `patch` the patch that the page shows.
    `known` are values that must not be in the candidate, by a name that may be told.
    """

    digest: str
    changes: tuple[Change, ...]
    read: Callable[[str], bytes]
    tray: Mapping[str, Callable[[], bytes]] = field(default_factory=dict)
    allowed_paths: tuple[str, ...] = ("**",)
    max_files: int = 200
    max_bytes: int = 5_000_000
    left_out: tuple[LeftOut, ...] = ()
    paths: tuple[bytes, ...] | None = None
    patch: Callable[[], bytes] | None = None
    known: Mapping[str, str] = field(default_factory=dict)

    def old(self, change: Change) -> bytes:
        """The content before, empty where there was none."""
        if change.old_mode in (NO_MODE, GITLINK):
            return b""
        return self.read(change.old_blob)

    def new(self, change: Change) -> bytes:
        """The content now, empty where there is none."""
        if change.new_mode in (NO_MODE, GITLINK):
            return b""
        return self.read(change.new_blob)

    def contents(self) -> Iterator[Content]:
        """Every new content of the candidate: changed files, then the tray."""
        for change in self.changes:
            if change.status is not Status.DELETED and change.new_mode != GITLINK:
                yield Content(
                    path=change.path,
                    shown=change.name,
                    data=self.new(change),
                    before=self.old(change) if change.old_mode != NO_MODE else None,
                    change=change,
                )
        for path, read in self.tray.items():
            yield Content(unspell(path), f"output/{path}", read(), None, None)


@dataclass(frozen=True, slots=True)
class Content:
    """One new content. `before` is None where the file is new; `change` is None for the tray."""

    path: bytes
    shown: str
    data: bytes
    before: bytes | None
    change: Change | None

    @property
    def is_link(self) -> bool:
        return self.change is not None and self.change.new_mode == SYMLINK

    @property
    def name(self) -> str:
        """The last part of the path, lower case."""
        return self.path.rpartition(b"/")[2].decode("utf-8", "replace").casefold()

    def new_text(self) -> Iterator[tuple[int, str]]:
        """`new_lines` as text for looking at words: bytes that are not UTF-8 are replaced, and a
        line is cut at `READ_CHARS`, so that no pattern costs more than the content's length."""
        for number, line in self.new_lines():
            yield number, line[:READ_CHARS].decode("utf-8", "replace")

    def new_lines(self) -> Iterator[tuple[int, bytes]]:
        """Lines with their numbers that the old content does not have, in any place.

        Judged line by line: moving a line is no new line, changing one byte of it makes it new.
        """
        known = set(self.before.split(b"\n")) if self.before else set()
        for number, line in enumerate(self.data.split(b"\n"), 1):
            if line not in known:
                yield number, line


def is_text(data: bytes) -> bool:
    """Git's own rule: a NUL in the first 8,000 bytes makes a file binary."""
    return b"\0" not in data[:8000]


class Notebook:
    """Gathers the findings of one check and turns them into its result."""

    def __init__(self, check: str, version: str, subject: Subject) -> None:
        self.check, self.version, self.subject = check, version, subject
        self.evidence: dict[str, Any] = {}
        self._findings: list[Finding] = []
        self._counts = {"note": 0, "warning": 0, "blocking": 0}
        self._started = time.monotonic()

    def add(
        self,
        severity: Severity,
        rule: str,
        path: str | bytes,
        text: str,
        *,
        line: int | None = None,
        acknowledge: bool = False,
    ) -> None:
        shown = spell(path) if isinstance(path, bytes) else path
        self._counts[severity] += 1
        if self._counts[severity] <= LISTED:
            self._findings.append(Finding(shown, line, text, severity, rule, acknowledge))

    def warn(self, rule: str, path: str, text: str, line: int | None = None) -> None:
        """A warning that a person must say they saw."""
        self.add("warning", rule, path, text, line=line, acknowledge=True)

    def result(self) -> CheckResult:
        """Failed with a blocking finding, warned with a warning, passed otherwise."""
        order = {"blocking": 0, "warning": 1, "note": 2}
        findings = sorted(
            self._findings, key=lambda f: (order[f.severity], f.path, f.line or 0, f.rule, f.text)
        )
        outcome: Outcome = "passed"
        if self._counts["warning"]:
            outcome = "warned"
        if self._counts["blocking"]:
            outcome = "failed"
        return CheckResult(
            check=self.check,
            version=self.version,
            input_digest=self.subject.digest,
            outcome=outcome,
            findings=tuple(findings),
            evidence={
                **self.evidence,
                "counts": dict(self._counts),
                "not_listed": sum(self._counts.values()) - len(findings),
                "acknowledge": any(each.acknowledge for each in findings),
            },
            duration_ms=int((time.monotonic() - self._started) * 1000),
        )
