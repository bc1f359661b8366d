"""The stage of the browser tests."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.processes import Processes


@pytest.fixture
def stage(walk: Any, processes: Processes, browser: Browser) -> Any:
    """A web process that sees what `walk` makes, and browsers for its people."""
    from tests.browser.stage import Stage

    return Stage.set(processes, browser)
