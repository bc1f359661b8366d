"""The lines that differ between two texts."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from approvals.policy_changes import AROUND, Row, changes

LINES = st.lists(st.sampled_from(["a", "b", "", "c"]), max_size=30)


@given(LINES, LINES)
def test_the_rows_are_exactly_what_lies_between_the_two_texts(
    before: list[str], after: list[str]
) -> None:
    """Whoever takes the old text and does what the rows say has the new one."""
    old, new = [*before, "end"], [*after, "end"]
    rows = changes("\n".join(old), "\n".join(new))
    assert changes("\n".join([*old, ""]), "\n".join([*new, ""])) == rows
    if old == new:
        assert rows == []
        return
    rebuilt: list[str] = []
    at = 0
    for row in rows:
        if row.kind == "gap":
            rebuilt += old[at : at + row.skipped]
            at += row.skipped
        elif row.kind == "ctx":
            assert (row.text, row.old, row.new) == (old[at], at + 1, len(rebuilt) + 1)
            rebuilt.append(row.text)
            at += 1
        elif row.kind == "rem":
            assert (row.text, row.old) == (old[at], at + 1)
            at += 1
        else:
            rebuilt.append(row.text)
            assert row.new == len(rebuilt)
    assert (rebuilt, at) == (new, len(old))


def test_only_what_is_near_a_change_is_shown() -> None:
    before = [f"line {n}" for n in range(100)]
    after = [*before[:50], "new", *before[50:]]
    rows = changes("\n".join(before), "\n".join(after))
    assert [row.kind for row in rows] == [
        *("gap", *["ctx"] * AROUND, "add", *["ctx"] * AROUND, "gap"),
    ]
    assert rows[0] == Row("gap", skipped=50 - AROUND)
    assert rows[-1] == Row("gap", skipped=50 - AROUND)


def test_texts_made_to_be_slow_are_compared_at_once() -> None:
    began = time.process_time()
    rows = changes("x\n" + "\n" * 32_000 + "y", "z\n" + "\n" * 31_000 + "y\nv")
    assert time.process_time() - began < 5
    assert {row.kind for row in rows} == {"rem", "add"}
