"""The ground the measurements stand on: a throwaway installation, filled by real runs.

Importing `tests.conftest` tells the settings where they are, as it does for the tests; the
database is chosen before that, see `tests.bench.__main__`.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import django

from tests import conftest, databases

if TYPE_CHECKING:
    from django.db.models import Model

    from approvals.models import Packet
    from portal.models import User
    from runs.models import ContractVersion, Run
    from tests.cast import Cast
    from tests.processes import Process, Processes, Site

# What other installations have and a measurement must not: reloading of templates and files.
_AS_IN_PRODUCTION = {"DEVELOPMENT": "0", "DEBUG": "0", "SANDBOX_PROVIDER": "auto"}


def small() -> bool:
    """Whether this run only tries the program out."""
    return bool(os.environ.get("IMPRIMATUR_BENCH_SMALL"))


@dataclass
class Ground:
    """One installation: people, repository, and processes that end with the block."""

    cast: Cast
    processes: Processes
    database: str
    # What the runs' brokered tool talks to, as host:port.
    tracker: str
    # A contract whose agent files an issue, repairs the source and reports.
    version: ContractVersion

    def worker(self) -> Process:
        """A real worker, which may talk to the tracker."""
        return self.processes.worker(BROKER_PRIVATE_HOSTS=self.tracker)

    def site(self, **more: str) -> Site:
        """A real web process, set up as in production."""
        return self.processes.site(0, **{**_AS_IN_PRODUCTION, **more})

    def park(self) -> Packet:
        """A new run whose agent waits: the open packet of its call. Needs a worker."""
        from tests.cast import make_run

        return open_packet(make_run(self.cast, self.version), "call")

    def review(self) -> Packet:
        """A new run whose candidate waits: the open packet of its publication. Needs a worker."""
        packet = self.park()
        self.approve(packet)
        return open_packet(packet.run, "publication")

    def approve(self, packet: Packet) -> None:
        """Ada's answer, as her browser would send it."""
        from approvals.deciding import Answer, settle_packet
        from approvals.states import Verdict

        answer = Answer(Verdict.APPROVE, packet.digest, token=uuid.uuid4().hex)
        settle_packet(packet.public_id, answer, member=self.cast.ada)


def open_packet(
    run: Run, kind: str, pause: Callable[[], object] = lambda: time.sleep(0.02)
) -> Packet:
    """Wait until the run asks for a decision of this kind."""
    from approvals.models import Packet

    deadline = time.monotonic() + 60
    while True:
        packet = Packet.objects.filter(run=run, kind=kind, state="open").first()
        if packet is not None:
            return packet
        if time.monotonic() > deadline:
            run.refresh_from_db()
            raise AssertionError(f"{run} is {run.status} {run.failure_text}")
        pause()


@contextmanager
def ground() -> Iterator[Ground]:
    """A migrated database with the cast in it, on a running Valkey."""
    conftest.VALKEY.start()
    try:
        django.setup()
        from django.core.management import call_command
        from django.db import connection

        from runs.fetching import repositories_of
        from tests.cast import (
            ASKING,
            Cast,
            contract_text,
            make_repository,
            make_version,
            set_value,
            transcript,
        )
        from tests.processes import Processes
        from tests.walk import tracker_on_this_machine

        if connection.vendor == "postgresql":
            databases.cluster().create("imprimatur")
        call_command("migrate", interactive=False, verbosity=0)
        (conftest.HOME / "processes").mkdir()
        processes = Processes(conftest.HOME / "processes")
        people = Cast()
        make_repository(repositories_of(people.acme))
        text = contract_text(http=True, verification=False)
        version = make_version(people, text, recording=transcript(ASKING))
        try:
            with tracker_on_this_machine() as tracker:
                set_value(people, "tracker", tracker.url)
                host = tracker.url.removeprefix("http://")
                yield Ground(people, processes, connection.vendor, host, version)
        except BaseException:
            for process in processes.started:
                print(f"{process.name}:\n{process.words()[-3000:]}")
            raise
        finally:
            processes.end()
            connection.close()
    finally:
        conftest.pytest_unconfigure(None)  # type: ignore[arg-type]


def cookie_of(user: User) -> str:
    """The `Cookie` header of a new session of this person."""
    from django.conf import settings
    from django.test import Client

    client = Client()
    client.force_login(user)
    name = settings.SESSION_COOKIE_NAME
    return f"{name}={client.cookies[name].value}"


# --- Many rows ----------------------------------------------------------------------------


def crowd(template: Run, count: int) -> None:
    """`count` more runs that stand where this one stands, with all their rows.

    Copied inside the database, so that 100,000 of them take seconds. Every row is the copy of
    one that the portal wrote; one after the other they got there one and a half seconds earlier,
    and have as much more time left.
    """
    from approvals.models import Candidate, Packet
    from portal.models import Tenant
    from runs.models import Charge, Checkpoint, Event, Run, ToolCall

    runs = _Copies(Run, count)
    tenant = Tenant.objects.get(pk=template.tenant_id)
    runs.copy(
        template,
        number=f"{tenant.run_count} + n",
        public_id=runs.uuid,
        created_at=runs.apart("created_at", -1),
        status_at=runs.apart("status_at", -1),
    )
    of_run = {"run_id": runs.key}
    for charge in Charge.objects.filter(run=template):
        _Copies(Charge, count).copy(charge, **of_run)
    for event in Event.objects.filter(run=template):
        _Copies(Event, count).copy(event, **of_run)
    calls: dict[int, str] = {}
    for checkpoint in Checkpoint.objects.filter(run=template):
        checkpoints = _Copies(Checkpoint, count)
        checkpoints.copy(checkpoint, **of_run)
        for call in ToolCall.objects.filter(checkpoint=checkpoint):
            copies = _Copies(ToolCall, count)
            asked = copies.apart("created_at", -1)
            copies.copy(call, checkpoint_id=checkpoints.key, created_at=asked, **of_run)
            calls[call.pk] = copies.key
    candidates: dict[int, str] = {}
    for candidate in Candidate.objects.filter(run=template):
        copies = _Copies(Candidate, count)
        copies.copy(candidate, public_id=copies.uuid, **of_run)
        candidates[candidate.pk] = copies.key
    for packet in Packet.objects.filter(run=template, state="open"):
        copies = _Copies(Packet, count)
        changes = {
            "number": f"{tenant.packet_count} + n",
            "public_id": copies.uuid,
            # The page says when it was opened, so that stays.
            "expires_at": copies.apart("expires_at", 1),
        }
        if packet.call_id:
            changes["call_id"] = calls[packet.call_id]
        if packet.candidate_id:
            changes["candidate_id"] = candidates[packet.candidate_id]
        copies.copy(packet, **changes, **of_run)
    Tenant.objects.filter(pk=tenant.pk).update(
        run_count=tenant.run_count + count, packet_count=tenant.packet_count + count
    )
    _tell_planner()


class _Copies:
    """Copies of one row, whose keys follow the highest key there is."""

    def __init__(self, model: type[Model], count: int) -> None:
        from django.db import connection
        from django.db.models import Max

        self._model, self._count = model, count
        highest = model._default_manager.aggregate(highest=Max("pk"))["highest"] or 0
        self.key = f"{highest} + n"
        self._sqlite = connection.vendor == "sqlite"
        self.uuid = "lower(hex(randomblob(16)))" if self._sqlite else "gen_random_uuid()"

    def apart(self, column: str, sign: int) -> str:
        """The row's own time, moved on or back by one and a half seconds for each copy."""
        seconds = 1.5 * sign
        if self._sqlite:
            return f"strftime('%Y-%m-%d %H:%M:%f', {column}, (n * {seconds}) || ' seconds')"
        return f"{column} + n * interval '{seconds} seconds'"

    def copy(self, row: Model, **changes: str) -> None:
        """Insert the copies; `changes` are SQL by column, in which `n` counts from 1."""
        from django.db import connection

        table = self._model._meta.db_table
        columns = [str(field.column) for field in self._model._meta.concrete_fields]
        changes = {"id": self.key, **changes}
        names = ", ".join(f'"{column}"' for column in columns)
        values = ", ".join(changes.get(column, f'"{column}"') for column in columns)
        series = (
            "WITH RECURSIVE series(n) AS "
            f"(SELECT 1 UNION ALL SELECT n + 1 FROM series WHERE n < {self._count}) "
        )
        with connection.cursor() as cursor:
            cursor.execute(
                f"{series}INSERT INTO {table} ({names}) "
                f"SELECT {values} FROM {table}, series WHERE id = {int(row.pk)}"
            )
            if not self._sqlite:
                cursor.execute(
                    f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), max(id)) FROM {table}"
                )


def _tell_planner() -> None:
    """PostgreSQL's autovacuum does this within a minute; SQLite is left as the portal leaves it."""
    from django.db import connection

    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE")
