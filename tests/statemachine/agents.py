"""The events of a sequence that need no person's answer: agents, workers, hops, sweeps, time."""

from __future__ import annotations

from datetime import timedelta

from approvals import tasks
from approvals.models import Packet
from portal.handoff import Job
from runs import grants, lifecycle, resuming
from runs.agent.port import ProposedCall
from runs.egress.asking import Ask
from runs.models import EgressGrant, Run, ToolCall
from runs.states import CallState, RunStatus
from tests.statemachine import ground
from tests.statemachine.ground import CallFate, Hand, PushFate
from tests.statemachine.reference import ENDED, LawBroken
from tests.statemachine.rules import RULES
from tests.statemachine.state import SPANS, TOOLS, Heard, State


class Agents(State):
    """Each method is one event."""

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
                self.proposed[f"call-{number}"] = dict(given)
        self._park(worker, calls)

    def ask_again(self, hand: int) -> None:
        """The agent wants exactly what was approved in vain, as a new call."""
        worker = self.one_of(self.busy(), hand)
        earlier = ToolCall.objects.filter(run=worker.run, state=CallState.EXPIRED, kind="http")
        before = earlier.order_by("-pk").first()
        if before is None or before.tool in RULES[self.rules].denies:
            return
        name = f"call-{ToolCall.objects.filter(tenant=self.cast.acme).count()}"
        self.proposed[name] = dict(before.arguments)
        self._park(worker, [ProposedCall(name, before.tool, "http", before.arguments, "")])

    def _park(self, worker: Hand, calls: list[ProposedCall]) -> None:
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

    def resume(self, run: int, now: str) -> None:
        """A worker takes a run that is due, and finds what it stood on to be something else now.

        It goes on where people approved exactly that, and there is time, and asks otherwise.
        """
        chosen = self.one_of(self.due(), run)
        checkpoint, hand = lifecycle.last_checkpoint(chosen), self._taken(chosen)
        if hand is None or checkpoint is None:
            return
        answers = ground.changed(now)
        going_on = resuming.approved(hand.run, answers.digest(checkpoint.state_digest))
        about = (chosen.pk, checkpoint.seq, now)
        told = [each for each in self.asked.values() if each.differs == about]
        if bool(going_on) != any(each.gone_on or each.in_time(self.now) for each in told):
            raise LawBroken(f"law 5: a run goes on, or not, with {now}: {going_on}")
        if going_on is not None:
            ground.go_on(hand, going_on)
            for each in told:
                each.gone_on = each.gone_on or each.in_time(self.now)
            self._carry_on(hand, "well")
            return
        del self.hands[chosen.pk]
        self.old_hands.append(hand)
        asked = resuming.ask(hand.lease, checkpoint, answers)
        if asked is None:
            return
        self.differs[asked.pk] = about
        # What people said of anything else is not asked any more, if it was of no use yet.
        for each in self.asked.values():
            if each.run == chosen.pk and not each.gone_on:
                each.differs = None

    def _taken(self, chosen: Run) -> Hand | None:
        held = self.hands.get(chosen.pk)
        hand = ground.claim(chosen.pk)
        if hand is not None:
            if held is not None:
                self.old_hands.append(held)
            self.hands[chosen.pk] = hand
        return hand

    def _work(self, chosen: Run, fate: CallFate = "well") -> None:
        hand = self._taken(chosen)
        if hand is not None:
            self._carry_on(hand, fate)

    def _carry_on(self, hand: Hand, fate: CallFate) -> None:
        checkpoint = lifecycle.last_checkpoint(hand.run)
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
        self._waits()
        for job in (Job.SWEEP_RUNS, Job.SWEEP_APPROVALS):
            self.ground.walk.deliver(job)

    def _waits(self) -> None:
        """What the sweep is about to find: packets that people are told of again, or others too."""
        for packet in self.packets("open"):
            asked = self.asked[packet.pk]
            over = Run.objects.get(pk=packet.run_id).status in ENDED
            if asked.held_until is None and not over and self.now < asked.expires:
                asked.relieved = asked.relieved or asked.relief_due(self.now)
                asked.remind(self.now)

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
