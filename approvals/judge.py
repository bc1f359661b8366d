"""The tenant's policy as the judge of tool calls (`runs.judging.Judge`)."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from django.db.models import Q

from approvals import demands, egress, policy, resume, scopes, seal, uses
from approvals.demands import Demands
from approvals.facts import call_facts as call_facts_of
from approvals.models import Packet, PolicyVersion
from approvals.states import PacketKind, PacketState
from portal import statements
from portal.clock import database_now
from portal.models import Tenant
from portal.statements import given
from runs.agent.port import ProposedCall
from runs.contract import Contract
from runs.lifecycle import Held, Judged, spent
from runs.models import CredentialGrant, EgressGrant, Resumption, Run, TenantValue, ToolCall
from runs.states import CallState, GrantState, ResumeState

logger = logging.getLogger(__name__)

_STATES = {
    "allow": CallState.ALLOWED,
    "ask": CallState.WAITING,
    "deny": CallState.REFUSED,
}


_BEGUN = (CallState.ACTING, CallState.DONE, CallState.FAILED, CallState.UNKNOWN)


def _kind_of(call: ToolCall) -> PacketKind:
    return PacketKind.QUESTION if call.kind == "question" else PacketKind.CALL


def policy_in_force(tenant_id: int) -> PolicyVersion | None:
    """The tenant's policy of now, or None: then nothing is allowed.

    One whose text is not the one that people put in force is none.
    """
    version = _IN_FORCE.first(tenant=tenant_id)
    return None if version is None or not _as_decided(version) else version


def _as_decided(version: PolicyVersion) -> bool:
    if hashlib.sha256(version.text.encode()).hexdigest() == version.digest:
        return True
    told = version.number, version.tenant_id
    logger.error("policy %s of tenant %s is not what was put in force", *told)
    return False


_IN_FORCE = statements.Query(
    lambda: PolicyVersion.objects.filter(
        tenant=given("tenant", Tenant), state=PolicyVersion.State.IN_FORCE
    )
)


def demands_of(version: PolicyVersion | None, rules: Sequence[str]) -> Demands:
    """What these rules of the version demand together.

    All the people there can be, where its text is not the one that people put in force.
    """
    if version is not None and not _as_decided(version):
        return Demands(people=demands.MOST_PEOPLE)
    known = policy.explain(version.text) if version else {}
    return demands.joined(rule.demands for rule in known.values() if rule.id in rules)


class TenantJudge:
    """Evaluates the policy in force. No policy, or an error in it, refuses (invariant 5)."""

    def in_force(self, tenant_id: int) -> tuple[int, str]:
        """See `runs.judging.Judge.in_force`."""
        version = policy_in_force(tenant_id)
        return (version.number, version.digest) if version else (0, "")

    def use_up(self, call: ToolCall) -> Held | None:
        """See `runs.judging.Judge.use_up`."""
        packet = Packet.objects.filter(call=call).first()
        if packet is None:
            if call.state != CallState.APPROVED:
                return None  # allowed without a person
            return Held("not_approved", "Refused: nobody approved this. Propose a new call.")
        now = database_now()
        if packet.page.get("arguments_digest") != call.arguments_digest:
            words = "Refused: this is not the call that was approved. Propose a new call."
            return Held("call_changed", words)
        # One that was begun before used its approval up then: it is begun again in a workspace
        # that was put back.
        again = call.state in _BEGUN and packet.used_at is not None
        kind = _kind_of(call)
        if void := uses.why_void(packet, kind, now, unused=not again, in_time=not again):
            return Held(void.why, f"Refused: {void.words} Propose a new call.")
        if not again:
            uses.use_up(packet, now)
        return None

    def opens(self, grant: EgressGrant) -> Held | None:
        """See `runs.judging.Judge.opens`."""
        packet = Packet.objects.filter(egress=grant).first()
        if packet is None:
            return Held("not_approved", "Nobody approved this rule.")
        # Used as it was given; from then on its own minutes count.
        now = database_now()
        if void := uses.why_void(packet, PacketKind.EGRESS, now, unused=False, in_time=False):
            return Held(void.why, void.words)
        if not egress.fits(packet, grant):
            return Held("rule_changed", f"This is not the rule of packet {packet.number}.")
        return None

    def lets_go_on(self, asked: Resumption) -> Held | None:
        """See `runs.judging.Judge.lets_go_on`."""
        packet = Packet.objects.filter(resumption=asked).first()
        if packet is None:
            return Held("not_approved", "Nobody approved that the run goes on.")
        # What it was used for may be begun again after a worker that stopped, however late.
        used, now = asked.state == ResumeState.USED, database_now()
        if void := uses.why_void(packet, PacketKind.RESUME, now, unused=False, in_time=not used):
            return Held(void.why, void.words)
        if not resume.fits(packet, asked):
            return Held("resume_changed", f"This is not what packet {packet.number} asked.")
        return None

    def gives(self, grant: CredentialGrant) -> Held | None:
        """See `runs.judging.Judge.gives`."""
        asked = Packet.objects.filter(run=grant.run_id, credential__credential=grant.credential_id)
        packet = asked.filter(call=grant.call_id).order_by("-number").first()
        if packet is None or packet.state != PacketState.APPROVED:
            return Held("not_approved", "Nobody approved the use of this credential.")
        if not seal.intact(packet.page, packet.digest) or not scopes.fits(packet, grant):
            words = f"This is not the use of a credential that packet {packet.number} was about."
            return Held("scope_changed", words)
        return None

    def judge(
        self, run: Run, contract: Contract, call: ProposedCall, *, target: str, outward: bool
    ) -> Judged:
        """See `runs.judging.Judge.judge`."""
        version = policy_in_force(run.tenant_id)
        if version is None:
            return Judged(
                CallState.REFUSED,
                (),
                0,
                "",
                "The tenant has no policy in force, so nothing is allowed.",
                evaluated=False,
            )
        try:
            facts = call_facts(run, contract, call, target, outward)
            result = policy.decide(version.text, facts, database_now)
        except Exception:
            logger.exception("policy %s of tenant %s failed", version.number, run.tenant_id)
            return Judged(
                CallState.REFUSED,
                (),
                version.number,
                version.digest,
                "The policy could not be evaluated, so the call is denied.",
                evaluated=False,
            )
        return Judged(
            _STATES[result.effect],
            result.rules,
            version.number,
            version.digest,
            result.reason,
            policy.stored(facts),
            evaluated=not result.errors,
        )


def call_facts(
    run: Run, contract: Contract, call: ProposedCall, target: str, outward: bool
) -> policy.CallFacts:
    """What policy may know about a call of this run, measured by the portal."""
    names = {tool.base for tool in contract.tools.http if tool.base}
    names |= {tool.database for tool in contract.tools.sql}
    bases = (_BASE.all(tenant=run.tenant_id, name=name) for name in names)
    if call.kind == "network":
        asked = {"host": call.arguments.get("host"), "port": call.arguments.get("port")}
        refused = EgressGrant.objects.filter(run=run, state=GrantState.DENIED, **asked).exists()
    else:
        refused = bool(
            _DENIED.all(
                run=run.pk,
                call=call.call_id,
                tool=call.tool,
                arguments=dict(call.arguments),
                target=target,
            )
        )
    micros, _ = spent(run.pk)
    facts = call_facts_of(
        contract,
        tenant=run.tenant.slug,
        tool=call.tool,
        kind=call.kind,
        arguments=call.arguments,
        bases=dict(row for rows in bases for row in rows),
        cost=Decimal(micros) / 1_000_000,
        denied_before=refused,
    )
    # An address that could not be made, or an outward effect facts do not know: never better off.
    return replace(
        facts,
        declared=facts.declared and not target.startswith("refused: "),
        outward=facts.outward or outward,
    )


_BASE = statements.Query(
    lambda: TenantValue.objects.filter(
        tenant=given("tenant", Tenant), name=given("name", TenantValue, "name")
    ).values_list("name", "value")
)
# Whether a person denied this already, under another name.
_DENIED = statements.Query(
    lambda: (
        ToolCall.objects.filter(run=given("run", Run), state=CallState.DENIED)
        .filter(
            Q(
                tool=given("tool", ToolCall, "tool"),
                arguments=given("arguments", ToolCall, "arguments"),
            )
            | Q(target=given("target", ToolCall, "target"), outward=True)
        )
        .exclude(call_id=given("call", ToolCall, "call_id"))
        .values_list("pk")[:1]
    )
)
