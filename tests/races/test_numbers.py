"""Numbers that people cite (run 12, packet 40) are given once, whoever asks at once."""

from __future__ import annotations

import threading

import pytest
from django.db import connection, connections, transaction

from portal.models import Tenant

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]


def test_twenty_at_once_get_twenty_numbers(database: str) -> None:
    assert connection.vendor == {"postgres": "postgresql", "sqlite": "sqlite"}[database]
    tenant = Tenant.objects.create(slug="acme", name="Acme")
    gate, numbers = threading.Barrier(20), []

    def take() -> None:
        gate.wait()
        try:
            with transaction.atomic(durable=True):
                numbers.append(tenant.next_number("run_count"))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=take) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(numbers) == list(range(1, 21))


def test_the_tables_are_empty_again() -> None:
    """What the test above stored is gone, on either database."""
    assert not Tenant.objects.exists()
