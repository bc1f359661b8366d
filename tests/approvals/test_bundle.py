"""A bundle holds what the portal holds, and its verifier finds what does not fit."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings as live
from django.db import connection, transaction
from django.test import AsyncClient
from django.urls import reverse
from django.utils import timezone

from approvals import bundle
from approvals.bundle_form import framed
from approvals.models import Decision, Packet, Publication
from approvals.states import Verdict
from approvals.verifier import verified
from approvals.verify import main
from approvals.verify_report import NoBundle, Report
from portal import audit, downloads, tenancy
from portal.canonical import digest
from portal.dsse import key_id
from portal.handoff import Job
from portal.keys import DERIVED
from portal.models import AuditCheckpoint, AuditEntry, Tenant
from portal.signing import signing_key
from runs.models import Event
from tests.databases import triggers_off
from tests.visits import Visitor, text_of
from tests.walk import Walk, parked_call

Lines = list[bytes]


@pytest.fixture
def published(walk: Walk) -> Publication:
    """A run that went all the way, and a call that was denied."""
    publication = walk.to_publish()
    walk.drain()
    walk.decide(parked_call(walk), verdict=Verdict.DENY)
    walk.deliver(Job.SWEEP_EVIDENCE)
    return walk.fresh(publication)


@pytest.fixture
def lines(walk: Walk, published: Publication) -> Lines:
    """The lines of a bundle of everything."""
    return list(bundle.exported(walk.cast.acme))


def key() -> str:
    return key_id(signing_key().public_key())


def kinds(some: Iterable[bytes]) -> list[str]:
    return [next(iter(json.loads(line))) for line in some]


def body(line: bytes) -> dict[str, Any]:
    data = json.loads(line)
    return dict(data[next(iter(data))])


def said(report: Report) -> str:
    return "\n".join(map(str, report.problems))


# --- What is in it --------------------------------------------------------------------


@pytest.mark.both_databases
def test_inv14_a_bundle_holds_all_the_evidence_and_holds(walk: Walk, database: str) -> None:
    publication = walk.to_publish()
    walk.drain()
    walk.decide(parked_call(walk), verdict=Verdict.DENY)
    assert walk.deliver(Job.SWEEP_EVIDENCE) == "2 signed"
    lines = list(bundle.exported(walk.cast.acme))

    report = verified(lines, [key()])
    assert (said(report), report.vouched, report.notes) == ("", True, [])
    assert report.counts == {
        "audit": AuditEntry.objects.filter(tenant=walk.cast.acme).count(),
        "packet": 2,
        "decision": 2,
        "check": publication.candidate.receipts.count(),
        "receipt": 1,
        "checkpoint": 1,
        "run": 2,
        "event": Event.objects.count(),
        "end": 1,
    }
    shown = [body(line) for line, kind in zip(lines, kinds(lines), strict=True) if kind == "packet"]
    assert [(each["number"], each["page"]) for each in shown] == [
        (each.number, each.page) for each in Packet.objects.order_by("number")
    ]


def test_each_line_is_checked_with_standard_tools(lines: Lines) -> None:
    """The bytes between kind and hash are what the hash is of."""
    for line in lines:
        text = line.decode()
        start, stop = text.index(":") + 1, text.rindex(',"hash":"')
        assert hashlib.sha256(text[start:stop].encode()).hexdigest() == json.loads(text)["hash"]


def test_a_bundle_of_some_days_begins_and_ends_inside_the_chain(
    walk: Walk, published: Publication
) -> None:
    middle = AuditEntry.objects.filter(tenant=walk.cast.acme).order_by("seq")[3]
    for asked, first in (
        (bundle.Asked(since=middle.at), middle.seq),
        (bundle.Asked(until=middle.at), 1),
        (bundle.Asked(since=timezone.now() + timedelta(days=1)), None),
    ):
        lines = list(bundle.exported(walk.cast.acme, asked))
        report = verified(lines, [key()])
        assert said(report) == ""
        found = [body(each)["seq"] for each in lines if each.startswith(b'{"audit"')]
        assert found[:1] == ([first] if first else [])


def test_a_bundle_of_one_packet_withholds_the_others(walk: Walk, published: Publication) -> None:
    parked_call(walk)
    asked = bundle.Asked(packet=published.packet)
    lines = list(bundle.exported(walk.cast.acme, asked))
    report = verified(lines, [key()])
    assert said(report) == ""
    assert (report.counts["packet"], report.counts["receipt"], report.counts["run"]) == (1, 1, 1)
    about = {body(each)["subject"] for each in lines if each.startswith(b'{"audit"')}
    assert f"packet:{published.packet.pk}" in about
    assert len({each.partition(":")[0] for each in about}) == len(about)

    cut = [each for each in lines if not each.startswith(b'{"withheld"')]
    assert len(cut) == len(lines) or "missing" in said(verified(cut, [key()]))


def test_an_auditor_downloads_it_and_reads_what_the_verifier_says(
    walk: Walk, published: Publication
) -> None:
    aud = Visitor(walk.cast.aud)
    address, check = (
        reverse(f"approvals:{name}", args=["acme"]) for name in ("bundle", "bundle_check")
    )
    answer = aud.get(f"{address}?packet={published.packet.number}")
    assert answer.streaming
    assert f"packet-{published.packet.number}.jsonl" in answer["Content-Disposition"]
    assert verified(b"".join(answer).splitlines(keepends=True), [key()]).status == 0
    assert "Everything holds." in text_of(aud.get(check))
    assert aud.get(f"{address}?packet=999").status_code == 404
    for wrong in ("packet=1&run=1", "since=yesterday", "since=2026-02-01&until=2026-01-01"):
        assert aud.get(f"{address}?{wrong}").status_code == 400

    with triggers_off(connection):
        Event.objects.filter(run=published.run, seq=2).update(kind="<b>nothing")
    page = text_of(aud.get(check))
    assert "Not everything is as it was written." in page
    assert "event 3 does not follow from 2" in page


@pytest.mark.both_databases
def test_inv07_it_is_sent_in_pieces_through_the_tenants_own_door(
    walk: Walk, database: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view has returned by then, and a process of the web sees no tenant by itself."""
    parked_call(walk)
    monkeypatch.setattr(downloads, "_PIECE", 1)
    client = AsyncClient()
    client.force_login(walk.cast.aud.user)

    async def fetch() -> list[bytes]:
        answer: Any = await client.get(reverse("approvals:bundle", args=["acme"]))
        return [piece async for piece in answer]

    with monkeypatch.context() as web:
        if connection.vendor == "postgresql":
            web.setattr(settings, "ROW_SCOPE", "none")
            tenancy._set("none")
        pieces = async_to_sync(fetch)()
        assert connection.vendor != "postgresql" or not AuditEntry.objects.exists()
    if connection.vendor == "postgresql":
        tenancy._set("*")
    report = verified(pieces, [key()])
    assert (said(report), len(pieces)) == ("", sum(report.counts.values()) + 1)
    assert report.counts["audit"] == AuditEntry.objects.filter(tenant=walk.cast.acme).count()


# --- What does not fit ----------------------------------------------------------------


def place(some: Lines, start: bytes) -> int:
    return next(number for number, line in enumerate(some) if line.startswith(start))


def _change(start: bytes, old: bytes, new: bytes) -> Callable[[Lines], Lines]:
    def forge(some: Lines) -> Lines:
        at = next(n for n, line in enumerate(some) if line.startswith(start) and old in line)
        return [*some[:at], some[at].replace(old, new, 1), *some[at + 1 :]]

    return forge


def _change_and_hash(start: bytes, old: bytes, new: bytes) -> Callable[[Lines], Lines]:
    """With a hash that fits what it says now."""

    def forge(some: Lines) -> Lines:
        changed = _change(start, old, new)(some)
        kind = start[2:-2].decode()
        return [framed(kind, body(line)) if line not in some else line for line in changed]

    return forge


def _without(start: bytes) -> Callable[[Lines], Lines]:
    def forge(some: Lines) -> Lines:
        places = [n for n, line in enumerate(some) if line.startswith(start)]
        at = places[min(1, len(places) - 1)]
        return [*some[:at], *some[at + 1 :]]

    return forge


def _swap(some: Lines) -> Lines:
    at = place(some, b'{"event":')
    return [*some[:at], some[at + 1], some[at], *some[at + 2 :]]


def _twice(some: Lines) -> Lines:
    at = place(some, b'{"audit":')
    return [*some[: at + 1], *some[at:]]


FORGED: dict[str, tuple[Callable[[Lines], Lines], str]] = {
    "a changed line": (
        _change(b'{"audit":', b'"self_approved":false', b'"self_approved":true'),
        "the audit is not what was written",
    ),
    "a changed line with a hash that fits": (
        _change_and_hash(b'{"audit":', b'"result":"approved"', b'"result":"denied"'),
        "one of them was replaced",
    ),
    "a line taken out": (_without(b'{"audit":'), "is missing before"),
    "a line twice": (_twice, "out of order, or twice"),
    "events out of order": (_swap, "out of order, or twice"),
    "an event taken out": (_without(b'{"event":'), "event 2 is missing before 3"),
    "a packet taken out": (_without(b'{"packet":'), "the packet behind audit line"),
    "a decision taken out": (_without(b'{"decision":'), "the decision behind audit line"),
    "a receipt taken out": (_without(b'{"receipt":'), "the receipt behind audit line"),
    "a check taken out": (_without(b'{"check":'), "the check behind audit line"),
    "a checkpoint taken out": (_without(b'{"checkpoint":'), "lines were exported"),
    "another page": (
        _change_and_hash(b'{"packet":', b'"effect":"', b'"effect":"Not '),
        "has another page",
    ),
    "other words of the agent": (
        _change_and_hash(b'{"packet":', b'"agent_words":"', b'"agent_words":"Not '),
        "has another words of the agent",
    ),
    "another verdict": (
        _change_and_hash(b'{"decision":', b'"verdict":"approve"', b'"verdict":"deny"'),
        "has another verdict",
    ),
    "another outcome of a check": (
        _change_and_hash(b'{"check":', b'"outcome":"passed"', b'"outcome":"warned"'),
        "has another outcome",
    ),
    "another receipt": (
        _change_and_hash(b'{"receipt":', b'"sig":"', b'"sig":"AAAA'),
        "has another statement",
    ),
    "another checkpoint": (
        _change_and_hash(b'{"checkpoint":', b'"payload":"', b'"payload":"AAAA'),
        "the checkpoint is not signed",
    ),
    "cut off": (lambda some: some[:-2], "the closing line is missing"),
    "cut off in the middle of a line": (
        lambda some: [*some[:-1], some[-1][:40]],
        "it is cut off",
    ),
    "the end of the log cut off": (
        lambda some: [*some[:4], some[-1]],
        "are missing at the end",
    ),
    "a line behind the end": (lambda some: [*some, some[1]], "behind the closing line"),
    "a name twice": (
        _change(b'{"audit":', b'"action":', b'"action":"run.asked","action":'),
        "cannot be read",
    ),
    "a number too large": (_change(b'{"audit":', b'"seq":1,', b'"seq":1e999,'), "cannot be read"),
    "a list": (lambda some: [*some[:1], framed("audit", []), *some[1:]], "is no object"),
    "no numbers": (lambda some: [*some[:1], framed("audit", {}), *some[1:]], "has no number"),
    "an unknown kind": (lambda some: [*some[:1], framed("else", {}), *some[1:]], "no line of a"),
    "no line": (lambda some: [*some[:1], b"\n", *some[1:]], "no line of a bundle"),
    "nested": (
        lambda some: [
            *some[:1],
            b'{"audit":%s,"hash":"%s"}\n' % (b"[" * 99999, b"0" * 64),
            *some[1:],
        ],
        "nested too deeply",
    ),
}


def test_inv14_the_verifier_finds_what_was_forged_and_says_where(lines: Lines) -> None:
    for name, (forge, words) in FORGED.items():
        forged = forge(lines)
        assert forged != lines, name
        report = verified(forged, [key()])
        assert (report.status, words in said(report)) == (1, True), f"{name}: {said(report)}"
        first = next(
            (n for n, (one, two) in enumerate(zip(forged, lines, strict=False), 1) if one != two),
            min(len(forged), len(lines)) + 1,
        )
        # It is told at the first line that differs, at the next of its chain, or at the end.
        assert report.problems[0].line >= min(first, len(forged)), name


def test_a_log_written_anew_does_not_fit_what_was_signed_before(
    walk: Walk, published: Publication
) -> None:
    """Somebody with every right in the database writes all of it anew, hashes and ends included."""
    with triggers_off(connection):
        previous = "0" * 64
        for entry in AuditEntry.objects.filter(tenant=walk.cast.acme).order_by("seq"):
            if entry.seq == 1:
                entry.facts = {"by": "nobody"}
            entry.previous = previous
            previous = digest(entry.body())
            AuditEntry.objects.filter(pk=entry.pk).update(
                facts=entry.facts, previous=entry.previous, hash=previous
            )
        Tenant.objects.filter(pk=walk.cast.acme.pk).update(audit_head=previous)
    assert audit.broken_at(walk.cast.acme) is None
    report = verified(bundle.exported(walk.cast.acme), [key()])
    assert [each.text for each in report.problems] == [
        f"the chain up to audit line {report.last} is not the one that was signed"
    ]


def test_what_is_no_bundle_is_said_to_be_none(lines: Lines) -> None:
    other = body(lines[0]) | {"version": 2}
    nobody = {"version": 1, "tenant": "acme", "tenant_key": 1, "after": {"seq": "1", "hash": 1}}
    for wrong in (
        *([], [b"hello\n"], lines[1:], [framed("bundle", [])], [framed("bundle", {})]),
        *([framed("bundle", other)], [framed("bundle", nobody)], [b"\x00" * 300]),
    ):
        with pytest.raises(NoBundle):
            verified(wrong, [key()])


def test_many_problems_are_counted(lines: Lines) -> None:
    report = verified([*lines, *[b"\n"] * 1000], [key()])
    assert (len(report.problems), report.untold) == (100, 900)


# --- Keys -----------------------------------------------------------------------------


def fresh_key() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()


def test_a_key_is_replaced_and_whoever_knows_the_old_one_learns_the_new(
    walk: Walk, settings: Any
) -> None:
    old = key()
    walk.deliver(Job.SWEEP_EVIDENCE)
    settings.SIGNING_KEYS = [fresh_key(), DERIVED]
    new = key()
    parked_call(walk)
    walk.deliver(Job.SWEEP_EVIDENCE)
    settings.SIGNING_KEYS = settings.SIGNING_KEYS[:1]
    parked_call(walk)

    lines = list(bundle.exported(walk.cast.acme))
    assert AuditCheckpoint.objects.filter(tenant=walk.cast.acme).count() == 2
    assert verified(lines, [old]).status == 0
    report = verified(lines, [new])
    assert (report.status, report.notes) == (0, [f"a checkpoint is signed with another key, {old}"])
    assert verified(lines, []).status == 3
    stranger = verified(lines, ["ab" * 32])
    assert "none of the keys that were given" in said(stranger)


def test_a_busy_log_is_signed_by_itself_and_never_twice(walk: Walk, monkeypatch: Any) -> None:
    monkeypatch.setattr(audit, "CHECKPOINT_EVERY", 2)
    for _ in range(4):
        with transaction.atomic():
            audit.record("test.line", tenant=walk.cast.acme, subject="test:1")
    assert AuditCheckpoint.objects.filter(tenant=walk.cast.acme).count() == 2
    walk.deliver(Job.SWEEP_EVIDENCE)
    assert walk.deliver(Job.SWEEP_EVIDENCE) == "0 signed"
    assert verified(bundle.exported(walk.cast.acme), [key()]).status == 0


# --- The command ----------------------------------------------------------------------


def test_the_command_needs_no_framework_and_says_it_all(lines: Lines, tmp_path: Path) -> None:
    file = tmp_path / "evidence.jsonl"
    file.write_bytes(b"".join(lines))
    script = (
        "import sys; from approvals.verify import main; status = main(sys.argv[1:])\n"
        "own = {'approvals', 'portal', 'rfc8785', 'cryptography', '_cffi_backend'}\n"
        "loaded = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)\n"
        "print(sorted(name for name in loaded - own if not name.startswith('_')), status)\n"
        "print(sorted(n for n in sys.modules if n.startswith(('portal.', 'approvals.'))))\n"
        "print(sorted({'socket', 'sqlite3', 'django'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        (
            sys.executable,
            "-I",
            "-c",
            f"import sys; sys.path.insert(0, {str(live.BASE_DIR)!r})\n{script}",
            str(file),
            "--key",
            key(),
        ),
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert "Everything holds." in told
    assert told[-3:] == [
        "[] 0",
        "['approvals.bundle_form', 'approvals.carry', 'approvals.quorum', 'approvals.rights', "
        "'approvals.signatures', 'approvals.tally', "
        "'approvals.verifier', 'approvals.verify', 'approvals.verify_report', 'approvals.votes', "
        "'portal.canonical', 'portal.dsse', 'portal.evidence', 'portal.webauthn']",
        "[]",
    ]


def test_the_exit_status_says_which(lines: Lines, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "evidence.jsonl"
    file.write_bytes(b"".join(lines))
    assert main([str(file), "--key", key()]) == 0
    assert main([str(file)]) == 3
    assert main([str(file), "--json"]) == 3
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["holds"] is True
    file.write_bytes(b"".join(lines[:-1]))
    assert main([str(file), "--key", key()]) == 1
    assert main([str(tmp_path / "not-there"), "--key", key()]) == 2
    file.write_bytes(b"")
    assert main([str(file)]) == 2
    with pytest.raises(SystemExit) as ended:
        main([str(file), "--key", "abc"])
    assert ended.value.code == 2


def test_a_decision_that_was_changed_in_the_database_is_found(
    walk: Walk, published: Publication
) -> None:
    with triggers_off(connection):
        Decision.objects.filter(packet=published.packet).update(verdict="deny")
    report = verified(bundle.exported(walk.cast.acme), [key()])
    first, second = report.problems
    assert first.text.endswith(" has another verdict")
    assert second.text.endswith(" it needed one person, and nobody approved it")
