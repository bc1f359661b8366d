"""Draw the rows of the queue. In Python, because fifty rows are most of what the page costs."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from functools import lru_cache
from html import escape

from django import template
from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe

from approvals.queries import Row
from portal.models import Tenant
from portal.templatetags.ui import ago, countdown, effect_words, icon, named, shown

register = template.Library()
# Stands in an address for the packet's id, so that the address is worked out once.
_PLACE = "00000000-0000-0000-0000-000000000000"


def _mark(sign: str, words: str, tone: str) -> str:
    css = f"mark is-{tone}" if tone else "mark"
    return f'<span class="{css}">{icon(sign)}<span>{escape(words)}</span></span>'


@register.simple_tag
def row_news(packet: uuid.UUID, words: str, swap: bool = False) -> SafeString:
    """That something happened to a packet after this reader had it open, or nothing.

    Below the clock, where it moves no line of the row when it comes.
    """
    mark = ""
    if words:
        told = f"since you looked: {words}"
        mark = (
            f'<span class="mark is-live" title="{escape(told)}">{icon("refresh-cw")}'
            f'<span>changed<span class="vh"> {shown(told)}</span></span></span>'
        )
    oob = ' hx-swap-oob="true"' if swap else ""
    return mark_safe(f'<span class="row-news" id="news-{packet}"{oob}>{mark}</span>')  # noqa: S308


@lru_cache(maxsize=500)
def _lasting(row: Row, address: str) -> tuple[str, str]:
    """A row around its clock and up to its age, the two that move while it waits.

    Kept, because each hint draws the same rows anew in every open tab. What is drawn is all in
    the key.
    """
    marks = "".join(_mark(*each) for each in row.marks)
    need = f'<p class="row-need">{shown(row.sentence)}</p>' if row.sentence else ""
    href = address.replace(_PLACE, str(row.public_id))
    return (
        f'<li class="row" id="packet-{row.public_id}" data-row="{row.public_id}">'
        f'<input type="hidden" name="row" value="{row.public_id}">'
        f'<label class="row-pick"><input type="checkbox" autocomplete="off" form="together" '
        f'name="pick" value="{row.public_id}">'
        f'<span class="vh">Select packet {row.number}</span></label><div class="row-time">',
        f"{row_news(row.public_id, row.news)}</div>"
        f'<div class="row-body"><div class="row-text"><p class="row-effect">'
        f'<a class="row-link" href="{href}">{effect_words(row.effect, row.emphasis)}</a></p>'
        f'<p class="row-meta"><span><code>{shown(row.tool)}</code></span>'
        f"<span>{shown(row.agent)}, for {named(row.requested_by)}</span>"
        f"<span>run {row.run_number}</span></p>{need}</div>"
        f'<p class="row-marks">{marks}</p></div>'
        f'<div class="row-side">{_mark("hourglass", row.votes, "wait")}',
    )


def _row(row: Row, address: str) -> str:
    before, after = _lasting(row, address)
    clock, age = countdown(row.expires_at, row.opened_at), ago(row.opened_at)
    return f"{before}{clock}{after}<span>asked {age}</span></div></li>"


@register.simple_tag
def queue_rows(rows: Iterable[Row], tenant: Tenant) -> SafeString:
    """Open packets as list items. Address and key of each belong to the packet's id."""
    address = reverse("approvals:packet", args=[tenant.slug, _PLACE])
    # Every text went through escape() or a tag that escapes; the rest are ids and our own words.
    return mark_safe("\n".join(_row(row, address) for row in rows))  # noqa: S308
