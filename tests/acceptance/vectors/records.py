"""The records of four corpora: what happens in each, and our names for reasons in theirs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import runs.broker
from approvals import publishing, seal
from approvals.models import Candidate, Decision, Packet, PolicyVersion, Publication
from approvals.states import Verdict
from portal import vault
from portal.models import Membership, User
from portal.roles import Role
from runs.agent.arguments import ArgumentsRefused, closed, read_object, reader
from runs.agent.port import ProposedCall
from runs.credentials import grants
from runs.lifecycle import NotJudged, beat
from runs.models import Credential, CredentialGrant, Run, ToolCall
from runs.states import RunStatus
from runs.threads import in_thread
from tests.acceptance.vectors.stage import (
    EARLIEST,
    EARLY,
    HOUR,
    LATE,
    USUAL,
    Moment,
    Stage,
    Tool,
    Worker,
    call_of,
    or_stopped,
    when,
)
from tests.credentials.services import Authorization

Record = Mapping[str, Any]
CONTRACT = {
    "approvals.packet_without_shape": "contract_id_missing",
    "approvals.packet_of_other_shape": "contract_id_unknown",
}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tool_named(name: str) -> str:
    """A tool of a record, by a name that a contract may give one."""
    return name.replace(".", "_")


def placed(call_id: str, tool: str, place: str, content: str) -> ProposedCall:
    """A call that does something at a place with content known by its digest."""
    return ProposedCall(call_id, tool_named(tool), "http", {"place": place, "sha256": content}, "")


# --- An approval, and the use it is presented for ------------------------------------------

BINDING = CONTRACT | {
    "decision_on_another_page": "approval_id_ambiguous",
    "done_already": "approval_replayed",
    # Who signs in with a key that is nobody's here is no member, and sees nothing.
    "portal.not_found": "key_not_bound",
    "approvals.machine_may_not_decide": "key_not_bound",
    # In the run of another principal the same call is one more question to a person.
    "asked": "principal_mismatch",
    "publication.other_kind": "event_phase_mismatch",
    "gate.call_changed": "payload_mismatch",
    "approval_ran_out": "approval_outside_validity",
    # Nobody takes a run that still waits for its answer.
    "run_waiting": "approval_outside_validity",
    "policy_not_evaluated": "comparison_unavailable",
    "policy_changed": "release_not_served_at_decision",
}


class ApprovalBinding:
    """One use of one approval. A principal is who asked for the run, a key is an account."""

    def __init__(self, stage: Stage, record: Record, folder: Path) -> None:
        self.stage, self.record = stage, record
        self.approval, self.asked = record["approval"], record["use"]
        self.content = sha256((folder / self.asked["payloadFile"]).read_bytes())
        self.tools = [
            Tool(name, "{base}/at/{place}")
            for name in sorted({tool_named(each["tool"]) for each in (self.approval, self.asked)})
        ]

    def play(self) -> None:
        stage, approval, release = self.stage, self.approval, self.record["policyRelease"]
        issued, used = when(approval["issuedAt"]), when(self.asked["usedAt"])
        served = when(release["firstServedAt"])
        retired = when(release["lastServedAt"]) + timedelta(seconds=release["graceSeconds"])
        stage.clock.now = min(issued, used, served) - HOUR
        Membership.objects.filter(user__email__contains="-key-").delete()
        stage.change_policy()
        self.release = stage.propose()
        self.run = stage.start(self.tools, approval["principal"])
        self.packet = self._open(self.run, approval)
        moments: list[Moment] = [
            (served, EARLIEST, partial(stage.put_in_force, self.release)),
            (issued, EARLY, self._decide),
            (used, USUAL, self._use),
            (retired, LATE, stage.change_policy),
        ]
        if approval["approvalId"] in self.record["consumedApprovalIds"]:
            moments.append((issued, USUAL, self._use_before))
        if release["lookup"] != "ok":
            moments.append((when(self.record["decisionTime"]), EARLY, self._no_policy))
        stage.play(*moments)

    def _open(self, run: Run, approval: Record) -> Packet:
        """The open packet of a call that was judged by the record's release of the policy."""
        stage = self.stage
        call = placed(
            approval["approvalId"],
            approval["tool"],
            approval["target"],
            approval["payloadSha256"],
        )
        worker = stage.claim(run)
        assert worker is not None
        asyncio.run(worker.judge(call))
        ToolCall.objects.filter(run=run).update(
            policy_version=self.release.number, policy_digest=self.release.digest
        )
        (packet,) = stage.save(worker.lease, call)
        return stage.write_shape(packet, self.record.get("contractId"))

    def _decide(self) -> None:
        """The approver answers, with the key that the record says they used."""
        for approver, key in self.record["trustedKeys"].items():
            self.stage.person(approver, Role.REVIEWER, key=key)
        self.stage.decide(self.packet, self._account(self.approval))
        presented = list(self.record["presentedApprovals"])
        presented.remove(self.approval)
        for other in presented:
            if other["approvalId"] == self.approval["approvalId"]:
                self._another_decision(other)
            else:
                run = self.stage.start(self.tools, other["principal"])
                self.stage.decide(self._open(run, other), self._account(other))

    def _account(self, approval: Record) -> Membership:
        """Who signs in with the key of an approval. An agent has a machine account."""
        approver, key = approval["approver"], approval["keyId"]
        if approver.startswith("agent:"):
            return self.stage.person(approver, Role.REVIEWER, key=key, machine=True)
        email = f"{key}@example.com"
        user = User.objects.filter(email=email).first() or User.objects.create_user(email, approver)
        here = Membership.objects.filter(tenant=self.stage.walk.cast.acme, user=user).first()
        return here or Membership(tenant=self.stage.walk.cast.acme, user=user)

    def _another_decision(self, approval: Record) -> None:
        """A second decision under the same packet, on the page that it was made on.

        Nobody can leave one on another page: `settle_packet` refuses it. Here it is written past
        that door, as somebody with the database could.
        """
        page = self.packet.page | {
            "requested_by": approval["principal"],
            "tool": tool_named(approval["tool"]),
            "arguments": {"place": approval["target"], "sha256": approval["payloadSha256"]},
        }
        Decision.objects.create(
            tenant=self.packet.tenant,
            packet=self.packet,
            person=self.stage.walk.cast.bo.user,
            verdict=Verdict.APPROVE,
            digest=seal.sealed(page)[1],
            decided_at=self.stage.clock.now,
        )

    def _no_policy(self) -> None:
        """What is stored as the policy in force cannot be read any more."""
        PolicyVersion.objects.filter(
            tenant=self.run.tenant, state=PolicyVersion.State.IN_FORCE
        ).update(text="permit (")

    def _use_before(self) -> None:
        """The approval is used once, as it was given, before the record's use."""
        self._use()
        self.stage.before += 1

    def _use(self) -> None:
        """The use: by the run of its principal, at the moment of the walk it is made for."""
        asked = self.asked
        if (asked["event"], asked["phase"]) not in KINDS:
            self._publish()
            return
        run = {self.approval["principal"]: self.run}.get(asked["principal"])
        if run is None:
            run = self.stage.start(self.tools, asked["principal"])
        worker = self.stage.claim(run)
        if worker is not None:
            call = placed(asked["approvalId"], asked["tool"], asked["target"], self.content)
            self.stage.use(worker, call)

    def _publish(self) -> None:
        """The approval of a call, given to the publisher: another act, after the run's work."""
        run, nothing = self.run, "0" * 64
        Run.objects.filter(pk=run.pk).update(status=RunStatus.PUBLISHING)
        candidate = Candidate.objects.create(
            tenant=run.tenant,
            run=run,
            seq=1,
            base_commit=nothing,
            base_tree=nothing,
            tree=nothing,
            digest=nothing,
            changes=[],
            tray=[],
            patch_blob=nothing,
        )
        made = Publication.objects.create(
            tenant=run.tenant,
            run=run,
            packet=self.packet,
            candidate=candidate,
            target={"name": "adder.git", "kind": "git"},
            branch="imprimatur/candidate",
            marker=nothing,
            title="",
            body="",
            tree=nothing,
        )
        publishing.publish(made.pk)
        made.refresh_from_db()
        self.stage.found.append(made.error_code)


KINDS = {("tools/call", "pre-execution"): "call"}
"""The moment a packet of a call is for. What is left is the publisher's: after the work."""


# --- An act, and what holds it together ----------------------------------------------------

FENCE = CONTRACT | {
    "not_judged": "fence_not_bound_to_check",
    "policy_changed": "state_changed_between_check_and_fence",
    "refuses_to_start": "runtime_exceeds_hold",
    "lease_lost_in_effect": "hold_expired_before_effect_ended",
    "not_admitted": "concurrent_dispatch_admitted",
    "lease_lost_at_commit": "commit_after_hold_expired",
}


class DispatchFence:
    """One act under a lease. The state that a check reads is the policy in force.

    The hold is the run's lease; its sequence number names the call that was judged. Where a record
    says how long the act may take, the hold is asked of the settings: one that nothing renews is
    the broker's on its message, one that is renewed the lease.
    """

    def __init__(self, stage: Stage, record: Record, folder: Path) -> None:
        self.stage, self.record = stage, record
        self.fence, self.effect = record["fence"], record["effect"]

    def _call(self, seq: int | None) -> ProposedCall:
        return ProposedCall(f"seq-{seq}", "dispatch", "http", {"proposal": f"{seq}"}, "")

    def play(self) -> None:
        stage, record, fence = self.stage, self.record, self.fence
        checked, acquired = when(record["check"]["at"]), when(fence["acquiredAt"])
        stage.settings.RUN_LEASE = fence["ttlSeconds"]
        stage.clock.now = checked - HOUR
        stage.change_policy()
        self.run = stage.start([Tool("dispatch")], "agent-owner")
        moments = [
            (when(event["at"]), EARLIEST, stage.change_policy) for event in record["stateEvents"]
        ]
        moments += [
            (checked, EARLY, self._check),
            (acquired, USUAL, self._dispatch),
            *(
                (when(each["at"]), EARLY, partial(self._renew, each))
                for each in fence.get("renewals", ())
            ),
            *(
                (when(each["beganAt"]), USUAL, partial(self._attempt, each))
                for each in record["otherAttempts"]
            ),
        ]
        if "declaredMaxRuntimeSeconds" in self.effect:
            moments.append((checked, EARLIEST, self._start))
        stage.play(*moments)

    def _start(self) -> None:
        """The process that would do this, with these settings: does it start at all?"""
        hold = "RUN_LEASE" if self.fence["renewals"] else "BROKER_VISIBILITY"
        wanted = {
            "RUN_HARD_LIMIT": str(self.effect["declaredMaxRuntimeSeconds"]),
            hold: str(self.fence["ttlSeconds"]),
        }
        started = subprocess.run(
            (sys.executable, "-c", "import portal.settings"),
            env={**os.environ, **wanted},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if started.returncode != 0:
            assert f"WrongValue: {hold} is" in started.stderr, started.stderr
            self.stage.found.append("refuses_to_start")

    def _check(self) -> None:
        self.call = self._call(self.record["check"]["readSeq"])
        self.hop = self._call(-1)
        packets = self.stage.park(self.run, self.call, self.hop)
        self.stage.write_shape(packets[0], self.record.get("contractId"))
        for packet in packets:
            self.stage.decide(packet, self.stage.walk.cast.ada)

    def _dispatch(self) -> None:
        """What the gate asks of a worker around an act, one after the other."""
        if self.stage.found:
            return
        worker = self.stage.claim(self.run)
        if worker is None:
            return
        self.worker = worker
        try:
            asyncio.run(self._act(worker))
        except NotJudged:
            self.stage.found.append("not_judged")

    async def _act(self, worker: Worker) -> None:
        stage, call = self.stage, replace(self.call, call_id=f"seq-{self.fence.get('expectedSeq')}")
        begun = await worker.begin(call)
        await in_thread(stage.read)(worker.run, worker.run.event_seq)
        if not begun.proceed:
            return
        with pytest.MonkeyPatch.context() as patched:
            # The service takes its time.
            patched.setattr(runs.broker, "carry_out", self._taking_its_time(runs.broker.carry_out))
            if not await or_stopped(worker.broker(call), stage.found, "lease_lost_in_effect"):
                return
        await in_thread(self._pass)(self.record["commit"]["at"])
        done = worker.finished(call, ok=True, output="", exit_code=None, duration_ms=1)
        await or_stopped(done, stage.found, "lease_lost_at_commit")

    def _taking_its_time(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def sending(*args: Any, **kwargs: Any) -> Any:
            done = send(*args, **kwargs)
            self._pass(self.effect["endedAt"])
            return done

        return sending

    def _pass(self, until: str) -> None:
        self.stage.play_until(when(until))
        self.stage.take_over(self.run)

    def _renew(self, renewal: Record) -> None:
        seconds = when(renewal["expiresAt"]) - when(renewal["at"])
        self.stage.settings.RUN_LEASE = int(seconds.total_seconds())
        beat(self.worker.lease)

    def _attempt(self, attempt: Record) -> None:
        """Another dispatch: one more call of the same worker, or another worker altogether."""
        if attempt["proposalId"] == self.record["proposalId"]:
            admitted = asyncio.run(self.worker.begin(self.hop)).proceed
        else:
            found = len(self.stage.found)
            admitted = self.stage.claim(self.run) is not None
            del self.stage.found[found:]
        if attempt["admitted"] and not admitted:
            # The record tells of something that this portal refuses to do.
            self.stage.found.append("not_admitted")


# --- Authority at the moment of the act ----------------------------------------------------

AUTHORITY = CONTRACT | {
    "lease_lost": "authority_evidence_stale",
    "taken_back": "grant_revoked",
    "expired": "grant_expired",
    "scope_widened": "scope_amplified",
    "gate.call_changed": "dispatch_not_approved",
}


class AuthorityAtDispatch:
    """One call with a credential. The first hop is what the tenant's people gave the credential,
    the last what the authorization server gives for it.

    What a worker knows of its authority is its lease: as old as its last renewal, good for as long
    as a lease lasts.
    """

    def __init__(self, stage: Stage, record: Record, folder: Path, server: Authorization) -> None:
        self.stage, self.record, self.server = stage, record, server
        self.dispatch = record["dispatch"]
        self.content = sha256((folder / self.dispatch["payloadFile"]).read_bytes())
        self.worker: Worker | None = None

    def play(self) -> None:
        stage, record, evidence = self.stage, self.record, self.record["authorityEvidence"]
        approved = record["approvedAction"]
        names = sorted({tool_named(each["tool"]) for each in (approved, self.dispatch)})
        tools = [Tool(each, "{base}/at/{place}", credential="token") for each in names]
        stage.settings.RUN_LEASE = evidence["maxAgeSeconds"]
        stage.clock.now = when(approved["approvedAt"]) - HOUR
        stage.change_policy()
        self._give(record["delegation"])
        self.run = stage.start(tools, "agent-owner")
        call = placed("c1", approved["tool"], approved["target"], approved["payloadSha256"])
        (packet,) = stage.park(self.run, call)
        stage.write_shape(packet, record.get("contractId"))
        held = {hop["grantId"] for hop in record["delegation"]}
        stage.play(
            (
                when(approved["approvedAt"]),
                EARLY,
                partial(stage.decide, packet, stage.walk.cast.ada),
            ),
            (when(evidence["observedAt"]), USUAL, self._observe),
            *(
                (when(each["revokedAt"]), EARLY, self._take_back)
                for each in evidence["revokedGrants"]
                if each["grantId"] in held
            ),
            (when(record["decisionTime"]), LATE, self._dispatch),
        )

    def _give(self, hops: list[Record]) -> None:
        """What people gave the credential, and what its server will say it gives for it."""
        self.server.gives = " ".join(hops[-1]["scope"])
        Credential.objects.update_or_create(
            tenant=self.stage.walk.cast.acme,
            name="token",
            defaults={
                "kind": "oauth",
                "config": {
                    "token_url": f"{self.server.url}/token",
                    "revocation_url": f"{self.server.url}/revoke",
                    "client": self.server.client,
                },
                "sealed": vault.seal(self.server.secret.encode()),
                "audience": [self.stage.walk.tracker.url.removeprefix("http://")],
                "actions": hops[0]["scope"],
                "expires_at": when(hops[0]["expiresAt"]),
            },
        )

    def _observe(self) -> None:
        self.worker = self.stage.claim(self.run)

    def _take_back(self) -> None:
        use = CredentialGrant.objects.filter(run=self.run).order_by("-pk").first()
        assert use is not None
        try:
            grants.take_back(self.run, use.public_id, member=self.stage.walk.cast.max)
        except grants.CredentialOver:
            # It was used, and is over.
            return

    def _dispatch(self) -> None:
        self.stage.take_over(self.run)
        if self.worker is not None:
            asked = self.dispatch
            call = placed("c1", asked["tool"], asked["target"], self.content)
            self.stage.use(self.worker, call)


# --- What was shown, and what is executed ----------------------------------------------------

CONVERTED = CONTRACT | {
    "approvals.packet_changed": "approval_not_bound_to_shown",
    "shown_unreadable": "shown_not_storable",
    "arguments_do_not_fit": "invalid_call_approved",
    # The call that comes back from the saved state is not the one that waits.
    "gate.call_changed": "rebuild_not_identical",
    # The stored call is not the one on the page.
    "call_changed": "call_mutated_after_approval",
    "arguments_changed": "shown_not_executed",
}


class ConvertedArguments:
    """One call, from what the model wrote to what its tool runs with."""

    def __init__(self, stage: Stage, record: Record, folder: Path) -> None:
        self.stage, self.record, self.folder = stage, record, folder

    def _text(self, name: str) -> str:
        return (self.folder / f"{name}.json").read_text()

    def play(self) -> None:
        stage, record, approval = self.stage, self.record, self.record["approval"]
        read = reader(closed({"type": "object", "properties": record["parameters"]}))
        try:
            read(self._text("raw"))
        except ArgumentsRefused:
            stage.found.append("arguments_do_not_fit")
            return
        try:
            shown = read_object(self._text("shown"))
        except ArgumentsRefused:
            stage.found.append("shown_unreadable")
            return
        run = stage.start([Tool("notify")], "agent-owner")
        (packet,) = stage.park(run, ProposedCall("c1", "notify", "http", shown, ""))
        packet = stage.write_shape(packet, record.get("contractId"))
        # The record names pages by the digest of a file. One that is none of ours stays as it is.
        pages = {sha256(self._text("shown").encode()): packet.digest}
        seen = pages.get(approval["shownSha256"], approval["shownSha256"])
        row = ToolCall.objects.get(packet=packet)
        copies = {record["callCopyBeforeSha256"]: row.arguments_digest}
        if approval["decision"] == "modify":
            stage.decide(packet, stage.walk.cast.ada, seen=seen, verdict=Verdict.REQUEST_CHANGES)
            proposed = ProposedCall("c2", "notify", "http", read(self._text("modified")), "")
            (packet,) = stage.park(run, proposed)
            seen = ""
        stage.decide(packet, stage.walk.cast.ada, seen=seen)
        after = record["callCopyAfterSha256"]
        ToolCall.objects.filter(pk=row.pk).update(arguments_digest=copies.get(after, after))
        worker = stage.claim(run, executes=read_object(self._text("executed")))
        if worker is not None:
            call = replace(call_of(packet), arguments=read_object(self._text("rebuilt")))
            stage.use(worker, call)


def answer(stage: Stage, corpus: str, path: Path, server: Authorization) -> dict[str, str]:
    """Play one record. Allowed is what was done; what was not has the first name it met."""
    record = json.loads(path.read_text())
    stage.found.clear()
    stage.before = len(stage.walk.tracker.requests)
    case: Any
    match corpus:
        case "vectors-approval-binding":
            case, names, allowed = ApprovalBinding(stage, record, path.parent), BINDING, "bound"
        case "vectors-dispatch-fence":
            case, names, allowed = DispatchFence(stage, record, path.parent), FENCE, "exclusive"
        case "vectors-authority-at-dispatch":
            case = AuthorityAtDispatch(stage, record, path.parent, server)
            names, allowed = AUTHORITY, "authorized"
        case _:
            case, names, allowed = (
                ConvertedArguments(stage, record, path.parent),
                CONVERTED,
                "bound",
            )
    case.play()
    sent = len(stage.walk.tracker.requests) - stage.before
    if not stage.found:
        assert sent == 1, f"{path}: nothing was in the way, and {sent} requests were sent"
        return {"decision": "allow", "reason": allowed}
    # An act whose hold ended under it has happened: then only its result is refused.
    assert sent == 0 or names is FENCE, f"{path}: {stage.found}, and {sent} requests were sent"
    return {"decision": "deny", "reason": names.get(stage.found[0], stage.found[0])}
