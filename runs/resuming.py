"""Whether a run may go on from its checkpoint although something changed. The rows of the question.

A worker that finds differences parks the run and asks. The answer is about exactly these
differences from exactly this checkpoint: the same worker's death asks nobody again, and another
change asks anew.
"""

from __future__ import annotations

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from portal.clock import database_now
from portal.handoff import Job
from runs import lifecycle
from runs.footing import Answers
from runs.judging import judge
from runs.lifecycle import Draft, Lease, append_events, held_run, run_facts
from runs.models import Checkpoint, Resumption, Run
from runs.recovery import RESUME_DENIED
from runs.states import ResumeState, RunStatus


def approved(run: Run, wanted: str) -> Resumption | None:
    """People's approval of exactly these differences, if it may still be used.

    The row alone approves nothing: whoever asked the people is asked too.
    """
    usable = Q(state=ResumeState.USED) | Q(
        state=ResumeState.APPROVED, usable_until__gt=database_now()
    )
    found = Resumption.objects.select_related("checkpoint").filter(usable, run=run, digest=wanted)
    last = found.order_by("-pk").first()
    if last is None or judge().lets_go_on(last) is not None:
        return None
    return last


@transaction.atomic(durable=True)
def ask(lease: Lease, checkpoint: Checkpoint, answers: Answers) -> Resumption | None:
    """Park the run and ask a person. Raises `LeaseLost`. None if a stop was asked for instead."""
    run = held_run(lease)
    if lifecycle.stopped_instead(run):
        return None
    # What was asked before was about something else, or was not used in time.
    _open(run).update(state=ResumeState.WITHDRAWN, settled_at=timezone.now())
    number, policy = judge().in_force(run.tenant_id)
    asked = Resumption.objects.create(
        tenant_id=run.tenant_id,
        run=run,
        checkpoint=checkpoint,
        differences=[each.to_data() for each in answers.differences],
        digest=answers.digest(checkpoint.state_digest),
        policy_version=number,
        policy_digest=policy,
    )
    lifecycle.advance(
        run,
        RunStatus.WAITING,
        Job.OPEN_RESUME_PACKET,
        asked.pk,
        reason=f"changed since checkpoint {checkpoint.seq}: "
        + ", ".join(dict.fromkeys(each.what for each in answers.differences)),
        **answers.facts(),
    )
    return asked


def _open(run: Run) -> QuerySet[Resumption]:
    return Resumption.objects.filter(run=run, state__in=[ResumeState.WAITING, ResumeState.APPROVED])


def settle(asked: Resumption, run: Run, state: ResumeState, *, by: str, words: str) -> None:
    """Store a person's answer, or that there was none, inside the caller's transaction.

    Approved, the run goes back to the queue. Denied, it ends, and can be restarted clean.
    """
    row = Resumption.objects.select_for_update(no_key=True).get(pk=asked.pk)
    if ResumeState(row.state) is not ResumeState.WAITING or not run.is_live:
        raise lifecycle.CallSettled(state=row.state)
    row.state, row.settled_at = state.value, timezone.now()
    row.usable_until = asked.usable_until
    row.save(update_fields=["state", "settled_at", "usable_until"])
    append_events(
        run,
        [
            Draft(
                f"resume.{state.value}",
                run_facts(run) | {"checkpoint": row.checkpoint.seq, "by": by or None},
            )
        ],
    )
    if state is ResumeState.APPROVED:
        lifecycle.advance(run, RunStatus.QUEUED, Job.EXECUTE_RUN, run.pk)
    elif state is ResumeState.EXPIRED:
        lifecycle.end_run(run, RunStatus.EXPIRED)
    else:
        lifecycle.end_failed(
            run,
            boundary="recovery",
            code=RESUME_DENIED,
            operation="resume",
            text=f"{by} decided that the run does not go on after what changed. {words}".strip(),
            retry_safe=False,
        )
