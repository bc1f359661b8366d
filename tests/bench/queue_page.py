"""The queue page with 100,000 open packets, against the smallest view that draws fifty rows.

Both are answered by one web process (uvicorn, as `manage.py up` starts it) over one database, and
take turns. The smallest view passes the same middleware and draws five columns of fifty packets;
the queue page knows what the person may do and decide, and draws the whole shell around its rows.
"""

from __future__ import annotations

import http.client
import time

from tests.bench.ground import cookie_of, crowd, ground, small
from tests.bench.report import Report

ROUNDS = 30 if small() else 300
OTHERS = 2_000 if small() else 100_000
BAR = 2.0


def main() -> None:
    with ground() as place:
        worker = place.worker()
        crowd(place.park().run, OTHERS // 2)
        crowd(place.review().run, OTHERS - OTHERS // 2)
        worker.stop()
        site = place.site(DJANGO_SETTINGS_MODULE="tests.bench.site_settings")
        browser = http.client.HTTPConnection("127.0.0.1", site.port)
        cookie = {"Cookie": cookie_of(place.cast.ada.user)}

        def get(address: str, words: str) -> tuple[float, int]:
            began = time.perf_counter()
            browser.request("GET", address, headers=cookie)
            answer = browser.getresponse()
            page = answer.read()
            took = time.perf_counter() - began
            assert answer.status == 200, (address, answer.status)
            assert page.count(words.encode()) == 50, (address, page.count(words.encode()))
            return took, len(page)

        floor, page = f"/smallest/{place.cast.acme.pk}/", "/t/acme/queue/"
        everyone = f"{page}?show=all"
        views = {
            floor: "<tr>",
            page: '<li class="row"',
            everyone: '<li class="row"',
        }
        taken: dict[str, list[float]] = {address: [] for address in views}
        sizes = {address: get(address, words)[1] for address, words in views.items()}
        for round_ in range(ROUNDS + 10):
            for address, words in views.items():
                took, _ = get(address, words)
                if round_ >= 10:
                    taken[address].append(took)

        report = Report(f"queue_page: fifty rows of {OTHERS:,} open packets", place.database)
        bare = report.took(f"smallest view ({sizes[floor] / 1000:.1f} kB)", taken[floor])
        mine = report.took(f"queue, mine ({sizes[page] / 1000:.1f} kB)", taken[page])
        report.took(f"queue, everyone's ({sizes[everyone] / 1000:.1f} kB)", taken[everyone])
        report.bar("queue page / smallest view", mine.median / bare.median, BAR)
    report.end()


if __name__ == "__main__":
    main()
