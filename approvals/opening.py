"""Open a packet: freeze what is asked, and who may answer it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q

from approvals import bounds, carrying, egress, indexing, publication, resume, scopes, seal, times
from approvals.closing import close_packet
from approvals.counting import groups_of
from approvals.demands import Demands, joined
from approvals.judge import demands_of, policy_in_force
from approvals.models import Candidate, Packet, PolicyVersion, Receipt
from approvals.policy import stored
from approvals.quorum import Quorum
from approvals.states import PacketKind, PacketState
from portal import audit, live
from portal.canonical import digest
from portal.clock import database_now
from portal.models import User
from runs import broker, lifecycle, queries
from runs.agent.port import OUTER_KINDS
from runs.contract import Contract
from runs.lifecycle import Draft, append_events, locked_run, run_facts
from runs.models import Charge, CredentialGrant, EgressGrant, Resumption, Run, ToolCall
from runs.states import CallState, GrantState, ResumeState, RunStatus


@dataclass(frozen=True)
class Edit:
    """A person changed the arguments that `before` asks about."""

    before: Packet
    by: User
    # What must hold beside what the rules of now demand.
    also: Demands | None = None

    def sealed(self, call: ToolCall) -> dict[str, Any]:
        """What the new page says of it: who, on which page, and what the agent had written."""
        return {
            "by": self.by.name,
            "person": self.by.pk,
            "packet": self.before.number,
            "digest": self.before.digest,
            "proposed": call.proposed,
        }


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
    return packet_of_call(run, call)


def packet_of_call(run: Run, call: ToolCall, edit: Edit | None = None) -> Packet:
    """The packet of a waiting call, with run and call locked in the caller's transaction."""
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
    if edit is not None:
        page["edited"] = edit.sealed(call)
    if call.kind in OUTER_KINDS:
        page["call"] = plan_of_call(run, contract, call)
    credential = scopes.of_call(run, contract, call)
    page |= credential.page
    # The version that judged the call, even if another one is in force by now.
    version = PolicyVersion.objects.filter(
        tenant_id=run.tenant_id, number=call.policy_version
    ).first()
    demands = demands_of(version, call.rules)
    if edit is not None and edit.also is not None:
        demands = joined([demands, edit.also])
    return _open(
        run,
        contract,
        version,
        kind,
        page,
        effect=effect,
        call=call,
        credential=credential.grant,
        demands=demands,
        agent_words=queries.last_words(run),
        edit=edit,
        after=_asked_before(call),
    )


def _asked_before(call: ToolCall) -> Packet | None:
    """The packet that approved exactly this call in vain, as where policy changed since then."""
    return (
        Packet.objects.filter(
            run_id=call.run_id,
            call__tool=call.tool,
            call__arguments_digest=call.arguments_digest,
            state=PacketState.APPROVED,
            used_at=None,
        )
        .exclude(call=call)
        .order_by("number")
        .last()
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
    demands: Demands,
    call: ToolCall | None = None,
    candidate: Candidate | None = None,
    grant: EgressGrant | None = None,
    credential: CredentialGrant | None = None,
    asked: Resumption | None = None,
    blocked: str = "",
    agent_words: str = "",
    facts: Mapping[str, Any] | None = None,
    edit: Edit | None = None,
    after: Packet | None = None,
) -> Packet:
    asked_by = grant.asked_by if grant is not None else None
    excluded = set(excluded_people(run, version.author if version else None))
    if asked_by is not None:
        excluded.add(asked_by.person_id)
    if edit is not None:
        # Whoever had a part in what is asked now, whatever was changed since.
        excluded |= {*edit.before.excluded, edit.by.person_id}
    # A network rule is opened by its approval itself, and this is for how long.
    valid_minutes = grant.minutes if grant is not None else contract.gate.valid_minutes
    now = database_now()
    gate = {
        **demands.sealed(groups_of(run.tenant_id)),
        "valid_minutes": valid_minutes,
        "excluded": sorted(excluded),
    }
    to_decide = 60 * contract.gate.expires_minutes
    expires = now + timedelta(seconds=min(to_decide, demands.times.decide or to_decide))
    page |= {"gate": gate, "time": bounds.sealed_times(now, expires)}
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
        supersedes=edit.before if edit is not None else after,
        edited_by=edit.by if edit is not None else None,
        effect=effect,
        page=whole,
        digest=sealed_digest,
        heading=seal.heading(whole),
        words=indexing.searchable(whole),
        facts=facts,
        agent_words=agent_words[:50_000],
        needed=demands.people,
        requested_by=asked_by or run.requested_by,
        excluded=sorted(excluded),
        routes=Quorum.of_gate(whole["gate"]).routes,
        opened_at=now,
        expires_at=expires,
        valid_seconds=times.valid_seconds(gate, kind.value),
        remind_at=times.next_reminder(gate, now, now),
        escalate_at=times.next_escalation(gate, now, 0),
        blocked=blocked,
    )
    indexing.list_packet(packet)
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
    carrying.settle_votes(packet, run)
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
    demands = demands_of(version, grant.rules)
    return _open(
        run,
        contract,
        version,
        PacketKind.EGRESS,
        page,
        effect=effect,
        grant=grant,
        demands=demands,
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
    demands = demands_of(version, [])
    return _open(
        run,
        contract,
        version,
        PacketKind.RESUME,
        page,
        effect=effect,
        asked=asked,
        demands=demands,
        after=Packet.objects.filter(
            run=run, kind=PacketKind.RESUME, state__in=[PacketState.OPEN, PacketState.WITHDRAWN]
        )
        .order_by("number")
        .last(),
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
            close_packet(earlier, run, PacketState.SUPERSEDED)
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
        demands=verdict.demands,
        facts=stored(facts),
        after=Packet.objects.filter(run=run, kind=PacketKind.PUBLICATION).order_by("number").last(),
    )
    return packet
