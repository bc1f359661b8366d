from decimal import Decimal

import pytest
from tideline import Parcel, chargeable_weight


@pytest.mark.parametrize(
    ("weight", "sides", "charged"),
    [
        ("3.2", (20, 20, 20), "3.5"),
        ("3.5", (20, 20, 20), "3.5"),
        ("3.51", (20, 20, 20), "4.0"),
        ("1", (50, 40, 30), "12"),
    ],
)
def test_chargeable_weight(weight: str, sides: tuple[int, int, int], charged: str) -> None:
    assert chargeable_weight(Parcel(Decimal(weight), sides)) == Decimal(charged)


def test_a_parcel_without_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="above zero"):
        Parcel(Decimal(0), (10, 10, 10))
