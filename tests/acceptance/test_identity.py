"""Scenarios C: who may do what, and what others may know."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.urls import reverse
from django.utils import timezone

from approvals.models import Decision
from approvals.states import PacketState
from portal import live, people
from portal.models import Membership
from portal.roles import Role
from tests.addresses import Things, routes
from tests.sockets import closed_with, listening
from tests.visits import Visitor, address_of, text_of
from tests.walk import Walk, parked_call


def test_C01_the_requester_approves_their_own_packet(walk: Walk) -> None:
    Membership.objects.filter(pk=walk.cast.olu.pk).update(roles=[Role.OPERATOR, Role.REVIEWER])
    packet = parked_call(walk)

    answer = Visitor(walk.cast.olu).decide(packet)

    assert answer.status_code == 403
    assert "separation of duties" in text_of(answer)
    assert not Decision.objects.exists()
    assert Visitor(walk.cast.ada).decide(packet).status_code == 302


def test_C01_nor_does_a_machine_of_theirs(walk: Walk) -> None:
    packet = parked_call(walk)
    assert Visitor(walk.cast.mona).decide(packet).status_code == 403
    assert not Decision.objects.exists()


def test_C02_the_approver_is_removed_between_view_and_click(walk: Walk) -> None:
    packet = parked_call(walk)
    ada = Visitor(walk.cast.ada)
    assert ada.get(address_of(packet)).status_code == 200
    socket = f"/ws/t/acme/packets/{packet.public_id}/"

    with listening(ada.client, socket) as heard:
        assert heard.word() == "look"
        people.remove_member(walk.cast.ada.pk, member=walk.cast.max)
        assert heard.closed() == 4404

    assert ada.decide(packet).status_code == 404
    assert ada.get(address_of(packet)).status_code == 404
    assert not Decision.objects.exists()
    assert closed_with(ada.client, socket) == 4404


def _expired(member: Membership) -> None:
    Session.objects.update(expire_date=timezone.now() - timedelta(seconds=1))


def _another_password(member: Membership) -> None:
    member.user.set_password("correct horse battery staple")
    member.user.save(update_fields=["password"])


def _somebody_elses(member: Membership) -> None:
    row = Session.objects.get()
    said = row.get_decoded() | {"_auth_user_id": "0"}
    Session.objects.update(session_data=Session.objects.encode(said))


@pytest.mark.parametrize("end", [_expired, _another_password, _somebody_elses])
def test_C02_H07_a_socket_ends_with_the_session_behind_it(
    walk: Walk, end: Callable[[Membership], None]
) -> None:
    ada = Visitor(walk.cast.ada)
    with listening(ada.client, "/ws/t/acme/queue/") as heard:
        assert heard.word() == "look"
        end(walk.cast.ada)
        live.changed(live.person_topic(walk.cast.ada.user_id))
        assert heard.closed() == 4401


def test_C02_H07_a_socket_ends_when_its_session_does_although_nothing_happens(walk: Walk) -> None:
    ada = Visitor(walk.cast.ada)
    Session.objects.update(expire_date=timezone.now() + timedelta(seconds=2))
    with listening(ada.client, "/ws/t/acme/queue/") as heard:
        assert heard.word() == "look"
        assert heard.closed() == 4401


def test_C03_the_approvers_role_is_lowered_between_view_and_click(walk: Walk) -> None:
    packet = parked_call(walk)
    ada = Visitor(walk.cast.ada)
    assert ada.get(address_of(packet)).status_code == 200
    people.set_roles(walk.cast.ada.pk, [Role.VIEWER], member=walk.cast.max)

    assert ada.decide(packet).status_code == 403

    assert not Decision.objects.exists()
    assert walk.fresh(packet).state == PacketState.OPEN


def as_seen(page: Any) -> tuple[int, str]:
    """Status and body, without what differs from request to request, and with the address."""
    differs = r"[A-Za-z0-9]{64}|/t/[^\"'<> ]*|data-now=\"[^\"]*\""
    return page.status_code, re.sub(differs, "·", text_of(page))


# Addresses with more in them than the tenant, which nevertheless name nothing of Acme's: hers, or
# the installation's.
HER_OWN = ("approvals:polic", "runs:credential_new", "runs:drill")


@pytest.mark.parametrize("htmx", [False, True], ids=["page", "fragment"])
def test_C05_C07_every_address_of_another_tenant(walk: Walk, htmx: bool) -> None:
    """Globex's admin asks for Acme's things, by Acme's address and by Globex's own.

    The answer is the one for things that do not exist, to the letter.
    """
    things = Things.made_by(walk)
    nowhere, eve = things.nowhere(), Visitor(walk.cast.eve)
    compared = 0
    for name, parts in routes().items():
        for tenant in ("acme", "globex") if "tenant" in parts else ():
            if tenant == "globex" and (len(parts) == 1 or name.startswith(HER_OWN)):
                continue
            for ask in (eve.get, eve.post):
                there = ask(things.address(name, tenant), htmx=htmx)
                none = ask(nowhere.address(name, tenant), htmx=htmx)
                if there.status_code == none.status_code == 405:
                    continue
                assert there.status_code == 404, (name, tenant, ask)
                assert as_seen(there) == as_seen(none), name
                compared += 1
    assert compared > 80
    assert not things.changed()


def test_C05_an_unknown_tenant_looks_like_a_foreign_one(walk: Walk) -> None:
    eve = Visitor(walk.cast.eve)
    foreign, none = eve.get("/t/acme/queue/"), eve.get("/t/nowhere/queue/")
    assert as_seen(foreign) == as_seen(none)
    assert foreign.status_code == 404


@pytest.mark.parametrize(
    "socket",
    ["/ws/t/acme/queue/", "/ws/t/acme/runs/", "/ws/t/acme/packets/{}/", "/ws/t/acme/runs/{}/"],
)
def test_C06_sockets_of_another_tenant(walk: Walk, socket: str) -> None:
    packet = parked_call(walk)
    public_id = packet.public_id if "packets" in socket else packet.run.public_id
    path = socket.format(public_id)

    assert closed_with(Visitor(walk.cast.eve).client, path) == 4404
    assert closed_with(Visitor(walk.cast.eve).client, path.replace("acme", "globex", 1)) in (
        (4404,) if "{}" in socket else (None,)
    )
    assert closed_with(Visitor().client, path) == 4401
    with listening(Visitor(walk.cast.ada).client, path) as heard:
        assert heard.word() == "look"


def test_C06_a_socket_from_another_site_is_refused(walk: Walk) -> None:
    ada = Visitor(walk.cast.ada)
    path = "/ws/t/acme/queue/"
    assert closed_with(ada.client, path, origin="https://evil.example") is not None
    assert closed_with(ada.client, path) is None


def test_C08_downloads(walk: Walk) -> None:
    packet = walk.to_review()
    candidate = packet.candidate
    assert candidate is not None
    route = {"tenant": "acme", "public_id": candidate.public_id}
    patch = reverse("approvals:candidate_patch", kwargs=route)
    tray = reverse("approvals:candidate_tray", kwargs=route | {"index": 0})

    for path in (patch, tray):
        answer = Visitor(walk.cast.vic).get(path)
        assert answer.status_code == 200
        assert answer["Content-Disposition"].startswith("attachment")
        assert answer["Content-Type"] == "application/octet-stream"
        assert "sandbox" in answer["Content-Security-Policy"]
        assert Visitor(walk.cast.eve).get(path).status_code == 404
        assert Visitor().get(path).status_code == 302  # to the sign-in page
    for trick in ("../", "..%2f", "%2e%2e/", "0/../../", "-1/", "999/"):
        assert Visitor(walk.cast.vic).get(tray.removesuffix("0/") + trick).status_code in (404, 400)
    # There is no address that serves a directory of stored files.
    for folder in ("/blobs/", "/media/", "/data/", "/static/", "/static/../", "/var/"):
        assert Visitor(walk.cast.vic).get(folder).status_code == 404


def test_C11_one_person_two_tenants_two_roles(walk: Walk) -> None:
    """Bo reviews at Acme and only looks at Globex: each thing asks its own tenant."""
    at_acme = parked_call(walk)
    bo = walk.cast.bo
    Membership.objects.create(tenant=walk.cast.globex, user=bo.user, roles=[Role.VIEWER])
    both = Visitor(bo)
    crossed = address_of(at_acme, "decide").replace("/t/acme/", "/t/globex/")

    answer = both.post(crossed, answer="approve", seen=at_acme.digest)
    assert answer.status_code == 404
    assert both.get("/t/globex/runs/new/").status_code == 403
    assert both.get(crossed.removesuffix("decide/")).status_code == 404
    assert not Decision.objects.exists()

    assert both.decide(at_acme).status_code == 302


def test_C13_a_machine_credential_decides_nothing(walk: Walk) -> None:
    """Not a packet, whatever its roles; and there is no other way in than a person's session."""
    call, publication = parked_call(walk), walk.to_review()
    machine = Visitor(walk.cast.mona)
    for packet in (call, publication):
        for answer in ("approve", "deny", "changes"):
            assert machine.decide(packet, answer, comment="x").status_code == 403
    stranger = Visitor()
    for headers in ({"Authorization": "Bearer x"}, {"X-Api-Key": "x"}):
        sent = stranger.client.post(address_of(call, "decide"), {"seen": "x"}, headers=headers)
        assert sent.status_code in (302, 403)
    assert not Decision.objects.exists()
