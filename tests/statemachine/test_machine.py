"""Any sequence of events leaves the invariants true (DESIGN, 4): found by chance and by thought.

`IMPRIMATUR_SEQUENCES=2000` plays as many random ones, each time others; without it a few, always
the same. What moves were reached stands at the end of the test run.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.statemachine.faults import FAULTS, Fault
from tests.statemachine.faults_of_rules import MORE
from tests.statemachine.ground import Ground
from tests.statemachine.machine import Player, machine
from tests.statemachine.more_paths import ALL_PATHS
from tests.statemachine.reference import LawBroken
from tests.statemachine.table import DECLARED, Move, missed
from tests.statemachine.world import World
from tests.walk import Walk

SEQUENCES = int(os.environ.get("IMPRIMATUR_SEQUENCES", "0"))
FEW = 10
WITH_MORE = {**FAULTS, **MORE}


def by_chance(
    ground: Ground, sequences: int, moves: Counter[Move], *, shrink: bool
) -> Counter[str]:
    """Play random sequences; how many, and of how many steps."""
    played: Counter[str] = Counter()
    chosen = settings(
        max_examples=sequences,
        stateful_step_count=25,
        derandomize=not SEQUENCES,
        database=None,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    run_state_machine_as_test(machine(ground, moves, played), settings=chosen)
    return played


@pytest.mark.both_databases
def test_whatever_happens_the_invariants_hold(
    walk: Walk,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    ground, moves = Ground.laid(walk, monkeypatch), Counter[Move]()
    played = by_chance(ground, SEQUENCES or FEW, moves, shrink=True)
    by_luck = len(DECLARED & set(moves))
    for name, path in ALL_PATHS.items():
        player = Player(World(ground), moves)
        try:
            player.follow(path)
        except AssertionError as broken:
            raise AssertionError(f"{name}: {broken}") from broken
        played.update(sequences=1, steps=player.steps)

    reached = len(DECLARED & set(moves))
    record_property(
        "state machine",
        f"{database}: {played['steps']} steps in {played['sequences']} sequences, "
        f"{reached} of {len(DECLARED)} declared moves reached, {by_luck} of them by chance",
    )
    assert missed(moves) == []


@pytest.mark.parametrize("fault", WITH_MORE, ids=lambda fault: fault.__name__)
def test_each_fault_is_found(walk: Walk, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """The laws would not be worth much if they held where something is wrong."""
    path, law = WITH_MORE[fault]
    offered = any(event[0] == "offer" for event in ALL_PATHS[path])
    ground = Ground.laid(walk, monkeypatch, candidates=offered)
    fault(monkeypatch)

    with pytest.raises(LawBroken, match=f"^law {law}: "):
        Player(World(ground), Counter()).follow(ALL_PATHS[path])


if SEQUENCES:

    @pytest.mark.parametrize("fault", WITH_MORE, ids=lambda fault: fault.__name__)
    def test_chance_finds_it_too(walk: Walk, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not with a few sequences: some of these need three rare things one after the other."""
        ground = Ground.laid(walk, monkeypatch)
        fault(monkeypatch)

        with pytest.raises(LawBroken):
            by_chance(ground, SEQUENCES, Counter(), shrink=False)
