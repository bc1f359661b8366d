"""The events of a sequence in which people answer packets, each with what must come of it."""

from __future__ import annotations

import json
from collections.abc import Callable

from approvals import canaries
from approvals.bulk import Wanted, settle_all
from approvals.deciding import Answer, settle_packet
from approvals.editing import edit_packet
from approvals.models import Canaries, Packet
from approvals.states import Verdict
from approvals.undo import undo_approval
from approvals.withdraw import withdraw_packet
from portal import passkeys
from portal.handoff import Job
from runs import lifecycle
from runs.models import Run
from tests.statemachine.agents import Agents
from tests.statemachine.reference import APPROVE, DENY, Asked, LawBroken, Vote
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
from tests.statemachine.signed import signed_text
from tests.statemachine.state import VOTERS

WORDS = {"approve": "yes", "deny": "Not like this.", "request_changes": "Not like this."}


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
        typed: str = "right",
        key: str = "right",
    ) -> None:
        """Somebody answers a packet; `seen` may be another digest, `token` that of a form, and
        `behalf` one of the voters, in whose name it is. What is `typed` may not be what is asked,
        and the passkey none, another's, used before, or of another page.

        Of the open packets, or with `settled` of all there ever were.
        """
        chosen = self.one_of(self.packets() if settled else self.packets("open"), packet)
        asked = self.asked[chosen.pk]
        name = VOTERS[voter % len(VOTERS)]
        giver = VOTERS[behalf % len(VOTERS)] if behalf >= 0 else ""
        digests = {"right": asked.digest, "none": "", "wrong": "0" * 64}
        others = [each.digest for key, each in self.asked.items() if key != chosen.pk]
        form = f"form {token}" if token else ""
        owner = self.members[giver].user_id if giver else 0
        signed = self.signature(chosen, name, key, owner) if verdict == APPROVE else ""
        answered = Answered(
            self.people[name],
            verdict,
            digests.get(seen, others[-1] if others else "0" * 64),
            form,
            self.people[giver] if giver else None,
            self.has_right(name, giver, asked.tool),
            {"right": asked.word, "wrong": "something"}.get(typed, ""),
            key if signed else "none",
        )
        expected = objections(asked, answered, self.at(chosen))
        answer = Answer(
            Verdict(verdict),
            answered.seen,
            WORDS[verdict],
            form,
            typed=answered.typed,
            passkey=signed,
            behalf=owner,
        )
        self._expect(
            f"{name}'s {verdict} of packet {chosen.number}{f' for {giver}' if giver else ''}",
            expected,
            lambda: settle_packet(chosen.public_id, answer, member=self.members[name]),
        )
        if not expected:
            self._take(asked, answered)

    def _take(self, asked: Asked, answered: Answered) -> None:
        name, giver = answered.person.name, answered.giver.name if answered.giver else ""
        if not asked.voices_of(name, giver or name):
            vote = Vote(name, answered.verdict, answered.seen, answered.token, giver)
            asked.take(vote, self.now, self.people)

    def signature(self, packet: Packet, name: str, key: str, owner: int) -> str:
        """What the browser of this person returns, as JSON; nothing where no key is asked for."""
        signer = {"another's": "bo" if name != "bo" else "ada"}.get(key, name)
        if not self.asked[packet.pk].wants.passkey or key == "none" or signer not in self.keys:
            return ""
        if key == "used before" and self.last_signed:
            return self.last_signed
        user = self.members[name].user
        said: dict[str, object] = {
            "digest": packet.digest if key != "another page" else "0" * 64,
            "verdict": APPROVE,
            "packet": packet.pk,
            "person": user.pk,
            "round": self.asked[packet.pk].round,
            "nonce": passkeys.new_nonce(user, passkeys.Purpose.DECIDE),
            **({"on_behalf_of": owner} if owner else {}),
        }
        signed = self.keys[signer].signed(signed_text(said))
        self.last_signed = json.dumps(signed | {"nonce": said["nonce"]})
        return self.last_signed

    def bulk(self, voter: int, verdict: str, *, stale: int = -1, token: int = 0) -> None:
        """Somebody gives all open packets one answer; the page of one may be `stale`."""
        name, form = VOTERS[voter % len(VOTERS)], f"form {token}" if token else ""
        chosen = self.packets("open")
        seen = {each.pk: self.asked[each.pk].digest for each in chosen}
        if stale >= 0:
            seen[self.one_of(chosen, stale).pk] = "0" * 64
        expected, shape = {}, None
        for packet in chosen:
            asked = self.asked[packet.pk]
            answered = Answered(self.people[name], verdict, seen[packet.pk], form)
            if not asked.among_others:
                expected[packet.pk] = {"it is decided alone"}
                continue
            shape = shape or (asked.kind, asked.tool)
            if shape != (asked.kind, asked.tool):
                expected[packet.pk] = {"it is of another shape"}
                continue
            expected[packet.pk] = objections(asked, answered, self.at(packet))
            if not expected[packet.pk]:
                self._take(asked, answered)
        results = settle_all(
            [Wanted(each.public_id, seen[each.pk]) for each in chosen],
            Verdict(verdict),
            comment=WORDS[verdict],
            token=form,
            member=self.members[name],
        )
        came = {each.packet.pk: each.why for each in results}
        for packet in chosen if self.people[name].name != "eve" else ():
            why, ought = came[packet.pk], expected[packet.pk]
            if bool(why) != bool(ought):
                what = f"{name}'s {verdict} of packet {packet.number} among others"
                raise LawBroken(f"law 6: {what} was {why or 'accepted'}, and ought to be {ought}")

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

    def test_packet(self) -> None:
        """An admin wants test packets, and the next one is due."""
        now_open = [self.asked[each.pk] for each in self.packets("open")]
        over = [self.asked[each.pk] for each in self.packets() if each.state != "open"]
        self.test_due = any(each.can_be_likened for each in over)
        self.test_due = self.test_due and not any(each.test for each in now_open)
        canaries.choose(7, member=self.cast.max)
        Canaries.objects.filter(tenant=self.cast.acme).update(next_at=self.now)
        self.ground.walk.deliver(Job.SWEEP_CANARIES)
        # Whatever a broker sends again: no worker has the run of one.
        for run in Run.objects.filter(packets__canary__isnull=False, tenant=self.cast.acme):
            if lifecycle.claim_run(run.pk) is not None:
                raise LawBroken(f"law 5: a worker has the run {run.number} of a test packet")

    def undo(self, packet: int, voter: int, *, late: bool = False) -> None:
        """Somebody takes an approval back; `late` from a page that showed an earlier round."""
        chosen = self.one_of(self.packets("open"), packet)
        asked, name = self.asked[chosen.pk], VOTERS[voter % len(VOTERS)]
        seen = asked.round - late
        givers = [
            self.people[each.giver]
            for each in self.handed.values()
            if each.taker == name and each.holds(self.people, asked.tool, self.now)
        ]
        named = any(each.giver for each in asked.voices_of(name))
        if not asked.allowed(self.people[name], DENY) and (givers or named):
            # In another's name: the log has the time of its line, which no test clock moves.
            return
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
