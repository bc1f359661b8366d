"""How a decision was come to: kept with it, told to its person, and a reason for nothing."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from approvals import attention, bundle
from approvals.bundle_form import lines_of
from approvals.models import Decision, Packet
from approvals.states import PacketState, Verdict
from approvals.verifier import verified
from portal.canonical import digest
from portal.models import AuditEntry
from portal.roles import Role
from tests.visits import Visitor, address_of, field_of, text_of
from tests.walk import Walk, parked_call

CLAIMS = {"hunks": 12, "of": 41, "whole": True, "sections": 3, "visible_ms": 3800}


def kept(packet: Packet) -> dict[str, Any]:
    found = Decision.objects.get(packet=packet).attention
    assert found is not None
    return dict(found)


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The portal's clock, so many seconds on."""
    real = attention._ms
    monkeypatch.setattr(attention, "_ms", lambda moment: real(moment) + int(1000 * seconds))


@pytest.mark.both_databases
def test_time_size_and_what_was_on_screen_are_kept_with_the_decision(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    packet = walk.to_review()
    ada = Visitor(walk.cast.ada)
    view = field_of(ada.get(address_of(packet)), "view")
    later(monkeypatch, 4)

    ada.decide(packet, view=view, claims=json.dumps(CLAIMS))

    found = kept(packet)
    assert 4000 <= found["ms"] < 60_000
    assert found["size"] == {"files": 1, "lines": 2}
    assert found["claimed"] == CLAIMS
    entry = AuditEntry.objects.get(action="packet.approved", subject=f"packet:{packet.pk}")
    assert entry.facts["attention"] == digest(found)
    page = ada.get(address_of(packet))
    assert text_of(page).count("12 of 41 hunks were on screen.") == 2  # said now, and to stay
    assert "You decided in" in text_of(page)
    # Nobody else is told of it there.
    assert "hunks were on screen" not in text_of(Visitor(walk.cast.bo).get(address_of(packet)))
    assert "hunks were on screen" not in text_of(Visitor(walk.cast.max).get(address_of(packet)))


def test_the_evidence_has_it_and_a_change_is_noticed(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    packet = parked_call(walk)
    ada = Visitor(walk.cast.ada)
    ada.decide(packet, view=field_of(ada.get(address_of(packet)), "view"), claims='{"of":41}')
    data = b"".join(bundle.exported(walk.cast.acme))
    assert b'"claimed":{"of":41}' in data
    assert verified(lines_of(io.BytesIO(data))).holds
    slower, body = {**kept(packet), "ms": 600_000}, bundle._decision_body
    monkeypatch.setattr(bundle, "_decision_body", lambda each: body(each) | {"attention": slower})
    changed = b"".join(bundle.exported(walk.cast.acme))
    problems = verified(lines_of(io.BytesIO(changed))).problems
    assert any("attention" in each.text for each in problems)


@pytest.mark.parametrize("view", ["", "made up", "x" * 5000, "e30:1abc:def"])
def test_a_view_that_is_none_of_ours_is_no_reason_and_measures_nothing(
    walk: Walk, view: str
) -> None:
    packet = parked_call(walk)
    Visitor(walk.cast.ada).decide(packet, view=view, claims=json.dumps(CLAIMS))
    assert walk.fresh(packet).state == PacketState.APPROVED
    assert Decision.objects.get(packet=packet).attention is None
    entry = AuditEntry.objects.get(action="packet.approved", subject=f"packet:{packet.pk}")
    assert "attention" not in entry.facts


def test_a_view_is_of_one_person_and_one_packet(walk: Walk) -> None:
    packet, other = parked_call(walk), parked_call(walk)
    ada, bo = Visitor(walk.cast.ada), Visitor(walk.cast.bo)
    view = field_of(ada.get(address_of(packet)), "view")
    ada.decide(other, view=view)
    bo.decide(packet, view=view)
    assert not Decision.objects.filter(attention__isnull=False).exists()


def test_a_refusal_does_not_begin_the_time_anew(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    packet = parked_call(walk)
    ada = Visitor(walk.cast.ada)
    view = field_of(ada.get(address_of(packet)), "view")
    later(monkeypatch, 90)
    again = ada.decide(packet, "deny", view=view)  # without a reason
    assert again.status_code == 422
    assert field_of(again, "view") == view
    ada.decide(packet, "deny", view=view, comment="No.")
    assert kept(packet)["ms"] >= 90_000


@pytest.mark.parametrize(
    ("claims", "left"),
    [
        ("", {}),
        ("no json", {}),
        ("[1]", {}),
        ("[" * 3000, {}),
        ('{"hunks": -1, "of": true, "whole": 1, "sections": 1e300, "visible_ms": "9"}', {}),
        ('{"hunks": 99999999999, "other": "<script>", "of": 3}', {"of": 3}),
    ],
)
def test_of_the_pages_own_words_only_numbers_are_kept(
    walk: Walk, claims: str, left: dict[str, int]
) -> None:
    packet = parked_call(walk)
    ada = Visitor(walk.cast.ada)
    ada.decide(packet, view=field_of(ada.get(address_of(packet)), "view"), claims=claims)
    assert kept(packet)["claimed"] == left


# --- My decisions -----------------------------------------------------------------------------


@pytest.fixture
def decided(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Somebody decides a packet of their own after so many seconds."""

    def decide(member: Any, answer: str = "approve", *, seconds: int = 6) -> None:
        found = {
            "opened_at": "2026-01-01T00:00:00+00:00",
            "ms": seconds * 1000,
            "size": {"bytes": 31},
            "claimed": {"hunks": 2, "of": 2, "whole": True},
        }
        monkeypatch.setattr(attention, "measured", lambda *_: found)
        Visitor(member).decide(parked_call(walk), answer, comment="Words.")

    return decide


def test_a_person_sees_their_own_streak_and_nobody_elses(walk: Walk, decided: Any) -> None:
    decided(walk.cast.ada)
    decided(walk.cast.ada, "deny")
    for seconds in (4, 6, 9):
        decided(walk.cast.ada, seconds=seconds)
    decided(walk.cast.bo, seconds=77)

    own = text_of(Visitor(walk.cast.ada).get("/t/acme/queue/mine/"))

    assert "3 approvals in a row, median 6 s." in own
    assert own.count(">Packet ") == 5
    assert "1 min" not in own
    assert 'id="together"' not in own
    other = text_of(Visitor(walk.cast.bo).get("/t/acme/queue/mine/"))
    assert other.count(">Packet ") == 1
    assert "in a row" not in other


def test_admins_and_auditors_see_only_what_is_nobodys(walk: Walk, decided: Any) -> None:
    for member in (walk.cast.ada, walk.cast.bo):
        decided(member)
    for member in (walk.cast.max, walk.cast.aud):
        assert "Shown from 3 people on" in text_of(Visitor(member).get("/t/acme/queue/mine/"))
    decided(walk.cast.member("Dee Third", [Role.REVIEWER]), seconds=8)
    for member in (walk.cast.max, walk.cast.aud):
        page = text_of(Visitor(member).get("/t/acme/queue/mine/"))
        assert "3 answers, median 6 s; of 3 on a diff 3 had all of it on screen." in page
        assert "Ada Obi" not in page
        assert "Dee" not in page


def test_words() -> None:
    streak = attention.streak_of([(Verdict.APPROVE, None), (Verdict.DENY, None)])
    assert streak.words == "1 approval in a row"
    half = {"ms": 61_000, "size": {"files": 1}, "claimed": {"hunks": 1, "of": 3}}
    assert attention.words(half) == "You decided in 1 min; 1 of 3 or more hunks were on screen."
    none = {"ms": 400, "size": {"files": 1, "lines": 20}, "claimed": {}}
    assert attention.words(none) == "You decided in 0 s; 1 file, 20 lines."
    assert attention.words(None) == ""
