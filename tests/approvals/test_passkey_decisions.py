"""Approvals that a passkey signs: what is taken, what is refused, and what anybody can check."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from approvals import bundle, delegation, demands, errors, evidence, receipt, signatures, signing
from approvals.bundle_form import framed
from approvals.deciding import Answer, settle_packet
from approvals.models import Decision, Packet, Publication
from approvals.policies import decide_policy, propose_policy
from approvals.policy_text import DEFAULT_POLICY
from approvals.signatures import Decided
from approvals.states import PacketState, Verdict
from approvals.undo import release_packet, undo_approval
from approvals.verifier import verified
from approvals.verify import main
from approvals.verify_report import Report
from portal import audit, passkey_account
from portal.dsse import key_id
from portal.errors import BadInput
from portal.handoff import Job
from portal.models import AuditEntry, Membership, Passkey, PasskeyChallenge
from portal.passkeys import NoPasskey, PasskeyCopied, PasskeyRefused
from portal.roles import Role
from portal.signing import signing_key
from portal.webauthn import to_base64url
from runs.models import Event
from tests.approvals import stages
from tests.databases import triggers_off
from tests.races.crowd import at_once
from tests.softkeys import PRESENT, SoftKey
from tests.visits import Visitor, address_of, text_of
from tests.walk import Walk, call_of

RULES = """
@id("http-takes-a-key")
@why("It goes outside.")
@passkey("required")
permit (principal, action == Action::"ask", resource)
when { context.outward };
"""
TWO = RULES.replace('@passkey("required")', '@passkey("required")\n@needs("2")')


def in_force(walk: Walk, rules: str = RULES) -> None:
    """These rules beside the default ones, in force."""
    admin = walk.cast.member(f"Second{AuditEntry.objects.count()} Admin", [Role.ADMIN])
    version = propose_policy(DEFAULT_POLICY + rules, member=walk.cast.max)
    decide_policy(version, approve=True, seen=version.digest, member=admin)


@pytest.fixture
def packet(walk: Walk) -> Packet:
    """The open packet of a call that is approved with a passkey."""
    in_force(walk)
    return walk.to_call()


@pytest.fixture
def key(walk: Walk) -> SoftKey:
    """Ada's."""
    made = SoftKey()
    made.kept_by(walk.cast.ada.user)
    return made


def signed(packet: Packet, member: Membership, key: SoftKey, **other: Any) -> str:
    """What the page sends once the browser has signed."""
    asked = signing.asked(packet, packet.digest, member.user)
    return json.dumps(key.signed(asked["challenge"], **other) | {"nonce": asked["nonce"]})


def refused_in_the_log() -> list[str]:
    lines = AuditEntry.objects.filter(action="packet.decision_refused").order_by("seq")
    return [each.facts["code"] for each in lines]


# --- What it takes ------------------------------------------------------------------------------


def test_demands_of_several_rules_hold_together() -> None:
    key = demands.read({"passkey": "required"})
    two = demands.read({"needs": "2"})
    assert demands.joined([key, two]) == demands.Demands(people=2, passkey=True)
    assert key.sealed({})["passkey"] == "required"
    assert "passkey" not in two.sealed({})


@pytest.mark.both_databases
def test_a_packet_that_demands_a_passkey_is_approved_with_one(walk: Walk, database: str) -> None:
    in_force(walk)
    packet = walk.to_call()
    assert packet.page["gate"]["passkey"] == "required"
    key = SoftKey()
    stored = key.kept_by(walk.cast.ada.user)
    with pytest.raises(errors.NeedsPasskey):
        walk.decide(packet)
    assert not Decision.objects.exists()

    assert walk.decide(packet, passkey=signed(packet, walk.cast.ada, key)).state == "approved"
    decision = Decision.objects.get()
    decided = Decided(packet.digest, "approve", packet.pk, walk.cast.ada.user_id)
    assert signatures.fault(decision.signature, decided) == ""
    entry = AuditEntry.objects.get(action="packet.approved")
    assert entry.facts["key"] == stored.fingerprint
    assert walk.fresh(stored).sign_count == key.count
    assert stored.last_used_at is not None
    assert not PasskeyChallenge.objects.exists()
    walk.drain()
    assert len(walk.tracker.requests) == 1


def test_holding_back_takes_none(walk: Walk, packet: Packet) -> None:
    assert walk.decide(packet, verdict=Verdict.DENY).state == PacketState.DENIED


def test_each_of_two_people_signs(walk: Walk, key: SoftKey) -> None:
    in_force(walk, TWO)
    packet = walk.to_call()
    bos = SoftKey(kind="eddsa")
    bos.kept_by(walk.cast.bo.user)
    first = signed(packet, walk.cast.ada, key)
    assert walk.decide(packet, passkey=first, token="a").state == PacketState.OPEN
    with pytest.raises(errors.AlreadyDecided):
        walk.decide(packet, passkey=first, token="b")
    with pytest.raises(PasskeyRefused):
        walk.decide(packet, walk.cast.bo, passkey=first)
    with pytest.raises(errors.NeedsPasskey):
        walk.decide(packet, walk.cast.bo)
    signature = signed(packet, walk.cast.bo, bos)
    assert walk.decide(packet, walk.cast.bo, passkey=signature).state == PacketState.APPROVED


def test_a_packet_without_that_demand_asks_for_none(walk: Walk, key: SoftKey) -> None:
    packet = walk.to_call()
    with pytest.raises(BadInput):
        signing.asked(packet, packet.digest, walk.cast.ada.user)
    walk.decide(packet, passkey="anything")
    assert Decision.objects.get().signature is None


def test_without_a_key_nothing_is_asked_of_the_browser(walk: Walk, packet: Packet) -> None:
    with pytest.raises(NoPasskey):
        signing.asked(packet, packet.digest, walk.cast.ada.user)
    with pytest.raises(errors.PacketChanged):
        signing.asked(packet, "0" * 64, walk.cast.ada.user)


# --- What is refused ------------------------------------------------------------------------------


def _another_packets(walk: Walk, packet: Packet, key: SoftKey) -> str:
    return signed(walk.to_call(), walk.cast.ada, key)


def _on_another_digest(walk: Walk, packet: Packet, key: SoftKey) -> str:
    nonce = signing.asked(packet, packet.digest, walk.cast.ada.user)["nonce"]
    decided = Decided("0" * 64, "approve", packet.pk, walk.cast.ada.user_id)
    return json.dumps(key.signed(decided.challenge(nonce)) | {"nonce": nonce})


def _of_a_denial(walk: Walk, packet: Packet, key: SoftKey) -> str:
    nonce = signing.asked(packet, packet.digest, walk.cast.ada.user)["nonce"]
    decided = Decided(packet.digest, "deny", packet.pk, walk.cast.ada.user_id)
    return json.dumps(key.signed(decided.challenge(nonce)) | {"nonce": nonce})


def _of_a_nonce_of_ones_own(walk: Walk, packet: Packet, key: SoftKey) -> str:
    nonce = to_base64url(b"n" * 32)
    decided = Decided(packet.digest, "approve", packet.pk, walk.cast.ada.user_id)
    return json.dumps(key.signed(decided.challenge(nonce)) | {"nonce": nonce})


def _of_a_nonce_for_something_else(walk: Walk, packet: Packet, key: SoftKey) -> str:
    from portal import passkeys

    nonce = passkeys.new_nonce(walk.cast.ada.user, passkeys.Purpose.PROVE)
    decided = Decided(packet.digest, "approve", packet.pk, walk.cast.ada.user_id)
    return json.dumps(key.signed(decided.challenge(nonce)) | {"nonce": nonce})


def _another_persons_key(walk: Walk, packet: Packet, key: SoftKey) -> str:
    bos = SoftKey()
    bos.kept_by(walk.cast.bo.user)
    return signed(packet, walk.cast.ada, bos)


def _another_persons_signature(walk: Walk, packet: Packet, key: SoftKey) -> str:
    bos = SoftKey()
    bos.kept_by(walk.cast.bo.user)
    return signed(packet, walk.cast.bo, bos)


def _another_origin(walk: Walk, packet: Packet, key: SoftKey) -> str:
    return signed(packet, walk.cast.ada, key, origin="http://localhost:9000")


def _another_site(walk: Walk, packet: Packet, key: SoftKey) -> str:
    key.rp_id = "evil.example"
    sent = signed(packet, walk.cast.ada, key)
    key.rp_id = "localhost"
    return sent


def _without_its_holder(walk: Walk, packet: Packet, key: SoftKey) -> str:
    return signed(packet, walk.cast.ada, key, flags=PRESENT)


def _too_late(walk: Walk, packet: Packet, key: SoftKey) -> str:
    sent = signed(packet, walk.cast.ada, key)
    PasskeyChallenge.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    return sent


def _a_removed_key(walk: Walk, packet: Packet, key: SoftKey) -> str:
    gone = SoftKey()
    stored = gone.kept_by(walk.cast.ada.user, "Gone")
    sent = signed(packet, walk.cast.ada, gone)
    passkey_account.remove_passkey(walk.cast.ada.user, stored.pk)
    return sent


def _a_changed_signature(walk: Walk, packet: Packet, key: SoftKey) -> str:
    sent = json.loads(signed(packet, walk.cast.ada, key))
    return json.dumps(sent | {"signature": to_base64url(b"0" * 70)})


def _nothing_of_the_kind(walk: Walk, packet: Packet, key: SoftKey) -> str:
    return '{"credential": 1, "nonce": ["x"]}'


def _no_json(walk: Walk, packet: Packet, key: SoftKey) -> str:
    return "{"


FORGERIES = (
    (_another_packets, "given for something else"),
    (_on_another_digest, "given for something else"),
    (_of_a_denial, "given for something else"),
    (_of_a_nonce_of_ones_own, "used already"),
    (_of_a_nonce_for_something_else, "used already"),
    (_another_persons_key, "none of the passkeys on your account"),
    (_another_persons_signature, "used already"),
    (_another_origin, "page of another site"),
    (_another_site, "for another site"),
    (_without_its_holder, "PIN or biometrics"),
    (_too_late, "longer than five minutes"),
    (_a_removed_key, "none of the passkeys on your account"),
    (_a_changed_signature, "not this key’s"),
    (_nothing_of_the_kind, "not accepted"),
    (_no_json, "not accepted"),
)
Forge = Callable[[Walk, Packet, SoftKey], str]


@pytest.mark.both_databases
def test_what_is_no_signature_of_exactly_this_is_refused_and_written_down(
    walk: Walk, database: str
) -> None:
    in_force(walk)
    packet = walk.to_call()
    key = SoftKey()
    key.kept_by(walk.cast.ada.user)
    for forge, said in FORGERIES:
        with pytest.raises(PasskeyRefused, match=said):
            walk.decide(packet, passkey=forge(walk, packet, key))
        assert not Decision.objects.exists(), forge
        assert walk.fresh(packet).state == PacketState.OPEN
    assert refused_in_the_log() == ["portal.passkey_refused"] * len(FORGERIES)
    # A signature that is right is taken after all of them.
    assert walk.decide(packet, passkey=signed(packet, walk.cast.ada, key)).state == "approved"


@pytest.mark.both_databases
def test_a_signature_is_used_once(walk: Walk, database: str) -> None:
    """Even if what it was used for is gone: here somebody took the decision out of its table."""
    in_force(walk, TWO)
    packet = walk.to_call()
    key = SoftKey()
    key.kept_by(walk.cast.ada.user)
    sent = signed(packet, walk.cast.ada, key)
    walk.decide(packet, passkey=sent)
    with triggers_off(connection):
        Decision.objects.all().delete()
    with pytest.raises(PasskeyRefused, match="used already"):
        walk.decide(packet, passkey=sent)


def test_a_refused_decision_gives_the_signature_back(walk: Walk, key: SoftKey) -> None:
    """What was not decided was not signed: the same press of the button may be sent again."""
    in_force(walk)
    first = walk.to_call()
    sent = signed(first, walk.cast.ada, key)
    stored = Passkey.objects.get()
    walk.new_policy(deny_http=True)
    with pytest.raises(errors.PolicyNowDenies):
        walk.decide(first, passkey=sent)
    assert PasskeyChallenge.objects.count() == 1
    assert walk.fresh(stored).sign_count == 0
    in_force(walk)
    assert walk.decide(first, passkey=sent).state == PacketState.APPROVED


def test_a_key_that_counts_backwards_decides_nothing(walk: Walk, packet: Packet) -> None:
    key = SoftKey()
    stored = key.kept_by(walk.cast.ada.user)
    Passkey.objects.filter(pk=stored.pk).update(sign_count=7)
    with pytest.raises(PasskeyCopied, match="Laptop"):
        walk.decide(packet, passkey=signed(packet, walk.cast.ada, key))
    assert refused_in_the_log() == ["portal.passkey_copied"]
    key.count = 7
    assert walk.decide(packet, passkey=signed(packet, walk.cast.ada, key)).state == "approved"


@pytest.mark.both_databases
def test_race_one_signature_decides_once(walk: Walk, database: str) -> None:
    in_force(walk)
    packet = walk.to_call()
    key = SoftKey()
    key.kept_by(walk.cast.ada.user)
    sent = signed(packet, walk.cast.ada, key)
    outcomes = at_once([lambda: walk.decide(packet, passkey=sent)] * 4)
    assert sum(isinstance(each, Packet) for each in outcomes) == 1, outcomes
    assert Decision.objects.count() == 1


@pytest.mark.both_databases
def test_race_a_key_is_removed_while_it_decides(walk: Walk, database: str) -> None:
    """One of the two comes first, neither waits for the other for ever, and both hold."""
    in_force(walk)
    for _ in range(3):
        packet, key = walk.to_call(), SoftKey()
        stored = key.kept_by(walk.cast.ada.user)
        sent = signed(packet, walk.cast.ada, key)

        def decide(packet: Packet = packet, sent: str = sent) -> Packet:
            return walk.decide(packet, passkey=sent)

        def remove(stored: Passkey = stored) -> Passkey:
            return passkey_account.remove_passkey(walk.cast.ada.user, stored.pk)

        decided, removed = at_once([decide, remove])
        assert isinstance(removed, Passkey), removed
        if not isinstance(decided, Packet):
            assert isinstance(decided, PasskeyRefused), decided
            assert not Decision.objects.filter(packet=packet).exists()
        else:
            assert signing.unsigned(packet) == []


@pytest.mark.both_databases
def test_race_a_key_is_removed_while_the_answer_lets_others_stand_in(
    walk: Walk, database: str
) -> None:
    """The answer writes the step into the tenant's log, which removing a key does too."""
    stages.staged(walk)
    notes = f'{stages.SECURITY}\n{stages.TWO_HOURS}\n@passkey("required")'
    in_force(walk, stages.rule(notes))
    for _ in range(6):
        packet, key = walk.to_call(), SoftKey()
        stored = key.kept_by(walk.cast.bo.user)
        stages.passed(packet, hours=2)
        sent = signed(packet, walk.cast.bo, key)

        outcomes = at_once(
            [
                partial(walk.decide, packet, walk.cast.bo, passkey=sent),
                partial(passkey_account.remove_passkey, walk.cast.bo.user, stored.pk),
            ]
        )

        decided, removed = outcomes
        assert isinstance(removed, Passkey), removed
        assert isinstance(decided, Packet | PasskeyRefused), decided


# --- Where the approval is used ------------------------------------------------------------------


@pytest.mark.both_databases
def test_a_decision_that_was_written_into_the_table_approves_nothing(
    walk: Walk, database: str
) -> None:
    """Whoever can write rows has no key: nothing is sent, and the evidence says why."""
    in_force(walk)
    packet = walk.to_call()
    key = SoftKey()
    key.kept_by(walk.cast.ada.user)
    walk.decide(packet, passkey=signed(packet, walk.cast.ada, key))
    with triggers_off(connection):
        Decision.objects.update(person=walk.cast.bo.user)
    walk.drain()
    assert walk.tracker.requests == []
    held = Event.objects.filter(run=packet.run, facts__why="not_signed")
    assert held.count() == 1
    assert call_of(packet).state != "done"
    (problem,) = evidence.examine(walk.cast.acme).problems
    assert problem.startswith("no passkey signed decision")


@pytest.mark.both_databases
def test_a_vote_that_was_written_into_the_table_counts_for_nothing(
    walk: Walk, database: str
) -> None:
    """Neither when the next person approves, nor when a hold ends."""
    in_force(walk, TWO)
    packet = walk.to_call()
    key = SoftKey()
    key.kept_by(walk.cast.ada.user)
    walk.decide(packet, passkey=signed(packet, walk.cast.ada, key))
    third = walk.cast.member("Cy Third", [Role.REVIEWER])
    bos = SoftKey()
    bos.kept_by(walk.cast.bo.user)
    with triggers_off(connection):
        Decision.objects.update(person=third.user)
    with pytest.raises(errors.VoteNotSigned, match="given for something else"):
        walk.decide(packet, walk.cast.bo, passkey=signed(packet, walk.cast.bo, bos))

    in_force(walk, RULES.replace("@why", '@hold("15m")\n@why'))
    held = walk.to_call()
    walk.decide(held, passkey=signed(held, walk.cast.ada, key))
    with triggers_off(connection):
        Decision.objects.filter(packet=held).update(person=third.user)
    walk.let_go(held)
    assert release_packet(held.pk) is False
    assert (walk.fresh(held).state, held.round) == (PacketState.OPEN, 2)


def test_after_an_undone_approval_the_next_one_is_signed_anew(walk: Walk, key: SoftKey) -> None:
    """The first signature was of the first round: nobody can make the second of it."""
    in_force(walk, RULES.replace("@why", '@hold("15m")\n@why'))
    packet = walk.to_call()
    first = signed(packet, walk.cast.ada, key)
    walk.decide(packet, passkey=first)
    undo_approval(packet.public_id, member=walk.cast.ada, seen=1, reason="Not yet.")
    packet = walk.fresh(packet)
    with pytest.raises(PasskeyRefused):
        walk.decide(packet, passkey=first)
    walk.decide(packet, passkey=signed(packet, walk.cast.ada, key))
    with triggers_off(connection):
        kept = Decision.objects.get(round=1).signature
        Decision.objects.filter(round=2).update(signature=kept)
    assert [why for _, why in signing.unsigned(packet)] == ["it was given for something else"]
    report = verified(bundle.exported(walk.cast.acme), [vouched()])
    assert "it was given for something else" in said(report)


# --- What anybody can check -----------------------------------------------------------------------


@pytest.fixture
def lines(walk: Walk, packet: Packet, key: SoftKey) -> list[bytes]:
    """A bundle with a signed approval, a denial and an approval that took none."""
    plain = Walk.to_call
    walk.decide(packet, passkey=signed(packet, walk.cast.ada, key))
    walk.decide(plain(walk), verdict=Verdict.DENY)
    walk.drain()
    return list(bundle.exported(walk.cast.acme))


def vouched() -> str:
    return key_id(signing_key().public_key())


def said(report: Report) -> str:
    return "\n".join(map(str, report.problems))


def changed(lines: Iterable[bytes], change: Callable[[dict[str, Any]], None]) -> list[bytes]:
    """The bundle with its signed decision changed, and the line's own hash made to fit again."""
    found = []
    for line in lines:
        body = json.loads(line).get("decision")
        if body and "signature" in body:
            change(body)
            line = framed("decision", body)
        found.append(line)
    return found


def test_a_bundle_shows_that_this_key_decided_this_packet(
    walk: Walk, lines: list[bytes], packet: Packet, key: SoftKey, tmp_path: Path, capsys: Any
) -> None:
    report = verified(lines, [vouched()])
    assert (said(report), report.passkeys, report.counts["decision"]) == ("", 1, 2)
    file = tmp_path / "evidence.jsonl"
    file.write_bytes(b"".join(lines))
    assert main([str(file), "--key", vouched(), "--decisions"]) == 0
    told = capsys.readouterr().out.splitlines()
    print_of_key = Passkey.objects.get().fingerprint
    assert told[0].endswith(f"digest {packet.digest}: signed by passkey {print_of_key}")
    assert told[1].endswith("no passkey")
    assert "1 of 2 decisions signed by a passkey." in told
    assert main([str(file), "--key", vouched(), "--decisions", "--json"]) == 0
    first, second, report_line = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["signed"], first["key"], first["fault"]) == (True, print_of_key, "")
    assert (second["signed"], second["key"]) == (False, "")
    assert report_line["signed_by_passkey"] == 1
    page = Visitor(walk.cast.aud).get("/t/acme/evidence/check/")
    assert "Signed by a passkey" in text_of(page)


def test_a_bundle_of_one_packet_shows_it_too(
    walk: Walk, lines: list[bytes], packet: Packet
) -> None:
    alone = list(bundle.exported(walk.cast.acme, bundle.Asked(packet=packet)))
    report = verified(alone, [vouched()])
    assert (said(report), report.passkeys) == ("", 1)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("signature", to_base64url(b"0" * 70)),
        ("authenticator_data", to_base64url(bytes(37))),
        ("client_data", to_base64url(b"{}")),
        ("public_key", SoftKey().public_key),
        ("credential", ""),
        ("nonce", to_base64url(b"m" * 32)),
        ("nonce", "x"),
        ("origin", "https://evil.example"),
        ("rp_id", "evil.example"),
        ("version", 2),
        ("version", None),
    ],
)
def test_tampering_with_any_part_of_a_signature_is_pinpointed(
    lines: list[bytes], part: str, value: object
) -> None:
    number = next(at for at, line in enumerate(lines, 1) if b'"signature":{' in line)
    forged = changed(lines, lambda body: body["signature"].update({part: value}))
    report = verified(forged, [vouched()])
    assert {each.line for each in report.problems} <= {number, len(lines)}
    assert f"line {number}: no passkey signed the decision behind audit line" in said(report)
    assert f"line {number}: the decision behind audit line" in said(report)
    assert report.passkeys == 0


@pytest.mark.parametrize(
    ("part", "value"),
    [
        *(("digest", "0" * 64), ("verdict", "deny"), ("person", 1), ("round", 2)),
        *(("packet", 10**6), ("packet", "x")),
    ],
)
def test_a_signature_fits_no_other_decision(lines: list[bytes], part: str, value: object) -> None:
    report = verified(changed(lines, lambda body: body.update({part: value})), [vouched()])
    assert "it was given for something else" in said(report)
    assert "has another" in said(report)


@pytest.mark.parametrize("value", [None, "x", [], {}, 7])
def test_a_signature_that_was_taken_away_is_missed(lines: list[bytes], value: object) -> None:
    report = verified(changed(lines, lambda body: body.update(signature=value)), [vouched()])
    assert "another signature by a passkey" in said(report)


def test_an_approval_without_the_key_that_its_page_demands_is_found(walk: Walk) -> None:
    """Even where the audit log never told of a signature: the page says that one was demanded."""
    in_force(walk)
    packet = walk.to_call()
    Decision.objects.create(
        tenant=packet.tenant,
        packet=packet,
        person=walk.cast.ada.user,
        verdict="approve",
        digest=packet.digest,
        decided_at=timezone.now(),
    )
    with transaction.atomic():
        audit.record(
            "packet.approved",
            tenant=packet.tenant,
            subject=packet,
            actor=walk.cast.ada.user,
            digest=packet.digest,
            result="approved",
            comment="",
            self_approved=False,
        )
    report = verified(bundle.exported(walk.cast.acme), [vouched()])
    assert "takes a passkey, and has none" in said(report)
    assert len(report.problems) == 1


def test_a_key_that_is_gone_leaves_what_it_signed(
    walk: Walk, lines: list[bytes], packet: Packet
) -> None:
    passkey_account.remove_passkey(walk.cast.ada.user, Passkey.objects.get().pk)
    report = verified(bundle.exported(walk.cast.acme), [vouched()])
    assert (said(report), report.passkeys) == ("", 1)
    assert evidence.examine(walk.cast.acme).problems == []


PUBLISH = """
@id("publishing-takes-a-key")
@why("It leaves.")
@passkey("required")
permit (principal, action == Action::"publish", resource);
"""


def test_the_receipt_of_a_publication_names_the_key_that_let_it_out(
    walk: Walk, key: SoftKey
) -> None:
    in_force(walk, PUBLISH)
    packet = walk.to_review()
    with pytest.raises(errors.NeedsPasskey):
        walk.decide(packet)
    walk.decide(packet, passkey=signed(packet, walk.cast.ada, key))
    walk.drain()
    statement = Publication.objects.get().statement
    assert statement is not None
    (told,) = receipt.verify(statement, [signing_key().public_key()])["predicate"]["decisions"]
    assert told["passkey"] == Passkey.objects.get().fingerprint


# --- The page -------------------------------------------------------------------------------------


def test_the_page_says_what_approving_takes(walk: Walk, packet: Packet) -> None:
    ada = Visitor(walk.cast.ada)
    here = {"HTTP_HOST": "localhost:8000"}
    page = text_of(ada.client.get(address_of(packet), **here))  # type: ignore[arg-type]
    assert "Approving takes a passkey, and you have none yet" in page
    assert 'href="/settings/passkeys/"' in page
    SoftKey().kept_by(walk.cast.ada.user)
    page = text_of(ada.client.get(address_of(packet), **here))  # type: ignore[arg-type]
    assert "Your passkey is asked for" in page
    assert 'aria-disabled="true"' not in page
    # At an address for which no browser keeps keys.
    page = text_of(ada.get(address_of(packet)))
    assert f'href="http://localhost:8000{address_of(packet)}"' in page
    assert 'aria-disabled="true"' in page
    # Whoever does not approve is not told to add one.
    assert "you have none yet" not in text_of(Visitor(walk.cast.vic).get(address_of(packet)))


def test_a_form_without_a_signature_is_refused_with_the_way_out(
    walk: Walk, packet: Packet, key: SoftKey
) -> None:
    ada = Visitor(walk.cast.ada)
    page = ada.decide(packet, comment="Looks right.")
    assert page.status_code == 422
    assert "takes your passkey, which only the browser can ask for" in text_of(page)
    assert "Looks right." in text_of(page)
    asked = ada.post(address_of(packet, "passkey"), seen=packet.digest).json()
    assert (asked["rpId"], asked["userVerification"]) == ("localhost", "required")
    assert [each["id"] for each in asked["allowCredentials"]] == [key.credential]
    sent = key.signed(asked["challenge"]) | {"nonce": asked["nonce"]}
    assert ada.decide(packet, passkey=json.dumps(sent)).status_code == 302
    page = text_of(ada.get(address_of(packet)))
    assert "signed with a passkey" in page


# --- Nobody has a key -----------------------------------------------------------------------------


def test_rules_that_take_keys_nobody_has_are_warned_of(walk: Walk) -> None:
    in_force(walk)
    packet = walk.to_call()
    walk.deliver(Job.SWEEP_QUORUMS)
    lacking = "It takes passkeys, and too few of those who may approve have one."
    admin, vic = Visitor(walk.cast.max), Visitor(walk.cast.vic)
    assert lacking in text_of(admin.get("/t/acme/queue/"))
    assert lacking in text_of(vic.get(address_of(packet)))

    asker = SoftKey()
    asker.kept_by(packet.requested_by)  # whose key is of no use here
    assert lacking in text_of(vic.get(address_of(packet)))
    SoftKey().kept_by(walk.cast.ada.user)
    walk.deliver(Job.SWEEP_QUORUMS)

    assert lacking not in text_of(vic.get(address_of(packet)))
    assert lacking not in text_of(admin.get("/t/acme/queue/"))


def test_two_who_sign_take_two_keys(walk: Walk, key: SoftKey) -> None:
    in_force(walk, TWO)
    page = Visitor(walk.cast.vic)
    address = address_of(walk.to_call())
    assert "too few of those who may approve have one" in text_of(page.get(address))
    SoftKey().kept_by(walk.cast.bo.user)
    assert "too few of those who may approve have one" not in text_of(page.get(address))


def test_whoever_decides_in_a_name_signs_with_their_own_key(walk: Walk, key: SoftKey) -> None:
    """And what is signed says in whose name: it is no approval of their own, nor of another's."""
    in_force(walk, TWO)
    packet, cast = walk.to_call(), walk.cast
    now = timezone.now()
    hours = delegation.Wanted(cast.ada.pk, now, now + timedelta(hours=1))
    delegation.hand_over(hours, member=cast.bo)

    def signed_for(giver: int) -> str:
        asked = signing.asked(packet, packet.digest, cast.ada.user, giver)
        return json.dumps(key.signed(asked["challenge"]) | {"nonce": asked["nonce"]})

    def decide(giver: int, passkey: str) -> Packet:
        answer = Answer(Verdict.APPROVE, packet.digest, passkey=passkey, behalf=giver)
        return settle_packet(packet.public_id, answer, member=cast.ada).packet

    for wrong in (0, cast.max.user_id):
        with pytest.raises(PasskeyRefused):
            decide(cast.bo.user_id, signed_for(wrong))
    with pytest.raises(PasskeyRefused):
        decide(0, signed_for(cast.bo.user_id))
    decide(cast.bo.user_id, signed_for(cast.bo.user_id))
    row = Decision.objects.get()
    assert signing.fault(row) == ""
    walk.deliver(Job.SWEEP_EVIDENCE)
    lines = list(bundle.exported(cast.acme))
    report = verified(lines, [key_id(signing_key().public_key())])
    assert report.problems == []
    assert report.passkeys == 1
    # A row that somebody turned into their own vote is signed by nobody.
    row.on_behalf_of = None
    assert signing.fault(row) != ""


def test_the_page_asks_for_a_signature_in_the_name(walk: Walk, key: SoftKey) -> None:
    in_force(walk, TWO)
    packet, cast = walk.to_call(), walk.cast
    now = timezone.now()
    hours = delegation.Wanted(cast.ada.pk, now, now + timedelta(hours=1))
    delegation.hand_over(hours, member=cast.bo)
    ada, giver = Visitor(cast.ada), str(cast.bo.user_id)
    form = {"seen": packet.digest, "for": giver}
    asked = ada.client.post(address_of(packet, "passkey"), form).json()
    sent = json.dumps(key.signed(asked["challenge"]) | {"nonce": asked["nonce"]})
    assert ada.decide(packet, passkey=sent, **{"for": giver}).status_code == 302
    assert Decision.objects.get().on_behalf_of_id == cast.bo.user_id
