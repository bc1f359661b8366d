"""Judge the lines of a bundle of evidence, in turn. `approvals.verify` says what a bundle is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from approvals import signatures
from approvals.bundle_form import (
    CARRIED,
    END_TYPE,
    STATEMENT_TYPE,
    VERDICTS,
    VERSION,
    Chain,
    details_of,
    source_of,
    span,
    taken_apart,
)
from approvals.signatures import Judged
from approvals.verify_report import MAX_TOLD, NoBundle, Problem, Report, shown
from approvals.votes import Votes
from portal.canonical import digest, parsed
from portal.dsse import opened
from portal.evidence import CHECKPOINT_TYPE


class Verifier:
    """Takes the lines of one bundle in turn, then tells what holds.

    `keys` are the public keys that somebody vouches for, in hexadecimal. `on_decision` is told of
    every decision, as it is read.
    """

    def __init__(
        self,
        keys: Iterable[str] = (),
        on_decision: Callable[[Judged], object] = lambda judged: None,
    ) -> None:
        self.report = Report()
        self._on_judged = on_decision
        self._given = frozenset(keys)
        self._trusted = set(self._given)
        self._number = 0
        self._read = hashlib.sha256()
        self._tenant_key: object = None
        self._audit = Chain("audit line")
        self._run: Mapping[str, Any] | None = None
        self._events = Chain("event")
        # The line of the audit log whose details are to come, and how many of them.
        self._entry: Mapping[str, Any] = {}
        self._owed = 0
        self._votes = Votes(self._sees_everything, self._note)
        self._closed = False
        self._handlers: dict[str, Callable[[Any, str], None]] = {
            "audit": self._on_audit,
            "withheld": self._on_withheld,
            "packet": self._on_packet,
            "decision": self._on_decision,
            "check": self._on_check,
            "receipt": self._on_receipt,
            "checkpoint": self._on_checkpoint,
            "run": self._on_run,
            "event": self._on_event,
            "end": self._on_end,
        }

    # --- Lines

    def take(self, line: bytes) -> None:
        """The next line, with its end. Raises `NoBundle` if it is the first and no header."""
        self._number += 1
        kind, written, said = taken_apart(line)
        if self._number == 1:
            self._begin(kind, written, said)
            self._read.update(line)
            return
        if self._closed:
            self._wrong("it stands behind the closing line")
            return
        if kind != "end":
            self._read.update(line)
        handler = self._handlers.get(kind)
        if handler is None:
            self._wrong(
                "it is cut off" if not line.endswith(b"\n") else "it is no line of a bundle"
            )
            return
        self._count(kind)
        intact = hashlib.sha256(written).hexdigest() == said
        if not intact:
            self._wrong(f"the {kind} is not what was written: its hash is another")
        try:
            body = parsed(written)
        except ValueError as error:
            self._wrong(f"the {kind} cannot be read: {error}")
            return
        if not isinstance(body, dict):
            self._wrong(f"the {kind} is no object")
            return
        handler(body, said)

    def finish(self) -> Report:
        """The report, once every line was taken. Raises `NoBundle` if there was none."""
        if not self._number:
            raise NoBundle("The file is empty.")
        if not self._closed:
            self._settle()
            self._wrong("the closing line is missing: the end was cut off")
        report = self.report
        report.last, report.head = self._audit.seq, self._audit.hash
        report.vouched = bool(self._given) and report.holds
        return report

    def _begin(self, kind: str, written: bytes, said: str) -> None:
        if kind != "bundle":
            raise NoBundle("The first line is not the header of a bundle.")
        try:
            body = parsed(written)
            after = body["after"]
            seq, last = after["seq"], after["hash"]
            version, tenant, key = body["version"], body["tenant"], body["tenant_key"]
        except (ValueError, KeyError, TypeError) as error:
            raise NoBundle("The header cannot be read.") from error
        if version != VERSION:
            raise NoBundle(f"It is a bundle of version {shown(version)}, not {VERSION}.")
        if type(seq) is not int or type(last) is not str:
            raise NoBundle("The header does not say where the bundle begins.")
        if hashlib.sha256(written).hexdigest() != said:
            self._wrong("the header is not what was written: its hash is another")
        self.report.tenant, self._tenant_key = shown(tenant), key
        self._audit.seq, self._audit.hash = seq, last
        self.report.first = seq + 1

    # --- The audit log, and what stands behind its lines

    def _on_audit(self, body: dict[str, Any], said: str) -> None:
        self._next_of_chain(body, said)
        if body.get("tenant") != self._tenant_key:
            self._wrong("the audit line is another tenant's")
        kind = details_of(body)
        self._wrong_all(self._votes.move(body))
        facts = _facts(body)
        if kind:
            self._entry = body
            self._owed = len(_mapping(facts.get("receipts"))) if kind == "check" else 1

    def _on_withheld(self, body: dict[str, Any], said: str) -> None:
        self._next_of_chain(body, str(body.get("hash")))

    def _next_of_chain(self, body: Mapping[str, Any], said: str) -> None:
        self._settle()
        if self._run is not None:
            self._wrong("a line of the audit log stands behind the runs")
        for fault in self._audit.faults(body, said):
            self._wrong(fault)

    def _settle(self) -> None:
        """What the last line of a chain promised has come, or is missing."""
        if self._owed:
            kind = details_of(self._entry)
            self._wrong(f"the {kind} behind audit line {self._audit.seq} is missing")
        self._owed = 0
        self._end_run()

    def _detail(self, kind: str, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The facts of the audit line that a detail belongs to, or None for a stray one."""
        if not self._owed or details_of(self._entry) != kind:
            self._wrong(f"a {kind} stands where no audit line tells of one")
            return None
        self._owed -= 1
        return _facts(self._entry)

    def _on_packet(self, body: dict[str, Any], said: str) -> None:
        facts = self._detail("packet", body)
        if facts is None:
            return
        self._same("packet", self._entry.get("subject"), f"packet:{body.get('key')}", "subject")
        self._same("packet", facts.get("digest"), _digest(body.get("page")), "page")
        test = body.get("canary", False)
        self._same("packet", facts.get("canary", False), test, "mark “test packet”")
        self.report.canaries += test is True
        self._wrong_all(self._votes.opened(self._entry, _mapping(body.get("page"))))
        if "words" in facts:
            words = _digest(body.get("agent_words"))
            self._same("packet", facts["words"], words, "words of the agent")

    def _on_decision(self, body: dict[str, Any], said: str) -> None:
        facts = self._detail("decision", body)
        if facts is None:
            return
        entry = self._entry
        self._same("decision", entry.get("subject"), f"packet:{body.get('packet')}", "packet")
        self._same("decision", entry.get("actor"), body.get("person"), "person")
        giver = body.get("on_behalf_of")
        self._same("decision", facts.get("on_behalf_of"), giver, "person in whose name it is")
        verdict = VERDICTS.get(str(entry.get("action")))
        self._same("decision", verdict, body.get("verdict"), "verdict")
        self._same("decision", facts.get("digest"), body.get("digest"), "digest")
        # Lines from before an approval could be undone name no round.
        counted = body.get("round", 1)
        self._same("decision", facts.get("round", 1), counted, "round of votes")
        comment = str(body.get("comment"))[:2000]
        self._same("decision", facts.get("comment"), comment, "comment")
        alone = body.get("self_approved")
        self._same("decision", facts.get("self_approved"), alone, "mark “self-approved”")
        signature = body.get("signature")
        told = "" if signature is None else _digest(signature)
        self._same("decision", facts.get("signature", ""), told, "signature by a passkey")
        kept = body.get("attention")
        read = "" if kept is None else _digest(kept)
        self._same("decision", facts.get("attention", ""), read, "attention")
        judged = signatures.judged(self._number, body)
        self.report.passkeys += judged.signed
        if judged.fault:
            self._wrong(
                f"no passkey signed the decision behind audit line {self._audit.seq}: "
                f"{judged.fault}"
            )
        self._same("decision", facts.get("source"), source_of(body), "packet it is carried from")
        if (entry.get("action") == CARRIED) != ("carried_from" in body):
            self._wrong(f"the decision behind audit line {self._audit.seq} is told as another kind")
        self._wrong_all(self._votes.decided(entry, body))
        self._on_judged(judged)

    def _on_check(self, body: dict[str, Any], said: str) -> None:
        facts = self._detail("check", body)
        if facts is None:
            return
        name = str(body.get("check"))
        outcome = _mapping(facts.get("receipts")).get(name)
        self._same("check", outcome, body.get("outcome"), "outcome")
        if "digests" in facts:
            self._same("check", _mapping(facts["digests"]).get(name), said, "digest")

    def _on_receipt(self, body: dict[str, Any], said: str) -> None:
        facts = self._detail("receipt", body)
        if facts is None:
            return
        if "receipt" in facts:
            self._same("receipt", facts["receipt"], said, "statement")
        content = self._opened("receipt", body, STATEMENT_TYPE)
        if content is None:
            return
        made = _mapping(content.get("predicate"))
        self._same("receipt", facts.get("commit"), made.get("commit"), "commit")
        subjects = content.get("subject")
        trees = [
            _mapping(_mapping(each).get("digest")).get("gitTree")
            for each in (subjects if isinstance(subjects, list) else ())
        ]
        if facts.get("tree") not in trees:
            self._wrong("the receipt speaks of another tree than the audit line")
        self._wrong_all(self._votes.published(self._audit.seq, made.get("packet_digest")))
        for each in made.get("decisions") or ():
            approved = _mapping(each)
            # A vote that is carried over was given on the earlier page, as its own line tells.
            if approved.get("verdict") == "approve" and "carried_from" not in approved:
                told, seen = made.get("packet_digest"), approved.get("digest")
                self._same("receipt", told, seen, "digest that was approved")

    def _on_checkpoint(self, body: dict[str, Any], said: str) -> None:
        content = self._opened("checkpoint", body, CHECKPOINT_TYPE, introduces=True)
        if content is None:
            return
        stands = (self._tenant_key, self._audit.seq, self._audit.hash)
        if (content.get("tenant"), content.get("seq"), content.get("hash")) != stands:
            self._wrong(
                f"the chain up to audit line {self._audit.seq} is not the one that was signed"
            )

    # --- Runs

    def _on_run(self, body: dict[str, Any], said: str) -> None:
        self._settle()
        self._run, self._events = body, Chain(f"run {shown(body.get('number'))}, event")

    def _on_event(self, body: dict[str, Any], said: str) -> None:
        if self._run is None:
            self._wrong("an event stands where no run was named")
            return
        if body.get("run") != self._run.get("key"):
            self._wrong("the event is another run's")
        for fault in self._events.faults(body, said):
            self._wrong(fault)

    def _end_run(self) -> None:
        if self._run is None:
            return
        seq, chain = self._run.get("seq"), self._events
        if type(seq) is not int or seq < chain.seq:
            self._wrong(f"{chain.name} {chain.seq} is more than the run has")
        elif seq > chain.seq:
            self._wrong(f"{chain.name} {span(chain.seq + 1, seq)} missing at the end")
        elif self._run.get("hash") != chain.hash:
            self._wrong(f"{chain.name} {chain.seq} is not the last one of the run")

    # --- Signatures and the end

    def _opened(
        self, kind: str, envelope: Any, media_type: str, *, introduces: bool = False
    ) -> dict[str, Any] | None:
        try:
            content, signers = opened(envelope, media_type)
        except ValueError as error:
            self._wrong(f"the {kind} is not signed: {error}")
            return None
        if self._given and not signers & self._trusted:
            self._note(f"a {kind} is signed with another key, {min(signers)}")
        elif self._given and introduces:
            self._trusted |= signers
        return content

    def _on_end(self, body: dict[str, Any], said: str) -> None:
        self._settle()
        self._closed = True
        content = self._opened("closing line", body, END_TYPE, introduces=True)
        if content is None:
            return
        signers = opened(body, END_TYPE)[1]
        self.report.signers = tuple(sorted(signers))
        if self._given and not signers & self._trusted:
            self._wrong("the closing line is signed with none of the keys that were given")
        seq = content.get("seq")
        if type(seq) is int and seq > self._audit.seq:
            self._wrong(f"audit line {span(self._audit.seq + 1, seq)} missing at the end")
        elif (seq, content.get("hash")) != (self._audit.seq, self._audit.hash):
            self._wrong("the audit log does not end where the closing line says")
        if content.get("lines") != self._number - 1:
            exported, here = shown(content.get("lines")), self._number - 1
            self._wrong(f"{exported} lines were exported, and {here} are here")
        if content.get("sha256") != self._read.hexdigest() and self.report.holds:
            self._wrong("the lines above are not the ones that were exported")

    # --- Telling

    def _count(self, kind: str) -> None:
        counts = self.report.counts
        counts[kind] = counts.get(kind, 0) + 1

    def _same(self, kind: str, told: object, found: object, what: str) -> None:
        if type(told) is not type(found) or told != found:
            self._wrong(f"the {kind} behind audit line {self._audit.seq} has another {what}")

    def _wrong(self, text: str) -> None:
        if len(self.report.problems) < MAX_TOLD:
            self.report.problems.append(Problem(self._number, text))
        else:
            self.report.untold += 1

    def _wrong_all(self, texts: Iterable[str]) -> None:
        for text in texts:
            self._wrong(text)

    def _sees_everything(self) -> bool:
        """Whether the log is here from its beginning, and whole so far."""
        return self.report.first == 1 and not self.report.counts.get("withheld")

    def _note(self, text: str) -> None:
        if text not in self.report.notes and len(self.report.notes) < MAX_TOLD:
            self.report.notes.append(text)


def _digest(value: object) -> str:
    try:
        return digest(value)
    except ValueError:
        return ""


def _facts(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(entry.get("facts"))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def verified(
    lines: Iterable[bytes],
    keys: Iterable[str] = (),
    on_decision: Callable[[Judged], object] = lambda judged: None,
) -> Report:
    """The report on the lines of a bundle. Raises `NoBundle`."""
    verifier = Verifier(keys, on_decision)
    for line in lines:
        verifier.take(line)
    return verifier.finish()
