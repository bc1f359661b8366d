"""What is kept how long, what is never removed, and that every removal is told."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from approvals import retention
from approvals.evidence import examine
from approvals.models import Candidate, Hold, Removal
from portal import blobs
from portal.errors import NotAllowed, NotFound
from portal.handoff import Job
from portal.models import AuditEntry
from runs import recovery
from runs.models import Checkpoint, Event, Run
from runs.states import RunStatus
from tests.visits import Visitor, text_of
from tests.walk import Walk

pytestmark = pytest.mark.both_databases


@pytest.fixture(autouse=True)
def _nothing_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "FRESH_SECONDS", -60)


def published(walk: Walk) -> Run:
    """A run that was published forty days ago."""
    publication = walk.to_publish()
    walk.drain()
    return ended(publication.run, 40)


def ended(run: Run, days: int) -> Run:
    Run.objects.filter(pk=run.pk).update(ended_at=timezone.now() - timedelta(days=days))
    run.refresh_from_db()
    return run


def keep(walk: Walk, **days: int) -> None:
    times = {"snapshot_days": 0, "payload_days": 0, "blob_days": 0, **days}
    retention.set_times(**times, member=walk.cast.max)


def snapshot_of(run: Run) -> tuple[int, str]:
    kept = Checkpoint.objects.filter(run=run).order_by("seq").last()
    assert kept is not None
    return kept.tenant_id, kept.snapshot_blob


def sweep(walk: Walk) -> str:
    return walk.deliver(Job.SWEEP_RETENTION)


def test_a_snapshot_is_removed_when_its_time_is_over_and_that_is_told(walk: Walk) -> None:
    run = published(walk)
    where = snapshot_of(run)
    size = blobs.path_of(*where).stat().st_size
    candidate = Candidate.objects.get(run=run)

    assert sweep(walk) == "1 removed"  # thirty days, where nobody said otherwise
    assert sweep(walk) == "0 removed"

    assert not blobs.path_of(*where).exists()
    with pytest.raises(blobs.BlobRemoved, match="removed by this tenant’s retention"):
        blobs.get(*where)
    row = Removal.objects.get()
    assert (row.run, row.kind, row.sha256, row.size) == (run, "snapshot", where[1], size)
    line = AuditEntry.objects.get(action="retention.removed")
    assert line.facts["removed"] == {"snapshot": 1}
    assert Checkpoint.objects.get(run=run).unusable == "retention.removed"
    assert blobs.get(candidate.tenant_id, candidate.patch_blob)
    page = text_of(Visitor(walk.cast.vic).get("/t/acme/retention/"))
    assert f"Run {run.number}" in page
    assert where[1][:4] in page


def test_payloads_go_and_the_evidence_still_verifies(walk: Walk) -> None:
    run = published(walk)
    keep(walk, payload_days=30)
    event = Event.objects.filter(run=run).exclude(payload="").first()
    assert event is not None

    sweep(walk)

    report = examine(walk.cast.acme)
    assert report.problems == []
    page = Visitor(walk.cast.vic).get(f"/t/acme/runs/{run.public_id}/events/{event.seq}/")
    assert "removed by this tenant" in text_of(page)
    assert Removal.objects.filter(kind="payload").exists()
    assert blobs.path_of(*snapshot_of(run)).exists()


def test_a_payload_that_was_removed_by_nobody_is_a_problem(walk: Walk) -> None:
    run = published(walk)
    event = Event.objects.filter(run=run).exclude(payload="").first()
    assert event is not None
    blobs.remove(run.tenant_id, event.payload)
    problems = examine(walk.cast.acme).problems
    assert any("was removed by nobody" in each for each in problems)


def test_nothing_of_a_run_under_hold_is_removed(walk: Walk) -> None:
    run = published(walk)
    keep(walk, snapshot_days=1, payload_days=1, blob_days=1)
    aud = Visitor(walk.cast.aud)
    held = aud.post("/t/acme/retention/holds/", number=run.number, why="A claim.")
    assert held.status_code == 302
    assert aud.post("/t/acme/retention/holds/", number=run.number, why="x").status_code == 409

    assert sweep(walk) == "0 removed"

    placed = Hold.objects.get()
    assert aud.post(f"/t/acme/retention/holds/{placed.pk}/lift/").status_code == 302
    assert sweep(walk) != "0 removed"
    actions = AuditEntry.objects.filter(action__startswith="hold.").order_by("seq")
    assert [each.action for each in actions] == ["hold.placed", "hold.lifted"]


def test_a_hold_that_is_placed_while_the_sweep_looks_keeps_everything(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = published(walk)
    keep(walk, snapshot_days=1, payload_days=1, blob_days=1)
    looks = retention._removable

    def disturbed(*about: Any) -> Any:
        found = looks(*about)
        if found:
            retention.hold(run.number, "A claim.", member=walk.cast.max)
        return found

    monkeypatch.setattr(retention, "_removable", disturbed)

    assert sweep(walk) == "0 removed"
    assert not Removal.objects.exists()
    assert blobs.path_of(*snapshot_of(run)).exists()


def test_a_run_that_begins_meanwhile_does_not_stop_the_sweep(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(walk)
    looks = retention._removable

    def disturbed(*about: Any) -> Any:
        found = looks(*about)
        walk.run()
        return found

    monkeypatch.setattr(retention, "_removable", disturbed)
    assert sweep(walk) == "1 removed"


def test_a_sweep_holds_a_portion_and_the_next_one_goes_on(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the first portions are all of bytes that a younger run refers to."""
    run = published(walk)
    keep(walk, payload_days=1)
    payloads = Event.objects.filter(run=run).exclude(payload="").values_list("payload", flat=True)
    there = sorted(set(payloads))
    assert len(there) > 4
    monkeypatch.setattr(retention, "MOST", 2)
    asked: list[int] = []
    still = retention._still_referred_to

    def counted(tenant: Any, over: Any, digests: Any) -> set[str]:
        asked.append(len(digests))
        # As if a younger run had these bytes as well.
        return still(tenant, over, digests) | set(there[:2]).intersection(digests)

    monkeypatch.setattr(retention, "_still_referred_to", counted)

    for _ in there:
        sweep(walk)

    left = [each for each in there if blobs.path_of(run.tenant_id, each).exists()]
    assert left == there[:2]
    assert max(asked) == 2
    assert Removal.objects.count() == len(there) - 2


def test_nothing_a_pending_packet_needs_is_removed(walk: Walk) -> None:
    """However long it waits; also what only shares its bytes with an old run."""
    old = published(walk)
    keep(walk, snapshot_days=1, payload_days=1, blob_days=1)
    packet = walk.to_review()
    shared = snapshot_of(old)
    assert snapshot_of(packet.run) == shared  # the same work, so the same bytes

    sweep(walk)

    assert blobs.path_of(*shared).exists()
    walk.decide(packet)
    walk.drain()
    assert walk.status(packet.run) == RunStatus.PUBLISHED


def test_what_is_handed_to_a_person_stays(walk: Walk) -> None:
    run = published(walk)
    Run.objects.filter(pk=run.pk).update(
        handed_to=walk.cast.ada.user, handed_at=timezone.now(), handled_at=None
    )
    assert sweep(walk) == "0 removed"


def test_younger_runs_and_those_kept_for_ever_stay(walk: Walk) -> None:
    run = ended(published(walk), 29)
    assert sweep(walk) == "0 removed"
    ended(run, 4000)
    keep(walk)
    assert sweep(walk) == "0 removed"


def test_bytes_that_were_put_just_now_stay(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "FRESH_SECONDS", 3600)
    published(walk)
    assert sweep(walk) == "0 removed"


def test_removed_bytes_that_come_again_are_there_again(walk: Walk) -> None:
    run = published(walk)
    where = snapshot_of(run)
    content = blobs.get(*where)
    sweep(walk)
    assert blobs.put(where[0], content) == where[1]
    assert blobs.get(*where) == content
    blobs.path_of(*where).unlink()
    with pytest.raises(blobs.BlobDamaged) as lost:
        blobs.get(*where)
    assert not isinstance(lost.value, blobs.BlobRemoved)


def test_bytes_that_came_again_go_again_with_the_run_that_brought_them(walk: Walk) -> None:
    first = published(walk)
    assert sweep(walk) == "1 removed"
    second = published(walk)
    assert snapshot_of(second) == snapshot_of(first)

    assert sweep(walk) == "1 removed"

    assert not blobs.path_of(*snapshot_of(second)).exists()
    assert [each.run for each in Removal.objects.order_by("pk")] == [first, second]


def test_what_was_removed_is_not_looked_for_again(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(walk)
    keep(walk, snapshot_days=1, payload_days=1)
    sweep(walk)
    looked: list[str] = []
    found = blobs.found

    def counted(tenant_id: int, sha256: str) -> Any:
        looked.append(sha256)
        return found(tenant_id, sha256)

    monkeypatch.setattr(blobs, "found", counted)
    assert sweep(walk) == "0 removed"
    assert looked == []


def test_a_failed_run_whose_snapshot_went_is_not_restored(walk: Walk) -> None:
    from tests.runs.test_recovery import lost_after_the_call

    run = ended(lost_after_the_call(walk).run, 40)
    sweep(walk)
    offers = [each.way.value for each in recovery.failure_of(run).offers]
    assert "restore" not in offers
    assert "restart" in offers


def test_who_may_say_how_long_and_who_may_hold(walk: Walk) -> None:
    run = published(walk)
    with pytest.raises(NotAllowed):
        retention.set_times(snapshot_days=1, payload_days=1, blob_days=1, member=walk.cast.aud)
    with pytest.raises(NotAllowed):
        retention.hold(run.number, "x", member=walk.cast.olu)
    with pytest.raises(NotFound):
        retention.hold(run.number, "x", member=walk.cast.eve)
    form: dict[str, Any] = {"snapshot_days": 5, "payload_days": 6, "blob_days": -1}
    assert Visitor(walk.cast.max).post("/t/acme/retention/times/", **form).status_code == 422
    form["blob_days"] = 7
    assert Visitor(walk.cast.max).post("/t/acme/retention/times/", **form).status_code == 302
    times = retention.retention_of(walk.cast.acme)
    assert (times.snapshot_days, times.payload_days, times.blob_days) == (5, 6, 7)
