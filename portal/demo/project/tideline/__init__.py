"""Quotes for sending parcels by coastal freight."""

from tideline.parcel import Parcel, chargeable_weight
from tideline.quote import Quote, quote
from tideline.tariff import Tariff, TooHeavy, load_tariff

__all__ = [
    "Parcel",
    "Quote",
    "Tariff",
    "TooHeavy",
    "chargeable_weight",
    "load_tariff",
    "quote",
]
