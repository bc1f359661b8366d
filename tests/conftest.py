"""The ground every test stands on: settings of a throwaway installation, its servers, its people.

This file is read before the settings are, so the environment is set here.
"""

from __future__ import annotations

import base64
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import hypothesis
import pytest
from django.db import connections

from tests import clock, databases, parts
from tests.processes import Process, Processes, Site
from tests.services import Valkey

# A busy machine is no finding: speed is measured by tests.bench.
hypothesis.settings.register_profile(
    "project", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("project")

# Short, because unix sockets live in it.
HOME = Path(tempfile.mkdtemp(prefix="imprimatur-", dir="/tmp"))
VALKEY = Valkey(HOME)
_ON_POSTGRESQL = os.environ.get("IMPRIMATUR_TEST_DATABASE", "sqlite") == "postgres"

MACHINE = "state machine"
"""What `tests.statemachine` reports as, with the run's last lines."""

# Nothing of the developer's own installation may reach a test.
for name in (
    *("DATABASE_URL", "PUBLIC_URL", "ALLOWED_HOSTS", "TRUST_PROXY", "DEBUG", "DEMO", "STATIC_ROOT"),
    *("SECRET_KEY_FILE", "FIELD_KEYS_FILE", "KEYS_FILE", "BLOB_DIR", "SOURCE_CACHE_DIR"),
    *("SIGNING_KEYS", "SIGNING_KEYS_FILE"),
    *("RUN_HARD_LIMIT", "RUN_LEASE", "SWEEP_SECONDS", "BROKER_VISIBILITY", "ROW_SCOPE"),
    *("MODEL_BASE_URL", "MODEL_API_KEY", "MODEL_API_KEY_FILE", "MODEL_TIMEOUT", "EMBEDDED_BEAT"),
):
    os.environ.pop(name, None)
os.environ |= {
    "DJANGO_SETTINGS_MODULE": "portal.settings",
    "DATA_DIR": str(HOME / "data"),
    "SECRET_KEY": secrets.token_urlsafe(64),
    "FIELD_KEYS": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
    "BROKER_URL": VALKEY.url(0),
    "CHANNEL_URL": VALKEY.url(0),
    "CACHE_URL": VALKEY.url(1),
    "DEVELOPMENT": "1",
    "SANDBOX_PROVIDER": "scripted",
    "LOG_LEVEL": "WARNING",
}
(HOME / "data").mkdir()
if _ON_POSTGRESQL:
    os.environ["DATABASE_URL"] = databases.cluster().url("imprimatur")


def _hands_out_only(config: pytest.Config) -> bool:
    """Whether this process runs no test itself, but tells others which to run (pytest -n)."""
    return bool(config.getoption("tx", None)) and not hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    """Start what every test may use, once in each process that runs tests."""
    parts.required()
    if _hands_out_only(config):
        # The others begin as this process did: with nothing but what the developer set.
        os.environ.pop("DJANGO_SETTINGS_MODULE")
        return
    VALKEY.start()
    clock.install()
    django.setup()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing behind."""
    VALKEY.stop()
    databases.stop_cluster()
    shutil.rmtree(HOME, ignore_errors=True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test marked `both_databases` runs on SQLite, then on PostgreSQL.

    The others ask for their database too, without it showing in their names: a session's
    fixture stays until another parameter is asked for.
    """
    if "database" not in metafunc.fixturenames:
        metafunc.fixturenames.insert(0, "database")
    postgres = pytest.param("postgres", marks=pytest.mark.postgres)
    usual = "postgres" if _ON_POSTGRESQL else "sqlite"
    choice: list[Any] = [pytest.param(usual, id=pytest.HIDDEN_PARAM)]
    if next(metafunc.definition.iter_markers("both_databases"), None) is not None:
        choice = [postgres] if _ON_POSTGRESQL else ["sqlite", postgres]
    metafunc.parametrize("database", choice, indirect=True, scope="session")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever asks for a page needs the browser, and comes last.

    Playwright leaves its event loop running in this thread until the session
    ends, and then nothing that brings a loop of its own works here any more.
    """
    for item in items:
        if {"page", "browser", "context"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("browser")
        if item.get_closest_marker("browser") is not None:
            # A real browser shares a busy machine with all the others: one more try, and the
            # last lines of the run tell of each that needed it.
            item.add_marker(pytest.mark.flaky(reruns=1))
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture: a missing part skips, or fails where it is required."""
    parts.demand(item)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The last lines: how far the state machine came, what ran twice, what was not tested."""
    passed = terminalreporter.stats.get("passed", [])
    twice = terminalreporter.stats.get("rerun", [])
    told = [text for report in passed for name, text in report.user_properties if name == MACHINE]
    for title, lines in (
        (MACHINE, told),
        ("failed and ran once more", [f"{each.nodeid}\n{each.longreprtext}" for each in twice]),
        ("not tested on this machine", parts.summary(terminalreporter.stats.get("skipped", []))),
    ):
        if lines:
            terminalreporter.section(title)
            for line in lines:
                terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def django_db_modify_db_settings(request: pytest.FixtureRequest) -> None:
    """SQLite in a file: worker and web processes of a test open it too."""
    if not _ON_POSTGRESQL:
        connections.settings["default"]["TEST"]["NAME"] = str(HOME / "test.sqlite3")


@pytest.fixture(scope="session", autouse=True)
def _tables_can_be_emptied() -> None:
    databases.let_tests_empty_tables()


@pytest.fixture(scope="session")
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which engine this test is on; see `both_databases`."""
    if request.param == "sqlite" or _ON_POSTGRESQL:
        yield request.param
        return
    # The suite's own database comes first, so that it is there to come back to.
    request.getfixturevalue("django_db_setup")
    blocker = request.getfixturevalue("django_db_blocker")
    with blocker.unblock(), databases.postgresql_as_default():
        yield request.param


@pytest.fixture(autouse=True)
def _clock_set_right() -> Iterator[None]:
    yield
    clock.set_right()


@pytest.fixture(autouse=True)
def _engine_in_turn(request: pytest.FixtureRequest) -> Iterator[None]:
    """There is one Docker engine for all processes: who needs it alone waits for the others."""
    marker = request.node.get_closest_marker("docker")
    if marker is None:
        yield
        return
    with (Path(tempfile.gettempdir()) / f"imprimatur-tests-docker-{os.getuid()}.lock").open(
        "w"
    ) as turn:
        fcntl.flock(turn, fcntl.LOCK_EX if marker.kwargs.get("alone") else fcntl.LOCK_SH)
        yield


@pytest.fixture
def processes(transactional_db: None, tmp_path: Path) -> Iterator[Processes]:
    """Start real workers and web processes: `processes.worker()`, `processes.site()`."""
    started = Processes(tmp_path)
    yield started
    started.end()


@pytest.fixture
def worker(processes: Processes) -> Process:
    """One real Celery worker on this test's database."""
    return processes.worker()


@pytest.fixture
def site(processes: Processes) -> Site:
    """One real web process on this test's database; `site.url` is its address."""
    return processes.site()


@pytest.fixture
def cast(transactional_db: None) -> Any:
    """The people (`tests.cast.Cast`). Imported here: Django's models need its settings first."""
    from tests.cast import Cast

    return Cast()


@pytest.fixture
def tracker() -> Iterator[Any]:
    """A service outside the portal (`tests.walk.Tracker`)."""
    from tests.walk import tracker_on_this_machine

    with tracker_on_this_machine() as started:
        yield started


@pytest.fixture
def walk(
    cast: Any, tracker: Any, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """A small job on a repository of its own, its hops carried by hand (`tests.walk.Walk`)."""
    from portal import handoff
    from runs.fetching import repositories_of
    from runs.sandbox import shell
    from tests.walk import Walk, tests_of_the_adder

    settings.SOURCE_ROOT = tmp_path / "repositories"
    settings.SOURCE_CACHE_DIR = tmp_path / "sources"
    settings.BLOB_DIR = tmp_path / "blobs"
    settings.BROKER_PRIVATE_HOSTS = ["127.0.0.1"]
    settings.SWEEP_SECONDS = 0  # whatever waits is overdue at once
    started = Walk(cast, repositories_of(cast.acme), tracker)
    monkeypatch.setattr(handoff, "current_app", started)
    programs = {**shell.PROGRAMS, "python3": tests_of_the_adder}
    monkeypatch.setattr(shell, "PROGRAMS", programs)
    return started


@pytest.fixture
def real_walk(cast: Any, tracker: Any, processes: Processes, tmp_path: Path, settings: Any) -> Any:
    """The same job, its hops done by real processes in real sandboxes (`tests.real_walk`)."""
    from tests.real_walk import RealWalk

    settings.SOURCE_ROOT = tmp_path / "repositories"
    settings.SOURCE_CACHE_DIR = tmp_path / "sources"
    settings.BLOB_DIR = tmp_path / "blobs"
    return RealWalk(cast, processes, tracker)


@pytest.fixture(scope="session")
def valkey() -> Valkey:
    """The run's broker. Whoever stops it starts it again."""
    return VALKEY


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Debian's Chromium, told to call nobody."""
    from playwright.sync_api import expect

    # Playwright's own event loop runs in the test's thread, where Django would
    # refuse plain queries for fear of blocking it. Nothing else uses that loop.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    # A busy machine is no finding here either.
    expect.set_options(timeout=30_000)
    yield {
        **browser_type_launch_args,
        "executable_path": str(parts.CHROMIUM),
        "args": [
            *("--no-sandbox", "--disable-gpu", "--disable-background-networking"),
            *("--disable-component-update", "--disable-sync", "--no-first-run"),
            *("--disable-default-apps", "--no-default-browser-check"),
        ],
    }
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]
