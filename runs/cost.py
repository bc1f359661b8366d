"""What things cost, in millionths of the contract's currency."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from runs.agent.port import UsageDelta
from runs.contract import Limits

# Millionths per token: (input, cached input, output).
Prices = Mapping[str, tuple[Decimal, Decimal, Decimal]]


def model_micros(usage: UsageDelta, prices: Prices) -> int:
    """The price of one model response. Without a price only its tokens count."""
    price = prices.get(usage.model)
    if price is None:
        return 0
    fresh = max(0, usage.input_tokens - usage.cached_tokens)
    return int(fresh * price[0] + usage.cached_tokens * price[1] + usage.output_tokens * price[2])


def unit_micros(prices: Mapping[str, Decimal], kind: str, quantity: int) -> int:
    """The price of compute seconds, brokered calls, stored or carried bytes, where one is set."""
    return int(prices.get(kind, Decimal(0)) * quantity)


def over_budget(limits: Limits, *, micros: int, tokens: int) -> bool:
    """Whether what was spent reaches what the contract allows."""
    return micros >= int(limits.money * 1_000_000) or tokens >= limits.tokens
