"""One packet, many answers at the same moment: one outcome, one effect, never a failure of ours."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from django.db import connection, connections, transaction

from approvals import errors
from approvals.closing import close_packets_of, expire_packet
from approvals.models import Decision, Packet, Publication
from approvals.opening import open_publication_packet
from approvals.states import PacketState, Verdict
from portal import people
from portal.errors import NotAllowed, NotFound
from portal.handoff import Job
from portal.models import AuditEntry
from portal.roles import Role
from runs import lifecycle
from runs.lifecycle import event_chain_broken_at
from runs.models import Run
from tests.races.crowd import at_once
from tests.visits import Visitor
from tests.walk import Walk, call_of, decisions_of, parked_call

pytestmark = pytest.mark.both_databases
REPEATS = 100


def test_B02_BUG23_approve_against_deny(walk: Walk, database: str) -> None:
    """A hundred times: exactly one outcome; the loser is told by whom and when."""
    cast, won = walk.cast, Counter[str]()
    packets = [parked_call(walk) for _ in range(REPEATS)]
    for packet in packets:
        one = partial(walk.decide, packet, cast.ada, Verdict.APPROVE)
        other = partial(walk.decide, packet, cast.bo, Verdict.DENY)
        outcomes = at_once([one, other])

        losers = [each for each in outcomes if isinstance(each, errors.AlreadySettled)]
        winners = [each for each in outcomes if isinstance(each, Packet)]
        assert (len(winners), len(losers)) == (1, 1), outcomes
        state = walk.fresh(packet).state
        assert winners[0].state == state
        (decided,) = decisions_of(packet)
        assert f"already {state} by {decided[0]}" in str(losers[0])
        expected = "approved" if state == PacketState.APPROVED else "denied"
        assert call_of(packet).state == expected
        won[state] += 1
    # As many runs go on as there were decisions: each exactly once.
    woken = Counter(row_id for job, row_id in walk.hops if job is Job.EXECUTE_RUN)
    assert woken == {packet.run_id: 1 for packet in packets}
    assert sum(won.values()) == REPEATS
    assert event_chain_broken_at(packets[0].run) is None


def test_B03_fifty_clicks_at_once(walk: Walk, database: str) -> None:
    """Fifty people on the page's own form: one success, forty-nine conflicts, no failure."""
    roles = [Role.REVIEWER, Role.PUBLISHER]
    people = [walk.cast.member(f"Person{number:02}", roles) for number in range(50)]
    packet = walk.to_review()
    visitors = [Visitor(person) for person in people]

    outcomes = at_once([partial(visitor.decide, packet, token="") for visitor in visitors])

    statuses = Counter(getattr(each, "status_code", repr(each)) for each in outcomes)
    assert statuses == {302: 1, 409: 49}
    assert Decision.objects.count() == Publication.objects.count() == 1
    walk.drain()
    assert walk.words(Job.PUBLISH) == ["done"]
    assert len(walk.branches()) == 2


def test_B03_fifty_clicks_of_one_person(walk: Walk, database: str) -> None:
    packet = walk.to_review()
    visitors = [Visitor(walk.cast.ada) for _ in range(50)]

    outcomes = at_once([partial(each.decide, packet, token="one form") for each in visitors])

    assert Counter(getattr(each, "status_code", repr(each)) for each in outcomes) == {302: 50}
    assert Decision.objects.count() == Publication.objects.count() == 1


def test_B01_a_double_click(walk: Walk, database: str) -> None:
    """Both answers show the same result; with another token the second is a conflict."""
    ada = walk.cast.ada
    for token, expected in (("the form", {302: 2}), ("", {302: 1, 409: 1})):
        packet = parked_call(walk)
        browser, tab = Visitor(ada), Visitor(ada)
        outcomes = at_once([partial(each.decide, packet, token=token) for each in (browser, tab)])
        assert Counter(getattr(each, "status_code", repr(each)) for each in outcomes) == expected
        assert Decision.objects.filter(packet=packet).count() == 1
        assert list(walk.hops) == [(Job.EXECUTE_RUN, packet.run_id)]  # woken once
        walk.lose_hops()


def test_two_approvals_of_two_that_are_needed(walk: Walk, database: str) -> None:
    """At the same moment: both count, and the publication is made once."""
    for _ in range(5):
        packet = walk.to_review(gate="approvals = 2")
        outcomes = at_once(
            [partial(walk.decide, packet, each) for each in (walk.cast.ada, walk.cast.bo)]
        )
        assert all(isinstance(each, Packet) for each in outcomes), outcomes
        assert walk.fresh(packet).state == PacketState.APPROVED
        assert Publication.objects.filter(packet=packet).count() == 1


def test_a_decision_against_the_end_of_its_packet(walk: Walk, database: str) -> None:
    """Deciding, stopping the run, closing and expiring, all at once: no deadlock, one end."""
    for _ in range(25):
        packet = parked_call(walk)
        run = Run.objects.get(pk=packet.run_id)
        outcomes = at_once(
            [
                partial(walk.decide, packet),
                partial(lifecycle.ask_cancel, run, member=walk.cast.olu),
                partial(close_packets_of, run.pk),
                partial(expire_packet, packet.pk),
            ]
        )
        refusals = (errors.AlreadySettled, errors.RunOver, lifecycle.RunEnded)
        failed = [each for each in outcomes if isinstance(each, Exception)]
        assert all(isinstance(each, refusals) for each in failed), failed
        close_packets_of(run.pk)
        state, call = walk.fresh(packet).state, call_of(packet).state
        assert (state, call) in {("approved", "cancelled"), ("cancelled", "cancelled")}
        assert event_chain_broken_at(run) is None


def test_opening_a_packet_against_deciding_it(walk: Walk, database: str) -> None:
    for _ in range(10):
        packet = walk.to_review()
        outcomes = at_once(
            [
                partial(open_publication_packet, packet.candidate_id or 0),
                partial(walk.decide, packet),
                partial(open_publication_packet, packet.candidate_id or 0),
            ]
        )
        assert not [each for each in outcomes if isinstance(each, Exception)], outcomes
        assert Packet.objects.filter(run=packet.run).count() == 1


@contextmanager
def locked_elsewhere(packet: Packet) -> Iterator[threading.Event]:
    """Another transaction holds what a decision needs, until the event is set."""
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                Run.objects.select_for_update(no_key=True).get(pk=packet.run_id)
                Packet.objects.select_for_update(no_key=True).get(pk=packet.pk)
                held.set()
                release.wait(120)
        finally:
            connections.close_all()

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert held.wait(30)
    try:
        yield release
    finally:
        release.set()
        holder.join()


def test_B06_the_database_is_locked_for_some_seconds(walk: Walk, database: str) -> None:
    """The decision waits, and is then made, once."""
    packet = parked_call(walk)
    with locked_elsewhere(packet) as release:
        threading.Timer(3, release.set).start()
        (answer,) = at_once([partial(Visitor(walk.cast.ada).decide, packet)])

    assert getattr(answer, "status_code", answer) == 302
    assert walk.fresh(packet).state == PacketState.APPROVED


@pytest.mark.parametrize("end", ["role", "tenant"])
def test_a_role_that_goes_while_the_answer_waits_for_its_turn(
    walk: Walk, database: str, end: str
) -> None:
    """Who answers is asked when the rows are locked, not when the click came."""
    packet, ada = parked_call(walk), walk.cast.ada
    ends: dict[str, Callable[[], object]] = {
        "role": partial(people.set_roles, ada.pk, [Role.VIEWER], member=walk.cast.max),
        "tenant": partial(people.remove_member, ada.pk, member=walk.cast.max),
    }

    def later() -> object:
        time.sleep(0.7)  # the answer waits by now
        return ends[end]()

    with locked_elsewhere(packet) as release:
        threading.Timer(1.5, release.set).start()
        answered, ended = at_once([partial(walk.decide, packet), later])

    assert not isinstance(ended, Exception), ended
    log = AuditEntry.objects.filter(action__in=["packet.approved", f"member.{_LINES[end]}"])
    first = log.order_by("seq")[0].action
    if first == "packet.approved":  # only where one writer at a time is let in
        assert database == "sqlite"
        assert isinstance(answered, Packet), answered
    else:
        assert isinstance(answered, NotAllowed | NotFound), answered
        assert walk.fresh(packet).state == PacketState.OPEN
        assert not Decision.objects.exists()


_LINES = {"role": "roles_changed", "tenant": "removed"}


def test_B06_the_database_is_locked_for_longer_than_anybody_waits(
    walk: Walk, database: str
) -> None:
    """Then the answer is to try again, nothing is half done, and the same form works later."""
    packet = parked_call(walk)
    ada = Visitor(walk.cast.ada)
    with locked_elsewhere(packet):
        (answer,) = at_once([partial(impatient, partial(ada.decide, packet, token="the form"))])
        assert getattr(answer, "status_code", answer) == 503
        assert b"Try again" in answer.content

    assert not Decision.objects.exists()
    assert walk.fresh(packet).state == PacketState.OPEN
    assert ada.decide(packet, token="the form").status_code == 302
    assert Decision.objects.count() == 1


def impatient(work: partial[object]) -> object:
    """The same limit as in production, only shorter."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("PRAGMA busy_timeout = 500")
        else:
            cursor.execute("SET lock_timeout = '500ms'")
    return work()


def test_BUG50_reviewers_and_workers_at_the_same_time(walk: Walk, database: str) -> None:
    """Eight people decide while four workers write events: no failure, and no decision is lost."""
    roles = [Role.REVIEWER, Role.PUBLISHER]
    people = [walk.cast.member(f"Reviewer{number}", roles) for number in range(8)]
    shares = [[parked_call(walk) for _ in range(4)] for _ in people]
    runs = [walk.run() for _ in range(4)]
    walk.lose_hops()
    over = threading.Event()

    def decide_all(place: int) -> list[int]:
        visitor = Visitor(people[place])
        answers = ["approve", "deny", "changes", "approve"]
        statuses = []
        for packet, answer in zip(shares[place], answers, strict=True):
            visitor.get("/t/acme/queue/")
            statuses.append(visitor.decide(packet, answer, comment="Because.").status_code)
        return statuses

    def work(run: Run) -> list[int]:
        lease = lifecycle.claim_run(run.pk)
        assert lease is not None
        written = 0
        while not over.wait(0.02):  # as a worker does whose agent thinks between its calls
            lifecycle.log(lease, [lifecycle.Draft("agent.message", {"turn": written})] * 5)
            lifecycle.charge(lease, "model", "recorded", 10, "tokens", 1)
            lifecycle.beat(lease, seconds=0.1)
            written += 5
        return [written]

    def people_first() -> list[int]:
        try:
            found = at_once([partial(decide_all, place) for place in range(len(people))])
        finally:
            over.set()  # also when it fails: the workers would go on for ever
        return [status for each in found for status in each]

    outcomes = at_once([people_first, *(partial(work, run) for run in runs)])

    assert outcomes[0] == [302] * 32
    assert Decision.objects.count() == 32
    noted = AuditEntry.objects.filter(action__startswith="packet.").exclude(actor=None)
    assert noted.count() == 32
    for run, written in zip(runs, outcomes[1:], strict=True):
        assert isinstance(written, list), written
        assert walk.kinds(run).count("agent.message") == written[0] > 0
        assert event_chain_broken_at(run) is None
