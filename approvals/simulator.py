"""What a policy would have said to everything that was judged in some days.

The same facts are put to another text, through the same function that judges. Facts are taken as
they were stored with each verdict; where none were stored, that is counted and nothing is guessed.
Each is judged alone: had an earlier one ended otherwise, later facts might have been others too.

It reads one portion at a time and keeps counts and a few links, so its memory does not grow with
the history. It knows no framework and no database.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime
from itertools import islice
from math import inf
from operator import attrgetter
from typing import Any

import cedarpy

from approvals.demands import Stage
from approvals.policy import CallFacts, Effect, Facts, PolicyResult, PublishFacts, decide_many

PORTION = 500
SHOWN = 50  # links of one group
REMEMBERED = 20_000  # verdicts
CHANGES = (
    *(("allow", "ask"), ("allow", "deny")),
    *(("ask", "allow"), ("ask", "deny")),
    *(("deny", "allow"), ("deny", "ask")),
)


@dataclass(frozen=True, slots=True)
class Past:
    """One thing that policy judged.

    `kind` and `key` say which; `effect` is what policy said then. `packet` is the key of the packet
    that people were shown, `answer` its state and `needed` how many people it wanted, in which
    `stages`.
    """

    kind: str
    key: int
    at: datetime
    facts: Facts | None
    effect: Effect
    packet: int | None = None
    answer: str = ""
    needed: int = 1
    stages: frozenset[Stage] = frozenset()


@dataclass
class Group:
    """How many, and the newest of them."""

    count: int = 0
    shown: list[Past] = field(default_factory=list)

    def add(self, past: Past) -> None:
        self.count += 1
        if len(self.shown) < SHOWN:
            self.shown.append(past)

    @property
    def more(self) -> int:
        """How many are not shown."""
        return self.count - len(self.shown)

    @property
    def last(self) -> datetime | None:
        """When the oldest that is shown was judged; the others were before."""
        return self.shown[-1].at if self.shown else None


def _groups(*names: Any) -> dict[Any, Group]:
    return {name: Group() for name in names}


@dataclass
class Trial:
    """What came of it. `packets` are by what the policy would have said to them."""

    packets: dict[Effect, Group] = field(default_factory=lambda: _groups("allow", "ask", "deny"))
    allowed_denied: Group = field(default_factory=Group)  # it allows what people denied
    denied_approved: Group = field(default_factory=Group)  # it denies what people approved
    fewer: Group = field(default_factory=Group)  # it wants fewer people than there were
    more: Group = field(default_factory=Group)
    other_stages: Group = field(default_factory=Group)  # it wants other stages than there were
    signed: Group = field(default_factory=Group)  # it asks, and each approval takes a passkey
    # What no person was shown, by what policy said then and what it would say.
    changed: dict[tuple[str, str], Group] = field(default_factory=lambda: _groups(*CHANGES))
    same: int = 0
    packets_without_facts: int = 0
    others_without_facts: int = 0
    failed: Group = field(default_factory=Group)  # a rule failed, so it is denied
    error: str = ""
    cut: datetime | None = None  # time was over here, and older ones were not read

    @property
    def asked_people(self) -> int:
        """Packets that were replayed."""
        return sum(group.count for group in self.packets.values())

    @property
    def otherwise(self) -> int:
        """Never shown to a person, and judged otherwise than then."""
        return sum(group.count for group in self.changed.values())

    @property
    def alone(self) -> int:
        """Replayed, and never shown to a person."""
        return self.same + self.otherwise

    @property
    def without_facts(self) -> int:
        return self.packets_without_facts + self.others_without_facts


def replay(
    text: str, history: Iterable[Past], *, seconds: float = inf, now: datetime | None = None
) -> Trial:
    """Put every past thing to the policy `text`, which must be sound, and count what it says.

    A rule that ends permits where it does not end before `now`. After so many seconds it stops
    where it stands, and says where.
    """
    trial, judge, pasts = Trial(), _Judge(text, now), iter(history)
    end = time.monotonic() + seconds
    while portion := list(islice(pasts, PORTION)):
        known = [past for past in portion if past.facts is not None]
        for past in portion:
            if past.facts is None:
                _missing(trial, past)
        verdicts = judge.verdicts([past.facts for past in known if past.facts is not None])
        for past, verdict in zip(known, verdicts, strict=True):
            _count(trial, past, verdict)
        if time.monotonic() > end:
            trial.cut = portion[-1].at
            break
    return trial


def sentence(trial: Trial, span: str) -> str:
    """The outcome in one sentence, in the portal's words; `span` such as "in 90 days"."""
    total = trial.asked_people
    if not total:
        return f"No packet {span} could be replayed."
    allow, ask, deny = (f"{trial.packets[each].count:,}" for each in ("allow", "ask", "deny"))
    said = (
        f"Of {total:,} packet{'' if total == 1 else 's'} {span} it would have allowed {allow}, "
        f"asked {ask}, denied {deny}"
    )
    denied = trial.allowed_denied.count
    if not denied:
        return f"{said}."
    were = "was" if denied == 1 else "were"
    return f"{said}; {denied:,} of the {allow} {were} denied by people."


def passkey_sentence(trial: Trial) -> str:
    """`2 of the 3 it asks about would have needed a passkey.`, or nothing where none would."""
    signed, asked = trial.signed.count, trial.packets["ask"].count
    if not signed:
        return ""
    if asked == 1:
        return "The one it asks about would have needed a passkey."
    many = "All" if signed == asked else f"{signed:,}"
    return f"{many} of the {asked:,} it asks about would have needed a passkey."


def _missing(trial: Trial, past: Past) -> None:
    if past.packet is None:
        trial.others_without_facts += 1
    else:
        trial.packets_without_facts += 1


def _count(trial: Trial, past: Past, verdict: PolicyResult) -> None:
    if verdict.errors:
        trial.failed.add(past)
        trial.error = trial.error or verdict.errors[0]
    if past.packet is None:
        if past.effect == verdict.effect:
            trial.same += 1
        else:
            trial.changed[past.effect, verdict.effect].add(past)
        return
    trial.packets[verdict.effect].add(past)
    if verdict.effect == "allow" and past.answer == "denied":
        trial.allowed_denied.add(past)
    if verdict.effect == "deny" and past.answer == "approved":
        trial.denied_approved.add(past)
    if verdict.effect == "ask" and verdict.demands.passkey:
        trial.signed.add(past)
    if verdict.effect == "ask" and verdict.demands.people < past.needed:
        trial.fewer.add(past)
    if verdict.effect == "ask" and verdict.demands.people > past.needed:
        trial.more.add(past)
    if verdict.effect == "ask" and frozenset(verdict.demands.stages) != past.stages:
        trial.other_stages.add(past)


# --- Judging many -------------------------------------------------------------------------------


class _Judge:
    """Verdicts of one policy. Facts that differ only in what it never reads are judged once."""

    def __init__(self, text: str, now: datetime | None = None) -> None:
        self._text = text
        self._clock = (lambda: now) if now is not None else None
        read = facts_read(text)
        self._keys = {kind: _key_of(kind, read) for kind in (CallFacts, PublishFacts)}
        self._known: dict[object, PolicyResult] = {}

    def verdicts(self, many: list[Facts]) -> Iterator[PolicyResult]:
        keys = [self._keys[type(facts)](facts) for facts in many]
        if len(self._known) > REMEMBERED:
            self._known.clear()
        new = {key: facts for key, facts in zip(keys, many, strict=True) if key not in self._known}
        found = decide_many(self._text, list(new.values()), self._clock) if new else []
        self._known.update(zip(new, found, strict=True))
        return (self._known[key] for key in keys)


def _key_of(kind: type, read: frozenset[str] | None) -> attrgetter[Any]:
    """What tells two facts of this kind apart for a policy that reads no others."""
    # Who and what are asked about in a rule's head, and the gate is no fact for rules.
    always = {"agent", "tool", "target", "approvals"}
    names = [each.name for each in fields(kind)]
    # A call and a candidate both have a name that the other has not, so no two keys are alike.
    own = "kind" if kind is CallFacts else "target_kind"
    return attrgetter(*(name for name in names if read is None or name in read | always | {own}))


def facts_read(text: str) -> frozenset[str] | None:
    """The facts that a policy reads, or None if it uses the context as a whole."""
    found: set[str] = set()
    left: list[object] = [json.loads(cedarpy.policies_to_json_str(text))]
    while left:  # conditions may be nested deeper than functions may
        node = left.pop()
        if isinstance(node, list):
            left += node
        elif isinstance(node, dict):
            if node == _CONTEXT:
                return None
            if (name := _fact_read(node)) is not None:
                found.add(name)
            else:
                left += node.values()
    return frozenset(found)


_CONTEXT = {"Var": "context"}


def _fact_read(node: dict[str, object]) -> str | None:
    """The fact, where a part of a condition does nothing but read one or ask whether it is."""
    if len(node) != 1:
        return None
    inner = node.get(".", node.get("has"))
    if not isinstance(inner, dict) or inner.get("left") != _CONTEXT:
        return None
    name = inner.get("attr")
    return name if isinstance(name, str) else None
