"""Scenarios H: hints that are lost, late, doubled or in the wrong order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from django.contrib.staticfiles import finders
from django.urls import reverse

from approvals.models import Packet
from approvals.states import PacketState, Verdict
from portal import live
from runs import lifecycle
from runs.lifecycle import Draft
from runs.models import Event, Run
from tests.sockets import listening
from tests.visits import Visitor, address_of, field_of, text_of
from tests.walk import Walk, parked_call


def happen(run: Run, times: int) -> None:
    """So many more events of a run that a worker holds."""
    lease = lifecycle.claim_run(run.pk)
    assert lease is not None
    for number in range(times):
        lifecycle.log(lease, [Draft("agent.message", {"turn": number})])


def events_address(run: Run) -> str:
    return reverse("runs:events", kwargs={"tenant": "acme", "public_id": run.public_id})


def run_address(run: Run) -> str:
    return reverse("runs:detail", kwargs={"tenant": "acme", "public_id": run.public_id})


def rows(text: str) -> list[int]:
    """The numbers of the events in a page or fragment, as they stand there."""
    return [int(number) for number in re.findall(r'<li id="event-(\d+)"', text)]


def test_H01_BUG29_a_socket_that_was_away_for_twenty_events(walk: Walk) -> None:
    run = walk.run()
    ada = Visitor(walk.cast.ada)
    socket = f"/ws/t/acme/runs/{run.public_id}/"
    page = rows(text_of(ada.get(run_address(run))))
    with listening(ada.client, socket) as heard:
        assert heard.word() == "look"  # whatever came between the page and the socket

    happen(run, 20)  # nobody listens

    with listening(ada.client, socket) as heard:
        assert heard.word() == "look"  # so the tab asks for what it does not have
        newer = rows(text_of(ada.get(f"{events_address(run)}?after={max(page)}", htmx=True)))
    fresh = rows(text_of(ada.get(run_address(run))))
    assert newer + page == fresh == sorted(set(fresh), reverse=True)
    assert len(newer) == 21  # the claim and the twenty
    assert rows(text_of(ada.get(f"{events_address(run)}?after={max(fresh)}", htmx=True))) == []


def test_H01_no_button_is_left_that_means_something_else(walk: Walk) -> None:
    """The tab was away while Bo decided: what it reads on its return has no form any more."""
    packet = parked_call(walk)
    ada = Visitor(walk.cast.ada)
    before = ada.get(address_of(packet, "state"), htmx=True)
    assert "data-closed" not in text_of(before)

    walk.decide(packet, walk.cast.bo, Verdict.DENY)

    after = text_of(ada.get(address_of(packet, "state"), htmx=True))
    assert "Nothing more can be decided here" in after
    assert "Bo Lindqvist" in after
    assert field_of(ada.get(address_of(packet)), "seen") is None


def test_H02_a_tab_that_only_believes_to_be_live(walk: Walk) -> None:
    """Its socket is dead and it has heard nothing: the server looks at the version it read."""
    packet = parked_call(walk)
    ada = Visitor(walk.cast.ada)
    page = ada.get(address_of(packet))
    seen, token = field_of(page, "seen"), field_of(page, "token")
    walk.decide(packet, walk.cast.bo, Verdict.DENY)

    answer = ada.decide(packet, seen=seen, token=token)

    assert answer.status_code == 409
    assert "already denied by Bo Lindqvist" in text_of(answer)
    # And a tab that hears nothing asks by itself from time to time.
    script = finders.find("portal/js/live.js")
    assert script is not None
    assert "setInterval" in Path(script).read_text()
    assert 'hx-trigger="look from:body"' in text_of(page)


def test_H02_a_hint_says_when_hints_do_not_arrive(walk: Walk, settings: Any) -> None:
    """With the broker away a tab is told that it is not live; it then lives on its own asking."""
    settings.CHANNEL_URL = "unix:///nowhere.sock?db=0"
    with listening(Visitor(walk.cast.ada).client, "/ws/t/acme/queue/") as heard:
        assert heard.word() == "late"


def test_H05_hints_twice_and_in_the_wrong_order(walk: Walk) -> None:
    """A hint has no content that could be out of date: the state is always read anew."""
    packet = parked_call(walk)
    ada = Visitor(walk.cast.ada)
    with listening(ada.client, f"/ws/t/acme/packets/{packet.public_id}/") as heard:
        assert heard.word() == "look"
        walk.decide(packet, walk.cast.bo)
        for topic in (live.run_topic(packet.run_id), live.packet_topic(packet.pk)) * 3:
            live.changed(topic)
        assert heard.word() == "look"
        states = [text_of(ada.get(address_of(packet, "state"), htmx=True)) for _ in range(3)]
    assert all("Approved" in each or "approved" in each for each in states)
    assert walk.fresh(packet).state == PacketState.APPROVED


def test_H05_the_same_rows_asked_for_twice_are_the_same_rows(walk: Walk) -> None:
    run = walk.run()
    happen(run, 5)
    ada = Visitor(walk.cast.ada)
    address = f"{events_address(run)}?after=2"
    first, second = (text_of(ada.get(address, htmx=True)) for _ in range(2))
    assert first == second
    assert rows(first) == list(range(Event.objects.filter(run=run).count(), 2, -1))


def test_H05_a_packet_that_is_decided_before_its_opening_was_heard_of(walk: Walk) -> None:
    """The queue that learns of both at once shows it settled, and only once."""
    packet = parked_call(walk)
    opened = packet.opened_at.isoformat()
    walk.decide(packet)

    news = Visitor(walk.cast.ada).get(
        f"/t/acme/queue/news/?since={opened.replace('+', '%2B')}&row={packet.public_id}", htmx=True
    )

    assert news.status_code == 200
    assert Packet.objects.filter(state=PacketState.OPEN).count() == 0
    assert "new" not in re.sub(r"<[^>]*>", "", text_of(news)).lower().split()
