from decimal import Decimal

from tideline import Parcel, Tariff, quote

FLAT = Tariff((Decimal(50),), (Decimal("20.00"),))


def test_a_quote_names_its_surcharges() -> None:
    found = quote(Parcel(Decimal(4), (30, 30, 20)), FLAT)

    assert found.surcharges == {"fuel": Decimal("1.70")}
    assert found.total == Decimal("21.70")


def test_a_long_side_makes_a_parcel_bulky() -> None:
    found = quote(Parcel(Decimal(4), (150, 10, 10)), FLAT)

    assert found.surcharges["bulky"] == Decimal("15.00")
