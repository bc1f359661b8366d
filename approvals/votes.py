"""Follow every packet of a bundle from its opening to its end: who answered, and was that enough?

What one packet demands and who approved it is `approvals.tally`; whose right was used is
`approvals.rights`. This keeps those of the packets that are undecided, told by the lines of the
audit log in turn, and says what does not hold, each as a sentence. It knows no framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from approvals import rights
from approvals.bundle_form import (
    ESCALATED,
    HELD,
    MOVES,
    RELEASED,
    SUPERSEDED,
    UNDECIDED,
    source_of,
)
from approvals.tally import Tally
from approvals.verify_report import shown


class Votes:
    """The votes of one bundle.

    `whole` says whether the log is here from its beginning without a gap; where it is not, what
    lies outside of the bundle is a `note`.
    """

    def __init__(self, whole: Callable[[], bool], note: Callable[[str], None]) -> None:
        self._whole, self._note = whole, note
        # Of packets that may still be approved, what that takes.
        self._tallies: dict[str, Tally] = {}
        # Of superseded packets that had votes: digest and tally, for votes that are carried over.
        self._superseded: dict[str, tuple[object, Tally]] = {}
        # The keys of the first packet that was opened here and of the last one.
        self._packets: tuple[int, int] | None = None
        self._rights = rights.Rights()
        # Digests of publications that were approved, and not carried out so far.
        self._granted: set[object] = set()

    def opened(self, entry: Mapping[str, Any], page: Mapping[str, Any]) -> Iterator[str]:
        """A packet was opened, with this page."""
        seq, subject = entry.get("seq"), str(entry.get("subject"))
        try:
            tally = Tally.of_page(page)
        except ValueError as error:
            yield f"the packet behind audit line {seq}: {error}"
        else:
            tally.digest = _facts(entry).get("digest")
            self._tallies[subject] = tally
        key = _key_of(subject)
        first, last = self._packets or (key, 0)
        if key <= last:
            yield f"audit line {seq} opens a packet twice, or out of order"
        self._packets = first, max(last, key)

    def move(self, entry: Mapping[str, Any]) -> Iterator[str]:
        """A line of the log that is no answer: a packet ends or moves on, a right comes or goes."""
        action, subject = entry.get("action"), str(entry.get("subject"))
        facts = _facts(entry)
        if action in UNDECIDED:
            ended = self._tallies.pop(subject, None)
            if action == SUPERSEDED and ended is not None and ended.approved:
                self._superseded[subject] = facts.get("digest"), ended
        elif action in MOVES:
            yield from self._moved(entry, str(action), subject, facts)
        elif action == rights.MADE:
            if fault := self._rights.made(subject, facts, entry.get("actor")):
                yield f"audit line {entry.get('seq')} {fault}"
        elif action == rights.ENDED:
            self._rights.ended(subject)

    def _moved(
        self, entry: Mapping[str, Any], action: str, subject: str, facts: Mapping[str, Any]
    ) -> Iterator[str]:
        seq = entry.get("seq")
        tally = self._tallies.get(subject)
        if tally is None:
            yield from self._not_open(seq, subject)
            return
        # Told by the database's clock; lines from before that have their own time.
        moment = facts.get("moment", entry.get("at"))
        if action == ESCALATED:
            faults = tally.escalate(facts.get("after_seconds"), moment)
        elif action == HELD:
            faults = tally.hold(facts.get("until"))
        elif action == RELEASED:
            faults = tally.release(moment)
        else:
            giver, actor = facts.get("on_behalf_of"), entry.get("actor")
            # Whoever approved it in a name may take that back, whatever they may by now.
            if giver is not None and tally.approved.get(giver) != actor:
                told = {"person": actor, "at": moment}
                yield from _each(f"audit line {seq}", self._in_a_name(seq, giver, told, tally))
            faults = tally.begin_again(facts.get("round"))
        yield from _each(f"audit line {seq}", faults)
        if action == RELEASED:
            yield from self._approved(seq, subject, facts)

    def decided(self, entry: Mapping[str, Any], decision: Mapping[str, Any]) -> Iterator[str]:
        """An answer, behind its line: may it be one, and was it enough?"""
        seq, subject, facts = entry.get("seq"), str(entry.get("subject")), _facts(entry)
        tally = self._tallies.get(subject)
        if tally is None:
            yield from self._not_open(seq, subject)
            return
        yield from _each(
            f"the decision behind audit line {seq}", self._faults(seq, facts, decision, tally)
        )
        result = facts.get("result")
        if result == "approved":
            yield from self._approved(seq, subject, facts, for_good=not tally.held)
        elif result != "open":
            del self._tallies[subject]

    def _faults(
        self, seq: object, facts: Mapping[str, Any], decision: Mapping[str, Any], tally: Tally
    ) -> Iterator[str]:
        source = source_of(decision)
        if source is None and decision.get("digest") != tally.digest:
            yield "was made on another page"
        if source is None and tally.is_too_early(decision.get("at")):
            yield "came before it was asked"
        if (giver := decision.get("on_behalf_of")) is not None:
            yield from self._in_a_name(seq, giver, decision, tally)
        if "stood_in" in facts:
            yield from tally.stand_in(facts.get("stage"), facts["stood_in"], decision.get("at"))
        if source is not None:
            earlier = self._superseded.get(source)
            if earlier is not None:
                yield from tally.takes_over(decision.get("digest"), earlier, decision.get("person"))
            elif self._whole():
                yield f"is carried over from {shown(source)}, which had none that was superseded"
            else:
                self._note(
                    f"the vote behind audit line {seq} is carried over from {shown(source)}, "
                    "which this bundle does not show"
                )
        yield from tally.take(decision)

    def _in_a_name(
        self, seq: object, giver: object, told: Mapping[str, Any], tally: Tally
    ) -> Iterator[str]:
        """Whether whoever did this in another's name had the right to, as the log tells."""
        taker = told.get("person")
        if source_of(told) is not None:
            yield "is carried over, and in another's name"
        elif self._rights.known(giver, taker) or self._whole():
            if fault := self._rights.fault(giver, taker, told.get("at"), tally.about):
                yield fault
        else:
            self._note(
                f"audit line {seq} is in another's name, and this bundle does not show who handed "
                "that over"
            )

    def _approved(
        self, seq: object, subject: str, facts: Mapping[str, Any], *, for_good: bool = True
    ) -> Iterator[str]:
        """Enough people approved, the log says. What is held can still be undone."""
        tally = self._tallies[subject]
        for lack in tally.end(facts.get("stages")):
            yield f"not enough for audit line {seq}: {lack}"
        if for_good:
            del self._tallies[subject]
            if tally.about.get("kind") == "publication":
                self._granted.add(tally.digest)

    def published(self, seq: object, approved: object) -> Iterator[str]:
        """Something was published on the strength of the packet with this digest."""
        if isinstance(approved, str) and approved in self._granted:
            self._granted.remove(approved)
        elif self._whole():
            yield f"audit line {seq} publishes what nobody approved here, or publishes it twice"
        else:
            self._note(
                f"what audit line {seq} publishes was approved outside of what this bundle shows"
            )

    def _not_open(self, seq: object, subject: str) -> Iterator[str]:
        """Nothing can be decided about this packet any more, if it was opened here.

        Keys rise as packets are opened, so one that is older than the first packet here was opened
        before the bundle begins.
        """
        if self._packets and _key_of(subject) >= self._packets[0]:
            yield f"audit line {seq} is about a packet that was not open"


def _each(what: str, faults: Iterable[str]) -> Iterator[str]:
    for fault in faults:
        yield f"{what} {fault}"


def _facts(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    facts = entry.get("facts")
    return facts if isinstance(facts, dict) else {}


def _key_of(subject: str) -> int:
    kind, _, key = subject.partition(":")
    is_key = kind == "packet" and len(key) < 20 and key.isascii() and key.isdecimal()
    return int(key) if is_key else -1
