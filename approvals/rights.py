"""Who had whose right to decide, told from the lines of an audit log alone.

Every right that is handed over and every end of one is a line. A decision in another's name is
held against those that stand before it. It knows no framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

MADE, ENDED = "delegation.made", "delegation.ended"
# Longer over than the clocks of two machines may differ.
_LONG_OVER = timedelta(days=1)


@dataclass(frozen=True)
class _Right:
    giver: int
    taker: int
    begins: datetime
    ends: datetime
    kinds: tuple[str, ...]
    tools: tuple[str, ...]

    def is_for(self, page: Mapping[str, Any]) -> bool:
        of_kind = not self.kinds or page.get("kind") in self.kinds
        return of_kind and (not self.tools or page.get("tool") in self.tools)


@dataclass
class Rights:
    """The rights that were handed over and have not ended, and the pairs that ever had one."""

    _standing: dict[str, _Right] = field(default_factory=dict)
    _known: set[tuple[int, int]] = field(default_factory=set)

    def made(self, subject: str, facts: Mapping[str, Any], actor: object) -> str:
        """One more; what is wrong with its line, as the end of a sentence, or nothing."""
        try:
            right = _Right(
                facts["giver"],
                facts["taker"],
                datetime.fromisoformat(facts["begins"]),
                datetime.fromisoformat(facts["ends"]),
                tuple(facts["kinds"]),
                tuple(facts["tools"]),
            )
            if type(right.giver) is not int or type(right.taker) is not int:
                raise TypeError
            over = [name for name, each in self._standing.items() if each.ends < right.begins]
        except (KeyError, TypeError, ValueError):
            return "hands over a right that cannot be read"
        for name in over:
            if self._standing[name].ends < right.begins - _LONG_OVER:
                del self._standing[name]
        self._standing[subject] = right
        self._known.add((right.giver, right.taker))
        return "" if actor == right.giver else "hands over a right that is somebody else's"

    def ended(self, subject: str) -> None:
        """It is over from this line on."""
        self._standing.pop(subject, None)

    def known(self, giver: object, taker: object) -> bool:
        """Whether any line told that the one handed it to the other."""
        return (giver, taker) in self._known

    def fault(self, giver: object, taker: object, at: object, page: Mapping[str, Any]) -> str:
        """Why a decision at that moment had no right in another's name, or nothing."""
        theirs = [
            each for each in self._standing.values() if (each.giver, each.taker) == (giver, taker)
        ]
        if not theirs:
            return "was given in a name whose right was not handed over, or not any more"
        try:
            moment = datetime.fromisoformat(str(at))
            inside = [each for each in theirs if each.begins <= moment < each.ends]
        except (ValueError, TypeError):
            inside = []
        if not inside:
            return "was given in another's name before or after that was theirs"
        if not any(each.is_for(page) for each in inside):
            return "was given in another's name on a packet that is not of what was handed over"
        return ""
