"""Open a packet, settle it, expire it, close it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from approvals import confirm, egress, errors, publication, resume, scopes, seal
from approvals.judge import TenantJudge, people_wanted, policy_in_force
from approvals.models import Candidate, Decision, Packet, PolicyVersion, Publication, Receipt
from approvals.policy import stored
from approvals.states import PacketKind, PacketState, PublicationState, Verdict, after
from portal import audit, live
from portal.canonical import digest
from portal.clock import database_now
from portal.errors import BadInput, NotAllowed, NotFound, Refusal
from portal.handoff import Job
from portal.models import Membership, User
from portal.roles import Permission
from portal.visible import says_something
from runs import broker, grants, lifecycle, queries, resuming
from runs.agent.port import OUTER_KINDS, ProposedCall
from runs.contract import Contract
from runs.credentials import grants as credential_grants
from runs.judging import judge_network
from runs.lifecycle import Draft, append_events, locked_run, run_facts
from runs.models import Charge, CredentialGrant, EgressGrant, Resumption, Run, ToolCall
from runs.states import ENDED, CallState, CredentialState, GrantState, ResumeState, RunStatus

COMMENT_LIMIT = 10_000


# --- Opening ------------------------------------------------------------------


@transaction.atomic(durable=True)
def open_call_packet(call_id: int) -> Packet | None:
    """Open the packet of a waiting call, or return the one that is there. Safe to repeat."""
    call = (
        ToolCall.objects.select_related(
            "run", "run__tenant", "run__version", "run__version__contract"
        )
        .filter(pk=call_id)
        .first()
    )
    if call is None:
        return None
    run = locked_run(call.run_id)
    call.refresh_from_db()
    existing = Packet.objects.filter(call=call).first()
    if existing is not None or CallState(call.state) is not CallState.WAITING or not run.is_live:
        return existing
    contract = lifecycle.contract_of(run)
    kind = PacketKind.QUESTION if call.kind == "question" else PacketKind.CALL
    effect = seal.call_effect(call.kind, call.tool, call.arguments, call.target, run.number)
    page = common_page(
        run, contract, call.policy_version, call.policy_digest, call.rules, call.reason
    )
    page |= {
        "kind": kind.value,
        "effect": effect,
        "tool": call.tool,
        "tool_kind": call.kind,
        "target": call.target,
        "arguments": call.arguments,
        "arguments_digest": call.arguments_digest,
        "denied_before": denied_before(call),
    }
    if call.kind in OUTER_KINDS:
        page["call"] = plan_of_call(run, contract, call)
    credential = scopes.of_call(run, contract, call)
    page |= credential.page
    # The version that judged the call, even if another one is in force by now.
    version = PolicyVersion.objects.filter(
        tenant_id=run.tenant_id, number=call.policy_version
    ).first()
    needed, roles = people_wanted(version, call.rules)
    return _open(
        run,
        contract,
        version,
        kind,
        page,
        effect=effect,
        call=call,
        credential=credential.grant,
        needed=needed,
        roles=roles,
        agent_words=queries.last_words(run),
    )


def common_page(
    run: Run,
    contract: Contract,
    policy_version: int,
    policy_digest: str,
    rules: list[str],
    reason: str,
) -> dict[str, Any]:
    """What every packet's page and digest cover."""
    spent = sum(Charge.objects.filter(run=run).values_list("micros", flat=True))
    return {
        "tenant": run.tenant.slug,
        "run": str(run.public_id),
        "run_number": run.number,
        "requested_by": run.requested_by.name,
        "contract": {
            "name": run.version.contract.name,
            "version": run.version.number,
            "digest": run.version.digest,
            "manifest_digest": lifecycle.manifest_of(run),
            **lifecycle.variant_of(run),
        },
        "agent": {
            "name": contract.agent.name,
            "version": contract.agent.version,
            "prompt_version": contract.agent.prompt_version,
            "model": contract.agent.model,
            "recorded": run.transcript_label,
        },
        "policy": {
            "version": policy_version,
            "digest": policy_digest,
            "result": "ask",
            "rules": list(rules),
            "reason": reason,
        },
        "egress": {"mode": contract.network.mode, "change": "none"},
        "source_commit": run.source_commit,
        "image_digest": run.image_digest,
        "cost": {
            "micros": spent,
            "limit": str(contract.limits.money),
            "currency": contract.limits.currency,
        },
    }


def plan_of_call(run: Run, contract: Contract, call: ToolCall) -> dict[str, Any]:
    """What exactly a brokered call would do, beside its target and its arguments."""
    tool = contract.brokered_tool(call.tool)
    try:
        plan = broker.plan(run, tool, call.arguments) if tool is not None else None
    except broker.BrokerRefused as refused:
        return {"refused": str(refused)}
    return {} if plan is None else {"kind": call.kind, **plan.page}


def denied_before(call: ToolCall) -> list[int]:
    """Denied packets of this run with the same target or tool: the intent came back."""
    return list(
        Packet.objects.filter(
            Q(call__target=call.target) | Q(call__tool=call.tool),
            run_id=call.run_id,
            state=PacketState.DENIED,
        )
        .order_by("number")
        .values_list("number", flat=True)
    )


def excluded_people(run: Run, rule_author: User | None) -> list[int]:
    """Who may not decide: requester, agent owner and author of the deciding rule, as people."""
    people = {run.requested_by.person_id, run.version.author.person_id}
    if rule_author is not None:
        people.add(rule_author.person_id)
    owner = lifecycle.contract_of(run).owner.strip()
    if owner:
        named = Q(email__iexact=owner) | Q(name__iexact=owner)
        people |= {each.person_id for each in User.objects.filter(named)}
    return sorted(people)


def _open(
    run: Run,
    contract: Contract,
    version: PolicyVersion | None,
    kind: PacketKind,
    page: dict[str, Any],
    *,
    effect: str,
    needed: int,
    roles: Sequence[str],
    call: ToolCall | None = None,
    candidate: Candidate | None = None,
    grant: EgressGrant | None = None,
    credential: CredentialGrant | None = None,
    asked: Resumption | None = None,
    blocked: str = "",
    agent_words: str = "",
    facts: Mapping[str, Any] | None = None,
) -> Packet:
    asked_by = grant.asked_by if grant is not None else None
    excluded = set(excluded_people(run, version.author if version else None))
    if asked_by is not None:
        excluded.add(asked_by.person_id)
    # A network rule is opened by its approval itself, and this is for how long.
    valid_minutes = grant.minutes if grant is not None else contract.gate.valid_minutes
    now = database_now()
    expires = now + timedelta(minutes=contract.gate.expires_minutes)
    page |= {
        "gate": {
            "needed": needed,
            "roles": list(roles),
            "valid_minutes": valid_minutes,
        }
    }
    whole, sealed_digest = seal.sealed(page)
    packet = Packet.objects.create(
        tenant=run.tenant,
        run=run,
        number=run.tenant.next_number("packet_count"),
        kind=kind.value,
        call=call,
        candidate=candidate,
        egress=grant,
        credential=credential,
        resumption=asked,
        effect=effect,
        page=whole,
        digest=sealed_digest,
        heading=seal.heading(whole),
        facts=facts,
        agent_words=agent_words[:50_000],
        needed=needed,
        requested_by=asked_by or run.requested_by,
        excluded=sorted(excluded),
        opened_at=now,
        expires_at=expires,
        valid_seconds=valid_minutes * 60,
        blocked=blocked,
    )
    append_events(
        run,
        [
            Draft(
                "packet.opened",
                run_facts(run)
                | {"packet": packet.number, "approval": sealed_digest, "operation": kind.value}
                | ({"call": call.call_id} if call is not None else {}),
            )
        ],
    )
    audit.record(
        "packet.opened",
        tenant=run.tenant,
        subject=packet,
        digest=sealed_digest,
        kind=kind.value,
        words=digest(packet.agent_words),
    )
    live.changed_on_commit(live.queue_topic(run.tenant_id))
    return packet


@transaction.atomic(durable=True)
def open_egress_packet(grant_id: int) -> Packet | None:
    """Open the packet of a network rule that was asked for. Safe to repeat.

    The run goes on meanwhile: it is not parked, and the rule works in it once it is approved.
    """
    grant = EgressGrant.objects.select_related("asked_by").filter(pk=grant_id).first()
    if grant is None:
        return None
    run = locked_run(grant.run_id)
    grant.refresh_from_db()
    existing = Packet.objects.filter(egress=grant).first()
    if existing is not None or GrantState(grant.state) is not GrantState.REQUESTED:
        return existing
    contract = lifecycle.contract_of(run)
    effect = egress.effect_of(grant, run)
    page = common_page(
        run, contract, grant.policy_version, grant.policy_digest, grant.rules, grant.reason
    )
    page |= {"kind": PacketKind.EGRESS.value, "effect": effect}
    page |= egress.page_of(grant, run, contract.network.mode)
    version = PolicyVersion.objects.filter(
        tenant_id=run.tenant_id, number=grant.policy_version
    ).first()
    needed, roles = people_wanted(version, grant.rules)
    return _open(
        run,
        contract,
        version,
        PacketKind.EGRESS,
        page,
        effect=effect,
        grant=grant,
        needed=needed,
        roles=roles,
    )


@transaction.atomic(durable=True)
def open_resume_packet(asked_id: int) -> Packet | None:
    """Ask people whether a run may go on although something changed. Safe to repeat."""
    asked = Resumption.objects.select_related("run", "checkpoint").filter(pk=asked_id).first()
    if asked is None:
        return None
    run = locked_run(asked.run_id)
    asked.refresh_from_db()
    existing = Packet.objects.filter(resumption=asked).first()
    if existing is not None or ResumeState(asked.state) is not ResumeState.WAITING:
        return existing
    contract = lifecycle.contract_of(run)
    effect = resume.effect_of(asked)
    reason = "A run goes on by itself only on what it stood on when it was saved."
    page = common_page(run, contract, asked.policy_version, asked.policy_digest, [], reason)
    page |= {"kind": PacketKind.RESUME.value, "effect": effect} | resume.page_of(asked)
    version = PolicyVersion.objects.filter(
        tenant_id=run.tenant_id, number=asked.policy_version
    ).first()
    needed, roles = people_wanted(version, [])
    return _open(
        run,
        contract,
        version,
        PacketKind.RESUME,
        page,
        effect=effect,
        asked=asked,
        needed=needed,
        roles=roles,
    )


@transaction.atomic(durable=True)
def open_publication_packet(candidate_id: int) -> Packet | None:
    """Open the packet that lets a checked candidate out. Safe to repeat."""
    candidate = Candidate.objects.select_related("run").filter(pk=candidate_id).first()
    if candidate is None:
        return None
    run = locked_run(candidate.run_id)
    open_now = Packet.objects.filter(
        run=run, kind=PacketKind.PUBLICATION, state=PacketState.OPEN
    ).first()
    if open_now is not None and open_now.candidate_id == candidate.pk:
        return open_now
    if candidate.superseded or RunStatus(run.status) is not RunStatus.IN_REVIEW:
        return open_now
    for earlier in Packet.objects.select_for_update(no_key=True).filter(
        run=run,
        kind=PacketKind.PUBLICATION,
        state__in=[PacketState.OPEN, PacketState.CHANGES_REQUESTED],
    ):
        if earlier.state == PacketState.OPEN:
            _close(earlier, run, PacketState.SUPERSEDED)
    contract = lifecycle.contract_of(run)
    version = policy_in_force(run.tenant_id)
    facts = publication.publish_facts(run, contract, candidate)
    verdict = publication.judge(version, facts)
    receipts = list(Receipt.objects.filter(candidate=candidate).order_by("check_name"))
    plan = publication.plan(run, contract, candidate)
    effect = seal.publication_effect(
        target_kind=contract.target.kind,
        target=plan.target_name,
        base=contract.target.base,
        branch=plan.branch,
        files=len(candidate.changes),
        added=sum(each["added"] or 0 for each in candidate.changes),
        removed=sum(each["removed"] or 0 for each in candidate.changes),
    )
    page = common_page(
        run,
        contract,
        version.number if version else 0,
        version.digest if version else "",
        list(verdict.rules),
        verdict.reason,
    )
    page["policy"]["result"] = verdict.effect
    page |= {
        "kind": PacketKind.PUBLICATION.value,
        "effect": effect,
        "tool": f"publish.{contract.target.kind}",
        "target": plan.target_name,
        "arguments": plan.as_page(),
        "candidate": {
            "seq": candidate.seq,
            "digest": candidate.digest,
            "base_commit": candidate.base_commit,
            "tree": candidate.tree,
            "files": len(candidate.changes),
            "tray": candidate.tray,
        },
        "receipts": {
            each.check_name: {"outcome": each.outcome, "digest": each.digest} for each in receipts
        },
        # What it was made with: what the run read and had done outside, by digest.
        "brokered": queries.brokered_receipts(run),
    }
    credential = scopes.of_publication(run, contract)
    page |= credential.page
    blocked = publication.why_blocked(contract, candidate, receipts, verdict)
    packet = _open(
        run,
        contract,
        version,
        PacketKind.PUBLICATION,
        page,
        effect=effect,
        candidate=candidate,
        credential=credential.grant,
        blocked=blocked,
        agent_words=candidate.agent_words,
        needed=max(contract.gate.approvals, verdict.needs),
        roles=verdict.roles,
        facts=stored(facts),
    )
    return packet


# --- Deciding -----------------------------------------------------------------


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


# --- Ending without a decision -----------------------------------------------


@transaction.atomic(durable=True)
def expire_packet(packet_id: int) -> bool:
    """Close one packet whose time is over. Expiry never approves; the agent hears the word."""
    run_id = Packet.objects.values_list("run_id", flat=True).get(pk=packet_id)
    run = locked_run(run_id)
    packet = (
        Packet.objects.select_for_update(no_key=True, of=("self",))
        .select_related("call", "tenant", "egress", "credential", "resumption__checkpoint")
        .get(pk=packet_id)
    )
    if packet.state != PacketState.OPEN or database_now() < packet.expires_at:
        return False
    _close(packet, run, PacketState.EXPIRED)
    append_events(run, [Draft("packet.expired", run_facts(run) | {"packet": packet.number})])
    if packet.call is not None and packet.call.state == CallState.WAITING and run.is_live:
        lifecycle.answer_call(packet.call, CallState.EXPIRED, text="", usable_until=None)
    elif packet.egress is not None and packet.egress.state == GrantState.REQUESTED:
        grants.settle(packet.egress, run, grants.Settled(GrantState.UNANSWERED, "", ""))
    elif packet.resumption is not None and packet.resumption.state == ResumeState.WAITING:
        resuming.settle(packet.resumption, run, ResumeState.EXPIRED, by="", words="")
    elif packet.kind == PacketKind.PUBLICATION and RunStatus(run.status) is RunStatus.IN_REVIEW:
        lifecycle.end_run(run, RunStatus.EXPIRED)
    return True


# Packets of a live run that nobody needs answered any more.
_MOOT = Q(kind=PacketKind.EGRESS) & ~Q(egress__state=GrantState.REQUESTED) | Q(
    kind=PacketKind.RESUME
) & ~Q(resumption__state=ResumeState.WAITING)


@transaction.atomic(durable=True)
def close_packets_of(run_id: int) -> int:
    """Close the open packets of a run that ended: as cancelled, or withdrawn after a failure.

    Of a live run, those that ask for network for an agent that has finished, and those that ask
    whether it may go on after it was parked with other differences.
    """
    run = locked_run(run_id)
    state = PacketState.CANCELLED if run.status == RunStatus.CANCELLED else PacketState.WITHDRAWN
    over = Packet.objects.filter(run=run, state=PacketState.OPEN)
    if run.is_live:
        over = over.filter(_MOOT)
    closed = 0
    for packet in over.select_for_update(no_key=True, of=("self",)):
        _close(packet, run, state)
        append_events(
            run, [Draft(f"packet.{state.value}", run_facts(run) | {"packet": packet.number})]
        )
        closed += 1
    return closed


def _close(packet: Packet, run: Run, state: PacketState) -> None:
    packet.state, packet.settled_at = state.value, timezone.now()
    packet.save(update_fields=["state", "settled_at"])
    if packet.credential is not None:
        expired = state is PacketState.EXPIRED
        ended = CredentialState.UNANSWERED if expired else CredentialState.WITHDRAWN
        credential_grants.settle(packet.credential, run, ended)
    audit.record(
        f"packet.{state.value}", tenant=packet.tenant, subject=packet, digest=packet.digest
    )
    live.changed_on_commit(
        live.queue_topic(packet.tenant_id),
        live.packet_topic(packet.pk),
        live.run_topic(packet.run_id),
    )


# --- The sweep ----------------------------------------------------------------

# Rows of one kind that one sweep takes up; the next one goes on.
SWEPT = 500


def overdue(
    now: datetime, grace: timedelta, *, since: datetime | None = None
) -> Mapping[str, list[int]]:
    """Rows whose next hop is late, by the hop that is missing.

    With `since`, only of runs that moved after it. What waits for people is then not asked about
    again and again, so that a sweep costs the same however much waits.
    """
    late = now - grace
    moved = Q(run__status_at__gte=since) if since else Q()
    return {
        "expire": list(
            Packet.objects.filter(state=PacketState.OPEN, expires_at__lte=now).values_list(
                "pk", flat=True
            )[:SWEPT]
        ),
        "close": list(
            Packet.objects.filter(
                moved,
                run__status__in=sorted(each.value for each in ENDED),
                state=PacketState.OPEN,
            ).values_list("run_id", flat=True)[:SWEPT]
        )
        + list(
            Packet.objects.filter(
                Q(egress__ended_at__gte=since) if since else Q(),
                kind=PacketKind.EGRESS,
                state=PacketState.OPEN,
            )
            .exclude(egress__state=GrantState.REQUESTED)
            .values_list("run_id", flat=True)[:SWEPT]
        )
        + list(
            Packet.objects.filter(kind=PacketKind.RESUME, state=PacketState.OPEN)
            .exclude(resumption__state=ResumeState.WAITING)
            .values_list("run_id", flat=True)[:SWEPT]
        ),
        "open_resume": list(
            Resumption.objects.filter(
                state=ResumeState.WAITING, packet=None, created_at__lt=late
            ).values_list("pk", flat=True)[:SWEPT]
        ),
        "open_egress": list(
            EgressGrant.objects.filter(
                Q(created_at__gte=since) if since else Q(),
                state=GrantState.REQUESTED,
                packet=None,
                created_at__lt=late,
            ).values_list("pk", flat=True)[:SWEPT]
        ),
        "open_call": list(
            ToolCall.objects.filter(
                moved,
                run__status=RunStatus.WAITING,
                run__status_at__lt=late,
                state=CallState.WAITING,
                checkpoint__isnull=False,
                packet=None,
            ).values_list("pk", flat=True)[:SWEPT]
        ),
        "check": list(
            Candidate.objects.filter(
                Q(run__lease_token=None) | Q(run__lease_expires_at__lt=now),
                superseded=False,
                run__status=RunStatus.CHECKING,
                run__status_at__lt=late,
            ).values_list("pk", flat=True)[:SWEPT]
        ),
        "open_publication": list(
            Candidate.objects.filter(
                moved,
                superseded=False,
                run__status=RunStatus.IN_REVIEW,
                run__status_at__lt=late,
            )
            .exclude(packets__state=PacketState.OPEN)
            .values_list("pk", flat=True)[:SWEPT]
        ),
        "publish": list(
            Publication.objects.filter(
                Q(state=PublicationState.INTENDED, created_at__lt=late)
                & (Q(not_before=None) | Q(not_before__lte=now))
                | Q(state=PublicationState.ACTING, lease_expires_at__lt=now)
            ).values_list("pk", flat=True)[:SWEPT]
        ),
    }
