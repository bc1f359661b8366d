"""A stage of the drill in this test's database, and providers to attack."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REAL = (
    pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
    pytest.param("docker", marks=pytest.mark.docker),
)


@pytest.fixture
def bubblewrap(settings: Any) -> str:
    """Runs of this test work in bubblewrap."""
    settings.SANDBOX_PROVIDER = "bubblewrap"
    return "bubblewrap"


@pytest.fixture
def docker_engine(settings: Any) -> str:
    """Runs of this test work in Docker."""
    settings.SANDBOX_PROVIDER = "docker"
    return "docker"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of the host, directly below /tmp: a sandbox has a /tmp of its own."""
    with tempfile.TemporaryDirectory(prefix="drill-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def stage(transactional_db: None, settings: Any, tmp_path: Path, folder: Path) -> Iterator[Any]:
    """What attacks on whole runs need (`approvals.drill.stage.Stage`)."""
    from approvals.drill.stage import Stage

    settings.SOURCE_ROOT = tmp_path / "repositories"
    settings.SOURCE_CACHE_DIR = tmp_path / "sources"
    settings.BLOB_DIR = tmp_path / "blobs"
    settings.BROKER_PRIVATE_HOSTS = ["127.0.0.1"]
    settings.SWEEP_SECONDS = 0
    with Stage.set(folder) as made:
        yield made
