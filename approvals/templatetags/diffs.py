"""Draw the rows of a diff, each text escaped: a page holds thousands of segments."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from django import template
from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe

from approvals.changes import Change
from approvals.diff import FileView, HunkRow, Line, Segment, SplitRow, Stretch
from approvals.diff import change_words as words_of_change
from approvals.models import Candidate

register = template.Library()

_SIGNS = {"add": "+", "rem": "−", "ctx": ""}
# What a hunk's range says where a side has nothing.
NO_LINE = "no line"
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


def _code(line: Line, address: str) -> str:
    body = _stretches(line.stretches, line.kind)
    if line.cut:
        body += f' <a class="cut" href="{escape(address)}line/{line.side}/">show the whole line</a>'
    if line.open_end:
        body += ' <span class="cut">no line feed at the end of the file</span>'
    if line.note:
        body += f' <span class="cut">{escape(line.note)}</span>'
    return body


def _number(number: int | None) -> str:
    return "" if number is None else str(number)


def _where(old: str, new: str) -> str:
    if NO_LINE in (old, new):
        return f"lines {escape(new)} are new" if old == NO_LINE else f"lines {escape(old)} are gone"
    return f"lines {escape(old)} → {escape(new)}"


def _hunk(row: HunkRow, columns: int) -> str:
    section = " · " + "".join(map(_segment, row.section)) if row.section else ""
    skipped = (
        f' · <span class="muted">{row.skipped:,} unchanged '
        f"line{'' if row.skipped == 1 else 's'} not shown</span>"
        if row.skipped
        else ""
    )
    where = _where(row.old_range, row.new_range)
    return (
        f'<tr class="hunk"><td class="no" colspan="{2 if columns == 4 else 1}"></td>'
        f'<td colspan="{columns - (2 if columns == 4 else 1)}">{where}{section}{skipped}</td></tr>'
    )


def _unified(line: Line, address: str) -> str:
    css = "" if line.kind == "ctx" else f' class="{line.kind}"'
    return (
        f'<tr{css}><td class="no">{_number(line.old_no)}</td>'
        f'<td class="no">{_number(line.new_no)}</td>'
        f'<td class="sg">{_SIGNS[line.kind]}</td><td class="cd">{_code(line, address)}</td></tr>'
    )


def _half(line: Line | None, number: int | None, address: str) -> str:
    if line is None:
        return '<td class="no nil"></td><td class="sg nil"></td><td class="cd nil"></td>'
    css = "" if line.kind == "ctx" else f" {line.kind}"
    return (
        f'<td class="no{css}">{_number(number)}</td><td class="sg{css}">{_SIGNS[line.kind]}</td>'
        f'<td class="cd{css}">{_code(line, address)}</td>'
    )


def _split(row: SplitRow, address: str) -> str:
    old, new = row.old, row.new
    return (
        f"<tr>{_half(old, old.old_no if old else None, address)}"
        f"{_half(new, new.new_no if new else None, address)}</tr>"
    )


@register.simple_tag(takes_context=True)
def diff_rows(context: template.Context, view: FileView, candidate: Candidate) -> SafeString:
    """The rows of one view as table rows, unified or split."""
    address = reverse(
        "approvals:candidate_file",
        kwargs={
            "tenant": context["tenant"].slug,
            "public_id": candidate.public_id,
            "index": view.head.index,
        },
    )
    columns = 4 if view.mode == "unified" else 6
    out: list[str] = []
    for row in view.rows:
        if isinstance(row, HunkRow):
            out.append(_hunk(row, columns))
        elif isinstance(row, SplitRow):
            out.append(_split(row, address))
        else:
            out.append(_unified(row, address))
    # Every text above went through escape(); numbers and class names are our own.
    return mark_safe("\n".join(out))  # noqa: S308


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
