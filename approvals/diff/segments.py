"""Text from outside as segments in which nothing can hide."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from approvals import hidden
from approvals.changes import Change
from approvals.diff.rows import RawLine
from approvals.diff.shown import Colours, Masks, Segment, SegmentKind, Span, Stretch

LINE_CHARS = 2_000  # of one line on the page
GAP = 60  # blanks inside a line that may push the rest out of sight
_GAP = re.compile(rf"(?<=\S)[ \t\u00a0]{{{GAP},}}(?=[^ \t\u00a0\r])")


def gap_in(text: str) -> int:
    """The longest run of blanks inside a line that something follows, if it is long enough."""
    found = _GAP.search(text)
    return found.end() - found.start() if found else 0


def segments_of(text: str, *, at_start: bool = False) -> tuple[Segment, ...]:
    """Any text from outside as segments in which nothing can hide."""
    stretches = stretches_of(text, [], (), [(0, len(text))], at_start, ())
    return tuple(segment for stretch in stretches for segment in stretch.segments)


def path_segments(path: bytes) -> tuple[Segment, ...]:
    """A path as segments; a line break or tab in it is shown by its code point."""
    out: list[Segment] = []
    for part in re.split("([\t\n])", hidden.decode(path)):
        if part in _IN_NAMES:
            out.append(Segment(_IN_NAMES[part][:6], "hid", _IN_NAMES[part]))
        else:
            out += segments_of(part)
    return tuple(out)


# A text may hold these two, a name should not.
_IN_NAMES = {"\t": "U+0009 CHARACTER TABULATION", "\n": "U+000A LINE FEED"}
_RIGHT_TO_LEFT = re.compile(
    f"{hidden.RIGHT_TO_LEFT.pattern}+(?:[ .,:;!?-]*{hidden.RIGHT_TO_LEFT.pattern}+)*"
)


def stretches_of(
    text: str,
    colours: Colours,
    changed: Sequence[Span],
    shown: Sequence[Span],
    at_start: bool,
    masks: Sequence[Span],
) -> tuple[Stretch, ...]:
    """The parts `shown` of a line, cut where a changed word begins or ends."""
    if text.isascii() and text.isprintable() and len(text) < GAP and not (changed or masks):
        # The common line: nothing to mark but colours.
        return (Stretch(tuple(_coloured(text, 0, len(text), colours))),) if text else ()
    special = _specials(text, at_start, shown)
    if masks:
        # Marks of changed words would tell apart what a mask hides.
        changed = [span for span in changed if not any(_meet(span, mask) for mask in masks)]
        special = [part for part in special if not any(_meet(part[:2], mask) for mask in masks)]
        special += [(low, high, _hidden_value(high - low)) for low, high in masks]
        special.sort(key=lambda part: part[0])
    out: list[Stretch] = []
    last = 0
    for low, high in shown:
        if low > last:
            out.append(Stretch((_cut(low - last),)))
        edges = sorted({low, high, *(e for span in changed for e in span if low < e < high)})
        for start, end in pairwise(edges):
            is_changed = any(a <= start and end <= b for a, b in changed)
            segments = tuple(_pieces(text, start, end, colours, special))
            if segments:
                out.append(Stretch(segments, is_changed))
        last = high
    if last < len(text):
        out.append(Stretch((_cut(len(text) - last),)))
    return tuple(out)


def _meet(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _hidden_value(length: int) -> Segment:
    return Segment(
        f"value not shown, {length:,} characters", "mask", "a check took it for a secret"
    )


def masks_of(change: Change, raw: RawLine, masks: Masks) -> list[Span]:
    """What must not be shown of one line: masks of either side where the line is on both."""
    spans: set[Span] = set()
    for blob, number in ((change.old_blob, raw.old_no), (change.new_blob, raw.new_no)):
        for mask in masks.get(blob, ()):
            if mask.line == 0 and number is not None:
                spans.add((0, max(1, len(raw.text))))
            elif mask.line == number:
                spans.add((mask.start, mask.end))
    out: list[Span] = []
    for low, high in sorted(spans):
        if out and low <= out[-1][1]:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return out


def _cut(count: int) -> Segment:
    return Segment(f"{count:,} characters not shown", "cut")


def _specials(text: str, at_start: bool, shown: Sequence[Span]) -> list[tuple[int, int, Segment]]:
    """Parts of a line that are drawn as something of their own, in order, without overlap."""
    out: list[tuple[int, int, Segment]] = []
    if text.endswith("\r"):
        last = len(text) - 1
        out.append((last, last + 1, Segment("CR", "cr", "U+000D CARRIAGE RETURN")))
    if found := _GAP.search(text):
        blanks = found.group()
        out.append((*found.span(), Segment(blanks, "gap", f"{len(blanks)} blanks")))
    if text.isascii() and text.isprintable():
        return out
    low, high = shown[0][0], shown[-1][1]
    part = text[low:high]
    marks = [
        mark
        for mark in hidden.marks(part, at_start=at_start and low == 0, look_alikes=True)
        if not (mark.label == "CR" and low + mark.end == len(text))
    ]
    for start, end, segment in _grouped(marks):
        out.append((low + start, low + end, segment))
    taken = {i for start, end, _ in out for i in range(start, end)} if marks else set()
    out += [
        (low + m.start(), low + m.end(), Segment(m.group(), "rtl"))
        for m in _RIGHT_TO_LEFT.finditer(part)
        if not taken.intersection(range(low + m.start(), low + m.end()))
    ]
    return sorted(out, key=lambda item: item[0])


def _grouped(marks: Sequence[hidden.Mark]) -> Iterator[tuple[int, int, Segment]]:
    """Marks as segments; a long run of them is one segment that counts."""
    run: list[hidden.Mark] = []
    for mark in [*marks, None]:
        if run and (mark is None or mark.start != run[-1].end):
            if len(run) > 12:
                first = " ".join(m.label for m in run[:4])
                names = ", ".join(m.name for m in run[:40])
                text = f"{first} … {len(run):,} hidden characters"
                yield run[0].start, run[-1].end, Segment(text, "hid", names)
            else:
                for m in run:
                    kind: SegmentKind = "byte" if m.kind == "byte" else "hid"
                    yield m.start, m.end, Segment(m.label, kind, m.name)
            run = []
        if mark is not None:
            run.append(mark)


def _pieces(
    text: str,
    start: int,
    end: int,
    colours: Colours,
    special: Sequence[tuple[int, int, Segment]],
) -> Iterator[Segment]:
    at = start
    for low, high, segment in special:
        if high <= at:
            continue
        if low >= end:
            break
        if low > at:
            yield from _coloured(text, at, low, colours)
        if low >= start:
            yield segment
        at = high
    if at < end:
        yield from _coloured(text, at, end, colours)


def _coloured(text: str, start: int, end: int, colours: Colours) -> Iterator[Segment]:
    at = start
    first = max(0, bisect_right(colours, start, key=lambda c: c[0]) - 1) if colours else 0
    for low, high, kind in colours[first:]:
        if high <= at:
            continue
        if low >= end:
            break
        if low > at:
            yield Segment(text[at:low])
        yield Segment(text[max(low, at) : min(high, end)], kind)
        at = min(high, end)
    if at < end:
        yield Segment(text[at:end])
