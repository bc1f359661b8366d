"""What the pages show of drills: the newest of each provider, side by side, and one in full."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from portal.errors import NotFound
from runs.drill import Finding, Measured, Report, by_promise
from runs.models import Drill


@dataclass(frozen=True)
class Promise:
    """One promise and the attacks on it."""

    number: int
    words: str
    outcome: str
    findings: Sequence[Finding]


@dataclass(frozen=True)
class Drilled:
    """One drill as the pages show it."""

    public_id: uuid.UUID
    at: datetime
    report: Report

    @property
    def outcome(self) -> str:
        """As `state_chip` knows it."""
        return "held" if self.report.passed else "broken"

    @property
    def broken(self) -> int:
        """How many promises did not hold."""
        return sum(each.outcome == "broken" for each in self.promises)

    @property
    def promises(self) -> list[Promise]:
        """What was attacked, in the promises' order."""
        return [
            Promise(number, words, _outcome(findings), findings)
            for number, words, findings in by_promise(self.report.findings)
        ]


def _outcome(findings: Sequence[Finding]) -> str:
    outcomes = {each.outcome for each in findings}
    return next((each for each in ("broken", "held") if each in outcomes), "untried")


@dataclass(frozen=True)
class Row:
    """One fact of all providers, each with its name; None where one has it not."""

    name: str
    cells: Sequence[tuple[str, Measured | None]]


@dataclass(frozen=True)
class Table:
    """The providers of this installation side by side."""

    drills: Sequence[Drilled]
    promises: Sequence[tuple[str, Sequence[tuple[str, str]]]]
    """Each in words, with its outcome by provider."""
    rows: Sequence[Row]

    @property
    def one_image(self) -> bool:
        """Whether all providers run the same image, byte for byte."""
        return len({each.report.image_digest for each in self.drills}) == 1


def provider_table() -> Table:
    """The newest drill of each provider. Belongs to the installation, so to every tenant."""
    newest: dict[str, Drill] = {}
    for name in Drill.objects.order_by("provider").values_list("provider", flat=True).distinct():
        newest[name] = Drill.objects.filter(provider=name).latest("pk")
    drills = [_drilled(row) for row in newest.values()]
    promises: dict[int, str] = {}
    outcomes: dict[tuple[str, int], str] = {}
    figures: dict[tuple[str, str], Measured] = {}
    for drill in drills:
        provider = drill.report.provider
        for promise in drill.promises:
            promises[promise.number] = promise.words
            outcomes[provider, promise.number] = promise.outcome
        figures |= {(provider, each.name): each for each in drill.report.measured}
    providers = [drill.report.provider for drill in drills]
    return Table(
        drills,
        [
            (words, [(of, outcomes.get((of, number), "untried")) for of in providers])
            for number, words in sorted(promises.items())
        ],
        [
            Row(name, [(of, figures.get((of, name))) for of in providers])
            for name in dict.fromkeys(name for _, name in figures)
        ],
    )


def access_drill(public_id: uuid.UUID) -> Drilled:
    """One drill. Raises `NotFound`."""
    row = Drill.objects.filter(public_id=public_id).first()
    if row is None:
        raise NotFound
    return _drilled(row)


def _drilled(row: Drill) -> Drilled:
    return Drilled(row.public_id, row.created_at, Report.read(row.report))
