"""The database's clock as tests see it: they may move it on, and nothing else of time."""

from __future__ import annotations

from datetime import datetime, timedelta

from portal import clock

_real = clock.database_now
_ahead = timedelta(0)


def _moved() -> datetime:
    return _real() + _ahead


def install() -> None:
    """Put it in the place of the real one, before any module of the portal takes that."""
    clock.database_now = _moved


def move_on(by: timedelta) -> None:
    """So much time goes by, for the rest of the test."""
    global _ahead
    _ahead += by


def set_right() -> None:
    """As late as it is."""
    global _ahead
    _ahead = timedelta(0)
