"""A real Celery worker that dies in the middle of a transaction, once for each line of its plan.

    python -m tests.drill.mortal_worker PLAN -A portal.celery worker ...

PLAN is a folder with one file for each run, named by its number and holding the kind of an event.
When that event of that run is written, before its transaction ends, a file `<number>.dead` is
made, and the process sends itself SIGKILL. The product knows nothing of this module.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import django


def wrap(plan: Path) -> None:
    """Die between the line of evidence and the end of its transaction."""
    from portal import statements
    from runs import lifecycle
    from runs.models import Event, Run

    # A run that happens to be at work each time is not to be given up: all deaths are planned.
    lifecycle.MAX_LOST_WORKERS = 1 + len(list(plan.iterdir()))
    insert = statements.insert

    def mortal(*rows: Any) -> None:
        insert(*rows)
        if isinstance(rows[0], Event):
            number = Run.objects.values_list("number", flat=True).get(pk=rows[0].run_id)
            told, dead = plan / str(number), plan / f"{number}.dead"
            kinds = {event.kind for event in rows}
            if told.exists() and told.read_text() in kinds and not dead.exists():
                dead.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    statements.insert = mortal


def main() -> None:
    """Wrap, then be a worker."""
    plan, *arguments = sys.argv[1:]
    django.setup()
    wrap(Path(plan))
    from celery.bin.celery import main as celery

    sys.argv = ["celery", *arguments]
    celery()


if __name__ == "__main__":
    main()
