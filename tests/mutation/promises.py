"""What `sample.py` promises, told to the mutation check alone: no other run collects this file."""

from __future__ import annotations

from tests.mutation.sample import fee, steps


def test_members_pay_nothing() -> None:
    assert fee(1_000, member=True) == 0


def test_a_fee_is_two_in_a_hundred() -> None:
    assert fee(1_000, member=False) == 20
    assert fee(1_049, member=False) == 20


def test_stairs_add_up() -> None:
    assert [steps(stairs) for stairs in (0, 1, 4)] == [0, 1, 10]
