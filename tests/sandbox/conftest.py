"""The three providers. What they build is built once for the whole run."""

from __future__ import annotations

from pathlib import Path

import pytest

from runs.sandbox import SandboxProvider, get_provider

REAL = (
    pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
    pytest.param("docker", marks=pytest.mark.docker),
)


@pytest.fixture(scope="session")
def sandbox_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One data directory for all of them: the image in it takes seconds to build."""
    return tmp_path_factory.mktemp("sandbox-data")


_made: dict[tuple[Path, str], SandboxProvider] = {}


def provider_called(name: str, data: Path) -> SandboxProvider:
    if (data, name) not in _made:
        _made[data, name] = get_provider(name, data_dir=data)  # type: ignore[arg-type]
    return _made[data, name]


@pytest.fixture(params=["scripted", *REAL])
def provider(request: pytest.FixtureRequest, sandbox_data: Path) -> SandboxProvider:
    """Every provider in turn."""
    return provider_called(request.param, sandbox_data)


@pytest.fixture(params=REAL)
def real_provider(request: pytest.FixtureRequest, sandbox_data: Path) -> SandboxProvider:
    """Those that run real programs."""
    return provider_called(request.param, sandbox_data)


@pytest.fixture
def bubblewrap(sandbox_data: Path) -> SandboxProvider:
    """For tests marked `bubblewrap`."""
    return provider_called("bubblewrap", sandbox_data)


@pytest.fixture
def docker_engine(sandbox_data: Path) -> SandboxProvider:
    """For tests marked `docker`."""
    return provider_called("docker", sandbox_data)
