"""Every reason for which the portal must refuse what somebody sends, by the reference's own rules.

Nothing said means that it must be accepted; of several reasons any one may be told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from tests.statemachine.reference import (
    APPROVE,
    CHANGES,
    DENY,
    ENDED,
    SENT_BACK,
    Asked,
    Handed,
    Person,
    Rules,
)


@dataclass(frozen=True)
class Answered:
    """One answer as somebody sends it; with `giver` in that one's name, by the right `handed`."""

    person: Person
    verdict: str
    seen: str
    token: str = ""
    giver: Person | None = None
    handed: bool = False
    # What was typed, and what became of the passkey: `right`, `none`, or something else.
    typed: str = ""
    signed: str = "none"

    @property
    def holder(self) -> Person:
        """Whose place it would fill."""
        return self.giver or self.person


@dataclass(frozen=True)
class Edited:
    """An edit as somebody sends it: whether these are other arguments, and whether it is `again`
    what made the packet that took this one's place."""

    person: Person
    seen: str
    changes: bool
    again: bool


@dataclass(frozen=True)
class Now:
    """How everything stands around a packet as the answer comes."""

    state: str
    run: str
    now: datetime
    rules: Rules


def objections(asked: Asked, answer: Answered, at: Now) -> set[str]:
    """To an answer."""
    return _of_who(asked, answer) or _of_earlier(asked, answer, at)


def _of_who(asked: Asked, answer: Answered) -> set[str]:
    """What is asked before the packet is looked at."""
    person, why = answer.person, set()
    if not person.there:
        why.add("portal.not_found")
    if answer.giver is not None and not answer.handed:
        why.add("approvals.not_in_their_name")
    if person.machine:
        why.add("approvals.machine_may_not_decide")
    if not asked.allowed(answer.holder, answer.verdict):
        why.add("portal.not_allowed")
    if answer.verdict == CHANGES and asked.kind not in SENT_BACK:
        why.add("portal.bad_input")
    if not answer.seen:
        why.add("approvals.needs_digest")
    return why


def _of_earlier(asked: Asked, answer: Answered, at: Now) -> set[str]:
    """What is asked of those who count as one person with whoever answers."""
    person, holder = answer.person, answer.holder
    voices = asked.voices_of(person.name, holder.name)
    if any(each.name != person.name for each in voices):
        return {"approvals.voice_used"}
    for each in voices:
        sent = (answer.token, answer.verdict, holder.name)
        same = bool(answer.token) and (each.token, each.verdict, each.holder) == sent
        return set() if same else {"approvals.already_decided"}
    return _of_packet(asked, answer, at)


def _of_packet(asked: Asked, answer: Answered, at: Now) -> set[str]:
    why = _not_open(asked, answer.seen, at)
    if answer.verdict == APPROVE:
        if {answer.person.key, answer.holder.key} & asked.barred:
            why.add("approvals.own_request")
        if asked.tool in at.rules.denies and not asked.test:
            why.add("approvals.policy_now_denies")
        if asked.wants.groups and not answer.holder.groups & asked.groups(at.now):
            why.add("approvals.counts_for_nothing")
        if asked.word and answer.typed != asked.word:
            why.add("approvals.needs_typed")
        if asked.wants.passkey and answer.signed != "right":
            none = answer.signed == "none"
            why.add("approvals.needs_passkey" if none else "portal.passkey_refused")
    return why


def _not_open(asked: Asked, seen: str, at: Now) -> set[str]:
    why = set()
    if at.state != "open":
        why.add("approvals.already_settled")
    if at.run in ENDED:
        why.add("approvals.run_over")
    if at.now >= asked.expires:
        why.add("approvals.packet_expired")
    if asked.held_until is not None:
        why.add("approvals.packet_held")
    if seen != asked.digest:
        why.add("approvals.packet_changed")
    return why


def objections_to_undo(asked: Asked, person: Person, *, seen: int) -> set[str]:
    """To taking an approval back, of which the page showed this round.

    Whoever had a part in one of the approvals may, whatever they may by now.
    """
    why = set()
    if not person.there:
        why.add("portal.not_found")
    if person.machine:
        why.add("approvals.machine_may_not_decide")
    if not asked.allowed(person, DENY) and not asked.voices_of(person.name):
        why.add("portal.not_allowed")
    if asked.held_until is None or seen != asked.round:
        why.add("approvals.nothing_held")
    return why


def objections_to_edit(asked: Asked, edited: Edited, at: Now) -> set[str]:
    """To putting other arguments in the place of a call's."""
    person, why = edited.person, set()
    if not person.there:
        why.add("portal.not_found")
    if person.machine:
        why.add("approvals.machine_may_not_decide")
    if "reviewer" not in person.roles:
        why.add("portal.not_allowed")
    if asked.kind != "call":
        why.add("approvals.not_editable")
    if why or edited.again:
        return why
    why = _not_open(asked, edited.seen, at)
    if asked.test:
        why.add("approvals.not_editable")
    if not edited.changes:
        why.add("approvals.nothing_edited")
    if asked.tool in at.rules.denies:
        why.add("approvals.edit_denied")
    return why


def objections_to_withdrawal(asked: Asked, person: Person, at: Now) -> set[str]:
    """To taking the question back."""
    why = set()
    if not person.there:
        why.add("portal.not_found")
    if person.name != asked.asker:
        why.add("approvals.not_yours")
    if asked.kind == "resume":
        why.add("portal.bad_input")
    if at.state != "open":
        why.add("approvals.already_settled")
    if at.run in ENDED:
        why.add("approvals.run_over")
    return why


def objections_to_handing(giver: Person, taker: Person) -> set[str]:
    """To handing one's right to another."""
    if not giver.there:
        return {"portal.not_found"}
    if giver is taker or not giver.answers or not taker.answers:
        return {"approvals.cannot_hand_over"}
    return set()


def objections_to_ending(handed: Handed, people: Mapping[str, Person], name: str) -> set[str]:
    """To taking it back, before its time."""
    person = people[name]
    if not person.there:
        return {"portal.not_found"}
    mine = name in (handed.giver, handed.taker) or "admin" in person.roles
    return set() if mine else {"portal.not_allowed"}
