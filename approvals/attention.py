"""How a decision was come to: how long its page was open, how much there was, and what was shown.

It is kept with the decision and told to the person first. It is a fact for reading, never a reason:
nothing is refused, delayed or approved because of it.

When the page was opened is signed by the portal and comes back with the form. What was on screen
only the browser can know; it says so without proof, and lies apart under `claimed`:

    opened_at   when the page was made, by the portal's clock
    ms          from then to the answer, by the portal's clock
    size        what there was: `bytes` of arguments, or `files` and `lines` of a candidate
    claimed     by the page: `hunks` that came on screen `of` so many, whether the diff was loaded
                `whole`, `sections` of so many (`sections_of`), `expanded` parts, `visible_ms`
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any

from django.core import signing
from django.utils import timezone

from approvals.models import Packet
from approvals.states import Verdict
from portal.canonical import canonical
from portal.models import User

_SALT = "imprimatur.view"
_NUMBERS = ("hunks", "of", "sections", "sections_of", "expanded", "visible_ms")
_MOST = 10**9


def view_of(packet: Packet, person: User) -> str:
    """What a page carries: that this person was shown this packet now."""
    return signing.dumps([str(packet.public_id), person.pk, _ms(timezone.now())], salt=_SALT)


def kept_view(view: str, packet: Packet, person: User) -> str:
    """The same where a page is drawn again for the answer that came with it; else a new one."""
    return view if _opened_ms(view, packet, person) is not None else view_of(packet, person)


def measured(packet: Packet, person: User, view: str, claims: str) -> dict[str, Any] | None:
    """What is kept with a decision that is made now; None where no page of ours led to it."""
    opened = _opened_ms(view, packet, person)
    if opened is None:
        return None
    now = _ms(timezone.now())
    return {
        "opened_at": datetime.fromtimestamp(opened / 1000, UTC).isoformat(),
        "ms": max(0, now - opened),
        "size": _size(packet),
        "claimed": _claimed(claims),
    }


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _opened_ms(view: str, packet: Packet, person: User) -> int | None:
    try:
        shown, reader, opened = signing.loads(view[:1000], salt=_SALT)
    except (signing.BadSignature, ValueError, TypeError):
        return None
    return opened if (shown, reader) == (str(packet.public_id), person.pk) else None


def _size(packet: Packet) -> dict[str, int]:
    if packet.candidate is None:
        return {"bytes": len(canonical(packet.page["arguments"]))}
    changes = packet.candidate.changes
    lines = sum((each["added"] or 0) + (each["removed"] or 0) for each in changes)
    return {"files": len(changes), "lines": lines}


def _claimed(claims: str) -> dict[str, Any]:
    """What of the page's own words has the form it must have; nothing else is kept."""
    try:
        said = json.loads(claims[:2000] or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(said, dict):
        return {}
    kept: dict[str, Any] = {
        name: said[name]
        for name in _NUMBERS
        if type(said.get(name)) is int and 0 <= said[name] <= _MOST
    }
    return kept | ({"whole": said["whole"]} if type(said.get("whole")) is bool else {})


# --- In words -------------------------------------------------------------------------------------


def span(ms: float) -> str:
    """`4 s`, `3 min`, `2 h`."""
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.0f} h"


def seen_words(kept: Mapping[str, Any]) -> str:
    """`12 of 41 hunks were on screen`, as the page said; nothing where there are no hunks."""
    claimed = kept["claimed"]
    hunks, of = claimed.get("hunks"), claimed.get("of")
    if hunks is None or not of:
        return ""
    more = "" if claimed.get("whole") else " or more"
    return f"{hunks} of {of}{more} hunks were on screen"


def size_words(kept: Mapping[str, Any]) -> str:
    """`3 files, 120 lines`, `340 bytes`."""
    return ", ".join(
        f"{number:,} {name[:-1] if number == 1 else name}" for name, number in kept["size"].items()
    )


def words(kept: Mapping[str, Any] | None) -> str:
    """What a person is told of their own decision; nothing where nothing was measured."""
    if kept is None:
        return ""
    seen = seen_words(kept)
    return f"You decided in {span(kept['ms'])}; {seen or size_words(kept)}."


# --- Many of them ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Streak:
    """Approvals in a row, the newest first, and the median of their times."""

    approvals: int
    median_ms: float | None

    @property
    def words(self) -> str:
        count = f"{self.approvals} approval{'' if self.approvals == 1 else 's'} in a row"
        return count if self.median_ms is None else f"{count}, median {span(self.median_ms)}"


def streak_of(answers: Iterable[tuple[str, Mapping[str, Any] | None]]) -> Streak:
    """The approvals that somebody's answers begin with, newest first."""
    count, times = 0, []
    for verdict, kept in answers:
        if verdict != Verdict.APPROVE:
            break
        count += 1
        if kept is not None:
            times.append(kept["ms"])
    return Streak(count, median(times) if times else None)


@dataclass(frozen=True)
class Together:
    """The answers of several people at once."""

    answers: int
    median_ms: float
    # Of answers on a diff: those with all of it on screen.
    diffs: int
    whole: int

    @property
    def words(self) -> str:
        said = f"{self.answers:,} answers, median {span(self.median_ms)}"
        if not self.diffs:
            return f"{said}."
        return f"{said}; of {self.diffs:,} on a diff {self.whole:,} had all of it on screen."


def together(many: Iterable[Mapping[str, Any]]) -> Together | None:
    """What they come to; None if there is none."""
    kept = list(many)
    if not kept:
        return None
    claims = [each["claimed"] for each in kept if each["claimed"].get("of")]
    whole = sum(bool(each.get("whole")) and each.get("hunks", 0) >= each["of"] for each in claims)
    return Together(len(kept), median(each["ms"] for each in kept), len(claims), whole)
