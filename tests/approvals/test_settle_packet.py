"""Who may answer a packet, when, with which words, and what becomes of the answer."""

from __future__ import annotations

import json
import uuid

import pytest

from approvals import closing, errors
from approvals.deciding import COMMENT_LIMIT, Answer, settle_packet
from approvals.models import Decision, PolicyVersion, Publication
from approvals.policies import decide_policy, propose_policy
from approvals.policy_text import DEFAULT_POLICY
from approvals.states import PacketKind, PacketState, Verdict
from portal.errors import BadInput, NotAllowed, NotFound
from portal.handoff import Job
from portal.models import AuditEntry
from portal.roles import Role
from runs.models import Event
from runs.states import RunStatus
from tests.cast import REPAIR, call
from tests.walk import Walk, call_of, decisions_of, parked_call


def test_who_may_answer_the_packet_of_a_call(walk: Walk) -> None:
    """Refusals and the one success share their setup, so only the person differs."""
    cast, packet = walk.cast, parked_call(walk)
    publisher = cast.member("Pia Press", [Role.PUBLISHER])
    for member in (cast.vic, cast.max, cast.aud, cast.olu, publisher):
        with pytest.raises(NotAllowed):
            walk.decide(packet, member)
    with pytest.raises(NotFound):  # not NotAllowed: Eve must not learn that it exists
        walk.decide(packet, cast.eve)
    assert not Decision.objects.exists()

    reviewer = cast.member("Rea Viewer", [Role.REVIEWER])
    assert walk.decide(packet, reviewer).state == PacketState.APPROVED


def test_who_may_answer_the_packet_of_a_publication(walk: Walk) -> None:
    """A reviewer may hold it back; letting it out takes a publisher."""
    cast, packet = walk.cast, walk.to_review()
    reviewer = cast.member("Rea Viewer", [Role.REVIEWER])
    for member in (cast.vic, cast.max, cast.olu, reviewer):
        with pytest.raises(NotAllowed):
            walk.decide(packet, member)
    assert not Publication.objects.exists()

    publisher = cast.member("Pia Press", [Role.PUBLISHER])
    assert walk.decide(packet, publisher).state == PacketState.APPROVED
    assert Publication.objects.count() == 1

    held_back = walk.decide(walk.to_review(), reviewer, Verdict.DENY)
    assert held_back.state == PacketState.DENIED


def test_a_person_who_was_switched_off(walk: Walk) -> None:
    packet = parked_call(walk)
    walk.cast.ada.user.is_active = False
    walk.cast.ada.user.save(update_fields=["is_active"])
    with pytest.raises(NotFound):
        walk.decide(packet)


def test_a_machine_decides_nothing_whatever_its_roles(walk: Walk) -> None:
    packet = parked_call(walk)
    for verdict in Verdict:
        with pytest.raises(errors.MachineMayNotDecide):
            walk.decide(packet, walk.cast.mona, verdict, comment="Yes.")
    assert not Decision.objects.exists()


def test_holding_a_publication_back_takes_either_role(walk: Walk) -> None:
    for role in (Role.REVIEWER, Role.PUBLISHER):
        packet = walk.to_review(name=f"for-a-{role}")
        person = walk.cast.member(f"{role} Person".title(), [role])
        assert walk.decide(packet, person, Verdict.DENY).state == PacketState.DENIED


def test_a_question_is_answered_by_approving_it(walk: Walk) -> None:
    question = call("q", "ask_person", question="Which?", choices=["a", "b"])
    asked = walk.to_call([[question], REPAIR[-1]], ask=True)
    with pytest.raises(errors.NeedsWords):
        walk.decide(asked)
    assert walk.decide(asked, comment="a").state == PacketState.APPROVED


def test_a_packet_that_never_was(walk: Walk) -> None:
    with pytest.raises(NotFound):
        settle_packet(uuid.uuid4(), Answer(Verdict.APPROVE, "0" * 64), member=walk.cast.ada)


@pytest.mark.parametrize("verdict", [Verdict.DENY, Verdict.REQUEST_CHANGES])
def test_holding_back_needs_words(walk: Walk, verdict: Verdict) -> None:
    packet = parked_call(walk)
    for comment in ("", "  \n ", "\u200b\u202e\n"):
        with pytest.raises(errors.NeedsWords):
            settle_packet(
                packet.public_id, Answer(verdict, packet.digest, comment), member=walk.cast.ada
            )
    assert walk.decide(packet, verdict=verdict, comment="No.").state != PacketState.OPEN


def test_words_have_a_limit_and_no_zero_bytes(walk: Walk) -> None:
    packet = parked_call(walk)
    with pytest.raises(errors.WordsTooLong, match="10,001"):
        walk.decide(packet, comment="x" * (COMMENT_LIMIT + 1))
    with pytest.raises(BadInput):
        walk.decide(packet, comment="a\x00b")
    assert not Decision.objects.exists()
    assert walk.decide(packet, comment="x" * COMMENT_LIMIT).state == PacketState.APPROVED


@pytest.mark.both_databases
@pytest.mark.parametrize(
    ("seen", "token"), [("\x00" * 64, ""), ("g" * 64, ""), (None, "\x00"), (None, "a\nb")]
)
def test_a_form_that_none_of_our_pages_sends(
    walk: Walk, database: str, seen: str | None, token: str
) -> None:
    """Refused by us, with a reason: PostgreSQL would fail at some of these."""
    packet = parked_call(walk)
    with pytest.raises((errors.NeedsDigest, BadInput)):
        walk.decide(packet, seen=seen, token=token)
    assert walk.decide(packet).state == PacketState.APPROVED


def test_every_answer_is_evidence(walk: Walk) -> None:
    packet = parked_call(walk)
    walk.decide(packet, verdict=Verdict.DENY, comment="Not on a Friday.")

    decision = Decision.objects.get()
    assert (decision.digest, decision.comment) == (packet.digest, "Not on a Friday.")
    event = Event.objects.get(kind="packet.denied")
    assert (event.facts["approval"], event.facts["by"]) == (packet.digest, "Ada Obi")
    entry = AuditEntry.objects.get(action="packet.denied")
    assert entry.actor == walk.cast.ada.user
    assert entry.facts["digest"] == packet.digest


def test_two_people_where_two_are_needed(walk: Walk) -> None:
    packet = walk.to_review(gate="approvals = 2")
    assert walk.decide(packet).state == PacketState.OPEN
    assert not Publication.objects.exists()
    assert walk.decide(packet, walk.cast.bo).state == PacketState.APPROVED
    assert decisions_of(packet) == [("Ada Obi", "approve"), ("Bo Lindqvist", "approve")]


def test_one_denial_ends_what_two_are_needed_for(walk: Walk) -> None:
    packet = walk.to_review(gate="approvals = 2")
    walk.decide(packet)
    assert walk.decide(packet, walk.cast.bo, Verdict.DENY).state == PacketState.DENIED
    assert walk.status(packet.run) == RunStatus.DENIED


RULES = """
@id("http-needs-two")
@why("It goes outside.")
@needs("2")
@role("admin")
permit (principal, action == Action::"ask", resource)
when { context.outward };
"""


def test_the_people_and_roles_that_a_rule_of_the_policy_wants(walk: Walk) -> None:
    admin = walk.cast.member("Second Admin", [Role.ADMIN])
    chief = walk.cast.member("Chief Reviewer", [Role.REVIEWER, Role.ADMIN])
    version = propose_policy(DEFAULT_POLICY + RULES, member=walk.cast.max)
    decide_policy(version, approve=True, seen=version.digest, member=admin)
    packet = walk.to_call()
    assert packet.needed == 2
    assert packet.page["gate"]["roles"] == ["admin"]

    walk.decide(packet)
    assert walk.decide(packet, walk.cast.bo).state == PacketState.OPEN  # two, and no admin
    assert walk.tracker.requests == []
    assert walk.decide(packet, chief).state == PacketState.APPROVED

    walk.drain()
    assert len(walk.tracker.requests) == 1


def test_what_must_pass_and_did_not_cannot_be_approved(walk: Walk) -> None:
    packet = walk.to_review([REPAIR[0], REPAIR[-1]], verification=True)  # nothing was repaired
    assert "the check verification did not pass" in packet.blocked
    with pytest.raises(errors.ApprovalBlocked, match="verification"):
        walk.decide(packet)
    assert walk.decide(packet, verdict=Verdict.DENY).state == PacketState.DENIED


def test_requested_changes_are_the_agents_next_input(walk: Walk) -> None:
    more = [[call("more", "exec_command", cmd="echo 1 > more.txt")], REPAIR[-1]]
    first = walk.to_review(REPAIR, more)

    walk.decide(first, verdict=Verdict.REQUEST_CHANGES, comment="Write more.txt too.")
    walk.drain()

    second = walk.open_packet(first.run)
    assert "Ada Obi requests changes:\\n\\nWrite more.txt too." in walk.heard(first.run)
    assert second.number == first.number + 1
    assert [each["path"] for each in second.candidate.changes] == ["adder.py", "more.txt"]  # type: ignore[union-attr]
    walk.decide(second)
    walk.drain()
    assert walk.status(first.run) == RunStatus.PUBLISHED


def test_changes_requested_of_a_call_go_back_to_its_agent(walk: Walk) -> None:
    packet = walk.to_call()
    walk.decide(packet, verdict=Verdict.REQUEST_CHANGES, comment="Say where.")
    walk.drain()
    assert call_of(packet).state == "changes_requested"
    assert "Changes requested by Ada Obi: Say where." in walk.heard(packet.run)


def test_inv05_a_call_that_comes_back_changed_is_asked_and_was_never_denied(walk: Walk) -> None:
    steps = [
        [call("first", "create_issue", title="One")],
        [call("second", "create_issue", title="Two")],
        REPAIR[-1],
    ]
    first = walk.to_call(steps)
    walk.decide(first, verdict=Verdict.REQUEST_CHANGES, comment="Call it Two.")
    walk.drain()
    second = walk.open_packet(first.run)
    assert second.number == first.number + 1
    assert second.page["denied_before"] == []
    told = [(each.kind, each.facts.get("result")) for each in Event.objects.filter(run=first.run)]
    assert ("call.answered", "changes_requested") in told
    assert not {"denied"} & {result for _, result in told}
    assert "credential.denied" not in {kind for kind, _ in told}
    walk.decide(second)
    walk.drain()
    assert [json.loads(each.body)["title"] for each in walk.tracker.requests] == ["Two"]


def test_changes_are_requested_only_of_what_can_be_proposed_anew(walk: Walk) -> None:
    question = call("q", "ask_person", question="Which?", choices=["a", "b"])
    asked = walk.to_call([[question], REPAIR[-1]], ask=True)
    assert asked.kind == PacketKind.QUESTION
    with pytest.raises(BadInput, match="Approve or deny"):
        walk.decide(asked, verdict=Verdict.REQUEST_CHANGES, comment="Ask another one.")
    assert not Decision.objects.exists()


def test_a_denied_intent_that_comes_back(walk: Walk) -> None:
    """The shipped policy refuses the same target in other words; another one asks, and says so."""
    steps = [
        [call("first", "create_issue", title="One")],
        [call("second", "create_issue", title="Two")],
        REPAIR[-1],
    ]
    first = walk.to_call(steps)
    walk.decide(first, verdict=Verdict.DENY)
    walk.drain()
    assert "A person has denied" in walk.heard(first.run)

    lenient = DEFAULT_POLICY.replace("when { context.denied_before };", "when { false };")
    version = propose_policy(lenient, member=walk.cast.max)
    admin = walk.cast.member("Second Admin", [Role.ADMIN])
    decide_policy(version, approve=True, seen=version.digest, member=admin)
    third = walk.to_call(steps)
    walk.decide(third, verdict=Verdict.DENY)
    walk.drain()
    again = walk.open_packet(third.run)
    assert again.page["denied_before"] == [third.number]
    assert walk.tracker.requests == []

    # Approving it all the same takes more than a click, and no browser to insist on it.
    for typed in ("", "create_issues"):
        with pytest.raises(errors.NeedsTyped, match=r"before and denied\. Type “create_issue”"):
            walk.decide(again, typed=typed)
    assert walk.decide(again, typed=" create_issue ").state == PacketState.APPROVED


HIDDEN = [
    "*** Begin Patch",
    "*** Add File: repo/note.py",
    "+# Only admins\u202e may do this.",
    "*** End Patch",
]


def test_findings_must_be_acknowledged(walk: Walk) -> None:
    """What a check warns of is let out only by somebody who says that they saw it."""
    steps = [*REPAIR[:2], [call("hide", "apply_patch", patch=HIDDEN)], *REPAIR[2:]]
    packet = walk.to_review(steps)
    with pytest.raises(errors.NeedsTyped, match="1 finding to acknowledge"):
        walk.decide(packet, typed="")
    assert not Decision.objects.exists()
    held_back = walk.to_review(steps)
    walk.decide(held_back, verdict=Verdict.DENY, typed="")  # holding back takes only words

    walk.decide(packet, typed=packet.page["target"])
    assert walk.fresh(packet).state == PacketState.APPROVED
    entry = AuditEntry.objects.filter(action="packet.approved").last()
    assert entry is not None
    assert entry.facts["acknowledged"] == 1


def test_a_sweep_goes_on_past_a_packet_it_cannot_close(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = walk.run_out(parked_call(walk)), walk.run_out(parked_call(walk))
    expire = closing.expire_packet

    def fail_at_the_first(packet_id: int) -> bool:
        if packet_id == bad.pk:
            raise ZeroDivisionError
        return expire(packet_id)

    fail_at_the_first.__name__ = "expire_packet"
    monkeypatch.setattr(closing, "expire_packet", fail_at_the_first)
    walk.deliver(Job.SWEEP_APPROVALS)

    assert walk.fresh(good).state == PacketState.EXPIRED
    assert walk.fresh(bad).state == PacketState.OPEN
    assert PolicyVersion.objects.count() == 2  # one for each tenant, and neither was touched
