"""The run behind a test packet: a row that waits, and that no worker can take.

The database refuses it every other status (`run_canary_never_works`), a lease and a beginning.
"""

from __future__ import annotations

from django.utils import timezone

from runs.lifecycle import Draft, append_events, end_run, run_facts
from runs.models import Run
from runs.states import RunStatus


def begin(like: Run) -> Run:
    """A run that looks like that one and does nothing, inside the caller's transaction."""
    run = Run.objects.create(
        tenant=like.tenant,
        number=like.tenant.next_number("run_count"),
        version=like.version,
        requested_by=like.requested_by,
        status=RunStatus.WAITING,
        status_at=timezone.now(),
        source_commit=like.source_commit,
        image_digest=like.image_digest,
        transcript_label=like.transcript_label,
        canary=True,
    )
    append_events(run, [Draft("run.queued", run_facts(run) | {"by": like.requested_by.name})])
    return run


def end(run: Run) -> None:
    """The locked run is over, if it was not already."""
    if run.is_live:
        end_run(run, RunStatus.CANCELLED, canary=True)
