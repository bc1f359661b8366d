"""What runs did outside of their sandboxes, or may have done. Their rows are the truth about it."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import QuerySet

from runs.models import Run, ToolCall
from runs.states import CallState


def outward_acts(run: Run) -> QuerySet[ToolCall]:
    """What the run did outside, or may have done."""
    return ToolCall.objects.filter(
        run=run, outward=True, state__in=[CallState.DONE, CallState.ACTING, CallState.UNKNOWN]
    ).order_by("pk")


def forerunners(run: Run) -> Iterator[Run]:
    """The run that this one restarts, the one which that one restarted, and so on."""
    earlier = run.restart_of
    while earlier is not None:
        yield earlier
        earlier = earlier.restart_of


def done_before(run: Run, wanted: str) -> ToolCall | None:
    """The call by which a run that this one restarts did, or may have done, exactly this."""
    for earlier in forerunners(run):
        found = outward_acts(earlier).filter(arguments_digest=wanted).select_related("run").last()
        if found is not None:
            return found
    return None
