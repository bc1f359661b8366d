"""Statements that are compiled once give what the ORM gives, and lock what it locks."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.models import CharField, Model, QuerySet, Value
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from approvals.deciding import lockable
from approvals.models import Packet
from portal import audit, statements
from portal.models import AuditEntry, Membership, Tenant
from portal.statements import given
from runs import lifecycle
from runs.lifecycle import Draft
from runs.models import Event, Run, ToolCall
from tests.cast import Cast
from tests.walk import Walk, parked_call

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]


def _shown(row: Any) -> Any:
    """All a row holds, with the rows it came with."""
    if not isinstance(row, Model):
        return row
    cached = row._state.fields_cache
    forward = {each.name for each in row._meta.concrete_fields}
    return {
        "is": type(row),
        **{name: value for name, value in vars(row).items() if name != "_state"},
        **{name: _shown(value) for name, value in cached.items() if name in forward},
        "back": sorted(set(cached) - forward),
    }


def _same(mine: list[Any], theirs: QuerySet[Any, Any]) -> None:
    assert mine
    assert [_shown(each) for each in mine] == [_shown(each) for each in theirs]


def test_rows_are_those_of_the_orm(walk: Walk) -> None:
    packet = parked_call(walk)
    kept = statements.Query(
        lambda: lockable(Packet.objects.filter(public_id=given("id", Packet, "public_id")))
    )
    theirs = Packet.objects.filter(public_id=packet.public_id)
    with transaction.atomic():
        for _ in range(2):  # as compiled, and as kept
            _same(kept.all(id=packet.public_id), lockable(theirs))
        assert kept.first(id=uuid.uuid4()) is None


def test_tuples_and_json_are_those_of_the_orm(walk: Walk) -> None:
    packet = parked_call(walk)
    call = packet.call
    assert call is not None
    kept = statements.Query(
        lambda: ToolCall.objects.filter(
            arguments=given("arguments", ToolCall, "arguments"),
            created_at__lte=given("before", ToolCall, "created_at"),
            run=given("run", Run),
        ).values_list("pk", "arguments", "created_at", "usable_until", "acted_lease")
    )
    theirs = ToolCall.objects.filter(pk=call.pk).values_list(
        "pk", "arguments", "created_at", "usable_until", "acted_lease"
    )
    now = timezone.now()
    _same(kept.all(arguments=call.arguments, before=now, run=packet.run_id), theirs)
    assert not kept.all(arguments={"other": 1}, before=now, run=packet.run_id)
    assert not kept.all(
        arguments=call.arguments, before=call.created_at - timedelta(days=1), run=packet.run_id
    )


def test_a_change_says_how_many_rows_it_met(cast: Cast) -> None:
    change = statements.Change(
        lambda: Membership.objects.filter(
            tenant=given("tenant", Tenant), roles=given("roles", Membership, "roles")
        ),
        roles=given("new", Membership, "roles"),
    )
    member = cast.ada
    assert change(tenant=member.tenant_id, roles=["none of these"], new=["viewer"]) == 0
    same = Membership.objects.filter(tenant=member.tenant, roles=member.roles).count()
    assert change(tenant=member.tenant_id, roles=member.roles, new=["viewer"]) == same
    member.refresh_from_db()
    assert member.roles == ["viewer"]


def test_a_row_that_is_gone_is_not_saved(walk: Walk) -> None:
    packet = parked_call(walk)
    packet.held_until, packet.page = timezone.now(), {"é": [1, None, True]}
    packet.requested_by = walk.cast.ada.user
    statements.store(packet, "held_until", "page", "requested_by")
    found = Packet.objects.get(pk=packet.pk)
    assert (found.held_until, found.page) == (packet.held_until, packet.page)
    assert found.requested_by_id == walk.cast.ada.user_id
    packet.pk += 1000
    with pytest.raises(DatabaseError):
        statements.store(packet, "held_until")


def test_only_models_and_tuples_are_read(cast: Cast) -> None:
    flat: QuerySet[Tenant, Any] = Tenant.objects.values_list("pk", flat=True)
    with pytest.raises(TypeError):
        statements.Query(lambda: flat).all()


def test_nothing_is_locked_outside_of_a_transaction(cast: Cast) -> None:
    kept = statements.Query(
        lambda: Tenant.objects.select_for_update().filter(pk=given("tenant", Tenant))
    )
    with transaction.atomic(), CaptureQueriesContext(connection) as asked:
        assert kept.all(tenant=cast.acme.pk) == [cast.acme]
    if connection.vendor == "postgresql":
        assert asked.captured_queries[0]["sql"].endswith("FOR UPDATE")
        with pytest.raises(transaction.TransactionManagementError):
            kept.all(tenant=cast.acme.pk)


# --- What Django would have done around a statement --------------------------------------------


def test_errors_of_the_driver_are_those_of_django(walk: Walk) -> None:
    event = Event.objects.filter(run=parked_call(walk).run).earliest("seq")
    with pytest.raises(IntegrityError), transaction.atomic():
        statements.insert(event)
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(transaction.TransactionManagementError):
            audit.record("never.happened", tenant=walk.cast.acme, subject="x")


def test_nothing_is_asked_in_an_event_loop(cast: Cast) -> None:
    kept = statements.Query(lambda: Tenant.objects.filter(pk=given("tenant", Tenant)))
    assert kept.all(tenant=cast.acme.pk) == [cast.acme]

    async def ask() -> None:
        kept.all(tenant=cast.acme.pk)

    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(ask())


def test_a_per_cent_sign_is_one(cast: Cast) -> None:
    """In the text itself, where the sign begins a place, and in a value."""
    every = Tenant.objects.annotate(said=Value("100 %s %%", output_field=CharField()))
    kept = statements.Query(
        lambda: every.extra(where=["slug LIKE 'ac%%'"]).values_list("pk", "said")
    )
    assert kept.all() == [(cast.acme.pk, "100 %s %%")]


# --- The chains, whose heads are moved on from what the caller knows --------------------------


def test_an_audit_line_follows_the_last_one_whatever_the_caller_knows(cast: Cast) -> None:
    old = Tenant.objects.get(pk=cast.acme.pk)
    with transaction.atomic():
        audit.record("one.thing", tenant=cast.acme, subject="x")
        audit.record("two.things", tenant=old, subject="x")
        audit.record("three.things", tenant=old, subject="x")
        audit.record("four.things", tenant=cast.acme, subject="x")
    assert audit.broken_at(cast.acme) is None
    said = AuditEntry.objects.filter(tenant=cast.acme, subject="x").order_by("seq")
    words = [each.action for each in said]
    assert words == ["one.thing", "two.things", "three.things", "four.things"]


def test_a_line_that_was_rolled_back_leaves_no_gap(cast: Cast) -> None:
    with transaction.atomic():
        audit.record("never.happened", tenant=cast.acme, subject="x")
        transaction.set_rollback(True)
    with transaction.atomic():
        audit.record("did.happen", tenant=cast.acme, subject="x")
    assert audit.broken_at(cast.acme) is None
    assert not AuditEntry.objects.filter(action="never.happened").exists()


def test_events_follow_the_last_one_whatever_the_caller_knows(walk: Walk) -> None:
    run = parked_call(walk).run
    run.refresh_from_db()
    old = Run.objects.get(pk=run.pk)
    with transaction.atomic():
        lifecycle.append_events(run, [Draft("one", {}), Draft("two", {})])
        lifecycle.append_events(old, [Draft("three", {})])
    with transaction.atomic():
        lifecycle.append_events(run, [Draft("never", {})])
        transaction.set_rollback(True)
    with transaction.atomic():
        lifecycle.append_events(run, [Draft("four", {})])
    assert lifecycle.event_chain_broken_at(run) is None
    kinds = Event.objects.filter(run=run).order_by("seq").values_list("kind", flat=True)
    assert list(kinds)[-4:] == ["one", "two", "three", "four"]


def test_events_of_one_act_are_appended_at_once_in_their_order(walk: Walk) -> None:
    packet = parked_call(walk)
    run = packet.run
    run.refresh_from_db()
    asked: list[str] = []

    def note(execute: Any, text: str, *given: Any) -> Any:
        asked.append(text)
        return execute(text, *given)

    with transaction.atomic(), connection.execute_wrapper(note):
        with lifecycle.together(run):
            lifecycle.append_events(run, [Draft("one", {})])
            lifecycle.append_events(Run.objects.get(pk=run.pk), [Draft("two", {})])
            lifecycle.append_events(run, [Draft("three", {})])
        lifecycle.append_events(run, [Draft("four", {})])
    assert sum(text.startswith("INSERT") for text in asked) == 2
    assert lifecycle.event_chain_broken_at(run) is None
    kinds = Event.objects.filter(run=run).order_by("seq").values_list("kind", flat=True)
    assert list(kinds)[-4:] == ["one", "two", "three", "four"]


@transaction.atomic
def _act_that_fails(run: Run) -> None:
    with lifecycle.together(run):
        lifecycle.append_events(run, [Draft("never", {})])
        raise ZeroDivisionError


def test_events_of_an_act_that_failed_are_not_there(walk: Walk) -> None:
    run = parked_call(walk).run
    before = Event.objects.filter(run=run).count()
    with pytest.raises(ZeroDivisionError):
        _act_that_fails(run)
    with transaction.atomic():
        lifecycle.append_events(run, [Draft("after", {})])
    assert Event.objects.filter(run=run).count() == before + 1
    assert lifecycle.event_chain_broken_at(run) is None
