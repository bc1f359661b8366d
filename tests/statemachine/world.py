"""One sequence: the events that may happen, done through the portal, and noted for the reference.

`tests.statemachine.machine` plays them and lets the laws look at what came of each. What an event
names by number is chosen among what is there, so that any number means something.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from approvals import policies, publishing, tasks
from approvals.confirm import typed_word
from approvals.deciding import Answer, settle_packet
from approvals.models import Packet, PolicyVersion
from approvals.states import Verdict
from approvals.undo import undo_approval
from approvals.withdraw import withdraw_packet
from portal import people
from portal.handoff import Job
from portal.models import Membership, User
from runs import grants, lifecycle
from runs.agent.port import ProposedCall
from runs.egress.asking import Ask
from runs.models import EgressGrant, Run, ToolCall
from runs.states import RunStatus
from tests.statemachine import ground
from tests.statemachine.ground import CallFate, Hand, PushFate
from tests.statemachine.reference import (
    ENDED,
    Answered,
    LawBroken,
    Vote,
    objections,
    objections_to_undo,
    objections_to_withdrawal,
)
from tests.statemachine.state import (
    AUTHORS,
    MOVABLE,
    ROLES,
    RULES,
    SPANS,
    TOOLS,
    VOTERS,
    Heard,
    State,
)


class World(State):
    """The events, each one method."""

    # --- Agents ---------------------------------------------------------------------

    def start(self, asker: int) -> None:
        """A run is asked for, and a worker takes it."""
        name = self.asker(asker)
        run = lifecycle.request_run(self.version, member=self.members[name])
        self._work(run)

    def ask(self, hand: int, *tools: int) -> None:
        """The agent wants these calls, and its run waits for people."""
        worker = self.one_of(self.busy(), hand)
        calls: list[ProposedCall] = []
        for tool in tools:
            name = TOOLS[tool % len(TOOLS)]
            number = ToolCall.objects.filter(tenant=self.cast.acme).count() + len(calls)
            if name == "ask_person":
                choices = {"question": f"Is {number} right?", "choices": ["yes", "no"]}
                calls.append(ProposedCall(f"call-{number}", name, "question", choices, ""))
            elif name not in RULES[self.rules].denies:
                given = {"place": f"p{number}", "title": f"Number {number}"}
                calls.append(ProposedCall(f"call-{number}", name, "http", given, ""))
        if calls:
            ground.park(worker, *calls)
            del self.hands[worker.run.pk]
            self.old_hands.append(worker)

    def network(self, run: int, person: int) -> None:
        """Somebody asks for a network rule for a run that is at work."""
        name = self.asker(person)
        number = EgressGrant.objects.filter(tenant=self.cast.acme).count()
        asked = Ask(f"host{number}.example.com", 443, "To fetch.", "A file.", 5)
        chosen = self.one_of(self.at_work(), run)
        self.may_be_refused(lambda: grants.ask_as_person(chosen, asked, member=self.members[name]))

    def offer(self, hand: int) -> None:
        """The agent is done: its candidate is up for review."""
        worker = self.one_of(self.busy(), hand)
        ground.finish(worker.lease)
        del self.hands[worker.run.pk]
        self.old_hands.append(worker)
        if Run.objects.get(pk=worker.run.pk).status == RunStatus.COLLECTING:
            self.ground.template.offered_by(worker.run.pk)

    def fail(self, hand: int) -> None:
        """The run fails under its worker."""
        worker = self.one_of(self.busy(), hand)
        lifecycle.fail_run(
            worker.lease,
            boundary="control",
            code="runs.internal",
            operation="drive",
            text="It broke.",
            retry_safe=True,
        )
        del self.hands[worker.run.pk]

    # --- Workers --------------------------------------------------------------------

    def work(self, run: int, fate: CallFate = "well") -> None:
        """A worker takes a run that is due, and does what was answered meanwhile."""
        self._work(self.one_of(self.due(), run), fate)

    def _work(self, chosen: Run, fate: CallFate = "well") -> None:
        held = self.hands.get(chosen.pk)
        hand = ground.claim(chosen.pk)
        if hand is None:
            return
        if held is not None:
            self.old_hands.append(held)
        self.hands[chosen.pk] = hand
        checkpoint = lifecycle.last_checkpoint(chosen)
        for call in ToolCall.objects.filter(checkpoint=checkpoint).order_by("pk"):
            if not self._carry_out(hand, call, fate):
                break

    def _carry_out(self, hand: Hand, call: ToolCall, fate: CallFate) -> bool:
        """Whether the worker is still at work afterwards."""
        tracker, packet = self.ground.walk.tracker, Packet.objects.filter(call=call).first()
        before = len(tracker.requests)
        tracker.manner = "drop" if fate == "no answer" else "answer"
        told = ground.carry_out(hand, call, fate)
        tracker.manner = "answer"
        if packet is not None:
            in_time = self.asked[packet.pk].in_time(self.now)
            sent = len(tracker.requests) - before
            self.heard.append(
                Heard(call.pk, packet.pk, call.state, told, fate, self.rules, in_time, sent)
            )
        if not told.stopped:
            return True
        self.struck = self.struck or (fate != "well" and told.stopped == "lease_lost")
        del self.hands[hand.run.pk]
        self.old_hands.append(hand)
        if hand.unknown:
            lifecycle.park_unknown(hand.lease)
        elif told.stopped == "cancelled":
            lifecycle.confirm_cancel(hand.lease)
        return False

    def die(self, hand: int) -> None:
        """A worker is gone; nobody says so."""
        worker = self.one_of(self.busy(), hand)
        del self.hands[worker.run.pk]
        self.old_hands.append(worker)

    def late_worker(self, hand: int) -> None:
        """A worker that lost its run long ago wakes up and goes on as if it had it."""
        worker = self.one_of(self.old_hands, hand)
        call = ToolCall.objects.filter(run=worker.run, packet__isnull=False).order_by("-pk").first()
        if call is not None:
            ground.carry_out(worker, call, "well")

    # --- Hops -----------------------------------------------------------------------

    def carry(self, times: int = 1) -> None:
        """The hop that waits longest is delivered; twice, if the broker thinks so."""
        hop = self.hops(publish=False)[0]
        self.waiting.remove(hop)
        for _ in range(times):
            self._deliver(*hop)

    def publish(self, fate: PushFate = "well") -> None:
        """A worker takes the publication that waits longest."""
        hop = self.hops(publish=True)[0]
        self.waiting.remove(hop)
        self._deliver(*hop, fate)

    def again(self, number: int) -> None:
        """A hop that was delivered before comes once more, late."""
        self._deliver(*self.one_of(self.delivered, number))

    def _deliver(self, job: Job, row_id: int, fate: PushFate = "well") -> None:
        self.ground.forge.fate = fate
        try:
            self.ground.walk.deliver(job, row_id)
        except ground.Killed:
            pass
        finally:
            self.ground.forge.fate = "well"
        self.struck = self.struck or self.ground.forge.struck
        self.ground.forge.struck = False
        self.delivered.append((job, row_id))

    def lose_hops(self) -> None:
        """The broker forgets everything."""
        self.waiting.clear()

    def sweep(self) -> None:
        """Both sweeps look what is overdue, in a worker that is new: it asks about everything."""
        tasks._asked_everything = float("-inf")
        self._holds_end()
        for job in (Job.SWEEP_RUNS, Job.SWEEP_APPROVALS):
            self.ground.walk.deliver(job)

    def _holds_end(self) -> None:
        """What the sweep is about to find: holds that are over take effect, or all votes are void.

        Asked of the packets as they stand now, before it comes.
        """
        for packet in self.packets("open"):
            asked = self.asked[packet.pk]
            if asked.held_until is None or self.now < asked.held_until:
                continue
            if Run.objects.get(pk=packet.run_id).status in ENDED:
                continue
            if asked.enough(self.people) and asked.tool not in RULES[self.rules].denies:
                self.released.add(packet.pk)
            else:
                asked.undo()

    def wait(self, span: str) -> None:
        """The database's clock moves on."""
        self.ground.clock.now += timedelta(seconds=SPANS[span])

    # --- People ---------------------------------------------------------------------

    def vote(
        self,
        packet: int,
        voter: int,
        verdict: str,
        *,
        seen: str = "right",
        token: int = 0,
        settled: bool = False,
    ) -> None:
        """Somebody answers a packet; `seen` may be another digest, `token` that of a form.

        Of the open packets, or with `settled` of all there ever were.
        """
        chosen = self.one_of(self.packets() if settled else self.packets("open"), packet)
        asked = self.asked[chosen.pk]
        name = VOTERS[voter % len(VOTERS)]
        person, member = self.people[name], self.members[name]
        digests = {"right": asked.digest, "none": "", "wrong": "0" * 64}
        others = [each.digest for key, each in self.asked.items() if key != chosen.pk]
        digest = digests.get(seen, others[-1] if others else "0" * 64)
        form = f"form {token}" if token else ""
        words = {"approve": "yes"}.get(verdict, "Not like this.")
        run = Run.objects.get(pk=chosen.run_id)
        expected = objections(
            asked,
            Answered(person, verdict, digest, form),
            state=chosen.state,
            run=run.status,
            now=self.now,
            rules=RULES[self.rules],
        )
        answer = Answer(Verdict(verdict), digest, words, form, typed_word(chosen))
        self._expect(
            f"{name}'s {verdict} of packet {chosen.number}",
            expected,
            lambda: settle_packet(chosen.public_id, answer, member=member),
        )
        if not expected and asked.vote_of(name) is None:
            asked.votes.append(Vote(name, verdict, digest, form))
            if verdict == "approve":
                asked.hold_from(self.now, self.people)

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
        run = Run.objects.get(pk=chosen.run_id)
        expected = objections_to_withdrawal(
            self.asked[chosen.pk], self.people[name], state=chosen.state, run=run.status
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

    def change_roles(self, person: int, roles: int) -> None:
        """A role is given or taken."""
        name = MOVABLE[person % len(MOVABLE)]
        if not self.people[name].inside:
            return
        wanted = ROLES[roles % len(ROLES)]
        people.set_roles(self.members[name].pk, wanted, member=self.cast.max)
        self.people[name].roles = set(wanted)

    def leave(self, person: int) -> None:
        """Somebody leaves the tenant, or comes back as reviewer and publisher."""
        name = MOVABLE[person % len(MOVABLE)]
        user = User.objects.get(pk=self.members[name].user_id)
        if self.people[name].inside:
            people.remove_member(self.members[name].pk, member=self.cast.max)
        else:
            roles = ["reviewer", "publisher"]
            self.members[name] = people.add_member(
                user.name, user.email, roles, member=self.cast.max
            )
            self.people[name].roles = set(roles)
        self.people[name].groups.clear()  # a membership that ended took its groups with it
        self.people[name].inside = not self.people[name].inside

    def switch(self, person: int) -> None:
        """An account is switched off, or on again."""
        name = MOVABLE[person % len(MOVABLE)]
        self.people[name].active = not self.people[name].active
        User.objects.filter(pk=self.members[name].user_id).update(
            is_active=self.people[name].active
        )

    def change_policy(self, rules: str, author: int, *, approve: bool = True) -> None:
        """One admin writes a version; its author may not decide it, and the other one does."""
        self._policy(
            author,
            lambda member: policies.propose_policy(RULES[rules].text, member=member),
            rules,
            approve=approve,
        )

    def roll_back(self, number: int, author: int) -> None:
        """An earlier version comes back, which is a decision like another."""
        earlier = PolicyVersion.objects.filter(tenant=self.cast.acme).order_by("number")
        version = self.one_of(list(earlier), number)
        rules = self.versions[version.number][0]
        self._policy(author, lambda member: policies.go_back(version, member=member), rules)

    def _policy(
        self,
        author: int,
        write: Callable[[Membership], PolicyVersion],
        rules: str,
        *,
        approve: bool = True,
    ) -> None:
        names = (AUTHORS[author % 2], AUTHORS[1 - author % 2])
        written: list[PolicyVersion] = []
        if not self.may_be_refused(lambda: written.append(write(self.members[names[0]]))):
            # The same text again, or more people than there are any more.
            known = (policies.SamePolicy.code, "approvals.policy_refused")
            assert self.refused in known, self.refused
            return
        (version,) = written
        self.versions[version.number] = (rules, names[0])

        def decide(name: str) -> object:
            return policies.decide_policy(
                version, approve=approve, seen=version.digest, member=self.members[name]
            )

        if self.may_be_refused(lambda: decide(names[0])):
            raise LawBroken(f"law 6: {names[0]} put an own policy in force")
        decide(names[1])
        if approve:
            self.rules = rules

    def cancel(self, run: int) -> None:
        """Somebody asks for a stop."""
        chosen = self.one_of(self.runs(), run)
        self.may_be_refused(lambda: lifecycle.ask_cancel(chosen, member=self.cast.olu))

    def settle(self, call: int, *, happened: bool) -> None:
        """A person says what became of a call of which nobody knows it."""
        chosen = self.one_of(self.unknown_calls(), call)
        settler = self.publisher()
        if settler is not None:
            lifecycle.settle_unknown_call(
                chosen, happened=happened, note="I looked.", member=settler
            )

    def look(self, publication: int, then: str) -> None:
        """A person settles a publication of which nobody knows whether it happened."""
        chosen = self.one_of(self.publications("unknown"), publication)
        settler = self.publisher()
        if settler is None:
            return
        if then == "look":
            publishing.reconcile(chosen.public_id, member=settler)
        elif then == "try again":
            publishing.try_again(chosen.public_id, member=settler)
        else:
            publishing.give_up(chosen.public_id, member=settler, note="No.")
