"""What the pages show of the network: of one run, and of a tenant's runs together."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Q, QuerySet, Sum
from django.utils import timezone

from portal.models import Tenant
from runs.contract import Contract
from runs.egress.packages import packages_of
from runs.egress.rules import WORDS, place
from runs.models import EgressGrant, EgressRefusal, Run
from runs.states import LIVE, GrantState, RunStatus

REFUSED_SHOWN = 12
"""Of one run; the rest is counted."""

PLACES_SHOWN = 100
PACKAGES_SHOWN = 4
REQUESTS_READ = 2000
"""The newest requests that are read for the packages they name."""
DAYS = 30

GIVEN = [GrantState.ACTIVE, GrantState.EXPIRED, GrantState.REVOKED, GrantState.ENDED]
"""Every rule that was open once, whatever became of it."""

MODE_WORDS = {
    "off": "The network is off: the sandbox has no way out.",
    "allowlist": "The sandbox reaches what the contract names, and nothing else.",
    "request": "The sandbox reaches what the contract names, and the agent may ask for more.",
}


@dataclass(frozen=True)
class Refused:
    """One destination that was refused, with the words of a page."""

    host: str
    port: int
    times: int
    why: str
    last_at: datetime

    @property
    def place(self) -> str:
        """`host:port`, or what stands for it."""
        if self.host == "*":
            return "other places"
        return place(self.host, self.port) if self.host else "what was no request"

    @property
    def named(self) -> bool:
        """Whether it names a destination that could be asked for."""
        return self.host not in ("", "*")


@dataclass(frozen=True)
class Reach:
    """The network part of a run's page."""

    mode: str
    words: str
    rules: list[EgressGrant]
    waiting: list[EgressGrant]
    refused: list[Refused]
    more_refused: int
    askable: bool
    """Whether a rule can still be added to this run, rather than to its contract."""


def reach_of(run: Run, contract: Contract) -> Reach:
    """Rules, requests and refusals of one run; two queries, and none where the network is off."""
    mode = contract.network.mode
    if mode == "off":
        return Reach(mode, MODE_WORDS[mode], [], [], [], 0, askable=False)
    grants = list(
        EgressGrant.objects.filter(run=run).select_related("asked_by", "ended_by").order_by("pk")
    )
    refusals = list(EgressRefusal.objects.filter(run=run).order_by("-times", "pk"))
    shown = [
        Refused(each.host, each.port, each.times, WORDS.get(each.why, each.why), each.last_at)
        for each in refusals[:REFUSED_SHOWN]
    ]
    return Reach(
        mode=mode,
        words=MODE_WORDS[mode],
        rules=[each for each in grants if each.state != GrantState.REQUESTED],
        waiting=[each for each in grants if each.state == GrantState.REQUESTED],
        refused=shown,
        more_refused=len(refusals) - len(shown),
        askable=mode == "request" and RunStatus(run.status) in AT_WORK,
    )


AT_WORK = LIVE & {RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING}
"""While the agent still has a turn, so that a rule can be of use to it."""


# --- A tenant's runs together ------------------------------------------------------------------


@dataclass
class ByContract:
    """How often the runs of one contract asked for a destination, and got it."""

    public_id: uuid.UUID
    asked: int = 0
    given: int = 0


@dataclass
class Wanted:
    """One destination over all runs of the last days."""

    host: str
    port: int
    asked: int = 0
    given: int = 0
    denied: int = 0
    waiting: int = 0
    refused: int = 0
    contracts: dict[str, ByContract] = field(default_factory=dict)
    # By package: how many requests named it. The words are those of whoever asked.
    named: Counter[str] = field(default_factory=Counter)

    @property
    def packages(self) -> list[tuple[str, int]]:
        """The packages that were named most."""
        return self.named.most_common(PACKAGES_SHOWN)

    @property
    def more_packages(self) -> int:
        """How many are not among them."""
        return max(0, len(self.named) - PACKAGES_SHOWN)

    @property
    def place(self) -> str:
        """`host:port`."""
        return place(self.host, self.port)


@dataclass(frozen=True)
class TenantReach:
    """What a tenant's runs asked for, most first."""

    places: list[Wanted]
    days: int
    cut: bool


def tenant_reach(tenant: Tenant, *, contract: str = "") -> TenantReach:
    """Destinations by how often they were asked for and then by how often they were refused.

    What a contract names itself is not asked for, and only counts where it was refused.
    """
    since = timezone.now() - timedelta(days=DAYS)
    asked = EgressGrant.objects.filter(tenant=tenant, created_at__gte=since).exclude(
        origin=EgressGrant.Origin.CONTRACT
    )
    refused = EgressRefusal.objects.filter(tenant=tenant, last_at__gte=since).exclude(
        host__in=["", "*"]
    )
    if contract:
        asked = asked.filter(run__version__contract__public_id=contract)
        refused = refused.filter(run__version__contract__public_id=contract)
    places: dict[tuple[str, int], Wanted] = {}
    for row in _most_asked(asked):
        key = row["host"], row["port"]
        places[key] = Wanted(*key, row["asked"], row["given"], row["denied"], row["waiting"])
    for row in (
        refused.values("host", "port")
        .annotate(times=Sum("times"))
        .order_by("-times")[:PLACES_SHOWN]
    ):
        key = row["host"], row["port"]
        places.setdefault(key, Wanted(*key)).refused = int(row["times"])
    order = sorted(places.values(), key=lambda each: (-each.asked, -each.refused, each.host))
    shown = order[:PLACES_SHOWN]
    wanted = {(each.host, each.port): each for each in shown}
    _name_contracts(wanted, asked, refused)
    _name_packages(wanted, asked)
    return TenantReach(shown, DAYS, cut=len(order) > len(shown))


def _most_asked(asked: QuerySet[EgressGrant]) -> Any:
    return (
        asked.values("host", "port")
        .annotate(
            asked=Count("pk"),
            given=Count("pk", filter=Q(state__in=GIVEN)),
            denied=Count("pk", filter=Q(state__in=[GrantState.DENIED, GrantState.REFUSED])),
            waiting=Count("pk", filter=Q(state=GrantState.REQUESTED)),
        )
        .order_by("-asked")[:PLACES_SHOWN]
    )


def _name_contracts(
    places: dict[tuple[str, int], Wanted],
    asked: QuerySet[EgressGrant],
    refused: QuerySet[EgressRefusal],
) -> None:
    """Which contracts a destination was wanted by, and what came of it for each."""
    name, key = "run__version__contract__name", "run__version__contract__public_id"
    hosts = {host for host, _ in places}
    given = Count("pk", filter=Q(state__in=GIVEN))
    wishes = asked.filter(host__in=hosts).values("host", "port", name, key)
    attempts = refused.filter(host__in=hosts).values("host", "port", name, key).distinct()
    for row in [*wishes.annotate(asked=Count("pk"), given=given).order_by("-asked"), *attempts]:
        wanted = places.get((row["host"], row["port"]))
        if wanted is not None:
            counted = ByContract(row[key], row.get("asked", 0), row.get("given", 0))
            wanted.contracts.setdefault(row[name], counted)


def _name_packages(
    places: dict[tuple[str, int], Wanted],
    asked: QuerySet[EgressGrant],
) -> None:
    """Which packages a destination was wanted for, where requests say so."""
    words = asked.order_by("-pk").values_list("host", "port", "purpose", "path")
    for host, port, purpose, path in words[:REQUESTS_READ]:
        wanted = places.get((host, port))
        if wanted is not None:
            wanted.named.update(packages_of(purpose, path))
