"""What people have agreed on how approving works, in a few plain rules of its own.

Nothing here knows how the portal does it: no code of `approvals` is asked. The world tells it what
people did and what the clock says; the laws compare what it concludes with what is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import permutations

APPROVE, DENY, CHANGES = "approve", "deny", "request_changes"
ANSWERS = (APPROVE, DENY, CHANGES)
ENDED = frozenset({"published", "denied", "failed", "cancelled", "expired"})

# Who may give which answer to what.
MAY_APPROVE = {"publication": {"publisher"}}
MAY_HOLD_BACK = {"publication": {"publisher", "reviewer"}}
ANYTHING_ELSE = {"reviewer"}
ANSWERING = frozenset({"publisher", "reviewer"})
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
    and how long nothing happens after the last of them approved.

    After the time of `relief` whoever is of that group may stand in for any of the groups. With
    `passkey` each of them signs; of `high` risk the target is typed, and several of `low` risk may
    be decided at once. There may be less time to decide and to execute than usual.
    """

    people: int = 1
    role: str = ""
    groups: tuple[str, ...] = ()
    hold: timedelta = timedelta(0)
    relief: tuple[str, timedelta] | None = None
    passkey: bool = False
    risk: str = ""
    decide: timedelta = timedelta(days=1)
    execute: timedelta = timedelta(days=1)
    remind: timedelta | None = None

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

    @property
    def answers(self) -> bool:
        """Whether there is anything this person may answer."""
        return self.there and not self.machine and bool(self.roles & ANSWERING)


@dataclass
class Handed:
    """One person's right in another's hands, from when to when, for these tools or for all."""

    giver: str
    taker: str
    begins: datetime
    ends: datetime
    tools: frozenset[str] = frozenset()
    over: bool = False

    def holds(self, people: Mapping[str, Person], tool: str, now: datetime) -> bool:
        """Whether the taker may decide about this tool in the giver's name at this moment."""
        giver, taker = people[self.giver], people[self.taker]
        there = giver.there and not giver.machine and taker.answers
        in_time = not self.over and self.begins <= now < self.ends
        return there and in_time and (not self.tools or tool in self.tools)


@dataclass(frozen=True)
class Vote:
    """One answer that was accepted; `giver` is whose right it was, if not that person's own.

    One that was `carried` was given on another packet, by its key.
    """

    name: str
    verdict: str
    digest: str
    token: str = ""
    giver: str = ""
    carried: int | None = None

    @property
    def holder(self) -> str:
        """Whose place it fills."""
        return self.giver or self.name


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
    opened: datetime
    expires: datetime
    valid_seconds: int
    rules: str
    # Whether the like of it was denied before in its run, and what must be typed to approve it.
    denied_before: bool = False
    word: str = ""
    # Whether others stand in by now, and how often people were reminded.
    relieved: bool = False
    reminded: int = 0
    remind_at: datetime | None = None
    # The name of the call it asks about, and what stands there instead of what the agent wrote.
    call: str = ""
    arguments: Mapping[str, object] | None = None
    # All that its page says but what tells which packet it is.
    content: str = ""
    # Where a person changed the arguments: who, and of which packet, by its key.
    editor: str = ""
    before: int | None = None
    superseded: bool = False
    # Where it asks whether a run goes on: of what, and whether the run did.
    differs: tuple[int, int, str] | None = None
    gone_on: bool = False
    # A test of whether people look: nothing is behind it.
    test: bool = False
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

    def groups(self, now: datetime) -> set[str]:
        """Whose people can be of use at this moment, where only those of groups are."""
        relief = self.wants.relief
        due = relief is not None and (self.relieved or self.relief_due(now))
        return {*self.wants.groups, *((relief[0],) if relief is not None and due else ())}

    def relief_due(self, now: datetime) -> bool:
        """Whether others are to stand in who do not yet."""
        relief = self.wants.relief
        return relief is not None and not self.relieved and now >= self.opened + relief[1]

    def remind(self, now: datetime) -> None:
        """Tell people again, if it is time; what was missed is not made up for."""
        if self.remind_at is None or self.wants.remind is None or now < self.remind_at:
            return
        self.reminded += 1
        while self.remind_at <= now:
            self.remind_at += self.wants.remind

    def take(self, vote: Vote, now: datetime, people: Mapping[str, Person]) -> None:
        """An answer was accepted."""
        self.relieved = self.relieved or self.relief_due(now)
        self.votes.append(vote)
        if vote.verdict == APPROVE:
            self.hold_from(now, people)

    def undo(self) -> None:
        """Everybody is asked anew."""
        self.void += self.votes
        self.votes, self.held_until = [], None
        self.undone += 1

    @property
    def denied(self) -> bool:
        """Whether somebody said no."""
        return any(each.verdict == DENY for each in self.votes)

    @property
    def can_be_likened(self) -> bool:
        """Whether a test packet may look like it: one person decides it with nothing but a click.

        It must be over by then, too.
        """
        wants = self.wants
        plain = wants.least == 1 and not wants.groups and not wants.passkey and not wants.hold
        real = self.kind == "call" and not self.test and not self.editor and not self.superseded
        return plain and real and not self.denied_before

    @property
    def among_others(self) -> bool:
        """Whether it may be decided with others at once."""
        return self.wants.risk == "low" and not self.wants.groups and not self.wants.passkey

    def voices_of(self, *names: str) -> list[Vote]:
        """The answers of these people, and those in their names."""
        return [each for each in self.votes if {each.name, each.holder} & {*names}]

    def allowed(self, person: Person, verdict: str) -> bool:
        """Whether the person's roles are enough for the answer."""
        table = MAY_APPROVE if verdict == APPROVE else MAY_HOLD_BACK
        return bool(person.roles & table.get(self.kind, ANYTHING_ELSE))

    def counted(self, people: Mapping[str, Person]) -> dict[int, Person]:
        """Whose places approvals fill now, by human.

        Where somebody decided in another's name neither of the two may be barred, and both must
        still be people who answer.
        """
        found: dict[int, Person] = {}
        for vote in self.votes:
            actor, holder = people[vote.name], people[vote.holder]
            if (
                vote.verdict == APPROVE
                and (vote.digest == self.digest or vote.carried is not None)
                and actor.answers
                and holder.answers
                and not {actor.key, holder.key} & self.barred
                and self.allowed(holder, APPROVE)
            ):
                found[holder.key] = holder
        return found

    def enough(self, people: Mapping[str, Person]) -> bool:
        """Whether those who count are as many, and hold the role, that the rule demands.

        For the groups somebody must be found who is another person for each.
        """
        counted = self.counted(people)
        relief = self.wants.relief
        stand_ins = (relief[0],) if relief is not None and self.relieved else ()
        if self.wants.groups and not any(
            all(
                person.groups & {group, *stand_ins}
                for group, person in zip(self.wants.groups, each, strict=True)
            )
            for each in permutations(counted.values(), len(self.wants.groups))
        ):
            return False
        held = {role for person in counted.values() for role in person.roles}
        return len(counted) >= self.wants.people and (
            not self.wants.role or self.wants.role in held
        )

    def carry(self, earlier: Iterable[tuple[int, Asked]], people: Mapping[str, Person]) -> None:
        """Take over what was said of exactly this content, of the packets that this one replaces.

        Each person's own words on a page they read; and never so many that nobody need look. What
        a passkey signed names the other packet.
        """
        if self.wants.passkey:
            return
        found: dict[str, Vote] = {}
        for key, before in earlier:
            same = before.content == self.content and before.barred <= self.barred
            if before.superseded and same:
                for vote in before.votes:
                    if vote.verdict == APPROVE and not vote.giver and vote.carried is None:
                        found.setdefault(vote.name, replace(vote, token="", carried=key))
        self.votes = list(found.values())
        counted = self.counted(people)
        self.votes = [each for each in self.votes if people[each.name].key in counted]
        if self.enough(people):
            self.votes = []

    def in_time(self, now: datetime) -> bool:
        """Whether the approval may be used at this moment."""
        if self.approved_at is None:
            return False
        return self.approved_at <= now < self.approved_at + timedelta(seconds=self.valid_seconds)
