"""The queue page with every filter: at 1,000 packets, and at 1,000,000 of the same tenant (on
SQLite, which is for one machine, at 100,000).

One web process over one database, which grows in between. Copies of a packet that a run opened,
made inside the database: of every ten nine are open, of all kinds and with different words. A
page's sealed content is left out, because no list reads it. Each address is asked in turn.
"""

from __future__ import annotations

import http.client
import time
from urllib.parse import quote

from tests.bench.ground import Ground, _Copies, cookie_of, ground, small
from tests.bench.report import Report

ROUNDS = 10 if small() else 40
FEW = 200 if small() else 1_000
BAR = 2.0

# Words that are in the packets: one that ten have, one that one in 300 has, two that no packet has
# both of, and one that only the packets have that come last.
FILTERS = {
    "mine": "",
    "everyone's": "?show=all",
    "decided": "?show=decided",
    "mine, one kind": "?kind=question",
    "everyone's, one kind": "?show=all&kind=call",
    "everyone's, a kind that is not there": "?show=all&kind=egress",
    "decided, one kind": "?show=decided&kind=call",
    "decided, a kind that is not there": "?show=decided&kind=egress",
    "a packet's number": "?show=all&q=77",
    "a packet's digest": "?show=all&q={digest}",
    "words most have": "?show=all&q=issue",
    "mine, words most have": "?q=issue",
    "decided, words most have": "?show=decided&q=issue",
    "words of one kind": "?show=all&kind=question&q=issue",
    "words few have": "?show=all&q=rarely",
    "mine, words few have": "?q=rarely",
    "words few have, of one kind": "?show=all&kind=question&q=rarely",
    "decided, words few have": "?show=decided&q=rarely",
    "words nobody has": "?show=all&q=nowhere",
    "mine, words nobody has": "?q=nowhere",
    "decided, words nobody has": "?show=decided&q=nowhere",
    "words some have": "?show=all&q=sometimes",
    "two words few have": "?show=all&q=rarely+issue",
    "two words nobody has both of": "?show=all&q=odd+even",
    "mine, two words nobody has both of": "?q=odd+even",
    "decided, two words nobody has both of": "?show=decided&q=odd+even",
    "words only the last ones have": "?show=all&q=late",
    "mine, from the middle on": "?after={middle}",
    "everyone's, one kind, from the middle on": "?show=all&kind=call&after={middle}",
    "words most have, from the middle on": "?show=all&q=issue&after={middle}",
    "decided, from the middle on": "?show=decided&before={half}",
    "decided, words few have, from the middle on": "?show=decided&q=rarely&before={half}",
}


def grow(place: Ground, to: int) -> None:
    """So many packets of the tenant."""
    from django.db import connection

    from approvals.models import Packet
    from portal.models import Tenant

    tenant = Tenant.objects.get(pk=place.cast.acme.pk)
    template = Packet.objects.filter(tenant=tenant, kind="call").order_by("pk")[0]
    last = Packet.objects.order_by("-pk")[0].pk
    count = to - Packet.objects.filter(tenant=tenant).count()
    copies = _Copies(Packet, count)
    when = copies.apart("opened_at", -1)
    sqlite = connection.vendor == "sqlite"
    more = (
        "(CASE WHEN n % 2 = 1 THEN 'odd ' ELSE 'even ' END"
        " || CASE WHEN n % 97 = 5 AND n < 1000 THEN 'rarely ' ELSE '' END"
        " || CASE WHEN n % 300 = 7 THEN 'sometimes ' ELSE '' END"
        f" || CASE WHEN n > {count * 9 // 10} THEN 'late ' ELSE '' END"
        " || n)"
    )
    odd = "n % 10 = 3 OR n % 10 = 6 AND n % 3 = 0"
    copies.copy(
        template,
        number=f"{tenant.packet_count} + n",
        public_id=copies.uuid,
        call_id="NULL",
        page="'{}'",
        digest="lower(hex(randomblob(32)))" if sqlite else "encode(sha256(n::text::bytea), 'hex')",
        kind="CASE WHEN n % 4 = 1 THEN 'question' ELSE kind END",
        effect=f"effect || ' ' || {more}",
        words=f"words || {more} || ' '",
        state=f"CASE WHEN {odd} THEN 'denied' ELSE state END",
        settled_at=f"CASE WHEN {odd} THEN {when} END",
        opened_at=when,
        expires_at=copies.apart("expires_at", 1),
    )
    _list(last)
    Tenant.objects.filter(pk=tenant.pk).update(packet_count=tenant.packet_count + count)
    if not sqlite:
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE approvals_packet, approvals_packetword")


def _list(after: int) -> None:
    """List the packets that were copied under their words."""
    from django.db import connection

    from approvals.words import COMMON, LONGEST

    common = ", ".join(f"'{word}'" for word in sorted(COMMON))
    if connection.vendor == "sqlite":
        split = """json_each('["' || replace(trim(words), ' ', '","') || '"]') AS each"""
        word, digest = "CAST(each.value AS BLOB)", f"CAST(substr(digest, 1, {LONGEST}) AS BLOB)"
        value = "each.value"
    else:
        split = "regexp_split_to_table(trim(words), ' ') AS each"
        word, digest = "convert_to(each, 'UTF8')", f"convert_to(left(digest, {LONGEST}), 'UTF8')"
        value = "each"
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO approvals_packetword (tenant_id, word, packet_id) "
            f"SELECT tenant_id, {word}, approvals_packet.id FROM approvals_packet, {split} "
            f"WHERE approvals_packet.id > {after} AND {value} NOT IN ({common}) "
            f"UNION SELECT tenant_id, {digest}, id FROM approvals_packet WHERE id > {after}"
        )


def addresses(place: Ground) -> dict[str, str]:
    """What is asked of the packets that are there now."""
    from approvals.models import Packet

    packets = Packet.objects.filter(tenant=place.cast.acme)
    open_ones = packets.filter(state="open").order_by("expires_at", "pk")
    middle = open_ones[open_ones.count() // 2]
    known = {
        "digest": middle.digest[:12],
        "middle": quote(f"{middle.expires_at.isoformat()}~{middle.pk}"),
        "half": packets.count() // 2,
    }
    return {name: query.format(**known) for name, query in FILTERS.items()}


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

        many_of = {"sqlite": 100_000, "postgresql": 1_000_000}
        most = 5_000 if small() else many_of[place.database]
        taken: dict[int, dict[str, list[float]]] = {}
        for size in (FEW, most):
            grow(place, size)
            asked = addresses(place)
            browser = http.client.HTTPConnection("127.0.0.1", site.port)
            taken[size] = {name: [] for name in FILTERS}
            for round_ in range(ROUNDS + 3):
                for name, query in asked.items():
                    took = get(browser, query)
                    if round_ >= 3:
                        taken[size][name].append(took)
        report = Report(f"queue_filters: {most:,} packets against {FEW:,}", place.database)
        for name in FILTERS:
            few = report.took(f"{name}, {FEW:,}", taken[FEW][name])
            many = report.took(f"{name}, {most:,}", taken[most][name])
            report.bar(f"{name}: {most:,} / {FEW:,}", many.median / few.median, BAR)
    report.end()


if __name__ == "__main__":
    main()
