"""Long runs leave room for the short hops."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.conf import settings

from runs import tasks
from runs.fetching import repositories_of
from runs.models import Run
from runs.states import RunStatus
from tests.cast import Cast, make_repository, make_run

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_run_that_finds_no_place_stays_queued_for_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "SOURCE_ROOT", tmp_path)
    cast = Cast()
    make_repository(repositories_of(cast.acme))
    run = make_run(cast)
    for _ in range(settings.WORKER_RUNS):
        assert tasks._places.acquire(blocking=False)
    try:
        assert "no place" in tasks.execute_run(run.pk)
        assert Run.objects.get(pk=run.pk).status == RunStatus.QUEUED
    finally:
        for _ in range(settings.WORKER_RUNS):
            tasks._places.release()
    monkeypatch.setattr(tasks, "drive_run", lambda lease: "driven")
    assert tasks.execute_run(run.pk) == "driven"
    assert settings.WORKER_RUNS < settings.CELERY_WORKER_CONCURRENCY
