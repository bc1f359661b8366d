"""Test packets: drawn as real ones, told at once, written down, and unable to do anything."""

from __future__ import annotations

import hashlib
import io
import json
from datetime import timedelta
from html import escape

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from approvals import bundle, canaries, capabilities
from approvals.bundle_form import lines_of
from approvals.models import Canaries, Decision, Packet, Publication
from approvals.states import PacketKind, PacketState, Verdict
from approvals.uses import why_void
from approvals.verifier import verified
from portal.errors import NotAllowed
from portal.handoff import Job
from portal.models import AuditEntry
from runs import lifecycle
from runs.models import Event, Run, ToolCall
from runs.states import RunStatus
from tests.races.crowd import at_once
from tests.visits import Visitor, address_of, text_of
from tests.walk import Walk

WORDS = "This was a test packet"


def real(walk: Walk, verdict: Verdict = Verdict.APPROVE) -> Packet:
    """A packet the tenant really had."""
    packet = walk.to_call()
    walk.decide(packet, verdict=verdict)
    walk.drain()
    return packet


def wanted(walk: Walk, days: int = 7) -> None:
    canaries.choose(days, member=walk.cast.max)
    Canaries.objects.update(next_at=timezone.now() - timedelta(seconds=1))


def opened(walk: Walk) -> Packet:
    real(walk)
    wanted(walk)
    assert walk.deliver(Job.SWEEP_CANARIES) == "1 opened"
    return Packet.objects.get(canary__isnull=False)


def audited(packet: Packet, action: str) -> list[AuditEntry]:
    return list(AuditEntry.objects.filter(subject=f"packet:{packet.pk}", action=action))


# --- Who makes one ----------------------------------------------------------------------------


@pytest.mark.both_databases
def test_none_is_made_unless_an_admin_wants_them(walk: Walk) -> None:
    real(walk)
    assert walk.deliver(Job.SWEEP_CANARIES) == "0 opened"
    for member in (walk.cast.ada, walk.cast.olu, walk.cast.aud):
        with pytest.raises(NotAllowed):
            canaries.choose(7, member=member)
    wanted(walk)
    entry = AuditEntry.objects.get(tenant=walk.cast.acme, action="canaries.changed")
    assert (entry.facts["every_days"], entry.actor) == (7, walk.cast.max.user)
    canaries.choose(0, member=walk.cast.max)
    assert walk.deliver(Job.SWEEP_CANARIES) == "0 opened"


def test_one_at_a_time_and_days_apart(walk: Walk) -> None:
    packet = opened(walk)
    assert walk.deliver(Job.SWEEP_CANARIES) == "0 opened"
    after = Canaries.objects.get().next_at
    assert after is not None
    assert after >= packet.opened_at + timedelta(days=7)
    Canaries.objects.update(next_at=timezone.now() - timedelta(seconds=1))
    assert walk.deliver(Job.SWEEP_CANARIES) == "0 opened", "one is open"
    walk.decide(packet, verdict=Verdict.DENY)
    assert walk.deliver(Job.SWEEP_CANARIES) == "1 opened"
    assert walk.deliver(Job.SWEEP_CANARIES) == "0 opened"


@pytest.mark.both_databases
def test_two_schedulers_make_one(walk: Walk) -> None:
    real(walk)
    wanted(walk)
    at_once([lambda: canaries.open_due(walk.cast.acme.pk) for _ in range(4)])
    assert Packet.objects.filter(canary__isnull=False).count() == 1


def test_nothing_is_made_up_that_the_tenant_never_saw(walk: Walk) -> None:
    walk.to_call()  # open, and nobody has decided one like it
    wanted(walk)
    assert walk.deliver(Job.SWEEP_CANARIES) == "0 opened"


@pytest.mark.parametrize("days", [1, 6, 181])
@pytest.mark.both_databases
def test_the_database_refuses_more_than_one_a_week(walk: Walk, days: int) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Canaries.objects.create(tenant=walk.cast.acme, every_days=days)


# --- What it looks like -----------------------------------------------------------------------


@pytest.mark.parametrize("lot", [0, 1])
def test_it_looks_like_a_real_one_with_one_thing_wrong(
    walk: Walk, lot: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.randbelow", lambda limit: min(lot, limit - 1))
    packet = opened(walk)
    original = Packet.objects.get(canary__isnull=True, kind=PacketKind.CALL)
    ada = Visitor(walk.cast.ada)

    queue, page = ada.get("/t/acme/queue/"), ada.get(address_of(packet))

    assert str(packet.public_id) in text_of(queue)
    for text in (text_of(queue), text_of(page), text_of(ada.get(address_of(packet, "page")))):
        assert "test packet" not in text.lower()
        assert "canary" not in text.lower()
    assert page.context["editable"] == ada.get(address_of(original)).context["editable"]
    assert packet.page.keys() == original.page.keys()
    assert packet.page["target"] != original.page["target"]
    same = {"run", "run_number", "target", "effect", "time"}
    for name in original.page.keys() - same:
        assert packet.page[name] == original.page[name], name
    run_page = text_of(ada.get(f"/t/acme/runs/{packet.run.public_id}/"))
    assert "test packet" not in run_page
    host = packet.page["target"].split("/")[2]
    assert (".example" in host) is (lot == 1) or packet.page["target"].startswith("DELETE ")


# --- What follows from an answer: nothing -----------------------------------------------------


@pytest.mark.parametrize("verdict", list(Verdict))
@pytest.mark.both_databases
def test_whatever_is_answered_nothing_happens_and_the_person_is_told(
    walk: Walk, verdict: Verdict
) -> None:
    packet = opened(walk)
    calls, sent = ToolCall.objects.count(), len(walk.tracker.requests)
    ada = Visitor(walk.cast.ada)
    answer = {"approve": "approve", "deny": "deny", "request_changes": "changes"}[verdict.value]

    ada.decide(packet, answer, comment="It looks odd.")
    page = ada.get(address_of(packet))

    said = "and you approved it" if verdict is Verdict.APPROVE else "You caught it"
    assert said in text_of(page)
    wrong = escape((packet.canary or {})["wrong"])
    assert text_of(page).count(wrong) == 2, "in the message and on the page"
    assert walk.hops == type(walk.hops)(), "no hop follows"
    walk.sweep()
    fresh = walk.fresh(packet)
    assert fresh.state != PacketState.OPEN
    assert fresh.used_at is None
    assert walk.status(packet.run) == RunStatus.CANCELLED
    assert (ToolCall.objects.count(), len(walk.tracker.requests)) == (calls, sent)
    assert not Publication.objects.exists()
    assert audited(packet, "packet.canary")[0].facts["result"] == fresh.state
    assert "packet.canary" in walk.kinds(packet.run)
    # Others see what it was, without the blame.
    bo = text_of(Visitor(walk.cast.bo).get(address_of(packet)))
    assert f"{WORDS}. Nothing could come of it." in bo
    assert "a test packet" in text_of(ada.get("/t/acme/queue/?show=decided"))


@pytest.mark.both_databases
def test_the_database_keeps_everything_away_from_it(walk: Walk) -> None:
    packet = opened(walk)
    run = packet.run
    call = ToolCall.objects.first()
    for change in (
        {"call": call},
        {"kind": PacketKind.PUBLICATION.value},
        {"held_until": timezone.now()},
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            Packet.objects.filter(pk=packet.pk).update(**change)
    for status in set(RunStatus) - {RunStatus.WAITING, RunStatus.CANCELLED, RunStatus.EXPIRED}:
        with pytest.raises(IntegrityError), transaction.atomic():
            Run.objects.filter(pk=run.pk).update(
                status=status, failure_boundary="control" if status == "failed" else ""
            )
    with pytest.raises(IntegrityError), transaction.atomic():
        Run.objects.filter(pk=run.pk).update(started_at=timezone.now())
    assert lifecycle.claim_run(run.pk) is None
    walk.decide(packet)
    approved = walk.fresh(packet)
    with pytest.raises(IntegrityError), transaction.atomic():
        Packet.objects.filter(pk=packet.pk).update(used_at=timezone.now())
    for kind in PacketKind:
        void = why_void(approved, kind, timezone.now())
        assert void is not None
        assert void.why == "test_packet"


def test_it_expires_harmlessly(walk: Walk) -> None:
    packet = walk.run_out(opened(walk))
    walk.sweep()
    assert walk.fresh(packet).state == PacketState.EXPIRED
    assert not walk.fresh(packet.run).is_live
    assert len(audited(packet, "packet.canary")) == 1
    assert "1 test packet ended without an answer" in text_of(
        Visitor(walk.cast.ada).get("/t/acme/policies/tests/")
    )


def test_the_run_may_be_stopped_and_the_packet_withdrawn_or_edited_in_vain(walk: Walk) -> None:
    packet = opened(walk)
    olu, ada = Visitor(walk.cast.olu), Visitor(walk.cast.ada)
    text = json.dumps({"title": "Other"})
    edited = ada.post(address_of(packet, "edit"), seen=packet.digest, arguments=text)
    assert edited.status_code in (409, 422), edited.status_code
    assert walk.fresh(packet).state == PacketState.OPEN
    olu.post(address_of(packet, "withdraw"), reason="I asked for no such thing.")
    assert walk.fresh(packet).state == PacketState.WITHDRAWN
    assert walk.status(packet.run) == RunStatus.CANCELLED
    assert len(audited(packet, "packet.canary")) == 1

    Canaries.objects.update(next_at=timezone.now() - timedelta(seconds=1))
    walk.deliver(Job.SWEEP_CANARIES)
    second = Packet.objects.get(canary__isnull=False, state=PacketState.OPEN)
    lifecycle.ask_cancel(second.run, member=walk.cast.olu)
    walk.sweep()
    assert walk.fresh(second).state == PacketState.CANCELLED
    assert len(audited(second, "packet.canary")) == 1


def test_it_counts_in_no_evidence_for_rules(walk: Walk) -> None:
    packet = opened(walk)
    before = [line.numbers for line in capabilities.report(walk.cast.acme, 90).lines]
    walk.decide(packet, verdict=Verdict.DENY)
    assert [line.numbers for line in capabilities.report(walk.cast.acme, 90).lines] == before


# --- What is kept -----------------------------------------------------------------------------


def test_the_evidence_says_so_from_the_beginning_and_the_verifier_knows(walk: Walk) -> None:
    packet = opened(walk)
    assert audited(packet, "packet.opened")[0].facts["canary"] is True
    walk.decide(packet)
    data = b"".join(bundle.exported(walk.cast.acme))

    report = verified(lines_of(io.BytesIO(data)))

    assert report.holds, report.problems
    assert report.canaries == 1
    assert report.to_data()["test_packets"] == 1
    # A mark that is taken away, or put on a real packet, does not go unnoticed.
    for old, new in ((b'"canary":true,', b""), (b'"id":', b'"canary":true,"id":')):
        forged = _rewritten(data, old, new)
        assert forged != data
        problems = verified(lines_of(io.BytesIO(forged))).problems
        assert any("mark “test packet”" in each.text for each in problems)


def _rewritten(data: bytes, old: bytes, new: bytes) -> bytes:
    """The bundle with that changed in its packets, and each line's own hash made to fit."""
    lines = []
    for line in data.splitlines(keepends=True):
        if line.startswith(b'{"packet":') and old in line:
            changed = line.replace(old, new, 1)
            body = changed[len(b'{"packet":') : changed.rindex(b',"hash":')]
            line = b'{"packet":' + body + b',"hash":"' + hashlib.sha256(body).hexdigest().encode()
            line += b'"}\n'
        lines.append(line)
    return b"".join(lines)


def test_each_sees_their_own_and_the_tenant_only_what_points_at_nobody(walk: Walk) -> None:
    packet = opened(walk)
    walk.decide(packet)
    address = "/t/acme/policies/tests/"
    own = text_of(Visitor(walk.cast.ada).get(address))
    assert "You answered 1 test packet and caught 0." in own
    other = text_of(Visitor(walk.cast.bo).get(address))
    assert "You have answered none." in other
    assert "caught (" not in other
    for number in range(4):
        Canaries.objects.update(next_at=timezone.now() - timedelta(seconds=1))
        walk.deliver(Job.SWEEP_CANARIES)
        again = Packet.objects.get(canary__isnull=False, state=PacketState.OPEN)
        walk.decide(again, walk.cast.bo if number else walk.cast.ada, Verdict.DENY)
    for member in (walk.cast.aud, walk.cast.max):
        text = text_of(Visitor(member).get(address))
        assert "5 answers, 4 caught (80 %)." in text
        assert "Ada" not in text
        assert "Bo " not in text
    assert Decision.objects.filter(packet__canary__isnull=False).count() == 5
    assert Event.objects.filter(kind="packet.canary").count() == 5
