"""The digest of a page: what is sealed, and what is wrong with a stored page that is not it."""

from __future__ import annotations

from typing import Any

import pytest

from approvals import seal
from approvals.seal import Fault
from portal.canonical import digest

PAGE: dict[str, Any] = {"tool": "create_issue", "arguments": {"title": "One"}}


def test_a_page_is_sealed_with_its_shape_and_all_it_says() -> None:
    whole, sealed = seal.sealed(PAGE)
    assert whole == {"shape": seal.SHAPE, **PAGE}
    assert sealed == digest(whole) != digest(PAGE)
    assert seal.fault(whole, sealed) is None
    assert seal.intact(whole, sealed)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"shape": seal.SHAPE + 1}, Fault.SHAPE_UNKNOWN),
        ({"tool": "another"}, Fault.PAGE_CHANGED),
        ({"more": None}, Fault.PAGE_CHANGED),
        # What no JSON says exactly was never sealed.
        ({"tool": float("nan")}, Fault.PAGE_CHANGED),
        ({"tool": 2**53 + 1}, Fault.PAGE_CHANGED),
    ],
)
def test_a_page_that_is_another_one_is_found_out(change: dict[str, Any], fault: Fault) -> None:
    whole, sealed = seal.sealed(PAGE)
    assert seal.fault({**whole, **change}, sealed) is fault
    assert not seal.intact({**whole, **change}, sealed)


def test_a_page_without_a_shape_is_not_compared() -> None:
    assert seal.fault(PAGE, digest(PAGE)) is Fault.SHAPE_MISSING


def test_what_an_approval_adds_stands_before_what_is_held() -> None:
    held, added = [{"name": "token"}], [{"name": "key"}]
    assert seal.scope_difference(held, added) == [
        {"change": "added", "name": "key"},
        {"change": "held", "name": "token"},
    ]
