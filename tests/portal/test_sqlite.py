"""Waiting for SQLite's write lock: in line, not for luck, and not for ever."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import OperationalError, connection, transaction

from portal.models import User
from portal.sqlite import base
from tests.cast import Cast
from tests.races.crowd import at_once

pytestmark = pytest.mark.skipif("connection.vendor != 'sqlite'")


@contextmanager
def held_elsewhere(seconds: float = 60.0) -> Iterator[threading.Event]:
    """Somebody else holds the write lock until the time or the block is over."""
    holds, over = threading.Event(), threading.Event()

    def hold() -> None:
        other = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        holds.set()
        over.wait(seconds)
        other.execute("ROLLBACK")
        other.close()

    thread = threading.Thread(target=hold)
    thread.start()
    assert holds.wait(30)
    try:
        yield over
    finally:
        over.set()
        thread.join()


def test_a_commit_is_on_the_disk_before_it_is_answered(cast: Cast) -> None:
    """In every thread: 2 is FULL, which syncs the log at each commit. Less loses commits that were
    answered when the power fails: decisions, and attempts whose effect was sent."""
    said: list[tuple[object, ...]] = []

    def ask() -> None:
        with connection.cursor() as cursor:
            said.append(
                tuple(
                    cursor.execute(f"PRAGMA {name}").fetchone()[0]
                    for name in ("journal_mode", "synchronous")
                )
            )

    ask()
    assert at_once([ask, ask]) == [None, None]
    assert said == [("wal", 2)] * 3


def test_a_writer_goes_on_as_soon_as_the_lock_is_free(cast: Cast) -> None:
    """A transaction, and a statement that stands alone."""
    for write in (transaction.atomic(durable=True), None):
        with held_elsewhere(0.5):
            began = time.monotonic()
            if write is None:
                User.objects.filter(pk=cast.ada.user_id).update(name="Ada")
            else:
                with write:
                    pass
            assert time.monotonic() - began >= 0.4


def test_patience_has_an_end(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PATIENCE", 0.3)
    with held_elsewhere():
        began = time.monotonic()
        with pytest.raises(OperationalError, match="locked"):
            User.objects.filter(pk=cast.ada.user_id).update(name="Ada")
        assert 0.2 < time.monotonic() - began < 10
        User.objects.get(pk=cast.ada.user_id)  # readers never wait


def test_nobody_is_passed_by_for_long(cast: Cast) -> None:
    """Eight write without a pause; the longest wait is a few rounds, not all of them."""
    waits: list[float] = []
    rounds, threads, held = 40, 8, 0.005

    def write() -> None:
        for _ in range(rounds):
            began = time.monotonic()
            with transaction.atomic(durable=True):
                waits.append(time.monotonic() - began)
                User.objects.filter(pk=cast.ada.user_id).update(name="Ada")
                time.sleep(held)

    began = time.monotonic()
    assert at_once([write] * threads) == [None] * threads
    whole = time.monotonic() - began
    assert len(waits) == rounds * threads
    assert max(waits) < whole / 3, (max(waits), whole)
