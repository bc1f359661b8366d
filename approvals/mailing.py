"""Letters to those who may decide a packet, where the installation has a mail server.

They are written down in the transaction that gives the occasion, and sent later by a hop of their
own: a server that is down, slow or refuses delays nothing else, and the letters wait for it. One
may come twice where a worker died between the server's yes and our note of it, never more often.
A letter says which packet waits, its effect and the way there; nothing an agent wrote beside that.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Collection
from datetime import datetime, timedelta
from smtplib import SMTPDataError, SMTPException, SMTPRecipientsRefused

from django.conf import settings
from django.core.mail import EmailMessage, get_connection
from django.urls import reverse

from approvals import delegation
from approvals.counting import still_asked
from approvals.models import Mail, Packet
from approvals.states import PacketState
from portal.clock import database_now
from portal.visible import pieces

logger = logging.getLogger(__name__)

AT_ONCE = 100
# After so long another worker tries again, and after so long nobody does.
LEASE = timedelta(minutes=10)
GIVEN_UP = timedelta(days=2)
EFFECT_LIMIT = 300


def post(packet: Packet, occasion: str, people: Collection[int], now: datetime) -> None:
    """Write a letter to each of these people, in the caller's transaction; each only once."""
    if settings.MAIL is None:
        return
    Mail.objects.bulk_create(
        [
            Mail(
                tenant_id=packet.tenant_id,
                packet=packet,
                person_id=person,
                occasion=occasion,
                made_at=now,
                not_before=now,
            )
            for person in people
        ],
        ignore_conflicts=True,
    )


def is_due(now: datetime) -> bool:
    """Whether a letter waits to be sent."""
    return Mail.objects.filter(not_before__lte=now).exists()


def send() -> int:
    """Send what is due. Returns how many letters the server took."""
    lease, now = uuid.uuid4(), database_now()
    due = Mail.objects.filter(not_before__lte=now)
    some = list(due.order_by("not_before").values_list("pk", flat=True)[:AT_ONCE])
    # Asked again in the statement that takes them, so no two workers have the same one.
    due.filter(pk__in=some).update(lease=lease, not_before=now + LEASE)
    rows = Mail.objects.filter(lease=lease).select_related("packet__tenant", "person", "tenant")
    asked: dict[int, list[int]] = {}
    taken = 0
    connection = get_connection()
    try:
        connection.open()
        for row in rows:
            if row.packet_id not in asked:
                asked[row.packet_id] = _whom(row.packet, now)
            # Asked again: who left, or answered, since it was written gets none.
            if row.person_id in asked[row.packet_id] and now < row.made_at + GIVEN_UP:
                try:
                    connection.send_messages([letter(row)])
                except (SMTPRecipientsRefused, SMTPDataError, ValueError) as error:
                    # This letter, and not the others: its address may be none.
                    logger.warning("a letter was refused: %s", type(error).__name__)
                    continue
                taken += 1
            row.delete()
    except (OSError, SMTPException) as error:
        # Without its words: a server may repeat what it was sent.
        logger.warning("mail waits for its server: %s", type(error).__name__)
    finally:
        connection.close()
    return taken


def _whom(packet: Packet, now: datetime) -> list[int]:
    """Who is to be written to about a packet now: those whose approval it waits for, and whoever
    has their right."""
    if packet.state != PacketState.OPEN or packet.held_until or now >= packet.expires_at:
        return []
    return delegation.with_stand_ins(packet, still_asked(packet), now)


def letter(row: Mail) -> EmailMessage:
    """What it says. Plain text; hidden characters are shown as their code points."""
    packet, tenant = row.packet, row.tenant
    address = reverse("approvals:packet", args=[tenant.slug, packet.public_id])
    effect = "".join(each.label or each.text for each in pieces(re.sub(r"\s+", " ", packet.effect)))
    if len(effect) > EFFECT_LIMIT:
        effect = f"{effect[:EFFECT_LIMIT]}…"
    stands_in = row.occasion.startswith("escalation")
    why = "Nobody decided it so far, and you may stand in." if stands_in else "It still waits."
    until = f"{packet.expires_at:%Y-%m-%d %H:%M} UTC"
    body = (
        f"{effect}\n\n{why} It expires at {until}; nothing is approved by waiting.\n\n"
        f"{settings.PUBLIC_URL}{address}\n"
    )
    return EmailMessage(
        subject=f"[{tenant.slug}] Packet {packet.number} waits for a decision",
        body=body,
        to=[row.person.email],
    )
