"""Tariff bands: a price for every weight up to a limit."""

from __future__ import annotations

import csv
from bisect import bisect_right
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path


class TooHeavy(ValueError):
    """The weight is above the last band of the tariff."""


@dataclass(frozen=True)
class Tariff:
    """Bands in rising order; `limits[n]` is the heaviest weight that costs `prices[n]`."""

    limits: tuple[Decimal, ...]
    prices: tuple[Decimal, ...]

    def __post_init__(self) -> None:
        if not self.limits or len(self.limits) != len(self.prices):
            raise ValueError("a tariff needs one price for each of its limits")
        if list(self.limits) != sorted(set(self.limits)):
            raise ValueError("the limits of a tariff must rise")

    def price(self, weight: Decimal) -> Decimal:
        """The price of the band the weight lies in."""
        band = bisect_right(self.limits, weight)
        if band == len(self.limits):
            raise TooHeavy(f"{weight} kg is more than this tariff carries ({self.limits[-1]} kg)")
        return self.prices[band]


def load_tariff(path: str | Path) -> Tariff:
    """Read a tariff from a CSV file with the columns `up to kg` and `price`."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return Tariff(
        limits=tuple(Decimal(row["up to kg"]) for row in rows),
        prices=tuple(Decimal(row["price"]) for row in rows),
    )
