"""The packet page: its order, its two kinds of truth, and the answers that can be given on it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from approvals import watching
from approvals.models import Decision, Packet
from approvals.states import PacketState, Verdict
from tests.approvals.stages import outward_wants
from tests.cast import REPAIR, call, say
from tests.visits import Visitor, address_of, field_of, text_of
from tests.walk import Walk, call_of, candidate_of, parked_call, publication_packets

HOSTILE = "<img src=x onerror=alert(1)> \u202etxet\u202c [click](https://evil.example) \x1b[2J"
QUESTION = [
    [call("ask", "ask_person", question="Which test is right?", choices=["Old", "New"])],
    *REPAIR[1:],
]


def test_from_top_to_bottom(walk: Walk) -> None:
    page = text_of(Visitor(walk.cast.ada).get(address_of(walk.to_review())))
    order = [
        '<h1 class="effect">',
        "Who must decide",
        "Verified by the portal",
        "Written by the agent",
        'class="tabs"',
        ">Timeline<",
        'id="decision-form"',
    ]
    assert [page.index(each) for each in order] == sorted(page.index(each) for each in order)


def test_what_the_agent_wrote_stays_text(walk: Walk) -> None:
    packet = walk.to_review([*REPAIR[:-1], [say(HOSTILE)]])
    page = text_of(Visitor(walk.cast.ada).get(address_of(packet)))
    assert "<img src=x" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert 'title="U+202E RIGHT-TO-LEFT OVERRIDE">U+202E</span>' in page
    assert 'href="https://evil.example"' not in page


def test_every_argument_stands_on_the_page_in_full(walk: Walk) -> None:
    long = "a line that is long enough\n" * 200
    packet = parked_call(walk, arguments={"title": "<b>bold</b>", "body": long, "tags": ["x"]})
    page = text_of(Visitor(walk.cast.ada).get(address_of(packet)))
    assert page.count("a line that is long enough") == 200
    assert "&lt;b&gt;bold&lt;/b&gt;" in page
    assert "3 of 3 arguments shown in full" in page


def test_a_call_is_shown_with_what_the_agent_said_about_it(walk: Walk) -> None:
    asking = [
        [say("Reading first."), call("read", "exec_command", cmd="cat adder.py")],
        [say("The team should know."), call("file", "create_issue", title="It subtracts")],
    ]
    packet = walk.to_call([*asking, *REPAIR[1:]])
    assert packet.agent_words == "The team should know."
    visitor = Visitor(walk.cast.ada)
    page = text_of(visitor.get(address_of(packet)))
    assert page.index("Written by the agent") < page.index("The team should know.")
    assert "The team should know." not in json.dumps(packet.page), "it is not under the digest"
    assert "parked, no worker held" in page
    visitor.decide(packet)
    assert "parked, no worker held" not in text_of(visitor.get(address_of(packet)))


def test_looking_changes_nothing(walk: Walk) -> None:
    packet = walk.to_review()
    visitor = Visitor(walk.cast.ada)
    addresses = [
        address_of(packet),
        address_of(packet, "state"),
        address_of(packet, "print"),
        address_of(packet, "page"),
        *(f"{address_of(packet)}{tab}/" for tab in ("diff", "files", "receipts", "discussion")),
    ]
    for address in addresses:
        with CaptureQueriesContext(connection) as asked:
            assert visitor.get(address).status_code == 200, address
        assert [q["sql"] for q in asked if not reads_only(q["sql"])] == [], address


def reads_only(sql: str) -> bool:
    """Also with a sub-query of its own, as long as nothing in it writes."""
    if sql.startswith("WITH "):
        return not re.search(r"\b(INSERT|UPDATE|DELETE)\b", sql)
    return sql.startswith(("SELECT", "SET", "SAVE"))


def test_an_answer_is_sent_on_the_digest_of_the_page(walk: Walk) -> None:
    packet = parked_call(walk)
    visitor = Visitor(walk.cast.ada, csrf=True)
    page = visitor.get(address_of(packet))
    form: dict[str, Any] = {
        name: field_of(page, name) for name in ("csrfmiddlewaretoken", "seen", "token")
    }
    assert form["seen"] == packet.digest
    sent = visitor.post(address_of(packet, "decide"), answer="approve", **form)
    assert (sent.status_code, sent["Location"]) == (302, address_of(packet))
    decision = Decision.objects.get(packet=packet)
    assert (decision.digest, decision.token) == (packet.digest, form["token"])
    after = text_of(visitor.get(address_of(packet)))
    assert "What came of it" in after
    assert 'id="decision-form"' not in after


def test_the_same_click_twice_is_one_answer(walk: Walk) -> None:
    packet = parked_call(walk)
    visitor = Visitor(walk.cast.ada)
    assert [visitor.decide(packet).status_code for _ in range(2)] == [302, 302]
    assert Decision.objects.filter(packet=packet).count() == 1


@pytest.mark.parametrize("answer", ["deny", "changes"])
def test_holding_back_needs_words_and_says_so(walk: Walk, answer: str) -> None:
    packet = parked_call(walk)
    page = Visitor(walk.cast.ada).decide(packet, answer, comment="  ")
    assert page.status_code == 422
    assert "Nothing was decided." in text_of(page)
    assert 'aria-invalid="true"' in text_of(page)
    assert walk.fresh(packet).state == PacketState.OPEN


def test_a_finding_is_acknowledged_without_script_as_well(walk: Walk) -> None:
    hidden = [
        "*** Begin Patch",
        "*** Add File: repo/note.py",
        "+# Only admins\u202e may do this.",
        "*** End Patch",
    ]
    packet = walk.to_review([*REPAIR[:2], [call("hide", "apply_patch", patch=hidden)], *REPAIR[2:]])
    visitor = Visitor(walk.cast.ada)
    parts = text_of(visitor.get(address_of(packet))).split("<noscript>")[1:]
    (plain,) = [each for each in parts if 'name="typed"' in each.split("</noscript>")[0]]
    assert "adder.git" in plain.split("</noscript>")[0]
    page = visitor.decide(packet, typed=["", ""])
    assert page.status_code == 422
    assert "1 finding to acknowledge" in text_of(page)
    assert walk.fresh(packet).state == PacketState.OPEN
    assert visitor.decide(packet, typed=["adder.git", ""]).status_code == 302
    assert walk.fresh(packet).state == PacketState.APPROVED


def test_another_digest_decides_nothing_and_keeps_the_words(walk: Walk) -> None:
    packet = parked_call(walk)
    page = Visitor(walk.cast.ada).decide(packet, "deny", seen="0" * 64, comment="Too wide.")
    assert page.status_code == 409
    assert "Too wide.</textarea>" in text_of(page)
    assert field_of(page, "seen") == packet.digest
    assert walk.fresh(packet).state == PacketState.OPEN


def test_somebody_was_faster(walk: Walk) -> None:
    packet = parked_call(walk)
    walk.decide(packet, walk.cast.bo, Verdict.DENY, comment="Not needed.")
    page = Visitor(walk.cast.ada).decide(packet)
    assert page.status_code == 409
    assert "already denied by Bo Lindqvist" in text_of(page)
    assert "Not needed." in text_of(page)


def test_a_superseded_packet_shows_what_is_different_now(walk: Walk) -> None:
    again = [[call("more", "exec_command", cmd="echo '# more' >> adder.py")], [say("Better.")]]
    packet = walk.to_review(REPAIR, again)
    walk.decide(packet, verdict=Verdict.REQUEST_CHANGES, comment="Say why.")
    walk.drain()
    first, second = publication_packets(packet.run)
    assert first.pk == packet.pk
    page = Visitor(walk.cast.ada).decide(first)
    assert page.status_code == 409
    text = text_of(page)
    assert f"What is different in packet {second.number}" in text
    assert "<code>candidate.digest</code>" in text
    assert address_of(second) in text


def test_a_question_is_answered_by_a_choice_or_in_words(walk: Walk) -> None:
    packet = walk.to_call(QUESTION, http=False, ask=True)
    visitor = Visitor(walk.cast.ada)
    page = text_of(visitor.get(address_of(packet)))
    assert re.findall(r'name="choice" value="([^"]+)"', page) == ["Old", "New"]
    assert 'value="changes"' not in page
    assert visitor.decide(packet).status_code == 422
    assert visitor.decide(packet, choice="New", comment="The old one is wrong.").status_code == 302
    assert call_of(packet).answer == "New\n\nThe old one is wrong."


def test_what_a_person_counts_as(walk: Walk) -> None:
    packet = walk.to_review()
    said = {
        name: text_of(Visitor(member).get(address_of(packet)))
        for name, member in walk.cast.everyone.items()
        if name in ("ada", "vic", "olu", "mona")
    }
    assert "You count as publisher." in said["ada"]
    assert 'id="decision-form"' in said["ada"]
    assert "Deciding needs the role publisher." in said["vic"]
    assert "It can ask and never decides." in said["mona"]
    for name in ("vic", "olu", "mona"):
        assert 'id="decision-form"' not in said[name], name


def test_news_of_an_open_packet_leave_the_form_alone(walk: Walk) -> None:
    packet = parked_call(walk)
    visitor = Visitor(walk.cast.bo)
    news = text_of(visitor.get(address_of(packet, "state"), htmx=True))
    assert 'id="decide"' not in news
    walk.decide(packet)
    news = text_of(visitor.get(address_of(packet, "state"), htmx=True))
    assert 'id="decide"' in news
    assert "Approved" in news


def test_a_packet_that_no_longer_fits_its_digest_cannot_be_approved(walk: Walk) -> None:
    packet = parked_call(walk)
    Packet.objects.filter(pk=packet.pk).update(page={**packet.page, "target": "POST elsewhere"})
    page = text_of(Visitor(walk.cast.ada).get(address_of(packet)))
    assert "This page no longer fits its digest." in page
    assert re.search(r'data-answer="approve"[^>]*aria-disabled="true"', page)


def test_the_bytes_of_the_digest_can_be_taken_away(walk: Walk) -> None:
    import hashlib

    packet = parked_call(walk)
    answer = Visitor(walk.cast.vic).get(address_of(packet, "page"))
    assert hashlib.sha256(answer.content).hexdigest() == packet.digest


# --- candidates --------------------------------------------------------------------------------


def test_one_file_is_a_fragment_or_a_page(walk: Walk) -> None:
    candidate = candidate_of(walk.to_review())
    address = reverse("approvals:candidate_file", args=["acme", candidate.public_id, 0])
    visitor = Visitor(walk.cast.vic)
    fragment, page = text_of(visitor.get(address, htmx=True)), text_of(visitor.get(address))
    assert fragment.lstrip().startswith("<article")
    assert "<!doctype html>" in page
    for each in (fragment, page):
        assert "return a <ins>+</ins> b" in each.replace('<span class="o">', "").replace(
            "</span>", ""
        )
    assert visitor.get(address.replace("/0/", "/99/")).status_code == 404
    assert visitor.get(f"{address}?start=x").status_code == 400


def test_what_an_agent_made_is_saved_and_never_shown(walk: Walk) -> None:
    candidate = candidate_of(walk.to_review())
    visitor = Visitor(walk.cast.vic)
    tray = visitor.get(reverse("approvals:candidate_tray", args=["acme", candidate.public_id, 0]))
    patch = visitor.get(reverse("approvals:candidate_patch", args=["acme", candidate.public_id]))
    for answer in (tray, patch):
        assert answer["Content-Disposition"].startswith("attachment;")
        assert answer["Content-Type"] == "application/octet-stream"
        assert answer["Content-Security-Policy"] == "default-src 'none'; sandbox"
        assert answer["X-Content-Type-Options"] == "nosniff"
    assert patch.content.startswith(b"diff --git")
    assert b"Repaired the sign." in tray.content


def test_what_the_reader_is_to_it_is_told_while_it_is_open_and_stays_true(walk: Walk) -> None:
    packet = parked_call(walk)
    ada = Visitor(walk.cast.ada)

    def told(page: Any) -> list[str]:
        return re.findall(r'<p id="standing"[^>]*>(.*?)</p>', text_of(page))

    assert told(ada.get(address_of(packet))) == ["You count as reviewer."]
    walk.decide(packet)  # in another tab
    assert told(ada.get(address_of(packet, "state"), htmx=True)) == [""]
    assert told(ada.get(address_of(packet))) == [""]


def test_the_page_says_what_denying_leads_to(walk: Walk) -> None:
    ada = Visitor(walk.cast.ada)
    review, call_page = (
        ada.get(address_of(walk.to_review())),
        ada.get(address_of(parked_call(walk))),
    )
    told, over = "the agent is told it word for word", "needs a reason, and ends the run"
    assert over in text_of(review)
    assert told not in text_of(review)
    assert told in text_of(call_page)
    assert over not in text_of(call_page)


def test_news_are_told_as_far_as_the_packet_was_read(walk: Walk) -> None:
    """What comes while a page is made would be told on it, and yet not count as seen."""
    outward_wants(walk, '@needs("2")')
    packet = parked_call(walk)
    ada = walk.cast.ada
    read = Packet.objects.select_related("run").get(pk=packet.pk)
    since = watching.looked(read, ada)
    walk.decide(packet, walk.cast.bo)
    assert watching.news_of(read, ada, since) is None
    again = Packet.objects.select_related("run").get(pk=packet.pk)
    news = watching.news_of(again, ada, since)
    assert news is not None
    assert [each.words for each in news.changes] == ["Bo Lindqvist approved"]
