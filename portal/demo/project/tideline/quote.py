"""From a parcel and a tariff to a price that explains itself."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from tideline.parcel import Parcel, chargeable_weight
from tideline.tariff import Tariff

CENT = Decimal("0.01")
FUEL_SHARE = Decimal("0.085")
BULKY_SIDE = 120
BULKY_FEE = Decimal("15.00")


@dataclass(frozen=True)
class Quote:
    """The band's price, each surcharge by name, and their sum."""

    weight: Decimal
    base: Decimal
    surcharges: dict[str, Decimal]

    @property
    def total(self) -> Decimal:
        return self.base + sum(self.surcharges.values(), Decimal(0))


def quote(parcel: Parcel, tariff: Tariff) -> Quote:
    """What it costs to send the parcel under the tariff."""
    weight = chargeable_weight(parcel)
    base = tariff.price(weight)
    surcharges = {"fuel": (base * FUEL_SHARE).quantize(CENT, ROUND_HALF_UP)}
    if max(parcel.sides) > BULKY_SIDE:
        surcharges["bulky"] = BULKY_FEE
    return Quote(weight, base, surcharges)
