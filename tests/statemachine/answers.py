"""The events of a sequence in which people answer packets, each with what must come of it."""

from __future__ import annotations

import json
from collections.abc import Callable

from approvals.confirm import typed_word
from approvals.deciding import Answer, settle_packet
from approvals.editing import edit_packet
from approvals.models import Packet
from approvals.states import Verdict
from approvals.undo import undo_approval
from approvals.withdraw import withdraw_packet
from runs.models import Run
from tests.statemachine.agents import Agents
from tests.statemachine.reference import LawBroken, Vote
from tests.statemachine.refusals import (
    Answered,
    Edited,
    Now,
    objections,
    objections_to_edit,
    objections_to_undo,
    objections_to_withdrawal,
)
from tests.statemachine.rules import RULES
from tests.statemachine.state import VOTERS


class Answers(Agents):
    """Each method is one event, and the reference says what the portal must make of it."""

    def at(self, packet: Packet) -> Now:
        """How everything stands around this packet."""
        run = Run.objects.get(pk=packet.run_id)
        return Now(packet.state, run.status, self.now, RULES[self.rules])

    def vote(
        self,
        packet: int,
        voter: int,
        verdict: str,
        *,
        seen: str = "right",
        token: int = 0,
        settled: bool = False,
        behalf: int = -1,
    ) -> None:
        """Somebody answers a packet; `seen` may be another digest, `token` that of a form, and
        `behalf` one of the voters, in whose name it is.

        Of the open packets, or with `settled` of all there ever were.
        """
        chosen = self.one_of(self.packets() if settled else self.packets("open"), packet)
        asked = self.asked[chosen.pk]
        name = VOTERS[voter % len(VOTERS)]
        giver = VOTERS[behalf % len(VOTERS)] if behalf >= 0 else ""
        digests = {"right": asked.digest, "none": "", "wrong": "0" * 64}
        others = [each.digest for key, each in self.asked.items() if key != chosen.pk]
        digest = digests.get(seen, others[-1] if others else "0" * 64)
        form = f"form {token}" if token else ""
        words = {"approve": "yes"}.get(verdict, "Not like this.")
        answered = Answered(
            self.people[name],
            verdict,
            digest,
            form,
            self.people[giver] if giver else None,
            self.has_right(name, giver, asked.tool),
        )
        expected = objections(asked, answered, self.at(chosen))
        key = self.members[giver].user_id if giver else 0
        answer = Answer(Verdict(verdict), digest, words, form, typed_word(chosen), behalf=key)
        self._expect(
            f"{name}'s {verdict} of packet {chosen.number}{f' for {giver}' if giver else ''}",
            expected,
            lambda: settle_packet(chosen.public_id, answer, member=self.members[name]),
        )
        if not expected and not asked.voices_of(name, giver or name):
            asked.votes.append(Vote(name, verdict, digest, form, giver))
            if verdict == "approve":
                asked.hold_from(self.now, self.people)

    def has_right(self, name: str, giver: str, tool: str) -> bool:
        """Whether this person may decide in that one's name now."""
        return any(
            (each.giver, each.taker) == (giver, name) and each.holds(self.people, tool, self.now)
            for each in self.handed.values()
        )

    def edit(
        self, packet: int, editor: int, variant: int, *, late: bool = False, settled: bool = False
    ) -> None:
        """Somebody puts other arguments in the place of a call's: the agent's own, or others.

        `late` from a page that showed other ones.
        """
        chosen = self.one_of(self.packets() if settled else self.packets("open"), packet)
        asked, name = self.asked[chosen.pk], VOTERS[editor % len(VOTERS)]
        own = self.proposed.get(asked.call, {})
        wanted = {**own, "title": f"Title {variant}"} if variant else dict(own)
        seen = "0" * 64 if late else asked.digest
        changes = wanted != asked.arguments
        again = any(
            (each.before, each.editor, each.arguments) == (chosen.pk, name, wanted)
            for each in self.asked.values()
            if not each.superseded
        )
        edited = Edited(self.people[name], seen, changes, again)
        expected = objections_to_edit(asked, edited, self.at(chosen))
        self._expect(
            f"{name}'s edit of packet {chosen.number}",
            expected,
            lambda: edit_packet(
                chosen.public_id, member=self.members[name], seen=seen, text=json.dumps(wanted)
            ),
        )
        if not expected and not again:
            asked.superseded, self.edited = True, (name, chosen.pk, wanted)

    def undo(self, packet: int, voter: int, *, late: bool = False) -> None:
        """Somebody takes an approval back; `late` from a page that showed an earlier round."""
        chosen = self.one_of(self.packets("open"), packet)
        asked, name = self.asked[chosen.pk], VOTERS[voter % len(VOTERS)]
        seen = asked.round - late
        expected = objections_to_undo(asked, self.people[name], seen=seen)
        self._expect(
            f"{name}'s undo of packet {chosen.number}",
            expected,
            lambda: undo_approval(
                chosen.public_id, member=self.members[name], seen=seen, reason="Wait."
            ),
        )
        if not expected:
            asked.undo()

    def withdraw(self, packet: int, person: int) -> None:
        """Somebody takes the question back, which only whoever asked it may."""
        chosen = self.one_of(self.packets(), packet)
        name = VOTERS[person % len(VOTERS)]
        expected = objections_to_withdrawal(
            self.asked[chosen.pk], self.people[name], self.at(chosen)
        )
        self._expect(
            f"{name}'s withdrawal of packet {chosen.number}",
            expected,
            lambda: withdraw_packet(
                chosen.public_id, member=self.members[name], reason="Not any more."
            ),
        )

    def _expect(self, what: str, expected: set[str], act: Callable[[], object]) -> None:
        """Do what people may be refused: for one of these reasons, or for none."""
        done = self.may_be_refused(act)
        if done != (not expected) or (expected and self.refused not in expected):
            came = "accepted" if done else self.refused
            raise LawBroken(
                f"law 6: {what} was {came}, and ought to be {sorted(expected) or 'accepted'}"
            )
