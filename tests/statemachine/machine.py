"""Sequences of events: each checked by the laws, and its moves counted against a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, get_args

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from portal.handoff import Job
from tests.statemachine import laws
from tests.statemachine.ground import CallFate, Ground, PushFate
from tests.statemachine.paths import Event
from tests.statemachine.reference import ANSWERS, APPROVE, DENY, ENDED, hold
from tests.statemachine.rules import RULES
from tests.statemachine.state import MOST_RUNS, VOTERS
from tests.statemachine.steps import Rows, Step
from tests.statemachine.table import EDGES, Move
from tests.statemachine.world import World


class Player:
    """Plays events in one world, one after the other. `moves` counts what they moved."""

    def __init__(self, world: World, moves: Counter[Move]) -> None:
        self.world, self.moves, self.steps = world, moves, 0
        self.rows = Rows.read(world.cast)

    def play(self, event: str, *given: Any, **named: Any) -> None:
        """One event, and the laws."""
        world = self.world
        before, heard = self.rows, len(world.heard)
        world.votes_before = {
            key: len(asked.void) + len(asked.votes) for key, asked in world.asked.items()
        }
        world.released.clear()
        world.test_due = False
        world.acts_before = world.ground.forge.acts.copy()
        world.struck = False
        getattr(world, event)(*given, **named)
        world.take_hops()
        label = self._label(event, given, named)
        self.rows = Rows.read(world.cast)
        step = Step(world, label, before, self.rows, world.heard[heard:])
        self.steps += 1
        laws.check(step, whole=self.steps % WHOLE_EVERY == 0)
        for what, _, old, new in step.moved():
            self.moves[what, old, label, new] += 1
            declared = (what, old, new) in EDGES
            hold(5, declared, f"a {what} went from {old or 'nothing'} to {new} by {label}")

    def follow(self, path: Iterable[Event]) -> None:
        """Play what somebody wrote down (`tests.statemachine.paths`), to its end."""
        for event, *given in path:
            named = given.pop() if given and isinstance(given[-1], dict) else {}
            self.play(event, *given, **named)
        self.end()

    def _label(self, event: str, given: tuple[Any, ...], named: Mapping[str, Any]) -> str:
        """The event, with what decides where it leads."""
        if event in ("vote", "bulk"):
            return f"{event}: {given[-1]}"
        if event == "look":
            return f"look: {named['then']}"
        return f"{event}: {named['fate']}" if self.world.struck else event

    def end(self) -> None:
        """Every hop is lost. The sweeps alone bring on what is due, and leave nothing behind."""
        world = self.world
        self.play("lose_hops")
        for span in ("a packet", "a lease"):
            self.play("wait", span)
            self.play("sweep")
            while world.waiting:
                self.play("publish" if world.waiting[0][0] is Job.PUBLISH else "carry")
        rows = self.rows
        laws.law_14_evidence_holds(world)
        for packet in rows.packets.values():
            over = packet.expires_at <= world.now or rows.runs[packet.run_id].status in ENDED
            hold(2, packet.state != "open" or not over, f"packet {packet.number} is forgotten")
        asked = {packet.call_id for packet in rows.packets.values()}
        for call in rows.calls.values():
            parked = call.state == "waiting" and call.checkpoint_id is not None
            hold(2, not parked or call.pk in asked, f"nobody is asked about {call}")
        for publication in rows.publications.values():
            late = publication.state in ("intended", "acting")
            hold(2, not late, f"publication {publication.pk} is {publication.state} for ever")


def machine(ground: Ground, moves: Counter[Move], played: Counter[str]) -> type[Sequence]:
    """The machine whose sequences take place on this ground."""
    bound = {"ground": ground, "moves": moves, "played": played}
    return type("Bound", (Sequence,), bound)


WHOLE_EVERY = 10
"""After so many steps all evidence is exported and verified; the chain itself is after each."""
NUMBER = st.integers(0, 7)
VERDICT = st.sampled_from(ANSWERS)
TOOLS = st.lists(NUMBER, min_size=1, max_size=2)
# Voters who may decide something, as long as nobody takes their roles away.
GOOD = st.integers(0, 3)
MOSTLY = st.sampled_from((True, True, True, False))
TROUBLE = (
    "die",
    "die",
    "ask_again",
    "fail",
    "cancel",
    "late_worker",
    "late_worker",
    "again",
    "lose_hops",
)


class Sequence(RuleBasedStateMachine):
    """Any events in any order. Rules say when one can happen; what it does is in `World`."""

    ground: ClassVar[Ground]
    moves: ClassVar[Counter[Move]]
    played: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.ground)
        self.player = Player(self.world, self.moves)

    def teardown(self) -> None:
        self.player.end()
        self.played.update(sequences=1, steps=self.player.steps)

    def play(self, event: str, *given: Any, **named: Any) -> None:
        self.player.play(event, *given, **named)

    def carried(self, at_once: bool) -> None:
        while at_once and self.world.hops(publish=False):
            self.play("carry")

    # --- Agents and workers

    @initialize(asker=NUMBER, tools=TOOLS, offers=st.booleans())
    def begin(self, asker: int, tools: list[int], offers: bool) -> None:
        """One run that waits for people, so that no sequence is empty."""
        self.play("start", asker)
        if offers:
            self.play("offer", 0)
        else:
            self.play("ask", 0, *tools)
        self.carried(True)

    @precondition(lambda self: len(self.world.runs()) < MOST_RUNS and self.world.asker(0))
    @rule(asker=NUMBER)
    def start(self, asker: int) -> None:
        self.play("start", asker)

    @precondition(lambda self: self.world.busy())
    @rule(hand=NUMBER, tools=TOOLS, at_once=MOSTLY)
    def ask(self, hand: int, tools: list[int], at_once: bool) -> None:
        self.play("ask", hand, *tools)
        self.carried(at_once)

    @precondition(lambda self: self.world.busy())
    @rule(hand=NUMBER, at_once=MOSTLY)
    def offer(self, hand: int, at_once: bool) -> None:
        self.play("offer", hand)
        self.carried(at_once)

    @precondition(lambda self: self.world.at_work() and len(self.world.packets("open")) < 3)
    @rule(run=NUMBER, person=NUMBER, at_once=MOSTLY)
    def network(self, run: int, person: int, at_once: bool) -> None:
        self.play("network", run, person)
        self.carried(at_once)

    @precondition(lambda self: self.world.due())
    @rule(run=NUMBER, fate=st.sampled_from(("well", "well", *get_args(CallFate))))
    def work(self, run: int, fate: CallFate) -> None:
        self.play("work", run, fate=fate)

    @precondition(lambda self: self.world.due())
    @rule(run=NUMBER, now=st.sampled_from(("one", "one", "another")))
    def resume(self, run: int, now: str) -> None:
        self.play("resume", run, now)
        self.carried(True)

    @precondition(lambda self: self.world.hops(publish=True))
    @rule(fate=st.sampled_from(("well", "well", *get_args(PushFate))))
    def publish(self, fate: PushFate) -> None:
        self.play("publish", fate=fate)

    @rule(event=st.sampled_from(TROUBLE), number=NUMBER)
    def trouble(self, event: str, number: int) -> None:
        """A worker dies or is late, a hop comes twice or never, a run fails or is stopped."""
        world = self.world
        possible = {
            **dict.fromkeys(("die", "fail", "ask_again"), world.busy()),
            **{"late_worker": world.old_hands, "again": world.delivered, "cancel": world.runs()},
        }
        if event == "lose_hops":
            self.play(event)
        elif possible[event]:
            self.play(event, number)

    @precondition(lambda self: self.world.hops(publish=False))
    @rule(times=st.integers(1, 2))
    def carry(self, times: int) -> None:
        self.play("carry", times)

    @rule(
        span=st.sampled_from(
            ("a moment", "a moment", "a lease", "a lease", "a hold", "an approval")
        )
    )
    def time(self, span: str) -> None:
        """The clock moves, and the sweep comes by."""
        self.play("wait", span)
        self.play("sweep")

    @rule(span=st.sampled_from(("a lease", "an approval", "a packet")))
    def wait(self, span: str) -> None:
        self.play("wait", span)

    # --- People

    @precondition(lambda self: self.world.packets("open"))
    @rule(packet=NUMBER, voter=GOOD, verdict=st.sampled_from((APPROVE, *ANSWERS)))
    def vote(self, packet: int, voter: int, verdict: str) -> None:
        self.play("vote", packet, voter, verdict)

    @precondition(lambda self: self.world.packets("open") and self.world.handed)
    @rule(
        packet=NUMBER, which=NUMBER, voter=NUMBER, rightly=MOSTLY, verdict=st.sampled_from(ANSWERS)
    )
    def vote_for(self, packet: int, which: int, voter: int, rightly: bool, verdict: str) -> None:
        """In the name of somebody who handed it over: who has it, or anybody."""
        rows = self.world.handed
        handed = rows[sorted(rows)[which % len(rows)]]
        name = VOTERS.index(handed.taker) if rightly else voter
        self.play("vote", packet, name, verdict, behalf=VOTERS.index(handed.giver))

    @precondition(lambda self: self.world.packets("open"))
    @rule(packet=NUMBER, voters=st.permutations(range(4)))
    def all_approve(self, packet: int, voters: list[int]) -> None:
        """One after the other, until it is settled."""
        number = self.world.number_of_open(packet)
        for voter in voters:
            self.play("vote", number, voter, APPROVE, settled=True)

    @precondition(lambda self: self.world.packets())
    @rule(
        packet=NUMBER,
        voter=NUMBER,
        verdict=VERDICT,
        seen=st.sampled_from(("right", "right", "none", "wrong", "another's")),
        typed=st.sampled_from(("right", "wrong", "none")),
        key=st.sampled_from(("right", "none", "another's", "used before", "another page")),
        token=st.integers(0, 2),
        settled=st.booleans(),
    )
    def any_vote(
        self,
        packet: int,
        voter: int,
        verdict: str,
        token: int,
        settled: bool,
        **sent: Any,
    ) -> None:
        """A wrong or stale digest, an outsider, a machine, a form sent twice, a settled packet."""
        among = settled or not self.world.packets("open")
        self.play("vote", packet, voter, verdict, token=token, settled=among, **sent)

    @precondition(lambda self: self.world.packets("approved", "denied", "expired"))
    @rule()
    def test_packet(self) -> None:
        self.play("test_packet")

    @precondition(lambda self: self.world.packets("open"))
    @rule(voter=NUMBER, verdict=st.sampled_from((APPROVE, APPROVE, DENY)), stale=st.integers(-1, 1))
    def bulk(self, voter: int, verdict: str, stale: int) -> None:
        self.play("bulk", voter, verdict, stale=stale)

    @precondition(lambda self: self.world.packets("open"))
    @rule(packet=NUMBER, editors=st.lists(GOOD, min_size=1, max_size=2), late=MOSTLY)
    def edit(self, packet: int, editors: list[int], late: bool) -> None:
        """To something else, and by another back to what the agent wrote."""
        number = self.world.number_of_open(packet)
        for variant, editor in enumerate(editors):
            self.play("edit", number, editor, 1 - variant, late=not late, settled=True)
            number = len(self.world.packets()) - 1

    @precondition(lambda self: self.world.packets("open"))
    @rule(packet=NUMBER, voter=NUMBER, late=MOSTLY)
    def undo(self, packet: int, voter: int, late: bool) -> None:
        self.play("undo", packet, voter, late=not late)

    @precondition(lambda self: self.world.packets("open"))
    @rule(packet=NUMBER, asker=st.booleans(), person=NUMBER)
    def withdraw(self, packet: int, asker: bool, person: int) -> None:
        """Whoever asked, or anybody."""
        number = self.world.number_of_open(packet)
        name = self.world.asked[self.world.packets()[number].pk].asker
        self.play("withdraw", number, VOTERS.index(name) if asker else person)

    @rule(event=st.sampled_from(("change_roles", "leave", "switch")), who=NUMBER, roles=NUMBER)
    def people_change(self, event: str, who: int, roles: int) -> None:
        self.play(event, who, *([roles] if event == "change_roles" else []))

    @rule(giver=GOOD, taker=NUMBER, span=st.sampled_from(("an approval", "a packet")), later=MOSTLY)
    def hand_over(self, giver: int, taker: int, span: str, later: bool) -> None:
        self.play("hand_over", giver, taker, span, later=not later)

    @precondition(lambda self: self.world.handed)
    @rule(number=NUMBER, person=NUMBER)
    def take_back(self, number: int, person: int) -> None:
        self.play("take_back", number, person)

    @rule(rules=st.sampled_from((*sorted(RULES), "")), author=NUMBER, approve=MOSTLY)
    def change_policy(self, rules: str, author: int, approve: bool) -> None:
        if rules:
            self.play("change_policy", rules, author, approve=approve)
        else:
            self.play("roll_back", author, author)

    @precondition(lambda self: self.world.unknown_calls())
    @rule(call=NUMBER, happened=st.booleans())
    def settle(self, call: int, happened: bool) -> None:
        self.play("settle", call, happened=happened)

    @precondition(lambda self: self.world.publications("unknown"))
    @rule(publication=NUMBER, then=st.sampled_from(("look", "try again", "give up")))
    def look(self, publication: int, then: str) -> None:
        self.play("look", publication, then=then)
