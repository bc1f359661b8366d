"""Whether the people of a tenant can satisfy what rules demand, said before anybody waits in vain.

A rule's author never counts for it, nor does whoever asks for a run. So a quorum is out of reach
where it cannot be reached whoever of the tenant's people asks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import inf

from django.db import transaction

from approvals import policy_places, signing
from approvals.counting import People, groups_of, quorum_of
from approvals.demands import ANNOTATIONS, Demands, Fallback, Groups, Stage
from approvals.models import Packet, PolicyVersion
from approvals.policy import PolicyProblem, Rule, explain, stored_rules
from approvals.quorum import Quorum, listed
from approvals.states import PacketKind
from approvals.times import NO_TIMES
from portal import audit, live
from portal.models import Tenant, User

REMEDY = "Add people who may approve, or demand less."


@dataclass(frozen=True)
class Unreachable:
    """A rule that nobody can satisfy, why, and what to do about it."""

    rule: str
    reason: str
    remedy: str = REMEDY


def unreachable(tenant: Tenant, rules: Sequence[Rule], author: User | None) -> list[Unreachable]:
    """Those of the rules that the tenant's people of now cannot satisfy."""
    asking = [rule for rule in rules if rule.asks]
    if not asking:
        return []
    people, groups = People.of(tenant), groups_of(tenant.pk)
    excluded = frozenset() if author is None or tenant.one_person else {author.person_id}
    found = (_fault(tenant, rule, people, groups, excluded) for rule in asking)
    return [fault for fault in found if fault is not None]


def _fault(
    tenant: Tenant, rule: Rule, people: People, groups: Groups, excluded: Collection[int]
) -> Unreachable | None:
    parties: list[Stage | Fallback] = []
    for stage in rule.demands.stages:
        parties += [stage, *stage.fallbacks]
    for party in parties:
        if party.kind == "group" and party.name not in groups:
            near = get_close_matches(party.name, groups, 1)
            known = f"Groups: {', '.join(sorted(groups)) or 'none yet'}."
            mean = f"Did you mean `{near[0]}`? " if near else ""
            return Unreachable(rule.id, f"There is no group `{party.name}`.", f"{mean}{known}")
    if replace(rule.demands, times=NO_TIMES) == Demands():
        return None  # one person of any kind: nothing this rule demands keeps anybody waiting
    # Whoever stands in after some time counts: until then it waits, and not in vain.
    quorum = Quorum.of_gate(rule.demands.sealed(groups), waited=inf)
    kind = PacketKind.PUBLICATION if rule.publishes else PacketKind.CALL
    voters = people.voters(kind, excluded)
    # Whoever asks and could not approve anyway takes nobody away.
    takers = set() if tenant.one_person else set(people.askers) - set(excluded)
    takes = takers if takers and takers <= voters.keys() else set()
    without = [{each: voters[each] for each in voters if each != taker} for taker in sorted(takes)]
    reasons = [quorum.why_not(each) for each in without or [voters]]
    if not all(reasons):
        return None
    everybody = quorum.why_not(people.voters(kind))
    if everybody:
        return Unreachable(rule.id, everybody)
    if quorum.why_not(voters):
        names = listed([people.names[each] for each in sorted(excluded) if each in people.names])
        return Unreachable(rule.id, f"{reasons[0]} {names} wrote it and never counts.")
    return Unreachable(rule.id, f"{reasons[0]} Whoever asks for a run never counts for it.")


def problems(
    tenant: Tenant, text: str, author: User | None, in_force: PolicyVersion | None
) -> list[PolicyProblem]:
    """What a version would bring that cannot be satisfied, each with its place in the text.

    A rule that is in force word for word is no news of this version: it is warned of where the
    policy is shown, and must not keep others from being changed.
    """
    known = stored_rules(in_force.text) if in_force is not None else {}
    fresh = [
        rule
        for rule in explain(text).values()
        if rule.id not in known or known[rule.id].source != rule.source
    ]
    statements = {
        policy_places.name_of(tokens): tokens
        for tokens in policy_places.statements(policy_places.tokens(text))
    }
    found = []
    for fault in unreachable(tenant, fresh, author):
        tokens = statements[fault.rule]
        at = next(
            (
                start
                for name in reversed(ANNOTATIONS)
                if (start := policy_places.annotation(tokens, name)) != tokens[0].start
            ),
            tokens[0].start,
        )
        line, column = policy_places.place(text, at)
        found.append(PolicyProblem(fault.rule, line, fault.reason, fault.remedy, column))
    return found


def of_version(version: PolicyVersion) -> list[Unreachable]:
    """The rules of a version that cannot be satisfied now.

    Those too that take a passkey of people who have none. Such a rule is not refused: everybody can
    add a key at any time, and whoever is asked for one is told so.
    """
    rules = list(stored_rules(version.text).values())
    found = unreachable(version.tenant, rules, version.author)
    known = {each.rule for each in found}
    signed = [rule for rule in rules if rule.demands.passkey and rule.id not in known]
    return found + _without_keys(version.tenant, signed, version.author)


KEYLESS = "It takes passkeys, and too few of those who may approve have one."
_GET_KEYS = "Everybody adds theirs under Settings, Passkeys."


def _without_keys(tenant: Tenant, rules: Sequence[Rule], author: User | None) -> list[Unreachable]:
    if not rules:
        return []
    people, groups = People.of(tenant).signing(), groups_of(tenant.pk)
    excluded = frozenset() if author is None or tenant.one_person else {author.person_id}
    found = []
    for rule in rules:
        quorum = Quorum.of_gate(rule.demands.sealed(groups), waited=inf)
        kind = PacketKind.PUBLICATION if rule.publishes else PacketKind.CALL
        if quorum.why_not(people.voters(kind, excluded)):
            found.append(Unreachable(rule.id, KEYLESS, _GET_KEYS))
    return found


def of_packet(packet: Packet) -> str:
    """Why the people of now cannot approve an open packet, whoever of them comes; or nothing.

    Whoever stands in before it expires is one of them.
    """
    alone = packet.tenant.one_person
    people = People.of(packet.tenant)
    waited = (packet.expires_at - packet.opened_at).total_seconds()
    quorum, excluded = quorum_of(packet, waited), () if alone else packet.excluded
    why = quorum.why_not(people.voters(packet.kind, excluded))
    if not why and signing.is_demanded(packet):
        lacking = quorum.why_not(people.signing().voters(packet.kind, excluded))
        why = KEYLESS if lacking else ""
    return why


def warned(tenant: Tenant) -> list[dict[str, str]]:
    """The rules in force that the last look found out of reach: `rule` and `reason` of each."""
    version = PolicyVersion.objects.filter(tenant=tenant, state=PolicyVersion.State.IN_FORCE).only(
        "unreachable"
    )
    return [row for each in version for row in each.unreachable]


@transaction.atomic(durable=True)
def sweep_tenant(tenant: Tenant) -> bool:
    """Look again at the policy in force; whether something is otherwise than before."""
    Tenant.objects.select_for_update(no_key=True).only("pk").get(pk=tenant.pk)
    return note(tenant)


def note(tenant: Tenant) -> bool:
    """The same inside a transaction that holds the tenant's row. Tells once of each change."""
    version = (
        PolicyVersion.objects.select_related("author", "tenant")
        .filter(tenant=tenant, state=PolicyVersion.State.IN_FORCE)
        .first()
    )
    if version is None:
        return False
    now = [{"rule": each.rule, "reason": each.reason} for each in of_version(version)]
    if now == version.unreachable:
        return False
    version.unreachable = now
    version.save(update_fields=["unreachable"])
    audit.record(
        "policy.unreachable" if now else "policy.reachable",
        tenant=tenant,
        subject=version,
        number=version.number,
        rules=now,
    )
    live.changed_on_commit(live.queue_topic(tenant.pk))
    return True
