"""A decision, from the HTTP request to its answer, against the bare locked UPDATE it contains.

The UPDATE: one transaction that locks the packet's row, writes its new state and commits to the
disk. The decision: one form sent to a web process (uvicorn, as `manage.py up` starts it), which
answers once it has committed; policy is asked again, the vote, four events and an audit line are
chained, and the run goes back to the queue. They take turns, each on packets of its own. No worker
runs: what follows from a decision has a measurement of its own (`resume`).

Two things say what no decision can go below: a form that reaches a view which does nothing, behind
session, person and tenant; and the statements of a decision alone, once only those that lock and
write and once all of them. They are recorded from a decision that is rolled back, and executed by
the driver itself, with their values ready, in one transaction on the connection that is there.
"""

from __future__ import annotations

import http.client
import secrets
import time
import urllib.parse
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg

from tests.bench.ground import cookie_of, crowd, ground, small
from tests.bench.report import Report

if TYPE_CHECKING:
    from approvals.models import Packet
    from portal.models import Membership

# A statement as the driver has it, with its values.
Recorded = tuple[str, Sequence[Any]]

ROUNDS = 20 if small() else 200
WARM = 10
BAR = 3.0


def main() -> None:
    with ground() as place:
        from django.conf import settings
        from django.db import transaction

        from approvals.confirm import typed_word
        from approvals.models import Decision, Packet

        worker = place.worker()
        crowd(place.park().run, 4 * (ROUNDS + WARM))
        worker.stop()
        waiting = list(Packet.objects.filter(state="open").order_by("pk"))
        site = place.site(DJANGO_SETTINGS_MODULE="tests.bench.site_settings")
        browser = http.client.HTTPConnection("127.0.0.1", site.port)
        form = secrets.token_hex(16)
        cookie = f"{cookie_of(place.cast.ada.user)}; {settings.CSRF_COOKIE_NAME}={form}"
        headers = {"Cookie": cookie, "Content-Type": "application/x-www-form-urlencoded"}

        def send(address: str, status: int, **told: str) -> float:
            body = urllib.parse.urlencode({"csrfmiddlewaretoken": form, **told})
            began = time.perf_counter()
            browser.request("POST", address, body, headers)
            answer = browser.getresponse()
            answer.read()
            took = time.perf_counter() - began
            assert answer.status == status, answer.status
            return took

        def decide(packet: Packet) -> float:
            told = {"answer": "approve", "seen": packet.digest, "token": uuid.uuid4().hex}
            told["typed"] = typed_word(packet)
            return send(f"/t/acme/packets/{packet.public_id}/decide/", 302, **told)

        def update(packet: Packet) -> float:
            began = time.perf_counter()
            with transaction.atomic(durable=True):
                row = Packet.objects.select_for_update().only("blocked").get(pk=packet.pk)
                row.blocked = "measured"
                row.save(update_fields=["blocked"])
            return time.perf_counter() - began

        def alone(packet: Packet, *, reads: bool) -> float:
            recorded = record(packet, place.cast.ada)
            return execute([each for each in recorded if reads or not _only_reads(each[0])])

        rounds: list[tuple[float, ...]] = []
        for _ in range(WARM + ROUNDS):
            rounds.append(
                (
                    decide(waiting.pop()),
                    update(waiting.pop()),
                    send("/nothing/acme/", 200),
                    alone(waiting.pop(), reads=False),
                    alone(waiting.pop(), reads=True),
                )
            )
        decided, bare, nothing, writes, every = zip(*rounds[WARM:], strict=True)
        assert Decision.objects.count() == 3 * (ROUNDS + WARM)
        report = Report("decision: a form sent, and committed", place.database)
        floor = report.took("lock a packet, update it, commit", bare)
        door = report.took("a form behind the door that does nothing", nothing)
        written = report.took("the locks and writes of a decision, by the driver", writes)
        asked = report.took("all of its statements, by the driver", every)
        mine = report.took("a decision over HTTP", decided)
        for what, least in (("door and writes", written), ("door and every statement", asked)):
            least_ms = door.median + least.median
            report.say(
                f"{what} alone: {least_ms:.2f} ms, {least_ms / floor.median:.2f} of the UPDATE"
            )
        report.bar("decision / locked UPDATE", mine.median / floor.median, BAR)
    report.end()


class _Enough(Exception):
    """The last statement was recorded, so nothing of the decision is to stay."""


def record(packet: Packet, member: Membership) -> list[Recorded]:
    """The statements of an approval inside its transaction. It is rolled back."""
    from django.db import connection

    from approvals.confirm import typed_word
    from approvals.deciding import Answer, settle_packet
    from approvals.states import Verdict

    recorded: list[Recorded] = []

    def note(execute: Any, text: str, values: Any, many: bool, context: Any) -> Any:
        found = execute(text, values, many, context)
        if not text.startswith("BEGIN"):
            recorded.append((text, values or ()))
        # The events of a decision are chained at its end.
        if text.startswith('INSERT INTO "runs_event"'):
            raise _Enough
        return found

    answer = Answer(Verdict.APPROVE, packet.digest, token=uuid.uuid4().hex)
    answer = replace(answer, typed=typed_word(packet))
    try:
        with connection.execute_wrapper(note):
            settle_packet(packet.public_id, answer, member=member)
    except _Enough:
        return recorded
    raise AssertionError("a decision that left no event")


def _only_reads(text: str) -> bool:
    return text.startswith("SELECT") and " FOR NO KEY UPDATE" not in text


def execute(recorded: Sequence[Recorded]) -> float:
    """How long they take in a transaction of their own, with nothing around them."""
    from django.db import connection

    driver = connection.connection
    sqlite = connection.vendor == "sqlite"
    begin = "BEGIN IMMEDIATE" if sqlite else "BEGIN"
    texts = [(text.replace("%s", "?") if sqlite else text, values) for text, values in recorded]
    cursor = driver.cursor() if sqlite else psycopg.Cursor(driver)
    began = time.perf_counter()
    cursor.execute(begin)
    for text, values in texts:
        cursor.execute(text, values)
        if text.startswith("SELECT"):
            cursor.fetchall()
    cursor.execute("COMMIT")
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
