"""Several packets decided at once: low risk, one shape, an outcome for each. High risk is typed."""

from __future__ import annotations

from typing import Any

import pytest

from approvals import errors
from approvals.bulk import LIMIT, Wanted, picked_by, settle_all, shape_of
from approvals.models import Decision, Packet
from approvals.policies import decide_policy, propose_policy
from approvals.policy_text import DEFAULT_POLICY, PolicyRefused
from approvals.states import PacketState, Verdict
from portal.errors import BadInput
from portal.roles import Role
from runs.states import CallState
from tests.approvals import stages
from tests.approvals.test_passkey_decisions import signed
from tests.cast import REPAIR, call
from tests.softkeys import SoftKey
from tests.visits import Visitor, address_of, text_of
from tests.walk import Walk, call_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.both_databases]


def rated(walk: Walk, notes: str = '@risk("low")', rule: str = "outward-needs-a-person") -> None:
    """The shipped policy with these notes on one of its rules."""
    text = DEFAULT_POLICY.replace(f'@id("{rule}")', f'@id("{rule}")\n{notes}')
    version = propose_policy(f"// {notes!r}\n{text}", member=walk.cast.max)
    admin = stages.second_admin(walk)
    decide_policy(version, approve=True, seen=version.digest, member=admin)


def asks(walk: Walk, title: str) -> Packet:
    steps = [[call("file", "create_issue", title=title)], *REPAIR[1:]]
    return walk.to_call(steps)


def wanted(*packets: Packet) -> list[Wanted]:
    return [Wanted(each.public_id, each.digest) for each in packets]


def give(walk: Walk, *packets: Packet, **more: Any) -> list[str]:
    sent = {"comment": "", "token": "t", "member": walk.cast.ada, **more}
    verdict = sent.pop("verdict", Verdict.APPROVE)
    return [each.why for each in settle_all(wanted(*packets), verdict, **sent)]


def test_packets_of_one_shape_are_decided_each_by_itself(walk: Walk) -> None:
    rated(walk)
    packets = [asks(walk, "One") for _ in range(3)]
    assert len({shape_of(each) for each in packets}) == 1
    assert [each.why for each in picked_by(walk.cast.ada, [p.public_id for p in packets])] == [
        ""
    ] * 3
    assert give(walk, *packets) == ["", "", ""]
    assert {walk.fresh(each).state for each in packets} == {PacketState.APPROVED}
    assert {each.digest for each in Decision.objects.all()} == {each.digest for each in packets}
    assert {call_of(each).state for each in packets} == {CallState.APPROVED}


def test_one_refusal_hurts_no_other_and_sending_again_changes_nothing(walk: Walk) -> None:
    rated(walk)
    first, second, third = (asks(walk, title) for title in ("One", "Two", "Three"))
    walk.decide(second, walk.cast.bo, Verdict.DENY)
    stale = [*wanted(first, second), Wanted(third.public_id, "0" * 64)]
    for _ in range(2):
        results = settle_all(stale, Verdict.APPROVE, comment="", token="once", member=walk.cast.ada)
        assert [each.packet for each in results] == [first, second, third]
        assert results[0].why == ""
        assert "already denied by Bo" in results[1].why
        assert "not the one stored now" in results[2].why
    assert Decision.objects.filter(person=walk.cast.ada.user).count() == 1
    assert walk.fresh(third).state == PacketState.OPEN


@pytest.mark.parametrize(
    ("notes", "told"),
    [
        ('@needs("2")', "Your answer counts. More are needed."),
        ('@hold("15m")', "Until it takes effect it can be undone."),
    ],
)
def test_an_answer_that_is_not_the_last_word_says_so(walk: Walk, notes: str, told: str) -> None:
    for name in ("Cleo Third", "Dee Fourth"):
        walk.cast.member(name, [Role.REVIEWER])
    rated(walk, f'@risk("low")\n{notes}')
    packet = asks(walk, "One")
    [result] = settle_all(
        wanted(packet), Verdict.APPROVE, comment="", token="t", member=walk.cast.ada
    )
    assert (result.why, result.told) == ("", told)
    assert walk.fresh(packet).state == PacketState.OPEN


def test_named_twice_is_decided_once(walk: Walk) -> None:
    rated(walk)
    packet = asks(walk, "One")
    assert give(walk, packet, packet) == [""]


@pytest.mark.parametrize(
    ("notes", "why"),
    [
        ("", "it is normal"),
        ('@risk("high")', "it is high"),
        ('@risk("low")\n@passkey("required")', "takes a passkey"),
        ('@risk("low")\n@stages("1 of role:reviewer")', "demand stages"),
    ],
)
def test_others_are_left_out_with_the_reason_and_refused_whatever_the_page_showed(
    walk: Walk, notes: str, why: str
) -> None:
    if "passkey" in notes:
        for member in (walk.cast.ada, walk.cast.bo):
            SoftKey().kept_by(member.user)
    rated(walk, notes)
    packet = asks(walk, "One")
    [picked] = picked_by(walk.cast.ada, [packet.public_id])
    assert why in picked.why
    [refused] = give(walk, packet)
    assert "not of the kind" in refused
    assert not Decision.objects.exists()


def test_another_shape_than_the_first_is_refused(walk: Walk) -> None:
    rated(walk)
    first = asks(walk, "One")
    other = walk.to_call(
        [[call("file", "create_issue", title="Two")], *REPAIR[1:]], name="another-contract"
    )
    assert shape_of(first) == shape_of(other)
    rated(walk, rule="publish-after-review")
    review = walk.to_review(name="a-third-contract")
    ids = [first.public_id, review.public_id]
    assert [bool(each.why) for each in picked_by(walk.cast.ada, ids)] == [False, True]
    assert "of another shape" in picked_by(walk.cast.ada, ids)[1].why
    told = give(walk, first, review)
    assert told[0] == ""
    assert "of another shape" in told[1]
    assert walk.fresh(review).state == PacketState.OPEN


def test_publications_of_one_target_have_one_shape(walk: Walk) -> None:
    rated(walk, rule="publish-after-review")
    first, second = walk.to_review(), walk.to_review()
    assert shape_of(first) == shape_of(second)
    page = second.page | {"target": "elsewhere"}
    assert shape_of(first) != shape_of(Packet(kind=second.kind, page=page))
    calls = [Packet(kind="call", page={"arguments": {name: 1}}) for name in "ab"]
    assert shape_of(calls[0]) != shape_of(calls[1])


def test_low_is_only_what_every_rule_calls_low(walk: Walk) -> None:
    rule = '@id("more") @why("Why.") permit (principal, action == Action::"ask", resource);'
    text = DEFAULT_POLICY.replace(
        '@id("outward-needs-a-person")', '@id("outward-needs-a-person")\n@risk("low")'
    )
    version = propose_policy(text + rule, member=walk.cast.max)
    admin = stages.second_admin(walk)
    decide_policy(version, approve=True, seen=version.digest, member=admin)
    assert "risk" not in asks(walk, "One").page["gate"]


def test_who_may_not_decide_one_is_told_and_decides_none(walk: Walk) -> None:
    rated(walk)
    packet = asks(walk, "One")
    for who in (walk.cast.olu, walk.cast.vic):
        [picked] = picked_by(who, [packet.public_id])
        assert "reviewer" in picked.why
        assert give(walk, packet, member=who) != [""]
    assert picked_by(walk.cast.eve, [packet.public_id]) == []
    assert give(walk, packet, member=walk.cast.eve) == []
    assert not Decision.objects.exists()


def test_there_is_a_limit_and_changes_are_for_one_at_a_time(walk: Walk) -> None:
    rated(walk)
    packet = asks(walk, "One")
    with pytest.raises(BadInput, match="at once"):
        settle_all(
            wanted(*[packet] * (LIMIT + 1)),
            Verdict.APPROVE,
            comment="",
            token="",
            member=walk.cast.ada,
        )
    with pytest.raises(BadInput, match="51 packets"):
        picked_by(walk.cast.ada, [packet.public_id] * (LIMIT + 1))
    with pytest.raises(BadInput, match="one packet at a time"):
        give(walk, packet, verdict=Verdict.REQUEST_CHANGES, comment="Other words.")
    assert give(walk, *[packet] * LIMIT) == [""]


@pytest.mark.parametrize("text", ['@risk("none")', '@risk("normal")', "@risk"])
def test_a_risk_that_is_none_is_refused(walk: Walk, text: str) -> None:
    with pytest.raises(PolicyRefused, match="is no risk"):
        rated(walk, text)


# --- The pages ------------------------------------------------------------------------------------


def together(packet: Packet) -> str:
    return f"/t/{packet.tenant.slug}/queue/together/"


def test_the_table_names_each_and_looking_decides_nothing(walk: Walk) -> None:
    rated(walk)
    first, second = asks(walk, "One"), asks(walk, "Two")
    normal = walk.to_review()
    ada = Visitor(walk.cast.ada)
    ids = "&".join(f"pick={each.public_id}" for each in (first, second, normal))
    page = ada.get(f"{together(first)}?{ids}")
    shown = text_of(page)
    for each in (first, second):
        assert f'name="packet" value="{each.public_id}:{each.digest}"' in shown
    assert f"{normal.public_id}:" not in shown
    assert "it is normal" in shown
    assert "Approve these 2" in shown
    assert not Decision.objects.exists()
    pairs = [f"{each.public_id}:{each.digest}" for each in (first, second)]
    empty = ada.post(together(first), packet=pairs, answer="deny", token="t")
    assert empty.status_code == 422
    assert "Denying needs a reason" in text_of(empty)
    done = ada.post(together(first), packet=pairs, answer="approve", token="t")
    assert "2 of 2 approved" in text_of(done)
    again = ada.post(together(first), packet=pairs, answer="approve", token="t")
    assert "2 of 2 approved" in text_of(again)
    assert Decision.objects.count() == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"answer": "approve"},
        {"answer": "changes", "packet": "x"},
        {"answer": "approve", "packet": "not a pair"},
        {"answer": "approve", "packet": "-" * 36 + ":" + "0" * 64},
    ],
)
def test_a_form_that_is_none_decides_nothing(walk: Walk, fields: dict[str, str]) -> None:
    packet = walk.to_call()
    answer = Visitor(walk.cast.ada).client.post(together(packet), fields)
    assert answer.status_code == 400
    assert Visitor(walk.cast.ada).get(f"{together(packet)}?pick=x").status_code == 400


# --- High risk ------------------------------------------------------------------------------------


def test_high_risk_wants_the_targets_name(walk: Walk) -> None:
    rated(walk, '@risk("high")')
    packet = asks(walk, "One")
    for typed in ("", "create_issue", "127.0.0.2"):
        with pytest.raises(errors.NeedsTyped, match="Its rules call its risk high"):
            walk.decide(packet, typed=typed)
    shown = text_of(Visitor(walk.cast.ada).get(address_of(packet)))
    assert "Its rules call its risk high." in shown
    assert "high risk" in shown
    assert walk.decide(packet, typed="127.0.0.1").state == PacketState.APPROVED


def test_high_risk_of_a_publication_is_its_repository(walk: Walk) -> None:
    rated(walk, '@risk("high")', "publish-after-review")
    review = walk.to_review()
    with pytest.raises(errors.NeedsTyped):
        walk.decide(review, typed="")
    assert walk.decide(review, typed=review.page["target"]).state == PacketState.APPROVED


def test_denying_high_risk_takes_no_typing(walk: Walk) -> None:
    rated(walk, '@risk("high")')
    assert walk.decide(asks(walk, "One"), verdict=Verdict.DENY).state == PacketState.DENIED


def test_a_passkey_stands_for_the_name(walk: Walk) -> None:
    key = SoftKey()
    key.kept_by(walk.cast.ada.user)
    SoftKey().kept_by(walk.cast.member("Cleo Third", [Role.REVIEWER]).user)
    rated(walk, '@risk("high")\n@passkey("required")')
    packet = asks(walk, "One")
    done = walk.decide(packet, typed="", passkey=signed(packet, walk.cast.ada, key))
    assert done.state == PacketState.APPROVED
