"""What a rule demands of the people who answer, beside that somebody does.

A rule says it in annotations; those of all rules that spoke hold together; a packet seals what came
of it into its gate, and `approvals.quorum` counts from there. Whatever else a rule can demand one
day is read, joined and sealed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from approvals import times
from approvals.quorum import listed, number_word
from approvals.times import NO_TIMES, Times, seconds
from portal.roles import GRANTS, Permission

MOST_PEOPLE = 10
ANNOTATIONS = ("needs", "role", "stages", "escalate", "hold", "passkey", *times.ANNOTATIONS, "risk")
RISKS = ("low", "normal", "high")
LONGEST_HOLD = 7 * 86400
_COUNT = re.compile(r"\d{1,9}")
_DECIDING = {Permission.DECIDE, Permission.PUBLISH, Permission.MANAGE}
ROLES = tuple(role.value for role, granted in GRANTS.items() if granted & _DECIDING)
HANDLE = r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?"
"""The name of a group in rules."""
_STAGE = re.compile(rf"([0-9]{{1,4}}) of (group|role):({HANDLE})")
_EXAMPLE = '@stages("1 of group:security, 2 of role:admin")'
_ESCALATION = re.compile(rf"(\w+) to (group|role):({HANDLE})")
_ESCALATE = '@escalate("2h to group:owners")'

Notes: TypeAlias = Mapping[str, str | None]
"""The annotations of a rule: name → text."""
Groups: TypeAlias = Mapping[str, tuple[int, str]]
"""The groups of a tenant: name in rules → primary key and what people call it."""


Kind: TypeAlias = Literal["group", "role"]


def _route(kind: Kind, name: str, groups: Groups) -> dict[str, Any]:
    """As a gate has it: with the group's key, which a later group of its name does not have."""
    if kind == "role":
        return {"route": f"role:{name}", "name": name}
    # A group that is gone has no key, and nobody is in it.
    key, called = groups.get(name, (0, name))
    return {"route": f"group:{key}", "group": name, "name": called}


def _unsealed(sealed: Mapping[str, Any]) -> tuple[Kind, str]:
    return ("group", str(sealed["group"])) if "group" in sealed else ("role", str(sealed["name"]))


@dataclass(frozen=True)
class Fallback:
    """People who may fill a stage's places too, `after` so many seconds without a decision."""

    after: int
    kind: Kind
    name: str

    def sealed(self, groups: Groups) -> dict[str, Any]:
        return {**_route(self.kind, self.name, groups), "after_seconds": self.after}

    @property
    def words(self) -> str:
        """`after 2 hours undecided the group owners`"""
        who = "the group" if self.kind == "group" else "people with the role"
        return f"after {times.said(self.after)} undecided {who} {self.name}"


@dataclass(frozen=True)
class Stage:
    """So many people of one group, or who hold one role; who stands in for them, and when."""

    kind: Kind
    name: str
    people: int
    fallbacks: tuple[Fallback, ...] = ()

    def sealed(self, groups: Groups) -> dict[str, Any]:
        gate = {**_route(self.kind, self.name, groups), "people": self.people}
        if self.fallbacks:
            gate["fallbacks"] = [each.sealed(groups) for each in self.fallbacks]
        return gate

    @property
    def parties(self) -> list[tuple[Kind, str]]:
        """Who may fill its places, sooner or later."""
        return [(self.kind, self.name), *((each.kind, each.name) for each in self.fallbacks)]

    def joined(self, other: Stage) -> Stage:
        """Both of these: the more people. Only whoever both let stand in may, and the later."""
        theirs = {(each.kind, each.name): each.after for each in other.fallbacks}
        both = (
            Fallback(max(each.after, theirs[each.kind, each.name]), each.kind, each.name)
            for each in self.fallbacks
            if (each.kind, each.name) in theirs
        )
        return replace(self, people=max(self.people, other.people), fallbacks=tuple(both))


@dataclass(frozen=True)
class Demands:
    """So many people must approve, fill all `stages`, and for each of `roles` one must hold it.

    For `hold` seconds after the last approval nothing happens yet, and it can be undone.
    With `passkey` every one of them signs the packet's digest with a passkey of their own.
    Several of low `risk` may be decided at once; of high risk the target's name is typed.
    """

    people: int = 1
    roles: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    hold: int = 0
    passkey: bool = False
    risk: str = "normal"
    times: Times = NO_TIMES

    def sealed(self, groups: Groups) -> dict[str, Any]:
        """As the gate on a packet's page has it."""
        gate: dict[str, Any] = {"needed": self.people, "roles": list(self.roles)}
        if self.stages:
            gate["stages"] = [stage.sealed(groups) for stage in self.stages]
        if self.hold:
            gate["hold_seconds"] = self.hold
        if self.passkey:
            gate["passkey"] = "required"
        if self.risk != "normal":
            gate["risk"] = self.risk
        return gate | self.times.sealed()

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

    @property
    def fallback_words(self) -> str:
        """For the table of rules: who stands in, and when; nothing where nobody does."""
        every = dict.fromkeys(each.words for stage in self.stages for each in stage.fallbacks)
        return f"{listed(list(every))} may fill places too" if every else ""


def hold_of(gate: Mapping[str, Any]) -> int:
    """The hold that a packet's gate has, in seconds."""
    return int(gate.get("hold_seconds", 0))


def risk_of(gate: Mapping[str, Any]) -> str:
    """The risk that a packet's gate has; what is none of ours counts as high."""
    risk = gate.get("risk", "normal")
    return str(risk) if risk in RISKS else "high"


def stages_in(sealed: Iterable[Mapping[str, Any]]) -> frozenset[Stage]:
    """The stages of a gate in the words of rules, to compare them with what others demand."""
    return frozenset(_stages_of(sealed))


def _stages_of(sealed: Iterable[Mapping[str, Any]]) -> tuple[Stage, ...]:
    return tuple(
        Stage(
            *_unsealed(each),
            int(each["people"]),
            tuple(
                Fallback(int(one["after_seconds"]), *_unsealed(one))
                for one in each.get("fallbacks", ())
            ),
        )
        for each in sealed
    )


ONE_PERSON = Demands()


def of_gate(gate: Mapping[str, Any]) -> Demands:
    """What a packet's sealed gate demands, in the words of rules."""
    return Demands(
        people=int(gate["needed"]),
        roles=tuple(gate.get("roles", ())),
        stages=_stages_of(gate.get("stages", ())),
        hold=hold_of(gate),
        passkey=bool(gate.get("passkey")),
        times=Times.of_gate(gate),
        risk=risk_of(gate),
    )


def read(notes: Notes) -> Demands:
    """What a rule without `faults` demands."""
    role = notes.get("role")
    needed = Demands(
        people=int(notes.get("needs") or "1"),
        roles=(role,) if role else (),
        hold=seconds(notes.get("hold") or "") or 0,
        passkey=notes.get("passkey") == "required",
        times=times.read(notes),
    )
    stages, _ = _stages(notes.get("stages"))
    fallbacks, _ = _fallbacks(notes.get("escalate"))
    standing_in = tuple(
        replace(
            stage,
            fallbacks=tuple(
                each for each in fallbacks if (each.kind, each.name) != (stage.kind, stage.name)
            ),
        )
        for stage in stages
    )
    whole = joined([needed, Demands(stages=standing_in)])
    return replace(whole, risk=notes.get("risk") or "normal")


def joined(several: Iterable[Demands], *, least: int = 1) -> Demands:
    """What all of these demand together: the most people, `least` at least, every role, the
    longest hold, the shortest times, and the highest risk: it is low where every one says so.

    All stages hold, in the order of the rules; of one group or role the most people that one of
    them wants, and only whoever each of them lets stand in may do so.
    """
    every = list(several)
    stages: dict[tuple[Kind, str], Stage] = {}
    for stage in (stage for each in every for stage in each.stages):
        known = stages.get((stage.kind, stage.name))
        stages[stage.kind, stage.name] = stage if known is None else known.joined(stage)
    seats = sum(stage.people for stage in stages.values())
    return Demands(
        people=max([least, seats, *(each.people for each in every)]),
        roles=tuple(sorted({role for each in every for role in each.roles})),
        stages=tuple(stages.values()),
        hold=max((each.hold for each in every), default=0),
        passkey=any(each.passkey for each in every),
        risk=max((each.risk for each in every), key=RISKS.index, default="normal"),
        times=times.joined(each.times for each in every),
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


def _fallbacks(text: str | None) -> tuple[list[Fallback], list[tuple[str, str]]]:
    """Who stands in when, and what is wrong with the annotation: reason and remedy."""
    found: list[Fallback] = []
    if text is None:
        return [], []
    for part in text.split(","):
        words = " ".join(part.split())
        match = _ESCALATION.fullmatch(words)
        if match is None:
            return [], [(f"@escalate: “{words[:60]}” names nobody.", f"Write {_ESCALATE}.")]
        after, kind, name = seconds(match[1]), match[2], match[3]
        if after is None or not times.SHORTEST <= after <= times.LONGEST["decide"]:
            reason = f"@escalate: “{match[1][:40]}” is no span of time of 1 minute to 30 days."
            return [], [(reason, times.REMEDY)]
        if kind == "role" and name not in ROLES:
            reason = f"@escalate: {name} is no role that decides."
            return [], [(reason, f"Write {', '.join(ROLES)}.")]
        if any((each.kind, each.name) == (kind, name) for each in found):
            return [], [(f"@escalate names {kind}:{name} twice.", "Leave one of them out.")]
        found.append(Fallback(after, "group" if kind == "group" else "role", name))
    return found, []


def _escalation_faults(notes: Notes) -> list[tuple[str, str]]:
    """What is wrong with who stands in, beside how it is written."""
    found, wrong = _fallbacks(notes["escalate"] or "")
    if wrong:
        return wrong
    if notes.get("stages") is None:
        reason = "@escalate stands where there are no stages: whoever may decide counts already."
        return [(reason, "Write @stages too, or leave it out.")]
    own = {(each.kind, each.name) for each in _stages(notes["stages"])[0]}
    if twice := [each for each in found if own == {(each.kind, each.name)}]:
        reason = f"@escalate: {twice[0].kind}:{twice[0].name} is the stage itself."
        return [(reason, "Name somebody else.")]
    decide = times.read(notes).decide
    if decide and any(each.after >= decide for each in found):
        over = f"the {times.said(decide)} to decide are over"
        reason = f"@escalate: {over} before somebody may stand in."
        return [(reason, "Write a shorter span than @decide has.")]
    return []


def faults(notes: Notes, *, asks: bool) -> list[tuple[str, str, str]]:
    """What is wrong with the demands: annotation, reason, remedy. `asks`: the rule asks people."""
    found: list[tuple[str, str, str]] = []
    # Written without a text one is None, and would demand nothing.
    texts = {name: notes[name] or "" for name in ANNOTATIONS if name in notes}
    needs, role, hold = texts.get("needs"), texts.get("role"), texts.get("hold")
    if needs is not None and not (_COUNT.fullmatch(needs) and 1 <= int(needs) <= MOST_PEOPLE):
        reason = f'@needs("{needs:.40}") is not a number of people.'
        found.append(("needs", reason, f"Write 1 to {MOST_PEOPLE} in quotes."))
    if role is not None and role not in ROLES:
        reason = f'@role("{role}") is no role that decides.'
        found.append(("role", reason, f"Write {', '.join(ROLES)}."))
    if hold is not None and ((span := seconds(hold)) is None or span > LONGEST_HOLD):
        reason = f'@hold("{hold}") is no span of time up to 7 days.'
        found.append(("hold", reason, "Write a number and s, m, h or d: 90s, 15m, 4h, 2d."))
    found += [("stages", *fault) for fault in _stages(texts.get("stages"))[1]]
    found += times.faults(notes)
    if "escalate" in notes:
        found += [("escalate", *fault) for fault in _escalation_faults(notes)]
    if texts.get("passkey", "required") != "required":
        reason = f'@passkey("{texts["passkey"]}") demands nothing.'
        found.append(("passkey", reason, 'Write @passkey("required"), or leave it out.'))
    if texts.get("risk", "low") not in ("low", "high"):
        reason = f'@risk("{texts["risk"]}") is no risk.'
        found.append(("risk", reason, 'Write @risk("low") or @risk("high"), or leave it out.'))
    if texts and not asks:
        found.append(
            (
                next(iter(texts)),
                f"{listed([f'@{name}' for name in ANNOTATIONS])} have no effect here.",
                'Use them on permit with Action::"ask" or Action::"publish".',
            )
        )
    return found
