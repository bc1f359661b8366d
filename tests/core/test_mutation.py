"""The mutation check finds what it should: it is run on a sample whose tests are known."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings

from tests.mutation.__main__ import AREAS, equivalents
from tests.mutation.place import mutants

SAMPLE = "tests.mutation.sample"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, dict[str, str]]:
    """Exit status, what was printed, and what became of each mutant of the sample."""
    report = tmp_path_factory.mktemp("mutation") / "report.json"
    tests = str(Path(settings.BASE_DIR, "tests", "mutation", "promises.py"))
    done = subprocess.run(
        (
            *(sys.executable, "-m", "tests.mutation", "--module", SAMPLE, "--tests", tests),
            *("--least", "1", "--json", str(report)),
        ),
        cwd=settings.BASE_DIR,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    rows = json.loads(report.read_text())
    assert len({row["mutant"] for row in rows}) == len(rows)
    return done.returncode, done.stdout, {row["mutant"]: row["fate"] for row in rows}


@pytest.mark.parametrize(
    ("mutant", "fate"),
    [
        ("fee: member → not member", "killed"),
        ("fee: 0 → 1", "killed"),
        ("fee: amount // 50 → amount * 50", "killed"),
        ("fee: max → min", "killed"),
        # The least fee is nobody's test, and is reported.
        ("fee: 1 → 2", "survived"),
        ("steps: stairs > 0 → stairs >= 0", "survived"),
        ("steps: taken += stairs → pass", "killed"),
        ("steps: stairs -= 1 → pass", "timeout"),
        ("forgotten: number > 0 → number >= 0", "uncovered"),
    ],
)
def test_each_fault_has_its_fate(
    ran: tuple[int, str, dict[str, str]], mutant: str, fate: str
) -> None:
    assert ran[2][f"{SAMPLE}:{mutant}"] == fate


def test_what_survived_is_named_and_fails_the_run(ran: tuple[int, str, dict[str, str]]) -> None:
    status, said, fates = ran
    assert status == 1
    for name, fate in fates.items():
        assert (f"{name} (line" in said) == (fate in ("survived", "uncovered"))


def test_every_function_that_is_named_is_there_and_every_argument_has_its_mutant() -> None:
    """A renamed function, or a changed line, is looked at again."""
    known = set()
    for names in AREAS.values():
        for name in names:
            module, _, only = name.partition(":")
            found = list(mutants(module, frozenset(only.split(",")) if only else frozenset()))
            assert found, name
            known |= {each.name for each in found}
    assert set(equivalents()) <= known
    assert all(len(reason) > 20 for reason in equivalents().values())
