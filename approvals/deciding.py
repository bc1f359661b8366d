"""Settle a packet: one person's answer to one digest, and what follows from it."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from approvals import confirm, egress, errors, publication, resume, scopes, seal
from approvals.judge import TenantJudge, policy_in_force
from approvals.models import Decision, Packet
from approvals.states import PacketKind, PacketState, Verdict, after
from portal import audit, live
from portal.canonical import digest
from portal.clock import database_now
from portal.errors import BadInput, NotAllowed, NotFound, Refusal
from portal.handoff import Job
from portal.models import Membership, User
from portal.roles import Permission
from portal.visible import says_something
from runs import grants, lifecycle, resuming
from runs.agent.port import ProposedCall
from runs.credentials import grants as credential_grants
from runs.judging import judge_network
from runs.lifecycle import Draft, append_events, locked_run, run_facts
from runs.models import EgressGrant, Run, ToolCall
from runs.states import CallState, CredentialState, GrantState, ResumeState, RunStatus

COMMENT_LIMIT = 10_000


@dataclass(frozen=True)
class Answer:
    """What one person sends: the verdict, the digest it was made on, words, the form's token.

    `typed` is what the page asks to type where approving needs a second look.
    """

    verdict: Verdict
    seen: str
    comment: str = ""
    token: str = ""
    typed: str = ""


def needed_permission(kind: str, verdict: Verdict) -> tuple[Permission, ...]:
    """Any one of these is enough. A publisher lets out; a reviewer may hold back as well."""
    if kind == PacketKind.PUBLICATION:
        if verdict is Verdict.APPROVE:
            return (Permission.PUBLISH,)
        return (Permission.PUBLISH, Permission.DECIDE)
    return (Permission.DECIDE,)


# What a person may send back: the agent can propose it anew. The rest is wanted as it is, or not.
TAKES_CHANGES = (PacketKind.CALL, PacketKind.PUBLICATION)


def settle_packet(public_id: uuid.UUID, answer: Answer, *, member: Membership) -> Packet:
    """Record one person's answer. All of it is saved, or none of it is.

    Raises a refusal of `approvals.errors` that says what to do next. A refusal that may be
    somebody's attempt leaves a line in the audit log, with the digests.
    """
    try:
        return _settle(public_id, answer, member=member)
    except _TELLING as refusal:
        _note_refusal(public_id, answer, member, refusal)
        raise


_TELLING = (
    errors.PacketChanged,
    errors.PacketDamaged,
    errors.OwnRequest,
    errors.MachineMayNotDecide,
)


@transaction.atomic(durable=True)
def _note_refusal(
    public_id: uuid.UUID, answer: Answer, member: Membership, refusal: Refusal
) -> None:
    packet = Packet.objects.get(tenant_id=member.tenant_id, public_id=public_id)
    audit.record(
        "packet.decision_refused",
        tenant=member.tenant,
        subject=packet,
        actor=member.user,
        code=refusal.code,
        verdict=answer.verdict.value,
        seen=answer.seen[:64],
        digest=packet.digest,
    )


@transaction.atomic(durable=True)
def _settle(public_id: uuid.UUID, answer: Answer, *, member: Membership) -> Packet:
    present = _still_member(member)
    run, packet = _locked(public_id, present)
    # Both rows are locked from here on, so these checks hold until we commit.
    _may_decide(packet, answer, present)
    earlier = Decision.objects.filter(packet=packet, person=present.user).first()
    if earlier is not None:
        if answer.token and earlier.token == answer.token and earlier.verdict == answer.verdict:
            return packet
        raise errors.AlreadyDecided(number=packet.number, verdict=earlier.verdict)
    now = database_now()
    _still_decidable(packet, answer, run, now)
    self_approved = _four_eyes(packet, answer, present)
    acknowledged = 0
    if answer.verdict is Verdict.APPROVE:
        _still_allowed(packet, run)
        acknowledged = _acknowledged(packet, answer)
    Decision.objects.create(
        tenant=packet.tenant,
        packet=packet,
        person=present.user,
        verdict=answer.verdict.value,
        digest=answer.seen,
        comment=answer.comment,
        token=answer.token,
        self_approved=self_approved,
        decided_at=now,
    )
    state = after(
        PacketState(packet.state),
        answer.verdict,
        approvals=_approvals(packet),
        needed=packet.needed,
    )
    if state is None:
        raise errors.AlreadySettled(number=packet.number, state=packet.state, by="")
    append_events(
        run,
        [
            Draft(
                f"packet.{_WORDS[answer.verdict]}",
                run_facts(run)
                | {
                    "packet": packet.number,
                    "approval": answer.seen,
                    "by": present.user.name,
                    "result": state.value,
                    "self_approved": self_approved,
                },
            )
        ],
    )
    audit.record(
        f"packet.{_WORDS[answer.verdict]}",
        tenant=packet.tenant,
        subject=packet,
        actor=present.user,
        digest=answer.seen,
        result=state.value,
        comment=answer.comment[:2000],
        self_approved=self_approved,
        **({"acknowledged": acknowledged} if acknowledged else {}),
    )
    if state is not PacketState.OPEN:
        packet.state, packet.settled_at = state.value, now
        packet.self_approved = Decision.objects.filter(packet=packet, self_approved=True).exists()
        if state is PacketState.APPROVED:
            packet.usable_until = now + timedelta(seconds=packet.valid_seconds)
        packet.save(update_fields=["state", "settled_at", "self_approved", "usable_until"])
        _carry_out(packet, run, state, answer, present.user)
    live.changed_on_commit(
        live.queue_topic(packet.tenant_id), live.packet_topic(packet.pk), live.run_topic(run.pk)
    )
    return packet


def approvers(packet: Packet) -> list[Membership]:
    """Who approved and still counts: an approval is worth nothing once its person may not give it.

    Of several that are needed the first may be days old when the last one comes.
    """
    gave = Decision.objects.filter(packet=packet, verdict=Verdict.APPROVE).values("person")
    members = Membership.objects.select_related("user").filter(
        tenant_id=packet.tenant_id, user__in=gave, user__is_active=True
    )
    wanted = needed_permission(packet.kind, Verdict.APPROVE)
    return [each for each in members if any(map(each.may, wanted))]


def _approvals(packet: Packet) -> int:
    """How many approvals count: while a role that must be among them is missing, one too few."""
    people = approvers(packet)
    held = {role for each in people for role in each.roles}
    if set(packet.page["gate"].get("roles", ())) - held:
        return min(len(people), packet.needed - 1)
    return len(people)


_WORDS = {
    Verdict.APPROVE: "approved",
    Verdict.DENY: "denied",
    Verdict.REQUEST_CHANGES: "changes_requested",
}


def _still_member(member: Membership) -> Membership:
    """The membership as it is now: it may have been taken away since the page was opened."""
    present = (
        Membership.objects.select_related("tenant", "user")
        .filter(tenant_id=member.tenant_id, user_id=member.user_id, user__is_active=True)
        .first()
    )
    if present is None:
        raise NotFound
    return present


def _locked(public_id: uuid.UUID, member: Membership) -> tuple[Run, Packet]:
    """Run and packet, locked in this order everywhere: two hops never wait for each other."""
    mine = Packet.objects.filter(tenant_id=member.tenant_id, public_id=public_id)
    run_id = mine.values_list("run_id", flat=True).first()
    if run_id is None:
        raise NotFound
    run = locked_run(run_id)
    packet = (
        mine.select_for_update(no_key=True, of=("self",))
        .select_related(
            "tenant", "call", "candidate", "egress", "credential", "resumption__checkpoint"
        )
        .get()
    )
    return run, packet


def _may_decide(packet: Packet, answer: Answer, member: Membership) -> None:
    if member.user.is_machine:
        raise errors.MachineMayNotDecide
    wanted = needed_permission(packet.kind, answer.verdict)
    if not any(member.may(each) for each in wanted):
        raise NotAllowed(permission=wanted[0].value)
    if answer.verdict is Verdict.REQUEST_CHANGES and packet.kind not in TAKES_CHANGES:
        raise BadInput(
            reason="Changes can be requested of a call or a publication. Approve or deny this one; "
            "nothing was decided."
        )
    if not re.fullmatch(r"[0-9a-f]{64}", answer.seen):
        raise errors.NeedsDigest
    if not answer.token.isprintable():
        raise BadInput(reason="The form's token is none of ours. Reload the page and decide there.")
    if len(answer.comment) > COMMENT_LIMIT:
        raise errors.WordsTooLong(length=f"{len(answer.comment):,}", limit=f"{COMMENT_LIMIT:,}")
    if "\x00" in answer.comment:
        raise BadInput(reason="The comment holds a NUL character. Remove it; nothing was decided.")
    words_needed = answer.verdict is not Verdict.APPROVE or packet.kind == PacketKind.QUESTION
    if words_needed and not says_something(answer.comment):
        raise errors.NeedsWords


def _still_decidable(packet: Packet, answer: Answer, run: Run, now: datetime) -> None:
    if PacketState(packet.state) is not PacketState.OPEN:
        last = packet.decisions.select_related("person").order_by("-decided_at").first()
        by = f" by {last.person.name}, {last.decided_at:%H:%M} UTC" if last else ""
        raise errors.AlreadySettled(
            number=packet.number, state=packet.state.replace("_", " "), by=by
        )
    if not run.is_live:
        raise errors.RunOver(number=run.number, state=run.status, packet=packet.number)
    if now >= packet.expires_at:
        raise errors.PacketExpired(
            number=packet.number, at=f"{packet.expires_at:%Y-%m-%d %H:%M:%S} UTC"
        )
    if answer.seen != packet.digest:
        raise errors.PacketChanged(seen=answer.seen, stored=packet.digest)
    if answer.verdict is Verdict.APPROVE and not whole(packet):
        raise _damage(packet)(number=packet.number)


def _damage(packet: Packet) -> type[errors.PacketDamaged]:
    match seal.fault(packet.page, packet.digest):
        case seal.Fault.SHAPE_MISSING:
            return errors.PacketWithoutShape
        case seal.Fault.SHAPE_UNKNOWN:
            return errors.PacketOfOtherShape
    return errors.PacketDamaged


def whole(packet: Packet) -> bool:
    """Whether page and digest still fit, and the rows that will be acted on still fit the page."""
    if not seal.intact(packet.page, packet.digest):
        return False
    if packet.credential is not None and not scopes.fits(packet, packet.credential):
        return False
    if packet.call is not None:
        call = packet.call
        now = digest({"tool": call.tool, "arguments": call.arguments, "target": call.target})
        return {call.arguments_digest, packet.page["arguments_digest"]} == {now}
    if packet.egress is not None:
        return egress.fits(packet, packet.egress)
    if packet.resumption is not None:
        return resume.fits(packet, packet.resumption)
    if packet.candidate is not None:
        return bool(
            publication.candidate_digest(packet.candidate) == packet.page["candidate"]["digest"]
        )
    return True


def _four_eyes(packet: Packet, answer: Answer, member: Membership) -> bool:
    """Whether this is a self-approval that a one-person tenant declared. Raises `OwnRequest`."""
    if answer.verdict is not Verdict.APPROVE or member.user.person_id not in packet.excluded:
        return False
    if packet.tenant.one_person:
        return True
    raise errors.OwnRequest(number=packet.number)


def _still_allowed(packet: Packet, run: Run) -> None:
    """Ask policy again: what it denies now is not approved, whatever it said before."""
    if packet.blocked:
        raise errors.ApprovalBlocked(number=packet.number, reason=packet.blocked)
    contract = lifecycle.contract_of(run)
    if packet.call is not None:
        call = packet.call
        judged = TenantJudge().judge(
            run, contract, proposed(call), target=call.target, outward=call.outward
        )
        denied, reason, version = (
            judged.state is CallState.REFUSED,
            judged.reason,
            judged.policy_version,
        )
    elif packet.egress is not None:
        judged = judge_network(run, contract, grants.ask_of(packet.egress))
        denied, reason, version = (
            judged.state is CallState.REFUSED,
            judged.reason,
            judged.policy_version,
        )
    elif packet.candidate is not None:
        in_force = policy_in_force(run.tenant_id)
        facts = publication.publish_facts(run, contract, packet.candidate)
        verdict = publication.judge(in_force, facts)
        denied, reason = verdict.effect == "deny", verdict.reason
        version = in_force.number if in_force else 0
    elif packet.resumption is not None:
        denied = policy_in_force(run.tenant_id) is None
        reason, version = "The tenant has no policy in force, so nothing goes on.", 0
    else:
        return
    if denied:
        raise errors.PolicyNowDenies(version=version, reason=reason)


def _acknowledged(packet: Packet, answer: Answer) -> int:
    """How many findings the person says they saw. Raises `NeedsTyped` if they do not say so."""
    word, findings = confirm.typed_word(packet), len(confirm.to_acknowledge(packet))
    if word and answer.typed.strip() != word:
        if packet.page.get("denied_before"):
            why = "This was asked before and denied."
        else:
            why = f"Checks left {findings} finding{'s' if findings > 1 else ''} to acknowledge."
        raise errors.NeedsTyped(why=why, word=word)
    return findings


def proposed(call: ToolCall) -> ProposedCall:
    """A stored call in the words of the agent's port."""
    return ProposedCall(
        call_id=call.call_id,
        tool=call.tool,
        kind=call.kind,  # type: ignore[arg-type]
        arguments=call.arguments,
        raw="",
    )


def _carry_out(packet: Packet, run: Run, state: PacketState, answer: Answer, person: User) -> None:
    """Hand the answer on: to the waiting run, or to the publisher."""
    if packet.credential is not None:
        # An answer is called the same wherever it is kept.
        credential_grants.settle(
            packet.credential, run, CredentialState(state.value), by=person.name
        )
    if packet.call is not None:
        lifecycle.answer_call(
            packet.call,
            CallState(state.value),
            text=_words_for_agent(state, answer, person),
            usable_until=packet.usable_until,
        )
        return
    if packet.egress is not None:
        _settle_rule(packet, packet.egress, run, state, answer, person)
        return
    if packet.resumption is not None:
        packet.resumption.usable_until = packet.usable_until
        going_on = state is PacketState.APPROVED
        resuming.settle(
            packet.resumption,
            run,
            ResumeState.APPROVED if going_on else ResumeState.DENIED,
            by=person.name,
            words=answer.comment,
        )
        return
    if state is PacketState.APPROVED and packet.candidate is not None:
        made = publication.intend(packet, packet.candidate, run)
        lifecycle.advance(run, RunStatus.PUBLISHING, Job.PUBLISH, made.pk, packet=packet.number)
    elif state is PacketState.CHANGES_REQUESTED:
        lifecycle.request_changes(run, f"{person.name} requests changes:\n\n{answer.comment}")
    else:
        lifecycle.end_run(run, RunStatus.DENIED, by=person.name)


def _settle_rule(
    packet: Packet,
    grant: EgressGrant,
    run: Run,
    state: PacketState,
    answer: Answer,
    person: User,
) -> None:
    """Open the rule, which uses the approval up, or let the agent know that it stays shut."""
    words = _words_for_agent(state, answer, person)
    approved = state is PacketState.APPROVED
    opened = GrantState.ACTIVE if approved else GrantState.DENIED
    grants.settle(grant, run, grants.Settled(opened, words, person.name))
    if approved:
        packet.used_at = packet.settled_at
        packet.save(update_fields=["used_at"])


def _words_for_agent(state: PacketState, answer: Answer, person: User) -> str:
    if state is PacketState.APPROVED:
        return answer.comment
    if state is PacketState.CHANGES_REQUESTED:
        return f"Changes requested by {person.name}: {answer.comment}"
    return f"Denied by {person.name}: {answer.comment}"
