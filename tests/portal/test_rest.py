"""When a worker may be replaced: never while something runs, and not right after."""

from __future__ import annotations

from unittest.mock import patch

from portal.rest import Activity


def test_rest_counts_from_the_end_of_the_last_work() -> None:
    with patch("portal.rest.time.monotonic") as clock:
        clock.return_value = 100.0
        activity = Activity()
        assert not activity.rested(60)

        activity.begin()
        activity.begin()
        clock.return_value = 1000.0
        assert not activity.rested(60)  # hours of work are no rest

        activity.end()
        assert not activity.rested(0)  # one of the two still runs
        activity.end()
        clock.return_value = 1059.0
        assert not activity.rested(60)
        clock.return_value = 1060.0
        assert activity.rested(60)
