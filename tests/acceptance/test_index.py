"""Every scenario and bug report that was handed has a test named after it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
SCENARIOS = (
    *(
        "A01",
        "A02",
        "A03",
        "A06",
        "A07",
        "A08",
        "A10",
        "A12",
        "A13",
        "B01",
        "B02",
        "B03",
        "B06",
        "B08",
    ),
    *("C01", "C02", "C03", "C05", "C06", "C07", "C08", "C11", "C13"),
    *("D01", "D02", "D03", "D04", "D05", "D06", "D12", "E01", "E02", "E03", "E06"),
    *("F01", "F02", "F03", "F04", "F06", "F09", "F11", "F13"),
    *("G01", "G02", "G03", "G04", "G05", "G06", "G10", "H01", "H02", "H05", "H07", "I01", "I04"),
)
BUGS = (
    *("BUG05", "BUG07", "BUG09", "BUG10", "BUG11", "BUG12", "BUG16", "BUG18", "BUG19", "BUG21"),
    *(
        "BUG23",
        "BUG26",
        "BUG27",
        "BUG28",
        "BUG29",
        "BUG33",
        "BUG35",
        "BUG43",
        "BUG44",
        "BUG48",
        "BUG50",
    ),
)


@pytest.fixture(scope="module")
def words() -> set[str]:
    """The parts of the names of all tests."""
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found.update(node.name.split("_"))
    return found


@pytest.mark.parametrize("name", [*SCENARIOS, *BUGS])
def test_a_test_is_named_after_it(words: set[str], name: str) -> None:
    assert name in words


@pytest.mark.parametrize("number", range(1, 16))
def test_an_invariant_has_a_test_of_its_number(words: set[str], number: int) -> None:
    assert f"inv{number:02}" in words
