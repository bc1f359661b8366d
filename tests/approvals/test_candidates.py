"""What a finished run offers: taken once, by content, with what cannot be reviewed named."""

from __future__ import annotations

from typing import Any

import pytest

from approvals import candidates, checking, checks, publication
from approvals.models import Candidate, Receipt
from approvals.states import Verdict
from portal import blobs
from portal.handoff import Job
from runs import lifecycle
from runs.models import Checkpoint, Event, Run
from runs.sandbox import SandboxUnavailable
from runs.states import RunStatus
from tests.cast import PATCH, REPAIR, call, contract_text, git, say
from tests.walk import Walk, candidate_of

FIX = [call("fix", "apply_patch", patch=PATCH)]


def shell(command: str, call_id: str = "do") -> list[dict[str, Any]]:
    return [call(call_id, "exec_command", cmd=command)]


def taken(walk: Walk, *steps: list[dict[str, Any]], **contract: Any) -> Candidate:
    """The candidate of a run that did these steps."""
    walk.lose_hops()
    run = walk.run([*steps, [say("Done.")]], **contract)
    walk.drain(until=Job.RUN_CHECKS)
    return Candidate.objects.get(run=run)


def test_a_candidate_is_the_difference_to_the_source_commit(walk: Walk) -> None:
    candidate = taken(walk, FIX, shell("echo new > new.txt; rm README.md; chmod +x adder.py"))

    found = {each["path"]: each["status"] for each in candidate.changes}
    assert found == {"README.md": "D", "adder.py": "M", "new.txt": "A"}
    modes = {each["path"]: each["new_mode"] for each in candidate.changes}
    assert modes["adder.py"] == "100755"
    assert candidate.base_commit == walk.commit
    assert candidate.base_tree == git("rev-parse", "main^{tree}", cwd=walk.root / "adder.git")
    patch = blobs.get(candidate.tenant_id, candidate.patch_blob).decode()
    assert "+    return a + b" in patch


def test_the_tray_is_taken_by_content(walk: Walk) -> None:
    make = "mkdir ../output/deep; echo one > ../output/deep/a.txt; echo two > ../output/b.txt"
    candidate = taken(walk, shell(make))

    assert [each["path"] for each in candidate.tray] == ["b.txt", "deep/a.txt"]
    assert blobs.get(candidate.tenant_id, candidate.tray[1]["sha256"]) == b"one\n"


def test_what_cannot_be_reviewed_is_left_out_and_blocks(walk: Walk) -> None:
    packet = walk.to_review([FIX, shell("ln -s b.txt ../output/link"), [say("Done.")]])

    left = candidate_of(packet).left_out
    assert [(each["path"], each["blocking"]) for each in left] == [("output/link", True)]
    assert "1 thing(s) in the workspace cannot be reviewed" in packet.blocked


def test_the_digest_covers_every_byte_and_nothing_of_when(walk: Walk) -> None:
    """The same work gives the same candidate; one more byte gives another."""
    same = [taken(walk, FIX, shell("echo x > ../output/x")) for _ in range(2)]
    other = taken(walk, FIX, shell("printf x > ../output/x"))
    assert same[0].digest == same[1].digest != other.digest
    assert same[0].tree == other.tree
    assert publication.candidate_digest(other) == other.digest


def test_nothing_changed_is_nothing_to_publish(walk: Walk) -> None:
    packet = walk.to_review([shell("true"), [say("There was nothing to do.")]])
    assert packet.blocked == "it changes nothing"


def test_a_tray_with_too_many_files_says_so(walk: Walk) -> None:
    many = "; ".join(f"echo {number} > ../output/{number}" for number in range(4))
    text = contract_text(verification=False).replace("[output]", "[output]\nmax_files = 2")
    run = walk.run([FIX, shell(many), [say("Done.")]], text=text)
    walk.drain()

    packet = walk.open_packet(run)
    reasons = [each["text"] for each in candidate_of(packet).left_out]
    assert reasons == ["more than 2 files"] * 2
    assert packet.blocked


def test_a_run_without_a_checkpoint_has_nothing_to_take(walk: Walk) -> None:
    run = walk.run()
    Run.objects.update(status=RunStatus.COLLECTING)
    assert candidates.collect_candidate(run.pk) is None
    assert walk.status(run) == RunStatus.FAILED
    assert (run.failure_boundary, run.failure_code) == ("recovery", "candidate.no_checkpoint")


def test_a_damaged_snapshot_ends_the_run_with_its_boundary(walk: Walk) -> None:
    run = walk.run()
    walk.step()
    blobs.path_of(walk.cast.acme.pk, Checkpoint.objects.get().snapshot_blob).unlink()
    walk.drain()
    assert walk.status(run) == RunStatus.FAILED
    assert (run.failure_boundary, run.failure_code) == (
        "recovery",
        "candidate.snapshot_unusable",
    )
    assert walk.leftovers() == []


def test_only_the_run_that_waits_for_it_is_taken(walk: Walk) -> None:
    run = walk.run()
    walk.step()
    lifecycle.ask_cancel(run, member=walk.cast.olu)
    assert candidates.collect_candidate(run.pk) is None
    assert not Candidate.objects.exists()


def test_the_candidate_outlives_the_source(walk: Walk) -> None:
    """Its objects lie in our own store: the checks and the publication need no other copy."""
    candidate = taken(walk, FIX)
    pack = blobs.get(candidate.tenant_id, candidate.pack_blob)
    assert pack.startswith(b"PACK")
    git("update-ref", "-d", "refs/heads/main", cwd=walk.root / "adder.git")

    walk.deliver(Job.RUN_CHECKS, candidate.pk)

    assert walk.status(candidate.run) == RunStatus.IN_REVIEW


# --- Checks ------------------------------------------------------------------------------


def test_every_check_leaves_one_receipt_for_the_bytes_it_judged(walk: Walk) -> None:
    packet = walk.to_review(verification=True)
    candidate = candidate_of(packet)
    receipts = {each.check_name: each for each in Receipt.objects.filter(candidate=candidate)}
    assert set(receipts) >= {"paths", "secrets", "size_and_type", "verification"}
    for receipt in receipts.values():
        assert receipt.input_digest == candidate.digest
        assert receipt.digest == checking.receipt_digest(receipt)
        assert receipt.version
    assert set(packet.page["receipts"]) == set(receipts)
    events = Event.objects.filter(run=packet.run, kind="check.finished")
    assert events.count() == len(receipts)


def test_the_verification_runs_on_source_and_candidate_in_a_fresh_sandbox(walk: Walk) -> None:
    """What the agent left lying about, or said about itself, is not there."""
    packet = walk.to_review(
        [FIX, shell("echo 'return 1' > ../output/adder.py"), [say("Passed!")]], verification=True
    )
    receipt = Receipt.objects.get(candidate=packet.candidate, check_name="verification")
    assert (receipt.outcome, receipt.evidence["exit_code"]) == ("passed", 0)
    assert receipt.evidence["tree"] == candidate_of(packet).tree
    output = blobs.get(receipt.tenant_id, receipt.evidence_blob)
    assert output == b"1 passed\n"


def test_a_check_that_breaks_is_no_pass(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(subject: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(checks, "ALL", {**checks.ALL, "paths": broken})
    packet = walk.to_review()
    receipt = Receipt.objects.get(candidate=packet.candidate, check_name="paths")
    assert receipt.outcome == "error"
    assert "the check paths did not pass" in packet.blocked


def test_a_path_outside_the_contract_blocks(walk: Walk) -> None:
    packet = walk.to_review(
        [FIX, shell("echo 1 > other.txt"), [say("Done.")]], allowed=["adder.py"]
    )
    assert "the check paths did not pass" in packet.blocked


def test_without_a_sandbox_the_checks_wait(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    candidate = taken(walk, FIX, verification=True)

    def none() -> None:
        raise SandboxUnavailable("There is none.", "Wait.")

    with monkeypatch.context() as patched:
        patched.setattr(checking, "sandbox_provider", none)
        walk.drain()
    assert walk.status(candidate.run) == RunStatus.CHECKING

    walk.sweep()
    assert walk.status(candidate.run) == RunStatus.IN_REVIEW
    assert Receipt.objects.filter(candidate=candidate, check_name="verification").count() == 1


def test_a_later_finish_replaces_the_candidate(walk: Walk) -> None:
    more = [shell("echo 1 > more.txt", "more"), [say("More.")]]
    first = walk.to_review(REPAIR, more)
    walk.decide(first, walk.cast.bo, Verdict.REQUEST_CHANGES, comment="More.")
    walk.drain()
    one, two = Candidate.objects.filter(run=first.run).order_by("seq")
    assert (one.superseded, two.superseded) == (True, False)
    assert checking.run_checks(one.pk) == "skipped"
