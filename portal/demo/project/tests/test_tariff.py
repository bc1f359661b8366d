from decimal import Decimal
from pathlib import Path

import pytest
from tideline import Tariff, TooHeavy, load_tariff

NORTH = load_tariff(Path(__file__).parent.parent / "tariffs/north-2026.csv")


def test_a_weight_between_two_limits() -> None:
    assert NORTH.price(Decimal("0.5")) == Decimal("6.40")
    assert NORTH.price(Decimal("7.5")) == Decimal("12.50")


def test_a_weight_on_a_limit_belongs_to_that_band() -> None:
    assert NORTH.price(Decimal("10")) == Decimal("12.50")


def test_nothing_heavier_than_the_last_limit_is_carried() -> None:
    with pytest.raises(TooHeavy, match=r"30\.5 kg"):
        NORTH.price(Decimal("30.5"))


def test_limits_must_rise() -> None:
    with pytest.raises(ValueError, match="must rise"):
        Tariff((Decimal(2), Decimal(1)), (Decimal(1), Decimal(2)))
