"""A small module by which the mutation check shows what it finds; nothing else uses it.

Its tests (`promises.py`) see some faults and miss others, on purpose.
"""

from __future__ import annotations


def fee(amount: int, member: bool) -> int:
    """Two in a hundred and at least 1; nothing for members. Nobody tests the least."""
    if member:
        return 0
    return max(1, amount // 50)


def steps(stairs: int) -> int:
    """The sum of all numbers up to this one. With a fault it may never end."""
    taken = 0
    while stairs > 0:
        taken += stairs
        stairs -= 1
    return taken


def forgotten(number: int) -> bool:
    """Nobody tests this at all."""
    return number > 0
