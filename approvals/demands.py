"""What a rule demands of the people who answer, beside that somebody does.

A rule says it in annotations; those of all rules that spoke hold together; a packet seals what came
of it into its gate. Whatever else a rule can demand one day is read, joined and sealed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from portal.roles import GRANTS, Permission

MOST_PEOPLE = 10
ANNOTATIONS = ("needs", "role", "hold")
LONGEST_HOLD = 7 * 86400
_COUNT = re.compile(r"\d{1,9}")
_DECIDING = {Permission.DECIDE, Permission.PUBLISH, Permission.MANAGE}
ROLES = tuple(role.value for role, granted in GRANTS.items() if granted & _DECIDING)

Notes: TypeAlias = Mapping[str, str | None]
"""The annotations of a rule: name → text."""


@dataclass(frozen=True)
class Demands:
    """So many people must approve, and for each of `roles` one of them must hold it.

    For `hold` seconds after the last approval nothing happens yet, and it can be undone.
    """

    people: int = 1
    roles: tuple[str, ...] = ()
    hold: int = 0

    def sealed(self) -> dict[str, Any]:
        """As the gate on a packet's page has it."""
        gate: dict[str, Any] = {"needed": self.people, "roles": list(self.roles)}
        if self.hold:
            gate["hold_seconds"] = self.hold
        return gate


def hold_of(gate: Mapping[str, Any]) -> int:
    """The hold that a packet's gate has, in seconds."""
    return int(gate.get("hold_seconds", 0))


ONE_PERSON = Demands()


def read(notes: Notes) -> Demands:
    """What a rule without `faults` demands."""
    role, hold = notes.get("role"), notes.get("hold")
    return Demands(
        people=int(notes.get("needs") or 1),
        roles=(role,) if role else (),
        hold=seconds(hold) or 0 if hold else 0,
    )


_SPAN = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(span: str) -> int | None:
    """`90s`, `15m`, `4h` or `2d` in seconds; None for anything else."""
    match = _SPAN.fullmatch(span)
    return int(match[1]) * _UNITS[match[2]] if match else None


def joined(several: Iterable[Demands], *, least: int = 1) -> Demands:
    """What all of these demand together: the most people, `least` at least, every role, and
    the longest hold."""
    every = list(several)
    return Demands(
        people=max([least, *(each.people for each in every)]),
        roles=tuple(sorted({role for each in every for role in each.roles})),
        hold=max([0, *(each.hold for each in every)]),
    )


def faults(notes: Notes, *, asks: bool) -> list[tuple[str, str, str]]:
    """What is wrong with the demands: annotation, reason, remedy. `asks`: the rule asks people."""
    found: list[tuple[str, str, str]] = []
    needs, role = notes.get("needs"), notes.get("role")
    if needs is not None and not (_COUNT.fullmatch(needs) and 1 <= int(needs) <= MOST_PEOPLE):
        reason = f'@needs("{needs:.40}") is not a number of people.'
        found.append(("needs", reason, f"Write 1 to {MOST_PEOPLE} in quotes."))
    if role is not None and role not in ROLES:
        reason = f'@role("{role}") is no role that decides.'
        found.append(("role", reason, f"Write {', '.join(ROLES)}."))
    hold = notes.get("hold")
    if hold is not None and not 0 < (seconds(hold) or 0) <= LONGEST_HOLD:
        reason = f'@hold("{hold}") is no span of time up to 7 days.'
        found.append(("hold", reason, "Write a number and s, m, h or d: 90s, 15m, 4h, 2d."))
    given = [name for name in ANNOTATIONS if notes.get(name) is not None]
    if given and not asks:
        found.append(
            (
                given[0],
                f"@{', @'.join(ANNOTATIONS)} have no effect here.",
                'Use them on permit with Action::"ask" or Action::"publish".',
            )
        )
    return found
