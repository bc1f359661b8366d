"""The queue: who sees what, in which order, and what a page that stands still is told."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from approvals.editing import edit_packet
from approvals.indexing import list_packet
from approvals.models import Packet
from approvals.queries import PAGE
from approvals.states import Verdict
from approvals.undo import undo_approval
from portal.models import Membership, Tenant
from portal.roles import Role
from runs.models import Run
from tests.approvals.stages import outward_wants
from tests.visits import Page, Visitor, address_of, text_of
from tests.walk import Walk, parked_call


def queue_of(visitor: Visitor, **wanted: str) -> Page:
    return visitor.get(f"{reverse('approvals:queue', args=['acme'])}?{urlencode(wanted)}")


def shown(page: Page) -> list[str]:
    """The ids of the rows that wait, in their order."""
    return re.findall(r'<li class="row" id="packet-([0-9a-f-]{36})"', text_of(page))


def news_of(visitor: Visitor, since: str, *rows: str, **wanted: str) -> Page:
    query = urlencode([("since", since), *(("row", row) for row in rows), *wanted.items()])
    return visitor.get(f"{reverse('approvals:queue_news', args=['acme'])}?{query}", htmx=True)


def test_whose_answer_a_packet_can_use(walk: Walk) -> None:
    packet = parked_call(walk)
    cast = walk.cast
    mixed = cast.member("Mix Ed", [Role.OPERATOR, Role.REVIEWER])
    Packet.objects.filter(pk=packet.pk).update(excluded=[*packet.excluded, mixed.user.person_id])
    sees = {
        name: str(packet.public_id) in shown(queue_of(Visitor(member), show="mine"))
        for name, member in {**cast.everyone, "mixed": mixed}.items()
        if name != "eve"
    }
    assert [name for name, sees_it in sees.items() if sees_it] == ["ada", "bo"]
    assert shown(queue_of(Visitor(cast.vic), show="all")) == [str(packet.public_id)]


def test_who_answers_nothing_begins_with_everyones(walk: Walk) -> None:
    packet = parked_call(walk)
    for member in (walk.cast.vic, walk.cast.olu):
        page = queue_of(Visitor(member))
        assert shown(page) == [str(packet.public_id)]
        assert "Waiting for anyone" in text_of(page)
        assert "?show=mine" not in text_of(page)
    assert "Your roles answer no packets" in text_of(queue_of(Visitor(walk.cast.vic), show="mine"))
    assert "Waiting for you" in text_of(queue_of(Visitor(walk.cast.ada)))


def test_an_answered_packet_waits_for_others_only(walk: Walk) -> None:
    packet = parked_call(walk)
    Packet.objects.filter(pk=packet.pk).update(needed=2)
    walk.decide(packet)
    assert shown(queue_of(Visitor(walk.cast.ada))) == []
    page = queue_of(Visitor(walk.cast.bo))
    assert shown(page) == [str(packet.public_id)]
    assert "Needs 1 more of 2" in text_of(page)


def test_soonest_expiry_first_and_a_place_that_does_not_move(walk: Walk) -> None:
    packets = [parked_call(walk) for _ in range(4)]
    now = timezone.now()
    for packet, minutes in zip(packets, (50, 10, 2000, 30), strict=True):
        Packet.objects.filter(pk=packet.pk).update(expires_at=now + timedelta(minutes=minutes))
    page = queue_of(Visitor(walk.cast.ada))
    first, second, third, last = (str(packets[at].public_id) for at in (1, 3, 0, 2))
    assert shown(page) == [first, second, third, last]
    assert re.findall(r'<h2 class="group">([^<]+?) <span>(\d+)', text_of(page)) == [
        ("Expires within 15 minutes", "1"),
        ("Expires within a day", "2"),
        ("Later", "1"),
    ]


def more_like(first: Packet, count: int, **changes: Callable[[int], object]) -> list[Packet]:
    """`count` more packets; what differs between them is worked out from their place."""
    values = {
        field.attname: getattr(first, field.attname)
        for field in Packet._meta.concrete_fields
        if field.attname not in ("id", "public_id", "number", "call_id")
    }
    packets = Packet.objects.bulk_create(
        Packet(**{**values, "number": 100 + at, **{name: of(at) for name, of in changes.items()}})
        for at in range(count)
    )
    for packet in packets:
        list_packet(packet)
    return packets


def test_a_long_queue_is_read_page_by_page(walk: Walk) -> None:
    first = parked_call(walk)
    now = timezone.now()
    # Pairs that expire at the same moment: the key decides their order.
    more_like(first, PAGE + 10, expires_at=lambda at: now + timedelta(hours=1 + at // 2))
    visitor = Visitor(walk.cast.ada)
    page = queue_of(visitor)
    seen = shown(page)
    assert len(seen) == PAGE
    following = re.search(r'rel="next" href="\?([^"]+)"', text_of(page))
    assert following
    address = f"{reverse('approvals:queue', args=['acme'])}?{following.group(1)}"
    rest = shown(visitor.get(address.replace("&amp;", "&")))
    assert len(rest) == 11
    assert not set(seen) & set(rest)
    # Between marks: a moment in an address may end so as well.
    assert "99+<" not in text_of(page)


def test_words_and_numbers_narrow_the_list(walk: Walk) -> None:
    call, publication = parked_call(walk), walk.to_review()
    visitor = Visitor(walk.cast.ada)
    one, other = str(call.public_id), str(publication.public_id)
    assert shown(queue_of(visitor, kind="publication")) == [other]
    assert shown(queue_of(visitor, q="create_issue")) == [one]
    assert shown(queue_of(visitor, q=call.digest[:12])) == [one]
    assert shown(queue_of(visitor, q=f"{publication.digest[:4]} {publication.digest[4:8]}")) == [
        other
    ]
    Packet.objects.filter(pk=call.pk).update(number=700_001)
    Run.objects.filter(pk=publication.run_id).update(number=700_002)
    assert shown(queue_of(visitor, q="700001")) == [one]
    assert shown(queue_of(visitor, q="700 002")) == [other]
    contract = publication.run.version.contract.name
    assert sorted(shown(queue_of(visitor, q=contract.upper()))) == sorted([one, other])
    assert shown(queue_of(visitor, q="nothing like this")) == []
    assert "No open packet is like that" in text_of(queue_of(visitor, q="nothing like this"))


def test_addresses_that_make_no_sense_show_the_queue(walk: Walk) -> None:
    packet = parked_call(walk)
    visitor = Visitor(walk.cast.ada)
    for wanted in (
        {"after": "soon"},
        {"after": "2026-13-45~x"},
        {"kind": "x"},
        {"show": "x"},
        {"q": "\x00"},
    ):
        assert shown(queue_of(visitor, **wanted)) == [str(packet.public_id)], wanted


def test_news_count_what_came_and_mark_what_went(walk: Walk) -> None:
    old = parked_call(walk)
    visitor = Visitor(walk.cast.bo)
    page = queue_of(visitor)
    since = page.context["now"]
    quiet = news_of(visitor, since, str(old.public_id))
    assert 'data-news="0"' in text_of(quiet)
    assert shown(quiet) == []

    parked_call(walk)
    walk.decide(old, verdict=Verdict.DENY)
    news = text_of(news_of(visitor, since, str(old.public_id)))
    assert 'data-news="1"' in news
    assert "1 new packet, show it" in news
    assert f'id="packet-{old.public_id}"' in news
    assert "hx-swap-oob" in news
    assert "Denied" in news


def test_news_want_to_know_since_when(walk: Walk) -> None:
    visitor = Visitor(walk.cast.ada)
    assert news_of(visitor, "").status_code == 400
    assert news_of(visitor, "yesterday").status_code == 400
    assert news_of(visitor, timezone.now().isoformat(), "not-an-id").status_code == 400


def test_decided_packets_keep_their_own_words(walk: Walk) -> None:
    denied, expired = parked_call(walk), parked_call(walk)
    walk.decide(denied, verdict=Verdict.DENY, comment="Not on a Friday.")
    walk.run_out(expired)
    walk.sweep()
    visitor = Visitor(walk.cast.ada)
    page = text_of(queue_of(visitor, show="decided"))
    assert ">Denied</span>" in page
    assert ">Expired</span>" in page
    assert page.index(str(expired.public_id)) < page.index(str(denied.public_id))
    assert "Not on a Friday." in text_of(queue_of(visitor))  # decided by you today


def test_the_head_counts_what_the_lists_only_begin(walk: Walk) -> None:
    first = parked_call(walk)
    soon = timezone.now() + timedelta(minutes=3)
    waiting = more_like(first, PAGE + 10, expires_at=lambda at: soon)
    for packet in more_like(first, 12, number=lambda at: 900 + at, needed=lambda at: 2):
        walk.decide(packet, comment="Fine with me.")
    page = queue_of(Visitor(walk.cast.ada))
    figures = dict(
        re.findall(r"<dt>(?:<a [^>]*>)?([^<]+)(?:</a>)?</dt><dd>([^<]+)</dd>", text_of(page))
    )
    assert figures == {
        "wait for you": str(len(waiting) + 1),
        "expire within 5 minutes": str(len(waiting)),
        "decided by you today": "12",
        "runs under way": "1",
    }
    # What is done stands under all that waits.
    assert "Fine with me." not in text_of(page)
    end = queue_of(Visitor(walk.cast.ada), after=page.context["page"].next_cursor)
    assert len(end.context["today"]) == 10
    assert text_of(end).count("you wrote: “Fine with me.”") == 10


def test_the_menu_of_tenants_is_the_same_on_every_page(walk: Walk) -> None:
    elsewhere = Tenant.objects.create(name="aardvark works", slug="aardvark")
    Membership.objects.create(tenant=elsewhere, user=walk.cast.ada.user, roles=[Role.AUDITOR])
    visitor = Visitor(walk.cast.ada)
    for address in (reverse("approvals:queue", args=["acme"]), reverse("portal:settings")):
        names = [each["name"] for each in visitor.get(address).context["shell"].tenants]
        assert names == ["aardvark works", "Acme"], address
    assert visitor.get(reverse("approvals:queue", args=["aardvark"])).status_code == 200


def test_the_empty_queue_teaches(walk: Walk) -> None:
    page = text_of(queue_of(Visitor(walk.cast.ada)))
    assert "Nothing waits for you" in page


# --- What is new to whoever looks ---------------------------------------------------------------


def new_on_rows(page: Page) -> dict[str, str]:
    """What the rows say happened since this person looked, by packet; only where they say so."""
    found = re.findall(
        r'id="news-([0-9a-f-]{36})"[^>]*><span class="mark is-live" title="since you looked: '
        r'([^"]*)"',
        text_of(page),
    )
    return dict(found)


def two_wanted(walk: Walk) -> list[Packet]:
    walk.cast.member("Dee Third", [Role.PUBLISHER, Role.REVIEWER])
    outward_wants(walk, '@needs("2")')
    return [parked_call(walk) for _ in range(3)]


@pytest.mark.both_databases
def test_a_row_says_what_happened_since_this_person_had_it_open(walk: Walk) -> None:
    cast = walk.cast
    packet, other, unopened = two_wanted(walk)
    ada, bo = Visitor(cast.ada), Visitor(cast.bo)
    for each in (packet, other):
        ada.get(address_of(each))
    bo.get(address_of(packet))
    for each in (packet, unopened):
        walk.decide(each, cast.bo, comment="Looks right.")
    assert new_on_rows(queue_of(ada)) == {str(packet.public_id): "Bo Lindqvist approved"}
    assert new_on_rows(queue_of(bo, show="all")) == {}, "one knows what one did"
    assert new_on_rows(queue_of(Visitor(cast.vic))) == {}, "nobody is told of what they never saw"
    ada.get(address_of(packet))
    assert new_on_rows(queue_of(ada)) == {}

    second = edit_packet(
        other.public_id, member=cast.bo, seen=other.digest, text='{"title": "Another"}'
    )
    told = {str(second.public_id): "it took the place of one that you had open"}
    assert new_on_rows(queue_of(ada)) == told


def test_a_new_round_of_votes_is_new(walk: Walk) -> None:
    walk.hold_policy()
    packet = walk.decide(parked_call(walk), walk.cast.bo)
    ada = Visitor(walk.cast.ada)
    ada.get(address_of(packet))
    undo_approval(packet.public_id, member=walk.cast.bo, seen=1, reason="")
    told = "Bo Lindqvist undid the approval, and all votes are void"
    assert new_on_rows(queue_of(ada)) == {str(packet.public_id): told}


def test_a_page_that_stands_still_is_told_too_and_what_it_shows_is_seen(walk: Walk) -> None:
    packet, other, unopened = two_wanted(walk)
    ids = [str(each.public_id) for each in (packet, other, unopened)]
    ada, since = Visitor(walk.cast.ada), timezone.now().isoformat()
    for each in (packet, other):
        ada.get(address_of(each))
    for each in (packet, unopened):
        walk.decide(each, walk.cast.bo)
    page = news_of(ada, since, *ids)
    assert new_on_rows(page) == {ids[0]: "Bo Lindqvist approved"}
    # What was opened and is as it was seen is drawn too: its mark goes where it stood.
    assert set(re.findall(r'id="news-([0-9a-f-]{36})" hx-swap-oob', text_of(page))) == {*ids[:2]}
    # A packet's own page in the background tells nobody; one in front of somebody does.
    for query, left in (("", {ids[0]: "Bo Lindqvist approved"}), ("?seen=1", {})):
        ada.get(f"{address_of(packet, 'state')}{query}", htmx=True)
        assert new_on_rows(news_of(ada, since, *ids)) == left
    assert new_on_rows(news_of(Visitor(walk.cast.eve), since, *ids)) == {}


def test_what_is_new_costs_one_question_however_many_rows_there_are(walk: Walk) -> None:
    packets = two_wanted(walk)
    ada = Visitor(walk.cast.ada)
    queue_of(ada)

    def questions() -> int:
        with CaptureQueriesContext(connection) as asked:
            queue_of(ada)
        return len(asked)

    before = questions()
    for each in packets:
        ada.get(address_of(each))
    assert questions() == before
    for each in packets:
        walk.decide(each, walk.cast.bo)
    voted = questions()
    assert len(new_on_rows(queue_of(ada))) == 3
    for each in packets:
        ada.get(address_of(each))
    assert voted == questions() + 1
