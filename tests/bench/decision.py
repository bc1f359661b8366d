"""A decision, from the HTTP request to its answer, against the bare locked UPDATE it contains.

The UPDATE: one transaction that locks the packet's row, writes its new state and commits to the
disk. The decision: one form sent to a web process (uvicorn, as `manage.py up` starts it), which
answers once it has committed; policy is asked again, the vote, four events and an audit line are
chained, and the run goes back to the queue. They take turns, each on packets of its own. No worker
runs: what follows from a decision has a measurement of its own (`resume`). A form that reaches a
view which does nothing, behind session, person and tenant, says what no decision can go below.
"""

from __future__ import annotations

import http.client
import secrets
import time
import urllib.parse
import uuid

from tests.bench.ground import cookie_of, crowd, ground, small
from tests.bench.report import Report

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
        crowd(place.park().run, 2 * (ROUNDS + WARM))
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

        decided, bare, nothing = [], [], []
        for round_ in range(ROUNDS + WARM):
            taken = decide(waiting.pop()), update(waiting.pop()), send("/nothing/acme/", 200)
            if round_ >= WARM:
                decided.append(taken[0])
                bare.append(taken[1])
                nothing.append(taken[2])
        assert Decision.objects.count() == ROUNDS + WARM
        report = Report("decision: a form sent, and committed", place.database)
        floor = report.took("lock a packet, update it, commit", bare)
        report.took("a form behind the door that does nothing", nothing)
        mine = report.took("a decision over HTTP", decided)
        report.bar("decision / locked UPDATE", mine.median / floor.median, BAR)
    report.end()


if __name__ == "__main__":
    main()
