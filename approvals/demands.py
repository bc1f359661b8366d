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
ANNOTATIONS = ("needs", "role")
_COUNT = re.compile(r"\d{1,9}")
_DECIDING = {Permission.DECIDE, Permission.PUBLISH, Permission.MANAGE}
ROLES = tuple(role.value for role, granted in GRANTS.items() if granted & _DECIDING)

Notes: TypeAlias = Mapping[str, str | None]
"""The annotations of a rule: name → text."""


@dataclass(frozen=True)
class Demands:
    """So many people must approve, and for each of `roles` one of them must hold it."""

    people: int = 1
    roles: tuple[str, ...] = ()

    def sealed(self) -> dict[str, Any]:
        """As the gate on a packet's page has it."""
        return {"needed": self.people, "roles": list(self.roles)}


ONE_PERSON = Demands()


def read(notes: Notes) -> Demands:
    """What a rule without `faults` demands."""
    role = notes.get("role")
    return Demands(int(notes.get("needs") or 1), (role,) if role else ())


def joined(several: Iterable[Demands], *, least: int = 1) -> Demands:
    """What all of these demand together: the most people, `least` at least, and every role."""
    every = list(several)
    return Demands(
        people=max([least, *(each.people for each in every)]),
        roles=tuple(sorted({role for each in every for role in each.roles})),
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
    given = [name for name in ANNOTATIONS if notes.get(name) is not None]
    if given and not asks:
        found.append(
            (
                given[0],
                f"{' and '.join(f'@{name}' for name in ANNOTATIONS)} have no effect here.",
                'Use them on permit with Action::"ask" or Action::"publish".',
            )
        )
    return found
