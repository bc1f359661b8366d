"""Sequences that somebody thought of: together they lead through every declared move.

Chance finds what nobody thought of; these make sure that nothing rare is left to it. A new event
or state has its path here, and its moves in `tests.statemachine.table`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tests.statemachine.reference import APPROVE, CHANGES, DENY
from tests.statemachine.state import AUTHORS, ROLES, TOOLS, VOTERS

Event: TypeAlias = tuple[Any, ...]
PLAIN, SEALED, QUESTION = range(len(TOOLS))
ADA, BO, CY, UNA, OLU, VIC, MONA, EVE = range(len(VOTERS))
VIEWER = ROLES.index(["viewer"])
MAX_WRITES, UNA_WRITES = range(len(AUTHORS))


def vote(packet: int, voter: int, verdict: str = APPROVE, **named: Any) -> Event:
    """An answer to a packet, by its place among all of them."""
    return ("vote", packet, voter, verdict, {"settled": True, **named})


def work(fate: str = "well") -> Event:
    return ("work", 0, {"fate": fate})


def publish(fate: str = "well") -> Event:
    return ("publish", {"fate": fate})


def look(then: str) -> Event:
    return ("look", 0, {"then": then})


def hand(giver: int, taker: int, **named: Any) -> Event:
    """A right is handed over, for less time than a packet is open."""
    return ("hand_over", giver, taker, "an approval", named)


def policy(rules: str, author: int = MAX_WRITES) -> Event:
    return ("change_policy", rules, author)


START, CARRY, SWEEP, DIE = ("start", 0), ("carry",), ("sweep",), ("die", 0)
MOMENT, LEASE, HOLD = (("wait", f"a {span}") for span in ("moment", "lease", "hold"))
WHILE = ("wait", "a while")
APPROVAL, PACKET = ("wait", "an approval"), ("wait", "a packet")
ONE_CALL = (START, ("ask", 0, PLAIN), CARRY)
APPROVED = (*ONE_CALL, vote(0, ADA))
QUESTIONED = (START, ("ask", 0, QUESTION), CARRY)
NETWORK = (START, ("network", 0, 0), CARRY)
REVIEW = (START, ("offer", 0), CARRY)
INTENDED = (*REVIEW, vote(0, ADA))
TAKEN_OVER = (LEASE, SWEEP, publish())

PATHS: Mapping[str, Sequence[Event]] = {
    # Calls and questions
    "a call is made": (*APPROVED, work(), DIE, LEASE, work(), ("late_worker", 0)),
    "a call with a secret": (START, ("ask", 0, SEALED), CARRY, vote(0, BO), work()),
    "three in one turn": (
        *(START, ("ask", 0, PLAIN, SEALED, QUESTION), CARRY, CARRY, CARRY),
        *(vote(1, ADA, DENY), vote(0, ADA), vote(2, BO), work()),
    ),
    "a call is denied": (*ONE_CALL, vote(0, CY, DENY), work()),
    "a call is sent back": (*ONE_CALL, vote(0, CY, CHANGES), work()),
    "a call expires": (*ONE_CALL, PACKET, vote(0, ADA), SWEEP, work()),
    "a question is answered": (*QUESTIONED, vote(0, CY, CHANGES), vote(0, CY), work()),
    "a question is refused": (*QUESTIONED, vote(0, CY, DENY), work()),
    "a question expires": (*QUESTIONED, PACKET, SWEEP, work()),
    "an answer is used too late": (*QUESTIONED, vote(0, CY), APPROVAL, work()),
    "an approval is used too late": (*APPROVED, APPROVAL, work()),
    "the rules change before the use": (*APPROVED, policy("strict"), work()),
    "the rules forbid the use": (*APPROVED, policy("shut"), work()),
    "the rules forbid the approval": (
        *(*ONE_CALL, policy("shut"), vote(0, ADA), ("roll_back", 0, 0), vote(0, ADA), work()),
    ),
    "a run is stopped while it waits": (
        *(*ONE_CALL, ("cancel", 0), vote(0, ADA), CARRY, vote(0, ADA)),
    ),
    "a question of a stopped run": (*QUESTIONED, ("cancel", 0), CARRY),
    "a run is stopped before a hop": (START, ("ask", 0, PLAIN), ("cancel", 0), CARRY, CARRY),
    "a run is stopped while its call may have been made": (
        *(*APPROVED, work("no answer"), ("cancel", 0), ("settle", 0, {"happened": True})),
    ),
    "a run is stopped before its use": (*APPROVED, ("cancel", 0), CARRY),
    "a run at work is stopped": (
        *(*APPROVED, work("dies before"), ("cancel", 0), LEASE, work(), SWEEP),
    ),
    # Workers around an act
    **{
        f"the worker of a call {fate}": (
            *(*APPROVED, work(fate), LEASE, SWEEP, work(), ("late_worker", 1)),
            *(("settle", 0, {"happened": happened}), work()),
        )
        for fate, happened in (("dies before", False), ("dies after", True), ("overtaken", True))
    },
    "a service gives no answer": (
        *(*APPROVED, work("no answer"), ("settle", 0, {"happened": True}), work()),
    ),
    "one worker after the other is lost": (
        *(*APPROVED, *(work("dies before"), LEASE), ("late_worker", 0), *(work(), LEASE)),
    ),
    "five workers are lost": (START, *(DIE, LEASE, work()) * 5),
    "a run fails": (START, ("network", 0, 0), CARRY, ("fail", 0), CARRY),
    # Network
    "a rule is opened": (*NETWORK, vote(0, OLU), vote(0, ADA), vote(0, BO), LEASE, SWEEP),
    "a rule is refused": (*NETWORK, vote(0, ADA, DENY)),
    "nobody answers about a rule": (*NETWORK, PACKET, SWEEP),
    "an agent finishes before its rule": (*NETWORK, ("offer", 0), CARRY, CARRY),
    "whoever asks for a rule": (START, ("network", 0, 1), CARRY, vote(0, CY), vote(0, ADA)),
    "a run with a question about its network is stopped": (
        *(*NETWORK, ("ask", 0, PLAIN), CARRY, ("cancel", 0), CARRY),
    ),
    # Publications
    "a candidate is published": (*INTENDED, publish(), ("again", 1), ("again", 0), SWEEP),
    "a candidate is denied": (*REVIEW, vote(0, BO, DENY), vote(0, ADA)),
    "a candidate expires": (*REVIEW, PACKET, SWEEP),
    "a run in review is stopped": (*REVIEW, ("cancel", 0), CARRY),
    "a candidate is sent back": (
        *(*REVIEW, vote(0, ADA, CHANGES), ("work", 0), ("offer", 0), CARRY),
        *(vote(0, ADA), vote(1, ADA), publish(), ("again", 0)),
    ),
    "a publication comes too late": (
        *INTENDED,
        APPROVAL,
        publish(),
        CARRY,
        vote(1, ADA),
        publish(),
    ),
    "the rules change before it leaves": (
        *(*INTENDED, policy("strict"), publish(), CARRY),
        *(vote(1, ADA), vote(1, ADA), vote(1, BO), publish()),
    ),
    "a forge is busy": (*INTENDED, publish("busy"), LEASE, SWEEP, publish()),
    "a forge is always busy": (
        *INTENDED,
        publish("busy"),
        *(LEASE, LEASE, SWEEP, publish("busy")) * 5,
    ),
    "the hop of a publication is lost": (*INTENDED, ("lose_hops",), SWEEP, publish()),
    "a forge gives no answer": (*INTENDED, publish("no answer"), SWEEP, look("look")),
    "nobody answered and it is tried again": (
        *(*INTENDED, publish("no answer"), look("try again"), publish()),
    ),
    "a publisher dies unsent": (*INTENDED, publish("dies unsent"), *TAKEN_OVER),
    "a publisher dies unsent, and time is over": (
        *(*INTENDED, publish("dies unsent"), APPROVAL, SWEEP, publish(), CARRY),
    ),
    "a publisher dies before the act": (
        *(
            *INTENDED,
            publish("dies before"),
            *TAKEN_OVER,
            look("look"),
            look("try again"),
            publish(),
        ),
    ),
    "a publisher dies after the act": (*INTENDED, publish("dies after"), *TAKEN_OVER),
    "a person gives a publication up": (
        *(*INTENDED, publish("dies before"), *TAKEN_OVER, look("give up")),
    ),
    # Holds, undone and over; questions that are taken back
    "a hold is over": (policy("held"), *APPROVED, MOMENT, SWEEP, HOLD, SWEEP, work()),
    "a hold is undone": (
        *(policy("held"), *APPROVED, vote(0, BO), ("undo", 0, OLU), ("undo", 0, BO)),
        *(HOLD, SWEEP, ("undo", 0, BO), vote(0, ADA), ("undo", 0, BO, {"late": True})),
        *(HOLD, SWEEP, work()),
    ),
    "the one who approved loses the role in the hold": (
        *(policy("held"), *APPROVED, ("change_roles", 0, VIEWER), ("undo", 0, VIC)),
        *(("undo", 0, ADA), ("undo", 0, ADA)),
    ),
    "the one who approved leaves in the hold": (
        *(policy("held"), *APPROVED, ("leave", 0), HOLD, SWEEP, vote(0, BO), HOLD, SWEEP),
    ),
    "the rules forbid it in the hold": (
        *(policy("held"), *APPROVED, policy("shut"), HOLD, SWEEP, vote(0, BO)),
    ),
    "a packet is held past its time": (
        *(policy("held"), *ONE_CALL, *(("wait", "a hold"),) * 5, vote(0, ADA), HOLD, MOMENT),
        *(SWEEP, work()),
    ),
    "a run is stopped in the hold": (policy("held"), *APPROVED, ("cancel", 0), HOLD, SWEEP),
    "a rule for the network is held": (policy("held"), *NETWORK, vote(0, ADA), HOLD, SWEEP),
    "a publication is held": (policy("held"), *INTENDED, HOLD, SWEEP, publish()),
    "a call is withdrawn": (*ONE_CALL, ("withdraw", 0, ADA), ("withdraw", 0, OLU), work()),
    "a call is withdrawn in the hold": (policy("held"), *APPROVED, ("withdraw", 0, OLU), work()),
    "a question is withdrawn": (*QUESTIONED, ("withdraw", 0, OLU), vote(0, ADA), work()),
    "a rule for the network is withdrawn": (*NETWORK, ("withdraw", 0, OLU), vote(0, ADA)),
    "a publication is withdrawn": (*REVIEW, ("withdraw", 0, OLU), vote(0, ADA)),
    # Stages
    "one of each group": (
        *(policy("staged"), *ONE_CALL, vote(0, CY), vote(0, BO), vote(0, UNA), work()),
    ),
    "somebody moves to another stage": (
        *(policy("staged"), *ONE_CALL, vote(0, BO), vote(0, ADA), work()),
    ),
    "a member of a group leaves": (
        *(policy("staged"), *ONE_CALL, vote(0, ADA), ("leave", 0), ("leave", 0), vote(0, UNA)),
        *(vote(0, BO), work()),
    ),
    # People
    "two are needed": (
        *(policy("strict"), *ONE_CALL, vote(0, ADA, token=1), vote(0, ADA, token=1)),
        *(vote(0, ADA), vote(0, MONA), vote(0, CY), work()),
    ),
    "the first of two leaves": (
        *(policy("strict"), *ONE_CALL, vote(0, ADA), ("leave", 0), vote(0, BO), vote(0, CY)),
    ),
    "the first of two comes back": (
        *(policy("strict"), *ONE_CALL, vote(0, ADA), ("leave", 0), ("leave", 0), vote(0, BO)),
    ),
    "the first of two is switched off": (
        *(policy("strict"), *REVIEW, vote(0, ADA), ("switch", 0), vote(0, BO), vote(0, CY)),
    ),
    "the first of two loses the role": (
        *(policy("strict"), *REVIEW, vote(0, BO), ("change_roles", 1, 3), vote(0, CY)),
        *(vote(0, ADA), publish()),
    ),
    "a role must be among them": (
        *(policy("strict"), START, ("ask", 0, SEALED), CARRY, vote(0, ADA), vote(0, UNA), work()),
    ),
    "whoever wrote the rule": (
        *(policy("strict", UNA_WRITES), *ONE_CALL, vote(0, UNA), vote(0, ADA), vote(0, BO)),
    ),
    "whoever asked": (("start", 1), ("ask", 0, PLAIN), CARRY, vote(0, CY), vote(0, CY, DENY)),
    "what one's machine asked for": (("start", 2), ("ask", 0, PLAIN), CARRY, vote(0, OLU)),
    "who may not": (*ONE_CALL, *(vote(0, who) for who in (OLU, VIC, MONA, EVE)), vote(0, ADA)),
    "a reviewer lets nothing out, and holds back": (*(*REVIEW, vote(0, UNA), vote(0, UNA, DENY)),),
    "a publisher alone decides no call": (
        *(*ONE_CALL, ("change_roles", 0, 2), vote(0, ADA), vote(0, ADA, DENY), vote(0, BO)),
    ),
    "other digests": (
        *(START, ("ask", 0, PLAIN, PLAIN), CARRY, CARRY),
        *(vote(0, ADA, seen=seen) for seen in ("none", "wrong", "another's", "right")),
        vote(1, ADA),
    ),
    "hops come twice and late": (
        *(START, ("ask", 0, PLAIN, SEALED), ("carry", 2), ("again", 0), ("carry", 2)),
        *(vote(0, ADA), vote(1, ADA), ("again", 0), ("again", 1), work(), ("again", 0)),
    ),
    "nothing is heard of a packet": (
        *(START, ("ask", 0, PLAIN), ("lose_hops",), MOMENT, SWEEP, CARRY, vote(0, ADA)),
    ),
    # In another's name
    "somebody decides in another's name": (
        *(policy("strict"), *ONE_CALL, hand(ADA, UNA), vote(0, UNA, behalf=ADA)),
        *(vote(0, UNA), vote(0, ADA), vote(0, UNA, DENY), vote(0, BO), work()),
    ),
    "both count as one, the other way round": (
        *(policy("strict"), *ONE_CALL, hand(ADA, UNA), vote(0, UNA), vote(0, UNA, behalf=ADA)),
        *(vote(0, ADA, behalf=UNA), vote(0, ADA), work()),
    ),
    "the right is over": (
        *(*ONE_CALL, hand(ADA, UNA), APPROVAL, vote(0, UNA, behalf=ADA), vote(0, ADA)),
    ),
    "the right is not there yet": (
        *(*ONE_CALL, hand(ADA, UNA, later=True), vote(0, UNA, behalf=ADA), HOLD),
        *(vote(0, UNA, behalf=ADA), work()),
    ),
    "the right is taken back": (
        *(*ONE_CALL, hand(ADA, UNA), ("take_back", 0, BO), ("take_back", 0, ADA)),
        vote(0, UNA, behalf=ADA),
    ),
    "what was decided in time stays": (
        *(policy("strict"), *ONE_CALL, hand(ADA, UNA), vote(0, UNA, behalf=ADA)),
        *(("take_back", 0, UNA), APPROVAL, vote(0, BO), work()),
    ),
    "whoever gave it leaves": (
        *(policy("strict"), *ONE_CALL, hand(ADA, UNA), vote(0, UNA, behalf=ADA), ("leave", 0)),
        *(vote(0, BO), vote(0, UNA, behalf=ADA), ("leave", 0), vote(0, CY), work()),
    ),
    "whoever has it loses the roles": (
        *(policy("strict"), *ONE_CALL, hand(ADA, CY), vote(0, CY, behalf=ADA)),
        *(("change_roles", 2, 3), vote(0, BO), vote(0, UNA), work()),
    ),
    "whoever gave it is switched off": (
        *(*REVIEW, hand(BO, UNA), ("switch", 1), vote(0, UNA, behalf=BO), ("switch", 1)),
        *(vote(0, UNA, behalf=BO), publish()),
    ),
    "the right is never handed on": (
        *(*ONE_CALL, hand(ADA, UNA), hand(UNA, BO), vote(0, BO, behalf=ADA)),
        *(vote(0, BO, behalf=UNA), work()),
    ),
    "the right is for other tools": (
        *(*ONE_CALL, hand(ADA, UNA, tool=QUESTION), vote(0, UNA, behalf=ADA)),
        *(hand(ADA, UNA, tool=PLAIN), vote(0, UNA, behalf=ADA, token=1)),
        *(vote(0, UNA, behalf=ADA, token=1, settled=True), work()),
    ),
    "whoever asked is not let in by another": (
        *(("start", 1), ("ask", 0, PLAIN), CARRY, hand(CY, BO), hand(BO, CY)),
        *(vote(0, BO, behalf=CY), vote(0, CY, behalf=BO), vote(0, BO), work()),
    ),
    "who has nothing to hand over": (
        *(hand(who, ADA) for who in (OLU, VIC, MONA, ADA)),
        *(hand(ADA, who) for who in (OLU, MONA, EVE)),
    ),
    "a group counts for whoever gave": (
        *(policy("staged"), *ONE_CALL, hand(ADA, CY), vote(0, CY), vote(0, CY, behalf=ADA)),
        *(vote(0, UNA), work()),
    ),
}
