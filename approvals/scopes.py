"""What a packet says of a credential: what a use adds to what the run holds already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from approvals import seal
from approvals.models import Packet
from approvals.publication import target_name
from runs import broker
from runs.contract import BrokeredTool, Contract, HttpTool
from runs.credentials import grants
from runs.credentials.grants import PUBLICATION, Use
from runs.credentials.scope import Scope
from runs.models import CredentialGrant, Run, ToolCall

PUBLISHES = {
    "github": ("contents:write", "pull_requests:write"),
    "git": ("contents:write",),
}
"""What publishing needs of a forge's permissions, by the kind of the target."""


@dataclass(frozen=True)
class Asked:
    """The use a packet asks for, and its part of the page. Without a credential there is none."""

    page: dict[str, Any]
    grant: CredentialGrant | None = None


def of_call(run: Run, contract: Contract, call: ToolCall) -> Asked:
    """The use a waiting call needs, filed for a locked run in the caller's transaction."""
    tool = contract.brokered_tool(call.tool)
    if tool is None or not tool.credential:
        return Asked({"scope": differences(run, None)})
    try:
        address = broker.plan(run, tool, call.arguments).address
    except broker.BrokerRefused:
        # It could not be carried out now, and without an approved use it will not be later.
        return Asked({"scope": differences(run, None)})
    use = Use(tool.credential, address, f"tool {tool.name}", call.call_id)
    return _asked(run, use, f"{_doing(tool)} by {tool.name}", call)


def _doing(tool: BrokeredTool) -> str:
    if isinstance(tool, HttpTool):
        return tool.method
    return {"sql": "read"}.get(tool.kind, "be used")


def of_publication(run: Run, contract: Contract) -> Asked:
    """The use publishing needs: of one repository, whatever else the source could reach."""
    target = contract.target
    if not target.credential:
        return Asked({"scope": differences(run, None)})
    use = publication_use(contract)
    return _asked(run, use, f"write one branch of {target_name(contract)}", None)


def publication_use(contract: Contract) -> Use:
    """What the publisher wants a credential for."""
    target = contract.target
    address = target.url or target.api or "https://github.com"
    if target.kind == "github":
        parts = urlsplit(address)
        address = f"{parts.scheme}://{parts.netloc}/repos/{target.repository}"
    return Use(target.credential, address, PUBLICATION, actions=PUBLISHES[target.kind])


def _asked(run: Run, use: Use, words: str, call: ToolCall | None) -> Asked:
    grant = grants.request(run, use, call)
    if grant is None:
        nowhere = {
            "may": words,
            "credential": use.name,
            "on": "nowhere: the tenant has no such credential",
            "ends": "at once",
        }
        return Asked({"scope": seal.scope_difference(_held(run, None), [nowhere])})
    row = grant.credential
    page = {
        "scope": differences(run, grant, words),
        "credential": {
            "name": row.name,
            "kind": row.kind,
            "consumer": grant.consumer,
            "scope": grant.scope,
            "uses": grant.max_uses,
            "minutes": row.minutes,
        },
    }
    return Asked(page, grant)


def fits(packet: Packet, grant: CredentialGrant) -> bool:
    """Whether the use that would be approved is still the one on the page."""
    shown = packet.page.get("credential", {})
    return bool(
        (shown.get("name"), shown.get("scope"), shown.get("consumer"))
        == (grant.credential.name, grant.scope, grant.consumer)
    )


def uses_of(packet: Packet) -> list[CredentialGrant]:
    """The uses that rest on a packet: the one it asked for, and the same act begun again."""
    first = packet.credential
    if first is None:
        return []
    uses = CredentialGrant.objects.filter(
        run_id=packet.run_id, credential=first.credential_id, call=first.call_id, pk__gte=first.pk
    ).filter(consumer=first.consumer, approved_at=first.approved_at)
    return list(uses.select_related("credential", "ended_by").order_by("pk"))


def differences(run: Run, grant: CredentialGrant | None, words: str = "") -> list[dict[str, Any]]:
    """Rows of the scope table: one for each action that is added, and what the run holds."""
    added: list[dict[str, Any]] = []
    if grant is not None:
        scope = Scope.from_data(grant.scope)
        held = [
            Scope.from_data(each.scope)
            for each in grants.held_by(run)
            if each.credential_id == grant.credential_id and each.pk != grant.pk
        ]
        for action in scope.actions or ("",):
            one = Scope((action,) if action else (), scope.resources, scope.audience)
            if not any(one.beyond(each) == [] for each in held):
                added.append(_row(grant, action or words))
    return seal.scope_difference(_held(run, grant), added)


def _held(run: Run, grant: CredentialGrant | None) -> Sequence[dict[str, Any]]:
    return [
        _row(each, action)
        for each in grants.held_by(run)
        if grant is None or each.pk != grant.pk
        for action in each.scope["actions"] or [f"used by {each.consumer}"]
    ]


def _row(grant: CredentialGrant, may: str) -> dict[str, Any]:
    scope = Scope.from_data(grant.scope)
    hosts = ", ".join(scope.audience)
    where = f"{', '.join(scope.resources)} at {hosts}" if scope.resources else hosts
    uses = (
        seal.count(grant.max_uses, "use") if grant.max_uses is not None else "the stretch of work"
    )
    span = seal.count(grant.credential.minutes, "minute")
    return {
        "may": may,
        "credential": grant.credential.name,
        "on": where,
        "ends": f"after {uses}, at most {span}",
    }
