"""Two workers, one row: one of them works on it."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from approvals import publishing
from approvals.models import Candidate, Packet, PacketWord, Publication, Receipt
from approvals.opening import open_call_packet
from portal.handoff import Job
from portal.models import AuditEntry
from runs import lifecycle
from runs.lifecycle import Kept, Lease, LeaseLost
from runs.models import Run
from runs.snapshots import Saved
from runs.states import RunStatus
from tests.races.crowd import at_once
from tests.walk import Walk, call_of, parked_call

pytestmark = pytest.mark.both_databases


def test_B08_two_workers_claim_one_run(walk: Walk, database: str) -> None:
    for _ in range(20):
        run = walk.run()
        outcomes = at_once([partial(lifecycle.claim_run, run.pk)] * 4)
        assert Counter(type(each) for each in outcomes) == {Lease: 1, type(None): 3}
        assert walk.kinds(run).count("run.claimed") == 1


def test_B08_two_workers_carry_out_one_approved_packet(walk: Walk, database: str) -> None:
    for _ in range(3):
        publication = walk.to_publish()
        outcomes = at_once([partial(publishing.publish, publication.pk)] * 2)
        assert sorted(str(each) for each in outcomes) == ["done", "skipped"]
        assert walk.kinds(publication.run).count("publication.started") == 1
        assert Publication.objects.get(pk=publication.pk).attempts == 1
        walk.lose_hops()


def test_B08_two_workers_get_the_same_hop(walk: Walk, database: str) -> None:
    """Every hop of the walk, delivered to two workers at once."""
    run = walk.run(verification=True)
    while walk.hops:
        job, row_id = walk.hops.popleft()
        outcomes = at_once([partial(walk.deliver, job, row_id)] * 2)
        assert not [each for each in outcomes if isinstance(each, Exception)], outcomes
        packet = Packet.objects.filter(run=run, state="open").first()
        if packet is not None and not walk.hops:
            walk.decide(packet)

    assert walk.status(run) == RunStatus.PUBLISHED
    assert Candidate.objects.filter(run=run).count() == 1
    assert Packet.objects.filter(run=run).count() == 1
    names = Receipt.objects.filter(candidate__run=run).values_list("check_name", flat=True)
    assert len(names) == len(set(names))
    kinds = walk.kinds(run)
    for once in ("run.claimed", "run.collecting", "run.checking", "run.in_review", "run.published"):
        assert kinds.count(once) == 1, once


def test_two_workers_open_the_packet_of_one_call(walk: Walk, database: str) -> None:
    packet = parked_call(walk)
    asked = call_of(packet)
    PacketWord.objects.filter(packet=packet).delete()
    Packet.objects.filter(pk=packet.pk).delete()
    outcomes = at_once([partial(open_call_packet, asked.pk)] * 4)
    assert {each.pk for each in outcomes if isinstance(each, Packet)} == {
        Packet.objects.get(call=asked).pk
    }
    numbers = list(Packet.objects.values_list("number", flat=True))
    assert len(numbers) == len(set(numbers))


def test_an_approval_is_used_up_by_one_of_two(walk: Walk, database: str) -> None:
    for _ in range(10):
        packet = parked_call(walk)
        walk.decide(packet)
        asked = call_of(packet)
        lease = lifecycle.claim_run(packet.run_id)
        assert lease is not None
        begin = partial(lifecycle.begin_call, lease, asked.call_id, asked.arguments_digest)
        outcomes = at_once([begin, begin])
        goes = [each[0] for each in outcomes if isinstance(each, tuple)]
        assert sorted(goes) == [False, True], outcomes


def test_a_slow_worker_writes_nothing_over_the_one_that_took_over(
    walk: Walk, database: str
) -> None:
    run = walk.run()
    slow = lifecycle.claim_run(run.pk)
    assert slow is not None
    walk.lose_worker(run)
    outcomes = at_once(
        [
            partial(lifecycle.claim_run, run.pk),
            partial(lifecycle.claim_run, run.pk),
            partial(lifecycle.release_run, slow, "too late"),
        ]
    )
    lost = [each for each in outcomes if isinstance(each, LeaseLost)]
    claims = [each for each in outcomes if isinstance(each, Lease)]
    # Either the slow one was first and gave the run back, or it was too late.
    assert len(claims) == 1 or (not lost and Run.objects.get(pk=run.pk).status == "queued")
    with pytest.raises(LeaseLost):
        lifecycle.log(slow, [lifecycle.Draft("agent.message")])


def test_stopping_against_finishing(walk: Walk, database: str) -> None:
    """A stop that was asked for is never lost behind a worker that has just finished."""
    for _ in range(20):
        run = walk.run()
        lease = lifecycle.claim_run(run.pk)
        assert lease is not None
        park = partial(
            lifecycle.save_checkpoint,
            lease,
            Kept("finished", "{}", Saved("0" * 64, 0, (), (), ()), "0", "mender", {}),
            pending=[],
            output="",
            enter=RunStatus.COLLECTING,
        )
        outcomes = at_once([park, partial(lifecycle.ask_cancel, run, member=walk.cast.olu)])
        assert not [each for each in outcomes if isinstance(each, Exception)], outcomes
        assert walk.status(run) == RunStatus.CANCELLED
    walk.lose_hops()


def test_two_workers_append_to_one_chain(walk: Walk, database: str) -> None:
    """The evidence of one run from many threads: no number twice, no line lost."""
    run = walk.run()
    lease = lifecycle.claim_run(run.pk)
    assert lease is not None

    def write() -> int:
        for number in range(10):
            lifecycle.log(lease, [lifecycle.Draft("agent.message", {"turn": number})])
        return 10

    assert at_once([write] * 6) == [10] * 6
    assert walk.kinds(run).count("agent.message") == 60
    assert lifecycle.event_chain_broken_at(Run.objects.get(pk=run.pk)) is None
    sequence = list(
        AuditEntry.objects.filter(tenant=walk.cast.acme).order_by("seq").values_list("seq")
    )
    assert len(sequence) == len(set(sequence))
    assert Job.EXECUTE_RUN in {job for job, _ in walk.hops}
