"""What is found by words, number and digest, by whom, and what is read for it."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from approvals import queries, search
from approvals.indexing import listed_under, searchable
from approvals.models import Packet, PacketWord
from approvals.queries import PAGE
from approvals.search import sought
from portal import tenancy
from portal.handoff import Job
from portal.roles import Role
from runs.models import Run
from tests.approvals import test_canaries
from tests.approvals.stages import asked
from tests.approvals.test_delegation import handed
from tests.approvals.test_queue_page import more_like, queue_of, shown
from tests.visits import Visitor, text_of
from tests.walk import Walk, parked_call

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.both_databases]

INDEX = "approvals_packetword"


def found(walk: Walk, text: str, **wanted: str) -> list[str]:
    return shown(queue_of(Visitor(walk.cast.ada), q=text, **wanted))


def listed(packet: Packet) -> list[bytes]:
    rows = PacketWord.objects.filter(packet=packet).order_by("word")
    return [bytes(word) for word in rows.values_list("word", flat=True)]


def read_by(do: Any) -> list[str]:
    """The statements that it put to the database."""
    with CaptureQueriesContext(connection) as captured:
        do()
    return [each["sql"] or "" for each in captured.captured_queries]


def test_all_words_in_any_order_each_by_its_beginning(walk: Walk) -> None:
    packet = parked_call(walk)
    one = [str(packet.public_id)]
    for text in (
        *("create_issue", "issue", "ISS", "issue create", "send request", "  the   issue "),
        *(packet.run.version.contract.name, "olu adeyemi", "Adeyemi iss"),
        *(packet.digest[:4], packet.digest, f"{packet.digest[:4]} {packet.digest[4:9].upper()}"),
        *(str(packet.number), str(packet.run.number)),
    ):
        assert found(walk, text) == one, text
        assert found(walk, text, show="all", kind="call") == one, text
        assert found(walk, text, kind="question") == [], text
    for text in ("ssue", "issue nowhere", "nowhere", "%", "_", "- -", packet.digest[1:9], "987654"):
        assert found(walk, text) == [], text


def test_the_words_of_the_row_that_somebody_changed_lead_nowhere_else(walk: Walk) -> None:
    """What is listed and not so any more is not shown."""
    packet = parked_call(walk)
    Packet.objects.filter(pk=packet.pk).update(words=" something else ")
    assert found(walk, "create_issue") == []


def test_every_packet_is_listed_where_it_is_opened(walk: Walk) -> None:
    walk.to_review()
    test_canaries.opened(walk)
    packets = list(Packet.objects.all())
    assert {each.kind for each in packets} == {"call", "publication"}
    assert any(each.canary for each in packets)
    for packet in packets:
        assert packet.words == searchable(packet.page)
        assert listed(packet) == listed_under(packet.words, packet.digest)
    for packet in packets:
        assert packet.pk in (sought(packet.digest, packet.tenant_id).keys or ())


def test_packets_of_before_are_listed_by_the_migration(walk: Walk) -> None:
    packets = [walk.to_review(), *(parked_call(walk) for _ in range(2))]
    before = {each.pk: (each.words, listed(each)) for each in packets}
    migration = import_module("approvals.migrations.0026_words_of_all")
    PacketWord.objects.all().delete()
    Packet.objects.update(words="")
    with connection.schema_editor(atomic=False) as editor, pytest.MonkeyPatch.context() as patch:
        patch.setattr(migration, "PORTION", 2)
        migration.fill(apps, editor)
        # Again, as after an interruption.
        migration.fill(apps, editor)
    assert {each.pk: (walk.fresh(each).words, listed(each)) for each in packets} == before


def test_inv07_nobody_finds_the_words_of_another_tenant(walk: Walk, database: str) -> None:
    packet = parked_call(walk)
    acme, globex = walk.cast.acme.pk, walk.cast.globex.pk
    for text in ("create_issue", packet.digest[:12], str(packet.number), str(packet.run.number)):
        assert sought(text, acme).keys == frozenset({packet.pk})
        assert sought(text, globex).keys == frozenset()
        page = Visitor(walk.cast.eve).get(f"/t/globex/queue/?show=all&q={text}")
        assert shown(page) == []
    # Even where the code asks for the wrong one's.
    with tenancy.scope(globex):
        assert PacketWord.objects.exists() == (database == "sqlite")
        assert bool(sought("create_issue", acme).keys) == (database == "sqlite")


def test_nothing_of_a_packet_is_read_for_words_that_none_has(walk: Walk) -> None:
    more_like(parked_call(walk), 30)
    visitor = Visitor(walk.cast.ada)
    for scope in ("mine", "all", "decided"):
        for text in ("nowhere", "issue nowhere", "nowhere else"):
            read = read_by(lambda t=text, s=scope: queue_of(visitor, q=t, show=s))
            assert any(INDEX in each for each in read)
            assert not [each for each in read if '"effect"' in each], (scope, text)


def test_the_list_of_a_word_is_read_by_its_index(walk: Walk, database: str) -> None:
    """Also by the tenant's own role, for which PostgreSQL compares nothing that gives away rows."""
    packet = parked_call(walk)
    with tenancy.scope(walk.cast.acme.pk):
        (statement,) = [
            each for each in read_by(lambda: sought("issue", packet.tenant_id)) if INDEX in each
        ]
        with connection.cursor() as cursor:
            if database == "postgres":
                # So small a table is read as a whole, unless this is impossible.
                cursor.execute("SET enable_seqscan = off")
                cursor.execute("SET enable_bitmapscan = off")
            told = "EXPLAIN (COSTS OFF)" if database == "postgres" else "EXPLAIN QUERY PLAN"
            cursor.execute(f"{told} {statement}")
            plan = "\n".join(str(each[-1]) for each in cursor.fetchall())
            if database == "postgres":
                cursor.execute("RESET enable_seqscan")
                cursor.execute("RESET enable_bitmapscan")
    if database == "postgres":
        (condition,) = [each for each in plan.splitlines() if "Index Cond" in each]
        assert "tenant_id = " in condition
        assert "word >= " in condition
        assert "word < " in condition
        assert "current_setting" in condition  # the wall stands before it
        assert "Filter" not in plan
    else:
        assert "SEARCH" in plan
        assert "(tenant_id=? AND word>? AND word<?)" in plan


def pages(
    walk: Walk, text: str, follows: str = "after", **wanted: str
) -> list[tuple[list[str], int]]:
    """Every page from the first to the last: its rows, and how many packets were looked at."""
    visitor, all_pages, place = Visitor(walk.cast.ada), [], ""
    while True:
        page = queue_of(visitor, q=text, **{follows: place}, **wanted).context["page"]
        all_pages.append(([str(row.public_id) for row in page.rows], page.looked))
        place = page.next_cursor
        if not place:
            return all_pages


@pytest.mark.parametrize("few", [0, 10_000])
@pytest.mark.parametrize("near", [(3, 7), (PAGE, PAGE + 5), (PAGE + 5, 2 * PAGE), (500, 900)])
def test_common_and_rare_words_are_found_on_the_same_pages(
    walk: Walk, monkeypatch: pytest.MonkeyPatch, few: int, near: tuple[int, int]
) -> None:
    """Wherever it is looked first, every packet is shown once and in its place."""
    first = parked_call(walk)
    more_like(
        first,
        2 * PAGE + 20,
        words=lambda at: first.words + ("third " if at % 3 == 0 else ""),
        # Pairs that expire at the same moment.
        expires_at=lambda at: first.expires_at + timedelta(seconds=at // 2),
    )
    monkeypatch.setattr(search, "FEW", few)
    monkeypatch.setattr(queries, "NEAR", near[0])
    monkeypatch.setattr(queries, "FAR", near[1])

    def right(text: str, order: str, **wanted: str) -> None:
        expected = Packet.objects.filter(words__contains=f" {text}").order_by(order, "pk")
        seen = pages(walk, text, "before" if order == "-number" else "after", **wanted)
        rows = [row for page, _ in seen for row in page]
        assert rows == [str(each) for each in expected.values_list("public_id", flat=True)]
        if few:
            assert {looked for _, looked in seen} == {0}
            assert [len(page) for page, _ in seen[:-1]] == [PAGE] * (len(seen) - 1)

    for scope in ("mine", "all"):
        right("create", "expires_at", show=scope)
        right("third", "expires_at", show=scope, kind="call")
    Packet.objects.update(state="denied", settled_at=timezone.now())
    right("create", "-number", show="decided")
    right("third", "-number", show="decided")


def test_a_page_says_how_far_common_words_were_looked_for(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = parked_call(walk)
    more_like(first, 30, words=lambda at: " odd " if at % 2 else " even ")
    monkeypatch.setattr(search, "FEW", 5)
    monkeypatch.setattr(queries, "NEAR", 10)
    monkeypatch.setattr(queries, "FAR", 20)
    page = queue_of(Visitor(walk.cast.ada), q="odd even")
    assert shown(page) == []
    assert "Not among the next 20 packets" in text_of(page)
    assert text_of(page).count('rel="next"') == 1
    assert "Look further" in text_of(page)
    end = queue_of(Visitor(walk.cast.ada), q="odd even", after=page.context["page"].next_cursor)
    assert "Look further" not in text_of(end)
    some = queue_of(Visitor(walk.cast.ada), q="odd")
    assert 0 < len(shown(some)) < 15
    assert "20 packets looked at" in text_of(some)


@pytest.mark.parametrize("few", [0, 10])
def test_words_are_looked_for_among_what_waits_in_anothers_name(
    walk: Walk, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    packet = asked(walk, '@stages("1 of group:security")')
    ria = walk.cast.member("Ria Reviewer", [Role.REVIEWER])
    monkeypatch.setattr(search, "FEW", few)
    monkeypatch.setattr(queries, "NEAR", 1)
    more_like(packet, 3, words=lambda at: " elsewhere ")
    text, one = "create_issue", [str(packet.public_id)]
    assert shown(queue_of(Visitor(ria), q=text, show="mine")) == []
    handed(walk.cast.ada, ria)
    assert shown(queue_of(Visitor(ria), q=text, show="mine")) == one
    assert shown(queue_of(Visitor(ria), q="else where", show="mine")) == []
    assert len(shown(queue_of(Visitor(ria), q="elsewhere", show="mine"))) == 3
    assert "for Ada Obi" in text_of(queue_of(Visitor(ria), q=text, show="mine"))


def test_what_is_named_is_shown_however_far_it_is(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = parked_call(walk)
    packets = more_like(first, 30, words=lambda at: " 77th ", number=lambda at: 700 + at)
    last = packets[-1]
    Packet.objects.filter(pk=last.pk).update(number=77, words=" ")
    monkeypatch.setattr(search, "FEW", 5)
    monkeypatch.setattr(queries, "NEAR", 5)
    monkeypatch.setattr(queries, "FAR", 10)
    page = shown(queue_of(Visitor(walk.cast.ada), q="77"))
    assert page[-1] == str(last.public_id)
    assert len(page) == 10
    Run.objects.filter(pk=first.run_id).update(number=77)
    assert str(first.public_id) in shown(queue_of(Visitor(walk.cast.ada), q="77"))


def test_newcomers_of_these_words_are_counted(walk: Walk) -> None:
    first = parked_call(walk)
    before = first.opened_at - timedelta(seconds=1)
    for text, count in (("create iss", 1), ("nowhere", 0), (str(first.number), 1)):
        filters = queries.Filters(scope="all", text=text)
        assert queries.newcomers(walk.cast.ada, filters, before) == count
    assert queries.newcomers(walk.cast.ada, queries.Filters(text="issue"), timezone.now()) == 0


def test_the_list_of_a_deleted_tenants_packets_goes_with_none_of_them(walk: Walk) -> None:
    """The rows of packets stay, as evidence that auditors look through; so do their words."""
    from approvals.deletion import delete_tenant

    packet = parked_call(walk)
    before = listed(packet)
    delete_tenant(walk.cast.acme, typed="acme", member=walk.cast.max)
    walk.deliver(Job.WIND_DOWN, walk.cast.acme.pk)
    assert listed(packet) == before
