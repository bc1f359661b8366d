"""One stretch of work of one run: workspace, sandbox, agent, and what comes of it.

Everything slow happens here, outside any transaction and under a lease. What is
written goes through `lifecycle`, which refuses a worker that lost its lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from django.conf import settings
from django.db import close_old_connections

from portal import blobs, vault
from portal.canonical import digest
from portal.redact import redact
from runs import (
    agent,
    broker,
    cost,
    credentials,
    grants,
    lifecycle,
    outside,
    resuming,
    snapshots,
    source,
)
from runs.agent.port import (
    AgentBrief,
    Answer,
    Begun,
    BriefRefused,
    Brokered,
    Outcome,
    ProposedCall,
    RecoveryError,
    StopReason,
    StopRun,
    ToolDeclaration,
    UsageDelta,
    Verdict,
)
from runs.brief import make_brief, transcript_label
from runs.contract import Contract, Reference
from runs.editing import edited_of
from runs.fetching import cache_of, fetch_source
from runs.folders import working_folder
from runs.footing import Answers, compare, footing_of
from runs.judging import judge
from runs.lifecycle import Draft, Held, Judged, Lease, LeaseLost
from runs.models import Checkpoint, Recording, Resumption, Run, TenantValue, ToolCall
from runs.network import Network, asked_by_call
from runs.providers import no_sandbox, sandbox_provider
from runs.sandbox import (
    Limits,
    RestoreFailed,
    Sandbox,
    SandboxError,
    SandboxProvider,
    SandboxSpec,
    SandboxUnavailable,
    SnapshotDamaged,
)
from runs.states import DONE_ALREADY, CallState, RunStatus
from runs.targets import REFUSED, target_of
from runs.threads import in_thread

logger = logging.getLogger(__name__)

T = TypeVar("T")
ANSWER = "output/answer.md"
"""Where the last answer of a run without a sandbox becomes part of its candidate."""


class Failed(Exception):
    """The segment cannot go on; carries what the failure page says.

    `unusable` says that nothing can go on from the checkpoint this segment began with, and `kept`
    is what the agent had, if that can be gone on from.
    """

    def __init__(
        self,
        boundary: str,
        code: str,
        operation: str,
        text: str,
        *,
        retry_safe: bool,
        unusable: bool = False,
        kept: lifecycle.Kept | None = None,
    ) -> None:
        super().__init__(text)
        self.boundary, self.code, self.operation, self.retry_safe = (
            boundary,
            code,
            operation,
            retry_safe,
        )
        self.unusable, self.kept = unusable, kept


@dataclass
class RunHost:
    """What the outer runtime does for the agent of one run (`runs.agent.port.Host`)."""

    lease: Lease
    run: Run
    contract: Contract
    tools: Mapping[str, ToolDeclaration]
    deadline: float
    network: Network
    lost: bool = False
    unknown: bool = False
    secrets: tuple[str, ...] = ()
    _receipts: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    async def judge(self, call: ProposedCall) -> Verdict:
        """Ask policy, and write call and verdict down in the same breath."""
        row = await self._guard(self._judge, call)
        state = CallState(row.state)
        effect = "deny"
        if state in (
            CallState.ALLOWED,
            CallState.APPROVED,
            CallState.ACTING,
            CallState.DONE,
            CallState.FAILED,
        ):
            effect = "allow"
        elif state in (CallState.WAITING, CallState.UNKNOWN):
            effect = "ask"
        return Verdict(
            effect=effect,  # type: ignore[arg-type]
            rules=tuple(row.rules),
            policy_version=row.policy_version,
            reason=row.reason,
        )

    def _judge(self, call: ProposedCall) -> ToolCall:
        target, outward = target_of(self.run, self.contract, call)
        judged = self._judged(call)
        if call.kind == "network" and judged.state is CallState.REFUSED:
            grants.ask(self.lease, asked_by_call(call)[0], judged)
        return lifecycle.record_call(
            self.lease,
            call_id=call.call_id,
            tool=call.tool,
            kind=call.kind,
            outward=outward,
            arguments=dict(call.arguments),
            target=target,
            judged=judged,
        )

    def _judged(self, call: ProposedCall) -> Judged:
        """Policy's answer to a call. Filing a request for network needs nobody.

        What people are asked about is the rule, while the agent goes on (`runs.grants`).
        """
        target, outward = target_of(self.run, self.contract, call)
        judged = judge().judge(self.run, self.contract, call, target=target, outward=outward)
        if call.kind == "network" and judged.state is CallState.WAITING:
            return replace(judged, state=CallState.ALLOWED)
        if judged.state is CallState.REFUSED and target.startswith(REFUSED):
            # What cannot be done is told as that, not as something that no rule allows.
            return replace(judged, reason=target.removeprefix(REFUSED))
        if outward and judged.state is not CallState.REFUSED:
            wanted = digest(
                {"tool": call.tool, "arguments": dict(call.arguments), "target": target}
            )
            earlier = outside.done_before(self.run, wanted)
            if earlier is not None:
                return _done_already(self.run, earlier, judged)
        return judged

    async def begin(self, call: ProposedCall) -> Begun:
        """Use the permission up, with the arguments that will really be executed."""
        return await self._guard(self._begin, call)

    def _begin(self, call: ProposedCall) -> Begun:
        target, _ = target_of(self.run, self.contract, call)
        wanted = digest({"tool": call.tool, "arguments": dict(call.arguments), "target": target})

        def objection(row: ToolCall) -> Held | None:
            # Policy is asked again: what was allowed or approved under an earlier version
            # may be forbidden now, and a denial now wins.
            again = self._judged(call)
            if again.state is CallState.REFUSED and not again.evaluated:
                return Held("policy_not_evaluated", f"Refused: {again.reason}")
            if again.state is CallState.REFUSED:
                words = f"Refused: policy changed meanwhile and now denies this. {again.reason}"
                return Held("policy_denies", words)
            if again.state is CallState.WAITING and row.policy_digest != again.policy_digest:
                return Held(
                    "policy_changed",
                    "Held: policy changed after the approval, so a new approval is needed. "
                    "Propose the same call again under a new id.",
                )
            return judge().use_up(row)

        go, words, row = lifecycle.begin_call(self.lease, call.call_id, wanted, objection)
        if CallState(row.state) is CallState.UNKNOWN:
            self.unknown = True
            raise StopRun("lease_lost", "the outcome of an earlier attempt is unknown")
        return Begun(go, words if not go else None)

    async def finished(
        self, call: ProposedCall, *, ok: bool, output: str, exit_code: int | None, duration_ms: int
    ) -> None:
        """Store what came of a call. An outward call whose outcome is unknown stays as it is."""
        if self.unknown:
            return
        await self._guard(
            partial(
                lifecycle.finish_call,
                self.lease,
                call.call_id,
                ok=ok,
                output=output,
                exit_code=exit_code,
                duration_ms=duration_ms,
                known_secrets=self.secrets,
                receipt=self._receipts.pop(call.call_id, None),
            )
        )

    async def broker(self, call: ProposedCall) -> Brokered:
        """Carry a declared tool out in the outer runtime, or file a request for network."""
        if call.kind == "network":
            return Brokered(await self._ask_network(call))
        return await self._guard(self._broker, call)

    async def _ask_network(self, call: ProposedCall) -> str:
        asked, wait_seconds = asked_by_call(call)
        try:
            return await self.network.ask(asked, wait_seconds)
        except LeaseLost:
            self.lost = True
            raise StopRun("lease_lost") from None

    def _broker(self, call: ProposedCall) -> Brokered:
        tool = self.contract.brokered_tool(call.tool)
        if tool is None:
            return Brokered("Refused: the contract declares no such tool.", ok=False)
        begun = ToolCall.objects.get(run_id=self.run.pk, call_id=call.call_id)
        sent = True
        try:
            done = broker.carry_out(
                self.run, tool, call.arguments, call_id=call.call_id, target=begun.target
            )
        except broker.BrokerRefused as refused:
            sent, done = False, broker.Done(False, f"Not sent: {refused}")
        except broker.BrokerFailed as failed:
            done = broker.Done(False, f"No answer: {failed} Nothing was changed by it.")
        except broker.BrokerUnknown as unknown:
            self.unknown = True
            lifecycle.mark_unknown(self.lease, call.call_id, str(unknown))
            raise StopRun("lease_lost", str(unknown)) from unknown
        finally:
            # A secret may have been made for this very call.
            self.secrets = tuple(credentials.known(self.run.tenant_id).values())
        if sent:
            lifecycle.charge(
                self.lease,
                "tool",
                call.tool,
                1,
                "calls",
                cost.unit_micros(settings.UNIT_PRICES, "tool", 1),
            )
        self._receipts[call.call_id] = done.receipt
        # A service may answer with what it was sent: the agent must not get our secret that way.
        return Brokered(redact(done.words, known=self.secrets), done.ok)

    async def event(self, kind: str, facts: Mapping[str, Any], payload: str | None = None) -> None:
        """One more line of evidence, with the facts that every line has."""
        draft = Draft(kind, lifecycle.run_facts(self.run) | dict(facts), payload)
        await self._guard(partial(lifecycle.log, self.lease, [draft], known_secrets=self.secrets))

    async def charge(self, usage: UsageDelta) -> None:
        """Count one model response and stop the run when a budget is spent."""
        await self._guard(self._charge, usage)

    def _charge(self, usage: UsageDelta) -> None:
        micros = cost.model_micros(usage, settings.MODEL_PRICES)
        tokens = usage.input_tokens + usage.output_tokens
        lifecycle.charge(self.lease, "model", usage.model, tokens, "tokens", micros)
        money, used = lifecycle.spent(self.run.pk)
        if cost.over_budget(self.contract.limits, micros=money, tokens=used):
            raise StopRun("budget", "the contract's budget is spent")

    async def stop_asked(self) -> StopReason | None:
        """Asked between calls and by the heartbeat's watcher."""
        if self.lost:
            return "lease_lost"
        if time.monotonic() > self.deadline:
            return "timed_out"
        asked = await self._guard(
            lambda: Run.objects.filter(pk=self.run.pk, cancel_asked_at__isnull=False).exists()
        )
        return "cancelled" if asked else None

    async def _guard(self, function: Callable[..., T], *args: Any) -> T:
        try:
            return await in_thread(function)(*args)
        except LeaseLost:
            self.lost = True
            raise StopRun("lease_lost") from None


def _done_already(run: Run, earlier: ToolCall, judged: Judged) -> Judged:
    """A new run begins anew; what its forerunner did outside is still there.

    After a clean restart a person is asked. One with tools only goes on from there: what is known
    to have happened, or may have, is not done a second time.
    """
    number, known = earlier.run.number, earlier.state == CallState.DONE
    words = f"Run {number}, which this one restarts, did or may have done this."
    if not run.narrowed:
        return replace(judged, state=CallState.WAITING, reason=f"{words} {judged.reason}".strip())
    words = (
        f"Run {number}, after which this one goes on, did this already, and it is not done again. "
        f"It was told: {earlier.result[:2000]}"
        if known
        else f"Run {number}, after which this one goes on, may have done this; nobody knows yet. "
        "It is not done again."
    )
    return replace(judged, state=CallState.REFUSED, rules=(DONE_ALREADY,), reason=words)


def drive_run(lease: Lease) -> str:
    """Work on the run until it pauses, finishes, stops or fails; returns one word for the log.

    Raises `SandboxUnavailable` before anything was done, so that the task may
    try again later. Owns its event loop: bubblewrap dies with the thread that
    started it, so the thread must outlive the sandbox.
    """
    run = Run.objects.select_related("tenant", "version", "version__contract").get(pk=lease.run_id)
    try:
        with working_folder("run") as work:
            return asyncio.run(_drive(lease, run, work))
    except LeaseLost:
        return "lease lost"


async def _drive(lease: Lease, run: Run, work: Path) -> str:
    contract = lifecycle.contract_of(run)
    watch = Stopwatch()
    heart = asyncio.create_task(_heartbeat(lease, watch), name=f"lease of run {run.number}")
    sandbox: Sandbox | None = None
    network = Network(lease, run, contract)
    checkpoint: Checkpoint | None = None
    try:
        _contract_as_agreed(run)
        checkpoint = await in_thread(_checkpoint)(run)
        await network.open(work / "egress")
        sandbox, brief = await _prepare(lease, run, contract, checkpoint, work, network.folder)
        host = RunHost(
            lease=lease,
            run=run,
            contract=contract,
            tools={tool.name: tool for tool in brief.tools},
            deadline=time.monotonic()
            + max(1.0, contract.limits.wall_minutes * 60 - run.seconds_used),
            network=network,
        )
        try:
            outcome = await _work(run, brief, sandbox, host, checkpoint)
        except RecoveryError as error:
            raise _unusable(error, "resume") from error
        except BriefRefused as error:
            raise Failed("control", error.code, "brief", str(error), retry_safe=False) from error
        # The agent's turn is over: nothing crosses any more, and what did is written down.
        await network.close()
        await in_thread(lifecycle.account)(lease, watch.lap())
        return await _settle(lease, run, sandbox, host, outcome)
    except Asked as asked:
        await network.close()
        await in_thread(lifecycle.account)(lease, watch.lap())
        await in_thread(resuming.ask)(lease, asked.checkpoint, asked.answers)
        return "asked whether to go on"
    except Failed as failed:
        await network.close()
        await in_thread(lifecycle.account)(lease, watch.lap())
        await in_thread(lifecycle.fail_run)(
            lease,
            boundary=failed.boundary,
            code=failed.code,
            operation=failed.operation,
            text=str(failed),
            retry_safe=failed.retry_safe,
            unusable=checkpoint if failed.unusable else None,
            kept=failed.kept,
        )
        return "failed"
    finally:
        heart.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await heart
        if sandbox is not None:
            await sandbox.close()
        with contextlib.suppress(LeaseLost):
            await network.close()


class Stopwatch:
    """Wall time of one stretch of work; every second is handed out once."""

    def __init__(self) -> None:
        self._then = time.monotonic()

    def lap(self) -> float:
        """Seconds since the last lap."""
        then, self._then = self._then, time.monotonic()
        return self._then - then

    def put_back(self, seconds: float) -> None:
        """Those seconds could not be written down; the next lap has them again."""
        self._then -= seconds


async def _heartbeat(lease: Lease, watch: Stopwatch) -> None:
    """Renew the lease and count wall time until cancelled or lost."""
    while True:
        await asyncio.sleep(settings.RUN_HEARTBEAT)
        seconds = watch.lap()
        try:
            await in_thread(lifecycle.beat)(lease, seconds=seconds)
        except LeaseLost:
            return
        except Exception:
            watch.put_back(seconds)
            # A database that is away for a moment must not kill the run; the lease decides.
            logger.exception("heartbeat of run %s failed", lease.run_id)


# --- Before the agent -----------------------------------------------------------


async def _prepare(
    lease: Lease,
    run: Run,
    contract: Contract,
    checkpoint: Checkpoint | None,
    work: Path,
    egress: Path | None,
) -> tuple[Sandbox, AgentBrief]:
    """Source, sandbox and brief, all from the pinned contract. Raises `Failed`."""
    started = time.monotonic()
    recording = await in_thread(_recording)(run, contract)
    try:
        brief = await in_thread(make_brief)(run, contract, recording)
        label = transcript_label(recording)
    except BriefRefused as refused:
        raise Failed("control", refused.code, "brief", str(refused), retry_safe=False) from refused
    answers, going_on = Answers(()), None
    if checkpoint is not None:
        await in_thread(_verify_state)(checkpoint, brief)
        answers, going_on = await in_thread(_asked_whether)(run, contract, checkpoint)
    fetched = await _source(run, contract, work) if checkpoint is None else None
    spec = SandboxSpec(
        run_id=str(run.public_id),
        tenant=str(run.tenant_id),
        limits=Limits(
            wall_seconds=contract.limits.wall_minutes * 60,
            memory_mb=contract.limits.memory_mb,
            cpus=float(contract.limits.cpus),
            pids=contract.limits.pids,
            workspace_mb=contract.limits.workspace_mb,
        ),
        environment=await in_thread(_environment)(run, contract),
        labels={"imprimatur.run.number": str(run.number)},
        egress_dir=egress,
    )
    provider = no_sandbox() if run.narrowed else sandbox_provider()
    try:
        if checkpoint is None:
            sandbox = await provider.create(spec)
        else:
            sandbox = await _restored(provider, spec, checkpoint)
    except SandboxUnavailable:
        raise
    except SandboxError as error:
        raise Failed(
            error.boundary,
            error.code,
            "create sandbox",
            str(error),
            retry_safe=error.retry_safe,
            unusable=isinstance(error, RestoreFailed),
        ) from error
    try:
        if fetched is not None and not run.narrowed:
            await _fill(sandbox, contract, fetched.repo, work)
        await in_thread(lifecycle.note_start)(
            lease,
            source_commit=fetched.resolved.commit if fetched else run.source_commit,
            source_tree=fetched.resolved.tree if fetched else run.source_tree,
            left_out=fetched.left_out if fetched else (),
            provider=sandbox.provider,
            image_digest=sandbox.image_digest,
            sandbox_ref=sandbox.ref,
            transcript_label=label,
            resumed=checkpoint is not None,
            answers=answers.facts() if checkpoint is not None else {},
            going_on=going_on,
            duration_ms=int((time.monotonic() - started) * 1000),
        )
        fresh = await in_thread(Run.objects.select_related("version", "tenant").get)(pk=run.pk)
        run.source_commit, run.source_tree = fresh.source_commit, fresh.source_tree
        run.provider, run.image_digest = fresh.provider, fresh.image_digest
        run.seconds_used, run.next_input = fresh.seconds_used, fresh.next_input
    except SandboxError as error:
        await sandbox.close()
        raise Failed(
            error.boundary, error.code, "fill workspace", str(error), retry_safe=error.retry_safe
        ) from error
    except BaseException:
        await sandbox.close()
        raise
    return sandbox, brief


def _contract_as_agreed(run: Run) -> None:
    """Raise `Failed` where the version that the run is pinned to says something else by now."""
    if digest(run.version.data) != run.version.digest:
        raise Failed(
            "control",
            "run.contract_changed",
            "read contract",
            f"Version {run.version.number} of the contract is not what people put in force: its "
            "digest is another. Nothing was done. Ask who has access to the database.",
            retry_safe=False,
        )


class Asked(Exception):
    """The run may not go on before a person answered what changed since its checkpoint."""

    def __init__(self, checkpoint: Checkpoint, answers: Answers) -> None:
        super().__init__("something changed since the checkpoint")
        self.checkpoint, self.answers = checkpoint, answers


def _asked_whether(
    run: Run, contract: Contract, checkpoint: Checkpoint
) -> tuple[Answers, Resumption | None]:
    """Ask what a resume asks. Raises `Asked` for differences that nobody has approved."""
    answers = compare(checkpoint.footing, footing_of(run, contract))
    if not answers.differences:
        return answers, None
    going_on = resuming.approved(run, answers.digest(checkpoint.state_digest))
    if going_on is None:
        raise Asked(checkpoint, answers)
    return answers, going_on


@dataclass(frozen=True)
class Fetched:
    """The source as plain files, and what the contract's rules left out of them."""

    resolved: source.ResolvedSource
    repo: Path
    left_out: tuple[str, ...]


async def _source(run: Run, contract: Contract, work: Path) -> Fetched:
    """Fetch the source in the outer runtime. A run that began keeps its commit."""

    def get() -> Fetched:
        resolved = fetch_source(run, contract)
        repo = work / "repo"
        info = source.checkout(resolved, cache_of(run.tenant_id), repo)
        return Fetched(resolved, repo, tuple(f"{each.path}: {each.why}" for each in info.left_out))

    try:
        return await in_thread(get)()
    except source.SourceRefused as refused:
        raise Failed(
            "control", refused.code, "fetch source", str(refused), retry_safe=refused.retry_safe
        ) from refused


async def _fill(sandbox: Sandbox, contract: Contract, repo: Path, work: Path) -> None:
    inputs = work / "input"
    inputs.mkdir()
    for name, text in contract.files.items():
        target = inputs / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    await sandbox.load(repo, "repo")
    for name, inside in contract.inputs.items():
        _copy_input(repo, inside, inputs / name)
    await sandbox.load(inputs, "input")


def _copy_input(repo: Path, inside: str, target: Path) -> None:
    """An input is a file or folder of the source that the agent may read and not change."""
    origin = (repo / inside).resolve()
    if not origin.is_relative_to(repo.resolve()) or not origin.exists():
        raise Failed(
            "control",
            "runs.input_missing",
            "fill workspace",
            f"The input “{inside}” is not in the source. Correct the contract's [inputs].",
            retry_safe=False,
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    if origin.is_dir():
        shutil.copytree(origin, target, symlinks=True, dirs_exist_ok=True)
    else:
        shutil.copy2(origin, target)


def _environment(run: Run, contract: Contract) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in contract.environment.items():
        if isinstance(value, Reference):
            row = TenantValue.objects.filter(tenant_id=run.tenant_id, name=value.reference).first()
            if row is None:
                raise Failed(
                    "control",
                    "runs.value_missing",
                    "fill workspace",
                    f"The contract refers to the value “{value.reference}”, which the tenant "
                    "does not have. "
                    "A tenant admin can add it.",
                    retry_safe=False,
                )
            values[name] = row.value
        else:
            values[name] = value
    return values


def _recording(run: Run, contract: Contract) -> bytes | None:
    if not contract.agent.transcript:
        return None
    row = Recording.objects.filter(tenant_id=run.tenant_id, name=contract.agent.transcript).first()
    if row is None:
        raise Failed(
            "control",
            "runs.recording_missing",
            "brief",
            f"The contract names the recorded transcript “{contract.agent.transcript}”, which "
            "the tenant does not have.",
            retry_safe=False,
        )
    return blobs.get(run.tenant_id, row.blob)


def _checkpoint(run: Run) -> Checkpoint | None:
    """Where the run goes on from; None before its first checkpoint, and only then."""
    found = lifecycle.last_checkpoint(run)
    if found is None and Checkpoint.objects.filter(run=run).exists():
        raise Failed(
            "recovery",
            "runs.no_checkpoint",
            "resume",
            "None of the run's checkpoints can be used, and it is not begun in an empty workspace "
            "instead. Restart it clean.",
            retry_safe=False,
        )
    return found


def _verify_state(checkpoint: Checkpoint, brief: AgentBrief) -> None:
    """The saved state proves to be the one that was saved, and one to go on from."""
    try:
        state = vault.unseal(bytes(checkpoint.sealed_state)).decode()
        if digest(state) != checkpoint.state_digest:
            raise RecoveryError(
                "recovery.state_damaged", "The saved run state is damaged.", "Start a new run."
            )
        agent.verify_state(brief, state)
    except (RecoveryError, vault.SealBroken) as error:
        raise _unusable(error, f"restore checkpoint {checkpoint.seq}") from error


async def _restored(
    provider: SandboxProvider, spec: SandboxSpec, checkpoint: Checkpoint
) -> Sandbox:
    """A sandbox with what the checkpoint's snapshot holds, once it proved to be the one saved.

    Raises `SandboxError` and `Failed`.
    """
    sha256 = checkpoint.snapshot_blob
    try:
        try:
            with blobs.open_stored(checkpoint.tenant_id, sha256) as stored:
                return await provider.create(spec, restore=stored, restore_sha256=sha256)
        except SnapshotDamaged as damaged:
            raise blobs.BlobDamaged(sha256=sha256) from damaged
    except blobs.BlobDamaged as error:
        raise _unusable(error, f"restore checkpoint {checkpoint.seq}") from error


# The checkpoint is whole; what it belongs to is not what is here. That may be mended.
_NOT_ITS_FAULT = frozenset(
    {"sdk_version", "agent_renamed", "agent_version", "tool_gone", "portal.seal_broken"}
)


def _unusable(
    error: RecoveryError | blobs.BlobDamaged | vault.SealBroken, operation: str
) -> Failed:
    return Failed(
        "recovery",
        error.code,
        operation,
        str(error),
        retry_safe=False,
        unusable=error.code not in _NOT_ITS_FAULT,
    )


# --- The agent -------------------------------------------------------------------


async def _work(
    run: Run, brief: AgentBrief, sandbox: Sandbox, host: RunHost, checkpoint: Checkpoint | None
) -> Outcome:
    if checkpoint is None:
        return await agent.start(brief, sandbox, host)
    state = vault.unseal(bytes(checkpoint.sealed_state)).decode()
    if checkpoint.purpose == "finished":
        return await agent.carry_on(brief, sandbox, host, state=state, message=run.next_input)
    answers = await in_thread(_answers)(checkpoint)
    return await agent.resume(brief, sandbox, host, state=state, answers=answers)


def _answers(checkpoint: Checkpoint) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    for call in ToolCall.objects.filter(checkpoint=checkpoint).select_related("edited_by"):
        state = CallState(call.state)
        # A call that acted already goes through `begin`, which gives the recorded result.
        approved = state in (
            CallState.APPROVED,
            CallState.ACTING,
            CallState.DONE,
            CallState.FAILED,
            CallState.UNKNOWN,
        )
        words = call.answer if approved or call.answer else _WORDS.get(state, state.value)
        edited = edited_of(call)
        if edited is not None and not approved:
            words = f"{words}\n\n{edited.words}"
        answers[call.call_id] = Answer(approved=approved, text=words, edited=edited)
    return answers


_WORDS = {
    CallState.EXPIRED: (
        "Expired: nobody decided in time. This is not a denial and not an approval; nothing was "
        "done."
    ),
    CallState.DENIED: "Denied by a person.",
    CallState.CANCELLED: (
        "Cancelled: the run failed before an answer was used, and a person took it up again. "
        "Nothing was done. Propose the call again if it is still needed."
    ),
}


# --- After the agent ----------------------------------------------------------------


async def _settle(lease: Lease, run: Run, sandbox: Sandbox, host: RunHost, outcome: Outcome) -> str:
    if host.unknown:
        await sandbox.close()
        if outcome.stop != "cancelled" and time.monotonic() > host.deadline:
            # It could do nothing more if it waited. What the call did is still to be settled.
            raise _timed_out(
                "A call was under way then, and nobody knows what became of it: settle it first.",
                retry_safe=False,
            )
        await in_thread(lifecycle.park_unknown)(lease)
        return "outcome unknown"
    if outcome.status == "failed" and outcome.error is not None:
        error = outcome.error
        raise Failed(
            error.boundary,
            error.code,
            "agent",
            error.text,
            retry_safe=error.retry_safe,
            kept=await _kept(run, sandbox, outcome),
        )
    if outcome.status == "stopped":
        return await _stopped(lease, host, sandbox, outcome)
    if outcome.state is None:
        raise Failed(
            "recovery",
            "runs.no_state",
            "checkpoint",
            "The agent's state could not be saved.",
            retry_safe=True,
        )
    if run.narrowed and outcome.status == "finished" and outcome.output:
        # Nothing that runs can write there: the last answer is what such a run offers.
        await sandbox.write(ANSWER, outcome.output.encode("utf-8", "replace"))
    saved = await _saved(run, sandbox)
    await sandbox.close()
    footing = await in_thread(footing_of)(run, lifecycle.contract_of(run))
    waiting = outcome.status == "waiting"
    from_agent = tuple(each.call.call_id for each in outcome.pending)
    await in_thread(lifecycle.save_checkpoint)(
        lease,
        lifecycle.Kept(
            purpose="waiting" if waiting else "finished",
            state=outcome.state,
            saved=saved,
            sdk_version=agent.SDK_VERSION,
            agent_name=run.version.data["agent"]["name"],
            footing=footing,
        ),
        pending=from_agent if waiting else (),
        output=outcome.output,
        enter=RunStatus.WAITING if waiting else RunStatus.COLLECTING,
    )
    return "waiting" if waiting else "finished"


async def _kept(run: Run, sandbox: Sandbox, outcome: Outcome) -> lifecycle.Kept | None:
    """What an agent had that failed between two turns, if all of it could be saved."""
    if outcome.state is None:
        return None
    try:
        saved = await _saved(run, sandbox)
    except Failed:
        logger.exception("run %s failed, and its workspace could not be kept", run.number)
        return None
    name = run.version.data["agent"]["name"]
    return lifecycle.Kept(
        *("between", outcome.state, saved, agent.SDK_VERSION, name),
        await in_thread(footing_of)(run, lifecycle.contract_of(run)),
    )


async def _saved(run: Run, sandbox: Sandbox) -> snapshots.Saved:
    """Store the workspace, read back and restorable. Raises `Failed`."""
    try:
        return await snapshots.keep(run.tenant_id, sandbox, partial(_tracked, run))
    except (SandboxError, OSError, blobs.BlobDamaged, snapshots.NotRestorable) as error:
        raise Failed(
            "recovery",
            getattr(error, "code", "runs.snapshot_failed"),
            "snapshot",
            f"The workspace could not be saved, so the run was not parked: {error}",
            retry_safe=True,
        ) from error
    except source.SourceRefused as refused:
        raise Failed(
            "recovery", refused.code, "snapshot", str(refused), retry_safe=refused.retry_safe
        ) from refused


def _tracked(run: Run) -> list[str]:
    """The paths that the run's source holds."""
    try:
        resolved = fetch_source(run, lifecycle.contract_of(run))
        return source.tracked(resolved, cache_of(run.tenant_id))
    finally:
        close_old_connections()


async def _stopped(lease: Lease, host: RunHost, sandbox: Sandbox, outcome: Outcome) -> str:
    await sandbox.close()
    if outcome.stop == "lease_lost" or host.lost:
        raise LeaseLost
    if outcome.stop == "cancelled":
        await in_thread(lifecycle.confirm_cancel)(lease)
        return "cancelled"
    if outcome.stop == "budget":
        raise Failed(
            "control",
            "runs.budget_spent",
            "agent",
            "The contract's budget is spent. What was done so far is in the events; raise the "
            "limit in a new version to go on."
            if outcome.error is None
            else outcome.error.text,
            retry_safe=True,
        )
    raise _timed_out("", retry_safe=True)


def _timed_out(more: str, *, retry_safe: bool) -> Failed:
    words = "The contract's wall time is used up. Raise it in a new version, or narrow the job."
    return Failed(
        "control", "runs.timed_out", "agent", f"{words} {more}".strip(), retry_safe=retry_safe
    )
