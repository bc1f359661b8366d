"""Eight people at their pages and four workers at their runs, all writing to one SQLite file.

SQLite has one write lock for the whole database. Eight threads of this process read the queue,
packets and runs, start runs and decide, in HTTP against one web process; four real workers claim
runs, carry them on and publish. Nobody may be told that the database was locked: no request is
answered with a 500 or asked to try again, no worker logs it, no run fails of it. Reading alone,
while nothing is written, is measured before, to compare with.
"""

from __future__ import annotations

import http.client
import queue
import secrets
import statistics
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.bench.ground import Ground, cookie_of, ground, small
from tests.bench.report import Report

PEOPLE, WORKERS = 8, 4
SECONDS = 10 if small() else 60
# Runs that are parked before the clock starts, so that deciding begins at once.
PARKED = 4 if small() else 16
# Live runs beyond which nobody starts another one: more would only wait in line.
AT_WORK = 40


@dataclass
class Seen:
    """What the threads saw: seconds by kind of request, and whatever was not as it should be."""

    took: dict[str, list[float]] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)
    conflicts: int = 0

    def add(self, kind: str, seconds: float, status: int, page: bytes) -> None:
        """One answer. Appending to lists is safe from many threads."""
        self.took.setdefault(kind, []).append(seconds)
        self.conflicts += status == 409
        if status >= 500 or b"database is locked" in page:
            self.bad.append(f"{kind}: {status}")

    @property
    def count(self) -> int:
        return sum(map(len, self.took.values()))


class Person:
    """One browser: a connection that stays, and a session."""

    def __init__(self, port: int, session: str, seen: Seen) -> None:
        from django.conf import settings

        self._seen = seen
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        # A form is believed if it repeats its cookie.
        self._form = secrets.token_hex(16)
        self._cookie = {"Cookie": f"{session}; {settings.CSRF_COOKIE_NAME}={self._form}"}

    def read(self, kind: str, address: str) -> None:
        """Ask for a page."""
        self._ask(kind, "GET", address, None)

    def send(self, kind: str, address: str, **fields: object) -> None:
        """Send a form."""
        form = urllib.parse.urlencode({"csrfmiddlewaretoken": self._form, **fields})
        self._ask(kind, "POST", address, form)

    def _ask(self, kind: str, method: str, address: str, form: str | None) -> None:
        headers = dict(self._cookie)
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        began = time.perf_counter()
        self._connection.request(method, address, form, headers)
        answer = self._connection.getresponse()
        page = answer.read()
        self._seen.add(kind, time.perf_counter() - began, answer.status, page)


def main() -> None:
    with ground() as place:
        from approvals.models import Decision, Publication
        from portal.roles import Role
        from runs.models import Event, Run

        report = Report(f"locks: {PEOPLE} people and {WORKERS} workers", place.database)
        for _ in range(WORKERS):
            place.worker()
        site = place.site()
        parked = [place.park() for _ in range(PARKED)]
        roles = [Role.REVIEWER, Role.PUBLISHER, Role.OPERATOR]
        sessions = [
            cookie_of(place.cast.member(f"Person{number}", roles).user) for number in range(PEOPLE)
        ]
        packet, run = parked[0].public_id, parked[0].run.public_id
        pages = {
            "read the queue": "/t/acme/queue/",
            "read a packet": f"/t/acme/packets/{packet}/",
            "read a run": f"/t/acme/runs/{run}/",
        }

        def reading(person: Person) -> None:
            for kind, address in pages.items():
                person.read(kind, address)

        _crowd(site.port, sessions, reading, 2)  # the first look at a page compiles it
        alone = _crowd(site.port, sessions, reading, SECONDS / 4)

        open_packets: queue.SimpleQueue[tuple[uuid.UUID, str]] = queue.SimpleQueue()
        feeding = _Feeder(open_packets)

        def working(person: Person) -> None:
            person.read("read the queue", pages["read the queue"])
            if feeding.live < AT_WORK:
                person.send("start a run", "/t/acme/runs/new/", version=place.version.pk)
            try:
                found, digest = open_packets.get(timeout=0.05)
            except queue.Empty:
                return
            address = f"/t/acme/packets/{found}/"
            person.read("read a packet", address)
            decision = {"answer": "approve", "seen": digest, "token": uuid.uuid4().hex}
            person.send("decide", f"{address}decide/", **decision)
            person.read("read a run", pages["read a run"])

        def counts() -> dict[str, int]:
            return {
                "runs claimed": Event.objects.filter(kind="run.claimed").count(),
                "events stored": Event.objects.count(),
                "decisions": Decision.objects.count(),
                "published": Publication.objects.filter(state="done").count(),
            }

        before = counts()
        together = _crowd(site.port, sessions, working, SECONDS, beside=feeding.look)
        after = counts()
        _until_idle(place)

        for name, seen in (("reading alone", alone), ("all of it together", together)):
            report.say(f"{name}:")
            for kind, seconds in sorted(seen.took.items()):
                report.took(kind, seconds)
        each = [f"{(after[name] - before[name]) / SECONDS:.1f} {name}" for name in after]
        report.say(f"in a second: {together.count / SECONDS:.1f} requests, {', '.join(each)}")
        ratio = _median(together, "read the queue") / _median(alone, "read the queue")
        report.say(f"reading the queue takes {ratio:.1f} times as long while everybody writes")
        said = [line for each in place.processes.started for line in each.words().splitlines()]
        locked = [line for line in said if "locked" in line or "Traceback" in line]
        failed = Run.objects.filter(status="failed")
        for line in [*(alone.bad + together.bad)[:5], *locked[:5], *map(str, failed[:5])]:
            report.say(f"! {line}")
        report.bar("answers of 500 and above", len(alone.bad) + len(together.bad), 0)
        report.bar("lines of web and workers about a lock or a failure", len(locked), 0)
        report.bar("runs that failed", failed.count(), 0)
        report.bar("decisions that met another one", together.conflicts, 0)
    report.end()


class _Feeder:
    """Finds packets that wait, and tells how many runs are at work."""

    def __init__(self, found: queue.SimpleQueue[tuple[uuid.UUID, str]]) -> None:
        self._found, self._handed_out = found, set[int]()
        self.live = 0

    def look(self) -> None:
        """Hand out what is new."""
        from approvals.models import Packet
        from runs.models import Run
        from runs.states import ENDED

        waiting = Packet.objects.filter(state="open").exclude(pk__in=self._handed_out)
        for pk, public_id, digest in waiting.values_list("pk", "public_id", "digest")[:100]:
            self._handed_out.add(pk)
            self._found.put((public_id, digest))
        self.live = Run.objects.exclude(status__in=[each.value for each in ENDED]).count()
        time.sleep(0.05)


def _crowd(
    port: int,
    sessions: list[str],
    work: Callable[[Person], None],
    seconds: float,
    *,
    beside: Callable[[], None] = lambda: time.sleep(0.05),
) -> Seen:
    """Let everybody do `work` again and again for so long, and `beside` in this thread."""
    seen, end = Seen(), time.monotonic() + seconds

    def until_the_end(person: Person) -> None:
        try:
            while time.monotonic() < end:
                work(person)
        except Exception as error:
            seen.bad.append(repr(error))

    threads = [
        threading.Thread(target=until_the_end, args=(Person(port, session, seen),), daemon=True)
        for session in sessions
    ]
    for thread in threads:
        thread.start()
    while time.monotonic() < end:
        beside()
    for thread in threads:
        thread.join(60)
    return seen


def _median(seen: Seen, kind: str) -> float:
    return statistics.median(seen.took[kind])


def _until_idle(place: Ground) -> None:
    """Let the workers finish, so that a failure at the end counts as well."""
    from runs.models import Run

    deadline = time.monotonic() + 120
    busy = ["queued", "running", "collecting", "checking", "publishing"]
    while (left := Run.objects.filter(status__in=busy).count()) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == 0, f"{left} runs are still at work after two minutes"


if __name__ == "__main__":
    main()
