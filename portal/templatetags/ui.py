"""What every page is made of: icons, states, digests, times, money, and text from others.

Tags return finished HTML and escape what they are given. Icons are rendered once per process,
because a queue page holds hundreds of them.
"""

from __future__ import annotations

import datetime as dt
import html
import re
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache
from math import ceil
from typing import NamedTuple

import lucide
from django import template
from django.forms import BoundField
from django.utils import timezone
from django.utils.html import conditional_escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from portal import visible
from portal.context import roles_in_words
from portal.models import Membership

register = template.Library()


# --- icons -----------------------------------------------------------------------------------


_PRESENTATION = re.compile(
    r' (?:width|height|fill|stroke|stroke-width|stroke-linecap|stroke-linejoin)="[^"]*"'
)
_BETWEEN_TAGS = re.compile(r">\s+<")


@lru_cache(maxsize=512)
def _icon(name: str, classes: str, label: str) -> SafeString:
    facts = {"role": "img", "aria-label": label} if label else {"aria-hidden": "true"}
    facts["class"] = f"icon {classes}".strip()
    svg = lucide._render_icon(name, None, **facts)
    # Size, fill and stroke come from the class, so the attributes would only make pages longer.
    svg = _PRESENTATION.sub("", svg, count=7)
    svg = _BETWEEN_TAGS.sub("><", svg).replace(" />", "/>")
    # The icons of the package are fixed files and the label has been escaped as an attribute.
    return mark_safe(svg.strip())  # noqa: S308


@register.simple_tag
def icon(name: str, classes: str = "", label: str = "") -> SafeString:
    """One Lucide icon. Without a label it is decoration and hidden from assistive technology."""
    return _icon(str(name), str(classes), str(label))


# --- states ----------------------------------------------------------------------------------


class Look(NamedTuple):
    """How a state is drawn: its colour meaning, its icon, its word."""

    tone: str
    icon: str
    word: str


# Expired, withdrawn, superseded and cancelled are four words with four icons, never merged.
# A status that means different things in different places has an entry `kind.status` there.
STATES: dict[str, Look] = {
    # packets
    "open": Look("wait", "hourglass", "Waiting for a decision"),
    "approved": Look("done", "check", "Approved"),
    "denied": Look("danger", "x", "Denied"),
    "changes_requested": Look("wait", "undo-2", "Changes requested"),
    "expired": Look("ended", "clock", "Expired"),
    "withdrawn": Look("ended", "undo", "Withdrawn"),
    "superseded": Look("ended", "refresh-cw", "Superseded"),
    "cancelled": Look("ended", "square", "Cancelled"),
    # one person's answer
    "approve": Look("done", "check", "Approved"),
    "deny": Look("danger", "x", "Denied"),
    "request_changes": Look("wait", "undo-2", "Changes requested"),
    # runs
    "queued": Look("live", "hourglass", "Queued"),
    "running": Look("live", "", "Running"),
    "waiting": Look("wait", "hourglass", "Waiting for a person"),
    "collecting": Look("live", "", "Collecting"),
    "checking": Look("live", "", "Checking"),
    "in_review": Look("wait", "hourglass", "In review"),
    "publishing": Look("live", "", "Publishing"),
    "published": Look("done", "git-pull-request-draft", "Published"),
    "failed": Look("danger", "triangle-alert", "Failed"),
    # publications and tool calls
    "intended": Look("live", "hourglass", "About to publish"),
    "acting": Look("live", "", "Publishing"),
    "publication.done": Look("done", "git-pull-request-draft", "Published"),
    "publication.failed": Look("danger", "triangle-alert", "Not published"),
    "unknown": Look("wait", "circle-question-mark", "Outcome unknown"),
    "allowed": Look("done", "check", "Allowed"),
    "refused": Look("danger", "ban", "Denied by policy"),
    "call.approved": Look("wait", "hourglass", "Not used yet"),
    "call.acting": Look("live", "", "Carried out now"),
    "done": Look("done", "check", "Done"),
    # drills
    "drill.held": Look("done", "shield-check", "Held"),
    "drill.broken": Look("danger", "triangle-alert", "Broken"),
    "drill.untried": Look("ended", "square", "Not tried"),
    # network rules
    "grant.requested": Look("wait", "hourglass", "Waiting for a person"),
    "grant.active": Look("live", "globe", "Open"),
    "grant.unanswered": Look("ended", "clock", "Not answered in time"),
    "grant.expired": Look("ended", "clock", "Time is over"),
    "grant.revoked": Look("danger", "ban", "Taken back"),
    "grant.ended": Look("ended", "square", "Ended with the run"),
    # uses of credentials
    "credential.requested": Look("wait", "hourglass", "Waiting for a person"),
    "credential.approved": Look("wait", "hourglass", "Not used yet"),
    "credential.minting": Look("live", "", "Being made"),
    "credential.live": Look("live", "key", "Live"),
    "credential.revoking": Look("wait", "undo-2", "Being taken back"),
    "credential.revoked": Look("done", "check", "Taken back"),
    "credential.ended": Look("ended", "square", "Over"),
    "credential.expired": Look("ended", "clock", "Time is over"),
    "credential.refused": Look("danger", "ban", "Refused, nothing was sent"),
    "credential.lost": Look("wait", "circle-question-mark", "Perhaps made, held by nobody"),
    "credential.changes_requested": Look("ended", "undo-2", "Not used, changes requested"),
    "credential.unanswered": Look("ended", "clock", "Not answered in time"),
    # sources of secrets
    "source.in_use": Look("done", "check", "In use"),
    "source.ends_soon": Look("wait", "clock", "Ends soon"),
    "source.over": Look("ended", "clock", "Time is over"),
    "source.retired": Look("ended", "square", "Not in use any more"),
    # contract and policy versions
    "proposed": Look("wait", "hourglass", "Proposed"),
    "in_force": Look("done", "check", "In force"),
    # checks
    "passed": Look("done", "check", "Passed"),
    "warned": Look("wait", "triangle-alert", "Warnings"),
    "check.failed": Look("danger", "triangle-alert", "Failed"),
    "error": Look("danger", "triangle-alert", "Could not run"),
    "skipped": Look("ended", "square", "Not run"),
}


def look_of(status: object, kind: str = "") -> Look:
    """The look of a status; one without an entry is shown by its own word and claims nothing."""
    key = str(getattr(status, "value", status))
    known = STATES.get(f"{kind}.{key}") or STATES.get(key)
    return known or Look("ended", "circle", key.replace("_", " ").capitalize())


def _sign(icon_name: str) -> SafeString:
    if icon_name:
        return _icon(icon_name, "", "")
    return mark_safe('<span class="pulse" aria-hidden="true"></span>')


@register.simple_tag
def chip(tone: str, icon_name: str, word: str) -> SafeString:
    """A boxed state: icon and word. At most one in a row or head."""
    return format_html('<span class="chip is-{}">{}{}</span>', tone, _sign(icon_name), word)


@register.simple_tag
def mark(icon_name: str, word: str, tone: str = "") -> SafeString:
    """A fact about a thing: icon and word, no box."""
    classes = f"mark is-{tone}" if tone else "mark"
    return format_html('<span class="{}">{}<span>{}</span></span>', classes, _sign(icon_name), word)


@register.simple_tag
def state_chip(status: object, kind: str = "", word: str = "") -> SafeString:
    look = look_of(status, kind)
    return chip(look.tone, look.icon, word or look.word)


@register.simple_tag
def state_mark(status: object, kind: str = "", word: str = "") -> SafeString:
    look = look_of(status, kind)
    return mark(look.icon, word or look.word, look.tone)


@register.filter
def state_word(status: object, kind: str = "") -> str:
    return look_of(status, kind).word


@register.filter
def state_tone(status: object, kind: str = "") -> str:
    return look_of(status, kind).tone


# --- digests ---------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _mark_path(hexdigest: str) -> str:
    """One bar for each of the first 32 nibbles, 1 to 16 high, so that no two values look alike."""
    return "".join(
        f"M{2 * at}.5 16v-{int(nibble, 16) + 1}"
        for at, nibble in enumerate(hexdigest[:32])
        if nibble in "0123456789abcdef"
    )


@register.simple_tag
def digest_mark(hexdigest: str) -> SafeString:
    return format_html(
        '<svg class="digest-mark" viewBox="0 0 64 16" preserveAspectRatio="none" '
        'aria-hidden="true"><path d="{}" stroke="currentColor" stroke-width="1"/></svg>',
        _mark_path(bare(hexdigest)),
    )


def bare(hexdigest: object) -> str:
    """The hexadecimal digits alone, for values stored as `sha256:…` as well."""
    return str(hexdigest or "").rpartition(":")[2].strip().lower()


def _groups(hexdigest: str, count: int | None, lead: int) -> SafeString:
    fours = [hexdigest[at : at + 4] for at in range(0, len(hexdigest), 4)][:count]
    return format_html_join(
        "", "<i{}>{}</i>", ((_LEAD if at < lead else "", four) for at, four in enumerate(fours))
    )


_LEAD = mark_safe(' class="lead"')


@register.simple_tag
def digest(hexdigest: str, groups: int = 3, drawn: bool = True) -> SafeString:
    """A digest to be recognised: the mark and its first groups; the whole value in the title."""
    value = bare(hexdigest)
    if not value:
        return format_html('<span class="muted">{}</span>', "none")
    algorithm = "sha256" if len(value) == 64 else "sha1" if len(value) == 40 else "digest"
    return format_html(
        '<span class="digest">{}<code title="{} {}">{}</code></span>',
        digest_mark(value) if drawn else "",
        algorithm,
        value,
        _groups(value, groups, 3 if drawn else 0),
    )


@register.simple_tag
def digest_full(hexdigest: str) -> SafeString:
    """The whole digest in groups of four, to be compared character by character."""
    value = bare(hexdigest)
    return format_html(
        '<div class="digest-full">{}<code>{}</code></div>',
        digest_mark(value),
        _groups(value, None, 3),
    )


@register.filter
def short_digest(hexdigest: str) -> str:
    """The first twelve characters, for places where only plain text is possible."""
    value = bare(hexdigest)
    return " ".join(value[at : at + 4] for at in range(0, min(len(value), 12), 4))


# --- time ------------------------------------------------------------------------------------

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def span_words(seconds: float) -> str:
    """A length of time in at most two units: `12 s`, `6 min`, `1 h 26 m`, `2 d 3 h`."""
    whole = max(0, int(seconds))
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min"
    if whole < _DAY:
        minutes = whole % _HOUR // _MINUTE
        return f"{whole // _HOUR} h {minutes:02d} m" if minutes else f"{whole // _HOUR} h"
    hours = whole % _DAY // _HOUR
    return f"{whole // _DAY} d {hours} h" if hours else f"{whole // _DAY} d"


def left_words(seconds: float) -> str:
    """Time left: `4:12` in the last quarter of an hour, rounded units before."""
    whole = max(0, ceil(seconds))
    if whole < 15 * _MINUTE:
        return f"{whole // _MINUTE}:{whole % _MINUTE:02d}"
    return span_words(whole)


def _local(moment: dt.datetime) -> dt.datetime:
    """In the time zone of the installation; nobody has another one."""
    return moment.astimezone(timezone.get_default_timezone())


@lru_cache(maxsize=4096)
def _stamps(moment: dt.datetime) -> tuple[str, str]:
    """The moment for machines, and exactly for people; kept, because lists are drawn again."""
    local = _local(moment)
    exact = f"{local.isoformat(' ', 'seconds')[:19]} {local.tzname()}"
    return moment.isoformat(timespec="seconds"), exact


def _time(moment: dt.datetime, words: str, attributes: str = "") -> SafeString:
    """A <time>; `words` and `attributes` are made in this module, digits and letters only."""
    stamp, exact = _stamps(moment)
    return SafeString(f'<time datetime="{stamp}" title="{exact}"{attributes}>{words}</time>')


@register.simple_tag
def ago(moment: dt.datetime | None) -> SafeString:
    """How long since: relative below a day, then the date. Kept true by countdown.js."""
    if moment is None:
        return format_html('<span class="muted">{}</span>', "never")
    passed = (timezone.now() - moment).total_seconds()
    if passed < 5:
        return _time(moment, "just now", " data-ago")
    if passed < _DAY:
        return _time(moment, f"{span_words(passed)} ago", " data-ago")
    return _time(moment, day(moment))


@register.filter
def day(moment: dt.datetime) -> str:
    local = _local(moment)
    words = f"{local.day} {local:%b}"
    return words if local.year == _local(timezone.now()).year else f"{words} {local.year}"


@register.simple_tag
def clock(moment: dt.datetime | None, seconds: bool = True) -> SafeString:
    """The time of day, with the date in front when it is not today's."""
    if moment is None:
        return mark_safe("")
    local = _local(moment)
    words = local.strftime("%H:%M:%S" if seconds else "%H:%M")
    if local.date() != _local(timezone.now()).date():
        words = f"{day(moment)} {local:%H:%M}"
    return _time(moment, words)


@register.filter
def duration(value: dt.timedelta | float | None) -> str:
    """A measured length: seconds, or a timedelta; below a minute with one decimal."""
    if value is None:
        return ""
    seconds = value.total_seconds() if isinstance(value, dt.timedelta) else float(value)
    return f"{seconds:.1f} s" if seconds < _MINUTE else span_words(seconds)


@register.filter
def milliseconds(value: float | None) -> str:
    """A measured length; what is too short for one decimal is not drawn as no time at all."""
    if value is None:
        return ""
    return duration(value / 1000) if value >= _SHOWN_MS else "below 0.1 s"


_SHOWN_MS = 50


@register.simple_tag
def countdown(
    until: dt.datetime,
    since: dt.datetime | None = None,
    large: bool = False,
    word: str = "left",
) -> SafeString:
    """Time left as words, bar and exact moment. True without script; countdown.js keeps it so."""
    now = timezone.now()
    left = (until - now).total_seconds()
    whole = (until - since).total_seconds() if since else 0
    share = min(100, max(0, round(100 * left / whole))) if whole > 0 else 100
    tone, sign = "", ""
    if left < 5 * _MINUTE:
        tone, sign = " is-danger", _icon("triangle-alert", "", "")
        word = "soon" if word == "left" else word
    elif left < 15 * _MINUTE:
        tone, sign = " is-wait", _icon("clock", "", "")
    if left <= 0:
        word = "time is up"
    stamp, exact = _stamps(until)
    begun = f' data-since="{_stamps(since)[0]}"' if since else ""
    said = ' data-said=""' if large else ""
    # Numbers, dates and our own words; `word` is escaped.
    return SafeString(
        f'<div class="countdown{" countdown-l" if large else ""}{tone}" data-until="{stamp}"{begun}'
        f'{said}><time class="countdown-time" datetime="{stamp}" title="{exact}">'
        f'{left_words(left)}</time><progress class="bar" value="{share}" max="100" '
        f'aria-hidden="true"></progress><small>{sign}<span>{html.escape(word)}</span></small></div>'
    )


@register.simple_tag
def countdown_mark(until: dt.datetime) -> SafeString:
    """Time left as a mark, for the slim line of a phone."""
    left = (until - timezone.now()).total_seconds()
    tone = " is-danger" if left < 5 * _MINUTE else " is-wait" if left < 15 * _MINUTE else ""
    return format_html(
        '<span class="mark{}" data-until="{}">{}<span><span class="countdown-time">{}</span> left'
        "</span></span>",
        tone,
        until.isoformat(timespec="seconds"),
        _icon("clock", "", ""),
        left_words(left),
    )


@register.simple_tag
def waiting_span(seconds: float, word: str, large: bool = True) -> SafeString:
    """A clock that has not started: the time there will be once something is decided."""
    return format_html(
        '<div class="countdown{}"><span class="countdown-time">{}</span><progress class="bar" '
        'value="100" max="100" aria-hidden="true"></progress><small>{}</small></div>',
        " countdown-l" if large else "",
        left_words(seconds),
        word,
    )


# --- numbers ---------------------------------------------------------------------------------

_SIGNS = {"EUR": "€", "USD": "$", "GBP": "£"}


@register.simple_tag
def money(amount: Decimal | str | int | None, currency: str = "EUR") -> str:
    """Two decimals and the sign of the currency; below half a cent but above zero it says so."""
    if amount is None:
        return "not counted"
    exact = Decimal(amount)
    cents = exact.quantize(Decimal("0.01"), rounding=ROUND_HALF_UP)
    sign = _SIGNS.get(currency, f"{currency} ")
    if exact and not cents:
        return f"under {sign}0.01"
    return f"{'−' if cents < 0 else ''}{sign}{abs(cents):,.2f}"


@register.simple_tag
def money_micros(micros: int | None, currency: str = "EUR") -> str:
    """Money that is stored in millionths."""
    return money(None if micros is None else Decimal(micros) / 1_000_000, currency)


@register.filter
def hidden_words(number: int) -> str:
    """`1 character that cannot be seen`."""
    return f"{number:,} character{'' if number == 1 else 's'} that cannot be seen"


@register.filter
def thousands(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


@register.filter
def bytesize(number: int | None) -> str:
    """Decimal units, as file managers and forges count: `388 bytes`, `4.1 kB`, `48 MB`."""
    if number is None:
        return ""
    if number < 1000:
        return f"{number} byte" if number == 1 else f"{number} bytes"
    size = float(number)
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if size < 999.5 or unit == "TB":
            break
    return f"{size:.1f} {unit}" if size < 10 else f"{size:.0f} {unit}"


@register.simple_tag
def counted(number: int, one: str, many: str = "") -> str:
    """`1 file`, `3 files`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


@register.filter
def capped(number: int, cap: int = 99) -> str:
    return f"{cap}+" if number > cap else str(number)


# --- text that others wrote ------------------------------------------------------------------


@register.filter(is_safe=True)
def shown(text: object) -> SafeString:
    """Escaped text in which every hidden character is drawn as its code point.

    A carriage return that only ends a line together with a line feed is that line's end.
    """
    plain = str(text).replace("\r\n", "\n")
    if not visible.hides(plain):
        return SafeString(html.escape(plain))  # The common case, escaped here.
    return format_html_join("", "{}", ((_piece(piece),) for piece in visible.pieces(plain)))


def _piece(piece: visible.Piece) -> str:
    if not piece.hidden:
        return piece.text
    return format_html('<span class="hid" title="{}">{}</span>', piece.name, piece.label)


@register.filter(is_safe=True)
def named(name: object) -> SafeString:
    """A person's name: `shown`, but spelled as its script has it, and in a direction of its own."""
    plain = str(name)
    if plain.isascii() and plain.isprintable():
        return SafeString(html.escape(plain))  # Escaped here.
    drawn = ((_piece(piece),) for piece in visible.pieces_of_name(plain))
    return format_html("<bdi>{}</bdi>", format_html_join("", "{}", drawn))


@register.filter(is_safe=True)
def place(text: object) -> SafeString:
    """A host, address or path: `shown`, and broken after its separators where it needs a break."""
    plain = str(text).replace("\r\n", "\n")
    if not visible.hides(plain):
        return _breakable(plain)
    drawn = (
        (_piece(piece) if piece.hidden else _breakable(piece.text),)
        for piece in visible.pieces(plain)
    )
    return format_html_join("", "{}", drawn)


def _breakable(text: str) -> SafeString:
    parts = (part for word in _IN_PATHS.split(text) for part in _long_parts(word))
    return SafeString("<wbr>".join(map(html.escape, parts)))  # Each part is escaped here.


def _long_parts(word: str) -> list[str]:
    return _IN_NAMES.split(word) if len(word) > _LONG_NAME else [word]


# Between a separator and the word after it: of a path or query, but not of a scheme; and of a
# host, which is taken apart only where it is long for a line of a phone.
_IN_PATHS = re.compile(r"(?<=[/?&=])(?<!//)(?=\w)")
_IN_NAMES = re.compile(r"(?<=[.:_@])(?=\w)")
_LONG_NAME = 30


@register.filter
def hidden_count(text: object) -> int:
    return visible.count_hidden(str(text))


@register.filter
def word_count(text: object) -> int:
    return len(str(text).split())


@register.simple_tag
def effect_words(sentence: str, emphasised: str | Sequence[str] = ()) -> SafeString:
    """The portal's sentence with the names in it set in italics; each name once, in order."""
    names = [emphasised] if isinstance(emphasised, str) else list(emphasised)
    parts: list[str] = []
    rest = sentence
    for name in filter(None, names):
        before, found, after = rest.partition(name)
        if not found:
            continue
        parts += [shown(before), "<em>", place(found), "</em>"]
        rest = after
    parts.append(shown(rest))
    return SafeString("".join(parts))  # Each part was escaped by `shown` or `place`.


@register.filter
def initials(name: str) -> str:
    words = str(name).replace("-", " ").split()
    if not words:
        return "?"
    return (words[0][0] + (words[-1][0] if len(words) > 1 else "")).upper()


@register.simple_tag
def agent_initials(name: str) -> SafeString:
    return conditional_escape(initials(name).lower())


# --- forms and facts -------------------------------------------------------------------------


@register.inclusion_tag("components/_field.html")
def field(bound: BoundField) -> dict[str, object]:
    """One field with its label, help and errors."""
    return {"field": bound, "group": bound.widget_type in ("radioselect", "checkboxselectmultiple")}


@register.filter
def action_words(name: object) -> str:
    """`packet.approved` as `Packet approved`, `manifest_digest` as `Manifest digest`."""
    words = str(name).replace(".", " ").replace("_", " ")
    return words[:1].upper() + words[1:]


@register.filter(is_safe=True)
def fact(value: object) -> SafeString:
    """A stored value as a person reads it; digests shortened with the whole in the title."""
    if value is None or value in ("", [], {}):
        return format_html('<span class="muted">{}</span>', "none")
    if value is True or value is False:
        return format_html("{}", "yes" if value else "no")
    if isinstance(value, str) and _HEX.fullmatch(value):
        return digest(value, 3, False)
    if isinstance(value, list | tuple):
        return format_html_join(", ", "{}", ((fact(each),) for each in value[:20]))
    if isinstance(value, dict):
        each = ((shown(action_words(str(key)).lower()), fact(part)) for key, part in value.items())
        return format_html_join(", ", "{} {}", each)
    return shown(value)


_HEX = re.compile(r"(?:sha256:)?(?:[0-9a-f]{64}|[0-9a-f]{40})")


@register.filter
def roles_of(membership: Membership) -> str:
    return roles_in_words(membership)


@register.filter
def minutes(number: int) -> str:
    """A number of minutes as a length of time."""
    return span_words(number * _MINUTE)
