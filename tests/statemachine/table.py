"""The declared moves: what may become of packets, calls, publications and runs, and by what.

`MOVES` says of each event from where to where it leads; every one of them must be reached. A move
between two states that no line here has between them is a fault, whatever event it came of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

Move: TypeAlias = tuple[str, str, str, str]
"""What it is, from which state, by which event, to which state."""
Table: TypeAlias = Mapping[str, Mapping[str, str]]
"""Kind of row → event → `from > to`, several with commas. A new row comes from nowhere."""

_ANSWERS = {
    "vote: approve": "open > approved",
    "vote: deny": "open > denied",
}
# Of low risk, several at once.
_TOGETHER = {
    "bulk: approve": "open > approved",
    "bulk: deny": "open > denied",
}
_UNDECIDED = {
    "carry": "> open, open > cancelled",
    "sweep": "open > expired",
    "withdraw": "open > withdrawn",
}
# Where a rule can hold what was approved.
_HELD = {"sweep": "open > expired, open > approved"}
MOVES: Table = {
    "packet of call": {
        **_ANSWERS,
        **_TOGETHER,
        **_UNDECIDED,
        **_HELD,
        "vote: request_changes": "open > changes_requested",
        "edit": "> open, open > superseded",
    },
    "packet of question": {**_ANSWERS, **_UNDECIDED},
    "packet of egress": {
        **_ANSWERS,
        **_TOGETHER,
        **_UNDECIDED,
        **_HELD,
        "carry": "> open, open > cancelled, open > withdrawn",
    },
    "packet of publication": {
        **_ANSWERS,
        **_UNDECIDED,
        **_HELD,
        "vote: request_changes": "open > changes_requested",
    },
    "packet of resume": {
        **_ANSWERS,
        **{"carry": "> open, open > cancelled"},
        "sweep": "open > expired",
    },
    "packet of test": {
        **_ANSWERS,
        **_TOGETHER,
        "test_packet": "> open",
        "vote: request_changes": "open > changes_requested",
        "sweep": "open > expired",
        "withdraw": "open > withdrawn",
        "carry": "open > cancelled",
    },
    "test run": {
        "test_packet": "> waiting",
        "vote: approve": "waiting > cancelled",
        "vote: deny": "waiting > cancelled",
        "vote: request_changes": "waiting > cancelled",
        "bulk: approve": "waiting > cancelled",
        "bulk: deny": "waiting > cancelled",
        "sweep": "waiting > cancelled",
        "withdraw": "waiting > cancelled",
        "cancel": "waiting > cancelled",
    },
    "call": {
        "ask": "> waiting",
        "ask_again": "> waiting",
        "vote: approve": "waiting > approved",
        "vote: deny": "waiting > denied",
        "bulk: approve": "waiting > approved",
        "bulk: deny": "waiting > denied",
        "vote: request_changes": "waiting > changes_requested",
        "sweep": "waiting > expired, waiting > approved",
        "withdraw": "waiting > withdrawn",
        "cancel": "waiting > cancelled, approved > cancelled",
        "resume": "approved > done",
        "work": "approved > done, approved > expired, acting > unknown",
        "work: dies before": "approved > acting",
        "work: dies after": "approved > acting",
        "work: overtaken": "approved > acting",
        "work: no answer": "approved > unknown",
        "settle": "unknown > done, unknown > failed",
    },
    "publication": {
        "vote: approve": "> intended",
        "sweep": "> intended",
        "publish": (
            "intended > done, intended > failed, acting > done, acting > unknown, acting > failed"
        ),
        "publish: busy": "intended > failed",
        "publish: dies unsent": "intended > acting",
        "publish: dies before": "intended > acting",
        "publish: dies after": "intended > acting",
        "publish: no answer": "intended > unknown",
        "look: look": "unknown > done",
        "look: try again": "unknown > intended",
        "look: give up": "unknown > failed",
    },
    "run": {
        "start": "> running",
        "ask": "running > waiting",
        "ask_again": "running > waiting",
        "offer": "running > in_review",
        "fail": "running > failed",
        "vote: approve": "waiting > queued, in_review > publishing",
        "vote: deny": "waiting > queued, in_review > denied, waiting > failed",
        "bulk: approve": "waiting > queued",
        "bulk: deny": "waiting > queued",
        "vote: request_changes": "waiting > queued, in_review > queued",
        "sweep": (
            "waiting > queued, waiting > expired, in_review > expired, in_review > publishing"
        ),
        "resume": "queued > waiting, queued > running",
        "withdraw": "waiting > queued, in_review > cancelled",
        "work": ("queued > running, running > waiting, running > cancelled, running > failed"),
        "work: dies before": "queued > running",
        "work: dies after": "queued > running",
        "work: overtaken": "queued > running",
        "work: no answer": "queued > waiting",
        "settle": "waiting > queued",
        "cancel": "waiting > cancelled, queued > cancelled, in_review > cancelled",
        "publish": "publishing > published, publishing > in_review",
        "publish: busy": "publishing > failed",
        "look: look": "publishing > published",
        "look: give up": "publishing > failed",
    },
}
# Steps of which two happen in one event, when enough comes together.
ALSO: Mapping[str, str] = {
    "publication": "acting > intended",
    "run": "queued > failed, queued > cancelled",
}


def _arrows(text: str) -> Iterable[tuple[str, str]]:
    for arrow in text.split(","):
        before, _, after = arrow.partition(">")
        yield before.strip(), after.strip()


DECLARED: frozenset[Move] = frozenset(
    (what, before, event, after)
    for what, events in MOVES.items()
    for event, text in events.items()
    for before, after in _arrows(text)
)
EDGES: frozenset[tuple[str, str, str]] = frozenset(
    {(what, before, after) for what, before, _, after in DECLARED}
    | {(what, *arrow) for what, text in ALSO.items() for arrow in _arrows(text)}
)


def missed(reached: Iterable[Move]) -> Sequence[str]:
    """The declared moves that were not reached, in words."""
    return [
        f"{what}: {before or 'nothing'} > {after} by {event}"
        for what, before, event, after in sorted(DECLARED - set(reached))
    ]
