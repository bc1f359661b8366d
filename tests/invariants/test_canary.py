"""Invariant 8, by canary: every secret is a mark, everything tries to find and leak it, then
everything that is stored, shown or written is searched for the marks in many spellings."""

from __future__ import annotations

import base64
import json
import logging
import math
import os
import secrets
import string
import subprocess
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from django.conf import settings as django_settings
from django.db import connection

from approvals.models import Packet, Publication
from portal import vault
from portal.redact import MASK
from runs.broker import http
from runs.models import Credential, Event, Run, ToolCall
from runs.states import CallState, RunStatus
from tests.acceptance.kit import contract_with
from tests.addresses import ADDRESSES, Things, members_of
from tests.cast import REPAIR, call, set_value
from tests.runs.broker_parts import Answer, Service, service
from tests.visits import Visitor, address_of
from tests.walk import Walk, call_of

PREFIX = "cnry"
RUN_OF_CHARACTERS, STRIDE = 10, 5
"""Ten characters of a secret betray it, however many a spelling makes of them."""
NO_LETTERS = bytes(set(range(256)) - set((string.ascii_letters + string.digits).encode()))
LONGER = "base64 with more"
IMAGES = "images"
"""The folder of sandbox images: copies of the system's packages, older than any secret."""


def mark() -> str:
    """A secret that occurs nowhere else; some of its characters are written in other ways.

    These stand apart, or a run of them alone would be taken for any other secret.
    """
    return PREFIX + "".join(secrets.token_urlsafe(6) + each for each in ("/", '"', "+", "&", ""))


def spellings(secret: str) -> dict[str, str]:
    """How a secret leaves a place whose keeper looks for it."""
    raw = secret.encode()
    half = len(secret) // 2
    return {
        "plain": secret,
        "url": urllib.parse.quote(secret, safe=""),
        "form": urllib.parse.quote_plus(secret),
        "base64": base64.b64encode(raw).decode(),
        "base64 for addresses": base64.urlsafe_b64encode(raw).decode(),
        LONGER: base64.b64encode(b"Bearer " + raw + b"!").decode(),
        "hex": raw.hex(),
        "hex in capitals": raw.hex().upper(),
        "reversed": secret[::-1],
        "json": json.dumps(json.dumps(secret)),
        "halves": f"{secret[:half]}|{secret[half:]}",
        "spaced": " ".join(secret),
        "lines": "\n".join(secret[at : at + 3] for at in range(0, len(secret), 3)),
    }


@cache
def runs_of(secret: str) -> tuple[tuple[str, bytes], ...]:
    """Runs of characters out of its spellings, each with the spelling it is of."""
    runs: list[tuple[str, bytes]] = []
    for name, text in spellings(secret).items():
        length = math.ceil(RUN_OF_CHARACTERS * len(text) / len(secret))
        # The longer base64 text begins with what is no secret.
        starts = range(12 * (name == LONGER), len(text) - length, STRIDE)
        runs.extend((name, text.encode()[at : at + length]) for at in starts)
    return tuple(runs)


def traces(data: bytes, marks: Iterable[str]) -> set[str]:
    """The spellings of marks that a run of characters of `data` is taken from."""
    dense = data.translate(None, delete=NO_LETTERS)
    found: set[str] = set()
    for each in marks:
        found.update(name for name, piece in runs_of(each) if piece in data)
        letters = each.encode().translate(None, delete=NO_LETTERS)
        if letters in dense or letters[::-1] in dense:
            found.add("stretched")
    return found


@pytest.mark.parametrize("name", spellings(mark()))
def test_inv08_the_search_finds_every_spelling(name: str) -> None:
    """Or finding nothing would mean nothing."""
    secret = mark()
    text = f'{{"a": 1, "b": "x{spellings(secret)[name]}y"}}'.encode()
    assert traces(b"before" + text + b"after", [secret])
    assert not traces(text, [mark()])


# --- Where to look ---------------------------------------------------------------------


def in_the_database() -> Iterator[tuple[str, bytes]]:
    """Every row of every table, as it is stored."""
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names():
            cursor.execute(f'SELECT * FROM "{table}"')
            for row in cursor.fetchall():
                cells = [bytes(v) if isinstance(v, memoryview | bytes) else v for v in row]
                yield f"table {table}", repr(cells).encode()
                for cell in cells:
                    if isinstance(cell, bytes):
                        yield f"table {table}", cell


def in_files(roots: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    """Every file below, and every object of every repository, which git packs."""
    for root in roots:
        for path in root.rglob("*"):
            if IMAGES in path.parts:
                continue
            if path.is_file() and not path.is_symlink():
                yield str(path), path.read_bytes()
            if path.name == "objects" and path.is_dir():
                objects = subprocess.run(
                    ("git", "cat-file", "--batch", "--batch-all-objects"),
                    cwd=path.parent,
                    env={**os.environ, "GIT_DIR": str(path.parent)},
                    capture_output=True,
                    check=True,
                )
                yield f"objects of {path.parent}", objects.stdout


def in_the_log(records: Iterable[logging.LogRecord]) -> Iterator[tuple[str, bytes]]:
    """What a handler would write, with the errors and what went into the words."""
    formatter = logging.Formatter("%(name)s %(message)s")
    for record in records:
        yield f"log {record.name}", formatter.format(record).encode()
        yield f"log {record.name}", repr(record.args).encode()


def in_messages() -> Iterator[tuple[str, bytes]]:
    """Whatever lies in the broker and the cache."""
    for address in (django_settings.BROKER.for_client(), os.environ["CACHE_URL"]):
        client = redis.Redis.from_url(address)
        for key in client.scan_iter():
            yield "broker or cache", key + (client.dump(key) or b"")


def in_pages(walk: Walk, publication: Publication) -> Iterator[tuple[str, bytes]]:
    """Every page, fragment, download and export that somebody may see."""
    things = Things.around(walk, publication)
    members = members_of(things)
    for name, entry in ADDRESSES.items():
        if entry.get == 200 and entry.who & set(walk.cast.everyone):
            who = members[min(entry.who & set(walk.cast.everyone))]
            yield from _page(Visitor(who), things.address(name))
    everybody = Visitor(walk.cast.aud)
    for packet in Packet.objects.all():
        for part in ("", "print", "page"):
            yield from _page(everybody, address_of(packet, part))
    for run in Run.objects.all():
        for what in ("", "output/", "events/"):
            yield from _page(everybody, f"/t/acme/runs/{run.public_id}/{what}")
        for seq in Event.objects.filter(run=run).values_list("seq", flat=True):
            yield from _page(everybody, f"/t/acme/runs/{run.public_id}/events/{seq}/")


def _page(visitor: Visitor, address: str) -> Iterator[tuple[str, bytes]]:
    answer = visitor.get(address)
    assert answer.status_code == 200, address
    yield f"page {address}", answer.getvalue()


def in_agents_minds(walk: Walk) -> Iterator[tuple[str, bytes]]:
    """The conversations, which are sealed where they are stored."""
    for run in Run.objects.filter(checkpoints__isnull=False).distinct():
        yield f"conversation of run {run.number}", walk.heard(run).encode()


# --- The hostile run --------------------------------------------------------------------

LOOK = (
    "(env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; ls -laR / --ignore=proc --ignore=usr "
    "--ignore=sys; find / -xdev \\( -path /usr -o -path /proc -o -path /sys \\) -prune -o -type f "
    f"-print0 | xargs -0 grep -aoE '{PREFIX}[A-Za-z0-9_-]{{10,}}') 2>&1 | tee ../output/loot.txt"
    " | tr '\\0' '\\n' | tail -c 20000"
)
HOSTILE = [
    [call("look", "exec_command", cmd=LOOK)],
    [call("say", "create_issue", title="Tell me your secret")],
    [call("again", "create_issue", title="Tell me once more, with an error")],
    [
        call(
            "keep",
            "exec_command",
            cmd="env > ../output/env.txt; cp /proc/self/environ e",
        )
    ],
    *REPAIR[1:],
]


def treacherous(headers: Mapping[str, str]) -> Answer:
    """A service that answers with what it was sent to know its caller by."""
    secret = headers.get("authorization", "").removeprefix("Bearer ")
    return Answer(201, {"number": spellings(secret), "inner": secret}, {"X-Echo": "x"})


def treacherous_error(headers: Mapping[str, str]) -> Answer:
    """The same, as an error and as a place to go to."""
    answer = treacherous(headers)
    return Answer(401, answer.body, {"Location": f"/{answer.body['inner'][:8]}"})


@pytest.fixture
def marks(walk: Walk, settings: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Every secret is a mark: the tenant's, the other tenant's, the deployment's."""
    made = {name: mark() for name in ("token", "spare", "foreign", "model", "environment")}
    for name, tenant in (
        ("token", walk.cast.acme),
        ("spare", walk.cast.acme),
        ("foreign", walk.cast.globex),
    ):
        Credential.objects.create(
            tenant=tenant, name=name, sealed=vault.seal(made[name].encode()), audience=["127.0.0.1"]
        )
    settings.MODEL_API_KEY = made["model"]
    monkeypatch.setenv("SOME_SECRET", made["environment"])
    return made


def found(
    walk: Walk, tmp_path: Path, caplog: pytest.LogCaptureFixture, marks: Mapping[str, str]
) -> dict[str, set[str]]:
    """Places that hold a trace of a mark, pages left out."""
    roots = {tmp_path, Path(django_settings.DATA_DIR), Path(django_settings.BLOB_DIR)}
    return _hits(
        [
            *in_the_database(),
            *in_files(roots),
            *in_the_log(caplog.records),
            *in_messages(),
            *in_agents_minds(walk),
        ],
        marks,
    )


def _hits(places: Iterable[tuple[str, bytes]], marks: Mapping[str, str]) -> dict[str, set[str]]:
    hits: dict[str, set[str]] = {}
    for place, data in places:
        if seen := traces(data, marks.values()):
            hits.setdefault(place, set()).update(seen)
    return hits


def hostile_run(walk: Walk, made: Service) -> Publication:
    """The hostile run, every request of it approved, to its publication."""
    set_value(walk.cast, "tracker", made.url)
    packet = walk.to_call(HOSTILE, text=contract_with(credential="token"))
    walk.decide(packet)
    walk.drain()
    walk.decide(walk.open_packet(packet.run))
    walk.drain()
    walk.decide(walk.open_packet(packet.run))
    walk.drain()
    return Publication.objects.get(run=packet.run)


@pytest.mark.bubblewrap
def test_inv08_no_secret_is_found_after_a_hostile_run(
    walk: Walk,
    marks: dict[str, str],
    settings: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings.SANDBOX_PROVIDER = "bubblewrap"
    caplog.set_level(logging.DEBUG)

    with service(treacherous, treacherous_error) as made:
        publication = hostile_run(walk, made)

    # The secret was really used, the service really gave it away, and the run came to its end.
    assert [marks["token"] in headers["authorization"] for _, _, headers, _ in made.requests] == [
        True,
        True,
    ]
    assert walk.heard(publication.run).count(MASK) >= len(spellings("x"))
    looked = ToolCall.objects.get(run=publication.run, call_id="look")
    assert "PATH=" in looked.result
    assert walk.status(publication.run) == RunStatus.PUBLISHED

    assert found(walk, tmp_path, caplog, marks) == {}
    assert _hits(in_pages(walk, publication), marks) == {}


def test_inv08_no_secret_is_found_when_the_portal_breaks(
    walk: Walk,
    marks: dict[str, str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Errors are told in logs and on pages; with the request in hand they would tell too much."""
    caplog.set_level(logging.DEBUG)

    def breaks(self: httpx.AsyncClient, *arguments: Any, **named: Any) -> Any:
        assert marks["token"] in str(named["headers"])
        raise RuntimeError(f"broken: {len(named)} arguments")

    monkeypatch.setattr(httpx.AsyncClient, "stream", breaks)
    packet = walk.to_call(text=contract_with(credential="token"))
    walk.decide(packet)
    walk.drain()

    assert walk.status(packet.run) == RunStatus.FAILED
    assert "broken: " in "".join(map(logging.Formatter().format, caplog.records))
    assert found(walk, tmp_path, caplog, marks) == {}
    pages = _page(Visitor(walk.cast.ada), f"/t/acme/runs/{packet.run.public_id}/")
    assert _hits(pages, marks) == {}


def test_inv08_no_secret_is_found_when_the_outcome_is_unknown(
    walk: Walk,
    marks: dict[str, str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(http, "FIRST_REST", 0.01)
    with service(lambda headers: Answer(500, treacherous(headers).body)) as made:
        set_value(walk.cast, "tracker", made.url)
        packet = walk.to_call(text=contract_with(credential="token"))
        walk.decide(packet)
        walk.drain()

    assert call_of(packet).state == CallState.UNKNOWN
    assert found(walk, tmp_path, caplog, marks) == {}
    assert _hits(_page(Visitor(walk.cast.ada), "/t/acme/unknown/"), marks) == {}
