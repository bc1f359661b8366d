"""What was stored before an event and after it, and what moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from approvals.models import Packet, Publication
from runs.models import Run, ToolCall
from tests.cast import Cast
from tests.statemachine.meeting import met
from tests.statemachine.state import Heard, State


@dataclass(frozen=True)
class Rows:
    """What is stored, at one moment."""

    packets: dict[int, Packet]
    calls: dict[int, ToolCall]
    publications: dict[int, Publication]
    runs: dict[int, Run]

    @classmethod
    def read(cls, cast: Cast) -> Rows:
        def of(model: Any) -> dict[int, Any]:
            return {each.pk: each for each in model.objects.filter(tenant=cast.acme)}

        return cls(of(Packet), of(ToolCall), of(Publication), of(Run))

    def states(self) -> dict[tuple[str, int], str]:
        """Packets by their kind, calls, publications and runs, each with its state."""
        found = {
            (f"packet of {each.kind if each.canary is None else 'test'}", key): each.state
            for key, each in self.packets.items()
        }
        found |= {("call", key): each.state for key, each in self.calls.items()}
        found |= {("publication", key): each.state for key, each in self.publications.items()}
        return found | {
            ("test run" if each.canary else "run", key): each.status
            for key, each in self.runs.items()
        }


@dataclass(frozen=True)
class Step:
    """One event, and the rows before and after it."""

    world: State
    event: str
    before: Rows
    after: Rows
    heard: list[Heard]

    @property
    def answer(self) -> str:
        """The verdict that people gave in this event, if they did."""
        kind, _, verdict = self.event.partition(": ")
        return verdict if kind in ("vote", "bulk") else ""

    def moved(self) -> list[tuple[str, int, str, str]]:
        """What changed its state: what it is, its key, from, to."""
        old, new = self.before.states(), self.after.states()
        return [
            (what, key, old.get((what, key), ""), state)
            for (what, key), state in new.items()
            if old.get((what, key)) != state
        ]

    def meet(self) -> None:
        """Let the reference know the packets that are new, from what it knows of their run."""
        world = self.world
        for packet in self.after.packets.values():
            if packet.pk not in world.asked:
                world.asked[packet.pk] = met(world, packet, self.after.runs[packet.run_id])
            elif packet.state == "approved" and world.asked[packet.pk].approved_at is None:
                world.asked[packet.pk].approved_at = packet.settled_at
