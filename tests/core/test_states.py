"""What becomes of a packet with one more answer: every case there is."""

from __future__ import annotations

from itertools import product

import pytest

from approvals.states import PacketState, Verdict, after

ENDS = {
    Verdict.DENY: PacketState.DENIED,
    Verdict.REQUEST_CHANGES: PacketState.CHANGES_REQUESTED,
}


@pytest.mark.parametrize(
    ("state", "verdict", "reached"), list(product(PacketState, Verdict, (False, True)))
)
def test_one_more_answer(state: PacketState, verdict: Verdict, reached: bool) -> None:
    approved = PacketState.APPROVED if reached else PacketState.OPEN
    expected = ENDS.get(verdict, approved) if state is PacketState.OPEN else None
    assert after(state, verdict, reached=reached) is expected
