"""A broker that is away costs nobody a run, and no person a wait."""

from __future__ import annotations

from typing import Any

import kombu.utils.functional
import pytest
from celery import current_app
from kombu import Connection

from portal import handoff
from portal.handoff import Job


def test_a_decision_does_not_wait_for_a_broker_that_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    """The sweep finds the row anyway, so asking the broker twice at once is enough."""
    waits: list[float] = []
    monkeypatch.setattr(kombu.utils.functional, "sleep", waits.append)
    options = current_app.conf.broker_transport_options
    nowhere = f"redis+socket://{tmp_path}/nowhere.sock"

    class Away:
        """The application, with its broker moved to where nothing listens."""

        def send_task(self, name: str, **named: Any) -> None:
            with Connection(nowhere, transport_options=options) as connection:
                current_app.send_task(name, connection=connection, **named)

    monkeypatch.setattr(handoff, "current_app", Away())

    handoff.enqueue(Job.PUBLISH, 7)

    assert "broker unreachable, approvals.publish(7) is left to the sweep" in caplog.text
    assert sum(waits) < 1
