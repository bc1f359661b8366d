"""Scenarios I: what becomes of rows and bytes when the ground under them changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from approvals import deletion, retention
from approvals.deciding import Answer, settle_packet
from approvals.errors import DeletedAlready, NameNotTyped
from approvals.evidence import examine
from approvals.models import Packet, PolicyVersion, Publication
from approvals.states import PacketState, PublicationState, Verdict
from portal import audit, blobs, vault
from portal.errors import NotAllowed, NotFound
from portal.handoff import Job
from portal.models import AuditEntry, Membership, Tenant
from runs import lifecycle
from runs.fetching import cache_of
from runs.models import (
    Checkpoint,
    ContractVersion,
    Credential,
    CredentialGrant,
    Recording,
    Run,
    TenantValue,
    ToolCall,
)
from runs.states import CREDENTIALS_HELD, CallState, RunStatus
from tests.acceptance.kit import contract_with, give_credential
from tests.cast import ASKING
from tests.visits import Visitor, address_of, text_of
from tests.walk import MEANWHILE, Walk, call_of

pytestmark = pytest.mark.both_databases


def stored(tenant: Tenant) -> list[str]:
    """The digests of what lies in the tenant's part of the blob store."""
    found = (Path(settings.BLOB_DIR) / str(tenant.pk)).glob("[0-9a-f][0-9a-f]/*")
    return sorted(each.name for each in found if len(each.name) == 64)


def delete(walk: Walk) -> Any:
    """Max types the name."""
    return Visitor(walk.cast.max).post("/t/acme/delete/", typed="acme")


def wind_down(walk: Walk) -> str:
    walk.sweep()
    return walk.words(Job.WIND_DOWN)[-1]


def test_I01_a_tenant_is_deleted_in_the_middle_of_everything(walk: Walk) -> None:
    """A run that works, one that waits, an approved call, an approved publication, one on hold."""
    give_credential(walk, "s" + "Kq9" * 12)
    text = contract_with(credential="token")
    held = walk.to_publish(text=text)
    walk.drain()
    retention.hold(held.run.number, "A claim.", member=walk.cast.aud)
    ended = walk.to_publish(text=text)
    walk.drain()
    waiting = walk.to_call(text=text)
    approved = walk.to_call(text=text)
    walk.decide(approved)
    walk.lose_hops()
    intended = walk.to_publish(text=text)
    walk.lose_hops()
    review = walk.to_review(text=text)
    sent, branches = len(walk.tracker.requests), walk.branches()
    other = AuditEntry.objects.filter(tenant=walk.cast.globex).count()
    lines = AuditEntry.objects.filter(tenant=walk.cast.acme).count()
    answers: list[Any] = []
    walk.meanwhile(lambda: answers.append(delete(walk)))
    running = walk.run([ASKING[0], [MEANWHILE], *ASKING[1:]], text=text)

    walk.drain()  # the running one is deleted from under its worker

    assert [each.status_code for each in answers] == [302]
    assert wind_down(walk) == "emptied"
    assert wind_down(walk) == "emptied"  # nobody asked again
    # Stopped, closed, not begun; and each in its own word.
    states = {each.pk: walk.status(each) for each in Run.objects.filter(tenant=walk.cast.acme)}
    for run in (running, waiting.run, approved.run, review.run):
        assert states[run.pk] == RunStatus.CANCELLED
    assert states[intended.run_id] == RunStatus.FAILED
    assert walk.fresh(intended).error_code == "publication.tenant_deleted"
    for packet in (waiting, review):
        assert walk.fresh(packet).state == PacketState.CANCELLED
    assert call_of(approved).state == CallState.CANCELLED
    assert not Packet.objects.filter(tenant=walk.cast.acme, state=PacketState.OPEN).exists()
    # No effect began.
    assert (len(walk.tracker.requests), walk.branches()) == (sent, branches)
    assert not ToolCall.objects.filter(run=running, outward=True, acted_at__isnull=False).exists()
    assert walk.leftovers() == []
    # Nothing is left that is a secret, and of the bytes only what the hold keeps.
    assert not CredentialGrant.objects.filter(state__in=sorted(CREDENTIALS_HELD)).exists()
    assert "Kq9" not in vault.unseal(bytes(Credential.objects.get().sealed)).decode()
    assert not TenantValue.objects.filter(tenant=walk.cast.acme).exists()
    assert not Recording.objects.filter(tenant=walk.cast.acme).exists()
    kept = Checkpoint.objects.filter(run=held.run).last()
    assert kept is not None
    assert kept.snapshot_blob in stored(walk.cast.acme)
    assert not cache_of(walk.cast.acme.pk).exists()
    assert vault.unseal(bytes(kept.sealed_state)) != b""
    gone = Checkpoint.objects.filter(run=waiting.run).last()
    assert gone is not None
    assert vault.unseal(bytes(gone.sealed_state)) == b""
    assert blobs.found(walk.cast.acme.pk, ended.candidate.pack_blob) is None or (
        ended.candidate.pack_blob == held.candidate.pack_blob
    )
    # The evidence is whole and has grown; the neighbour's has not.
    assert examine(walk.cast.acme).problems == []
    assert AuditEntry.objects.filter(tenant=walk.cast.acme).count() > lines
    actions = set(audit.in_order(walk.cast.acme).values_list("action", flat=True))
    assert {"tenant.deleted", "tenant.emptied"} <= actions
    assert AuditEntry.objects.filter(tenant=walk.cast.globex).count() == other
    assert PolicyVersion.objects.filter(
        tenant=walk.cast.globex, state=PolicyVersion.State.IN_FORCE
    ).exists()
    assert Visitor(walk.cast.eve).get("/t/globex/queue/").status_code == 200


def test_I01_nobody_but_its_auditors_finds_a_deleted_tenant(walk: Walk) -> None:
    """No page breaks over what is left, and what somebody still holds in their hands is refused."""
    packet = walk.to_call()
    ada = Visitor(walk.cast.ada)
    assert ada.get(address_of(packet)).status_code == 200
    delete(walk)

    for member in (walk.cast.ada, walk.cast.max, walk.cast.olu, walk.cast.vic):
        visitor = Visitor(member)
        for place in ("queue", "runs", "people", "retention", "evidence", "delete"):
            assert visitor.get(f"/t/acme/{place}/").status_code == 404
        assert visitor.get(address_of(packet)).status_code == 404
        assert "You belong to no tenant" in text_of(visitor.get("/tenants/"))
    aud = Visitor(walk.cast.aud)
    for place in ("queue", "runs", "people", "retention", "evidence", "unknown", "credentials"):
        assert aud.get(f"/t/acme/{place}/").status_code == 200
    assert "This tenant was deleted" in text_of(aud.get("/t/acme/evidence/"))
    kept = text_of(aud.get("/t/acme/retention/"))
    assert "Under hold" in kept
    assert "Kept after a run’s end" not in kept  # its times count no more
    assert aud.get("/t/acme/delete/").status_code == 403

    # A decision on its way in, a run that is asked for, a hop that comes late.
    with pytest.raises(NotFound):
        settle_packet(
            packet.public_id,
            Answer(Verdict.APPROVE, packet.digest, "", "", ""),
            member=walk.cast.ada,
        )
    with pytest.raises(lifecycle.NotInForce):
        lifecycle.request_run(ContractVersion.objects.get(), member=walk.cast.olu)
    walk.drain()
    assert walk.deliver(Job.EXECUTE_RUN, packet.run_id).startswith("skipped")
    assert walk.deliver(Job.OPEN_CALL_PACKET, call_of(packet).pk)
    assert aud.get(address_of(packet)).status_code == 200
    assert walk.tracker.requests == []


def test_I01_what_is_under_hold_goes_once_it_is_lifted(walk: Walk) -> None:
    publication = walk.to_publish()
    walk.drain()
    placed = retention.hold(publication.run.number, "A claim.", member=walk.cast.aud)
    delete(walk)
    walk.drain()
    assert stored(walk.cast.acme)

    assert Visitor(walk.cast.aud).post(f"/t/acme/retention/holds/{placed.pk}/lift/")
    walk.deliver(Job.SWEEP_RETENTION)

    assert stored(walk.cast.acme) == []
    assert examine(walk.cast.acme).problems == []


def test_I01_a_dead_worker_s_run_and_an_unknown_outcome_hold_nothing_up(walk: Walk) -> None:
    publication = walk.to_publish()
    walk.lose_hops()
    Publication.objects.filter(pk=publication.pk).update(state=PublicationState.UNKNOWN)
    run = walk.run()
    walk.lose_hops()
    assert lifecycle.claim_run(run.pk) is not None
    walk.lose_worker(run)
    delete(walk)
    walk.drain()

    assert wind_down(walk) == "emptied"
    assert walk.status(run) == RunStatus.CANCELLED
    assert walk.status(publication.run) == RunStatus.FAILED
    # It is still said to be unknown.
    assert walk.fresh(publication).state == PublicationState.UNKNOWN


def test_I01_deleting_takes_an_admin_and_the_name(walk: Walk) -> None:
    for typed in ("", "Acme", "globex"):
        page = Visitor(walk.cast.max).post("/t/acme/delete/", typed=typed)
        assert page.status_code == 422
        assert "Nothing was deleted." in text_of(page)
    with pytest.raises(NotAllowed):
        deletion.delete_tenant(walk.cast.acme, typed="acme", member=walk.cast.ada)
    assert not Tenant.objects.exclude(deleted_at=None).exists()

    with pytest.raises(CommandError, match="--confirm acme"):
        call_command("delete_tenant", "acme")
    with pytest.raises(CommandError, match="no tenant"):
        call_command("delete_tenant", "nowhere", confirm="nowhere")
    call_command("delete_tenant", "acme", confirm="acme")

    with pytest.raises(DeletedAlready):
        deletion.delete_tenant(walk.cast.acme, typed="acme")
    with pytest.raises(NameNotTyped):
        deletion.delete_tenant(walk.cast.globex, typed="acme")
    left = Membership.objects.filter(tenant=walk.cast.acme)
    assert [(each.user.name, each.roles) for each in left] == [("Aud Dahl", ["auditor"])]
