"""What a measurement prints: its figures, and one line for each bar."""

from __future__ import annotations

import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """Some timings of the same thing, in milliseconds."""

    name: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def p99(self) -> float:
        """The value that one in a hundred exceeds; of fewer than a hundred, the largest."""
        ranked = sorted(self.values)
        return ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))]

    def __str__(self) -> str:
        return (
            f"  {self.name:<58} median {self.median:9.2f} ms   p99 {self.p99:9.2f} ms"
            f"   n {len(self.values)}"
        )


class Report:
    """Prints as it goes, and knows at the end whether every bar was met."""

    def __init__(self, title: str, where: str) -> None:
        self.met = True
        print(f"\n{title} ({where}, Python {platform.python_version()})", flush=True)

    def say(self, line: str) -> None:
        """A line of prose."""
        print(f"  {line}", flush=True)

    def took(self, name: str, seconds: Sequence[float]) -> Sample:
        """One line of figures, from timings in seconds."""
        taken = Sample(name, tuple(value * 1000 for value in seconds))
        print(taken, flush=True)
        return taken

    def bar(self, name: str, value: float, limit: float, *, at_least: bool = False) -> None:
        """One bar: a value, its limit, and whether it holds."""
        holds = value >= limit if at_least else value <= limit
        self.met &= holds
        side = "at least" if at_least else "at most"
        word = "holds" if holds else "MISSED"
        print(f"  {name:<58} {value:9.2f}      bar: {side} {limit:g}   {word}", flush=True)

    def end(self) -> None:
        """Exit with 1 if a bar was missed."""
        sys.exit(0 if self.met else 1)
