"""Take what a finished run offers and store it as a candidate, content-addressed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import transaction

from approvals import contents, tree
from approvals.changes import LeftOut, spell
from approvals.models import Candidate, ContentPack
from approvals.publication import candidate_digest
from approvals.repositories import bare_with_base, pack_of
from portal import audit, blobs
from portal.handoff import Job
from runs import lifecycle
from runs.contract import Contract
from runs.folders import working_folder
from runs.lifecycle import locked_run
from runs.models import Checkpoint, Run
from runs.sandbox import archive
from runs.snapshots import KINDS
from runs.source import SourceRefused
from runs.states import RunStatus

MAX_TRAY_FILE = 5 << 20
MAX_BYTES = 512 << 20
MAX_FILES = 60_000


class NothingToTake(Exception):
    """The run cannot give a candidate; the text says why and goes on the failure page."""

    def __init__(self, boundary: str, code: str, text: str) -> None:
        super().__init__(text)
        self.boundary, self.code = boundary, code


@dataclass(frozen=True)
class Taken:
    """What was read out of the snapshot, before anything is stored."""

    tree: tree.TakenTree
    tray: list[dict[str, Any]]
    left_out: list[dict[str, Any]]
    patch_blob: str
    pack_blob: str
    contents: list[contents.Packed]
    words: str


def collect_candidate(run_id: int) -> int | None:
    """Make the next candidate of a run that finished; returns its key. Safe to repeat.

    Reading happens outside any transaction and under a lease; the row is made
    only if the run still waits for it, so of two workers one makes it.
    """
    with lifecycle.holding(run_id, RunStatus.COLLECTING) as held:
        return _collect(run_id) if held else None


def _collect(run_id: int) -> int | None:
    run = Run.objects.select_related("tenant", "version", "version__contract").get(pk=run_id)
    contract = lifecycle.contract_of(run)
    finished = Checkpoint.objects.filter(run=run, purpose="finished", unusable="")
    checkpoint = finished.order_by("-seq").first()
    try:
        if checkpoint is None:
            raise NothingToTake(
                "recovery", "candidate.no_checkpoint", "The run ended without a checkpoint."
            )
        with working_folder("take") as folder:
            taken = _take(run, contract, checkpoint, folder)
    except NothingToTake as nothing:
        lifecycle.fail_step(
            run_id,
            RunStatus.COLLECTING,
            boundary=nothing.boundary,
            code=nothing.code,
            operation="take candidate",
            text=str(nothing),
        )
        return None
    return _store(run_id, checkpoint, taken)


def _take(run: Run, contract: Contract, checkpoint: Checkpoint, folder: Path) -> Taken:
    try:
        with blobs.open_checked(run.tenant_id, checkpoint.snapshot_blob) as snapshot:
            for part in ("repo", "output"):
                archive.unpack(
                    snapshot,
                    part,
                    folder / part,
                    max_bytes=MAX_BYTES,
                    max_files=MAX_FILES,
                    others={"repo", "input", "output"} - {part},
                )
    except (blobs.BlobDamaged, archive.ArchiveRefused, OSError) as error:
        raise NothingToTake(
            "recovery", "candidate.snapshot_unusable", f"The workspace could not be read: {error}"
        ) from error
    try:
        bare = bare_with_base(run, contract, folder / "bare.git")
    except SourceRefused as refused:
        if refused.retry_safe:
            raise  # the sweep asks again
        raise NothingToTake("control", refused.code, str(refused)) from refused
    try:
        taken = (
            tree.unchanged(bare, run.source_commit)
            if run.narrowed
            else tree.build_tree(folder / "repo", bare, run.source_commit)
        )
    except (tree.TreeRefused, tree.GitFailed, tree.ObjectMissing) as error:
        raise NothingToTake("execution", error.code, str(error)) from error
    patch = tree.patch(bare, taken.base_tree, taken.tree)
    with tree.open_blobs(bare) as read:
        kept = contents.pack(run.tenant_id, taken.changes, read.read)
    tray, left = _tray(run.tenant_id, folder / "output", contract)
    return Taken(
        tree=taken,
        tray=tray,
        left_out=[each.to_data() for each in (*taken.left_out, *_not_saved(checkpoint))] + left,
        patch_blob=blobs.put(run.tenant_id, patch),
        pack_blob=blobs.put(run.tenant_id, pack_of(bare, taken.tree, taken.base_tree)),
        contents=kept,
        words=run.output,
    )


def _not_saved(checkpoint: Checkpoint) -> list[LeftOut]:
    """What the last snapshot does not hold, such as links that lead out: it is not offered."""
    told = (str(each).partition(": ") for each in checkpoint.left_out)
    missed = [
        LeftOut(
            path.removeprefix("repo/").encode(),
            "not in the snapshot",
            reason or "it could not be saved",
        )
        for path, _, reason in told
        if path.startswith(("repo/", "output/"))
    ]
    return missed + [
        LeftOut(
            each["path"].removeprefix("repo/").encode(),
            "not in the snapshot",
            f"{KINDS[each['kind']]} is never saved",
            count=max(1, each["files"]),
        )
        for each in checkpoint.excluded
    ]


def _tray(
    tenant_id: int, folder: Path, contract: Contract
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The files of the tray by content. Links and what is too large are left out and named."""
    files: list[dict[str, Any]] = []
    left: list[dict[str, Any]] = []
    for parent, folders, names in os.walk(folder):
        folders.sort()
        # A link to a directory is listed among the directories, and is left out like any link.
        linked = [name for name in folders if (Path(parent) / name).is_symlink()]
        for name in sorted([*names, *linked]):
            path = Path(parent) / name
            spelled = spell(os.fsencode(path.relative_to(folder)))
            reason = ""
            if path.is_symlink():
                reason = "a link is no content"
            elif not path.is_file():
                reason = "a device, socket or pipe is no content"
            elif path.stat().st_size > MAX_TRAY_FILE:
                reason = f"larger than {MAX_TRAY_FILE:,} bytes"
            elif len(files) >= contract.output.max_files:
                reason = f"more than {contract.output.max_files} files"
            if reason:
                left.append(
                    {
                        "path": f"output/{spelled}",
                        "reason": "tray",
                        "text": reason,
                        "blocking": True,
                        "count": 1,
                    }
                )
                continue
            data = path.read_bytes()
            files.append({"path": spelled, "sha256": blobs.put(tenant_id, data), "size": len(data)})
    return files, left


@transaction.atomic(durable=True)
def _store(run_id: int, checkpoint: Checkpoint, taken: Taken) -> int | None:
    run = locked_run(run_id)
    if RunStatus(run.status) is not RunStatus.COLLECTING:
        return None
    finished = Checkpoint.objects.filter(run=run, purpose="finished", unusable="")
    latest = finished.order_by("-seq").first()
    if latest is None or latest.pk != checkpoint.pk:
        return None
    earlier = Candidate.objects.filter(run=run)
    earlier.filter(superseded=False).update(superseded=True)
    candidate = Candidate(
        tenant=run.tenant,
        run=run,
        seq=earlier.count() + 1,
        base_commit=run.source_commit,
        base_tree=taken.tree.base_tree,
        tree=taken.tree.tree,
        changes=[each.to_data() for each in taken.tree.changes],
        tray=taken.tray,
        left_out=taken.left_out,
        patch_blob=taken.patch_blob,
        pack_blob=taken.pack_blob,
        agent_words=taken.words,
    )
    candidate.digest = candidate_digest(candidate)
    candidate.save(force_insert=True)
    ContentPack.objects.bulk_create(contents.rows_of(candidate, taken.contents))
    lifecycle.advance(
        run,
        RunStatus.CHECKING,
        Job.RUN_CHECKS,
        candidate.pk,
        candidate=candidate.seq,
        artifacts=[candidate.digest, *(each["sha256"] for each in taken.tray)],
    )
    audit.record(
        "candidate.taken",
        tenant=run.tenant,
        subject=candidate,
        digest=candidate.digest,
        tree=candidate.tree,
    )
    return candidate.pk
