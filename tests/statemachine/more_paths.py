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
    DIE,
    EVE,
    HOLD,
    LEASE,
    MONA,
    NETWORK,
    OLU,
    ONE_CALL,
    PACKET,
    PATHS,
    PLAIN,
    QUESTIONED,
    REVIEW,
    SEALED,
    START,
    SWEEP,
    UNA,
    UNA_WRITES,
    VIC,
    WHILE,
    Event,
    hand,
    policy,
    publish,
    vote,
    work,
)
from tests.statemachine.reference import APPROVE, CHANGES, DENY


def edit(packet: int, editor: int, variant: int = 1, **named: Any) -> Event:
    """Other arguments in the place of a call's; 0 are the agent's own."""
    return ("edit", packet, editor, variant, {"settled": True, **named})


def bulk(voter: int, verdict: str = APPROVE, **named: Any) -> Event:
    """One answer to all open packets."""
    return ("bulk", voter, verdict, named)


def resume(now: str = "one") -> Event:
    """A worker takes a run, and something it stood on is another now."""
    return ("resume", 0, now)


TEST = ("test_packet",)
SETTLED = (*ONE_CALL, vote(0, ADA))
CHANGED = (*SETTLED, resume(), CARRY)
SIGNED = (policy("keyed"), *ONE_CALL)
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
    "a signed vote is not carried": (
        *(*SIGNED, vote(0, ADA), *THERE_AND_BACK, vote(2, CY), vote(2, ADA), work()),
    ),
    "an edit and a lost hop": (*ONE_CALL, edit(0, BO), ("again", 0), SWEEP, vote(1, ADA), work()),
    "two calls, and one is edited": (
        *(("start", 0), ("ask", 0, 0, 0), CARRY, CARRY, edit(0, BO), vote(1, ADA), vote(2, ADA)),
        work(),
    ),
    # Passkeys
    "passkeys sign": (
        *(*SIGNED, *(vote(0, ADA, key=key) for key in ("none", "another's", "another page"))),
        *(vote(0, ADA), vote(0, BO, key="used before"), vote(0, BO), work()),
    ),
    "a passkey signs for another": (
        *(*SIGNED, hand(ADA, CY), vote(0, CY, behalf=ADA, key="none"), vote(0, CY, behalf=ADA)),
        *(vote(0, BO), work()),
    ),
    "a passkey is not asked for to deny": (*SIGNED, vote(0, ADA, DENY, key="none"), work()),
    "a publication is signed": (
        *(policy("keyed"), *REVIEW, vote(0, ADA, key="none"), vote(0, ADA, typed="none")),
        publish(),
    ),
    # Risk
    "of high risk the target is typed": (
        *(policy("grave"), *ONE_CALL, *(vote(0, ADA, typed=each) for each in ("none", "wrong"))),
        *(vote(0, ADA), work()),
    ),
    "a publication of high risk": (
        *(policy("grave"), *REVIEW, vote(0, ADA, typed="none"), vote(0, ADA), publish()),
    ),
    "what was denied before is typed": (
        *(*ONE_CALL, vote(0, ADA, DENY), work(), ("ask", 0, 0), CARRY),
        *(vote(1, ADA, typed="none"), vote(1, ADA), work()),
    ),
    "several are approved at once": (
        *(policy("easy"), START, ("ask", 0, PLAIN, SEALED, PLAIN), *(CARRY,) * 3),
        *(bulk(OLU), bulk(EVE), bulk(ADA, stale=0), bulk(ADA, token=1), vote(1, BO), work()),
    ),
    "several are denied at once": (
        *(policy("easy"), START, ("network", 0, 0), ("ask", 0, PLAIN, PLAIN), *(CARRY,) * 3),
        *(bulk(BO, DENY, stale=2), bulk(BO, DENY), bulk(CY, DENY), work()),
    ),
    "rules for the network at once": (
        *(policy("easy"), START, ("network", 0, 0), ("network", 0, 0), CARRY, CARRY, bulk(ADA)),
    ),
    "others are never decided at once": (
        *(*ONE_CALL, bulk(ADA), policy("keyed"), ("start", 0), ("ask", 0, PLAIN), CARRY),
        *(bulk(ADA), bulk(ADA, DENY)),
    ),
    # Times
    "there is little time to decide": (
        *(policy("timed"), *ONE_CALL, *(APPROVAL, SWEEP) * 2, vote(0, VIC), APPROVAL),
        *(vote(0, ADA), SWEEP, work()),
    ),
    "there is little time to execute": (
        *(policy("timed"), *ONE_CALL, vote(0, ADA), WHILE, work()),
    ),
    "there is little time to publish": (
        *(policy("timed"), *REVIEW, vote(0, ADA), WHILE, publish(), CARRY, vote(1, ADA)),
        publish(),
    ),
    "in time, though there is little": (
        *(policy("timed"), *ONE_CALL, HOLD, SWEEP, SWEEP, vote(0, ADA), LEASE, work()),
    ),
    "a rule for the network in a hurry": (
        *(policy("timed"), *NETWORK, HOLD, SWEEP, vote(0, BO), WHILE, SWEEP),
    ),
    "others stand in later": (
        *(policy("relieved"), *ONE_CALL, vote(0, ADA), SWEEP, vote(0, CY), HOLD, vote(0, CY)),
        *(vote(0, ADA), work()),
    ),
    "others stand in by the sweep": (
        *(policy("relieved"), *ONE_CALL, HOLD, SWEEP, SWEEP, vote(0, ADA), work()),
    ),
    "others stand in, and owners still count": (
        *(policy("relieved"), *ONE_CALL, WHILE, vote(0, ADA), vote(0, UNA), work()),
    ),
    # What changed before a run goes on
    "a run goes on though something changed": (
        *(*CHANGED, vote(1, OLU), vote(1, BO, CHANGES), edit(1, BO), ("withdraw", 1, OLU)),
        *(vote(1, BO), resume(), DIE, LEASE, resume()),
    ),
    "a run does not go on": (*CHANGED, vote(1, BO, DENY), SWEEP),
    "nobody says whether it goes on": (*CHANGED, PACKET, SWEEP),
    "it is too late to go on": (*CHANGED, vote(1, BO), APPROVAL, resume(), CARRY, vote(2, BO)),
    "something else changed": (
        *(*CHANGED, vote(1, BO), resume("another"), CARRY, vote(2, CY), resume("another")),
        *(DIE, LEASE, resume(), CARRY),
    ),
    "a run is stopped that may not go on": (*CHANGED, ("cancel", 0), CARRY, vote(1, BO)),
    "whoever wrote the rules lets none go on": (
        *(*SETTLED, policy("strict", UNA_WRITES), resume(), CARRY, vote(1, UNA), vote(1, BO)),
        work(),
    ),
    # Test packets
    "nothing comes of a test": (
        *(*SETTLED, TEST, TEST, edit(1, ADA), vote(1, ADA), vote(1, BO), SWEEP, work()),
    ),
    "a test is caught": (*SETTLED, TEST, vote(1, VIC), vote(1, OLU), vote(1, BO, DENY), TEST),
    "a test is sent back": (*SETTLED, TEST, vote(1, BO, CHANGES), SWEEP),
    "nobody looks at a test": (*SETTLED, TEST, PACKET, vote(1, BO), SWEEP),
    "a test is withdrawn": (*SETTLED, TEST, ("withdraw", 1, BO), ("withdraw", 1, OLU)),
    "the run of a test is stopped": (
        *(*SETTLED, TEST, ("network", 1, 0), ("cancel", 1), *(CARRY,) * 3, vote(1, BO)),
    ),
    "tests among others": (
        *(policy("easy"), *SETTLED, TEST, START, ("ask", 0, PLAIN), CARRY, bulk(BO), TEST),
        bulk(BO, DENY),
    ),
    "a test of high risk": (
        *(policy("grave"), *SETTLED, TEST, vote(1, BO, typed="none"), vote(1, BO), work()),
    ),
    "no test looks like this": (
        *(TEST, *ONE_CALL, TEST, policy("strict"), ("start", 0), ("ask", 0, PLAIN), CARRY),
        *(vote(1, ADA, DENY), TEST),
    ),
}
ALL_PATHS = {**PATHS, **MORE_PATHS}
