"""The statuses of a run and of a tool call, and the moves between them."""

from __future__ import annotations

from enum import StrEnum


class RunStatus(StrEnum):
    """Where a run is in the walk."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"  # parked at a checkpoint until a person answers
    COLLECTING = "collecting"
    CHECKING = "checking"
    IN_REVIEW = "in_review"
    PUBLISHING = "publishing"
    PUBLISHED = "published"
    DENIED = "denied"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


# The walk ends here. Nothing of it changes again, except that a person may take up a run that
# failed where it stood (`TAKEN_UP`).
ENDED = frozenset(
    {
        RunStatus.PUBLISHED,
        RunStatus.DENIED,
        RunStatus.FAILED,
        RunStatus.CANCELLED,
        RunStatus.EXPIRED,
    }
)
LIVE = frozenset(RunStatus) - ENDED

MOVES: dict[RunStatus, frozenset[RunStatus]] = {
    RunStatus.QUEUED: frozenset({RunStatus.RUNNING}),
    RunStatus.RUNNING: frozenset({RunStatus.QUEUED, RunStatus.WAITING, RunStatus.COLLECTING}),
    RunStatus.WAITING: frozenset({RunStatus.QUEUED, RunStatus.EXPIRED}),
    RunStatus.COLLECTING: frozenset({RunStatus.CHECKING}),
    RunStatus.CHECKING: frozenset({RunStatus.IN_REVIEW}),
    RunStatus.IN_REVIEW: frozenset(
        {RunStatus.PUBLISHING, RunStatus.QUEUED, RunStatus.DENIED, RunStatus.EXPIRED}
    ),
    RunStatus.PUBLISHING: frozenset({RunStatus.PUBLISHED, RunStatus.IN_REVIEW}),
}


# Where a failed run goes on, by the step it failed at.
TAKEN_UP: dict[RunStatus, RunStatus] = {
    RunStatus.QUEUED: RunStatus.QUEUED,
    RunStatus.RUNNING: RunStatus.QUEUED,
    RunStatus.WAITING: RunStatus.QUEUED,
    RunStatus.COLLECTING: RunStatus.COLLECTING,
    RunStatus.CHECKING: RunStatus.CHECKING,
    RunStatus.PUBLISHING: RunStatus.IN_REVIEW,
}


# Stands in a call's rules where no rule of the policy refused it: what was done outside by the run
# that it goes on after is not done again. No rule of a policy can be called so.
DONE_ALREADY = "(done already)"


def allowed(before: RunStatus, after: RunStatus) -> bool:
    """Whether the walk has this step. Failing and cancelling are open to every live run."""
    if before in ENDED:
        return False
    if after in (RunStatus.FAILED, RunStatus.CANCELLED):
        return True
    return after in MOVES.get(before, frozenset())


class GrantState(StrEnum):
    """Where one network rule of a run stands. Each end has its own word."""

    REQUESTED = "requested"  # a person is asked
    ACTIVE = "active"  # it may be used until its time is over
    REFUSED = "refused"  # policy said no
    DENIED = "denied"  # a person said no
    UNANSWERED = "unanswered"  # nobody answered in time
    WITHDRAWN = "withdrawn"  # the agent finished, or the run ended, before anybody answered
    EXPIRED = "expired"  # its time was over
    REVOKED = "revoked"  # a person took it back
    ENDED = "ended"  # it ended with its run


class CredentialState(StrEnum):
    """Where one use of a credential stands. Each end has its own word."""

    REQUESTED = "requested"  # a person is asked
    APPROVED = "approved"  # it may be used; nothing was made yet
    MINTING = "minting"  # the source was asked: there may be a secret
    LIVE = "live"  # there is one, and it may be used
    REVOKING = "revoking"  # it is over, and the source has not confirmed that yet
    REVOKED = "revoked"  # the source confirmed it, or a person took it back before it was made
    ENDED = "ended"  # it was used, or its run ended; there was nothing to take back
    EXPIRED = "expired"  # its time was over before the source could be asked to end it
    REFUSED = "refused"  # it would have been more than was approved, or the source said no
    LOST = "lost"  # one may have been made that nobody holds
    DENIED = "denied"  # a person said no
    CHANGES_REQUESTED = "changes_requested"  # a person wants the call to be another one
    UNANSWERED = "unanswered"  # nobody answered in time
    WITHDRAWN = "withdrawn"  # the run ended, or asked anew, before anybody answered


# What a run holds: it may be used, or may still be worth something.
CREDENTIALS_HELD = frozenset(
    {
        CredentialState.APPROVED,
        CredentialState.MINTING,
        CredentialState.LIVE,
        CredentialState.REVOKING,
    }
)


class ResumeState(StrEnum):
    """Where the question stands whether a run may go on although something changed."""

    WAITING = "waiting"  # a person is asked
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"  # nobody answered, or the approval was not used in time
    WITHDRAWN = "withdrawn"  # the run ended, or something changed again
    USED = "used"  # the run went on


class CallState(StrEnum):
    """What became of one tool call."""

    ALLOWED = "allowed"  # judged, may run without a person
    REFUSED = "refused"  # judged, policy says no
    WAITING = "waiting"  # a person is asked
    APPROVED = "approved"
    DENIED = "denied"
    CHANGES_REQUESTED = "changes_requested"  # the agent was told what to do differently
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"  # whoever asked for the run took the question back
    CANCELLED = "cancelled"
    ACTING = "acting"  # intent written, the act may have happened
    DONE = "done"
    FAILED = "failed"  # acted, and known not to have had its effect
    UNKNOWN = "unknown"  # acted, outcome not known; a person settles it


class Unclear(StrEnum):
    """What somebody saw who looked for the effect of an unknown call and could not tell."""

    CONTRADICTING = "contradicting"  # more than one effect, or another one than was asked for
    UNREACHABLE = "unreachable"  # the other side could not be asked
