"""What agents may ask for, each with what people said to it, and what follows from that.

A *capability* is as narrow as a rule can name it: one contract's agent, one tool, one place. The
numbers are counted over packets; the advice is an opinion on the numbers, given with its reasons,
and changes nothing. It knows no framework and no database.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass, field
from datetime import datetime, timedelta
from statistics import median
from typing import Literal, TypeAlias

from approvals.policy import CallFacts, Facts, PublishFacts
from approvals.simulator import Past
from portal.canonical import canonical

ENOUGH = 20  # approvals, none refused, before a rule is suggested
REFUSED = 3  # refusals, none approved, before it is said to be of no use
LASTS = timedelta(days=90)
TIMED = 999  # the newest answers a median is taken of

Advice: TypeAlias = Literal["promote", "keep", "remove"]
Column: TypeAlias = Literal["asked", "allowed", "denied", "changes", "expired", "undone"]
COLUMNS: tuple[Column, ...] = ("asked", "allowed", "denied", "changes", "expired", "undone")
_OF_STATE: dict[str, Column] = {
    "approved": "allowed",
    "denied": "denied",
    "changes_requested": "changes",
    "expired": "expired",
}
_KEPT = {
    "question": "A question is for a person.",
    "network": "What went out through an open way cannot be taken back.",
    "credential": "What a credential was used for cannot be taken back.",
}
# What reads and leaves nothing behind, so that a wrong one costs least.
READING_METHODS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Capability:
    """One tool at one place, as an agent of one contract asks for it."""

    contract: str
    agent: str
    tool: str
    # `http`, `sql`, `network`, …; of a candidate the kind of its target.
    kind: str
    method: str = ""
    host: str = ""
    port: int = 0
    credential: str = ""
    branch: str = ""

    @classmethod
    def of(cls, facts: Facts) -> Capability:
        if isinstance(facts, PublishFacts):
            return cls(
                facts.contract,
                facts.agent,
                facts.target,
                facts.target_kind,
                host=facts.host,
                branch=facts.branch,
            )
        return cls(
            facts.contract,
            facts.agent,
            facts.tool,
            facts.kind,
            facts.method,
            facts.host,
            facts.port,
            facts.credential,
        )

    @property
    def key(self) -> str:
        """What addresses call it."""
        return hashlib.sha256(canonical(list(astuple(self)))).hexdigest()[:20]

    @property
    def publishes(self) -> bool:
        return bool(self.branch)

    @property
    def place(self) -> str:
        """`GET tracker.example:443`, `github api.github.com, main`; else the kind of call."""
        where = f"{self.host}:{self.port}" if self.port else self.host
        if self.publishes:
            return f"{self.kind} {where}, {self.branch}".replace(" ,", ",")
        return " ".join(each for each in (self.method or self.kind, where) if each)

    @property
    def reads(self) -> bool:
        """Whether it changes nothing outside, so that a wrong one can be lived with."""
        return self.kind == "sql" or (self.kind == "http" and self.method in READING_METHODS)

    @property
    def narrow(self) -> bool:
        """Whether a rule can name all of it: letters without surprise, and a fixed place."""
        words = (self.contract, self.agent, self.tool, self.host, self.credential)
        plain = all(each.isascii() and each.isprintable() for each in words)
        return plain and bool(self.host or self.kind == "sql")


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of a packet: how many seconds people took, and its round of votes."""

    opened_at: datetime
    settled_at: datetime | None
    round: int
    by: frozenset[int] = frozenset()


@dataclass
class Evidence:
    """The numbers of one capability."""

    capability: Capability
    counts: Counter[Column] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    people: set[int] = field(default_factory=set)
    # The largest arguments that people said yes to, in bytes.
    largest: int = 0

    def add(self, past: Past, answered: Answered) -> None:
        for column in columns_of(past.answer, answered):
            self.counts[column] += 1
        decided = past.answer in ("approved", "denied", "changes_requested")
        if decided and answered.settled_at is not None and len(self.seconds) < TIMED:
            self.seconds.append((answered.settled_at - answered.opened_at).total_seconds())
        if past.answer == "approved":
            self.people |= answered.by
            if isinstance(past.facts, CallFacts):
                self.largest = max(self.largest, past.facts.argument_bytes)

    @property
    def median(self) -> float | None:
        """Seconds until people answered, waiting included."""
        return median(self.seconds) if self.seconds else None

    @property
    def refused(self) -> int:
        return sum(self.counts[each] for each in ("denied", "changes", "undone"))

    @property
    def advice(self) -> tuple[Advice, str]:
        """What the numbers speak for, and why."""
        allowed, what = self.counts["allowed"], self.capability
        if not allowed and self.refused >= REFUSED:
            return (
                "remove",
                f"People refused it {self.refused} times and never allowed it: the contract can do "
                "without, or a rule can forbid it.",
            )
        if what.publishes:
            return "keep", "What leaves for good is always read by a person."
        if self.refused:
            return "keep", f"People refused or undid {self.refused} of them."
        if not what.reads:
            return "keep", _KEPT.get(what.kind, "It may change what cannot be changed back.")
        if not what.narrow:
            return "keep", "No rule can name it narrowly enough."
        if allowed < ENOUGH:
            return "keep", f"Allowed {allowed} times; a rule takes {ENOUGH} at least."
        if len(self.people) < 2:
            return "keep", "One person alone has judged it."
        return (
            "promote",
            f"Allowed {allowed} times by {len(self.people)} people, never refused or undone; it "
            "only reads, at one place.",
        )


def columns_of(answer: str, answered: Answered) -> tuple[Column, ...]:
    """The numbers a packet counts for."""
    found: list[Column] = ["asked"]
    if answer in _OF_STATE:
        found.append(_OF_STATE[answer])
    if answered.round > 1:
        found.append("undone")
    return tuple(found)


def gathered(pasts: Iterable[tuple[Past, Answered]]) -> dict[str, Evidence]:
    """Evidence by key of the capability, of everything people were asked."""
    found: dict[str, Evidence] = {}
    known: dict[Capability, str] = {}
    for past, answered in pasts:
        if past.facts is None:
            continue
        what = Capability.of(past.facts)
        key = known.get(what) or known.setdefault(what, what.key)
        found.setdefault(key, Evidence(what)).add(past, answered)
    return found


# --- A rule from evidence -------------------------------------------------------------------------


def suggested_rule(evidence: Evidence, days: int, today: datetime) -> str:
    """A rule that permits exactly this capability without a person, and ends by itself.

    Only for what `advice` would promote. It permits no larger arguments than people said yes to,
    and whatever is forbidden stays so.
    """
    if evidence.advice[0] != "promote":
        raise ValueError("the numbers do not speak for a rule")
    what = evidence.capability
    conditions = [
        f"context.contract == {_quoted(what.contract)}",
        f"context.kind == {_quoted(what.kind)}",
        f"context.method == {_quoted(what.method)}",
        f"context.host == {_quoted(what.host)}",
        f"context.port == {what.port}",
        f"context.credential == {_quoted(what.credential)}",
        f"context.argument_bytes <= {evidence.largest}",
    ]
    ends = (today + LASTS).date().isoformat()
    condition = " &&\n  ".join(conditions)
    return (
        f'@id("evidence-{what.key[:12]}")\n'
        f'@why("People allowed it {evidence.counts["allowed"]} times in {days} days '
        'and never refused it.")\n'
        f'@expires("{ends}")\n'
        f"permit (\n  principal == Agent::{_quoted(what.agent)},\n"
        f'  action == Action::"do",\n  resource == Tool::{_quoted(what.tool)}\n)\n'
        f"when {{\n  {condition}\n}};\n"
    )


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
