"""What is sent, and the weight that is charged for it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

CUBIC_CM_PER_KG = 5_000
STEP = Decimal("0.5")


@dataclass(frozen=True)
class Parcel:
    """Weight in kilograms and the three sides in whole centimetres."""

    weight: Decimal
    sides: tuple[int, int, int]

    def __post_init__(self) -> None:
        if self.weight <= 0 or min(self.sides) <= 0:
            raise ValueError("a parcel has a weight and three sides, all above zero")


def chargeable_weight(parcel: Parcel) -> Decimal:
    """The greater of real and volumetric weight, rounded up to the next half kilogram."""
    length, width, height = parcel.sides
    volumetric = Decimal(length * width * height) / CUBIC_CM_PER_KG
    steps = (max(parcel.weight, volumetric) / STEP).to_integral_value(ROUND_CEILING)
    return steps * STEP
