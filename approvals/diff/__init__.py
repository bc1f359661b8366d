"""What a person sees of a candidate: every change, and its lines when asked for.

`Diff` pairs the list of changes (from git's raw diff, so it is complete) with the patch. The list
is ready at once; a file's rows are made when its part of the page is asked for. Everything handed
out is plain data, split into segments with a kind; templates escape it. No HTML is made here.

* A path, a line or a section heading is a tuple of `Segment`s. A hidden character is a segment of
  its own with its code point as text, so nothing raw reaches a page.
* What is cut is counted: long lines (`cut` segments, `Diff.whole_line` has the rest), long files
  (`FileView.next_start`), unchanged lines between hunks (`HunkRow.skipped`).
* The page and the check `view` read the same lines: `patch.apply` of them gives the stored bytes.
* Attributes and file names of the candidate never hide a change; whitespace is only left away
  where the reader asked for it, and then the lines left away are counted.
"""

from __future__ import annotations

from approvals.diff.candidate import PAGE_ROWS, UNIFIED, Diff
from approvals.diff.errors import DiffBroken, NoSuchLines
from approvals.diff.segments import LINE_CHARS, path_segments, segments_of
from approvals.diff.shown import (
    Around,
    FileHead,
    FileView,
    HunkRow,
    Line,
    LinePart,
    Mask,
    Masks,
    Mode,
    Moved,
    Options,
    Row,
    Segment,
    SplitRow,
    Stretch,
    Totals,
)
from approvals.diff.words import change_words

__all__ = [
    "LINE_CHARS", "PAGE_ROWS", "UNIFIED", "Around", "Diff", "DiffBroken", "FileHead", "FileView",
    "HunkRow", "Line", "LinePart", "Mask", "Masks", "Mode", "Moved", "NoSuchLines", "Options",
    "Row", "Segment", "SplitRow", "Stretch", "Totals", "change_words", "path_segments",
    "segments_of",
]  # fmt: skip
