"""Votes on a packet that was superseded: carried over where nothing changed, else void in words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from approvals import bundle, carried, errors, evidence
from approvals.bundle_form import framed
from approvals.carrying import carry_votes, void_votes
from approvals.counting import voters_of
from approvals.deciding import Answer, settle_packet
from approvals.delegation import Wanted, hand_over
from approvals.editing import edit_packet
from approvals.models import Decision, Packet
from approvals.queries import decided_by_me_today
from approvals.states import PacketState, Verdict
from approvals.verifier import Verifier, verified
from portal import audit
from portal.dsse import key_id
from portal.models import AuditEntry, Membership
from portal.roles import Role
from portal.signing import signing_key
from runs.models import Event
from tests.approvals.stages import in_force, rule
from tests.approvals.test_passkey_decisions import signed
from tests.cast import REPAIR, call, say
from tests.softkeys import SoftKey
from tests.visits import Visitor, address_of, text_of
from tests.walk import Walk

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.both_databases]

FIRST = {"title": "The adder subtracts"}
OTHER = {"title": "Something else"}


def edit(walk: Walk, packet: Packet, arguments: Mapping[str, Any], member: Membership) -> Packet:
    text = json.dumps(arguments)
    return edit_packet(packet.public_id, member=member, seen=packet.digest, text=text)


@pytest.fixture
def cleo(walk: Walk) -> Membership:
    return walk.cast.member("Cleo Third", [Role.REVIEWER])


@pytest.fixture
def dee(walk: Walk) -> Membership:
    return walk.cast.member("Dee Fourth", [Role.REVIEWER])


@pytest.fixture
def first(walk: Walk, cleo: Membership, dee: Membership) -> Packet:
    """A call that takes two people, one of whom has approved it."""
    in_force(walk, rule('@needs("2")'))
    packet = walk.to_call()
    walk.decide(packet, cleo, comment="Fine.")
    return packet


def there_and_back(walk: Walk, first: Packet) -> Packet:
    return edit(walk, edit(walk, first, OTHER, walk.cast.ada), FIRST, walk.cast.bo)


def test_a_vote_is_void_when_an_argument_changes_and_says_why(
    walk: Walk, first: Packet, dee: Membership
) -> None:
    second = edit(walk, first, OTHER, walk.cast.ada)
    assert not second.decisions.exists()
    [void] = void_votes(second)
    assert (void.packet, void.votes, void.why) == (first, 1, "argument `title` changed")
    facts = Event.objects.get(kind="packet.votes_void").facts
    assert (facts["from"], facts["packet"]) == (first.number, second.number)
    assert (facts["votes"], facts["reason"]) == (1, "argument `title` changed")
    shown = text_of(Visitor(dee).get(address_of(second)))
    assert f"1 vote on packet {first.number}" in shown
    assert "Argument `title` changed." in shown
    assert f"One vote on packet {first.number} is void" in shown
    old = text_of(Visitor(dee).get(address_of(first)))
    assert f"void on packet {second.number}: argument `title` changed" in old
    walk.decide(second, dee)
    assert walk.fresh(second).state == PacketState.OPEN


def test_edited_there_and_back_a_vote_is_carried_and_counts_once(
    walk: Walk, first: Packet, cleo: Membership, dee: Membership
) -> None:
    third = there_and_back(walk, first)
    vote = Decision.objects.get(packet=third)
    given = Decision.objects.get(packet=first)
    assert (vote.person, vote.carried_from, vote.digest) == (cleo.user, given, first.digest)
    assert (vote.comment, vote.decided_at) == ("Fine.", given.decided_at)
    assert (vote.tenant, vote.verdict, vote.round) == (third.tenant, Verdict.APPROVE, 1)
    assert (vote.self_approved, vote.signature, vote.on_behalf_of) == (False, None, None)
    assert third.state == PacketState.OPEN
    entry = AuditEntry.objects.get(action="packet.vote_carried")
    assert (entry.actor_id, entry.subject) == (cleo.user_id, f"packet:{third.pk}")
    assert (entry.facts["digest"], entry.facts["became"]) == (first.digest, third.digest)
    assert entry.facts["source"] == f"packet:{first.pk}"
    assert (entry.facts["result"], entry.facts["comment"], entry.facts["round"]) == (
        *("open", "Fine."),
        1,
    )
    assert (entry.facts["self_approved"], entry.facts["from"]) == (False, first.number)
    facts = Event.objects.get(kind="packet.vote_carried").facts
    assert (facts["from"], facts["packet"], facts["by"]) == (
        first.number,
        third.number,
        cleo.user.name,
    )
    assert (facts["approval"], facts["became"]) == (first.digest, third.digest)
    shown = text_of(Visitor(dee).get(address_of(third)))
    assert "carried over from" in shown
    assert f"packet {first.number}</a>" in shown
    assert void_votes(third) == []
    old = text_of(Visitor(dee).get(address_of(first)))
    assert f"carried over to packet {third.number}" in old
    with pytest.raises(errors.AlreadyDecided):
        walk.decide(third, cleo)
    assert [each.number for each in decided_by_me_today(cleo)] == [first.number]
    walk.decide(third, dee)
    walk.drain()
    assert [json.loads(each.body) for each in walk.tracker.requests] == [FIRST]


def test_a_carried_vote_is_not_carried_twice_and_survives_another_detour(
    walk: Walk, first: Packet, cleo: Membership
) -> None:
    third = there_and_back(walk, first)
    fifth = there_and_back(walk, third)
    vote = Decision.objects.get(packet=fifth)
    assert vote.carried_from == Decision.objects.get(packet=first)
    assert void_votes(fifth) == []


def test_a_vote_on_other_content_in_between_is_in_nobodys_way(
    walk: Walk, first: Packet, cleo: Membership
) -> None:
    second = edit(walk, first, OTHER, walk.cast.ada)
    walk.decide(second, cleo)
    third = edit(walk, second, FIRST, walk.cast.bo)
    assert Decision.objects.get(packet=third).carried_from == Decision.objects.get(packet=first)


def test_whoever_edits_loses_the_vote(walk: Walk, first: Packet, cleo: Membership) -> None:
    third = edit(walk, edit(walk, first, OTHER, cleo), FIRST, walk.cast.bo)
    assert not third.decisions.exists()
    [void] = void_votes(third)
    assert void.why.endswith("or they alone would have been enough")


def test_the_votes_of_several_are_carried_in_their_order(
    walk: Walk, cleo: Membership, dee: Membership
) -> None:
    in_force(walk, rule('@needs("3")'))
    first = walk.to_call()
    for who in (dee, cleo):
        walk.decide(first, who)
    third = there_and_back(walk, first)
    carried_over = Decision.objects.filter(packet=third).order_by("pk")
    assert [each.person for each in carried_over] == [dee.user, cleo.user]
    assert list(voters_of(third)) == [dee.user_id, cleo.user_id]


def test_a_vote_in_anothers_name_is_given_anew(walk: Walk, cleo: Membership) -> None:
    """What was handed over may have ended meanwhile, or be for other packets."""
    in_force(walk, rule('@needs("2")'))
    first, now = walk.to_call(), timezone.now()
    eve = walk.cast.member("Eve Fifth", [Role.REVIEWER])
    hand_over(Wanted(eve.pk, now, now + timedelta(days=1)), member=cleo)
    answer = Answer(Verdict.APPROVE, first.digest, behalf=cleo.user_id)
    settle_packet(first.public_id, answer, member=eve)
    third = there_and_back(walk, first)
    assert not third.decisions.exists()
    assert "in another’s name" in void_votes(third)[0].why


def test_whoever_may_not_decide_any_more_loses_the_vote(
    walk: Walk, first: Packet, cleo: Membership
) -> None:
    second = edit(walk, first, OTHER, walk.cast.ada)
    cleo.roles = [Role.VIEWER]
    cleo.save(update_fields=["roles"])
    assert not edit(walk, second, FIRST, walk.cast.bo).decisions.exists()


def test_a_new_policy_in_between_voids_the_vote(walk: Walk, first: Packet) -> None:
    second = edit(walk, first, OTHER, walk.cast.ada)
    version = in_force(walk, rule('@needs("2")'))
    third = edit(walk, second, FIRST, walk.cast.bo)
    assert not third.decisions.exists()
    before = first.page["policy"]["version"]
    assert void_votes(third)[0].why == f"policy {before} became {version.number}"


def test_a_signed_vote_binds_to_its_packet_and_is_never_carried(
    walk: Walk, cleo: Membership, dee: Membership
) -> None:
    in_force(walk, rule('@needs("2")\n@passkey("required")'))
    packet = walk.to_call()
    key = SoftKey()
    key.kept_by(cleo.user)
    walk.decide(packet, cleo, passkey=signed(packet, cleo, key))
    third = there_and_back(walk, packet)
    assert not third.decisions.exists()
    assert void_votes(third)[0].why == (
        f"passkeys signed the digest of packet {packet.number}, and this is another one"
    )


def test_opening_never_approves(walk: Walk, first: Packet, dee: Membership) -> None:
    """Somebody wrote a second vote into the table: together they would be enough."""
    write(first, dee)
    third = there_and_back(walk, first)
    assert (third.state, third.decisions.count()) == (PacketState.OPEN, 0)


def write(packet: Packet, member: Membership, **fields: Any) -> Decision:
    """A vote that nobody gave."""
    return Decision.objects.create(
        **{
            "tenant": packet.tenant,
            "packet": packet,
            "person": member.user,
            "verdict": Verdict.APPROVE.value,
            "digest": packet.digest,
            "decided_at": timezone.now(),
            **fields,
        }
    )


def forged(walk: Walk, first: Packet, cleo: Membership) -> Packet:
    """A packet of other content that has Cleo's vote on the first one, all the same."""
    second = edit(walk, first, OTHER, walk.cast.ada)
    given = Decision.objects.get(packet=first)
    write(second, cleo, digest=first.digest, carried_from=given)
    return second


def test_a_vote_that_somebody_wrote_into_the_table_carries_nothing(
    walk: Walk, first: Packet, cleo: Membership, dee: Membership
) -> None:
    second = forged(walk, first, cleo)
    with pytest.raises(errors.VoteNotCarried, match=f"not the content of packet {first.number}"):
        walk.decide(second, dee)
    assert any("wrongly carried over" in each for each in evidence_of(walk))


def test_a_forged_vote_executes_nothing(
    walk: Walk, first: Packet, cleo: Membership, dee: Membership
) -> None:
    second = edit(walk, first, OTHER, walk.cast.ada)
    walk.decide(second, dee)
    walk.decide(second, walk.cast.member("Eli Fifth", [Role.REVIEWER]))
    given = Decision.objects.get(packet=first)
    write(second, cleo, digest=first.digest, carried_from=given)
    walk.drain()
    assert walk.tracker.requests == []
    held = Event.objects.get(kind="call.held_back").facts
    assert held["why"] == "wrongly_carried"


def evidence_of(walk: Walk) -> list[str]:
    return [str(each) for each in evidence.examine(walk.cast.acme).problems]


Spoil = Callable[[Packet, Packet, Membership, Membership], dict[str, Any]]
SPOILT: dict[str, tuple[Spoil, str]] = {
    "another person": (
        lambda first, third, cleo, dee: {"person": dee.user},
        "not the vote that it says it repeats",
    ),
    "another digest": (
        lambda first, third, cleo, dee: {"digest": third.digest},
        "not the vote that it says it repeats",
    ),
    "a signature": (
        lambda first, third, cleo, dee: {"signature": {"version": 1}},
        "no signature of its own",
    ),
    "in a name": (
        lambda first, third, cleo, dee: {"on_behalf_of": dee.user},
        "its person's own",
    ),
    "of nobody": (lambda first, third, cleo, dee: {"carried_from": None}, "made on another page"),
}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_what_a_carried_vote_must_be(
    walk: Walk, first: Packet, cleo: Membership, dee: Membership, spoilt: str
) -> None:
    change, why = SPOILT[spoilt]
    second = edit(walk, first, OTHER, walk.cast.ada)
    given = Decision.objects.get(packet=first)
    fields = {"digest": first.digest, "carried_from": given}
    vote = write(second, cleo, **{**fields, **change(first, second, cleo, dee)})
    [(found, told)] = carried.faults(second)
    assert (found, why in told) == (vote, True), told


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"state": PacketState.CHANGES_REQUESTED.value}, "was not superseded with it"),
        ({"round": 2}, "was not superseded with it"),
        ({"digest": "0" * 64}, "was not given on the page"),
        ({"page": {"shape": 1}}, "was not given on the page"),
        ({"supersedes": None}, "did not take the place"),
    ],
)
def test_what_the_earlier_packet_must_be(
    walk: Walk, first: Packet, change: dict[str, Any], why: str
) -> None:
    third = there_and_back(walk, first)
    assert list(carried.faults(third)) == []
    spoilt = third if "supersedes" in change else first
    Packet.objects.filter(pk=spoilt.pk).update(**change)
    [(_, told)] = carried.faults(walk.fresh(third))
    assert why in told


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"verdict": Verdict.DENY.value}, "it is no approval"),
        ({"on_behalf_of_id": 1}, "it was given in another’s name"),
        ({"signature": {"version": 1}}, "a passkey signed the digest"),
        ({"round": 2}, "was not superseded with it"),
        ({"digest": "0" * 64}, "was not given on the page"),
    ],
)
def test_what_the_repeated_vote_must_be(
    walk: Walk, first: Packet, change: dict[str, Any], why: str
) -> None:
    third = there_and_back(walk, first)
    given = Decision.objects.get(packet=first)
    assert carried.why_not_carried(given, third) == ""
    for name, value in change.items():
        setattr(given, name, value)
    assert why in carried.why_not_carried(given, third)


def test_only_approvals_are_asked_where_they_come_from(
    walk: Walk, first: Packet, cleo: Membership
) -> None:
    second = edit(walk, first, OTHER, walk.cast.ada)
    write(second, cleo, verdict=Verdict.DENY.value, digest="0" * 64)
    assert list(carried.faults(second)) == []


def test_a_vote_that_was_carried_is_repeated_by_none_and_none_where_a_passkey_is_wanted(
    walk: Walk, first: Packet
) -> None:
    third = there_and_back(walk, first)
    vote = Decision.objects.get(packet=third)
    fifth = there_and_back(walk, third)
    assert carried.why_not_carried(vote, fifth) == "it was carried over itself"
    given = Decision.objects.get(packet=first)
    fifth.page = {**fifth.page, "gate": {**fifth.page["gate"], "passkey": "required"}}
    assert "a passkey signed the digest" in carried.why_not_carried(given, fifth)


def test_carrying_again_changes_nothing_it_should_not(walk: Walk, first: Packet) -> None:
    """A packet that took nobody's place has nothing to carry."""
    assert carry_votes(first, first.run) == []


# --- Offline --------------------------------------------------------------------------------------


def trusted() -> list[str]:
    return [key_id(signing_key().public_key())]


def test_a_bundle_with_carried_votes_adds_up(walk: Walk, first: Packet, dee: Membership) -> None:
    third = there_and_back(walk, first)
    walk.decide(third, dee)
    walk.drain()
    whole = verified(bundle.exported(walk.cast.acme), trusted())
    assert (whole.problems, whole.notes, whole.status) == ([], [], 0)
    part = verified(bundle.exported(walk.cast.acme, bundle.Asked(packet=third)), trusted())
    assert (part.problems, part.notes) == ([], [])


def test_a_bundle_shows_a_vote_that_was_wrongly_carried(
    walk: Walk, first: Packet, cleo: Membership
) -> None:
    second = forged(walk, first, cleo)
    with transaction.atomic():
        audit.record(
            "packet.vote_carried",
            tenant=second.tenant,
            subject=second,
            actor=cleo.user,
            digest=first.digest,
            result="open",
            comment="",
            round=1,
            self_approved=False,
            source=f"packet:{first.pk}",
        )
    report = verified(bundle.exported(walk.cast.acme), trusted())
    assert any("to a page of other content" in str(each) for each in report.problems)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("carried_from", 10**6, "packet it is carried from"),
        ("digest", "0" * 64, "digest"),
        ("person", 10**6, "person"),
    ],
)
def test_a_changed_line_of_a_carried_vote_is_found(
    walk: Walk, first: Packet, name: str, value: object, problem: str
) -> None:
    there_and_back(walk, first)
    judge = Verifier(trusted())
    for line in bundle.exported(walk.cast.acme):
        if line.startswith(b'{"decision"') and b'"carried_from"' in line:
            body = json.loads(line)["decision"] | {name: value}
            line = framed("decision", body)
        judge.take(line)
    told = "\n".join(map(str, judge.finish().problems))
    assert problem in told


# --- Candidates -----------------------------------------------------------------------------------


def test_a_new_candidate_voids_votes_and_counts_the_hunks(
    walk: Walk, cleo: Membership, dee: Membership
) -> None:
    in_force(walk, rule('@needs("2")', "publish-needs-two", "publish"))
    again = [
        [call("more", "exec_command", cmd="echo more > NEWS")],
        [say("There is news.")],
    ]
    packet = walk.to_review(REPAIR, again)
    walk.decide(packet, walk.cast.ada)
    walk.decide(packet, walk.cast.bo, Verdict.REQUEST_CHANGES)
    walk.drain()
    second = walk.open_packet(packet.run)
    assert second.supersedes == packet
    assert not second.decisions.exists()
    [void] = void_votes(second)
    assert void.why.startswith("1 of 2 hunks changed; ")
    shown = text_of(Visitor(walk.cast.ada).get(address_of(second)))
    assert "1 of 2 hunks changed" in shown
    told = Event.objects.get(kind="packet.votes_void").facts["reason"]
    assert told.startswith("candidate 1 became 2; ")


def test_what_policy_asks_again_says_what_changed(walk: Walk) -> None:
    again = [call("again", "create_issue", title=FIRST["title"])]
    asking = [[call("file", "create_issue", title=FIRST["title"])], again, *REPAIR[1:]]
    packet = walk.to_call(asking)
    walk.decide(packet)
    version = walk.new_policy()
    walk.drain()
    second = walk.open_packet(packet.run)
    if second.kind == "resume":
        walk.decide(second)
        walk.drain()
        second = walk.open_packet(packet.run)
    assert second.supersedes == packet
    assert f"policy {packet.page['policy']['version']} became {version.number}" in (
        void_votes(second)[0].why
    )


def test_a_vote_that_was_spent_on_an_approval_does_not_come_back(
    walk: Walk, cleo: Membership, dee: Membership
) -> None:
    """Carried over, it was one of those that approved; that was in vain, and people look anew."""
    in_force(walk, rule('@needs("2")'))
    again = [call("again", "create_issue", title=FIRST["title"])]
    asking = [[call("file", "create_issue", title=FIRST["title"])], again, *REPAIR[1:]]
    first = walk.to_call(asking)
    walk.decide(first, cleo)
    third = there_and_back(walk, first)
    walk.decide(third, dee)
    late = timezone.now() - timedelta(seconds=1)
    Packet.objects.filter(pk=third.pk).update(usable_until=late)
    walk.drain()
    assert walk.tracker.requests == []
    fourth = walk.open_packet(first.run)
    assert fourth.supersedes == third
    assert not fourth.decisions.exists()
    ended = f"packet {third.number} ended: approved"
    assert [(void.packet, void.why) for void in void_votes(fourth)] == [
        (third, ended),
        (first, ended),
    ]
    Decision.objects.create(
        tenant=fourth.tenant,
        packet=fourth,
        person=cleo.user,
        verdict=Verdict.APPROVE.value,
        digest=first.digest,
        carried_from=Decision.objects.get(packet=first),
        decided_at=timezone.now(),
    )
    [(_, why)] = carried.faults(fourth)
    assert why == f"this packet did not take the place of packet {first.number}"
