"""Tests that were skipped, deleted or emptied. Part of `control_files`."""

from __future__ import annotations

import re

from approvals.checks.base import Content, Notebook

_TEST_PATH = re.compile(
    r"(?:.*/)?(?:tests?|specs?|__tests__|testing)/.+|(?:.*/)?(?:test_.+|.+_test|.+_spec)\.\w+|"
    r"(?:.*/)?.+[.-](?:test|spec)\.\w+|(?:.*/)?.+Tests?\.(?:java|kt|cs|scala|swift|php)"
)
_SKIPS = re.compile(
    r"@?pytest\.mark\.(?:skip|skipif|xfail)|pytest\.(?:skip|xfail|importorskip)\(|"
    r"@?unittest\.(?:skip|expectedFailure)|\bself\.skipTest\(|raise\s+(?:unittest\.)?SkipTest|"
    r"@(?:Ignore|Disabled|Skip)\b|\b(?:it|test|describe|context|suite)\.(?:skip|only|todo|failing)\b|"
    r"\bx(?:it|describe|test|context)\s*\(|\bf(?:it|describe)\s*\(|\bt\.Skip(?:Now|f)?\(|#\[ignore|"
    r"\bassert\s+(?:True|1)\s*(?:$|#|,)|\bexpect\(true\)\.toBe\(true\)|collect_ignore|__test__\s*=\s*False|"
    r"markTestSkipped|\bpending\s+[\"']|GTEST_SKIP|DISABLED_"
)
_ASSERTS = re.compile(rb"\bassert\w*\b|\bexpect\s*\(|\bshould\b|\brequire\.\w+\(|\braises\b")


def is_test(path: bytes) -> bool:
    return bool(_TEST_PATH.fullmatch(path.decode("utf-8", "replace")))


def tests(content: Content, changed: set[bytes], notes: Notebook) -> None:
    if not (is_test(content.path) or content.name == "conftest.py"):
        return
    for number, line in content.new_text():
        if _SKIPS.search(line):
            notes.warn("test weakened", content.shown,
                  "a new line skips a test or makes it pass", number)  # fmt: skip
    if content.before is not None:
        lost = len(_ASSERTS.findall(content.before)) - len(_ASSERTS.findall(content.data))
        if lost > 0:
            notes.warn("test weakened", content.shown, f"{lost:,} assertions are gone")
