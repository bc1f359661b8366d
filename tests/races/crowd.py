"""Many at once: start together, gather what came of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from django.db import connections

DEADLINE = 120.0


def at_once(works: Sequence[Callable[[], object]]) -> list[Any]:
    """Do all of these in threads that start at the same moment; results in their order.

    An exception is a result too: which ones are allowed is for the test to say.
    """
    gate = threading.Barrier(len(works))
    outcomes: list[object] = [RuntimeError("it never ended")] * len(works)

    def do(place: int, work: Callable[[], object]) -> None:
        try:
            gate.wait(DEADLINE)
            outcomes[place] = work()
        except Exception as error:
            outcomes[place] = error
        finally:
            connections.close_all()

    threads = [
        threading.Thread(target=do, args=(place, work), daemon=True)
        for place, work in enumerate(works)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    return outcomes
