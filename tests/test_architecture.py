"""The shape of the code: hops and tasks, who imports whom, which tables are walled."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import current_app
from django.apps import apps
from django.conf import settings
from django.db import connection
from django.db.models import Q

from approvals import closing
from portal.celery import app
from portal.handoff import Job
from runs import lifecycle
from tests.walk import OWNERS

ROOT = Path(settings.BASE_DIR)
# These belong to no tenant: they are how a person comes to one.
SHARED = {"portal_user", "portal_signinlink", "portal_tenant", "portal_membership"}


def tasks() -> set[str]:
    """Our own tasks; Celery brings some along."""
    assert OWNERS  # imported, so that they are registered
    return {name for name in current_app.tasks if not name.startswith("celery.")}


def test_every_job_has_a_task_and_every_task_is_a_job() -> None:
    assert tasks() == {job.value for job in Job}


@pytest.mark.parametrize("job", list(Job))
def test_a_hop_takes_one_id_and_nothing_else(job: Job) -> None:
    """What a message carries could be old or forged; the row is read anew."""
    parameters = inspect.signature(current_app.tasks[job.value].run).parameters.values()
    assert [each.annotation for each in parameters] == ["int"]


def test_beat_asks_for_every_sweep() -> None:
    sweeps = {job.value for job in Job if job.name.startswith("SWEEP")}
    assert {each["task"] for each in app.conf.beat_schedule.values()} == sweeps


def test_every_hop_of_the_walk_is_swept() -> None:
    """Whatever a lost message asked for, a sweep asks for again."""
    swept = "".join(inspect.getsource(module) for module in (*OWNERS, lifecycle, closing))
    for job in Job:
        if not job.name.startswith("SWEEP"):
            assert f"Job.{job.name}" in swept, job


def test_imports_go_one_way() -> None:
    """The contracts of `pyproject.toml`: layers, the core's ignorance, one home per SDK."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.both_databases
def test_every_table_of_a_tenant_is_behind_the_second_wall(
    transactional_db: None, database: str
) -> None:
    """A new table with a tenant_id and no row policy would be open to a forgotten filter."""
    tables = {
        model._meta.db_table
        for model in apps.get_models()
        if any(field.attname == "tenant_id" for field in model._meta.concrete_fields)
    } - SHARED
    assert "runs_run" in tables
    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname FROM pg_class WHERE relrowsecurity AND relforcerowsecurity")
        walled = {name for (name,) in cursor.fetchall()}
    assert tables - walled == set()


def test_every_table_names_its_tenant() -> None:
    ours = [model for model in apps.get_models() if model._meta.app_label in {"runs", "approvals"}]
    without = [
        model._meta.db_table
        for model in ours
        if not any(field.attname == "tenant_id" for field in model._meta.concrete_fields)
    ]
    # What a drill found belongs to the machine, and names nobody.
    assert without == ["runs_drill"]


def lookups_of(condition: Any) -> Iterator[tuple[str, Any]]:
    """Every lookup in a condition, with its value."""
    for each in condition.children:
        if isinstance(each, Q):
            yield from lookups_of(each)
        elif isinstance(each, tuple):
            yield each


def test_every_state_fits_its_column() -> None:
    """SQLite stores what is too long all the same; PostgreSQL refuses it in the midst of an act."""
    wanted = [
        (model, name.removesuffix("__in"), values)
        for model in apps.get_models()
        for constraint in model._meta.constraints
        if isinstance(condition := getattr(constraint, "condition", None), Q)
        for name, values in lookups_of(condition)
        if name.endswith("__in") and all(isinstance(each, str) for each in values)
    ]
    assert len(wanted) > 10
    too_long = [
        (model.__name__, name, value)
        for model, name, values in wanted
        for value in values
        if len(value) > (getattr(model._meta.get_field(name), "max_length", None) or 0)
    ]
    assert too_long == []
