"""Stages: what rules demand, who fills which, the sentence, and quorums out of reach."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from approvals import errors
from approvals.models import Group, Packet, PolicyVersion
from approvals.policies import QuorumUnreachable, decide_policy, propose_policy
from approvals.policy import PolicyRefused
from approvals.policy_text import DEFAULT_POLICY
from approvals.queries import mine, open_packets, shell_counts
from approvals.states import PacketState, Verdict
from portal import people
from portal.handoff import Job
from portal.models import AuditEntry, User
from portal.roles import Role
from runs.models import Event
from tests.approvals.stages import group, in_force, rule, second_admin, staged
from tests.visits import Visitor, address_of, text_of
from tests.walk import Walk, decisions_of

QUEUE = "/t/acme/queue/"
SENTENCE = "Needs one of Security and one of Owners"


def words(page: object) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text_of(page)))  # type: ignore[arg-type]


def waiting(walk: Walk, rules: str = "") -> Packet:
    """A packet that needs one of Security and one of Owners."""
    staged(walk)
    in_force(walk, rules or rule())
    return walk.to_call()


# --- Counting -------------------------------------------------------------------------------------


@pytest.mark.both_databases
def test_all_stages_must_be_filled(walk: Walk, database: str) -> None:
    packet = waiting(walk)
    security, owners = (Group.objects.get(handle=each) for each in ("security", "owners"))
    assert packet.needed == 2
    assert packet.page["gate"]["stages"] == [
        {"route": f"group:{security.pk}", "group": "security", "name": "Security", "people": 1},
        {"route": f"group:{owners.pk}", "group": "owners", "name": "Owners", "people": 1},
    ]
    other = walk.cast.member("Cy Other", [Role.REVIEWER])
    group(walk, "security", walk.cast.ada, other)

    assert walk.decide(packet, walk.cast.ada).state == PacketState.OPEN
    assert walk.decide(packet, other).state == PacketState.OPEN  # two of Security, none of Owners
    assert walk.decide(packet, walk.cast.bo).state == PacketState.APPROVED

    walk.drain()
    assert len(walk.tracker.requests) == 1
    settled = walk.fresh(packet)
    assert dict(settled.filled) == {
        walk.cast.ada.user_id: f"group:{security.pk}",
        walk.cast.bo.user_id: f"group:{owners.pk}",
    }
    lines = AuditEntry.objects.filter(action="packet.approved").order_by("seq")
    assert [each.facts.get("stage") for each in lines] == ["Security", None, "Owners"]
    assert [each.facts.get("stages") for each in lines] == [None, None, settled.filled]
    events = Event.objects.filter(run=packet.run, kind="packet.approved").order_by("seq")
    assert [each.facts.get("stage") for each in events] == ["Security", None, "Owners"]


@pytest.mark.both_databases
def test_one_person_fills_one_place_whatever_groups_they_are_in(walk: Walk, database: str) -> None:
    cast = walk.cast
    packet = waiting(walk)
    group(walk, "owners", cast.ada, cast.bo)

    assert walk.decide(packet, cast.ada).state == PacketState.OPEN
    with pytest.raises(errors.AlreadyDecided):
        walk.decide(packet, cast.ada)
    # Ada moves to Security, because Bo can be of Owners alone; or the other way round.
    assert walk.decide(packet, cast.bo).state == PacketState.APPROVED
    assert len(walk.fresh(packet).filled) == 2


def test_three_stages_of_one_need_three_people(walk: Walk) -> None:
    cast = walk.cast
    cy = walk.cast.member("Cy Other", [Role.REVIEWER])
    three = [cast.ada, cast.bo, cy]
    for handle in ("security", "owners", "legal"):
        group(walk, handle, *three)
    in_force(walk, rule('@stages("1 of group:security, 1 of group:owners, 1 of group:legal")'))
    packet = walk.to_call()

    states = [walk.decide(packet, each).state for each in three]

    assert states == [PacketState.OPEN, PacketState.OPEN, PacketState.APPROVED]


@pytest.mark.both_databases
def test_a_packet_waits_only_for_those_who_count(walk: Walk, database: str) -> None:
    cast = walk.cast
    packet = waiting(walk)
    in_force(walk, "")
    plain = walk.to_call()
    cy, odd = cast.member("Cy Other", [Role.REVIEWER]), cast.member("Odd One", [])
    waits = {
        each.user.name: list(mine(open_packets(cast.acme), each).values_list("pk", flat=True))
        for each in (cast.ada, cast.bo, cy, cast.olu, cast.vic, odd)
    }
    both = [packet.pk, plain.pk]
    assert waits == {
        "Ada Obi": both,
        "Bo Lindqvist": both,
        "Cy Other": [plain.pk],
        **{name: [] for name in ("Olu Adeyemi", "Vic Moreau", "Odd One")},
    }
    assert shell_counts(cast.ada)["queue"] == 2
    assert shell_counts(cy)["queue"] == 1


def test_whoever_is_in_no_stage_cannot_approve_and_can_hold_back(walk: Walk) -> None:
    packet = waiting(walk)
    cy = walk.cast.member("Cy Other", [Role.REVIEWER])

    with pytest.raises(errors.CountsForNothing, match="people of Security or of Owners"):
        walk.decide(packet, cy)
    assert decisions_of(packet) == []
    visitor = Visitor(cy)
    page = words(visitor.get(address_of(packet)))
    assert f"{SENTENCE}; you count for nothing here." in page
    assert "Approving is for people of Security or of Owners." in page
    assert "nothing waits" in words(visitor.get(QUEUE)).lower()
    assert f"{SENTENCE}; you count for nothing here." in words(visitor.get(f"{QUEUE}?show=all"))
    assert walk.decide(packet, cy, Verdict.DENY).state == PacketState.DENIED


def test_a_group_gives_nobody_a_permission(walk: Walk) -> None:
    packet = waiting(walk)
    group(walk, "security", walk.cast.ada, walk.cast.vic)
    page = words(Visitor(walk.cast.vic).get(address_of(packet)))
    assert "Deciding needs the role reviewer." in page
    assert "you count" not in page


def test_the_excluded_never_count_whatever_group_they_are_in(walk: Walk) -> None:
    cast = walk.cast
    people.set_roles(cast.olu.pk, [Role.OPERATOR, Role.REVIEWER], member=cast.max)
    packet = waiting(walk)
    group(walk, "security", cast.ada, cast.olu)
    with pytest.raises(errors.OwnRequest):
        walk.decide(packet, walk.fresh(cast.olu))


def _left(walk: Walk) -> None:
    people.remove_member(walk.cast.ada.pk, member=walk.cast.max)


def _demoted(walk: Walk) -> None:
    people.set_roles(walk.cast.ada.pk, [Role.VIEWER], member=walk.cast.max)


def _out_of_the_group(walk: Walk) -> None:
    group(walk, "security")


def _switched_off(walk: Walk) -> None:
    User.objects.filter(pk=walk.cast.ada.user_id).update(is_active=False)


@pytest.mark.both_databases
@pytest.mark.parametrize("change", [_left, _demoted, _out_of_the_group, _switched_off])
def test_who_is_not_what_they_were_counts_no_longer(
    walk: Walk, database: str, change: Callable[[Walk], None]
) -> None:
    packet = waiting(walk)
    walk.decide(packet, walk.cast.ada)
    change(walk)

    assert walk.decide(packet, walk.cast.bo).state == PacketState.OPEN

    page = words(Visitor(walk.cast.max).get(address_of(packet)))
    assert "does not count any more" in page
    assert "one of Security is still missing" in page
    cy = walk.cast.member("Cy Other", [Role.REVIEWER])
    group(walk, "security", cy)
    assert walk.decide(packet, cy).state == PacketState.APPROVED


def test_a_new_group_of_an_old_name_is_not_the_sealed_one(walk: Walk) -> None:
    packet = waiting(walk)
    Group.objects.filter(handle="security").delete()
    group(walk, "security", walk.cast.ada)

    with pytest.raises(errors.CountsForNothing):
        walk.decide(packet, walk.cast.ada)
    assert "Nobody can approve this as things are." in words(
        Visitor(walk.cast.max).get(address_of(packet))
    )


def test_a_role_is_a_stage_too_and_more_people_may_be_wanted(walk: Walk) -> None:
    cast = walk.cast
    chief = cast.member("Chi Chief", [Role.REVIEWER, Role.ADMIN])
    in_force(walk, rule('@stages("1 of role:admin") @needs("2")'))
    packet = walk.to_call()
    assert (packet.needed, packet.routes) == (2, [])
    page = words(Visitor(cast.ada).get(address_of(packet)))
    assert "Needs one with the role admin and one more reviewer; you count as one more." in page

    assert walk.decide(packet, cast.ada).state == PacketState.OPEN
    assert walk.decide(packet, cast.bo).state == PacketState.OPEN
    assert walk.decide(packet, chief).state == PacketState.APPROVED


def test_a_publication_waits_for_stages_as_well(walk: Walk) -> None:
    staged(walk)
    in_force(walk, rule(action="publish"))
    packet = walk.to_review()
    assert walk.decide(packet, walk.cast.ada).state == PacketState.OPEN
    assert walk.decide(packet, walk.cast.bo).state == PacketState.APPROVED
    walk.drain()
    assert walk.words(Job.PUBLISH) == ["done"]
    address = f"/t/acme/publications/{packet.publication.public_id}/"
    assert "by Ada Obi for Security," in words(Visitor(walk.cast.vic).get(address))


# --- The sentence ---------------------------------------------------------------------------------


def test_progress_is_one_sentence_on_the_page_and_in_the_queue(walk: Walk) -> None:
    cast = walk.cast
    packet = waiting(walk)
    ada, bo, vic = (Visitor(each) for each in (cast.ada, cast.bo, cast.vic))

    for page in (ada.get(address_of(packet)), ada.get(QUEUE)):
        assert f"{SENTENCE}; you count as Security." in words(page)
    assert f"{SENTENCE}; you count as Owners." in words(bo.get(QUEUE))
    assert f"{SENTENCE}." in words(vic.get(address_of(packet)))
    assert "One of Security not yet ? One of Owners not yet" in words(vic.get(address_of(packet)))

    walk.decide(packet, cast.ada)

    after = f"{SENTENCE}; one of Owners is still missing; you"
    assert f"{after} have approved." in words(ada.get(address_of(packet)))
    assert f"{after} have approved." in words(ada.get(f"{QUEUE}?show=all"))
    assert f"{after} count as Owners." in words(bo.get(f"{address_of(packet)}state/"))
    page = words(bo.get(address_of(packet)))
    assert f"{after} count as Owners." in page
    assert "Yours is the last answer needed." in page
    assert "Ada Obi for Security," in page
    assert "One of Owners not yet" in page
    assert "for Security, more people are needed" in page
    assert "1 of Security group:security" in page
    assert "One of Security not yet" not in page
    walk.decide(packet, cast.bo)
    assert "approved by Bo Lindqvist for Owners," in words(
        vic.get(address_of(packet))
    ).lower().replace("bo lindqvist for owners", "Bo Lindqvist for Owners")


def test_a_place_that_is_filled_says_so(walk: Walk) -> None:
    packet = waiting(walk)
    cy = walk.cast.member("Cy Other", [Role.REVIEWER])
    group(walk, "security", walk.cast.ada, cy)
    walk.decide(packet, walk.cast.ada)
    page = words(Visitor(cy).get(address_of(packet)))
    assert "Your place is filled already: approving would only stand by for it." in page


def test_the_table_of_rules_tells_stages(walk: Walk) -> None:
    staged(walk)
    in_force(walk)
    page = words(Visitor(walk.cast.vic).get("/t/acme/policies/"))
    assert "needs one of the group security and one of the group owners" in page


@pytest.mark.both_databases
def test_a_trial_tells_which_packets_had_other_stages(walk: Walk, database: str) -> None:
    plain = walk.to_call()
    walk.decide(plain)
    walk.lose_hops()
    asked = waiting(walk)

    page = Visitor(walk.cast.max).post(
        "/t/acme/policies/try/", text=DEFAULT_POLICY + rule(), days="7"
    )

    parts = {part.title: [row.label for row in part.rows] for part in page.context["tried"].parts}
    assert parts["It demands other stages than there were"] == [f"Packet {plain.number}"]
    back = Visitor(walk.cast.max).post("/t/acme/policies/try/", text=DEFAULT_POLICY, days="7")
    parts = {part.title: [row.label for row in part.rows] for part in back.context["tried"].parts}
    assert parts["It demands other stages than there were"] == [f"Packet {asked.number}"]


# --- Out of reach ---------------------------------------------------------------------------------


def refused(walk: Walk, rules: str) -> tuple[str, int | None, int | None, str]:
    with pytest.raises(PolicyRefused) as caught:
        propose_policy(DEFAULT_POLICY + rules, member=walk.cast.max)
    (problem,) = caught.value.problems
    assert not PolicyVersion.objects.filter(text=DEFAULT_POLICY + rules).exists()
    return problem.rule, problem.line, problem.column, f"{problem.reason} {problem.remedy}"


@pytest.mark.both_databases
def test_too_few_people_are_refused_with_the_rules_place(walk: Walk, database: str) -> None:
    staged(walk)
    line = DEFAULT_POLICY.count("\n") + 2

    name, at, column, said = refused(walk, rule('@stages("2 of group:security")'))

    assert (name, at, column) == ("http-needs-stages", line, 1)
    assert said == (
        "It needs two of Security, and one person there may approve. "
        "Add people who may approve, or demand less."
    )


def test_an_unknown_group_is_refused_with_what_was_meant(walk: Walk) -> None:
    staged(walk)
    *_, said = refused(walk, rule('@stages("1 of group:securty")'))
    assert "There is no group `securty`. Did you mean `security`? Groups: owners, security." in said


def test_overlapping_people_are_refused(walk: Walk) -> None:
    group(walk, "security", walk.cast.ada)
    group(walk, "owners", walk.cast.ada)
    *_, said = refused(walk, rule())
    assert "two different people for Security and Owners, and those who may approve overlap" in said


def test_exclusions_are_reckoned_with(walk: Walk) -> None:
    """The author never counts, nor does whoever asks: here nobody is left, whoever asks."""
    cast = walk.cast
    people.set_roles(cast.max.pk, [Role.ADMIN, Role.REVIEWER], member=cast.max)
    walk.fresh(cast.max)
    group(walk, "security", cast.max)
    group(walk, "owners", cast.bo)
    assert "Max Weber wrote it and never counts." in refused(walk, rule())[3]

    people.set_roles(cast.ada.pk, [Role.OPERATOR, Role.REVIEWER], member=cast.max)
    people.remove_member(cast.mona.pk, member=cast.max)
    people.remove_member(cast.olu.pk, member=cast.max)
    group(walk, "security", cast.ada)
    assert "Whoever asks for a run never counts" in refused(walk, rule())[3]


def test_a_draft_that_is_tried_says_so_too(walk: Walk) -> None:
    page = Visitor(walk.cast.max).post(
        "/t/acme/policies/try/", text=DEFAULT_POLICY + rule(), days="7"
    )
    assert page.status_code == 422
    assert "There is no group `security`." in words(page)


@pytest.mark.both_databases
def test_what_went_out_of_reach_meanwhile_is_not_put_in_force(walk: Walk, database: str) -> None:
    staged(walk)
    version = propose_policy(DEFAULT_POLICY + rule(), member=walk.cast.max)
    people.remove_member(walk.cast.ada.pk, member=walk.cast.max)
    mia = second_admin(walk)

    with pytest.raises(QuorumUnreachable, match=r"http-needs-stages, line .* nobody there may"):
        decide_policy(version, approve=True, seen=version.digest, member=mia)
    assert walk.fresh(version).state == PolicyVersion.State.PROPOSED
    page = words(Visitor(mia).get(f"/t/acme/policies/{version.number}/"))
    assert "A rule waits for approvals that cannot come." in page
    answer = Visitor(mia).post(
        f"/t/acme/policies/{version.number}/decide/", answer="approve", seen=version.digest
    )
    assert answer.status_code == 409
    assert "nobody there may approve" in words(answer)
    decide_policy(version, approve=False, seen=version.digest, member=mia)


def test_what_is_in_force_already_keeps_nobody_from_changing_the_rest(walk: Walk) -> None:
    staged(walk)
    in_force(walk)
    people.remove_member(walk.cast.ada.pk, member=walk.cast.max)
    in_force(walk, rule() + rule("", "another"))
    assert (
        PolicyVersion.objects.get(tenant=walk.cast.acme, state="in_force").unreachable[0]["rule"]
        == "http-needs-stages"
    )


@pytest.mark.both_databases
def test_leavers_are_warned_of_once_and_everywhere(walk: Walk, database: str) -> None:
    cast = walk.cast
    staged(walk)
    version = in_force(walk)
    walk.deliver(Job.SWEEP_QUORUMS)  # the other tenant has too few people from the beginning
    assert walk.deliver(Job.SWEEP_QUORUMS) == "0 changed"

    people.remove_member(cast.ada.pk, member=cast.max)
    walk.deliver(Job.SWEEP_QUORUMS)
    walk.deliver(Job.SWEEP_QUORUMS)

    (line,) = AuditEntry.objects.filter(action="policy.unreachable", tenant=cast.acme)
    reason = "It needs one of Security, and nobody there may approve."
    assert line.facts == {
        "number": version.number,
        "rules": [{"rule": "http-needs-stages", "reason": reason}],
    }
    admin, olu = Visitor(cast.max), Visitor(cast.olu)
    for page in ("/t/acme/policies/", QUEUE):
        assert f"http-needs-stages : {reason}" in words(admin.get(page))
    assert reason not in words(olu.get(QUEUE))

    group(walk, "security", cast.member("Cy Other", [Role.REVIEWER]))
    assert AuditEntry.objects.filter(action="policy.reachable").count() == 1
    assert reason not in words(admin.get(QUEUE))
    assert walk.deliver(Job.SWEEP_QUORUMS) == "0 changed"


def test_a_packet_that_nobody_can_approve_says_so(walk: Walk) -> None:
    cast = walk.cast
    packet = waiting(walk)
    page = Visitor(cast.vic)
    said = "Nobody can approve this as things are. It needs one of Security, and nobody there"
    assert said not in words(page.get(address_of(packet)))
    people.remove_member(cast.ada.pk, member=cast.max)

    assert said in words(page.get(address_of(packet)))
    assert said in words(page.get(f"{address_of(packet)}state/"))
    assert said in words(page.get(address_of(walk.to_call())))


def test_in_a_declared_tenant_of_one_its_person_may_fill_a_stage(walk: Walk) -> None:
    cast = walk.cast
    cast.acme.one_person = True
    cast.acme.save(update_fields=["one_person"])
    people.set_roles(cast.max.pk, [Role.ADMIN, Role.REVIEWER], member=cast.max)
    group(walk, "security", cast.max)
    alone = '@stages("1 of group:security")'
    version = propose_policy(DEFAULT_POLICY + rule(alone), member=walk.fresh(cast.max))
    decided = decide_policy(version, approve=True, seen=version.digest, member=cast.max)
    assert decided.self_approved
    packet = walk.to_call()
    assert walk.decide(packet, walk.fresh(cast.max)).state == PacketState.APPROVED
    assert walk.fresh(packet).self_approved
