"""What people have agreed on how approving works, in a few plain rules of its own.

Nothing here knows how the portal does it: no code of `approvals` is asked. The world tells it what
people did and what the clock says; the laws compare what it concludes with what is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import permutations

APPROVE, DENY, CHANGES = "approve", "deny", "request_changes"
ANSWERS = (APPROVE, DENY, CHANGES)
ENDED = frozenset({"published", "denied", "failed", "cancelled", "expired"})

# Who may give which answer to what.
MAY_APPROVE = {"publication": {"publisher"}}
MAY_HOLD_BACK = {"publication": {"publisher", "reviewer"}}
ANYTHING_ELSE = {"reviewer"}
SENT_BACK = ("call", "publication")


class LawBroken(AssertionError):
    """Something that must never be false was false. Begins with the law's number."""


def hold(law: int, holds: object, what: str) -> None:
    """Raise `LawBroken` unless it holds."""
    if not holds:
        raise LawBroken(f"law {law}: {what}")


@dataclass(frozen=True)
class Wants:
    """What one rule set demands: how many people, a role among them, one of each of these groups,
    and how long nothing happens after the last of them approved."""

    people: int = 1
    role: str = ""
    groups: tuple[str, ...] = ()
    hold: timedelta = timedelta(0)

    @property
    def least(self) -> int:
        """How many people it takes at least: another one for each group."""
        return max(self.people, len(self.groups))


@dataclass(frozen=True)
class Rules:
    """One text of a policy, in the words of this reference: what it demands of which tool."""

    text: str
    demands: Mapping[str, Wants] = field(default_factory=dict)
    denies: frozenset[str] = frozenset()

    def wants(self, tool: str) -> Wants:
        return self.demands.get(tool, Wants())


@dataclass
class Person:
    """Somebody who may answer. `key` is the human: a machine's is its owner's."""

    name: str
    key: int
    roles: set[str]
    groups: set[str] = field(default_factory=set)
    machine: bool = False
    inside: bool = True  # belongs to the tenant
    active: bool = True

    @property
    def there(self) -> bool:
        return self.inside and self.active


@dataclass(frozen=True)
class Vote:
    """One answer that was accepted."""

    name: str
    verdict: str
    digest: str
    token: str


@dataclass
class Asked:
    """One packet as it was when it was opened, and what people answered."""

    kind: str
    tool: str
    run: int
    digest: str
    asker: str
    wants: Wants
    barred: frozenset[int]
    expires: datetime
    valid_seconds: int
    rules: str
    votes: list[Vote] = field(default_factory=list)
    # Those given before an approval was undone: they are void.
    void: list[Vote] = field(default_factory=list)
    undone: int = 0
    held_until: datetime | None = None
    approved_at: datetime | None = None

    @property
    def round(self) -> int:
        """Which round of votes this is."""
        return 1 + self.undone

    def hold_from(self, now: datetime, people: Mapping[str, Person]) -> None:
        """Begin the hold, if there is one and enough people approved by now."""
        if self.wants.hold and self.enough(people):
            self.held_until = now + self.wants.hold

    def undo(self) -> None:
        """Everybody is asked anew."""
        self.void += self.votes
        self.votes, self.held_until = [], None
        self.undone += 1

    def vote_of(self, name: str) -> Vote | None:
        return next((each for each in self.votes if each.name == name), None)

    def allowed(self, person: Person, verdict: str) -> bool:
        """Whether the person's roles are enough for the answer."""
        table = MAY_APPROVE if verdict == APPROVE else MAY_HOLD_BACK
        return bool(person.roles & table.get(self.kind, ANYTHING_ELSE))

    def counted(self, people: Mapping[str, Person]) -> dict[int, Person]:
        """Whose approvals count now, by human."""
        found: dict[int, Person] = {}
        for vote in self.votes:
            person = people[vote.name]
            counts = person.there and not person.machine and person.key not in self.barred
            if (
                vote.verdict == APPROVE
                and vote.digest == self.digest
                and counts
                and self.allowed(person, APPROVE)
            ):
                found[person.key] = person
        return found

    def enough(self, people: Mapping[str, Person]) -> bool:
        """Whether those who count are as many, and hold the role, that the rule demands.

        For the groups somebody must be found who is another person for each.
        """
        counted = self.counted(people)
        if self.wants.groups and not any(
            all(
                group in person.groups
                for group, person in zip(self.wants.groups, each, strict=True)
            )
            for each in permutations(counted.values(), len(self.wants.groups))
        ):
            return False
        held = {role for person in counted.values() for role in person.roles}
        return len(counted) >= self.wants.people and (
            not self.wants.role or self.wants.role in held
        )

    def in_time(self, now: datetime) -> bool:
        """Whether the approval may be used at this moment."""
        if self.approved_at is None:
            return False
        return self.approved_at <= now < self.approved_at + timedelta(seconds=self.valid_seconds)


@dataclass(frozen=True)
class Answered:
    """One answer as somebody sends it."""

    person: Person
    verdict: str
    seen: str
    token: str = ""


def objections(
    asked: Asked, answer: Answered, *, state: str, run: str, now: datetime, rules: Rules
) -> set[str]:
    """Every reason for which this answer must be refused. None: it must be accepted."""
    person, why = answer.person, set()
    if not person.there:
        why.add("portal.not_found")
    if person.machine:
        why.add("approvals.machine_may_not_decide")
    if not asked.allowed(person, answer.verdict):
        why.add("portal.not_allowed")
    if answer.verdict == CHANGES and asked.kind not in SENT_BACK:
        why.add("portal.bad_input")
    if not answer.seen:
        why.add("approvals.needs_digest")
    if why:
        return why
    earlier = asked.vote_of(person.name)
    if earlier is not None:
        same = bool(answer.token) and (earlier.token, earlier.verdict) == (
            answer.token,
            answer.verdict,
        )
        return set() if same else {"approvals.already_decided"}
    if state != "open":
        why.add("approvals.already_settled")
    if run in ENDED:
        why.add("approvals.run_over")
    if now >= asked.expires:
        why.add("approvals.packet_expired")
    if asked.held_until is not None:
        why.add("approvals.packet_held")
    if answer.seen != asked.digest:
        why.add("approvals.packet_changed")
    if answer.verdict == APPROVE:
        if person.key in asked.barred:
            why.add("approvals.own_request")
        if asked.tool in rules.denies:
            why.add("approvals.policy_now_denies")
        if asked.wants.groups and not person.groups & set(asked.wants.groups):
            why.add("approvals.counts_for_nothing")
    return why


def objections_to_undo(asked: Asked, person: Person, *, seen: int) -> set[str]:
    """The same for taking an approval back, of which the page showed this round."""
    why = set()
    if not person.there:
        why.add("portal.not_found")
    if person.machine:
        why.add("approvals.machine_may_not_decide")
    # Whoever gave one of the approvals takes it back, whatever they may by now.
    if not asked.allowed(person, DENY) and asked.vote_of(person.name) is None:
        why.add("portal.not_allowed")
    if asked.held_until is None or seen != asked.round:
        why.add("approvals.nothing_held")
    return why


def objections_to_withdrawal(asked: Asked, person: Person, *, state: str, run: str) -> set[str]:
    """The same for taking the question back."""
    why = set()
    if not person.there:
        why.add("portal.not_found")
    if person.name != asked.asker:
        why.add("approvals.not_yours")
    if state != "open":
        why.add("approvals.already_settled")
    if run in ENDED:
        why.add("approvals.run_over")
    return why


def one_of(names: Iterable[str], number: int) -> str:
    """A choice that a plain number makes."""
    listed = sorted(names)
    return listed[number % len(listed)]
