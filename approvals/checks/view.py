"""Bytes against view: the lines on the page, applied to the old bytes, give the new bytes.

The page and this check read the patch with the same reader. Every changed text file is rebuilt from
its old content and the lines shown, and compared with what is stored and would be published. A
difference blocks: a person would have approved other lines than those that go out.
"""

from __future__ import annotations

from approvals.changes import GITLINK, Status
from approvals.checks.base import CheckResult, Notebook, Subject
from approvals.diff import Diff, DiffBroken
from approvals.patch import PatchRefused, apply

NAME, VERSION = "view", "portal 1"


def check(subject: Subject) -> CheckResult:
    notes = Notebook(NAME, VERSION, subject)
    same = without = 0
    if subject.patch is None:
        notes.add("blocking", "no patch", "", "the candidate has no patch to show")
        return notes.result()
    try:
        diff = Diff(subject.changes, subject.patch())
    except (DiffBroken, PatchRefused) as refusal:
        notes.add("blocking", "not shown", "", str(refusal))
        return notes.result()
    for index, change in enumerate(subject.changes):
        if change.binary or GITLINK in (change.old_mode, change.new_mode):
            without += 1
            continue
        try:
            files = diff.files(index)
            old, new = subject.old(change), subject.new(change)
            if change.status is Status.TYPE_CHANGED:
                shown = apply(files[0], old) == b"" and apply(files[1], b"") == new
            else:
                shown = apply(files[0], old) == new
        except (DiffBroken, PatchRefused) as refusal:
            notes.add("blocking", "not shown", change.path, str(refusal))
            continue
        if shown:
            same += 1
        else:
            notes.add("blocking", "not what is stored", change.path,
                      "the lines shown do not give the bytes that are stored")  # fmt: skip
    notes.evidence |= {"same": same, "without_lines": without, "changes": len(subject.changes)}
    return notes.result()
