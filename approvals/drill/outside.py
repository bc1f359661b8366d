"""Start a drill beside an installation in use, and keep what it reports.

The drill plays a compromised model, so it must not stand where tenants do. It is a process of its
own with a database, keys, blobs and sandboxes in a folder that is gone afterwards, and with an
environment that holds nothing of this installation: no address of its database or broker, no key of
a model. All it shares is the machine, the code and the choice of the provider.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from django.conf import settings

from approvals.drill.inside import MARK
from portal.keys import make_keys
from runs.drill import Finding, Measured, Report
from runs.models import Drill
from runs.sandbox.base import remove_tree

_KEPT = ("PATH", "HOME", "LANG", "DOCKER_HOST", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")
_PRICES = {"MODEL_PRICES": "recorded=1/1/2", "UNIT_PRICES": "compute=10,tool=5"}


class DrillFailed(Exception):
    """There is no report. The words say why, and are for the operator."""


def drill(
    provider: str,
    *,
    runtime: str = "",
    only: Sequence[str] = (),
    heard: Callable[[Finding], None] = lambda finding: None,
) -> Report:
    """Drill one provider; `heard` gets each finding as it comes. Raises `DrillFailed`.

    Touches neither rows nor files of this installation; `keep` stores the report.
    """
    # Short, because unix sockets lie in it, and below /tmp, where a sandbox has its own.
    folder = Path(tempfile.mkdtemp(prefix="imprimatur-drill-", dir="/tmp"))
    began = time.monotonic()
    try:
        with (folder / "said").open("w+b") as complaints:
            process = subprocess.Popen(
                [sys.executable, "-m", "approvals.drill.inside", str(folder), *only],
                cwd=settings.BASE_DIR,
                env=environment(folder, provider, runtime),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
            )
            try:
                gathered = _gathered(process, heard)
            finally:
                process.kill()
                process.wait()
            if gathered is None:
                complaints.seek(0)
                words = complaints.read()[-2000:].decode(errors="replace").strip()
                raise DrillFailed(f"The drill of {provider} ended without a report. {words}")
    finally:
        remove_tree(folder)
    check, findings, measured = gathered
    return Report(
        provider=check["provider"] + (f" with {runtime}" if runtime else ""),
        version=check["version"],
        image_digest=check["image_digest"],
        isolation=tuple(check["isolation"]),
        weaker=tuple(check["weaker"]),
        seconds=round(time.monotonic() - began, 1),
        findings=findings,
        measured=measured,
    )


def keep(report: Report) -> Drill:
    """Store a report; the pages show the newest one of each provider."""
    return Drill.objects.create(
        provider=report.provider, passed=report.passed, report=report.to_data()
    )


_Gathered = tuple[dict[str, Any], tuple[Finding, ...], tuple[Measured, ...]]


def _gathered(process: subprocess.Popen[str], heard: Callable[[Finding], None]) -> _Gathered | None:
    check: dict[str, Any] = {}
    findings: list[Finding] = []
    measured: list[Measured] = []
    for line in process.stdout or ():
        said = json.loads(line)
        if "unavailable" in said:
            raise DrillFailed(said["unavailable"])
        check = said.get("check", check)
        measured += [Measured(**each) for each in said.get("measured", [])]
        if "finding" in said:
            findings.append(Finding(**said["finding"]))
            heard(findings[-1])
    if process.wait() or not check:
        return None
    return check, tuple(findings), tuple(measured)


def environment(folder: Path, provider: str, runtime: str) -> dict[str, str]:
    """What the process of a drill is told, with a fresh installation made below `folder`."""
    data = folder / "d"
    for each in (data, data / "repositories"):
        each.mkdir()
    make_keys(data / "keys")
    return {
        **{name: os.environ[name] for name in _KEPT if name in os.environ},
        "DJANGO_SETTINGS_MODULE": "portal.settings",
        "DATA_DIR": str(data),
        MARK: str(folder),
        "SANDBOX_PROVIDER": provider,
        "DOCKER_RUNTIME": runtime,
        "BROKER_PRIVATE_HOSTS": "127.0.0.1",
        "SWEEP_SECONDS": "1",
        "LOG_LEVEL": "ERROR",
        **_PRICES,
    }


def runtimes() -> list[str]:
    """The other runtimes of the Docker engine that a drill tries: gVisor, where it is installed."""
    docker = importlib.import_module("runs.sandbox.docker")
    return sorted({"runsc"} & docker.runtimes())
