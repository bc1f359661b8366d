"""The sandbox provider of this installation; one that isolates nothing only in development."""

from __future__ import annotations

import functools
from pathlib import Path

from django.conf import settings

from runs.sandbox import (
    ProviderName,
    SandboxProvider,
    SandboxUnavailable,
    get_provider,
    without_sandbox,
)


def sandbox_provider() -> SandboxProvider:
    """The provider that SANDBOX_PROVIDER names. Raises `SandboxUnavailable`.

    The system checks say the same at start; a worker that was started past them is refused here.
    """
    if settings.SANDBOX_PROVIDER == "scripted" and not settings.DEVELOPMENT:
        raise SandboxUnavailable(
            "The scripted sandbox isolates nothing, so nothing is run in it.",
            "Set SANDBOX_PROVIDER to auto, bubblewrap or docker, or for development DEVELOPMENT=1.",
        )
    return _provider(settings.SANDBOX_PROVIDER, Path(settings.DATA_DIR))


def no_sandbox() -> SandboxProvider:
    """The place of a run that may not have a sandbox: nothing can be executed there."""
    return without_sandbox(Path(settings.DATA_DIR))


@functools.cache
def _provider(name: ProviderName, data_dir: Path) -> SandboxProvider:
    # One for the life of the process: each new one proves its isolation again, with a canary.
    return get_provider(name, data_dir=data_dir)
