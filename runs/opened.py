"""Which network rules of a run are open: what rows say, and no more than what opened them.

People look at a row and a worker follows it, and one column of it is quickly written. So a rule
lets traffic pass as far as the run's evidence says that it was opened, and until then. Those of the
contract are as the contract has them, and what people were asked about is open if they approved it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from portal.canonical import digest
from runs.contract import Contract, NetworkRule
from runs.egress.rules import Limits, Rule
from runs.judging import judge
from runs.models import EgressGrant, Event, Run
from runs.states import GrantState

Origin = EgressGrant.Origin


def reach_digest(grant: EgressGrant) -> str:
    """What a rule opens, however often it was used and whenever it ends."""
    names = ("host", "port", "tls", "plain", "path", "minutes", "max_bytes", "max_connections")
    reach = {name: getattr(grant, name) for name in names}
    return digest(reach | {"methods": list(grant.methods), "origin": str(grant.origin)})


def opening_facts(grant: EgressGrant, *, asked: bool) -> dict[str, Any]:
    """What the event says that opened a rule; `asked`, whether people were."""
    assert grant.expires_at is not None  # noqa: S101 - it was opened just now
    return {
        "opens": reach_digest(grant),
        "until": grant.expires_at.isoformat(),
        "asked": asked,
    }


def of_contract(run: Run, place: int, rule: NetworkRule) -> dict[str, Any]:
    """The columns of a contract's own rule."""
    plain_only = bool(rule.methods or rule.path)
    return {
        "tenant_id": run.tenant_id,
        "run": run,
        "origin": Origin.CONTRACT,
        "place": place,
        "host": rule.host,
        "port": rule.port,
        "tls": not plain_only,
        "plain": True,
        "methods": list(rule.methods),
        "path": rule.path,
        "purpose": rule.purpose,
        "minutes": rule.minutes,
        "max_bytes": rule.megabytes * 1_000_000,
        "max_connections": rule.connections,
        "state": GrantState.ACTIVE.value,
        "reason": "The contract names it.",
    }


def rule_of(grant: EgressGrant) -> Rule:
    """A row as the proxy knows it. Its key is the row's public id."""
    assert grant.expires_at is not None  # noqa: S101 - the database sees to it
    return Rule(
        key=str(grant.public_id),
        host=grant.host,
        port=grant.port,
        purpose=grant.purpose,
        expires_at=grant.expires_at.timestamp(),
        source="contract" if grant.origin == Origin.CONTRACT else "grant",
        tls=grant.tls,
        plain=grant.plain,
        methods=tuple(grant.methods),
        path=grant.path,
        limits=Limits(bytes=grant.max_bytes, connections=grant.max_connections),
        used_bytes=grant.bytes_sent + grant.bytes_received,
    )


@dataclass(frozen=True)
class Shut:
    """An open row that opens nothing, and the short name of the reason."""

    grant: EgressGrant
    why: str


@dataclass(frozen=True)
class _Looked:
    """What was found about a row as long as it says the same; `why` is empty where it is open."""

    reach: str
    until: datetime
    why: str = ""


class OpenRules:
    """The rules of one run while one worker drives it. Each is looked up once, and only shrinks."""

    def __init__(self, run: Run, contract: Contract) -> None:
        self._run, self._contract = run, contract
        self._looked: dict[int, _Looked] = {}

    def now(self) -> tuple[list[Rule], list[Shut]]:
        """What is open, in the order in which it was made, and rows that only say so."""
        rules, shut = [], []
        rows = EgressGrant.objects.filter(run=self._run, state=GrantState.ACTIVE).order_by("pk")
        for grant in rows:
            reach = reach_digest(grant)
            looked = self._looked.get(grant.pk)
            if looked is None or looked.reach != reach:
                looked = self._looked[grant.pk] = self._look(grant, reach)
            if looked.why:
                shut.append(Shut(grant, looked.why))
                continue
            rule = rule_of(grant)
            ends = min(rule.expires_at, looked.until.timestamp())
            rules.append(replace(rule, expires_at=ends))
        return rules, shut

    def _look(self, grant: EgressGrant, reach: str) -> _Looked:
        assert grant.expires_at is not None  # noqa: S101 - the database sees to it
        if grant.origin == Origin.CONTRACT:
            named = self._contract.network.allow
            if grant.place is not None and grant.place < len(named):
                meant = of_contract(self._run, grant.place, named[grant.place])
                if reach_digest(EgressGrant(**meant)) == reach:
                    return _Looked(reach, grant.expires_at)
            return _Looked(reach, grant.expires_at, "not_in_contract")
        opened = Event.objects.filter(run=self._run, kind="egress.granted", facts__opens=reach)
        facts = opened.order_by("-seq").values_list("facts", flat=True).first()
        if facts is None:
            return _Looked(reach, grant.expires_at, "never_opened")
        until = datetime.fromisoformat(facts["until"])
        if facts["asked"] and (held := judge().opens(grant)) is not None:
            return _Looked(reach, until, held.why)
        return _Looked(reach, until)
