"""How people came to their decisions: each person's own, and the tenant's as a whole."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from approvals import attention
from approvals.models import Decision, Packet
from portal.models import Membership, Tenant, User


def told_of_own(packet: Packet, person: User) -> str:
    """How this person came to their own answer to a packet, in words; nothing if they gave none."""
    own = packet.votes().filter(person=person).values_list("attention", flat=True).first()
    return attention.words(own)


@dataclass(frozen=True, slots=True)
class Own:
    """One of a person's own answers, with how they came to it."""

    public_id: uuid.UUID
    number: int
    effect: str
    verdict: str
    decided_at: datetime
    attention: Mapping[str, Any] | None

    @property
    def time(self) -> str:
        return attention.span(self.attention["ms"]) if self.attention else ""

    @property
    def size(self) -> str:
        return attention.size_words(self.attention) if self.attention else ""

    @property
    def seen(self) -> str:
        return attention.seen_words(self.attention) if self.attention else ""


def own_answers(member: Membership, limit: int = 200) -> list[Own]:
    """A person's answers in this tenant, newest first."""
    answers = Decision.objects.filter(
        person=member.user_id, tenant=member.tenant_id, carried_from=None
    ).order_by("-decided_at", "-pk")
    columns = (
        "packet__public_id", "packet__number", "packet__effect", "verdict", "decided_at",
        "attention",
    )  # fmt: skip
    return [Own(*each) for each in answers.values_list(*columns)[:limit]]


TOGETHER_DAYS = 90
# From so many people on, so that the numbers are nobody's.
TOGETHER_PEOPLE = 3
TOGETHER_ANSWERS = 5000


def answers_together(tenant: Tenant) -> attention.Together | None:
    """How the tenant's people came to their answers, the newest of some days; None of too few."""
    since = timezone.now() - timedelta(days=TOGETHER_DAYS)
    answers = Decision.objects.filter(
        tenant=tenant, decided_at__gte=since, attention__isnull=False, packet__canary__isnull=True
    )
    if answers.values("person").distinct().count() < TOGETHER_PEOPLE:
        return None
    newest = answers.order_by("-decided_at").values_list("attention", flat=True)
    return attention.together(each for each in newest[:TOGETHER_ANSWERS] if each is not None)
