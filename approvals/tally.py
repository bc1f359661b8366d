"""Whether those who approved a packet were enough, told from evidence alone.

The page of a packet seals what its rules demand, and the audit log tells who answered. This follows
one packet from the one to the other, as a bundle has them. What it cannot see it does not judge:
who was in a group or held a role when it counted is the portal's word, in the line that ends the
packet. It knows no framework.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from approvals.carry import content_digest
from approvals.quorum import Quorum, number_word


@dataclass
class Tally:
    """What an undecided packet demands, and who approved it in its latest round of votes."""

    quorum: Quorum
    passkey: bool = False
    # Whether an approval is held, and can be undone: the packet may then be open again.
    held: bool = False
    # What a vote on it is about (`approvals.carry`), to compare with the packet in its place.
    content: str = ""
    # Of the page, as the log says; votes name it.
    digest: object = ""
    # People who may not approve, by key; None where the page is older than that.
    excluded: Collection[object] | None = None
    # Since when it asks and until when; None where the page is older than that.
    opened: datetime | None = None
    expires: datetime | None = None
    hold_seconds: int = 0
    # Whoever stands in after so many seconds, by stage: seconds and name.
    fallbacks: Mapping[str, list[tuple[int, str]]] = field(default_factory=dict)
    # The last step of those that the log told of.
    escalated: int = 0
    # What a right that was handed over may be for: kind and tool.
    about: Mapping[str, Any] = field(default_factory=dict)
    round: object = 1
    # Whose places were filled, by whom, and everybody who had a part in it.
    approved: dict[int, int] = field(default_factory=dict)
    heard: set[int] = field(default_factory=set)
    # When the last of them did, and whether enough had and the hold began.
    last: datetime | None = None
    holding: bool = False

    @classmethod
    def of_page(cls, page: Mapping[str, Any]) -> Tally:
        """As the page seals it. Raises `ValueError` for a gate that cannot be read."""
        gate: Any = page.get("gate")
        try:
            return cls(
                Quorum.of_gate(gate),
                passkey=bool(gate.get("passkey")),
                held="hold_seconds" in gate,
                hold_seconds=int(gate.get("hold_seconds", 0)),
                opened=_sealed(page, "opened"),
                fallbacks={
                    each["name"]: [
                        (int(one["after_seconds"]), str(one["name"]))
                        for one in each.get("fallbacks", ())
                    ]
                    for each in gate.get("stages", ())
                },
                about={name: page.get(name) for name in ("kind", "tool")},
                content=content_digest(page),
                excluded=None if "excluded" not in gate else list(gate["excluded"]),
                expires=_sealed(page, "expires"),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise ValueError("its page does not say who must approve it") from None

    def take(self, decision: Mapping[str, Any]) -> Iterator[str]:
        """One more answer; what is wrong with it, as the end of a sentence about a decision."""
        if decision.get("verdict") != "approve":
            return
        person, counted = decision.get("person"), decision.get("round", 1)
        if type(person) is not int:
            yield "is nobody's"
            return
        if counted != self.round:
            yield "is of another round of votes than its packet is in"
        if self.expires is not None and not _before(decision.get("at"), self.expires):
            yield "came after the time to decide"
        if self.holding:
            yield "came while an approval was held"
        if (moment := _moment(decision.get("at"))) is not None:
            self.last = moment if self.last is None else max(self.last, moment)
        giver = decision.get("on_behalf_of")
        # Whoever decides in another's name and that other are one person here.
        both = {person, giver} if type(giver) is int else {person}
        if both & self.heard:
            yield "is the second approval of one person"
        self.heard |= both
        self.approved[giver if type(giver) is int else person] = person
        if self.passkey and decision.get("signature") is None:
            yield "takes a passkey, and has none"
        own = self.excluded is not None and any(each in self.excluded for each in both)
        if own and (len(both) > 1 or decision.get("self_approved") is not True):
            yield "is an approval of somebody who may not give one"

    def begin_again(self, counted: object) -> Iterator[str]:
        """An approval that was held is undone: the votes are void, and this round begins."""
        if not self.held or type(self.round) is not int or counted != self.round + 1:
            yield "begins a round of votes that does not follow"
        self.round, self.approved, self.heard = counted, {}, set()
        self.last, self.holding = None, False

    def is_too_early(self, at: object) -> bool:
        """Whether something was said at a moment at which nobody had been asked."""
        return self.opened is not None and not _reached(at, self.opened, 0)

    def escalate(self, after: object, at: object) -> Iterator[str]:
        """Others may stand in from this line on, `after` so many seconds."""
        known = {step for steps in self.fallbacks.values() for step, _ in steps}
        if type(after) is not int or after not in known or after <= self.escalated:
            yield "lets people stand in whom its page does not name"
            return
        self.escalated = after
        if self.opened is not None and not _reached(at, self.opened, after):
            yield "lets people stand in before their time"

    def stand_in(self, stage: object, name: object, at: object) -> Iterator[str]:
        """Somebody fills a place of that stage as one who stands in by that name."""
        steps = [step for step, each in self.fallbacks.get(str(stage), ()) if each == name]
        if not steps:
            yield "fills a place as somebody whom its page does not name"
        elif min(steps) > self.escalated:
            yield "stands in before the log lets anybody"
        elif self.opened is not None and not _reached(at, self.opened, min(steps)):
            yield "stands in before its time"

    def hold(self, until: object) -> Iterator[str]:
        """Enough approved, and nothing happens before that moment."""
        if not self.held or self.last is None or self.holding:
            yield "holds an approval that nobody gave"
        elif not _reached(until, self.last, self.hold_seconds):
            yield "holds an approval for less than its page says"
        self.holding = True

    def release(self, at: object) -> Iterator[str]:
        """What was held takes effect at that moment."""
        if not self.holding or self.last is None:
            yield "ends a hold that did not begin"
        elif not _reached(at, self.last, self.hold_seconds):
            yield "ends a hold before its time"
        self.holding = False

    def takes_over(
        self, digest: object, earlier: tuple[object, Tally], person: object
    ) -> Iterator[str]:
        """What is wrong with a vote that was given on an earlier packet, with this digest.

        `earlier` is the digest of that one, and who approved it. Ends of sentences as in `take`.
        """
        read, before = earlier
        if digest != read:
            yield "is carried over from a page that it was not given on"
        if not isinstance(person, int) or before.approved.get(person) != person:
            yield "is carried over, and was never given"
        if self.passkey or before.passkey:
            yield "is carried over, though a passkey must sign it"
        fewer = {*(before.excluded or ())} - {*(self.excluded or ())}
        if before.content != self.content or fewer:
            yield "is carried over to a page of other content"

    def end(self, seats: object) -> Iterator[str]:
        """The packet is approved, with these people in these seats; what that lacks.

        Seats are pairs of a person and what they counted as. Sentences begin with what lacks.
        """
        wanted, there = self.quorum.people, len(self.approved)
        if there < wanted:
            yield f"it needed {_people(wanted)}, and {_people(there)} approved it"
        if not self.quorum.stages:
            return
        sitting = _pairs(seats)
        if len({person for person, _ in sitting}) < len(sitting):
            yield "one person fills two places"
        if {person for person, _ in sitting} - self.approved.keys():
            yield "somebody fills a place who did not approve it"
        filled = Counter(route for _, route in sitting)
        for stage in self.quorum.stages:
            if filled[stage.route] < stage.people:
                yield f"it needed {stage.words}, and {_people(filled[stage.route])} filled that"


def _sealed(page: Mapping[str, Any], name: str) -> datetime | None:
    return datetime.fromisoformat(page["time"][name]) if "time" in page else None


def _moment(told: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(told))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _before(told: object, end: datetime) -> bool:
    moment = _moment(told)
    return moment is not None and moment < end


def _reached(told: object, begin: datetime, seconds: int) -> bool:
    moment = _moment(told)
    return moment is not None and moment >= begin + timedelta(seconds=seconds)


def _pairs(seats: object) -> list[tuple[object, object]]:
    rows = seats if isinstance(seats, list) else []
    # Anything else is no place; numbers and texts alone can be compared and kept in a set.
    return [
        (row[0], row[1])
        for row in rows
        if isinstance(row, list)
        and len(row) == 2
        and all(isinstance(each, int | str) for each in row)
    ]


def _people(number: int) -> str:
    if not number:
        return "nobody"
    return f"{number_word(number)} {'person' if number == 1 else 'people'}"
