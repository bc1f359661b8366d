"""Draw the rows of a diff, each text escaped: a page holds thousands of segments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from django import template
from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe

from approvals.changes import Change
from approvals.diff import (
    Around,
    FileView,
    HunkRow,
    Line,
    Options,
    Row,
    Segment,
    SplitRow,
    Stretch,
)
from approvals.diff import change_words as words_of_change
from approvals.models import Candidate

register = template.Library()

_SIGNS = {"add": "+", "rem": "−", "ctx": ""}
# What a hunk's range says where a side has nothing.
NO_LINE = "no line"
STEP = 20
"""Unchanged lines that one button fetches."""
_BOXED = {"hid", "byte", "cr", "gap"}


def _segment(segment: Segment) -> str:
    text = escape(segment.text)
    if segment.kind in _BOXED:
        css = "hid" if segment.kind in ("hid", "byte") else f"seen-{segment.kind}"
        title = escape(segment.title)
        return f'<span class="{css}" title="{title}">{text}</span>'
    if segment.kind == "rtl":
        return f'<bdi class="rtl">{text}</bdi>'
    if segment.kind == "cut":
        return f'<span class="cut">{text}</span>'
    return f'<span class="{segment.kind}">{text}</span>' if segment.kind else text


def _stretches(stretches: Iterable[Stretch], kind: str) -> str:
    mark = {"add": "ins", "rem": "del"}.get(kind)
    out: list[str] = []
    for stretch in stretches:
        body = "".join(map(_segment, stretch.segments))
        out.append(f"<{mark}>{body}</{mark}>" if stretch.changed and mark else body)
    return "".join(out)


def _code(line: Line, place: _Place) -> str:
    body = _stretches(line.stretches, line.kind)
    if line.cut:
        address = f"{place.file}line/{line.side}/"
        body += f' <a class="cut" href="{escape(address)}">show the whole line</a>'
    if line.blanks_only:
        body += ' <span class="side-note">only blanks changed</span>'
    if line.moved:
        side, way = ("new", "to") if line.kind == "rem" else ("old", "from")
        there = line.moved
        address = (
            f"{place.files}{there.index}/?line={side}-{there.number}"
            f"#f{there.index}{side[0]}{there.number}"
        )
        name = str(place.changes[there.index]["path"])
        elsewhere = "" if there.index == place.index else f"{escape(name)}, "
        words = f"moved {way} {elsewhere}line {there.number:,}"
        body += f' <a class="side-note" href="{escape(address)}">{words}</a>'
    if line.open_end:
        body += ' <span class="cut">no line feed at the end of the file</span>'
    if line.note:
        body += f' <span class="cut">{escape(line.note)}</span>'
    return body


def _number(number: int | None) -> str:
    return "" if number is None else str(number)


def _where(old: str, new: str) -> str:
    if NO_LINE in (old, new):
        there, now = (new, "new") if old == NO_LINE else (old, "gone")
        some = f"line {escape(there)} is" if there.isdecimal() else f"lines {escape(there)} are"
        return f"{some} {now}"
    return f"lines {escape(old)} → {escape(new)}"


def _hunk(row: HunkRow, columns: int, around: str) -> str:
    section = " · " + "".join(map(_segment, row.section)) if row.section else ""
    skipped = ""
    if row.skipped:
        skipped = (
            f' · <span class="muted">{row.skipped:,} unchanged '
            f"line{'' if row.skipped == 1 else 's'} not shown</span>"
        )
        if around:
            skipped += _more_lines(around.replace("NUMBER", str(row.number)), row.skipped)
    where = _where(row.old_range, row.new_range)
    return (
        f'<tr class="hunk" data-hunk="{row.number}">'
        f'<td class="no" colspan="{2 if columns == 4 else 1}"></td>'
        f'<td colspan="{columns - (2 if columns == 4 else 1)}">{where}{section}{skipped}</td></tr>'
    )


def _more_lines(address: str, left: int | None) -> str:
    """Buttons that fetch unchanged lines, some or all of them."""

    def button(query: str, words: str) -> str:
        full = escape(f"{address}{query}")
        return (
            f' <a class="btn btn-s btn-quiet" href="{full}" hx-get="{full}" '
            f'hx-target="closest tr" hx-swap="outerHTML">{words}</a>'
        )

    if left is not None and left <= STEP:
        return button("", f"Show {'it' if left == 1 else 'them'}")
    return button("", f"Show {STEP}") + button("&all", "Show all")


def _unified(line: Line, place: _Place) -> str:
    old = f' id="{place.id}o{line.old_no}"' if line.kind == "rem" else ""
    new = f' id="{place.id}n{line.new_no}"' if line.kind != "rem" else ""
    return (
        f'<tr{_css(line)}><td class="no"{old}>{_number(line.old_no)}</td>'
        f'<td class="no"{new}>{_number(line.new_no)}</td>'
        f'<td class="sg">{_SIGNS[line.kind]}</td><td class="cd">{_code(line, place)}</td></tr>'
    )


def _css(line: Line) -> str:
    if line.kind == "ctx":
        return ""
    return f' class="{line.kind}{" moved" if line.moved else ""}"'


def _half(line: Line | None, side: str, place: _Place) -> str:
    if line is None:
        return '<td class="no nil"></td><td class="sg nil"></td><td class="cd nil"></td>'
    number = line.old_no if side == "o" else line.new_no
    css = "" if line.kind == "ctx" else f" {line.kind}{' moved' if line.moved else ''}"
    return (
        f'<td class="no{css}" id="{place.id}{side}{number}">{_number(number)}</td>'
        f'<td class="sg{css}">{_SIGNS[line.kind]}</td>'
        f'<td class="cd{css}">{_code(line, place)}</td>'
    )


def _split(row: SplitRow, place: _Place) -> str:
    return f"<tr>{_half(row.old, 'o', place)}{_half(row.new, 'n', place)}</tr>"


@dataclass(frozen=True)
class _Place:
    """Where the rows of one file stand: the start of their ids, and addresses beside them."""

    index: int
    file: str
    files: str
    around: str
    changes: Sequence[Mapping[str, Any]]

    @property
    def id(self) -> str:
        return f"f{self.index}"

    @classmethod
    def of(
        cls, context: template.Context, candidate: Candidate, index: int, options: Options
    ) -> _Place:
        known = {"tenant": context["tenant"].slug, "public_id": candidate.public_id}
        files = reverse("approvals:candidate_files", kwargs=known)
        around = f"{files}{index}/around/NUMBER/?{query(options)}"
        return cls(
            index=index,
            file=f"{files}{index}/",
            files=files,
            around=around if context.get("around") else "",
            changes=candidate.changes,
        )


@register.simple_tag(takes_context=True)
def diff_rows(context: template.Context, view: FileView, candidate: Candidate) -> SafeString:
    """The rows of one view as table rows, unified or split."""
    place = _Place.of(context, candidate, view.head.index, view.options)
    out = _drawn(view.rows, view.options, place)
    if view.tail is not None and place.around:
        out.append(_tail(view.tail, view.options, place, None))
    # Every text above went through escape(); numbers and class names are our own.
    return mark_safe("\n".join(out))  # noqa: S308


@register.simple_tag(takes_context=True)
def diff_around(context: template.Context, part: Around, candidate: Candidate) -> SafeString:
    """Unchanged lines that were asked for, and what asks for the rest."""
    place = _Place.of(context, candidate, part.head.index, part.options)
    place = replace(place, around=f"{place.around}&shown={part.shown}")
    # The heading stands where lines are still left away, and before its hunk where none are.
    heading = [part.hunk] if part.hunk is not None else []
    rows = [*heading, *part.rows] if part.left else [*part.rows, *heading]
    out = _drawn(rows, part.options, place)
    if part.number == part.head.hunks and part.left:
        out.append(_tail(part.number, part.options, place, part.left))
    return mark_safe("\n".join(out))  # noqa: S308 - as above


def _drawn(rows: Iterable[Row], options: Options, place: _Place) -> list[str]:
    columns = 4 if options.mode == "unified" else 6
    out: list[str] = []
    for row in rows:
        if isinstance(row, HunkRow):
            out.append(_hunk(row, columns, place.around))
        elif isinstance(row, SplitRow):
            out.append(_split(row, place))
        else:
            out.append(_unified(row, place))
    return out


def _tail(number: int, options: Options, place: _Place, left: int | None) -> str:
    first = 2 if options.mode == "unified" else 1
    words = "to the end of the file" if left is None else f"{left:,} more to the end of the file"
    buttons = _more_lines(place.around.replace("NUMBER", str(number)), left)
    rest = (4 if options.mode == "unified" else 6) - first
    return (
        f'<tr class="hunk"><td class="no" colspan="{first}"></td><td colspan="{rest}">'
        f'<span class="muted">unchanged lines, {words}</span>{buttons}</td></tr>'
    )


@register.filter
def query(options: Options) -> str:
    """The options as part of an address, always in the same order."""
    asked = [f"view={options.mode}"]
    asked += ["blanks=hide"] if not options.blanks else []
    asked += ["whole=1"] if options.whole else []
    return "&".join(asked)


@register.filter
def other(options: Options, name: str) -> str:
    """The same as `query`, with one option set (a view) or turned over (`blanks`, `whole`)."""
    turned = {
        "unified": replace(options, mode="unified"),
        "split": replace(options, mode="split"),
        "blanks": replace(options, blanks=not options.blanks),
        "whole": replace(options, whole=not options.whole),
    }
    return query(turned[name])


@register.filter(is_safe=True)
def segments(parts: Iterable[Segment]) -> SafeString:
    """A path or another short text in segments."""
    return mark_safe("".join(map(_segment, parts)))  # noqa: S308 - escaped segment by segment


@register.filter
def file_name(path: str) -> str:
    return path.rpartition("/")[2]


@register.filter
def change_words(change: Change) -> str:
    """What happened to a file, in plain words."""
    return ", ".join(words_of_change(change)) or "changed"
