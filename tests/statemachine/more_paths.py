"""More sequences that somebody thought of: what people make of packets, and what rules demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.statemachine.paths import (
    ADA,
    APPROVAL,
    BO,
    CARRY,
    CY,
    HOLD,
    MONA,
    OLU,
    ONE_CALL,
    PACKET,
    PATHS,
    QUESTIONED,
    SWEEP,
    UNA,
    VIC,
    Event,
    hand,
    policy,
    vote,
    work,
)
from tests.statemachine.reference import CHANGES, DENY


def edit(packet: int, editor: int, variant: int = 1, **named: Any) -> Event:
    """Other arguments in the place of a call's; 0 are the agent's own."""
    return ("edit", packet, editor, variant, {"settled": True, **named})


ASKED_OF_TWO = (policy("strict"), *ONE_CALL)
THERE_AND_BACK = (edit(0, UNA), edit(1, BO, 0))

MORE_PATHS: Mapping[str, Sequence[Event]] = {
    # Edits, and votes that are carried over
    "a call is edited": (
        *(*ONE_CALL, edit(0, BO), edit(0, BO), vote(0, ADA), vote(1, ADA, seen="another's")),
        *(vote(1, BO), vote(1, ADA), edit(1, CY), work()),
    ),
    "an edited call is denied": (*ONE_CALL, edit(0, ADA), vote(1, ADA, DENY), work()),
    "an edited call is sent back": (*ONE_CALL, edit(0, ADA), vote(1, BO, CHANGES), work()),
    "an edited call expires": (*ONE_CALL, edit(0, ADA), PACKET, edit(1, BO), SWEEP, work()),
    "an edited call is withdrawn": (*ONE_CALL, edit(0, BO), ("withdraw", 1, OLU), work()),
    "who may edit": (
        *(*ONE_CALL, *(edit(0, who) for who in (OLU, VIC, MONA)), edit(0, ADA, 0)),
        *(edit(0, ADA, late=True), ("change_roles", 0, 2), edit(0, ADA)),
    ),
    "a question is not edited": (*QUESTIONED, edit(0, ADA), vote(0, ADA), work()),
    "an edit that the rules forbid": (*ONE_CALL, policy("shut"), edit(0, ADA)),
    "a held call is not edited": (
        *(policy("held"), *ONE_CALL, vote(0, ADA), edit(0, BO), HOLD, SWEEP, work()),
    ),
    "an editor stays excluded": (
        *(*ONE_CALL, *THERE_AND_BACK, vote(2, UNA), vote(2, BO), vote(2, ADA), work()),
    ),
    "a vote is carried over": (
        *(*ASKED_OF_TWO, vote(0, ADA), *THERE_AND_BACK, vote(2, ADA), vote(2, CY), work()),
    ),
    "a vote is void where something changed": (
        *(*ASKED_OF_TWO, vote(0, ADA), edit(0, BO), vote(1, CY), vote(1, ADA), work()),
    ),
    "a vote is void where the rules changed": (
        *(policy("strict"), *ONE_CALL, vote(0, ADA), edit(0, UNA), policy("usual")),
        *(policy("strict"), edit(1, BO, 0), vote(2, CY), vote(2, ADA), work()),
    ),
    "carried votes alone are never enough": (
        *(*ASKED_OF_TWO, vote(0, ADA), ("leave", 0), vote(0, BO), ("leave", 0), edit(0, UNA)),
        *(edit(1, CY, 0), vote(2, ADA), vote(2, BO), work()),
    ),
    "whoever voted leaves before it is carried": (
        *(*ASKED_OF_TWO, vote(0, ADA), edit(0, UNA), ("leave", 0), edit(1, BO, 0)),
        *(("leave", 0), vote(2, ADA), vote(2, CY), work()),
    ),
    "whoever voted leaves after it is carried": (
        *(*ASKED_OF_TWO, vote(0, ADA), *THERE_AND_BACK, ("leave", 0), vote(2, CY)),
        *(("leave", 0), SWEEP),
    ),
    "whoever voted edits it themselves": (
        *(*ASKED_OF_TWO, vote(0, ADA), edit(0, ADA), edit(1, BO, 0), vote(2, CY), vote(2, UNA)),
        work(),
    ),
    "a vote in another's name is not carried": (
        *(*ASKED_OF_TWO, hand(ADA, CY), vote(0, CY, behalf=ADA), *THERE_AND_BACK),
        *(vote(2, CY, behalf=ADA), vote(2, ADA)),
    ),
    "a vote that was undone is not carried": (
        *(policy("held"), *ONE_CALL, vote(0, ADA), ("undo", 0, BO), *THERE_AND_BACK),
        *(vote(2, CY), HOLD, SWEEP, work()),
    ),
    "what was approved in vain carries nothing over": (
        *(*ASKED_OF_TWO, vote(0, ADA), *THERE_AND_BACK, vote(2, CY), APPROVAL, work()),
        *(("ask_again", 0), CARRY, vote(3, CY), vote(3, ADA), work()),
    ),
    "an edit and a lost hop": (*ONE_CALL, edit(0, BO), ("again", 0), SWEEP, vote(1, ADA), work()),
    "two calls, and one is edited": (
        *(("start", 0), ("ask", 0, 0, 0), CARRY, CARRY, edit(0, BO), vote(1, ADA), vote(2, ADA)),
        work(),
    ),
}
ALL_PATHS = {**PATHS, **MORE_PATHS}
