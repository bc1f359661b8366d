"""Scenarios D: what a browser may be made to do."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.conf import settings
from django.urls import reverse

from approvals import bundle, seal
from approvals.models import Decision, Packet, Publication
from approvals.publishers import BODY_LIMIT
from approvals.states import PacketState, Verdict
from portal.models import Membership
from portal.roles import Role
from portal.signin import make_link
from runs.models import Run
from tests.addresses import ADDRESSES, Things
from tests.cast import REPAIR, call, say
from tests.visits import Visitor, address_of, field_of, text_of
from tests.walk import Walk, parked_call

WRITES = sorted(name for name, entry in ADDRESSES.items() if entry.post != 405)


def test_D01_no_form_without_a_token(walk: Walk) -> None:
    things = Things.made_by(walk)
    everyone = everything(walk)
    for name in WRITES:
        for browser in (Visitor(everyone, csrf=True), Visitor(csrf=True)):
            answer = browser.post(things.address(name), answer="approve", move="again")
            assert answer.status_code == 403, name
    assert not things.changed()


def everything(walk: Walk) -> Membership:
    """One more person, with every role."""
    return walk.cast.member("Omni Potent", list(Role))


def test_D01_a_token_does_not_help_another_site(walk: Walk) -> None:
    packet = parked_call(walk)
    ada = Visitor(walk.cast.ada, csrf=True)
    token = field_of(ada.get(address_of(packet)), "csrfmiddlewaretoken")
    assert token is not None
    form = {"answer": "approve", "seen": packet.digest, "csrfmiddlewaretoken": token}

    def sent(**headers: str) -> int:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return ada.client.post(address_of(packet, "decide"), form, headers=given).status_code

    assert sent(Origin="https://evil.example") == 403
    assert sent(Origin="null") == 403
    assert not Decision.objects.exists()
    assert sent(Origin="http://testserver") == 302


def test_D01_htmx_and_fetch_send_it_in_a_header(walk: Walk) -> None:
    packet = parked_call(walk)
    ada = Visitor(walk.cast.ada, csrf=True)
    page = text_of(ada.get(address_of(packet)))
    assert "X-CSRFToken" in page  # for every request htmx makes
    token = ada.client.get(address_of(packet)).context["csrf_token"]
    form = {"answer": "approve", "seen": packet.digest}
    header = {"HX-Request": "true", "X-CSRFToken": "0" * 64}

    assert ada.client.post(address_of(packet, "decide"), form, headers=header).status_code == 403
    header["X-CSRFToken"] = str(token)
    assert ada.client.post(address_of(packet, "decide"), form, headers=header).status_code == 302


def test_D01_looking_never_changes_anything(walk: Walk) -> None:
    things = Things.made_by(walk)
    visitor = Visitor(everything(walk))
    for name in ADDRESSES:
        for htmx in (False, True):
            visitor.get(things.address(name) + "?answer=approve&move=again", htmx=htmx)
    assert not things.changed()


def test_D02_a_decision_that_is_sent_again(walk: Walk) -> None:
    packet = walk.to_call()
    ada = Visitor(walk.cast.ada)
    first = ada.decide(packet, token="the one click")
    walk.drain()

    again = ada.decide(packet, token="the one click")
    ada.post(reverse("portal:sign_out"))
    signed_out = ada.decide(packet, token="the one click")
    elsewhere = Visitor(walk.cast.ada)  # another browser, another session
    later = elsewhere.decide(packet, token="the one click")
    other_form = elsewhere.decide(packet, token="another click")
    other_person = Visitor(walk.cast.bo).decide(packet, token="the one click")
    walk.drain()

    assert [first.status_code, again.status_code, later.status_code] == [302, 302, 302]
    assert first["Location"] == again["Location"] == later["Location"]
    assert signed_out["Location"].startswith(settings.LOGIN_URL)
    assert [other_form.status_code, other_person.status_code] == [409, 409]
    assert Decision.objects.count() == 1
    assert len(walk.tracker.requests) == 1


def test_D03_a_session_from_before_signing_in(walk: Walk) -> None:
    victim, attacker = Visitor(), Visitor()
    fixed = attacker.client.session
    fixed.save()
    for browser in (victim, attacker):
        browser.client.cookies[settings.SESSION_COOKIE_NAME] = str(fixed.session_key)

    link = make_link(walk.cast.ada.user)
    assert victim.get(link).status_code == 200  # looking uses nothing up
    assert victim.post(link).status_code == 302

    mine = victim.client.cookies[settings.SESSION_COOKIE_NAME].value
    assert mine != fixed.session_key
    assert victim.get("/t/acme/queue/").status_code == 200
    assert attacker.get("/t/acme/queue/").status_code == 302
    # Signing out ends the session itself, not only this browser's copy of its name.
    victim.post(reverse("portal:sign_out"))
    victim.client.cookies[settings.SESSION_COOKIE_NAME] = mine
    assert victim.get("/t/acme/queue/").status_code == 302
    assert Visitor().post(link).status_code == 410


def test_D04_no_page_can_be_framed(walk: Walk) -> None:
    packet = parked_call(walk)
    for page in (
        Visitor(walk.cast.ada).get(address_of(packet)),
        Visitor(walk.cast.ada).get("/t/acme/queue/"),
        Visitor(walk.cast.ada).get("/t/acme/nothing/"),
        Visitor(walk.cast.ada).decide(packet, seen=""),
        Visitor().get(reverse("portal:sign_in")),
    ):
        assert page["X-Frame-Options"] == "DENY"
        assert "frame-ancestors 'none'" in page["Content-Security-Policy"]
        assert "unsafe" not in page["Content-Security-Policy"]


@pytest.mark.parametrize(
    "comment",
    ["x" * (1 << 20), "@everyone " * 10_000, "\n" * 100_000 + "x", "x" * (50 << 20)],
    ids=["1 MB", "10 000 mentions", "100 000 lines", "50 MB"],
)
def test_D06_a_huge_comment(walk: Walk, comment: str) -> None:
    packet = parked_call(walk)
    ada = Visitor(walk.cast.ada)

    answer = ada.decide(packet, "deny", comment=comment)

    assert answer.status_code in (413, 422)
    assert "Nothing was decided" in text_of(answer)
    assert not Decision.objects.exists()
    assert ada.get(address_of(packet)).status_code == 200
    assert ada.decide(packet, "deny", comment="Short.").status_code == 302
    assert walk.fresh(packet).state == PacketState.DENIED


def test_D06_the_longest_words_an_agent_has_fit_into_the_draft(walk: Walk) -> None:
    packet = walk.to_review([REPAIR[1], [say("@everyone closes #1 \n" * 20_000)]])
    walk.decide(packet, verdict=Verdict.APPROVE, comment="y" * 10_000)
    walk.drain()

    publication = Publication.objects.get(packet=packet)
    assert len(publication.body) <= BODY_LIMIT
    assert Run.objects.get(pk=packet.run_id).status == "published"


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</textarea><svg onload=alert(1)>",
    "[click](javascript:alert(1))",
    "![x](https://evil.example/x.png)",
    "{{ 7*7 }}{% load static %}",
    "safe\u202etxt.exe\u200b",
    "\x1b[31mred\x1b]8;;https://evil.example\x07",
)
# What none of them may become in a page of ours.
ACTS = ("<script>alert", "<img src=x", "<svg onload", 'href="javascript:', "\u202e", "\x1b")


def test_D05_injection_in_comments_titles_and_reasons(walk: Walk) -> None:
    words = " ".join(HOSTILE)
    asked = [call("first", "create_issue", title=words[:200])]
    packet = walk.to_call([asked, [say(words)]])
    ada = Visitor(walk.cast.ada)
    pages = [ada.get(address_of(packet)), ada.get("/t/acme/queue/")]
    assert ada.decide(packet, "deny", comment=words.replace("\x1b", "")).status_code == 302
    walk.drain()
    run = packet.run
    pages += [
        ada.get(address_of(packet)),
        ada.get("/t/acme/queue/?show=all"),
        ada.get(reverse("runs:detail", kwargs={"tenant": "acme", "public_id": run.public_id})),
        Visitor(walk.cast.aud).get("/t/acme/evidence/"),
    ]
    for page in pages:
        assert page.status_code == 200
        assert not [each for each in ACTS if each in text_of(page)], page.request["PATH_INFO"]
    # A bundle keeps the words as they were: as JSON text, never as a line of its own.
    lines = b"".join(bundle.exported(walk.cast.acme)).split(b"\n")
    assert all(line.startswith(b"{") for line in lines if line)


def test_D05_injection_in_what_goes_to_a_forge(walk: Walk) -> None:
    words = " ".join(HOSTILE)
    packet = walk.to_review([REPAIR[1], [say(words)]])
    walk.decide(packet, comment=words.replace("\x1b", ""))
    walk.drain()
    body = Publication.objects.get(packet=packet).body
    quoted = body[body.index("alert") - 20 :].replace("&#8203;", "")
    # Every mark that Markdown would act on stands behind a backslash.
    assert not re.search(r"(?<!\\)[<\[\]!`_]", quoted)
    assert "\u202e" not in body
    assert "\x1b" not in body


def test_D12_a_tab_that_was_open_for_days(walk: Walk, settings: Any) -> None:
    """Its session is over, its token is another sign-in's, its packet's time has run out."""
    packet = parked_call(walk)
    tab = Visitor(walk.cast.ada, csrf=True)
    form = {"answer": "approve", "seen": packet.digest, "token": "t"}
    form["csrfmiddlewaretoken"] = field_of(tab.get(address_of(packet)), "csrfmiddlewaretoken") or ""

    # Signed in anew in another tab: the form's token belongs to the session before.
    tab.client.force_login(walk.cast.ada.user)
    tab.client.cookies[settings.CSRF_COOKIE_NAME] = "n" * 32
    refused: Any = tab.client.post(address_of(packet, "decide"), form)
    assert refused.status_code == 403
    assert "reload" in text_of(refused).lower()

    # The signing key was replaced, so nobody's session is one any more.
    fresh = Visitor(walk.cast.ada)
    settings.SECRET_KEY = "replaced " * 8
    settings.SECRET_KEY_FALLBACKS = []
    unknown = fresh.client.post(address_of(packet, "decide"), form)
    assert unknown["Location"].startswith(settings.LOGIN_URL)
    later = Visitor(walk.cast.ada)
    walk.run_out(packet)
    late = later.client.post(address_of(packet, "decide"), form)
    assert late.status_code == 409
    assert not Decision.objects.exists()
    assert walk.fresh(packet).state == PacketState.OPEN


def test_D12_a_page_from_before_an_upgrade(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page whose shape is another version's says less, or more, than it seems to."""
    packet = parked_call(walk)
    ada = Visitor(walk.cast.ada)
    monkeypatch.setattr(seal, "SHAPE", seal.SHAPE + 1)
    answer = ada.decide(packet)
    assert answer.status_code == 409
    assert not Decision.objects.exists()
    assert ada.decide(packet, "deny", comment="Ask anew.").status_code == 302
    assert Packet.objects.get(pk=packet.pk).state == PacketState.DENIED
