"""What a run tried and was refused, counted: a flood of attempts leaves a few lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MOST_PLACES = 100
"""Different destinations that are kept by name; all others are counted together."""

OTHERS = ("*", 0)
UNREADABLE = ("", 0)
"""What was no request names no destination."""


@dataclass
class Refused:
    """Attempts at one destination since they were last handed out."""

    host: str
    port: int
    why: str
    times: int = 0


@dataclass
class _Told:
    total: int = 0
    next_word: int = 1


class Tally:
    """Refused attempts of one proxy.

    `take` hands out what is new since the last time, for the counters. `word` says whether an
    attempt is worth a line of its own: the first one, the tenth, the hundredth, and so on.
    """

    def __init__(self) -> None:
        self._fresh: dict[tuple[str, int], Refused] = {}
        self._told: dict[tuple[str, int], _Told] = {}

    def add(self, host: str, port: int, why: str) -> None:
        """Count one attempt."""
        key = (host, port)
        if key not in self._told:
            if len(self._told) >= MOST_PLACES:
                key = OTHERS
            self._told.setdefault(key, _Told())
        self._told[key].total += 1
        entry = self._fresh.setdefault(key, Refused(*key, why))
        entry.why = why
        entry.times += 1

    def take(self) -> list[Refused]:
        """What was counted since the last call."""
        fresh, self._fresh = self._fresh, {}
        return list(fresh.values())

    def put_back(self, taken: list[Refused]) -> None:
        """Those could not be written down; they are handed out again."""
        for each in taken:
            key = (each.host, each.port)
            entry = self._fresh.setdefault(key, Refused(*key, each.why))
            entry.times += each.times

    def lines(self, taken: list[Refused], *, final: bool = False) -> Iterator[tuple[Refused, int]]:
        """Those of them that are worth a line now, each with the number of attempts in all."""
        for each in taken:
            told = self._told[(each.host, each.port)]
            if told.total >= told.next_word or final:
                while told.next_word <= told.total:
                    told.next_word *= 10
                yield each, told.total
