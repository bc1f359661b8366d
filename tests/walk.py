"""The walk, carried by hand: hops wait here instead of at a broker, until a test does them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, TypeVar

from celery import current_app
from django.conf import settings
from django.db import connection
from django.db.models import Model
from django.utils import timezone

import approvals.tasks
import runs.tasks
from approvals.confirm import typed_word
from approvals.deciding import Answer, settle_packet
from approvals.judge import TenantJudge
from approvals.models import Candidate, Decision, Packet, PolicyVersion, Publication
from approvals.policies import decide_policy, propose_policy
from approvals.policy_text import DEFAULT_POLICY
from approvals.states import PacketKind, PacketState, Verdict
from portal import vault
from portal.clock import database_now
from portal.handoff import Job
from portal.models import Membership
from portal.roles import Role
from runs import lifecycle
from runs.lifecycle import Kept
from runs.models import Checkpoint, Event, Run, ToolCall
from runs.providers import sandbox_provider
from runs.sandbox import scripted, shell
from runs.snapshots import Saved
from runs.states import CallState, RunStatus
from tests import clock
from tests.cast import (
    ASKING,
    REPAIR,
    Cast,
    call,
    contract_text,
    git,
    make_repository,
    make_run,
    make_version,
    set_value,
    transcript,
)

# The hops, by the module that registers them.
OWNERS = (runs.tasks, approvals.tasks)
Steps = Sequence[Sequence[Mapping[str, Any]]]
Row = TypeVar("Row", bound=Model)


NO_HTTP = """
@id("no-http")
@why("No service may be called at present.")
forbid (principal, action in Action::"call", resource)
when { context.kind == "http" };
"""
MEANWHILE = call("meanwhile", "exec_command", cmd="meanwhile")


async def tests_of_the_adder(process: shell.Process, arguments: list[str]) -> int:
    """What `python3 -m pytest` comes to in the scripted sandbox: does the adder add?"""
    text = bytes(process.files.get(process.path("adder.py")).data)
    passed = b"return a + b" in text
    process.out(b"1 passed\n" if passed else b"1 failed\n")
    return 0 if passed else 1


# --- A service outside --------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """One request that reached the service."""

    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Tracker:
    """What a brokered tool talks to. Keeps every request; answers as it is told."""

    url: str
    status: int = 201
    answer: Mapping[str, Any] = field(default_factory=lambda: {"number": 7, "private": "kept back"})
    # `drop` takes the request in and hangs up without an answer, `hang` never answers: the
    # effect may have happened.
    manner: Literal["answer", "drop", "hang"] = "answer"
    requests: list[Request] = field(default_factory=list)


@contextmanager
def tracker_on_this_machine() -> Iterator[Tracker]:
    """A tracker that answers on a port of 127.0.0.1 until the block ends."""
    tracker, over = Tracker(""), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            tracker.requests.append(Request(self.path, dict(self.headers), body))
            if tracker.manner != "answer":
                if tracker.manner == "hang":
                    over.wait(60)
                self.close_connection = True
                return
            answer = json.dumps(tracker.answer).encode()
            self.send_response(tracker.status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    tracker.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield tracker
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()


# --- The walk -------------------------------------------------------------------


class Walk:
    """One installation whose hops a test carries: kept in order, done by the real tasks."""

    def __init__(self, cast: Cast, root: Path, tracker: Tracker) -> None:
        self.cast = cast
        self.root = root
        self.tracker = tracker
        self.hops: deque[tuple[Job, int]] = deque()
        # What was done: the hop and the word it returned.
        self.done: list[tuple[Job, str]] = []
        self.commit = make_repository(root)
        set_value(cast, "tracker", tracker.url)

    def send_task(self, name: str, *, args: Sequence[int], **_: Any) -> None:
        """Stands in for Celery's: the hop waits here."""
        self.hops.append((Job(name), args[0]))

    # --- Carrying

    def step(self) -> str:
        """Do the hop that waits longest."""
        job, row_id = self.hops.popleft()
        return self.deliver(job, row_id)

    def deliver(self, job: Job, row_id: int = 0) -> str:
        """Do one hop, whoever asked for it; as often as a test likes."""
        word = str(current_app.tasks[job.value](row_id))
        self.done.append((job, word))
        return word

    def drain(self, *, until: Job | None = None) -> None:
        """Do what waits, and what that asks for, until nothing does or `until` is next."""
        for _ in range(200):
            if not self.hops or self.hops[0][0] is until:
                return
            self.step()
        raise AssertionError(f"the walk does not end: {list(self.hops)[:5]}")

    def lose_hops(self) -> None:
        """The broker forgot everything."""
        self.hops.clear()

    def sweep(self) -> None:
        """Both sweeps, and whatever they ask for."""
        self.deliver(Job.SWEEP_RUNS)
        self.deliver(Job.SWEEP_APPROVALS)
        self.drain()

    def words(self, job: Job) -> list[str]:
        """What the deliveries of one job returned."""
        return [word for done, word in self.done if done is job]

    # --- Beginning

    def run(self, steps: Steps = REPAIR, *more: Steps, text: str = "", **contract: Any) -> Run:
        """A queued run whose agent plays `steps`, one list of steps for each turn.

        Verification is left out unless asked for: it starts one more sandbox.
        """
        contract = {"verification": False, **contract}
        version = make_version(
            self.cast,
            text or contract_text(**contract),
            recording=transcript(steps, *more),  # type: ignore[arg-type]
        )
        return make_run(self.cast, version)

    def to_call(self, steps: Steps = ASKING, **contract: Any) -> Packet:
        """A run whose agent waits: the open packet of its call."""
        run = self.run(steps, **{"http": True, **contract})
        self.drain()
        return self.open_packet(run)

    def to_review(self, steps: Steps = REPAIR, *more: Steps, **contract: Any) -> Packet:
        """A run whose candidate waits: the open packet of its publication."""
        run = self.run(steps, *more, **contract)
        self.drain()
        return self.open_packet(run)

    def to_publish(self, steps: Steps = REPAIR, **contract: Any) -> Publication:
        """An approved publication that no worker has taken yet."""
        packet = self.to_review(steps, **contract)
        self.decide(packet)
        return Publication.objects.get(packet=packet)

    # --- Deciding

    def decide(
        self,
        packet: Packet,
        member: Membership | None = None,
        verdict: Verdict = Verdict.APPROVE,
        *,
        seen: str | None = None,
        comment: str = "",
        token: str = "",
        typed: str | None = None,
        passkey: str = "",
    ) -> Packet:
        """Ada's answer to what is stored, with what must be typed, unless said otherwise."""
        if verdict is not Verdict.APPROVE and not comment:
            comment = "Not like this."
        digest = packet.digest if seen is None else seen
        typed = typed_word(packet) if typed is None else typed
        answer = Answer(verdict, digest, comment, token, typed, passkey)
        return settle_packet(packet.public_id, answer, member=member or self.cast.ada).packet

    # --- Looking

    def open_packet(self, run: Run) -> Packet:
        """The run's one open packet."""
        packet = Packet.objects.filter(run=run, state=PacketState.OPEN).first()
        if packet is None:
            run.refresh_from_db()
            raise AssertionError(f"no packet is open; {run} is {run.status}: {run.failure_text}")
        return packet

    def fresh(self, row: Row) -> Row:
        """The row as it is stored now."""
        row.refresh_from_db()
        return row

    def status(self, run: Run) -> str:
        """The run's status as it is stored now."""
        run.refresh_from_db()
        return run.status

    def kinds(self, run: Run) -> list[str]:
        """The kinds of the run's events, in order."""
        return list(Event.objects.filter(run=run).order_by("seq").values_list("kind", flat=True))

    def branches(self) -> list[str]:
        """The branches of the target."""
        names = git("for-each-ref", "--format=%(refname:short)", cwd=self.root / "adder.git")
        return names.split()

    def tree(self, branch: str) -> str:
        """The tree a branch of the target stands at."""
        return git("rev-parse", f"{branch}^{{tree}}", cwd=self.root / "adder.git")

    # --- What may happen

    def lose_worker(self, run: Run) -> None:
        """The worker that held the run, and its publication, died some time ago."""
        past = timezone.now() - timedelta(hours=1)
        Run.objects.filter(pk=run.pk, lease_token__isnull=False).update(lease_expires_at=past)
        Publication.objects.filter(run=run, lease_token__isnull=False).update(lease_expires_at=past)

    def new_policy(self, *, deny_http: bool = False) -> PolicyVersion:
        """Max writes a new version of the policy and another admin puts it in force."""
        text = f"// Version {PolicyVersion.objects.count() + 1}.\n{DEFAULT_POLICY}"
        if deny_http:
            text += NO_HTTP
        admin = self.cast.member(f"Second{PolicyVersion.objects.count()} Admin", [Role.ADMIN])
        version = propose_policy(text, member=self.cast.max)
        return decide_policy(version, approve=True, seen=version.digest, member=admin)

    def hold_policy(self, span: str = "15m") -> PolicyVersion:
        """From now on an approval of whatever reaches outside, or is published, is held so long."""
        text = DEFAULT_POLICY
        for rule in ("outward-needs-a-person", "publish-after-review"):
            text = text.replace(f'@id("{rule}")', f'@id("{rule}")\n@hold("{span}")')
        admin = self.cast.member(f"Holding{PolicyVersion.objects.count()} Admin", [Role.ADMIN])
        version = propose_policy(text, member=self.cast.max)
        return decide_policy(version, approve=True, seen=version.digest, member=admin)

    def let_go(self, packet: Packet) -> None:
        """The hold of a packet is over."""
        held_until = Packet.objects.values_list("held_until", flat=True).get(pk=packet.pk)
        if held_until is not None:
            clock.move_on(max(held_until - database_now(), timedelta(0)))

    def run_out(self, packet: Packet) -> Packet:
        """The time to decide a packet is over."""
        packet.expires_at = timezone.now() - timedelta(seconds=1)
        packet.save(update_fields=["expires_at"])
        return packet

    def leftovers(self) -> list[str]:
        """What runs left on this machine: working directories and sandboxes."""
        work = Path(settings.DATA_DIR) / "work"
        folders = sorted(each.name for each in work.iterdir()) if work.is_dir() else []
        return folders + asyncio.run(sandbox_provider().reap([]))

    def heard(self, run: Run) -> str:
        """The whole conversation of the agent, as its last checkpoint has it."""
        checkpoint = Checkpoint.objects.filter(run=run).order_by("seq").last()
        assert checkpoint is not None
        return vault.unseal(bytes(checkpoint.sealed_state)).decode()

    def meanwhile(self, happens: Callable[[], object], *, program: str = "meanwhile") -> None:
        """Let `happens` happen while a command works: `program` waits for it and succeeds.

        Only in the scripted sandbox, whose programs a test may add to.
        """

        async def run(process: shell.Process, arguments: list[str]) -> int:
            def do() -> None:
                try:
                    happens()
                finally:
                    connection.close()

            await asyncio.to_thread(do)
            return 0

        shell.PROGRAMS[program] = run

    def lose_sandboxes(self) -> None:
        """Every sandbox is gone, as if somebody had killed its container."""
        for each in list(scripted._standing):
            each.lose("somebody killed it")


# --- Rows without a walk ------------------------------------------------------------


def parked_call(
    walk: Walk, *, arguments: Mapping[str, Any] | None = None, text: str = ""
) -> Packet:
    """The open packet of a call, made in milliseconds. Its run has no state to go on from."""
    run = walk.run(http=True, text=text)
    walk.lose_hops()
    lease = lifecycle.claim_run(run.pk)
    assert lease is not None
    lifecycle.record_call(
        lease,
        call_id=f"call-{run.number}",
        tool="create_issue",
        kind="http",
        outward=True,
        arguments=arguments or {"title": "The adder subtracts"},
        target=f"POST {walk.tracker.url}/issues",
        judged=lifecycle.Judged(
            state=CallState.WAITING,
            rules=("outward-needs-a-person",),
            policy_version=TenantJudge().in_force(run.tenant_id)[0],
            policy_digest="0" * 64,
            reason="It has an effect outside the sandbox.",
        ),
    )
    lifecycle.save_checkpoint(
        lease,
        Kept("waiting", "{}", Saved("0" * 64, 0, (), (), ()), "0", "mender", {}),
        pending=[f"call-{run.number}"],
        output="",
        enter=RunStatus.WAITING,
    )
    walk.drain()
    return walk.open_packet(run)


def decisions_of(packet: Packet) -> list[tuple[str, str]]:
    """Who decided what, in order."""
    rows = Decision.objects.filter(packet=packet).order_by("pk")
    return [(each.person.name, each.verdict) for each in rows.select_related("person")]


def call_of(packet: Packet) -> ToolCall:
    """The packet's call as it is stored now."""
    return ToolCall.objects.get(packet=packet)


def candidate_of(packet: Packet) -> Candidate:
    """The packet's candidate as it is stored now."""
    return Candidate.objects.get(packets=packet)


def publication_packets(run: Run) -> list[Packet]:
    """All packets that asked to publish something of this run."""
    found = Packet.objects.filter(run=run, kind=PacketKind.PUBLICATION)
    return list(found.order_by("number"))
