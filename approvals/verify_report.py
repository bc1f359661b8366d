"""What a bundle of evidence was found to be, as data and in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from approvals.signatures import Judged
from portal.evidence import GENESIS

# So many problems are told, the others counted.
MAX_TOLD = 100


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
    # Packets that tested attention and could do nothing.
    canaries: int = 0

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
            "test_packets": self.canaries,
        }


def shown(value: object) -> str:
    """Something of the bundle as a terminal may show it."""
    return ascii(value)[:80].strip("'")


def told(report: Report) -> str:
    """The report in words."""
    counts = ", ".join(f"{number:,} {kind}" for kind, number in report.counts.items())
    text = [f"Evidence of {report.tenant}: {counts}."]
    if report.last >= report.first:
        text.append(f"Audit lines {report.first:,} to {report.last:,}, ending with {report.head}.")
    if report.passkeys:
        decided = report.counts.get("decision", 0)
        text.append(f"{report.passkeys:,} of {decided:,} decisions signed by a passkey.")
    if report.canaries:
        packets = report.counts.get("packet", 0)
        text.append(
            f"{report.canaries:,} of {packets:,} packets tested attention; nothing was behind them."
        )
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
        f"line {judged.line:,}: {shown(judged.verdict)} of person {shown(judged.person)} on "
        f"packet {shown(judged.packet)}, digest {shown(judged.digest)}: "
    )
    if judged.fault:
        return f"{text}NOT SIGNED by passkey {judged.key}: {judged.fault}"
    return text + (f"signed by passkey {judged.key}" if judged.signed else "no passkey")
