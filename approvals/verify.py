"""Check a bundle of evidence: `python -m approvals.verify BUNDLE [--key KEY]...`.

Needs no database, no network and no framework: of this project it imports the canonical form, the
envelopes and the signatures of passkeys, of others `rfc8785` and `cryptography`. It reads once, a
line at a time, and keeps nothing of what it has read, but which open packets demand a passkey.

A bundle is one file of lines, each of them

    {"KIND":BODY,"hash":"HASH"}

with BODY as RFC 8785 JSON to the letter and HASH the SHA-256 of exactly these bytes. Kinds, in
the order in which they stand:

    bundle      whose evidence it is, and after which line of the audit log it begins
    audit       one line of the audit log; `previous` is the hash of the line before
    withheld    number, hash and `previous` of a line that this bundle does not show
    packet      behind the line that opened it: the page as it was shown
    decision    behind the line that tells of it; where a rule demanded a passkey, with what the
                browser signed, the signature and the public key (`approvals.signatures`)
    check       behind the line that tells of them: the receipt of one check of a candidate
    receipt     behind the line that tells of the publication: an in-toto statement, signed
    checkpoint  behind the line it speaks of: where the chain was, signed
    run, event  a run with the end of its chain, and its events, chained in the same way
    end         what stands above, by number and SHA-256, signed

Signed is an envelope of DSSE with Ed25519. Whoever holds one public key of the portal can check
all of it: checkpoints are signed with every key in force, so that one that is trusted makes those
known that replace it.

Exit status: 0 everything holds, 1 something does not, 2 there is no bundle to check, 3 everything
holds but nobody said whose key it must be signed with.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from approvals import signatures
from approvals.signatures import Judged
from portal.canonical import canonical, digest, parsed
from portal.dsse import opened, public_key
from portal.evidence import CHECKPOINT_TYPE, GENESIS

VERSION = 1
END_TYPE = "application/vnd.imprimatur.bundle-end+json"
STATEMENT_TYPE = "application/vnd.in-toto+json"

# No line is longer, however large the page in it; longer ones are not read.
MAX_LINE = 64 * 1024 * 1024
# So many problems are told, the others counted.
MAX_TOLD = 100

# What a line of the audit log says was decided, and the verdict that says so.
VERDICTS = {
    "packet.approved": "approve",
    "packet.denied": "deny",
    "packet.changes_requested": "request_changes",
}
# What it says of a packet that ended without a decision.
UNDECIDED = frozenset(
    f"packet.{word}" for word in ("expired", "withdrawn", "cancelled", "superseded")
)
# The kind of what stands behind a line of the audit log, by the line's action.
DETAILS = {
    "packet.opened": "packet",
    **dict.fromkeys(VERDICTS, "decision"),
    "candidate.checked": "check",
    "publication.done": "receipt",
}
_TAIL = len(',"hash":"') + 64 + len('"}\n')


def framed(kind: str, body: Any) -> bytes:
    """One line of a bundle."""
    written = canonical(body)
    said = hashlib.sha256(written).hexdigest()
    return b'{"%s":%s,"hash":"%s"}\n' % (kind.encode(), written, said.encode())


def details_of(entry: Mapping[str, Any]) -> str:
    """The kind of the lines that stand behind a line of the audit log, or an empty text."""
    kind = DETAILS.get(str(entry.get("action")), "")
    # A packet that ended by itself was decided by nobody.
    return "" if kind == "decision" and entry.get("actor") is None else kind


class NoBundle(Exception):
    """This is no bundle of evidence. The text says why."""


@dataclass(frozen=True)
class Problem:
    """One thing that does not hold: the line of the file, counted from 1, and what is wrong."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line:,}: {self.text}"


@dataclass
class Report:
    """What a bundle was found to be."""

    tenant: str = ""
    problems: list[Problem] = field(default_factory=list)
    untold: int = 0
    notes: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    first: int = 0
    last: int = 0
    head: str = GENESIS
    # The keys that signed the end, and whether one that the caller trusts leads to them.
    signers: tuple[str, ...] = ()
    vouched: bool = False
    # Decisions that a passkey signed, and whose signature is of exactly what was decided.
    passkeys: int = 0

    @property
    def holds(self) -> bool:
        return not self.problems

    @property
    def status(self) -> int:
        """The exit status of the command."""
        return 1 if self.problems else 0 if self.vouched else 3

    def to_data(self) -> dict[str, Any]:
        """The whole report as plain data."""
        return {
            "tenant": self.tenant,
            "holds": self.holds,
            "vouched": self.vouched,
            "problems": [{"line": each.line, "text": each.text} for each in self.problems],
            "more_problems": self.untold,
            "notes": self.notes,
            "counts": self.counts,
            "audit": {"first": self.first, "last": self.last, "hash": self.head},
            "signed_with": list(self.signers),
            "signed_by_passkey": self.passkeys,
        }


@dataclass
class _Chain:
    """Where a chain stands."""

    name: str
    seq: int = 0
    hash: str = GENESIS

    def faults(self, body: Mapping[str, Any], said: str) -> Iterable[str]:
        """What is wrong with the next line, and stand behind it."""
        seq, before = body.get("seq"), self.seq
        if type(seq) is not int:
            yield f"a line of the {self.name} has no number"
            return
        if seq == before + 1:
            if body.get("previous") != self.hash:
                yield f"{self.name} {seq} does not follow from {before}: one of them was replaced"
        elif seq > before:
            yield f"{self.name} {_span(before + 1, seq - 1)} missing before {seq}"
        else:
            yield f"{self.name} {seq} stands behind {before}: out of order, or twice"
            return
        self.seq, self.hash = seq, said


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
        self._audit = _Chain("audit line")
        self._run: Mapping[str, Any] | None = None
        self._events = _Chain("event")
        # The line of the audit log whose details are to come, and how many of them.
        self._entry: Mapping[str, Any] = {}
        self._owed = 0
        # Packets that may still be approved, and only with a passkey: whether they have a hold,
        # and so may be open again after they were approved.
        self._demanding: dict[str, bool] = {}
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
        kind, written, said = _taken_apart(line)
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
            raise NoBundle(f"It is a bundle of version {_shown(version)}, not {VERSION}.")
        if type(seq) is not int or type(last) is not str:
            raise NoBundle("The header does not say where the bundle begins.")
        if hashlib.sha256(written).hexdigest() != said:
            self._wrong("the header is not what was written: its hash is another")
        self.report.tenant, self._tenant_key = _shown(tenant), key
        self._audit.seq, self._audit.hash = seq, last
        self.report.first = seq + 1

    # --- The audit log, and what stands behind its lines

    def _on_audit(self, body: dict[str, Any], said: str) -> None:
        self._next_of_chain(body, said)
        if body.get("tenant") != self._tenant_key:
            self._wrong("the audit line is another tenant's")
        kind = details_of(body)
        if body.get("action") in UNDECIDED:
            self._demanding.pop(str(body.get("subject")), None)
        if kind:
            self._entry = body
            facts = _facts(body)
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
        gate = _mapping(_mapping(body.get("page")).get("gate"))
        if gate.get("passkey"):
            self._demanding[str(self._entry.get("subject"))] = "hold_seconds" in gate
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
        judged = signatures.judged(self._number, body)
        self.report.passkeys += judged.signed
        if judged.fault:
            self._wrong(
                f"no passkey signed the decision behind audit line {self._audit.seq}: "
                f"{judged.fault}"
            )
        subject = str(entry.get("subject"))
        if judged.verdict == "approve" and subject in self._demanding and signature is None:
            self._wrong(
                f"the decision behind audit line {self._audit.seq} takes a passkey, and has none"
            )
        if facts.get("result") != "open" and not self._demanding.get(subject):
            self._demanding.pop(subject, None)
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
        for each in made.get("decisions") or ():
            approved = _mapping(each)
            if approved.get("verdict") == "approve":
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
        self._run, self._events = body, _Chain(f"run {_shown(body.get('number'))}, event")

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
            self._wrong(f"{chain.name} {_span(chain.seq + 1, seq)} missing at the end")
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
            self._wrong(f"audit line {_span(self._audit.seq + 1, seq)} missing at the end")
        elif (seq, content.get("hash")) != (self._audit.seq, self._audit.hash):
            self._wrong("the audit log does not end where the closing line says")
        if content.get("lines") != self._number - 1:
            exported, here = _shown(content.get("lines")), self._number - 1
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

    def _note(self, text: str) -> None:
        if text not in self.report.notes and len(self.report.notes) < MAX_TOLD:
            self.report.notes.append(text)


def _taken_apart(line: bytes) -> tuple[str, bytes, str]:
    """Kind, body and hash of a line; the kind is empty if it is none."""
    colon, stop = line.find(b'":', 2, 20), len(line) - _TAIL
    if not line.startswith(b'{"') or not 2 < colon < stop - 2 or not line.endswith(b'"}\n'):
        return "", b"", ""
    if not line.startswith(b',"hash":"', stop):
        return "", b"", ""
    said = line[-67:-3].decode("ascii", "replace")
    return line[2:colon].decode("ascii", "replace"), line[colon + 2 : stop], said


def _digest(value: object) -> str:
    try:
        return digest(value)
    except ValueError:
        return ""


def _facts(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(entry.get("facts"))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _span(first: int, last: int) -> str:
    return f"{first} is" if first == last else f"{first} to {last} are"


def _shown(value: object) -> str:
    """Something of the bundle as a terminal may show it."""
    return ascii(value)[:80].strip("'")


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


def lines_of(file: IO[bytes]) -> Iterable[bytes]:
    """The lines of a file, none longer than `MAX_LINE`: a longer one comes in pieces, all wrong."""
    return iter(lambda: file.readline(MAX_LINE), b"")


def told(report: Report) -> str:
    """The report in words."""
    counts = ", ".join(f"{number:,} {kind}" for kind, number in report.counts.items())
    text = [f"Evidence of {report.tenant}: {counts}."]
    if report.last >= report.first:
        text.append(f"Audit lines {report.first:,} to {report.last:,}, ending with {report.head}.")
    if report.passkeys:
        decided = report.counts.get("decision", 0)
        text.append(f"{report.passkeys:,} of {decided:,} decisions signed by a passkey.")
    text += [f"BROKEN {each}" for each in report.problems]
    if report.untold:
        text.append(f"BROKEN and {report.untold:,} more")
    text += [f"Note: {each}." for each in report.notes]
    if report.problems:
        text.append("Not everything is as it was written. Keep it as it is.")
    elif report.vouched:
        text.append("Everything holds.")
    else:
        text.append(
            "Everything fits together, but whose it is nobody said. Compare the key with the one "
            f"the portal showed you, or give it with --key: {', '.join(report.signers)}"
        )
    return "\n".join(text)


def told_of(judged: Judged) -> str:
    """One decision in words."""
    text = (
        f"line {judged.line:,}: {_shown(judged.verdict)} of person {_shown(judged.person)} on "
        f"packet {_shown(judged.packet)}, digest {_shown(judged.digest)}: "
    )
    if judged.fault:
        return f"{text}NOT SIGNED by passkey {judged.key}: {judged.fault}"
    return text + (f"signed by passkey {judged.key}" if judged.signed else "no passkey")


def _key(given: str) -> str:
    try:
        public_key(given)
    except ValueError:
        raise argparse.ArgumentTypeError(
            "it is no public key; copy the 64 characters that the Evidence page shows"
        ) from None
    return given.lower()


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns its exit status."""
    parser = argparse.ArgumentParser(
        "python -m approvals.verify",
        description="Check a bundle of evidence, without the portal.",
        epilog="Exit status: 0 holds, 1 does not, 2 no bundle, 3 holds, but whose key it is "
        "nobody said.",
    )
    parser.add_argument("bundle", help="the file; - reads standard input")
    parser.add_argument(
        "--key", action="append", default=[], type=_key, help="a public key that you trust"
    )
    parser.add_argument(
        "--decisions",
        action="store_true",
        help="tell of every decision first whether a passkey signed it, and which; with --json "
        "each as a line of its own",
    )
    parser.add_argument("--json", action="store_true", help="tell it as JSON")
    options = parser.parse_args(arguments)

    def tell(judged: Judged) -> None:
        if options.decisions:
            text = json.dumps(judged.to_data()) if options.json else told_of(judged)
            sys.stdout.write(f"{text}\n")

    try:
        if options.bundle == "-":
            report = verified(lines_of(sys.stdin.buffer), options.key, tell)
        else:
            with open(options.bundle, "rb") as file:
                report = verified(lines_of(file), options.key, tell)
    except (NoBundle, OSError) as error:
        sys.stderr.write(f"{_shown(options.bundle)}: {error}\n")
        return 2
    sys.stdout.write(f"{json.dumps(report.to_data()) if options.json else told(report)}\n")
    return report.status


if __name__ == "__main__":
    sys.exit(main())
