"""What is handed out of a diff: plain data that templates escape.

A path, a line or a section heading is a tuple of `Segment`s. A hidden character is a segment of
its own with its code point as text, so nothing raw reaches a page. No HTML is made here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from approvals.changes import Change, Status

SegmentKind = Literal[
    "", "k", "st", "n", "cm", "fn", "hid", "byte", "cr", "gap", "rtl", "cut", "mask",
]  # fmt: skip
Mode = Literal["unified", "split"]
Span = tuple[int, int]
Colours = list[tuple[int, int, SegmentKind]]


@dataclass(frozen=True, slots=True)
class Mask:
    """Characters `start` to `end` of one line of a blob, not to be shown. Line 0 is every line."""

    line: int
    start: int
    end: int


Masks = Mapping[str, Sequence[Mask]]  # by the name of the blob


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of text of one kind.

    `hid` and `byte` stand for characters that cannot be seen: `text` is the label to draw and
    `title` the full name. `cr` is a carriage return at a line's end, `gap` a long run of blanks,
    `rtl` right-to-left text to be isolated, `cut` the words that say how much is not shown, `mask`
    stands for a value that a check took for a secret. The rest are colours of syntax, or plain.
    """

    text: str
    kind: SegmentKind = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Segments that stand together; `changed` ones are the words that differ within a line."""

    segments: tuple[Segment, ...]
    changed: bool = False


@dataclass(frozen=True, slots=True)
class Moved:
    """The other end of a move: number of the file in the list of changes, and the line."""

    index: int
    number: int


@dataclass(frozen=True, slots=True)
class HunkRow:
    """The heading of a hunk: where it is, and how many unchanged lines before it are not shown."""

    number: int
    old_range: str
    new_range: str
    section: tuple[Segment, ...]
    skipped: int
    kind: Literal["hunk"] = "hunk"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of one side (or of both, where it is unchanged)."""

    kind: Literal["ctx", "add", "rem"]
    old_no: int | None
    new_no: int | None
    stretches: tuple[Stretch, ...]
    sign: str
    open_end: bool = False  # no line feed at the end of the file
    cut: int = 0  # characters not shown
    note: str = ""
    blanks_only: bool = False  # drawn as unchanged: only its blanks did
    moved: Moved | None = None  # the same line, byte for byte, is the other side there

    @property
    def side(self) -> str:
        """The side and line number that `Diff.whole_line` takes."""
        return f"old-{self.old_no}" if self.kind == "rem" else f"new-{self.new_no}"


@dataclass(frozen=True, slots=True)
class SplitRow:
    """Old and new side by side; a side is None where there is nothing opposite."""

    old: Line | None
    new: Line | None
    kind: Literal["pair"] = "pair"


Row = HunkRow | Line | SplitRow


@dataclass(frozen=True, slots=True)
class FileHead:
    """One changed path, before any line of it is looked at.

    `words` say in plain words what happened to it. `hidden` counts characters that cannot be seen
    and are not at home where they stand; `quiet` those that are. `lines` counts all lines of all
    hunks. `cut` says why the file's lines are not all on the first page, or is empty.
    """

    index: int
    change: Change
    path: tuple[Segment, ...]
    old_path: tuple[Segment, ...]
    words: tuple[str, ...]
    added: int
    removed: int
    hidden: int
    quiet: int
    lines: int
    hunks: int
    cut: str

    @property
    def name(self) -> str:
        return self.change.name

    @property
    def lasting(self) -> bool:
        """The file was there before and is there now, with lines that did not change."""
        return self.change.status in (Status.MODIFIED, Status.RENAMED) and self.hunks > 0

    @property
    def empty(self) -> bool:
        """There is no line to show: a mode, a rename, a binary file."""
        return self.lines == 0


@dataclass(frozen=True, slots=True)
class Options:
    """How a reader wants a file drawn.

    Without `blanks`, lines that differ in blanks only are drawn as unchanged. `whole` draws the
    unchanged lines as well.
    """

    mode: Mode = "unified"
    blanks: bool = True
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Around:
    """Unchanged lines beside a hunk that were asked for, and how many are still left away there.

    They stand before hunk `number`, nearest first, or after the last one, where there is no `hunk`.
    """

    head: FileHead
    number: int
    rows: tuple[Row, ...]
    hunk: HunkRow | None
    shown: int
    left: int
    options: Options


@dataclass(frozen=True, slots=True)
class FileView:
    """Some rows of one file. `next_start` is where the next view begins, None at the end."""

    head: FileHead
    rows: tuple[Row, ...]
    start: int
    next_start: int | None
    total: int
    plain_because: str = ""  # why there is no syntax colour
    unmarked: int = 0  # pairs of lines without word marks, for their length
    options: Options = Options()
    tail: int | None = None  # the number to ask for what stands after the last hunk


@dataclass(frozen=True, slots=True)
class LinePart:
    """A part of one line that is too long for the page."""

    segments: tuple[Segment, ...]
    offset: int
    next_offset: int | None
    total: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over all files; the numbers in the head of the page."""

    files: int
    added: int
    removed: int
    binary: int
    hidden: int
    hidden_files: int
