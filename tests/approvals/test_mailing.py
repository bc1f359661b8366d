"""Letters: who gets one, once; what it says; what a mail server that is away costs."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.core import mail
from django.utils import timezone

from approvals import mailing
from approvals.delegation import Wanted, end, hand_over
from approvals.models import Mail, Packet
from portal import people
from portal.env import MailUrl
from portal.handoff import Job
from portal.models import Membership, User
from portal.roles import Role
from tests.approvals.stages import SECURITY, TWO_HOURS, asked, passed
from tests.races.crowd import at_once
from tests.visits import address_of
from tests.walk import Walk

SMTP = "django.core.mail.backends.smtp.EmailBackend"


@pytest.fixture
def server(settings: Any) -> None:
    settings.MAIL = MailUrl("localhost", 25)
    settings.DEFAULT_FROM_EMAIL = "imprimatur@example.com"


def told_again(walk: Walk, *notes: str) -> Packet:
    packet = passed(asked(walk, *(notes or ('@needs("2")', '@remind("1h")'))), hours=2)
    walk.deliver(Job.SWEEP_APPROVALS)
    return walk.fresh(packet)


def test_without_a_server_nothing_is_written(walk: Walk) -> None:
    told_again(walk)
    assert not Mail.objects.exists()
    assert list(walk.hops) == []


def test_a_letter_says_what_waits_and_where(walk: Walk, server: None) -> None:
    packet = told_again(walk)
    assert [job for job, _ in walk.hops] == [Job.SEND_MAIL]
    walk.drain()
    to_bo = next(each for each in mail.outbox if each.to == [walk.cast.bo.user.email])
    assert to_bo.subject == f"[acme] Packet {packet.number} waits for a decision"
    assert packet.effect in to_bo.body
    assert f"http://127.0.0.1:8000{address_of(packet)}" in to_bo.body
    assert to_bo.from_email == "imprimatur@example.com"
    assert "The adder subtracts" not in to_bo.body  # arguments stay in the portal
    sent = [each.to[0] for each in mail.outbox]
    assert len(sent) == len(set(sent))
    assert walk.cast.vic.user.email not in sent
    assert not Mail.objects.exists()
    walk.sweep()
    assert len(mail.outbox) == len(sent)


def test_whoever_may_stand_in_is_written_to(walk: Walk, server: None) -> None:
    told_again(walk, SECURITY, TWO_HOURS)
    walk.drain()
    (letter,) = mail.outbox
    assert letter.to == [walk.cast.bo.user.email]
    assert "you may stand in" in letter.body


def test_hidden_characters_and_lines_do_not_get_into_a_letter(walk: Walk, server: None) -> None:
    packet = told_again(walk)
    Packet.objects.filter(pk=packet.pk).update(effect="Run one\r\nBcc: a@b.c\n\u202eevil command")
    walk.drain()
    body = mail.outbox[0].body
    assert body.splitlines()[0] == "Run one Bcc: a@b.c U+202Eevil command"
    assert mail.outbox[0].bcc == []


def test_what_is_decided_meanwhile_is_not_written_of(walk: Walk, server: None) -> None:
    packet = told_again(walk, '@remind("1h")')
    assert Mail.objects.exists()
    walk.decide(packet)
    assert mailing.send() == 0
    assert mail.outbox == []
    assert not Mail.objects.exists()


@pytest.mark.both_databases
def test_two_workers_send_each_letter_once(walk: Walk, server: None, database: str) -> None:
    told_again(walk)
    written = Mail.objects.count()
    outcomes = at_once([partial(mailing.send) for _ in range(3)])
    assert sum(outcomes) == written
    assert len(mail.outbox) == written


def test_a_server_that_is_away_loses_nothing_and_holds_up_nothing(
    walk: Walk, server: None, settings: Any
) -> None:
    packet = told_again(walk)
    written = Mail.objects.count()
    # Nobody listens there.
    settings.EMAIL_BACKEND, settings.EMAIL_HOST, settings.EMAIL_PORT = SMTP, "127.0.0.1", 1
    walk.drain()
    assert walk.words(Job.SEND_MAIL) == ["0 sent"]
    assert Mail.objects.count() == written
    # It is not asked again at once, and everything else goes on.
    walk.sweep()
    assert walk.words(Job.SEND_MAIL) == ["0 sent"]
    walk.decide(packet)

    packet = told_again(walk)
    Mail.objects.update(not_before=packet.opened_at - timedelta(days=1))
    with smtp_server() as there:
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", there.port
        walk.sweep()
    assert len(there.letters) >= written
    assert all(f"Packet {packet.number}" in each or "waits" in each for each in there.letters)
    assert not Mail.objects.exists()


def test_a_server_that_refuses_one_person_takes_the_others(
    walk: Walk, server: None, settings: Any
) -> None:
    told_again(walk)
    written = Mail.objects.count()
    assert written > 1
    with smtp_server(refuses=walk.cast.bo.user.email) as there:
        settings.EMAIL_BACKEND = SMTP
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", there.port
        walk.drain()
    assert len(there.letters) == written - 1
    assert list(Mail.objects.values_list("person", flat=True)) == [walk.cast.bo.user_id]


def test_who_left_meanwhile_or_is_not_asked_any_more_gets_no_letter(
    walk: Walk, server: None
) -> None:
    """A letter may wait for days, and says what a packet would do."""
    packet = told_again(walk)
    left, lost = walk.cast.bo, walk.cast.ada
    others = set(Mail.objects.values_list("person", flat=True)) - {left.user_id, lost.user_id}
    people.remove_member(left.pk, member=walk.cast.max)
    people.set_roles(lost.pk, [Role.VIEWER], member=walk.cast.max)
    if others:
        answered = Membership.objects.get(user=others.pop())
        walk.decide(packet, answered)
        others.discard(answered.user_id)
    walk.drain()
    assert not Mail.objects.exists()
    assert len(mail.outbox) == len(others)
    for each in mail.outbox:
        assert each.to[0] not in (left.user.email, lost.user.email)


def test_whoever_has_anothers_right_is_written_to_while_they_have_it(
    walk: Walk, server: None
) -> None:
    eve, now = walk.cast.member("Eve Fifth", [Role.PUBLISHER]), timezone.now()
    given = hand_over(Wanted(eve.pk, now, now + timedelta(days=1)), member=walk.cast.bo)
    told_again(walk)
    walk.drain()
    assert [eve.user.email] in [each.to for each in mail.outbox]
    mail.outbox.clear()
    told_again(walk)
    end(given.pk, member=walk.cast.bo)
    walk.drain()
    assert mail.outbox
    assert [eve.user.email] not in [each.to for each in mail.outbox]


def test_what_is_held_meanwhile_is_not_written_of(walk: Walk, server: None) -> None:
    packet = told_again(walk, '@remind("1h")', '@hold("15m")')
    assert walk.decide(packet).held_until is not None
    assert (mailing.send(), mail.outbox) == (0, [])


def test_an_address_that_is_none_does_not_hold_up_the_others(walk: Walk, server: None) -> None:
    told_again(walk)
    written = Mail.objects.count()
    assert written > 1
    bad = User.objects.filter(pk=walk.cast.bo.user_id)
    bad.update(email="bo@example.com\nBcc: eve@example.com")
    walk.drain()
    assert len(mail.outbox) == written - 1
    assert list(Mail.objects.values_list("person", flat=True)) == [walk.cast.bo.user_id]


@dataclass
class SmtpServer:
    """A mail server on this machine that keeps what it takes."""

    port: int
    letters: list[str] = field(default_factory=list)


@contextmanager
def smtp_server(refuses: str = "") -> Iterator[SmtpServer]:
    kept = SmtpServer(0)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline():
                word = line.decode().strip()
                if refuses and word.upper().startswith("RCPT") and refuses in word:
                    self.wfile.write(b"550 nobody of that name\r\n")
                elif word.upper() == "DATA":
                    self.wfile.write(b"354 go on\r\n")
                    body = b""
                    while (each := self.rfile.readline()) != b".\r\n":
                        body += each
                    kept.letters.append(body.decode())
                    self.wfile.write(b"250 taken\r\n")
                else:
                    self.wfile.write(b"250 yes\r\n")
                    if word.upper() == "QUIT":
                        return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        kept.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield kept
        server.shutdown()
        thread.join()
