"""A run of a bundle of evidence, told in the events that agentack judges.

What was proposed and what happened is told by the run's events, what a person was shown by the
page of the packet, and what they said by the decision: each from its own row, so that rows that
do not fit together make a history that does not hold. An approval is named by the digest of what
it was about. agentack knows two answers; what nobody answered is told as a denial.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from portal.canonical import digest

POLICY = """\
version = 1
[approval]
max_age_seconds = 86400
single_use = true
exact_action_binding = true
stop_is_terminal = true
require_for = ["*:ask"]
"""
"""agentack's: whatever our policy wanted a person for needs one, for exactly that, once."""

Facts = Mapping[str, Any]
ENDS = ("run.published", "run.denied", "run.failed", "run.cancelled", "run.expired")
ANSWERED = ("packet.approved", "packet.denied", "packet.changes_requested")
UNANSWERED = ("packet.expired", "packet.withdrawn", "packet.cancelled")


@dataclass
class _Asked:
    """One packet of the run: what it is about, as its page has it and as it was opened."""

    action_id: str
    key: int
    page: Facts
    opened: str
    settled: bool = False


@dataclass
class History:
    """The history of one run."""

    session: str
    packets: Mapping[int, Facts]
    decisions: Mapping[int, list[Facts]]
    told: list[dict[str, Any]] = field(default_factory=list)
    _judged: dict[str, dict[str, Any]] = field(default_factory=dict)
    _asked: dict[int, _Asked] = field(default_factory=dict)
    _proposals: dict[str, dict[str, Any]] = field(default_factory=dict)
    _published: set[int] = field(default_factory=set)
    _began: dict[int, str] = field(default_factory=dict)
    _ended: bool = False

    def take(self, event: Facts) -> None:
        """One event of the run."""
        kind, facts, at = event["kind"], event["facts"], event["at"]
        self._ended = kind in ENDS or (self._ended and kind != "run.taken_up")
        if kind.startswith("call."):
            self._call(kind, facts, at)
        elif kind == "packet.opened":
            self._open(facts, at)
        elif kind in (*ANSWERED, *UNANSWERED) and facts["packet"] in self._asked:
            self._answer(kind, facts, at)
        elif kind == "run.cancel_asked":
            self._tell("interrupt", at)
        elif kind == "run.checking":
            self._proposals["publication"] = {"candidate": facts["artifacts"][0]}
        elif kind == "run.waiting" and facts.get("changed"):
            self._proposals["resume"] = {"changed": facts["changed"]}
        elif kind == "sandbox.restored" and facts.get("changed"):
            self._execute_packet("resume", {"changed": facts["changed"]}, at)
        elif kind.startswith("egress."):
            self._egress(kind, facts, at)
        elif kind == "publication.started":
            self._began[facts["packet"]] = at
        elif kind == "publication.failed":
            self._block(self._last("publication"), at)
        elif kind == "run.published":
            number, began = self._began.popitem()
            asked = self._asked[number]
            action = _action("publication", {"candidate": facts["artifacts"][0]})
            self._execute(asked.action_id, action, began, asked.opened)

    def finish(self, at: str) -> list[dict[str, Any]]:
        """The events. A run that has not ended has no end here either."""
        if self._ended:
            self._tell("session_end", at)
        return self.told

    # --- Calls

    def _call(self, kind: str, facts: Facts, at: str) -> None:
        call_id = facts["call"]
        if kind in ("call.asked", "call.allowed", "call.denied"):
            operation = "ask" if kind == "call.asked" else "do"
            read = {"sha256": facts["arguments_digest"]}
            self._judged[call_id] = _action(facts["operation"], read, operation)
            if kind != "call.allowed":
                self._propose(call_id, self._judged[call_id], at)
            if kind == "call.denied":
                self._tell("action_blocked", at, action_id=call_id)
        elif kind == "call.started":
            asked, judged = self._of_call(call_id), self._judged.get(call_id)
            operation = judged["operation"] if judged else "ask"
            if operation == "do":
                # What policy allows is told where it happens: one that never began did nothing.
                self._propose(call_id, self._judged[call_id], at)
            read = {"sha256": facts["arguments_digest"]}
            action = _action(facts["operation"], read, operation)
            self._execute(call_id, action, at, asked.opened if asked else None)
        elif (kind == "call.held_back" and facts["why"] != "done_already") or kind in (
            "call.expired",
            "call.cancelled",
        ):
            asked = self._of_call(call_id)
            if asked is not None and asked.settled:
                self._block(asked, at)

    def _of_call(self, call_id: str) -> _Asked | None:
        found = [each for each in self._asked.values() if each.action_id == call_id]
        return found[-1] if found else None

    # --- Packets

    def _open(self, facts: Facts, at: str) -> None:
        packet, kind = self.packets.get(facts["packet"]), facts["operation"]
        action_id = facts.get("call") or f"packet {facts['packet']}"
        if packet is None:
            return
        page = packet["page"]
        self._asked[facts["packet"]] = _Asked(action_id, packet["key"], page, facts["approval"])
        if "call" in facts:
            read = {name: page[name] for name in ("tool", "arguments", "target")}
            shown = _action(page["tool"], {"sha256": digest(read)})
        else:
            wanted = self._proposals.get(_name(kind, page["arguments"]))
            if wanted is not None:
                self._propose(action_id, _action(kind, wanted), at)
            shown = _action(kind, _shown(kind, page))
        self._tell(
            "approval_requested", at, action_id=action_id, approval_id=digest(page), action=shown
        )

    def _answer(self, kind: str, facts: Facts, at: str) -> None:
        asked = self._asked[facts["packet"]]
        if kind in UNANSWERED:
            self._decide(asked, at, "deny", asked.opened)
            return
        if facts["result"] == "open":
            # One of several people who are needed.
            return
        given = [each for each in self.decisions.get(asked.key, ()) if each["name"] == facts["by"]]
        if not given:
            return
        said = given[-1]
        ends = _moment(said["at"]) + timedelta(minutes=asked.page["gate"]["valid_minutes"])
        allow = "allow" if said["verdict"] == "approve" else "deny"
        self._decide(asked, said["at"], allow, said["digest"], expires_at=ends.isoformat())

    def _decide(self, asked: _Asked, at: str, said: str, approval: str, **more: str) -> None:
        asked.settled = True
        self._tell(
            "approval_decision",
            at,
            action_id=asked.action_id,
            approval_id=approval,
            decision=said,
            **more,
        )
        if said == "deny":
            self._block(asked, at)

    def _block(self, asked: _Asked, at: str) -> None:
        self._tell("action_blocked", at, action_id=asked.action_id, approval_id=asked.opened)

    def _last(self, kind: str) -> _Asked:
        return [each for each in self._asked.values() if each.page["kind"] == kind][-1]

    def _execute_packet(self, kind: str, parameters: dict[str, Any], at: str) -> None:
        asked = self._last(kind)
        self._execute(asked.action_id, _action(kind, parameters), at, asked.opened)

    def _egress(self, kind: str, facts: Facts, at: str) -> None:
        if kind not in ("egress.asked", "egress.granted") or facts["origin"] == "contract":
            return
        rule = {name: facts[name] for name in ("host", "port", "minutes")}
        if kind == "egress.asked":
            self._proposals[_name("egress", rule)] = rule
        elif facts["by"] != "policy":
            self._execute_packet("egress", rule, at)

    # --- Telling

    def _propose(self, action_id: str, action: dict[str, Any], at: str) -> None:
        self._tell("action_proposed", at, action_id=action_id, action=action)

    def _execute(
        self, action_id: str, action: dict[str, Any], at: str, approval: str | None
    ) -> None:
        known = {} if approval is None else {"approval_id": approval}
        self._tell("action_executed", at, action_id=action_id, action=action, **known)

    def _tell(self, kind: str, at: str, **more: Any) -> None:
        told = {"schema_version": 2, "type": kind, "timestamp": at, "session_id": self.session}
        self.told.append(told | more)


def _action(tool: str, parameters: dict[str, Any], operation: str = "ask") -> dict[str, Any]:
    return {"tool": tool, "operation": operation, "parameters": parameters}


def _name(kind: str, arguments: Facts) -> str:
    return f"{arguments['host']}:{arguments['port']}" if kind == "egress" else kind


def _shown(kind: str, page: Facts) -> dict[str, Any]:
    if kind == "publication":
        return {"candidate": page["candidate"]["digest"]}
    if kind == "resume":
        return {"changed": [each["what"] for each in page["differences"]]}
    return {name: page["arguments"][name] for name in ("host", "port", "minutes")}


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def history_of(lines: Iterable[bytes], number: int) -> list[dict[str, Any]]:
    """The history of the run with that number, from the lines of a bundle."""
    packets: dict[int, Facts] = {}
    decisions: dict[int, list[Facts]] = {}
    history, at = History("", packets, decisions), ""
    mine = False
    for line in lines:
        data = json.loads(line)
        kind = next(iter(data))
        body = data[kind]
        if kind == "packet" and body["run"] == number:
            packets[body["number"]] = body
        elif kind == "decision":
            decisions.setdefault(body["packet"], []).append(body)
        elif kind == "run":
            mine = body["number"] == number
            history.session = body["id"] if mine else history.session
        elif kind == "event" and mine:
            history.take(body)
            at = body["at"]
    return history.finish(at)
