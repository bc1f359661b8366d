"""Who else has a page open: told while it is true, to those who may know, and nothing more."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.core.cache import cache

from approvals.states import PacketState
from portal import live, people, presence
from portal.roles import Role
from tests.approvals.stages import in_force, rule
from tests.sockets import listening
from tests.visits import Visitor, address_of, text_of
from tests.walk import Walk, parked_call


def eventually(true: Callable[[], bool], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def socket_of(packet: Any) -> str:
    return f"/ws/t/acme/packets/{packet.public_id}/"


def test_others_are_told_who_looks_and_nobody_is_told_of_themselves(walk: Walk) -> None:
    packet = parked_call(walk)
    ada, bo = Visitor(walk.cast.ada), Visitor(walk.cast.bo)
    assert "also here" not in text_of(ada.get(address_of(packet)))

    with listening(ada.client, socket_of(packet)) as heard:
        assert heard.word() == "look"
        assert "also here" not in text_of(ada.get(address_of(packet, "state"), htmx=True))
        with listening(bo.client, socket_of(packet)):
            assert heard.word() == "look"  # the one who was there hears that somebody came
            assert "Bo Lindqvist also here" in text_of(
                ada.get(address_of(packet, "state"), htmx=True)
            )
            assert "Ada Obi also here" in text_of(bo.get(address_of(packet)))
        assert heard.word() == "look"  # and that they went, at once
        assert "also here" not in text_of(ada.get(address_of(packet, "state"), htmx=True))
    assert presence.here(live.packet_topic(packet.pk)) == frozenset()


def test_the_hint_itself_says_nothing_of_anybody(walk: Walk) -> None:
    packet = parked_call(walk)
    with listening(Visitor(walk.cast.ada).client, socket_of(packet)) as heard:
        assert heard.word() == "look"
        with listening(Visitor(walk.cast.bo).client, socket_of(packet)):
            assert heard.output() == {"type": "websocket.send", "bytes": None, "text": "look"}


def test_only_people_of_the_tenant_who_may_see_it_are_shown(walk: Walk) -> None:
    packet = parked_call(walk)
    place = live.packet_topic(packet.pk)
    cast = walk.cast
    for person in (cast.bo.user_id, cast.vic.user_id, cast.eve.user_id):
        live.client().eval(presence._STAY, 1, f"imprimatur:here:{place}", f"{person}:tab")
    ada = Visitor(cast.ada)
    assert "Bo Lindqvist and Vic Moreau also here" in text_of(ada.get(address_of(packet)))
    people.remove_member(cast.vic.pk, member=cast.max)
    told = text_of(ada.get(address_of(packet)))
    assert "Bo Lindqvist also here" in told
    assert "Vic" not in told.partition("packet-here")[2][:300]


def test_what_a_dead_process_left_is_over_by_itself(walk: Walk) -> None:
    packet = parked_call(walk)
    place = live.packet_topic(packet.pk)
    soon = presence._STAY.replace(str(presence.LASTS), "2")
    live.client().eval(soon, 1, f"imprimatur:here:{place}", f"{walk.cast.bo.user_id}:tab")
    assert presence.here(place) == {walk.cast.bo.user_id}
    assert eventually(lambda: presence.here(place) == frozenset())


def test_an_open_tab_stays_longer_than_its_entry_lasts(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "BEAT", 0.2)
    monkeypatch.setattr(presence, "_STAY", presence._STAY.replace(str(presence.LASTS), "2"))
    packet = parked_call(walk)
    place = live.packet_topic(packet.pk)
    with listening(Visitor(walk.cast.bo).client, socket_of(packet)) as heard:
        assert heard.word() == "look"
        time.sleep(3)
        assert presence.here(place) == {walk.cast.bo.user_id}
    assert presence.here(place) == frozenset()


def test_a_page_without_redis_says_less_and_works(walk: Walk, settings: Any) -> None:
    packet = parked_call(walk)
    settings.CHANNEL_URL = "unix:///nowhere.sock?db=0"
    settings.CACHES = {
        "default": {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": "unix:///nowhere.sock?db=1",
        }
    }
    page = Visitor(walk.cast.ada).get(address_of(packet))
    assert page.status_code == 200
    assert "also here" not in text_of(page)


# --- what is new ----------------------------------------------------------------------------------


def news(page: Any) -> str:
    found = re.search(r'<div id="packet-news".*?</div>', text_of(page), re.DOTALL)
    assert found is not None
    return " ".join(re.sub(r"<[^>]*>", "", found[0]).split())


def test_what_happened_since_somebody_looked_is_one_line(walk: Walk) -> None:
    cache.clear()
    third = walk.cast.member("Dee Third", [Role.PUBLISHER])
    in_force(walk, rule('@needs("2") @hold("15m")'))
    packet = walk.to_call()
    ada = Visitor(walk.cast.ada)
    assert news(ada.get(address_of(packet))) == ""
    assert news(ada.get(address_of(packet))) == ""

    walk.decide(packet, walk.cast.bo)

    told = news(ada.get(address_of(packet)))
    assert told.startswith("Since you last opened it: Bo Lindqvist approved, ")
    assert news(ada.get(address_of(packet))) == "", "it was told once"
    # One's own answer is no news to oneself; that the packet is held is.
    walk.decide(packet, walk.cast.ada)
    told = news(ada.get(address_of(packet)))
    assert told.startswith("Since you last opened it: it is held until ")
    assert "Ada" not in told
    assert news(Visitor(third).get(address_of(packet))) == "", (
        "the first time all of it is there to be read"
    )


def test_an_open_page_goes_on_from_where_it_was_drawn(walk: Walk) -> None:
    cache.clear()
    packet = parked_call(walk)
    ada = Visitor(walk.cast.ada)
    page = ada.get(address_of(packet))
    mark = page.context["since"].mark
    state = f"{address_of(packet, 'state')}?since={mark}"
    assert news(ada.get(state, htmx=True)) == ""
    walk.decide(packet, walk.cast.bo)
    assert news(ada.get(state, htmx=True)).startswith("Since you opened it: Bo Lindqvist approved")
    # What no page of ours says is no question.
    assert news(ada.get(f"{address_of(packet, 'state')}?since=-1", htmx=True)) == ""


def test_a_newer_packet_is_news(walk: Walk) -> None:
    cache.clear()
    packet = walk.to_review()
    ada = Visitor(walk.cast.ada)
    ada.get(address_of(packet))
    type(packet).objects.filter(pk=packet.pk).update(
        state=PacketState.SUPERSEDED, settled_at=packet.opened_at
    )
    told = news(ada.get(address_of(packet)))
    assert told.startswith("Since you last opened it: a newer packet took its place")
