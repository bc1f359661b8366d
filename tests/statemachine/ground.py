"""What a sequence stands on: a clock, a forge that notes every act, a worker that can die.

Calls are carried out by the functions a worker uses, without an agent around them; candidates are
copies of one that a whole run made. Everything people decide, and everything that leaves, goes
through the portal's own code.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from django.db import transaction

from approvals import publishing
from approvals.checking import receipt_digest
from approvals.deciding import proposed
from approvals.models import Candidate, Receipt
from approvals.publication import candidate_digest
from approvals.publishers import OutcomeUnknown, RateLimited, registry
from portal import blobs
from portal.clock import database_now
from portal.handoff import Job
from runs import driver, lifecycle
from runs.agent import gate as gating
from runs.agent.gate import Gate, Ran, host_failed
from runs.agent.port import Brokered, PendingCall, ProposedCall, RunError, StopRun
from runs.agent.port import Verdict as Judgement
from runs.driver import RunHost
from runs.fetching import repositories_of
from runs.footing import Answers, Difference
from runs.lifecycle import Kept, Lease
from runs.models import Resumption, Run, ToolCall
from runs.network import Network
from runs.snapshots import Saved
from runs.states import RunStatus
from tests.acceptance.vectors.stage import Clock, Tool
from tests.cast import Cast, contract_text, set_value
from tests.walk import Walk

CallFate = Literal["well", "dies before", "dies after", "no answer", "overtaken"]
"""What happens to the worker of a call, or to the service, around the act."""
PushFate = Literal["well", "dies unsent", "dies before", "dies after", "no answer", "busy"]
"""The same for a publication."""
NOTHING_SAVED = Saved("0" * 64, 0, (), (), ())


class Killed(BaseException):
    """A worker is gone in the middle of its work. No code of ours may catch it."""


@dataclass
class Forge:
    """Stands around the real publisher: counts the acts that changed the target."""

    fate: PushFate = "well"
    # Whether the fate was met since somebody last asked.
    struck: bool = False
    acts: Counter[str] = field(default_factory=Counter)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        real, prepared = registry.publisher_for, publishing._prepared
        forge = self

        class Watched:
            def __init__(self, target: Any) -> None:
                self.real = real(target)
                self.look = self.real.look

            def publish(self, intent: Any, *rest: Any) -> Any:
                forge.struck = forge.fate != "well"
                if forge.fate == "busy":
                    raise RateLimited(target="the target", retry_after=5)
                if forge.fate == "dies before":
                    raise Killed
                done = self.real.publish(intent, *rest)
                forge.acts[intent.branch] += not done.existed
                if forge.fate == "dies after":
                    raise Killed
                if forge.fate == "no answer":
                    raise OutcomeUnknown(act="the push", target="the target", reason="silence")
                return done

        def prepare(*given: Any) -> Path:
            if forge.fate == "dies unsent":
                forge.struck = True
                raise Killed
            return prepared(*given)

        patch.setattr(publishing, "publisher_for", Watched)
        patch.setattr(publishing, "_prepared", prepare)


@dataclass
class Hand(RunHost):
    """A worker that holds a run. `fate` is what becomes of it around the next act."""

    fate: CallFate = "well"
    dead: bool = False

    async def broker(self, call: ProposedCall) -> Brokered:
        if self.fate == "dies before":
            self._die()
        if self.fate == "overtaken":
            # The lease ran out and another worker has the run; this one knows nothing of it.
            await self._guard(_take_away, self.run.pk)
        done = await super().broker(call)
        if self.fate == "dies after":
            self._die()
        return done

    async def finished(self, call: ProposedCall, **what: Any) -> None:
        if not self.dead:
            await super().finished(call, **what)

    def _die(self) -> None:
        self.dead = True
        raise StopRun("lease_lost")


def _take_away(run_id: int) -> None:
    Run.objects.filter(pk=run_id).update(lease_expires_at=database_now().replace(year=2000))
    assert lifecycle.claim_run(run_id) is not None


def claim(run_id: int) -> Hand | None:
    """A worker takes the run, if it may."""
    lease = lifecycle.claim_run(run_id)
    if lease is None:
        return None
    run = Run.objects.select_related("tenant", "version__contract", "requested_by").get(pk=run_id)
    contract = lifecycle.contract_of(run)
    deadline = time.monotonic() + 3600
    return Hand(lease, run, contract, {}, deadline, Network(lease, run, contract))


def park(hand: Hand, *calls: ProposedCall) -> None:
    """The agent asks for these calls, and the run waits for people."""
    for call in calls:
        hand._judge(call)
    kept = Kept("waiting", "{}", NOTHING_SAVED, "0", "mender", {})
    pending = [call.call_id for call in calls]
    lifecycle.save_checkpoint(hand.lease, kept, pending=pending, output="", enter=RunStatus.WAITING)


@dataclass(frozen=True)
class Told:
    """What the agent hears of one call, and why its worker stopped, if it did."""

    words: str
    stopped: str = ""


def carry_out(hand: Hand, call: ToolCall, fate: CallFate) -> Told:
    """What a worker does with a call that was answered: through the gate, as the agent's tools."""
    hand.fate = fate
    checkpoint = lifecycle.last_checkpoint(hand.run)
    answers = driver._answers(checkpoint) if checkpoint is not None else {}
    asked = proposed(call)
    wrote = replace(asked, arguments=call.proposed or call.arguments)
    if call.call_id in answers:
        asked = gating._approved(wrote, answers[call.call_id].edited)
    gate = Gate(hand, {call.call_id: PendingCall(wrote, Judgement("ask", (), 0, ""))}, answers)
    gate.new_turn({call.call_id: ""})

    async def act() -> Ran:
        if call.kind == "question":
            return Ran(answers[call.call_id].text, answers[call.call_id].text)
        done = await hand.broker(asked)
        return Ran(done.text, done.text, ok=done.ok)

    words = asyncio.run(gate.execute(asked, act, _explain))
    stopped = ""
    if gate.closed is not None:
        stopped = gate.closed.stop or (gate.closed.error.code if gate.closed.error else "")
    return Told(str(words), stopped)


async def _explain(error: BaseException) -> Ran | RunError:
    return host_failed("broker")


def changed(now: str) -> Answers:
    """What a worker finds that goes on: a value of the tenant's became this."""
    return Answers((Difference("value", "tracker", "before", now, "It is called elsewhere."),))


def go_on(hand: Hand, going_on: Resumption) -> None:
    """The worker writes down where it goes on, and that people let it."""
    lifecycle.note_start(
        hand.lease,
        source_commit=hand.run.source_commit,
        source_tree="",
        provider="none",
        image_digest="",
        sandbox_ref="",
        transcript_label="",
        left_out=[],
        resumed=True,
        duration_ms=0,
        answers={},
        going_on=going_on,
    )


def finish(lease: Lease) -> None:
    """The agent is done, and its tray is about to be taken."""
    kept = Kept("finished", "{}", NOTHING_SAVED, "0", "mender", {})
    lifecycle.save_checkpoint(lease, kept, pending=[], output="", enter=RunStatus.COLLECTING)


@dataclass(frozen=True)
class Template:
    """A candidate that a whole run made, to be copied."""

    candidate: Candidate
    receipts: list[Receipt]
    pack: bytes

    @classmethod
    def made_by(cls, walk: Walk) -> Template:
        packet = walk.to_review()
        candidate = packet.candidate
        assert candidate is not None
        pack = blobs.get(candidate.tenant_id, candidate.pack_blob)
        return cls(candidate, list(candidate.receipts.all()), pack)

    @transaction.atomic(durable=True)
    def offered_by(self, run_id: int) -> Candidate:
        """The same change as a candidate of this run, checked and up for review.

        Each one differs in one file of its tray, so that no two of a run have one digest.
        """
        run = lifecycle.locked_run(run_id)
        earlier = Candidate.objects.filter(run=run)
        earlier.update(superseded=True)
        made, first = Candidate(), self.candidate
        for name in ("base_commit", "base_tree", "tree", "changes", "left_out", "patch_blob"):
            setattr(made, name, getattr(first, name))
        made.tenant, made.run, made.seq = run.tenant, run, earlier.count() + 1
        made.tray = [{"path": "seq", "sha256": f"{made.seq:064}", "size": 1}]
        made.agent_words = "The adder adds again."
        made.pack_blob = blobs.put(run.tenant_id, self.pack)
        made.digest = candidate_digest(made)
        made.save(force_insert=True)
        Run.objects.filter(pk=run_id).update(source_commit=first.base_commit)
        run.source_commit = first.base_commit
        for each in self.receipts:
            copied = Receipt.objects.get(pk=each.pk)
            copied.pk, copied._state.adding = None, True
            copied.tenant, copied.candidate, copied.input_digest = run.tenant, made, made.digest
            copied.digest = receipt_digest(copied)
            copied.save(force_insert=True)
        lifecycle.advance(run, RunStatus.CHECKING)
        lifecycle.advance(run, RunStatus.IN_REVIEW, Job.OPEN_PUBLICATION_PACKET, made.pk)
        return made


@dataclass
class Ground:
    """What all sequences of one test share; each has a cast and a repository of its own."""

    walk: Walk
    clock: Clock
    forge: Forge
    begun: int = 0
    made: Template | None = None

    @classmethod
    def laid(cls, walk: Walk, patch: pytest.MonkeyPatch, *, candidates: bool = True) -> Ground:
        """From here on `patch` has the clock. Without `candidates` nothing can be offered."""
        made = Template.made_by(walk) if candidates else None
        clock, forge = Clock(database_now()), Forge()
        clock.install(patch)
        forge.install(patch)
        return cls(walk, clock, forge, made=made)

    @property
    def template(self) -> Template:
        assert self.made is not None, "this ground was laid without candidates"
        return self.made

    def cast(self) -> tuple[Cast, str]:
        """New people in tenants of their own, and the text of their contract."""
        self.begun += 1
        cast = Cast(f"-{self.begun}")
        set_value(cast, "tracker", self.walk.tracker.url)
        shutil.copytree(self.walk.root / "adder.git", repositories_of(cast.acme) / "adder.git")
        self.walk.cast = cast
        self.walk.lose_hops()
        self.walk.tracker.requests.clear()
        self.walk.tracker.manner = "answer"
        self.forge.fate = "well"
        self.forge.acts.clear()
        return cast, _contract()


def _contract() -> str:
    gate = "approvals = 1\nexpires_minutes = 60\nvalid_minutes = 10"
    text = contract_text(verification=False, gate=gate, ask=True)
    text += '[network]\nmode = "request"\n'
    text += Tool("plain", "{base}/do/{place}").text()
    text += Tool("sealed", "{base}/do/{place}", credential="token").text()
    # A person who edits may only write what is declared.
    place = 'place = { type = "string" }'
    return text.replace(place, f'{place}, title = {{ type = "string" }}')
