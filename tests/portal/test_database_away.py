"""What a page says while the database does not take part."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection

from tests.cast import Cast
from tests.visits import Visitor, text_of

FULL = sqlite3.OperationalError("disk I/O error")
FULL.sqlite_errorcode = sqlite3.SQLITE_IOERR
GONE = psycopg.OperationalError("the connection is lost")


@pytest.fixture(params=[FULL, GONE], ids=["full", "gone"])
def ada(cast: Cast, request: pytest.FixtureRequest) -> Iterator[Visitor]:
    """Ada, signed in before no statement was answered any more."""
    visitor = Visitor(cast.ada)
    assert visitor.get("/t/acme/queue/").status_code == 200

    def refuse(*args: Any) -> Any:
        raise OperationalError(str(request.param)) from request.param

    with connection.execute_wrapper(refuse):
        yield visitor


@pytest.mark.parametrize("path", ["/t/acme/queue/", "/t/acme/runs/", "/tenants/", "/"])
@pytest.mark.parametrize("htmx", [False, True])
def test_inv12_a_page_names_the_database(ada: Visitor, path: str, htmx: bool) -> None:
    page = ada.get(path, htmx=htmx)
    assert page.status_code == 503
    assert "The portal’s database is away" in text_of(page)
    assert "portal.database_away" in text_of(page)
    # A commit may have been on its way.
    assert "look there before you try again" in text_of(page)
    assert page["Cache-Control"] == "no-store"


def test_health_is_told_also_to_somebody_who_is_signed_in(ada: Visitor) -> None:
    assert ada.get("/livez").status_code == 200
    ready = ada.get("/readyz")
    assert ready.status_code == 503
    assert "database: down" in text_of(ready)
