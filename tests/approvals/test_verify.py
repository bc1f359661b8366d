"""Evidence is checked with one command: where it is stored, and from files alone."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import override_settings
from django.urls import reverse

from approvals.models import Packet, Publication
from portal import audit, blobs
from portal.canonical import digest
from portal.dsse import key_id
from portal.models import AuditEntry
from portal.signing import signing_key
from runs.models import Event
from tests.databases import triggers_off
from tests.visits import Visitor, address_of, text_of
from tests.walk import Walk


def verify(*files: Path, **options: list[str]) -> tuple[int, str]:
    """Run the command: its exit status and all it said."""
    said = io.StringIO()
    try:
        call_command("verify", *map(str, files), stdout=said, stderr=said, **options)
    except CommandError as error:
        return 1, f"{said.getvalue()}{error}"
    return 0, said.getvalue()


@pytest.fixture
def published(walk: Walk) -> Publication:
    """A run that went all the way."""
    publication = walk.to_publish()
    walk.drain()
    return walk.fresh(publication)


@pytest.fixture
def exported(walk: Walk, published: Publication, tmp_path: Path) -> dict[str, Path]:
    """What an auditor takes home: both chains, the receipt and the packet."""
    aud = Visitor(walk.cast.aud)
    run = published.run.number
    addresses = {
        "audit.jsonl": reverse("approvals:bundle", args=["acme"]),
        "run.jsonl": f"{reverse('approvals:bundle', args=['acme'])}?run={run}",
        "receipt.dsse.json": reverse(
            "approvals:publication_receipt", args=["acme", published.public_id]
        ),
        "packet.json": address_of(published.packet, "page"),
    }
    files = {}
    for name, address in addresses.items():
        page = aud.get(address)
        assert page["Content-Disposition"].startswith("attachment; ")
        files[name] = tmp_path / name
        files[name].write_bytes(b"".join(page))
    return files


# --- Where it is stored ---------------------------------------------------------------


def _change_a_line() -> None:
    AuditEntry.objects.filter(tenant__slug="acme", seq=2).update(facts={"by": "nobody"})


def _cut_the_log() -> None:
    end = audit.in_order(AuditEntry.objects.filter(seq=2)[0].tenant).last()
    AuditEntry.objects.filter(pk=end.pk if end else 0).delete()


def _write_the_end_anew() -> None:
    """With a hash that fits what it says now."""
    last = AuditEntry.objects.filter(tenant__slug="acme").order_by("-seq")[0]
    last.facts = {"by": "nobody"}
    hash_now = digest(last.body())
    AuditEntry.objects.filter(pk=last.pk).update(facts=last.facts, hash=hash_now)


def _add_a_line() -> None:
    """One that follows, but that the portal never wrote."""
    last = AuditEntry.objects.filter(tenant__slug="acme").order_by("-seq")[0]
    last.pk, last.seq, last.previous = None, last.seq + 1, last.hash
    last.hash = digest(last.body())
    last.save(force_insert=True)


def _change_an_event() -> None:
    Event.objects.filter(seq=2).update(kind="nothing.happened")


def _change_a_payload() -> None:
    event = Event.objects.exclude(payload="")[0]
    path = blobs.path_of(event.tenant_id, event.payload)
    path.chmod(0o600)
    path.write_bytes(b"something else")


def _change_a_packet() -> None:
    packet = Packet.objects.get()
    Packet.objects.update(page=packet.page | {"effect": "Push nothing."})


def _change_a_receipt() -> None:
    statement = Publication.objects.get().statement
    assert statement is not None
    Publication.objects.update(statement=statement | {"payload": "e30="})


FORGED: dict[Callable[[], None], str] = {
    _change_a_line: "the audit log breaks at line 2",
    _cut_the_log: "the audit log breaks at line ",
    _write_the_end_anew: "the audit log breaks at line ",
    _add_a_line: "the audit log breaks at line ",
    _change_an_event: "the events of run 1 break at event 2",
    _change_a_packet: "packet 1 is not the page that was sealed",
    _change_a_receipt: "the receipt of run 1 is not signed",
    _change_a_payload: "of run 1 is gone or changed",
}


def test_what_is_stored_is_compared_with_what_was_written(published: Publication) -> None:
    """Somebody with the rights of the database's owner takes the triggers away first."""
    status, said = verify()
    assert (status, "acme" in said, "BROKEN" in said) == (0, True, False)

    for forge, words in FORGED.items():
        with transaction.atomic():
            with triggers_off(connection):
                forge()
            status, said = verify()
            transaction.set_rollback(True)
        assert (status, words in said, "globex: 1 lines" in said) == (1, True, True), said


# --- From files alone -----------------------------------------------------------------


def test_what_was_exported_is_checked_without_the_portal(exported: dict[str, Path]) -> None:
    """Only the public key is needed, which the Evidence page shows."""
    key = key_id(signing_key().public_key())
    with override_settings(SECRET_KEY="of another installation" * 3):
        status, said = verify(*exported.values(), key=[key])
        assert status == 0, said
        assert said.count(": sound") == 3
        assert verify(*exported.values())[0] == 1  # signed with a key that is not this one's
    assert f"a packet with the digest {Packet.objects.get().digest}" in said


@pytest.mark.parametrize("name", ["audit.jsonl", "run.jsonl"])
def test_a_forged_export_is_found(exported: dict[str, Path], name: str) -> None:
    lines = exported[name].read_bytes().splitlines(keepends=True)
    exported[name].write_bytes(b"".join([*lines[:2], *lines[3:]]))
    status, said = verify(exported[name])
    assert (status, "BROKEN" in said, "missing" in said) == (1, True, True), said


def test_a_file_that_is_none_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "text.jsonl").write_text("hello\n")
    status, said = verify(tmp_path / "list.json", tmp_path / "text.jsonl", tmp_path / "not-there")
    assert (status, said.count("BROKEN")) == (1, 3)
    assert verify(tmp_path / "list.json", key=["abc"])[0] == 1


def test_the_evidence_page_names_the_key(walk: Walk) -> None:
    page = Visitor(walk.cast.aud).get(reverse("portal:evidence", args=["acme"]))
    assert key_id(signing_key().public_key()) in text_of(page)
