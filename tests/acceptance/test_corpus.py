"""The handed corpus of hostile candidates, judged by what a reviewer would see.

The corpus lies outside the repository: in the directory IMPRIMATUR_ACCEPTANCE names, else in
`../shared/acceptance` beside it. Without it these tests are skipped. It is built anew into a
temporary directory, so that nothing in it that looks like a secret is ever stored.

Every case goes the way a candidate goes: taken as a tree (or read as a patch, or offered in the
tray), listed, shown, checked. The tags of the case then say what must be true. Some tags are for
pages, mails and downloads; those are tested with the pages.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from approvals import checks, tree
from approvals.changes import NO_MODE, Change, Status, spell, unspell
from approvals.checks import CheckResult, Subject
from approvals.checks.secrets import masks_from
from approvals.diff import UNIFIED, Diff, HunkRow, Line, Options, Segment, SplitRow, segments_of
from approvals.patch import FilePatch, PatchRefused, read_patch

_HERE = Path(__file__).resolve().parents[2]
CORPUS = Path(os.environ.get("IMPRIMATUR_ACCEPTANCE", _HERE.parent / "shared" / "acceptance"))
CORPUS /= "corpus"
# What these modules do not judge, and where it is judged.
ELSEWHERE = {
    "schema": "no contract names a schema yet",
    "restricted-fields": "no contract names restricted fields yet",
    "download-header": "the pages' tests",
}
QUIET = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}


def _cases() -> list[dict[str, Any]]:
    return [
        case
        for manifest in sorted(CORPUS.glob("manifest.*.json"))
        for case in json.loads(manifest.read_text())["cases"]
    ]


CASES = _cases()
pytestmark = pytest.mark.skipif(
    not CASES, reason=f"no corpus at {CORPUS}; set IMPRIMATUR_ACCEPTANCE to its directory"
)


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"corpus_{name}", CORPUS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus, written anew."""
    out = tmp_path_factory.mktemp("corpus")
    subprocess.run(
        [sys.executable, "-B", CORPUS / "make_corpus.py", "--out", out],
        check=True, capture_output=True, env=QUIET,
    )  # fmt: skip
    return out


@pytest.fixture(scope="module")
def oracle() -> ModuleType:
    return _load("oracle")


@dataclass
class Seen:
    """What came of one case."""

    case: dict[str, Any]
    refused: str = ""
    subject: Subject | None = None
    diff: Diff | None = None
    results: list[CheckResult] = field(default_factory=list)
    expected_paths: list[bytes] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    @property
    def findings(self) -> list[checks.Finding]:
        return [finding for result in self.results for finding in result.findings]

    def severities(self) -> set[str]:
        return {finding.severity for finding in self.findings}

    def shown(self) -> str:
        """All text a reviewer's page would hold of it."""
        parts = [self.refused, *self.texts]
        if self.diff is not None:
            parts += _shown_diff(self.diff)
        for finding in self.findings:
            parts += [finding.path, _flat(segments_of(finding.text))]
        parts += [json.dumps(dict(result.evidence)) for result in self.results]
        return "\n".join(parts)


def _flat(segments: tuple[Segment, ...]) -> str:
    return "".join(f"{segment.text} {segment.title}" for segment in segments)


def _shown_diff(diff: Diff) -> Iterator[str]:
    for head in diff.heads(0, 200):
        yield _flat(head.path) + _flat(head.old_path) + " ".join(head.words)
        for options in (UNIFIED, Options(mode="split"), Options(blanks=False)):
            view = diff.view(head.index, options)
            size = 0
            for row in view.rows:
                text = "".join(_row(row))
                size += len(text)
                yield text
            assert size < 2_000_000, "a page larger than two megabytes"


def _row(row: HunkRow | Line | SplitRow) -> Iterator[str]:
    if isinstance(row, HunkRow):
        yield _flat(row.section)
    elif isinstance(row, Line):
        yield from (_flat(stretch.segments) for stretch in row.stretches)
        yield row.note
    else:
        for line in (row.old, row.new):
            yield from _row(line) if line is not None else ()


# --- the three ways in ------------------------------------------------------------------------


def _git(where: Path, *arguments: str, data: bytes = b"") -> bytes:
    return subprocess.run(
        ["git", "-C", where, *arguments], input=data, env=QUIET, capture_output=True, check=True
    ).stdout


def _from_git(case: dict[str, Any], built: Path, folder: Path) -> Seen:
    """A candidate whose base and head are two commits; taken once more from plain files."""
    seen = Seen(case)
    bare = folder / "bare.git"
    bare.mkdir()
    _git(bare, "init", "-q", "--bare", ".")
    stream = next(f["path"] for f in case["files"] if f["path"].endswith(".fi"))
    _git(bare, "fast-import", "--quiet", "--done", data=(built / stream).read_bytes())
    base, head = (_git(bare, "rev-parse", name).decode().strip() for name in ("base", "head"))
    changes = tree.list_changes(bare, base, head)
    seen.expected_paths = _raw_paths(bare, base, head)
    patch = tree.patch(bare, base, head)
    blobs = {
        blob: tree.read_blob(bare, blob)
        for change in changes
        for mode, blob in (
            (change.old_mode, change.old_blob), (change.new_mode, change.new_blob)
        )
        if mode not in (NO_MODE, "160000")
    }  # fmt: skip
    seen.subject = Subject(
        digest="0" * 64,
        changes=changes,
        read=blobs.__getitem__,
        paths=tuple(entry.path for entry in tree.list_tree(bare, head)),
        patch=lambda: patch,
    )
    _check(seen)
    secrets = next(result for result in seen.results if result.check == "secrets")
    seen.diff = Diff(changes, patch, masks=masks_from(secrets.evidence))
    log = _git(bare, "log", "-1", "--format=%an %ae %ad%n%B", "head")
    seen.texts.append(_flat(segments_of(log.decode("utf-8", "surrogateescape"))))
    try:
        tree.materialise(bare, head, folder / "work")
    except tree.MaterialiseRefused as refusal:
        seen.texts.append(str(refusal))
    else:
        taken = tree.build_tree(folder / "work", bare, base)
        links = any("160000" in (change.old_mode, change.new_mode) for change in changes)
        assert links or taken.tree == tree.tree_of(bare, head), "taken as another tree"
        assert links or taken.changes == changes
    return seen


def _raw_paths(bare: Path, base: str, head: str) -> list[bytes]:
    """What git itself lists, read here a second time and more simply."""
    fields = _git(bare, "diff", "--raw", "-z", "--no-renames", base, head).split(b"\0")
    return fields[1::2]


def _from_patch(case: dict[str, Any], built: Path) -> Seen:
    seen = Seen(case)
    path = next(f["path"] for f in case["files"] if f["path"].endswith(".patch"))
    data = (built / path).read_bytes()
    try:
        files = read_patch(data)
    except PatchRefused as refusal:
        seen.refused = str(refusal)
        return seen
    seen.expected_paths = [file.path for file in files]
    if data.startswith(b"diff --git "):
        seen.diff = Diff([_as_change(file) for file in files], data)
    return seen


def _as_change(file: FilePatch) -> Change:
    status = Status.MODIFIED
    if file.old_path is None:
        status = Status.ADDED
    elif file.new_path is None:
        status = Status.DELETED
    return Change(
        path=file.path, old_path=file.old_path if file.renamed else None, status=status,
        old_mode=file.old_mode or "100644", new_mode=file.new_mode or "100644",
        old_blob=file.old_blob, new_blob=file.new_blob, similarity=None, binary=False,
        added=file.added, removed=file.removed, old_size=None, new_size=None,
    )  # fmt: skip


def _from_tray(case: dict[str, Any], built: Path) -> Seen:
    """Artifacts, archives and logs, as files of the output tray."""
    seen = Seen(case)
    files = {
        spell(Path(f["path"]).name.encode()): (built / f["path"]).read_bytes()
        for f in case["files"]
        if not f["path"].endswith(".base.gz")  # the old side of a case, not part of it
    }
    seen.subject = Subject(
        digest="0" * 64,
        changes=(),
        read=lambda blob: b"",
        tray={name: (lambda data=data: data) for name, data in files.items()},  # type: ignore[misc]
        max_bytes=50_000_000,
        patch=lambda: b"",
    )
    _check(seen)
    for name, data in files.items():
        seen.texts.append(_flat(segments_of(unspell(name).decode("utf-8", "surrogateescape"))))
        for line in data[:200_000].split(b"\n")[:2_000]:
            seen.texts.append(_flat(segments_of(line.decode("utf-8", "surrogateescape"))))
    return seen


def _check(seen: Seen) -> None:
    assert seen.subject is not None
    for check in checks.ALL.values():
        first, again = check(seen.subject), check(seen.subject)
        assert (first.findings, first.outcome) == (again.findings, again.outcome)
        seen.results.append(first)


# --- what must be true --------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case: dict[str, Any], built: Path, oracle: ModuleType, tmp_path: Path) -> None:
    if case["kind"] == "git":
        seen = _from_git(case, built, tmp_path)
    elif case["kind"] == "patch":
        seen = _from_patch(case, built)
    else:
        seen = _from_tray(case, built)
    tags = set(case["tags"])
    judged_here = case["class"] not in ELSEWHERE

    assert not any(result.outcome == "error" for result in seen.results)
    if seen.diff is not None and not seen.refused:
        listed = {path for c in seen.diff.changes for path in (c.path, c.before)}
        assert listed == set(seen.expected_paths), "a path that git lists is missing, or another"
        _counts_are_right(seen.diff)
    if tags & {"faithful", "exact-bytes", "same-parse", "pass"} and case["kind"] == "git":
        view = next(result for result in seen.results if result.check == "view")
        assert view.outcome == "passed", view.findings
    if "escape-controls" in tags:
        shown = seen.shown()
        found = oracle.judge({"tags": ["escape-controls"]}, "text", shown.encode(), case["id"])
        assert not found
    if judged_here and "refuse" in tags:
        assert seen.refused or "blocking" in seen.severities()
    if judged_here and "warn" in tags:
        assert seen.severities() & {"warning", "blocking"}
    if judged_here and "no-autopublish" in tags:
        assert any(each.acknowledge or each.severity == "blocking" for each in seen.findings)
    if "pass" in tags:
        assert not seen.refused
        assert seen.severities() <= {"note"}, seen.findings
    if judged_here and "redact" in tags:
        shown = seen.shown()
        for value in _values(case, built):
            assert value not in shown, "a value is shown"


def _counts_are_right(diff: Diff) -> None:
    """The totals of the list are the sums of what the files say, and nothing is cut in silence."""
    totals = diff.totals()
    heads = diff.heads()
    assert totals.files == len(heads)
    assert totals.added == sum(head.added for head in heads)
    for head in heads[:50]:
        rows = 0
        at: int | None = 0
        while at is not None:
            view = diff.view(head.index, start=at, highlight=False)
            rows += len(view.rows)
            at = view.next_start
            if view.total > 25_000:
                return
        assert rows == view.total == head.lines + head.hunks


def _values(case: dict[str, Any], built: Path) -> list[str]:
    """The secret parts of the added lines: every long run that no ordinary word has."""
    path = next(f["path"] for f in case["files"] if f["path"].endswith(".patch"))
    added = [
        line[1:].decode()
        for line in (built / path).read_bytes().split(b"\n")
        if line.startswith(b"+") and not line.startswith(b"+++")
    ]
    values = []
    for line in added:
        for part in line.replace("=", " ", 1).replace(":AA", " AA").replace("@", " ").split():
            tail = part.rpartition("/")[2] if "://" in part else part
            longest = max(tail.replace(";", ":").split(":"), key=len)
            if len(longest) >= 20 and any(char.isdigit() for char in longest):
                values.append(longest[-16:])
    assert values
    return values


def test_the_corpus_is_as_it_says(built: Path) -> None:
    """The oracle finds what it should, so that its silence means something."""
    done = subprocess.run(
        [sys.executable, "-B", CORPUS / "oracle.py", "--selftest"],
        check=False, capture_output=True, env=QUIET,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert len(CASES) >= 100


def test_what_is_judged_elsewhere_is_named() -> None:
    """A class left out here must exist, so that the list cannot grow stale."""
    assert set(ELSEWHERE) <= {case["class"] for case in CASES}
