"""The desk that AgentBarrier's adapter asks: real runs, and people at real pages.

Every decision, stop and settlement is a form that somebody who is signed in sends to the web
process. What is told of a run is read from its rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from approvals.models import Packet
from approvals.policies import decide_policy, propose_policy
from approvals.policy_text import DEFAULT_POLICY
from approvals.states import PacketKind, PacketState, Verdict
from portal.handoff import Job, enqueue
from portal.models import Membership
from portal.roles import Role
from runs.models import Event, Run
from runs.states import CallState, RunStatus, Unclear
from tests.acceptance.barrier.model import GATED, PERMITTED, task
from tests.cast import contract_text, make_run, make_version, set_value
from tests.real_walk import RealWalk

PERMIT = """
@id("permitted")
@why("The suite says that these need nobody.")
permit (principal, action == Action::"do", resource)
when {{ {tools}.contains(context.tool) }};
"""
REQUEST_SECONDS = 3
REPLAYS = 3
_TOOL = """\
[[tools.http]]
name = "{name}"
description = "Write."
method = "POST"
base = "sentinel"
url = "{{base}}/effects/{{action}}"
timeout_seconds = {seconds}
[tools.http.parameters]
type = "object"
required = ["action", "recipient", "amount"]
[tools.http.parameters.properties]
action = {{ type = "string" }}
recipient = {{ type = "string" }}
amount = {{ type = "integer" }}
"""
_FOUND = {
    "committed": "yes",
    "not_committed": "no",
    "conflict": Unclear.CONTRADICTING.value,
    "unavailable": Unclear.UNREACHABLE.value,
}
_RUN_EVENTS = {
    "run.queued": "run_started",
    "run.in_review": "run_completed",
    "run.cancelled": "run_cancelled",
}
_PACKET_EVENTS = {
    "packet.opened": "approval_requested",
    "packet.approved": "approved",
    "packet.denied": "rejected",
}
_CALL_EVENTS = {"call.unknown": "reconciliation_started"}
_LOOKED = {
    ("call.settled", CallState.DONE.value): "reconciliation_committed",
    ("call.settled", CallState.FAILED.value): "reconciliation_not_committed",
    ("call.unclear", Unclear.CONTRADICTING.value): "reconciliation_conflict",
    ("call.unclear", Unclear.UNREACHABLE.value): "reconciliation_timed_out",
}


class Desk:
    """Answers the questions of the adapter, one at a time."""

    def __init__(self, walk: RealWalk) -> None:
        self.walk = walk
        self.begun = 0
        self.permit()

    def permit(self, *more: str) -> None:
        """From now on these tools need nobody either."""
        cast = self.walk.cast
        policy = DEFAULT_POLICY + PERMIT.format(tools=json.dumps([PERMITTED, *more]))
        admin = cast.member(f"Permitting{len(more)} Admin", [Role.ADMIN])
        version = propose_policy(policy, member=cast.max)
        decide_policy(version, approve=True, seen=version.digest, member=admin)

    def answer(self, question: Mapping[str, Any]) -> Any:
        """The method of that name, given the rest of the question."""
        given = dict(question)
        what = given.pop("what")
        if "run" in given:
            given["run"] = Run.objects.get(pk=given["run"])
        return getattr(self, f"to_{what}")(**given)

    # --- Asking for a run

    def to_begin(self, sentinel: str, actions: list[dict[str, Any]], seconds: float | None) -> int:
        """Queue a run whose agent wants these actions; with `seconds`, so many are left to it."""
        self.begun += 1
        set_value(self.walk.cast, "sentinel", sentinel)
        text = contract_text(
            name=f"barrier-{self.begun}",
            transcript="",
            verification=False,
            limits="wall_minutes = 1" if seconds is not None else "",
        )
        text = text.replace(
            'instructions = "Repair the adder."', f'instructions = "{task(sentinel, actions)}"'
        )
        text = text.replace("[tools]\n", '[network]\nmode = "request"\n[tools]\n', 1)
        tools = "".join(
            _TOOL.format(name=name, seconds=REQUEST_SECONDS) for name in (GATED, PERMITTED)
        )
        text = text.replace("[output]\n", f"{tools}[output]\n", 1)
        run = make_run(self.walk.cast, make_version(self.walk.cast, text))
        if seconds is not None:
            # It may have been taken already; what is left is read when its sandbox stands.
            Run.objects.filter(pk=run.pk).update(seconds_used=60 - seconds)
        return run.pk

    # --- Looking

    def to_status(self, run: Run) -> dict[str, str]:
        """Where it stands, in a word of the suite's."""
        status = RunStatus(run.status)
        ended = {
            RunStatus.IN_REVIEW: "completed",
            RunStatus.CANCELLED: "cancelled",
            RunStatus.FAILED: "timed_out" if run.failure_code == "runs.timed_out" else "failed",
        }
        word = ended.get(status, "going")
        unknown = run.calls.filter(state=CallState.UNKNOWN).exists()
        if status is RunStatus.WAITING and unknown and not _open(run):
            word = "unknown"
        return {"status": word, "detail": f"{run} is {status}. {run.failure_text}".strip()}

    def to_pending(self, run: Run) -> list[dict[str, Any]] | None:
        """What the open packets show, once every call that waits has one."""
        packets = _open(run)
        waiting = run.calls.filter(state=CallState.WAITING).count()
        asked = [each for each in packets if each.call_id is not None]
        if not packets or len(asked) != waiting or (asked and run.status != RunStatus.WAITING):
            return None
        return [{"id": _action_of(each), "arguments": _arguments_of(each)} for each in packets]

    def to_receipts(self, run: Run) -> list[dict[str, Any]]:
        """The lines of the run that the suite has a word for."""
        told: list[dict[str, Any]] = []
        packets = {each.number: each for each in Packet.objects.filter(run=run)}
        for event in Event.objects.filter(run=run).order_by("seq"):
            facts = event.facts
            word, action, arguments = _RUN_EVENTS.get(event.kind), None, None
            packet = packets.get(facts.get("packet", 0))
            if event.kind in _PACKET_EVENTS and packet is not None and _is_action(packet):
                word = _PACKET_EVENTS[event.kind]
                action, arguments = _action_of(packet), _arguments_of(packet)
            looked = _LOOKED.get((event.kind, str(facts.get("result"))))
            if event.kind in _CALL_EVENTS or looked:
                call = run.calls.get(call_id=facts["call"])
                word = looked or _CALL_EVENTS[event.kind]
                arguments = dict(call.arguments)
                action = arguments.pop("action")
            if word is None or (word == "run_started" and told):
                continue  # and it is queued again after each answer
            at_ns = round(event.at.timestamp() * 1_000_000) * 1_000
            told.append(
                {
                    **{"seq": event.seq, "event": word, "at_ns": at_ns},
                    **{"action": action, "arguments": arguments},
                }
            )
        return told

    # --- Deciding

    def to_approve(self, run: Run, action: str, replacement: Mapping[str, Any] | None) -> None:
        """Ada approves; what is to be replaced, Bo edits first, and a new packet asks about it."""
        packet = _packet_of(run, action)
        if replacement is not None:
            page = f"packets/{packet.public_id}/edit/"
            text = json.dumps({"action": action, **replacement})
            form = {"seen": packet.digest, "text": text, "do": "edit"}
            self._send(page, self.walk.cast.bo, page=page, **form)
            packet = _packet_of(run, action)
        self.walk.decide(packet)

    def to_reject(self, run: Run, action: str, reason: str) -> None:
        self.walk.decide(_packet_of(run, action), Verdict.DENY, reason)

    def to_cancel(self, run: Run) -> None:
        self._send(
            f"runs/{run.public_id}/cancel/", self.walk.cast.olu, page=f"runs/{run.public_id}/"
        )

    def to_settle(self, run: Run, action: str, found: str, note: str) -> None:
        """What somebody saw who looked at the service, as the desk of unknown outcomes takes it."""
        call = next(
            each
            for each in run.calls.filter(state=CallState.UNKNOWN)
            if each.arguments["action"] == action
        )
        form = {"happened": _FOUND[found], "note": note}
        self._send(f"unknown/calls/{call.pk}/settle/", self.walk.cast.ada, page="unknown/", **form)

    def to_replay(self, run: Run) -> None:
        """The broker delivers the run's hop again, as often as it likes."""
        for _ in range(REPLAYS):
            enqueue(Job.EXECUTE_RUN, run.pk)

    def to_close(self, run: Run) -> None:
        if run.is_live:
            self.to_cancel(run)

    def _send(self, address: str, member: Membership, *, page: str, **form: str) -> None:
        """A form of a page, sent by somebody who is signed in."""
        base = f"/t/{self.walk.cast.acme.slug}/"
        with self.walk.browser(member) as browser:
            found = re.search(
                r'name="csrfmiddlewaretoken" value="([^"]*)"', browser.get(f"{base}{page}").text
            )
            assert found, page
            sent = browser.post(f"{base}{address}", data={"csrfmiddlewaretoken": found[1], **form})
        assert sent.status_code == 302, sent.text[:2000]


def _open(run: Run) -> list[Packet]:
    """The packets that ask somebody about an action."""
    found = Packet.objects.filter(run=run, state=PacketState.OPEN).order_by("number")
    return [each for each in found if _is_action(each)]


def _is_action(packet: Packet) -> bool:
    return PacketKind(packet.kind) in (PacketKind.CALL, PacketKind.EGRESS)


def _action_of(packet: Packet) -> str:
    if PacketKind(packet.kind) is PacketKind.CALL:
        return str(packet.page["arguments"]["action"])
    return _delegating(packet.run)


def _arguments_of(packet: Packet) -> dict[str, Any]:
    shown = dict(packet.page["arguments"])
    shown.pop("action", None)
    return shown


def _delegating(run: Run) -> str:
    """The action of this run that others are delegated by, as its instructions have it."""
    listed = re.search(r"Do these: ([0-9a-f]+)", run.version.data["agent"]["instructions"])
    assert listed is not None
    actions = json.loads(bytes.fromhex(listed[1]))["actions"]
    return next(str(each["parent"]) for each in actions if each["parent"])


def _packet_of(run: Run, action: str) -> Packet:
    return next(each for each in _open(run) if _action_of(each) == action)
