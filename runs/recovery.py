"""After a failure: whose it was, what is left, and which ways on are right.

A page offers exactly the ways that are listed here, and each is asked for again with the row
locked. Nothing goes on by itself: a failed run is taken up by a person, or it stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from django.db import transaction
from django.utils import timezone

from portal import audit, blobs, live, vault
from portal.access import demand
from portal.canonical import digest
from portal.errors import BadInput, NotAllowed, NotFound, Refusal
from portal.handoff import Job
from portal.models import Membership, User
from portal.redact import redact
from portal.roles import Permission
from runs import lifecycle
from runs.agent.state import SDK_VERSION
from runs.lifecycle import Draft, append_events, last_checkpoint, locked_run, run_facts
from runs.models import Checkpoint, ContractVersion, Event, Run, ToolCall
from runs.outside import outward_acts
from runs.states import CallState, RunStatus

NOTE_LIMIT = 2000

BOUNDARIES = {
    "control": "the model, the policy or the portal’s own code",
    "execution": "an operation of the sandbox",
    "recovery": "a checkpoint or a snapshot",
}

# What the run met was away, and may be there again.
CONNECTIONS = frozenset(
    {
        *("sandbox.unavailable", "source.unreachable", "source.no_space"),
        *("model_unreachable", "model_timeout", "model_disconnected", "model_unavailable"),
        "model_rate_limited",
    }
)
# What the agent did since its checkpoint is gone, and the checkpoint is not.
LOST = frozenset({"sandbox_lost", "sandbox.lost"})
# The contract's own limits: whatever goes on would be stopped by them at once.
LIMITS = frozenset({"runs.timed_out", "runs.budget_spent", "turns_spent"})
# What was approved is not what is stored. Nobody is asked about the same thing again.
TAMPERED = frozenset(
    {
        *("publication.packet_changed", "publication.candidate_changed"),
        *("publication.receipt_changed", "publication.artifact_damaged"),
        *("publication.target_changed", "call_changed"),
    }
)
RESUME_DENIED = "runs.resume_denied"
OTHER_RELEASE = "sdk_version"


class Way(StrEnum):
    """What a person can do about a failed run."""

    RECONNECT = "reconnect"  # the same step again: what was away may be back
    RESTORE = "restore"  # go on from a checkpoint
    REPEAT = "repeat"  # the step after the agent's work, again
    REVIEW = "review"  # ask people again to let the candidate out
    RESTART = "restart"  # a new run with the same approved inputs
    NARROW = "narrow"  # a new run without a sandbox, as the contract's fallback says


class NotOffered(Refusal):
    code = "runs.way_not_offered"
    text = "Run {number} cannot go on that way: {reason} Nothing was changed."


class FailureMoved(Refusal):
    code = "runs.failure_moved"
    text = (
        "Something happened to run {number} since that page was drawn. Nothing was changed; read "
        "what it says now."
    )


class CheckpointUnusable(Refusal):
    code = "runs.checkpoint_unusable"
    text = (
        "Checkpoint {seq} cannot be gone on from: {reason} The run stays as it is, and is not "
        "begun in an empty workspace instead. Restart it clean."
    )


class NotHanded(Refusal):
    code = "runs.not_handed"
    text = "The failure of run {number} is handed to nobody now. Nothing was changed."


@dataclass(frozen=True)
class Offer:
    """One way on: its button, and what will happen."""

    way: Way
    label: str
    words: str


@dataclass(frozen=True)
class Failure:
    """What a failure page says besides the row's own columns."""

    offers: tuple[Offer, ...]
    # Ways that are not offered, and why: a sentence each.
    not_offered: tuple[str, ...]
    checkpoint: Checkpoint | None
    # Whether trying again is safe, in a sentence.
    retry: str
    # What the run did outside, or may have done.
    outside: tuple[ToolCall, ...]
    # The number of the event that says so.
    event: int
    # Runs that began anew with what was approved for this one.
    restarts: tuple[Run, ...]

    @property
    def boundary_words(self) -> dict[str, str]:
        """What each boundary covers."""
        return BOUNDARIES


def failure_of(run: Run) -> Failure:
    """The ways on from where a failed run stands, the best first."""
    checkpoint = last_checkpoint(run)
    outside = tuple(outward_acts(run))
    offers: list[Offer] = []
    against: list[str] = []
    on = _going_on(run, checkpoint)
    if isinstance(on, Offer):
        offers.append(on)
    else:
        against.append(on)
    if _in_force(run) == run.version:
        offers.append(_restart(run, bool(outside)))
        narrower = _narrower(run, bool(outside))
        if isinstance(narrower, Offer):
            offers.append(narrower)
        elif narrower:
            against.append(narrower)
    else:
        against.append(
            f"Restarting clean: version {run.version.number} of the contract is no longer in force."
        )
    told = Event.objects.filter(run=run, kind="run.failed").order_by("-seq")
    return Failure(
        offers=tuple(offers),
        not_offered=tuple(against),
        checkpoint=checkpoint,
        retry=_retry(run, on),
        outside=outside,
        event=told.values_list("seq", flat=True).first() or run.event_seq,
        restarts=tuple(run.restarts.order_by("number")),
    )


def _retry(run: Run, on: Offer | str) -> str:
    if run.retry_safe:
        return "Trying again is safe."
    if isinstance(on, Offer):
        return "Going on is safe: what was done outside is recorded, and is not done again."
    return "Trying again is not known to be safe: read the evidence first."


def _going_on(run: Run, checkpoint: Checkpoint | None) -> Offer | str:
    """How this run itself can go on, or why it cannot."""
    where = RunStatus(run.failed_from or RunStatus.RUNNING)
    code = run.failure_code
    if run.cancel_asked_at is not None:
        return "Going on: a stop of this run was asked for."
    if code in TAMPERED:
        return "Going on: what was approved is not what is stored now. Read the audit log first."
    if code == RESUME_DENIED:
        return "Going on: a person decided against it."
    if where is RunStatus.PUBLISHING:
        return Offer(
            Way.REVIEW,
            "Ask again to publish",
            "The same candidate gets a new packet. Its earlier approval is spent.",
        )
    if where in (RunStatus.COLLECTING, RunStatus.CHECKING):
        if not run.retry_safe and run.failure_boundary == "recovery":
            return "Going on: what the agent left cannot be read any more."
        if not run.retry_safe:
            return "Going on: the same step would fail in the same way."
        return Offer(
            Way.REPEAT,
            "Repeat the step",
            "The agent’s work is taken and checked again from its last checkpoint; the agent "
            "itself does nothing more.",
        )
    if outward_acts(run).exclude(state=CallState.DONE).exists():
        return "Going on: first somebody has to settle what is not known to have happened."
    if code in LIMITS:
        return (
            "Going on: the contract’s own limit would stop it at once. Raise it in a new version, "
            "or narrow the job."
        )
    if code == OTHER_RELEASE and checkpoint is not None:
        if checkpoint.sdk_version == SDK_VERSION:
            return _restore(checkpoint, "The release that saved it is installed again. ")
        return (
            f"Restoring: checkpoint {checkpoint.seq} was saved by version {checkpoint.sdk_version} "
            f"of the agents SDK, and {SDK_VERSION} is installed. With the release that saved it, "
            "restoring is offered here."
        )
    failed_there = Checkpoint.objects.filter(run=run, unusable=code).exists()
    if failed_there and checkpoint is not None:
        return _restore(checkpoint, "The newer one cannot be used. ")
    if checkpoint is None and Checkpoint.objects.filter(run=run).exists():
        # Going on from the source would be an empty workspace in place of a lost one.
        return "Restoring: none of its checkpoints can be used any more."
    # The agent's loop calls nothing safe after it acted outside. The rows know what it did.
    if not run.retry_safe and code not in CONNECTIONS | LOST:
        return "Going on: trying the same again is not known to be safe."
    start = f"from checkpoint {checkpoint.seq}" if checkpoint else "from its source"
    if code in CONNECTIONS:
        return Offer(
            Way.RECONNECT,
            f"Reconnect and go on {start}",
            "What was away is tried again. Nothing that was done outside is repeated.",
        )
    if checkpoint is None:
        return "Restoring: the run failed before its first checkpoint, so there is nothing to."
    return _restore(checkpoint, "")


def _restore(checkpoint: Checkpoint, why: str) -> Offer:
    return Offer(
        Way.RESTORE,
        f"Restore checkpoint {checkpoint.seq} and go on",
        f"{why}Conversation and workspace are those of checkpoint {checkpoint.seq}, in a fresh "
        "sandbox. Later work in the workspace is lost; nothing that was done outside is repeated, "
        "and approvals that were not used are asked for again.",
    )


def _restart(run: Run, outside: bool) -> Offer:
    again = "What happened outside already is not repeated without a person."
    if run.narrowed:
        return Offer(
            Way.RESTART,
            "Restart with tools only",
            "A new run of the same contract version, narrowed as this one was. Nothing of the "
            f"conversation is taken over. {_NOT_AGAIN if outside else 'It asks for all anew.'}",
        )
    return Offer(
        Way.RESTART,
        "Restart clean",
        "A new run of the same contract version, "
        + (f"on the same commit {run.source_commit[:12]}, " if run.source_commit else "")
        + "in a fresh workspace. Nothing of the workspace or the conversation is taken over. "
        + (again if outside else "It asks for everything anew."),
    )


_NOT_AGAIN = "What happened outside already is not done again."


def _narrower(run: Run, outside: bool) -> Offer | str:
    """The contract's tool-only variant, why there is none, or nothing where it would not help."""
    if run.narrowed or run.failure_boundary != "execution":
        return ""
    fallback = lifecycle.contract_of(run).fallback
    if fallback is None:
        return "Going on with tools only: the contract declares no fallback."
    tools = lifecycle.contract_of(run).narrowed().tool_names
    return Offer(
        Way.NARROW,
        "Go on with tools only",
        f"A new, narrower run of the same contract version: no sandbox and no network, only "
        f"{', '.join(tools)}. It changes nothing of the source; its last answer is what it "
        f"offers.{f' {_NOT_AGAIN}' if outside else ''}",
    )


def _in_force(run: Run) -> ContractVersion | None:
    return ContractVersion.objects.filter(
        contract_id=run.version.contract_id, state=ContractVersion.State.IN_FORCE
    ).first()


# --- Acting on it ------------------------------------------------------------------------------


def recover(run: Run, way: str, *, seen: str, member: Membership) -> Run:
    """Do what a person chose. Returns the run that goes on: a new one after a clean restart.

    `seen` is the head of the run's events on the page: a click on an old page does nothing, and
    neither does the second click of two. Raises a refusal of this module.
    """
    if way not in [each.value for each in Way]:
        raise BadInput(reason="The form did not say which way to go on. Nothing was changed.")
    demand(member, Permission.OPERATE)
    if way == Way.RESTORE:
        checkpoint = last_checkpoint(run)
        if checkpoint is not None:
            verify_checkpoint(checkpoint)
    return _recover(run.pk, Way(way), seen=seen, member=member)


@transaction.atomic(durable=True)
def _recover(run_id: int, way: Way, *, seen: str, member: Membership) -> Run:
    run = _failed(run_id, member)
    if seen != run.event_head:
        raise FailureMoved(number=run.number)
    failure = failure_of(run)
    if way not in {offer.way for offer in failure.offers}:
        reason = " ".join(failure.not_offered) or "it is not offered."
        raise NotOffered(number=run.number, reason=reason)
    facts = {"by": member.user.name, "way": way.value}
    if way in (Way.RESTART, Way.NARROW):
        narrowed = run.narrowed or way is Way.NARROW
        again = lifecycle.queue_run(run.version, member=member, restart_of=run, narrowed=narrowed)
        as_run = {"as": again.number, **lifecycle.variant_of(again)}
        append_events(run, [Draft("run.restarted", run_facts(run) | facts | as_run)])
    elif way is Way.REVIEW or run.failed_from == RunStatus.CHECKING:
        # By the relation's name: this app does not know the one that decides.
        candidate = run.candidates.filter(superseded=False).order_by("-seq").first()
        if candidate is None:
            raise NotOffered(number=run.number, reason="it has no candidate.")
        job = Job.OPEN_PUBLICATION_PACKET if way is Way.REVIEW else Job.RUN_CHECKS
        lifecycle.take_up(run, job, candidate.pk, **facts)
        again = run
    else:
        collect = run.failed_from == RunStatus.COLLECTING
        from_seq = failure.checkpoint.seq if failure.checkpoint else None
        lifecycle.take_up(
            run,
            Job.COLLECT_CANDIDATE if collect else Job.EXECUTE_RUN,
            run.pk,
            **facts,
            checkpoint=from_seq,
        )
        again = run
    audit.record(
        "run.recovered",
        tenant=run.tenant,
        subject=run,
        actor=member.user,
        way=way.value,
        run=again.number,
    )
    return again


def _failed(run_id: int, member: Membership) -> Run:
    """The locked run, if it is the member's and failed."""
    run = locked_run(run_id)
    if run.tenant_id != member.tenant_id:
        raise NotFound
    if RunStatus(run.status) is not RunStatus.FAILED:
        raise NotOffered(number=run.number, reason="it has not failed, or goes on already.")
    return run


def verify_checkpoint(checkpoint: Checkpoint) -> None:
    """State and snapshot are the ones that were saved, as far as this can be told without an agent.

    The worker that goes on proves the rest before anything happens. Raises `CheckpointUnusable`.
    """
    try:
        state = vault.unseal(bytes(checkpoint.sealed_state)).decode()
        blobs.open_checked(checkpoint.tenant_id, checkpoint.snapshot_blob).close()
    except (vault.SealBroken, blobs.BlobDamaged, ValueError, OSError) as damaged:
        raise CheckpointUnusable(seq=checkpoint.seq, reason=f"{damaged}") from damaged
    if digest(state) != checkpoint.state_digest:
        raise CheckpointUnusable(seq=checkpoint.seq, reason="the saved run state is damaged.")
    if checkpoint.sdk_version != SDK_VERSION:
        raise CheckpointUnusable(
            seq=checkpoint.seq,
            reason=f"it was saved by version {checkpoint.sdk_version} of the agents SDK, and "
            f"{SDK_VERSION} is installed.",
        )


# --- Handing it to a person ----------------------------------------------------------------------


def people_for(member: Membership) -> list[User]:
    """Whom a failure can be handed to: people of the tenant, by name."""
    members = Membership.objects.filter(
        tenant=member.tenant, user__is_machine=False, user__is_active=True
    )
    return [each.user for each in members.select_related("user").order_by("user__name")]


@transaction.atomic(durable=True)
def hand_over(run: Run, to: User, note: str, *, member: Membership) -> Run:
    """Make a failure somebody's: they find it in their queue until they say that they are done."""
    demand(member, Permission.OPERATE)
    locked = _failed(run.pk, member)
    if to not in people_for(member):
        raise BadInput(reason="That person does not belong to this tenant. Nothing was changed.")
    locked.handed_to, locked.handed_by = to, member.user
    locked.handed_at, locked.handled_at = timezone.now(), None
    locked.handed_note = redact(note)[:NOTE_LIMIT]
    locked.save(update_fields=["handed_to", "handed_by", "handed_at", "handed_note", "handled_at"])
    facts = {"by": member.user.name, "to": to.name}
    append_events(locked, [Draft("run.handed_over", run_facts(locked) | facts, locked.handed_note)])
    audit.record(
        "run.handed_over", tenant=locked.tenant, subject=locked, actor=member.user, to=to.name
    )
    live.changed_on_commit(live.queue_topic(locked.tenant_id))
    return locked


@transaction.atomic(durable=True)
def handled(run: Run, *, member: Membership) -> Run:
    """Whoever has the failure is done with it; an operator may say so for them."""
    locked = locked_run(run.pk)
    if locked.tenant_id != member.tenant_id:
        raise NotFound
    if locked.handed_to_id is None or locked.handled_at is not None:
        raise NotHanded(number=locked.number)
    if locked.handed_to_id != member.user_id and not member.may(Permission.OPERATE):
        raise NotAllowed(permission=Permission.OPERATE.value)
    locked.handled_at = timezone.now()
    locked.save(update_fields=["handled_at"])
    append_events(locked, [Draft("run.handled", run_facts(locked) | {"by": member.user.name})])
    audit.record("run.handled", tenant=locked.tenant, subject=locked, actor=member.user)
    live.changed_on_commit(live.queue_topic(locked.tenant_id))
    return locked


def handed_to(member: Membership, most: int = 5) -> list[Run]:
    """Failures that this person has and is not done with."""
    rows = Run.objects.filter(tenant=member.tenant, handed_to=member.user, handled_at=None)
    return list(rows.select_related("version__contract").order_by("handed_at")[:most])
