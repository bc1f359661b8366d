"""Answering while a role is taken away: whichever came first in the log is what holds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from approvals import attention, errors
from approvals.models import Decision, Packet
from approvals.states import PacketState, Verdict
from portal import people
from portal.errors import NotAllowed, NotFound
from portal.models import AuditEntry, Membership, Tenant
from portal.roles import Role
from tests.races.crowd import at_once
from tests.walk import Walk, parked_call

pytestmark = pytest.mark.both_databases

Change = Callable[[], object]


def between(monkeypatch: pytest.MonkeyPatch, decide: Change, change: Change) -> list[Any]:
    """Let the change happen after the answer has looked who answers, and before it is written.

    Where a transaction that writes has the whole database, the change waits for its end.
    """
    looked, changed = threading.Event(), threading.Event()
    real = attention.measured

    def slow(*asked: Any) -> Any:
        looked.set()
        changed.wait(3)
        return real(*asked)

    def meanwhile() -> object:
        looked.wait(60)
        try:
            return change()
        finally:
            changed.set()

    monkeypatch.setattr(attention, "measured", slow)
    return at_once([decide, meanwhile])


def in_log(packet: Packet, last: str) -> bool:
    """Whether the answer stands in the log before the line of that kind."""
    log = AuditEntry.objects.filter(tenant=packet.tenant)
    answer = log.filter(subject=f"packet:{packet.pk}", actor__isnull=False).latest("seq")
    return answer.seq < log.filter(action=last).latest("seq").seq


@pytest.mark.parametrize("verdict", [Verdict.APPROVE, Verdict.DENY])
@pytest.mark.parametrize("how", ["lowered", "other", "removed"])
def test_a_role_is_taken_from_whoever_answers(
    walk: Walk, monkeypatch: pytest.MonkeyPatch, how: str, verdict: Verdict, database: str
) -> None:
    cast, packet = walk.cast, parked_call(walk)
    changes: dict[str, Change] = {
        "lowered": partial(people.set_roles, cast.ada.pk, [Role.VIEWER], member=cast.max),
        "other": partial(
            people.set_roles, cast.ada.pk, [Role.REVIEWER, Role.AUDITOR], member=cast.max
        ),
        "removed": partial(people.remove_member, cast.ada.pk, member=cast.max),
    }
    answer = partial(walk.decide, packet, cast.ada, verdict)
    decided, changed = between(monkeypatch, answer, changes[how])
    assert not isinstance(changed, Exception), changed
    last = "member.removed" if how == "removed" else "member.roles_changed"
    if isinstance(decided, Packet):
        assert database == "sqlite"
        assert in_log(packet, last)
    else:
        why = {"lowered": NotAllowed, "other": errors.RolesChanged, "removed": NotFound}[how]
        assert isinstance(decided, why), decided
        assert not Decision.objects.exists()
        assert walk.fresh(packet).state == PacketState.OPEN


def test_a_second_person_comes_while_somebody_approves_their_own(
    walk: Walk, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    cast, packet = walk.cast, parked_call(walk)
    Tenant.objects.filter(pk=cast.acme.pk).update(one_person=True)
    both = [Role.OPERATOR, Role.REVIEWER]
    Membership.objects.filter(pk=cast.olu.pk).update(roles=[role.value for role in both])
    add = partial(people.add_member, "Sue", "sue@acme.example", [Role.VIEWER], member=cast.max)
    decided, added = between(monkeypatch, partial(walk.decide, packet, cast.olu), add)
    assert not isinstance(added, Exception), added
    if isinstance(decided, Packet):
        assert database == "sqlite"
        assert in_log(packet, "tenant.one_person_ended")
    else:
        assert isinstance(decided, errors.OwnRequest), decided
        assert not Decision.objects.exists()


def test_other_lines_between_change_nothing(
    walk: Walk, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    cast, packet = walk.cast, parked_call(walk)
    add = partial(people.add_member, "Sue", "sue@acme.example", [Role.VIEWER], member=cast.max)
    decided, added = between(monkeypatch, partial(walk.decide, packet), add)
    assert not isinstance(added, Exception), added
    assert isinstance(decided, Packet), decided
    assert decided.state == PacketState.APPROVED
