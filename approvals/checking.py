"""Run every check of a candidate once and store its receipt."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction

from approvals import checks, tree
from approvals.changes import Change, LeftOut
from approvals.checks import CheckResult, secrets
from approvals.models import Candidate, Receipt
from approvals.repositories import bare_with_candidate
from portal import audit, blobs
from portal.canonical import digest
from portal.handoff import Job
from portal.redact import redact
from runs import credentials, lifecycle
from runs.contract import Contract, Verification
from runs.folders import working_folder
from runs.lifecycle import Draft, append_events, locked_run, run_facts
from runs.models import Run
from runs.providers import sandbox_provider
from runs.sandbox import Limits, SandboxError, SandboxSpec, SandboxUnavailable
from runs.source import SourceRefused
from runs.states import RunStatus

logger = logging.getLogger(__name__)


def run_checks(candidate_id: int) -> str:
    """Run what has no receipt yet, then hand on. Safe to repeat: a receipt exists once."""
    candidate = (
        Candidate.objects.select_related(
            "run", "run__tenant", "run__version", "run__version__contract"
        )
        .filter(pk=candidate_id)
        .first()
    )
    if candidate is None or candidate.superseded:
        return "skipped"
    with lifecycle.holding(candidate.run_id, RunStatus.CHECKING) as held:
        return _check(candidate) if held else "skipped"


def _check(candidate: Candidate) -> str:
    run = candidate.run
    contract = lifecycle.contract_of(run)
    have = set(Receipt.objects.filter(candidate=candidate).values_list("check_name", flat=True))
    with working_folder("check") as folder:
        try:
            bare = bare_with_candidate(run, contract, candidate, folder / "bare.git")
        except (blobs.BlobDamaged, SourceRefused) as refused:
            if isinstance(refused, SourceRefused) and refused.retry_safe:
                raise  # the sweep asks again
            lifecycle.fail_step(
                run.pk,
                RunStatus.CHECKING,
                boundary="recovery",
                code=refused.code,
                operation="check candidate",
                text=str(refused),
            )
            return "failed"
        secrets.prepare(Path(settings.DATA_DIR) / "cache" / "secret-rules")
        with tree.open_blobs(bare) as contents:
            wanted = _checks(run, contract, candidate, bare, folder, contents.read)
            for name, check in wanted.items():
                if name not in have:
                    _store(candidate, name, _guarded(name, candidate, check))
    return _hand_on(candidate)


def _checks(
    run: Run,
    contract: Contract,
    candidate: Candidate,
    bare: Path,
    folder: Path,
    read: Callable[[str], bytes],
) -> dict[str, Callable[[], CheckResult]]:
    subject = checks.Subject(
        digest=candidate.digest,
        changes=tuple(Change.from_data(each) for each in candidate.changes),
        read=read,
        tray={
            each["path"]: partial(blobs.get, run.tenant_id, each["sha256"])
            for each in candidate.tray
        },
        allowed_paths=contract.output.allowed_paths,
        max_files=contract.output.max_files,
        max_bytes=contract.output.max_bytes,
        left_out=tuple(LeftOut.from_data(each) for each in candidate.left_out),
        paths=tuple(entry.path for entry in tree.list_tree(bare, candidate.tree)),
        patch=lambda: blobs.get(run.tenant_id, candidate.patch_blob),
        known=credentials.known(run.tenant_id),
    )
    wanted: dict[str, Callable[[], CheckResult]] = {
        name: partial(function, subject) for name, function in checks.ALL.items()
    }
    verification = contract.verification
    if verification is not None:
        wanted["verification"] = lambda: _verify(
            run, contract, verification, candidate, bare, folder
        )
    return wanted


def _guarded(name: str, candidate: Candidate, check: Callable[[], CheckResult]) -> CheckResult:
    """A check that breaks is an error on a receipt, never a silent pass."""
    started = time.monotonic()
    try:
        return check()
    except SandboxUnavailable:
        raise
    except Exception as error:
        logger.exception("check %s of candidate %s broke", name, candidate.pk)
        return CheckResult(
            check=name,
            version="-",
            input_digest=candidate.digest,
            outcome="error",
            findings=(),
            evidence={"error": f"{type(error).__name__}: {redact(str(error))[:500]}"},
            duration_ms=int((time.monotonic() - started) * 1000),
        )


def _verify(
    run: Run,
    contract: Contract,
    verification: Verification,
    candidate: Candidate,
    bare: Path,
    folder: Path,
) -> CheckResult:
    """Run the contract's command on source + candidate in a fresh sandbox."""
    repo = folder / "verify"
    tree.materialise(bare, candidate.tree, repo, source=candidate.base_tree)
    spec = SandboxSpec(
        run_id=str(run.public_id),
        tenant=str(run.tenant_id),
        limits=Limits(
            wall_seconds=verification.timeout_seconds + 60,
            memory_mb=contract.limits.memory_mb,
            cpus=float(contract.limits.cpus),
            pids=contract.limits.pids,
            workspace_mb=contract.limits.workspace_mb,
        ),
        labels={"imprimatur.purpose": "verification"},
    )

    async def work() -> tuple[Any, str, str]:
        sandbox = await sandbox_provider().create(spec)
        try:
            await sandbox.load(repo, "repo")
            done = await sandbox.exec(verification.command, timeout=verification.timeout_seconds)
            return done, sandbox.provider, sandbox.image_digest
        finally:
            await sandbox.close()

    started = time.monotonic()
    try:
        done, provider, image = asyncio.run(work())
    except SandboxUnavailable:
        raise
    except SandboxError as error:
        return CheckResult(
            check="verification",
            version="-",
            input_digest=candidate.digest,
            outcome="error",
            findings=(),
            evidence={"error": str(error)[:500]},
            duration_ms=int((time.monotonic() - started) * 1000),
        )
    output = (done.stdout + done.stderr).decode("utf-8", "replace")
    passed = done.exit_code == 0 and not done.timed_out and not done.truncated
    return CheckResult(
        check="verification",
        version=f"{provider} {image}"[:80],
        input_digest=candidate.digest,
        outcome="passed" if passed else "failed",
        findings=(),
        evidence={
            "command": list(verification.command),
            "exit_code": done.exit_code,
            "timed_out": done.timed_out,
            "truncated": done.truncated,
            "provider": provider,
            "image_digest": image,
            "tree": candidate.tree,
            "output": redact(output[-100_000:]),
        },
        duration_ms=done.duration_ms,
    )


def receipt_digest(receipt: Receipt) -> str:
    """What a packet pins of a receipt."""
    return digest(receipt_body(receipt))


def receipt_body(receipt: Receipt) -> dict[str, Any]:
    """What a receipt's digest covers."""
    return {
        "candidate": receipt.input_digest,
        "check": receipt.check_name,
        "version": receipt.version,
        "outcome": receipt.outcome,
        "findings": receipt.findings,
        "evidence": receipt.evidence,
        "evidence_blob": receipt.evidence_blob,
    }


@transaction.atomic(durable=True)
def _store(candidate: Candidate, name: str, result: CheckResult) -> None:
    evidence = dict(result.evidence)
    output = evidence.pop("output", None)
    blob = blobs.put(candidate.tenant_id, output.encode("utf-8", "replace")) if output else ""
    receipt = Receipt(
        tenant_id=candidate.tenant_id,
        candidate=candidate,
        check_name=name,
        version=result.version[:80],
        input_digest=result.input_digest,
        outcome=result.outcome,
        findings=[each.to_data() for each in result.findings],
        evidence=evidence,
        evidence_blob=blob,
        duration_ms=result.duration_ms,
    )
    receipt.digest = receipt_digest(receipt)
    try:
        with transaction.atomic():
            receipt.save(force_insert=True)
    except IntegrityError:
        return  # another worker's receipt of the same check stands
    run = locked_run(candidate.run_id)
    append_events(
        run,
        [
            Draft(
                "check.finished",
                run_facts(run)
                | {
                    "operation": name,
                    "result": result.outcome,
                    "candidate": candidate.seq,
                    "artifacts": [candidate.digest, receipt.digest],
                    "duration_ms": result.duration_ms,
                },
            )
        ],
    )


@transaction.atomic(durable=True)
def _hand_on(candidate: Candidate) -> str:
    run = locked_run(candidate.run_id)
    candidate.refresh_from_db(fields=["superseded"])
    if candidate.superseded or run.status != RunStatus.CHECKING:
        return "skipped"
    receipts = Receipt.objects.filter(candidate=candidate)
    audit.record(
        "candidate.checked",
        tenant=run.tenant,
        subject=candidate,
        receipts={each.check_name: each.outcome for each in receipts},
        digests={each.check_name: each.digest for each in receipts},
    )
    lifecycle.advance(run, RunStatus.IN_REVIEW, Job.OPEN_PUBLICATION_PACKET, candidate.pk)
    return "checked"
