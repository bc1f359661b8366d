"""The queue page with every filter: at 1,000 packets, and at 1,000,000 of the same tenant.

One web process over one database, which grows in between. Copies of a packet that a run opened,
made inside the database: of every ten nine are open, of all kinds and with different words. A
page's sealed content is left out, because no list reads it. Each address is asked in turn.
"""

from __future__ import annotations

import http.client
import time

from tests.bench.ground import Ground, _Copies, cookie_of, ground, small
from tests.bench.report import Report

ROUNDS = 10 if small() else 40
FEW, MANY = (200, 5_000) if small() else (1_000, 1_000_000)
BAR = 2.0

FILTERS = {
    "mine": "",
    "everyone's": "?show=all",
    "decided": "?show=decided",
    "mine, one kind": "?kind=question",
    "everyone's, one kind": "?show=all&kind=call",
    "decided, one kind": "?show=decided&kind=call",
    "a packet's number": "?show=all&q=77",
    "words most have": "?show=all&q=issue",
    "mine, words most have": "?q=issue",
    "words of one kind": "?show=all&kind=question&q=issue",
    "words few have": "?show=all&q=rarely",
    "words nobody has": "?show=all&q=nowhere",
}


def grow(place: Ground, to: int) -> None:
    """So many packets of the tenant."""
    from django.db import connection

    from approvals.models import Packet
    from portal.models import Tenant

    tenant = Tenant.objects.get(pk=place.cast.acme.pk)
    template = Packet.objects.filter(tenant=tenant, kind="call").order_by("pk")[0]
    count = to - Packet.objects.filter(tenant=tenant).count()
    copies = _Copies(Packet, count)
    odd = "n % 10 = 3"
    when = copies.apart("opened_at", -1)
    copies.copy(
        template,
        number=f"{tenant.packet_count} + n",
        public_id=copies.uuid,
        call_id="NULL",
        page="'{}'",
        kind="CASE WHEN n % 4 = 1 THEN 'question' ELSE kind END",
        effect="effect || CASE WHEN n % 97 = 5 AND n < 1000 THEN ' rarely ' ELSE ' ' END || n",
        state=f"CASE WHEN {odd} THEN 'denied' ELSE state END",
        settled_at=f"CASE WHEN {odd} THEN {when} END",
        opened_at=when,
        expires_at=copies.apart("expires_at", 1),
    )
    Tenant.objects.filter(pk=tenant.pk).update(packet_count=tenant.packet_count + count)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE approvals_packet")


def main() -> None:
    with ground() as place:
        worker = place.worker()
        place.park()
        worker.stop()
        site = place.site()
        cookie = {"Cookie": cookie_of(place.cast.ada.user)}

        def get(browser: http.client.HTTPConnection, query: str) -> float:
            began = time.perf_counter()
            browser.request("GET", f"/t/acme/queue/{query}", headers=cookie)
            answer = browser.getresponse()
            answer.read()
            assert answer.status == 200, (query, answer.status)
            return time.perf_counter() - began

        taken: dict[int, dict[str, list[float]]] = {}
        for size in (FEW, MANY):
            grow(place, size)
            browser = http.client.HTTPConnection("127.0.0.1", site.port)
            taken[size] = {name: [] for name in FILTERS}
            for round_ in range(ROUNDS + 3):
                for name, query in FILTERS.items():
                    took = get(browser, query)
                    if round_ >= 3:
                        taken[size][name].append(took)
        report = Report(f"queue_filters: {MANY:,} packets against {FEW:,}", place.database)
        for name in FILTERS:
            few = report.took(f"{name}, {FEW:,}", taken[FEW][name])
            many = report.took(f"{name}, {MANY:,}", taken[MANY][name])
            report.bar(f"{name}: {MANY:,} / {FEW:,}", many.median / few.median, BAR)
    report.end()


if __name__ == "__main__":
    main()
