"""What a rule demands of the clock: time to decide, time to carry it out, reminders.

    @decide("4h")     a packet that nobody decided by then expires
    @execute("30m")   an approval that was not used by then is worth nothing
    @remind("1h")     as often as that, while it is undecided, those who may decide are told again

A contract has times of its own for the first two; the shorter one holds. It knows no framework.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

ANNOTATIONS = ("decide", "execute", "remind")
SHORTEST = 60
"""Shorter ones would be over before somebody looked, or a worker came."""
DAY = 86400
LONGEST = {"decide": 30 * DAY, "execute": 7 * DAY, "remind": 7 * DAY}
REMEDY = "Write a number and s, m, h or d: 90s, 15m, 4h, 2d."
_SPAN = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": DAY}
_NAMES = ((DAY, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


def seconds(span: str) -> int | None:
    """`90s`, `15m`, `4h` or `2d` in seconds; None for anything else."""
    match = _SPAN.fullmatch(span)
    return int(match[1]) * _UNITS[match[2]] if match else None


def said(span: int) -> str:
    """`30 minutes`, `1 hour and 30 minutes`: the two largest units, the rest is left out."""
    parts = []
    for size, name in _NAMES:
        number, span = divmod(span, size)
        if number:
            parts.append(f"{number} {name}{'' if number == 1 else 's'}")
    return " and ".join(parts[:2]) or "no time"


@dataclass(frozen=True)
class Times:
    """In seconds; 0 where nothing is demanded."""

    decide: int = 0
    execute: int = 0
    remind: int = 0

    def sealed(self) -> dict[str, int]:
        """As a gate has them."""
        every = {name: getattr(self, name) for name in ANNOTATIONS}
        return {f"{name}_seconds": span for name, span in every.items() if span}

    @classmethod
    def of_gate(cls, gate: Mapping[str, Any]) -> Times:
        """As `sealed` left them. A gate that is older than them has none."""
        return cls(*(int(gate.get(f"{name}_seconds", 0)) for name in ANNOTATIONS))

    @property
    def words(self) -> list[str]:
        """Each in words, for the table of rules and a packet's page."""
        parts = []
        if self.decide:
            parts.append(f"to be decided within {said(self.decide)}")
        if self.execute:
            parts.append(f"to be carried out within {said(self.execute)} of the decision")
        if self.remind:
            often = said(self.remind)
            often = often.removeprefix("1 ") if " and " not in often else often
            parts.append(f"to be brought up again every {often} until it is decided")
        return parts


NO_TIMES = Times()


def read(notes: Mapping[str, str | None]) -> Times:
    """What a rule without `faults` demands."""
    return Times(*(seconds(notes.get(name) or "") or 0 for name in ANNOTATIONS))


def joined(several: Iterable[Times]) -> Times:
    """All of these together: of each the shortest."""
    every = list(several)
    return Times(
        *(
            min((span for each in every if (span := getattr(each, name))), default=0)
            for name in ANNOTATIONS
        )
    )


def faults(notes: Mapping[str, str | None]) -> list[tuple[str, str, str]]:
    """What is wrong with them: annotation, reason, remedy."""
    found = []
    for name in ANNOTATIONS:
        if name in notes:
            text, longest = notes[name] or "", LONGEST[name]
            span = seconds(text)
            if span is None or not SHORTEST <= span <= longest:
                reason = f'@{name}("{text:.40}") is no span of time of 1 minute to {said(longest)}.'
                found.append((name, reason, REMEDY))
    given = read(notes)
    if not found and given.decide and given.decide <= given.remind:
        reason = f"@remind: the {said(given.decide)} to decide are over before the first reminder."
        found.append(("remind", reason, "Write a shorter span than @decide has."))
    return found


def valid_seconds(gate: Mapping[str, Any], kind: str) -> int:
    """How long an approval may be used: as the contract and the rules say, the shorter of both.

    That of a network rule is used as it is given; its time is how long the rule stays open.
    """
    valid = 60 * int(gate["valid_minutes"])
    span = Times.of_gate(gate).execute
    return min(span, valid) if span and kind != "egress" else valid


def next_reminder(gate: Mapping[str, Any], opened: datetime, now: datetime) -> datetime | None:
    """The first reminder after `now`; those that were missed are not made up for."""
    span = Times.of_gate(gate).remind
    if not span:
        return None
    passed = max(0, int((now - opened).total_seconds() // span))
    return opened + timedelta(seconds=span * (passed + 1))


def steps(gate: Mapping[str, Any]) -> list[int]:
    """After how many seconds somebody may stand in for a stage, soonest first."""
    stages = gate.get("stages", ())
    return sorted({each["after_seconds"] for one in stages for each in one.get("fallbacks", ())})


def next_escalation(gate: Mapping[str, Any], opened: datetime, taken: int) -> datetime | None:
    """When the first step after the one that was `taken` is due."""
    later = [step for step in steps(gate) if step > taken]
    return opened + timedelta(seconds=later[0]) if later else None


def step_at(gate: Mapping[str, Any], opened: datetime, now: datetime) -> int:
    """The last step that is due by now; 0 if none is."""
    waited = (now - opened).total_seconds()
    return max((step for step in steps(gate) if step <= waited), default=0)
