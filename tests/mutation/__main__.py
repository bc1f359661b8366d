"""The command line of the mutation check; see the package."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
AREAS: dict[str, tuple[str, ...]] = {
    "digest": (
        "approvals.seal:sealed,fault,intact,scope_difference",
        "portal.canonical",
        "approvals.deciding:whole,damage",
        "approvals.bounds:kept,_round_told,opened_at,_moment,sealed_times",
    ),
    "quorum": (
        "approvals.quorum",
        "approvals.counting",
        "approvals.demands",
    ),
    "exclusion": ("approvals.opening:excluded_people", "approvals.deciding:_four_eyes,_may_decide"),
    "expiry": (
        "approvals.closing:expire_packet,close_packets_of,close_packet",
        "approvals.deciding:still_decidable",
        "approvals.uses",
        "approvals.times",
        "approvals.bounds:decided_until,held_until,usable_seconds,shortfall,approved_at",
    ),
    "tally": ("approvals.tally",),
    "signatures": ("approvals.signatures", "approvals.signing"),
    "carry": (
        "approvals.carry:content,content_digest,same,_excluded",
        "approvals.carried",
        "approvals.carrying:carry_votes,settle_votes,_given,_carry",
    ),
    "edit": ("approvals.editing", "runs.editing"),
    "undo": ("approvals.undo",),
    "delegation": ("approvals.delegation",),
}
TESTS = (
    *(
        f"tests/core/test_{each}.py"
        for each in (
            *("seal", "quorum", "demands", "times", "tally", "canonical", "carry", "policy"),
            "arguments",
        )
    ),
    *(
        f"tests/approvals/test_{each}.py"
        for each in (
            *(
                "settle_packet",
                "stages",
                "undo",
                "withdraw",
                "edit",
                "moments",
                "passkey_decisions",
            ),
            *("groups", "reminding", "carrying", "closing", "delegation", "tally", "canaries"),
            *("counting", "carried"),
        )
    ),
    *(f"tests/invariants/test_{each}.py" for each in ("binding", "closed", "who_counts", "rows")),
    *(f"tests/acceptance/test_{each}.py" for each in ("binding", "identity", "time")),
    "tests/runs/test_resuming.py",
)
AGAIN = ("survived", "uncovered", "timeout")
"""A busy machine may be why a test took too long, so that is asked again as well."""


def equivalents() -> dict[str, str]:
    """The mutants nobody could notice, each with the reason."""
    with (HERE / "equivalent.toml").open("rb") as file:
        found: dict[str, str] = tomllib.load(file)["equivalent"]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants that were asked for; 1 where one survived without an argument."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--area", action="append", choices=list(AREAS), help="only this part")
    parser.add_argument("--module", action="append", help="MODULE or MODULE:FUNCTION,FUNCTION")
    parser.add_argument("--tests", action="append", help="where the tests are")
    parser.add_argument("--json", type=Path, help="write what became of each mutant")
    parser.add_argument("--again", type=Path, help="only what it says survived, or was slow")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tests for each")
    parser.add_argument("--least", type=float, default=20.0, help="seconds a mutant always gets")
    parser.add_argument("--covered", type=Path, help="keep the map of lines here, and use it again")
    asked = parser.parse_args(arguments)
    names = asked.module or [each for area in asked.area or AREAS for each in AREAS[area]]
    chosen = Chosen(names, asked)
    code = pytest.main(
        [
            *("-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", "--no-summary", "-s"),
            # Its thread would not live on in a fork, and a fault is not tried twice.
            *("-p", "no:rerunfailures"),
            *(asked.tests or TESTS),
        ],
        plugins=[chosen],
    )
    if code != 0 or chosen.session is None:
        return 2
    return chosen.ended()


class Chosen:
    """Makes the session once Django is there, and tells what came of it."""

    def __init__(self, names: Sequence[str], asked: argparse.Namespace) -> None:
        from tests.mutation.session import Session

        self._make, self._names, self._asked = Session, names, asked
        self.session: Session | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        from tests.mutation.place import Mutant, mutants

        found: list[Mutant] = []
        files: dict[str, str] = {}
        # Lines of all of them, so that the map is of use to the next run as well.
        every = [name for names in AREAS.values() for name in names]
        for name in (*self._names, *every):
            module = name.partition(":")[0]
            files[str(importlib.import_module(module).__file__)] = module
        for name in self._names:
            module, _, only = name.partition(":")
            found += mutants(module, frozenset(only.split(",")) if only else frozenset())
        if self._asked.again:
            rows = json.loads(self._asked.again.read_text())
            left = {row["mutant"] for row in rows if row["fate"] in AGAIN}
            found = [each for each in found if each.name in left]
        self.session = self._make(
            found,
            files,
            kept=self._asked.covered,
            budget=self._asked.budget,
            least=self._asked.least,
            report=self._progress,
        )
        session.config.pluginmanager.register(self.session)

    def _progress(self, told: object) -> None:
        from tests.mutation.session import Told

        assert isinstance(told, Told)
        if told.fate in ("survived", "uncovered") and told.mutant.name not in equivalents():
            print(f"{told.fate:9} {told.mutant.name} (line {told.mutant.line})", flush=True)
        self._written()

    def _rows(self) -> list[tuple[Any, str]]:
        """What became of each so far, and the word for it: one with an argument is equivalent."""
        known = equivalents()
        rows: list[tuple[Any, str]] = []
        for told in self.session.told if self.session is not None else ():
            missed = told.fate in ("survived", "uncovered") and told.mutant.name in known
            rows.append((told, "equivalent" if missed else told.fate))
        return rows

    def _written(self) -> None:
        """The file, as far as it goes: whoever stops a long run keeps what was found."""
        if self._asked.json:
            known = equivalents()
            data = [
                {
                    **{"mutant": told.mutant.name, "line": told.mutant.line, "fate": fate},
                    **{"by": told.by, "words": told.words, "tests": told.tests},
                    "why": known.get(told.mutant.name, ""),
                }
                for told, fate in self._rows()
            ]
            self._asked.json.write_text(json.dumps(data, indent=1, ensure_ascii=False))

    def ended(self) -> int:
        """The table, and the exit status."""
        rows = self._rows()
        fates = ("killed", "timeout", "equivalent", "survived", "uncovered")
        print(f"{'module':28}{'mutants':>9}" + "".join(f"{each:>12}" for each in fates))
        modules = list(dict.fromkeys(told.mutant.module for told, _ in rows))
        for module in [*modules, ""]:
            count = Counter(
                fate for told, fate in rows if not module or told.mutant.module == module
            )
            line = "".join(f"{count[each]:>12}" for each in fates)
            print(f"{module or 'all':28}{count.total():>9}{line}")
        return int(any(fate in ("survived", "uncovered") for _, fate in rows))


if __name__ == "__main__":
    sys.exit(main())
