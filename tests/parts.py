"""The parts of a machine that some tests need, and what happens without them.

A test marked with the name of a part is skipped where the part is missing, and
the last lines of the run say which and why. IMPRIMATUR_REQUIRE names parts that
must be there (`all`, or some of them with commas): their tests fail instead.
"""

from __future__ import annotations

import functools
import importlib.resources
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CHROMIUM = Path("/usr/bin/chromium")


def bubblewrap_binary() -> str | None:
    """The distribution's `bwrap`, else the one from the wheel, as the portal looks for it."""
    found = shutil.which("bwrap")
    beside = Path(sys.executable).with_name("bwrap")
    return found or (str(beside) if beside.exists() else None)


def postgresql_binaries() -> Path | None:
    """The newest of Debian's PostgreSQL servers."""
    homes = [each.parent for each in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(homes, key=lambda home: int(home.parent.name), default=None)


def pip() -> tuple[str, ...]:
    """The command that runs pip: the environment's, else the one that Python brings along."""
    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", "pip")
    bundled = importlib.resources.files("ensurepip") / "_bundled"
    wheel = next(each for each in bundled.iterdir() if each.name.startswith("pip-"))
    return (sys.executable, f"{wheel}/pip")


def _bubblewrap() -> str | None:
    binary = bubblewrap_binary()
    if binary is None:
        return "no bwrap found. Debian and Ubuntu: apt-get install bubblewrap"
    command = (binary, "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "/bin/true")
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if outcome.returncode == 0:
        return None
    return f"bwrap cannot isolate here ({outcome.stderr.strip()[:160]})"


def _docker() -> str | None:
    import docker  # only the runs that ask for it pay for the import

    try:
        client = docker.from_env(timeout=5)
        client.ping()
    except docker.errors.DockerException as error:
        return f"no Docker engine answers ({str(error)[:160]}). As root: .ci/start-docker"
    client.close()
    return None


def _postgres() -> str | None:
    if postgresql_binaries() is None:
        return "no server in /usr/lib/postgresql. Debian and Ubuntu: apt-get install postgresql"
    return None


def _browser() -> str | None:
    if not CHROMIUM.exists():
        return f"no {CHROMIUM}. Debian: apt-get install chromium"
    return None


def _package_index() -> str | None:
    # An empty requirement for a project that every index has.
    command = (*pip(), "index", "versions", "pip")
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if outcome.returncode == 0:
        return None
    lines = outcome.stderr.strip().splitlines() or ["no answer"]
    return f"the package index does not answer ({lines[-1][:160]})"


_PROBES: dict[str, Callable[[], str | None]] = {
    "bubblewrap": _bubblewrap,
    "docker": _docker,
    "postgres": _postgres,
    "browser": _browser,
    "package_index": _package_index,
}
PARTS = tuple(_PROBES)


@functools.cache
def missing(part: str) -> str | None:
    """Why the part is missing and how to get it, or None where it is there."""
    try:
        return _PROBES[part]()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"asking for it failed ({error})"


@functools.cache
def required() -> frozenset[str]:
    """The parts that IMPRIMATUR_REQUIRE names. An unknown word stops the run."""
    words = {word.strip() for word in os.environ.get("IMPRIMATUR_REQUIRE", "").split(",")} - {""}
    if "all" in words:
        return frozenset(PARTS)
    if unknown := words - set(PARTS):
        raise pytest.UsageError(
            f"IMPRIMATUR_REQUIRE names {', '.join(sorted(unknown))}. "
            f"Set it to all, or to some of {', '.join(PARTS)}."
        )
    return frozenset(words)


def demand(item: pytest.Item) -> None:
    """Skip or fail the test if a part it is marked with is missing."""
    for part in PARTS:
        if item.get_closest_marker(part) is None:
            continue
        why = missing(part)
        if why is None:
            continue
        if part in required():
            pytest.fail(
                f"{part} is required (IMPRIMATUR_REQUIRE) and missing: {why}", pytrace=False
            )
        pytest.skip(f"{part} is missing: {why}")


def summary(skipped: list[pytest.TestReport]) -> list[str]:
    """What was not tested, for the last lines of a run."""
    reasons = [each.longrepr[2] for each in skipped if isinstance(each.longrepr, tuple)]
    lines = []
    for part in PARTS:
        count = sum(reason.startswith(f"Skipped: {part} is missing") for reason in reasons)
        if count:
            tests = "test" if count == 1 else "tests"
            lines.append(f"{count} {tests} need {part}: {missing(part)}")
    return lines
