"""The process that a drill happens in: `python -m approvals.drill.inside FOLDER PROVIDER ATTACK…`.

Started by `approvals.drill.outside` with an environment that names nothing of the installation but
its code. Makes its own database below FOLDER and prints one JSON object a line: what `check()`
proved, each finding as it is made, the figures. Refuses to run anywhere else.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import django

MARK = "DRILL_FOLDER"
"""In the environment of such a process: where its throwaway installation lies."""


def main(folder: Path, names: list[str]) -> None:
    """Try the attacks with these keys, or all of them and the figures."""
    from django.conf import settings
    from django.core.management import call_command

    if os.environ.get(MARK) != str(folder) or folder not in Path(settings.DATA_DIR).parents:
        raise SystemExit("A drill is started with `manage.py drill`.")
    django.setup()
    call_command("migrate", interactive=False, verbosity=0)
    for line in _lines(folder, names):
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def _lines(folder: Path, names: list[str]) -> Iterator[dict[str, Any]]:
    from approvals.drill import attacks, recovery
    from approvals.drill.stage import Stage
    from runs.drill import resources
    from runs.drill.ground import Ground
    from runs.drill.measure import measure
    from runs.providers import sandbox_provider
    from runs.sandbox import SandboxUnavailable

    provider = sandbox_provider()
    try:
        report = provider.check()
    except SandboxUnavailable as unavailable:
        yield {"unavailable": str(unavailable)}
        return
    yield {"check": asdict(report)}
    ground = Ground(provider, Path(tempfile.mkdtemp(prefix="g", dir=folder)))
    with Stage.set(Path(tempfile.mkdtemp(prefix="s", dir=folder))) as stage:
        for walked in (*attacks.ATTACKS, *recovery.ATTACKS):
            if not names or walked.key in names:
                yield {"finding": asdict(walked.run(stage))}
    for resource in resources.ATTACKS:
        if not names or resource.key in names:
            yield {"finding": asdict(resource.run(ground))}
    if not names:
        yield {"measured": [asdict(each) for each in measure(ground)]}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
