"""Versions of the policy: refused with their place, compared, tried on the past, taken back."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from approvals import simulator, trials
from approvals.history import judged_between
from approvals.models import Packet, PolicyVersion
from approvals.policies import (
    OwnPolicy,
    PolicyMoved,
    SamePolicy,
    decide_policy,
    go_back,
    propose_policy,
)
from approvals.policy import CallFacts, PublishFacts, decide, decide_publication, recalled
from approvals.policy_text import DEFAULT_POLICY
from approvals.simulator import Past
from approvals.states import PacketKind, PacketState, Verdict
from approvals.trials import tried
from portal.errors import NotAllowed
from portal.handoff import Job
from portal.models import AuditEntry, Membership
from portal.roles import Role
from runs import grants, lifecycle
from runs.egress.asking import read_ask
from runs.judging import judge_network
from runs.models import ToolCall
from tests.runs import test_egress_pages as egress
from tests.visits import Page, Visitor
from tests.walk import Walk, parked_call

NEW = "/t/acme/policies/new/"
TRY = "/t/acme/policies/try/"
ISSUES = (
    '@id("issues-go")\n@why("Issues are harmless.")\npermit (principal, action == Action::"do", '
    'resource == Tool::"create_issue");\n'
)
LENIENT = DEFAULT_POLICY + ISSUES
NO_SHELL = DEFAULT_POLICY + (
    '@id("no-shell") forbid (principal, action in Action::"call", resource) '
    'when { context.kind == "shell" };\n'
)


def past_of(walk: Walk) -> list[Past]:
    now = timezone.now()
    return list(judged_between(walk.cast.acme, now - timedelta(days=1), now + timedelta(hours=1)))


def second(walk: Walk) -> Membership:
    return walk.cast.member("Mia Second", [Role.ADMIN])


def words(page: Page) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.content.decode()))


# --- The facts of a verdict ---------------------------------------------------------------------


@pytest.mark.both_databases
def test_a_text_that_cannot_be_read_any_more_is_shown_and_followed_by_another(walk: Walk) -> None:
    """A later version of Cedar may refuse what an earlier one took."""
    PolicyVersion.objects.filter(state=PolicyVersion.State.IN_FORCE).update(text="permit (")
    admin = Visitor(walk.cast.max)
    for page in ("", "1/"):
        told = admin.get(f"/t/acme/policies/{page}")
        assert told.status_code == 200
        assert "This text cannot be read any more" in told.content.decode()
    assert admin.get("/t/acme/people/groups/").status_code == 200

    second = walk.cast.member("Second Admin", [Role.ADMIN])
    version = propose_policy(DEFAULT_POLICY, member=walk.cast.max)
    decide_policy(version, approve=True, seen=version.digest, member=second)
    assert "not-in-contract" in admin.get("/t/acme/policies/").content.decode()


def test_every_verdict_keeps_the_facts_it_was_reached_on(walk: Walk) -> None:
    walk.to_call()
    publication = walk.to_publish()
    for call in ToolCall.objects.all():
        facts = recalled(CallFacts, call.facts)
        assert facts is not None
        result = decide(DEFAULT_POLICY, facts)
        assert list(result.rules) == call.rules
        assert result.reason == call.reason
    told = recalled(PublishFacts, publication.packet.facts)
    assert told is not None
    assert (
        list(decide_publication(DEFAULT_POLICY, told).rules)
        == (publication.packet.page["policy"]["rules"])
    )


def test_a_call_that_is_judged_anew_keeps_the_facts_of_the_last_time(walk: Walk) -> None:
    packet = walk.to_call()
    call = packet.call
    assert call is not None
    before = call.facts
    walk.decide(packet)
    walk.drain()
    assert walk.fresh(call).facts == before


@pytest.mark.both_databases
def test_a_request_for_network_is_one_thing_with_its_packet(walk: Walk) -> None:
    run, lease = egress.at_work(walk)
    ask = read_ask(egress.ASK)
    grant = grants.ask(lease, ask, judge_network(run, lifecycle.contract_of(run), ask))
    walk.deliver(Job.OPEN_EGRESS_PACKET, grant.pk)
    packet = Packet.objects.get(egress=grant)

    (found,) = [each for each in past_of(walk) if each.kind == "network"]

    assert (found.key, found.packet, found.answer) == (grant.pk, packet.pk, "open")
    assert isinstance(found.facts, CallFacts)
    assert (found.facts.host, found.facts.port) == (grant.host, grant.port)


# --- A draft on the past --------------------------------------------------------------------------


@pytest.mark.both_databases
def test_a_draft_is_replayed_over_what_was_judged(walk: Walk) -> None:
    denied, approved = walk.to_call(), walk.to_call()
    walk.decide(denied, verdict=Verdict.DENY)
    walk.decide(approved)
    walk.lose_hops()
    review = walk.to_review()
    unknown = parked_call(walk)  # its verdict was stored without facts

    page = Visitor(walk.cast.max).post(TRY, text=LENIENT, days="90")

    assert page.status_code == 200
    said = words(page)
    assert (
        "Of 3 packets in 90 days it would have allowed 2, asked 1, denied 0; "
        "1 of the 2 was denied by people." in said
    )
    assert "The facts of 1 packet and of 0 other verdicts were not kept" in said
    links = {part.title: [row.address for row in part.rows] for part in page.context["tried"].parts}
    address = "/t/acme/packets/{}/"
    assert links == {
        "It allows these; people denied them": [address.format(denied.public_id)],
        "Packets it would have allowed": [
            address.format(approved.public_id),
            address.format(denied.public_id),
        ],
        "Packets it would have asked about": [address.format(review.public_id)],
    }
    for each in (denied, approved, review):
        assert address.format(each.public_id) in page.content.decode()
    assert str(unknown.public_id) not in page.content.decode()
    assert PolicyVersion.objects.filter(tenant=walk.cast.acme).count() == 1


@pytest.mark.both_databases
def test_what_went_by_itself_and_would_not_have(walk: Walk) -> None:
    run = walk.to_review().run
    shell = ToolCall.objects.filter(run=run, kind="shell").count()
    assert shell

    found = tried(walk.cast.acme, NO_SHELL, days=7, before=None)

    (part,) = [each for each in found.parts if "would have denied it" in each.title]
    assert part.group.count == shell
    assert {row.address for row in part.rows} == {f"/t/acme/runs/{run.public_id}/"}
    assert all(row.words.startswith("exec_command: ") for row in part.rows)
    assert found.trial.alone == ToolCall.objects.filter(run=run).count()


@pytest.mark.both_databases
def test_a_tenant_is_tried_on_its_own_history_alone(walk: Walk) -> None:
    walk.to_call()
    other = tried(walk.cast.globex, LENIENT, days=365, before=None)
    assert (other.trial.asked_people, other.trial.alone, other.parts) == (0, 0, [])
    assert other.sentence == "No packet in 365 days could be replayed."


@pytest.mark.both_databases
def test_days_and_the_moment_before_them_are_kept_to(walk: Walk) -> None:
    old, new = walk.to_call(), walk.to_call()
    ToolCall.objects.filter(packet=old).update(created_at=timezone.now() - timedelta(days=10))

    def packets(**asked: object) -> list[int | None]:
        form = {"days": 30, "before": None, **asked}
        found = tried(walk.cast.acme, LENIENT, **form)  # type: ignore[arg-type]
        return [past.packet for past in found.trial.packets["allow"].shown]

    assert packets() == [new.pk, old.pk]
    assert packets(days=7) == [new.pk]
    assert packets(before=timezone.now() - timedelta(days=1)) == [old.pk]


def test_a_long_list_goes_on_where_it_was_cut(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second_one = walk.to_call(), walk.to_call()
    monkeypatch.setattr(simulator, "SHOWN", 1)
    max_ = Visitor(walk.cast.max)
    page = max_.post(TRY, text=LENIENT, days="30")
    assert str(second_one.public_id) in page.content.decode()
    assert str(first.public_id) not in page.content.decode()
    before = re.search(r'name="before" value="([^"]+)"', page.content.decode())
    assert before is not None

    page = max_.post(TRY, text=LENIENT, days="30", before=before[1])
    assert str(first.public_id) in page.content.decode()
    assert str(second_one.public_id) not in page.content.decode()


def test_a_trial_that_ran_out_of_time_speaks_of_what_it_read(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    packet = walk.to_call()
    monkeypatch.setattr(simulator, "PORTION", 1)
    monkeypatch.setattr(trials, "SECONDS", -1)
    page = Visitor(walk.cast.max).post(TRY, text=LENIENT, days="30")
    call = packet.call
    assert call is not None
    since = f"{call.created_at:%Y-%m-%d %H:%M} UTC"
    assert f"Of 1 packet since {since} it would have allowed 1" in words(page)
    assert "Time was over: what was judged before" in words(page)
    assert "Go on from there" in words(page)


@pytest.mark.parametrize("asked", [{"days": "91"}, {"days": "x"}, {"before": "soon"}])
def test_days_that_no_page_offers(walk: Walk, asked: dict[str, Any]) -> None:
    assert Visitor(walk.cast.max).post(TRY, text=LENIENT, **asked).status_code == 400
    version = propose_policy(LENIENT, member=walk.cast.max)
    address = f"/t/acme/policies/{version.number}/trial/"
    query = "&".join(f"{name}={value}" for name, value in asked.items())
    assert Visitor(walk.cast.max).get(f"{address}?{query}").status_code == 400


# --- Writing one ----------------------------------------------------------------------------------


@pytest.mark.parametrize("address", [NEW, TRY])
def test_a_misspelt_word_is_refused_with_its_place(walk: Walk, address: str) -> None:
    wrong = (
        LENIENT + '@id("typo") forbid (principal, action, resource)\nwhen { context.tol == "x" };'
    )
    page = Visitor(walk.cast.max).post(address, text=wrong.replace("\n", "\r\n"))
    assert page.status_code == 422
    line = wrong.count("\n") + 1
    assert f"Line {line}, column 16 , typo : There is no fact `tol`. Did you mean `tool`?" in (
        words(page)
    )
    assert PolicyVersion.objects.filter(tenant=walk.cast.acme).count() == 1


def test_the_editor_answers_with_a_fragment_or_the_whole_page(walk: Walk) -> None:
    max_ = Visitor(walk.cast.max)
    part = max_.post(TRY, text=LENIENT, comment="Less to read.", htmx=True)
    assert "<html" not in part.content.decode()
    assert "issues-go" in part.content.decode()
    whole = max_.post(TRY, text=LENIENT, comment="Less to read.")
    assert "<html" in whole.content.decode()
    assert "Less to read." in whole.content.decode()
    assert max_.post(TRY, text="").status_code == 422


@pytest.mark.both_databases
def test_whoever_decides_sees_author_comment_difference_and_trial(walk: Walk) -> None:
    packet = walk.to_call()
    Visitor(walk.cast.max).post(NEW, text=LENIENT, comment="Issues need <nobody>.")
    version = PolicyVersion.objects.get(tenant=walk.cast.acme, number=2)
    assert version.comment == "Issues need <nobody>."
    mia = Visitor(second(walk))

    page = mia.get("/t/acme/policies/2/")
    text = page.content.decode()
    assert "Issues need &lt;nobody&gt;." in text
    assert "written by Max Weber" in words(page)
    added = [row.text for row in page.context["rows"] if row.kind == "add"]
    assert added == ISSUES.splitlines()
    assert [row for row in page.context["rows"] if row.kind == "rem"] == []
    assert "compared with version 1, which is in force" in words(page)
    assert 'hx-trigger="load' in text

    part = mia.get("/t/acme/policies/2/trial/?days=30", htmx=True)
    assert "Of 1 packet in 30 days it would have allowed 1" in words(part)
    assert f"/t/acme/packets/{packet.public_id}/" in part.content.decode()
    whole = mia.get("/t/acme/policies/2/trial/?days=30")
    assert "Of 1 packet in 30 days it would have allowed 1" in words(whole)

    form: dict[str, Any] = {
        "answer": "approve",
        "seen": version.digest,
        "against": _in_force(walk).digest,
    }
    assert mia.post("/t/acme/policies/2/decide/", **form).status_code == 302
    assert _in_force(walk).number == 2
    # What it replaced stays what it is compared with.
    assert mia.get("/t/acme/policies/2/").context["earlier"].number == 1


def _in_force(walk: Walk) -> PolicyVersion:
    return PolicyVersion.objects.get(tenant=walk.cast.acme, state=PolicyVersion.State.IN_FORCE)


# --- Deciding, and going back ---------------------------------------------------------------------


@pytest.mark.both_databases
def test_the_difference_that_was_read_must_still_be_the_difference(walk: Walk) -> None:
    one = propose_policy(LENIENT, member=walk.cast.max)
    read = _in_force(walk).digest
    other = propose_policy(NO_SHELL, member=walk.cast.max)
    mia = second(walk)
    decide_policy(other, approve=True, seen=other.digest, against=read, member=mia)

    with pytest.raises(PolicyMoved):
        decide_policy(one, approve=True, seen=one.digest, against=read, member=mia)
    assert _in_force(walk).number == other.number
    # Refusing it needs no comparison.
    assert decide_policy(one, approve=False, seen=one.digest, against=read, member=mia)


@pytest.mark.both_databases
def test_back_to_an_earlier_version_is_a_proposal_that_somebody_else_decides(walk: Walk) -> None:
    mia, first = second(walk), _in_force(walk)
    changed = propose_policy(LENIENT, member=walk.cast.max)
    decide_policy(changed, approve=True, seen=changed.digest, member=mia)

    page = Visitor(walk.cast.max).post("/t/acme/policies/1/back/")

    assert page["Location"] == "/t/acme/policies/3/"
    again = PolicyVersion.objects.get(tenant=walk.cast.acme, number=3)
    assert (again.text, again.state) == (first.text, PolicyVersion.State.PROPOSED)
    assert again.comment == "Back to version 1."
    assert again.author == walk.cast.max.user
    entry = AuditEntry.objects.filter(action="policy.proposed").latest("seq")
    assert (entry.facts["number"], entry.facts["back_to"]) == (3, 1)
    assert _in_force(walk).number == 2
    with pytest.raises(OwnPolicy):
        decide_policy(again, approve=True, seen=again.digest, member=walk.cast.max)

    decide_policy(again, approve=True, seen=again.digest, member=mia)
    assert _in_force(walk).text == first.text


def test_going_back_to_what_is_in_force_makes_no_version(walk: Walk) -> None:
    with pytest.raises(SamePolicy, match="version 1"):
        go_back(_in_force(walk), member=walk.cast.max)
    propose_policy(LENIENT, member=walk.cast.max)
    with pytest.raises(SamePolicy, match="version 1"):
        go_back(_in_force(walk), member=walk.cast.max)
    with pytest.raises(NotAllowed):
        go_back(_in_force(walk), member=walk.cast.ada)


def test_packets_of_a_kind_that_no_rule_judges_are_left_out(walk: Walk) -> None:
    packet = walk.to_call()
    Packet.objects.filter(pk=packet.pk).update(kind=PacketKind.RESUME, call=None)
    assert packet.pk not in [each.packet for each in past_of(walk)]
    assert walk.fresh(packet).state == PacketState.OPEN
