"""Turn rows into segments with colours and marks of changed words, within bounds of one page."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pygments.lexer import Lexer

from approvals import hidden
from approvals.changes import GITLINK, SYMLINK, Change
from approvals.diff.colours import (
    HIGHLIGHT_CHARS,
    HIGHLIGHT_LINES,
    HIGHLIGHT_SECONDS,
    lex,
    lexer_of,
)
from approvals.diff.inline import WORDS, common_ends, word_spans
from approvals.diff.moves import Moves
from approvals.diff.rows import MINUS, PLUS, Raw, RawHunk, RawLine
from approvals.diff.segments import LINE_CHARS, gap_in, masks_of, segments_of, stretches_of
from approvals.diff.shown import Colours, HunkRow, Line, Masks, Moved, Row, Span, SplitRow
from approvals.patch import Hunk

PAGE_CHARS = 400_000  # of all lines of one view
PAGE_SEGMENTS = 40_000
WORD_TOKENS = 400  # of one line; a longer one gets no word marks
WORD_WORK = 60_000  # pairs of equal tokens walked through for one view


@dataclass(slots=True)
class Painter:
    """Turns raw rows into segments, within the bounds of one page."""

    change: Change
    index: int
    lines: int
    highlight: bool
    contents: Mapping[str, bytes]
    masks: Masks
    moves: Moves
    chars: int = 0
    segments: int = 0
    word_work: int = 0
    unmarked: int = 0
    plain_because: str = ""
    _deadline: float = 0.0
    _hunks: dict[int, tuple[list[Colours], list[Colours]]] = field(default_factory=dict)
    _marks: dict[int, tuple[list[Span], list[Span]]] = field(default_factory=dict)
    _whole: dict[str, list[Colours] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + HIGHLIGHT_SECONDS
        if self.highlight and self.lines > HIGHLIGHT_LINES:
            self.highlight = False
            self.plain_because = f"more than {HIGHLIGHT_LINES:,} lines"
        elif self.highlight and self.change.new_mode in (SYMLINK, GITLINK):
            self.highlight = False

    @property
    def full(self) -> bool:
        return self.chars >= PAGE_CHARS or self.segments >= PAGE_SEGMENTS

    def row(self, raw: Raw) -> Row:
        if isinstance(raw, RawHunk):
            return self.hunk_row(raw)
        if isinstance(raw, RawLine):
            return self.line(raw)
        old = self.line(raw.old) if raw.old is not None else None
        new = old if raw.new is raw.old else self.line(raw.new) if raw.new is not None else None
        return SplitRow(old, new)

    def hunk_row(self, raw: RawHunk) -> HunkRow:
        """The heading of a hunk."""
        hunk = raw.hunk
        return HunkRow(
            number=raw.number,
            old_range=_range(hunk.old_start, hunk.old_count),
            new_range=_range(hunk.new_start, hunk.new_count),
            # The heading repeats some earlier line, which may be one that must not be shown.
            section=()
            if self.change.old_blob in self.masks
            else segments_of(hidden.decode(hunk.section)[:200]),
            skipped=raw.gap.count,
        )

    def line(self, raw: RawLine) -> Line:
        text = hidden.decode(raw.text)
        changed: Sequence[Span] = ()
        if raw.partner is not None:
            changed = self._changed(raw, raw.partner)
        shown = _window(text, changed)
        colours = self._colours(raw) if len(text) <= HIGHLIGHT_CHARS else []
        masks = masks_of(self.change, raw, self.masks)
        stretches = stretches_of(text, colours, changed, shown, raw.first, masks)
        on_page = sum(high - low for low, high in shown)
        self.chars += on_page
        self.segments += sum(len(stretch.segments) for stretch in stretches)
        gap = gap_in(text)
        return Line(
            kind="add" if raw.sign == PLUS else "rem" if raw.sign == MINUS else "ctx",
            old_no=raw.old_no,
            new_no=raw.new_no,
            stretches=stretches,
            sign="+" if raw.sign == PLUS else "\N{MINUS SIGN}" if raw.sign == MINUS else "",
            open_end=raw.open_end,
            cut=len(text) - on_page,
            note=f"text stands after {gap} blanks" if gap else "",
            blanks_only=raw.was is not None and raw.was != raw.text,
            moved=self._moved(raw),
        )

    def _moved(self, raw: RawLine) -> Moved | None:
        number = raw.new_no if raw.sign == PLUS else raw.old_no
        return None if number is None else self.moves.get((self.index, raw.sign, number))

    # --- words within a line ---

    def _changed(self, raw: RawLine, partner: RawLine) -> Sequence[Span]:
        old, new = (partner, raw) if raw.sign == PLUS else (raw, partner)
        key = id(new)
        if key not in self._marks:
            self._marks[key] = self._compare(hidden.decode(old.text), hidden.decode(new.text))
        return self._marks[key][raw.sign == PLUS]

    def _compare(self, old: str, new: str) -> tuple[list[Span], list[Span]]:
        head, tail = common_ends(old, new)
        if old == new:
            return [], []
        middle = [(head, len(old) - tail)], [(head, len(new) - tail)]
        old_words = WORDS.findall(old[head : len(old) - tail])
        new_words = WORDS.findall(new[head : len(new) - tail])
        if max(len(old), len(new)) > LINE_CHARS:
            return middle
        # What the comparison walks through: every pair of equal words.
        counted = Counter(new_words)
        work = len(new_words) + sum(counted[word] for word in old_words)
        if max(len(old_words), len(new_words)) > WORD_TOKENS or self.word_work + work > WORD_WORK:
            self.unmarked += 1
            return [], []
        self.word_work += work
        left, right = word_spans(old, new)
        # Where little stays, marks are noise: the whole line changed.
        kept = len(old) - sum(high - low for low, high in left)
        return (left, right) if kept * 3 >= len(old.strip()) and kept > 1 else ([], [])

    # --- colours ---

    def _colours(self, raw: RawLine) -> Colours:
        if not self.highlight:
            return []
        name = self.change.before if raw.sign == MINUS else self.change.path
        lexer = lexer_of(name.rpartition(b"/")[2].decode("utf-8", "replace"))
        if lexer is None:
            return []
        if time.monotonic() > self._deadline:
            self.highlight, self.plain_because = False, "colouring took too long"
            return []
        blob = self.change.old_blob if raw.sign == MINUS else self.change.new_blob
        number = raw.old_no if raw.sign == MINUS else raw.new_no
        whole = self._whole_file(lexer, blob)
        if whole is not None and number is not None and number <= len(whole):
            return whole[number - 1]
        if raw.hunk is None:
            return []
        key = id(raw.hunk)
        if key not in self._hunks:
            self._hunks[key] = self._hunk_sides(lexer, raw.hunk)
        return self._hunks[key][raw.sign != MINUS][raw.at]

    def _whole_file(self, lexer: Lexer, blob: str) -> list[Colours] | None:
        if blob not in self._whole:
            data = self.contents.get(blob)
            self._whole[blob] = None
            if data is not None and len(data) <= 256 << 10 and data.count(b"\n") <= HIGHLIGHT_LINES:
                lines = [hidden.decode(line) for line in data.split(b"\n")]
                self._whole[blob] = lex(lexer, lines, self._deadline)
        return self._whole[blob]

    def _hunk_sides(self, lexer: Lexer, hunk: Hunk) -> tuple[list[Colours], list[Colours]]:
        """Colours of each line of the hunk, as part of the old and of the new text."""
        out: list[list[Colours]] = []
        for other in (PLUS, MINUS):
            at = [i for i, line in enumerate(hunk.lines) if line[0] != other]
            found = lex(lexer, [hidden.decode(hunk.lines[i][1:]) for i in at], self._deadline)
            colours: list[Colours] = [[] for _ in hunk.lines]
            for i, line in zip(at, found or (), strict=False):
                colours[i] = line
            out.append(colours)
        return out[0], out[1]


def _range(start: int, count: int) -> str:
    if count == 0:
        return "no line"
    return f"{start}" if count == 1 else f"{start}\N{EN DASH}{start + count - 1}"


def _window(text: str, changed: Sequence[Span]) -> list[Span]:
    """Which parts of a line are shown: all of it, or its start and what changed."""
    if len(text) <= LINE_CHARS:
        return [(0, len(text))]
    if not changed:
        return [(0, LINE_CHARS)]
    low = max(0, changed[0][0] - LINE_CHARS // 4)
    high = min(len(text), low + LINE_CHARS)
    return [(0, high)] if low < 200 else [(0, 100), (low, high)]
