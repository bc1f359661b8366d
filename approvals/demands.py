"""What a rule demands of the people who answer, beside that somebody does.

A rule says it in annotations; those of all rules that spoke hold together; a packet seals what came
of it into its gate, and `approvals.quorum` counts from there. Whatever else a rule can demand one
day is read, joined and sealed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from approvals.quorum import listed, number_word
from portal.roles import GRANTS, Permission

MOST_PEOPLE = 10
ANNOTATIONS = ("needs", "role", "stages", "hold", "passkey")
LONGEST_HOLD = 7 * 86400
_COUNT = re.compile(r"\d{1,9}")
_DECIDING = {Permission.DECIDE, Permission.PUBLISH, Permission.MANAGE}
ROLES = tuple(role.value for role, granted in GRANTS.items() if granted & _DECIDING)
HANDLE = r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?"
"""The name of a group in rules."""
_STAGE = re.compile(rf"([0-9]{{1,4}}) of (group|role):({HANDLE})")
_EXAMPLE = '@stages("1 of group:security, 2 of role:admin")'

Notes: TypeAlias = Mapping[str, str | None]
"""The annotations of a rule: name → text."""
Groups: TypeAlias = Mapping[str, tuple[int, str]]
"""The groups of a tenant: name in rules → primary key and what people call it."""


@dataclass(frozen=True)
class Stage:
    """So many people of one group, or who hold one role."""

    kind: Literal["group", "role"]
    name: str
    people: int

    def sealed(self, groups: Groups) -> dict[str, Any]:
        """As a gate has it: with the group's key, which a later group of its name does not have."""
        if self.kind == "role":
            return {"route": f"role:{self.name}", "name": self.name, "people": self.people}
        # A group that is gone has no key, and nobody is in it.
        key, name = groups.get(self.name, (0, self.name))
        return {
            "route": f"group:{key}",
            "group": self.name,
            "name": name,
            "people": self.people,
        }


@dataclass(frozen=True)
class Demands:
    """So many people must approve, fill all `stages`, and for each of `roles` one must hold it.

    For `hold` seconds after the last approval nothing happens yet, and it can be undone.
    With `passkey` every one of them signs the packet's digest with a passkey of their own.
    """

    people: int = 1
    roles: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    hold: int = 0
    passkey: bool = False

    def sealed(self, groups: Groups) -> dict[str, Any]:
        """As the gate on a packet's page has it."""
        gate: dict[str, Any] = {"needed": self.people, "roles": list(self.roles)}
        if self.stages:
            gate["stages"] = [stage.sealed(groups) for stage in self.stages]
        if self.hold:
            gate["hold_seconds"] = self.hold
        if self.passkey:
            gate["passkey"] = "required"
        return gate

    @property
    def words(self) -> str:
        """For the table of rules; nothing where one person of any kind is enough."""
        parts = [
            f"{number_word(each.people)} "
            f"{'of the group' if each.kind == 'group' else 'with the role'} {each.name}"
            for each in self.stages
        ]
        if self.people > sum(each.people for each in self.stages) and self.people > 1:
            parts.append(f"{self.people} people{' in all' if parts else ''}")
        parts += [f"one with the role {role} among them" for role in self.roles]
        return f"needs {listed(parts)}" if parts else ""


def hold_of(gate: Mapping[str, Any]) -> int:
    """The hold that a packet's gate has, in seconds."""
    return int(gate.get("hold_seconds", 0))


def stages_in(sealed: Iterable[Mapping[str, Any]]) -> frozenset[Stage]:
    """The stages of a gate in the words of rules, to compare them with what others demand."""
    return frozenset(
        Stage("group", str(each["group"]), int(each["people"]))
        if "group" in each
        else Stage("role", str(each["name"]), int(each["people"]))
        for each in sealed
    )


ONE_PERSON = Demands()


def read(notes: Notes) -> Demands:
    """What a rule without `faults` demands."""
    role, hold = notes.get("role"), notes.get("hold")
    needed = Demands(
        people=int(notes.get("needs") or 1),
        roles=(role,) if role else (),
        hold=seconds(hold) or 0 if hold else 0,
        passkey=notes.get("passkey") == "required",
    )
    stages, _ = _stages(notes.get("stages"))
    return joined([needed, Demands(stages=tuple(stages))])


_SPAN = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(span: str) -> int | None:
    """`90s`, `15m`, `4h` or `2d` in seconds; None for anything else."""
    match = _SPAN.fullmatch(span)
    return int(match[1]) * _UNITS[match[2]] if match else None


def joined(several: Iterable[Demands], *, least: int = 1) -> Demands:
    """What all of these demand together: the most people, `least` at least, every role, and
    the longest hold.

    All stages hold, in the order of the rules; of one group or role the most people that one of
    them wants.
    """
    every = list(several)
    most: dict[tuple[Literal["group", "role"], str], int] = {}
    for stage in (stage for each in every for stage in each.stages):
        most[stage.kind, stage.name] = max(stage.people, most.get((stage.kind, stage.name), 0))
    return Demands(
        people=max([least, sum(most.values()), *(each.people for each in every)]),
        roles=tuple(sorted({role for each in every for role in each.roles})),
        stages=tuple(Stage(kind, name, count) for (kind, name), count in most.items()),
        hold=max([0, *(each.hold for each in every)]),
        passkey=any(each.passkey for each in every),
    )


def _stages(text: str | None) -> tuple[list[Stage], list[tuple[str, str]]]:
    """The stages of an annotation, and what is wrong with it: reason and remedy."""
    found: list[Stage] = []
    if text is None:
        return [], []
    for part in text.split(","):
        words = " ".join(part.split())
        match = _STAGE.fullmatch(words)
        if match is None:
            return [], [(f"@stages: “{words[:60]}” is no stage.", f"Write {_EXAMPLE}.")]
        people, kind, name = int(match[1]), match[2], match[3]
        if not 1 <= people <= MOST_PEOPLE:
            reason = f"@stages: “{words}” wants {people} people."
            return [], [(reason, f"Write 1 to {MOST_PEOPLE}.")]
        if kind == "role" and name not in ROLES:
            reason = f"@stages: {name} is no role that decides."
            return [], [(reason, f"Write {', '.join(ROLES)}.")]
        if any((each.kind, each.name) == (kind, name) for each in found):
            return [], [(f"@stages names {kind}:{name} twice.", "Write one stage with both.")]
        found.append(Stage("group" if kind == "group" else "role", name, people))
    if sum(each.people for each in found) > MOST_PEOPLE:
        return [], [
            ("@stages wants more people than one packet may need.", f"Write {MOST_PEOPLE} at most.")
        ]
    return found, []


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
    if "stages" in notes:
        # Written without a text it is None, and would demand nothing.
        found += [("stages", *fault) for fault in _stages(notes["stages"] or "")[1]]
    if "passkey" in notes and notes["passkey"] != "required":
        reason = f'@passkey("{notes["passkey"] or ""}") demands nothing.'
        found.append(("passkey", reason, 'Write @passkey("required"), or leave it out.'))
    given = [name for name in ANNOTATIONS if notes.get(name) is not None]
    if given and not asks:
        found.append(
            (
                given[0],
                f"{listed([f'@{name}' for name in ANNOTATIONS])} have no effect here.",
                'Use them on permit with Action::"ask" or Action::"publish".',
            )
        )
    return found
