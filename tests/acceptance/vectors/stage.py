"""Where a record is played: a run with a parked call, its packet, people, a clock, a service.

Identifiers and times of a record are only carried over to rows and to the clock. Nothing here
compares one thing a record says with another: the functions that a worker calls before an effect
do that, and what they leave behind (refusals, events, requests that reached the service) is the
answer.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils.dateparse import parse_datetime

from approvals import deciding
from approvals.confirm import typed_word
from approvals.deciding import Answer
from approvals.models import Packet, PolicyVersion
from approvals.policies import decide_policy, propose_policy
from approvals.policy_text import DEFAULT_POLICY
from approvals.seal import SHAPE
from approvals.states import Verdict
from portal.canonical import digest
from portal.clock import database_now
from portal.errors import Refusal
from portal.models import Membership, User
from portal.roles import Role
from runs import driver, lifecycle
from runs.agent.gate import Gate, Ran, host_failed
from runs.agent.port import Begun, PendingCall, ProposedCall, RunError, StopRun
from runs.agent.port import Verdict as Judgement
from runs.driver import RunHost
from runs.lifecycle import Kept, Lease
from runs.models import Event, Run, ToolCall
from runs.network import Network
from runs.snapshots import Saved
from runs.states import RunStatus
from tests.cast import contract_text, make_version
from tests.walk import Walk

HOUR = timedelta(hours=1)
EARLIEST, EARLY, USUAL, LATE = range(4)
"""What comes first of two things that happen at the same time."""


def when(text: str) -> datetime:
    """A time of a record."""
    found = parse_datetime(text)
    assert found is not None
    return found


@dataclass
class Clock:
    """The database's clock, as every module of the portal reads it."""

    now: datetime

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Put it in the place of the real one, for as long as `patch` lasts."""
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] in ("approvals", "runs") and (
                getattr(module, "database_now", None) is database_now
            ):
                patch.setattr(module, "database_now", lambda: self.now)


@dataclass
class Worker(RunHost):
    """A worker of the portal. `executes` is what its tool layer makes of the arguments at last."""

    executes: Mapping[str, Any] | None = None

    async def begin(self, call: ProposedCall) -> Begun:
        return await super().begin(self.at_last(call))

    def at_last(self, call: ProposedCall) -> ProposedCall:
        """The call as it is executed."""
        return call if self.executes is None else replace(call, arguments=dict(self.executes))


@dataclass(frozen=True)
class Tool:
    """One brokered tool of the contract of a record."""

    name: str
    url: str = "{base}/do"
    credential: str = ""

    def text(self) -> str:
        lines = [
            "[[tools.http]]",
            f'name = "{self.name}"',
            'description = "Do it."',
            'method = "POST"',
            'base = "tracker"',
            f'url = "{self.url}"',
            'response = ["number"]',
        ]
        if self.credential:
            lines.append(f'credential = "{self.credential}"')
        lines += ["[tools.http.parameters]", 'type = "object"', "additionalProperties = true"]
        if "{place}" in self.url:
            lines.append('required = ["place"]')
            lines.append('properties = { place = { type = "string" } }')
        return "\n".join(lines) + "\n"


Moment = tuple[datetime, int, Callable[[], object]]


@dataclass
class Stage:
    """One record being played. `found` names what was in the way, in the order it was met."""

    walk: Walk
    clock: Clock
    settings: Any
    found: list[str] = field(default_factory=list)
    # Requests that had reached the service when the use of the record began.
    before: int = 0
    coming: deque[Moment] = field(default_factory=deque)

    # --- Time

    def play(self, *moments: Moment) -> None:
        """Let these things happen in the order of their times."""
        self.coming = deque(sorted(moments, key=lambda each: each[:2]))
        while self.coming:
            self._next()

    def play_until(self, end: datetime) -> None:
        """What happens meanwhile, and then it is `end`."""
        while self.coming and self.coming[0][0] <= end:
            self._next()
        self.clock.now = end

    def _next(self) -> None:
        self.clock.now, _, act = self.coming.popleft()
        act()

    # --- Who is there

    def person(self, name: str, role: Role, *, key: str = "", machine: bool = False) -> Membership:
        """Somebody of the tenant, by the key they sign in with."""
        email = f"{(key or name).replace(':', '-')}@example.com"
        user = User.objects.filter(email=email).first() or User.objects.create_user(email, name)
        if machine:
            User.objects.filter(pk=user.pk).update(is_machine=True, owner=self.walk.cast.olu.user)
            user.refresh_from_db()
        member = Membership.objects.filter(tenant=self.walk.cast.acme, user=user).first()
        return member or Membership.objects.create(
            tenant=self.walk.cast.acme, user=user, roles=[role.value]
        )

    # --- Policy

    def propose(self) -> PolicyVersion:
        """One more version of the policy, not in force yet."""
        text = f"// Version {PolicyVersion.objects.count() + 1}.\n{DEFAULT_POLICY}"
        return propose_policy(text, member=self.walk.cast.max)

    def put_in_force(self, version: PolicyVersion) -> None:
        decide_policy(
            version,
            approve=True,
            seen=version.digest,
            member=self.person("second-admin", Role.ADMIN),
        )

    def change_policy(self) -> None:
        """The policy that was in force is replaced."""
        self.put_in_force(self.propose())

    # --- Asking and answering

    def start(self, tools: Sequence[Tool], requester: str) -> Run:
        """A queued run, asked for by that principal."""
        text = contract_text(verification=False, gate="approvals = 1\nvalid_minutes = 10\n")
        text += "".join(tool.text() for tool in tools)
        version = make_version(self.walk.cast, text)
        run = lifecycle.request_run(version, member=self.person(requester, Role.OPERATOR))
        self.walk.lose_hops()
        return run

    def claim(self, run: Run, executes: Mapping[str, Any] | None = None) -> Worker | None:
        """A worker takes the run, if it may."""
        lease = lifecycle.claim_run(run.pk)
        run = Run.objects.select_related("tenant", "version__contract", "requested_by").get(
            pk=run.pk
        )
        if lease is None:
            self.found.append(f"run_{run.status}")
            return None
        contract = lifecycle.contract_of(run)
        return Worker(
            lease,
            run,
            contract,
            {},
            time.monotonic() + 3600,
            Network(lease, run, contract),
            executes=executes,
        )

    def park(self, run: Run, *calls: ProposedCall) -> list[Packet]:
        """The agent asks for these calls, and the run waits: their open packets."""
        worker = self.claim(run)
        assert worker is not None
        for call in calls:
            judged = asyncio.run(worker.judge(call))
            assert judged.effect == "ask", judged
        return self.save(worker.lease, *calls)

    def save(self, lease: Lease, *calls: ProposedCall) -> list[Packet]:
        """Park the run at a checkpoint with these calls, and open their packets."""
        lifecycle.save_checkpoint(
            lease,
            Kept("waiting", "{}", Saved("0" * 64, 0, (), (), ()), "0", "mender", {}),
            pending=[call.call_id for call in calls],
            output="",
            enter=RunStatus.WAITING,
        )
        self.walk.drain()
        run = lease.run_id
        return [Packet.objects.get(call__run=run, call__call_id=each.call_id) for each in calls]

    def write_shape(self, packet: Packet, contract_id: str | None) -> Packet:
        """The packet as a portal would have stored it that seals by this contract of a record.

        `…/v1` stands for the form that this portal seals in.
        """
        page = dict(packet.page)
        del page["shape"]
        if contract_id is not None:
            page["shape"] = SHAPE - 1 + int(contract_id.rpartition("/v")[2])
        Packet.objects.filter(pk=packet.pk).update(page=page, digest=digest(page))
        packet.refresh_from_db()
        return packet

    def decide(
        self,
        packet: Packet,
        member: Membership,
        *,
        seen: str = "",
        verdict: Verdict = Verdict.APPROVE,
    ) -> bool:
        """A person's answer, through the function that the page calls. False if it was refused."""
        packet.refresh_from_db()
        words = "" if verdict is Verdict.APPROVE else "Not like this."
        answer = Answer(verdict, seen or packet.digest, words, "a form", typed_word(packet))
        try:
            deciding.settle_packet(packet.public_id, answer, member=member)
        except Refusal as refused:
            self.found.append(refused.code)
            return False
        finally:
            self.walk.lose_hops()
        return True

    # --- Acting

    def use(self, worker: Worker, call: ProposedCall) -> None:
        """What a worker does with a call that was answered, or that its agent asks for now."""
        mark = Event.objects.filter(run=worker.run).count()
        gate = Gate(worker, _pending(worker.run), _answers(worker.run))
        gate.new_turn({call.call_id: ""})

        async def act() -> Ran:
            done = await worker.broker(worker.at_last(call))
            return Ran(done.text, done.text, ok=done.ok)

        asyncio.run(gate.execute(call, act, _explain))
        if gate.closed is not None:
            error = gate.closed.error
            self.found.append(f"gate.{error.code}" if error else str(gate.closed.stop))
        self.read(worker.run, mark)

    def read(self, run: Run, mark: int) -> None:
        """What the run's evidence says was in the way."""
        for event in Event.objects.filter(run=run, seq__gt=mark).order_by("seq"):
            if event.kind in ("call.held_back", "credential.refused") and "why" in event.facts:
                self.found.append(event.facts["why"])
            elif event.kind == "call.expired":
                self.found.append("approval_ran_out")
            elif event.kind == "call.asked":
                self.found.append("asked")

    def take_over(self, run: Run) -> None:
        """What the sweep does every few seconds: a run on a dead lease goes to another worker."""
        overdue = lifecycle.overdue_runs(self.clock.now)
        if run.pk in overdue and Run.objects.get(pk=run.pk).status == RunStatus.RUNNING:
            lifecycle.claim_run(run.pk)


def call_of(packet: Packet) -> ProposedCall:
    """The call a packet is about, as it is stored."""
    return deciding.proposed(ToolCall.objects.get(packet=packet))


def _answers(run: Run) -> Mapping[str, Any]:
    checkpoint = lifecycle.last_checkpoint(run)
    return driver._answers(checkpoint) if checkpoint is not None else {}


def _pending(run: Run) -> dict[str, PendingCall]:
    """The calls of the last checkpoint, as a saved state has them."""
    rows = ToolCall.objects.filter(checkpoint=lifecycle.last_checkpoint(run))
    verdict = Judgement("ask", (), 0, "")
    found = [] if lifecycle.last_checkpoint(run) is None else list(rows)
    return {row.call_id: PendingCall(deciding.proposed(row), verdict) for row in found}


async def _explain(error: BaseException) -> Ran | RunError:
    return host_failed("broker")


async def or_stopped(step: Awaitable[Any], found: list[str], word: str) -> bool:
    """Whether a step of a worker went through; `word` says when it heard that it must stop."""
    try:
        await step
    except StopRun:
        found.append(word)
        return False
    return True
