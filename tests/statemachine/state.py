"""Where one sequence stands: its people, its packets as the reference has them, its workers."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from approvals import groups
from approvals.models import Packet, Publication
from portal.errors import Refusal
from portal.handoff import Job
from portal.models import Membership
from portal.roles import Role
from runs.models import Run, ToolCall
from runs.states import CallState, RunStatus
from tests.acceptance.kit import give_credential
from tests.cast import Cast, make_version
from tests.softkeys import SoftKey
from tests.statemachine.ground import CallFate, Ground, Hand, Told
from tests.statemachine.reference import Asked, Handed, Person

SHIPPED = 1
"""The version that every tenant begins with; nobody in it wrote it."""

TOOLS = ("plain", "sealed", "ask_person")
VOTERS = ("ada", "bo", "cy", "una", "olu", "vic", "mona", "eve")
SIGNERS = ("ada", "bo", "cy", "una")
ASKERS = ("olu", "cy", "mona")
AUTHORS = ("max", "una")
MOVABLE = ("ada", "bo", "cy")
ROLES = (["reviewer", "publisher"], ["reviewer"], ["publisher", "admin"], ["viewer"])
GROUPS = {"security": ("ada", "bo"), "owners": ("bo", "una")}
SPANS = {
    **{"a moment": 5, "a lease": 60, "a hold": 10 * 60, "an approval": 11 * 60, "a while": 6 * 60},
    "a packet": 61 * 60,
}
OPENING = (
    *(Job.OPEN_CALL_PACKET, Job.OPEN_EGRESS_PACKET, Job.OPEN_PUBLICATION_PACKET),
    *(Job.OPEN_RESUME_PACKET, Job.SWEEP_APPROVALS, Job.REVOKE_CREDENTIAL),
)
MOST_RUNS = 4


@dataclass
class Heard:
    """What an agent was told about one call in one stretch of work, and how the call stood."""

    call: int
    packet: int
    before: str
    told: Told
    fate: CallFate
    rules: str
    in_time: bool
    requests: int


@dataclass
class State:
    """What a sequence knows beside what the portal stores."""

    ground: Ground
    cast: Cast = field(init=False)
    people: dict[str, Person] = field(default_factory=dict)
    members: dict[str, Membership] = field(default_factory=dict)
    asked: dict[int, Asked] = field(default_factory=dict)
    versions: dict[int, tuple[str, str]] = field(default_factory=dict)
    # What people handed over, by the key of its row.
    handed: dict[int, Handed] = field(default_factory=dict)
    rules: str = "usual"
    hands: dict[int, Hand] = field(default_factory=dict)
    old_hands: list[Hand] = field(default_factory=list)
    waiting: deque[tuple[Job, int]] = field(default_factory=deque)
    delivered: list[tuple[Job, int]] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    # The passkeys of people, and what the last one of them signed.
    keys: dict[str, SoftKey] = field(default_factory=dict)
    last_signed: str = ""
    checked: set[int] = field(default_factory=set)
    # What an agent asked for, by the call's name, and what a person made of it, with that packet.
    proposed: dict[str, dict[str, object]] = field(default_factory=dict)
    # What changed for a run that was to go on: run, checkpoint and what, by the question's key.
    differs: dict[int, tuple[int, int, str]] = field(default_factory=dict)
    edited: tuple[str, int, dict[str, object]] | None = None
    # Packets whose hold is over, and that the sweep must let take effect.
    released: set[int] = field(default_factory=set)
    # Whether a test packet must come of this step.
    test_due: bool = False
    # For the laws: the audit log, answers and acts as they were, and what stands at the target.
    log: list[str] = field(default_factory=list)
    votes_before: dict[int, int] = field(default_factory=dict)
    acts_before: Counter[str] = field(default_factory=Counter)
    commits: dict[str, str] = field(default_factory=dict)
    refused: str = ""
    # Whether what was to happen to a worker, or to a service, did happen in this step.
    struck: bool = False

    def __post_init__(self) -> None:
        self.cast, text = self.ground.cast()
        walk = self.ground.walk
        cast, both = self.cast, [Role.REVIEWER, Role.PUBLISHER]
        self.members = {**cast.everyone}
        self.members["cy"] = cast.member("Cy Third", [*both, Role.OPERATOR])
        # Dan answers nothing; with him there are enough people for whatever a rule demands.
        self.members["dan"] = cast.member("Dan Fourth", [*both, Role.ADMIN])
        self.members["una"] = cast.member("Una Second", [Role.REVIEWER, Role.ADMIN])
        Membership.objects.filter(pk=cast.mona.pk).update(roles=[*both, Role.OPERATOR])
        cast.mona.refresh_from_db()
        for name, member in self.members.items():
            self.people[name] = Person(
                name,
                member.user.owner_id or member.user_id,
                set(member.roles),
                machine=member.user.is_machine,
                inside=member.tenant_id == cast.acme.pk,
            )
        for handle, names in GROUPS.items():
            keys = [self.members[name].pk for name in names]
            groups.make_group(handle, handle.title(), keys, member=cast.max)
            for name in names:
                self.people[name].groups.add(handle)
        give_credential(walk, "-".join(("a", "token")))
        self.version = make_version(cast, text)
        self.versions[SHIPPED] = ("usual", "")
        self.ground.clock.now += timedelta(seconds=60)
        self.take_hops()

    # --- Looking --------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """What the database's clock says."""
        return self.ground.clock.now

    def runs(self, *states: RunStatus) -> list[Run]:
        """The tenant's runs in these states, or all; those behind test packets too."""
        found = Run.objects.filter(tenant=self.cast.acme).order_by("pk")
        return list(found.filter(status__in=states) if states else found)

    def packets(self, *states: str) -> list[Packet]:
        """The tenant's packets in these states, or all."""
        found = Packet.objects.filter(tenant=self.cast.acme).order_by("pk")
        return list(found.filter(state__in=states) if states else found)

    def publications(self, state: str) -> list[Publication]:
        """The tenant's publications in this state."""
        found = Publication.objects.filter(tenant=self.cast.acme, state=state)
        return list(found.order_by("pk"))

    def unknown_calls(self) -> list[ToolCall]:
        """Calls of which nobody knows whether they were made."""
        found = ToolCall.objects.filter(tenant=self.cast.acme, state=CallState.UNKNOWN)
        return list(found.order_by("pk"))

    def busy(self) -> list[Hand]:
        """Workers whose agent may ask for something now."""
        return [self.hands[key] for key in sorted(self.hands)]

    def asker(self, number: int) -> str:
        """Somebody who may ask for a run at present."""
        operators = [
            name
            for name in ASKERS
            if self.people[name].there and "operator" in self.people[name].roles
        ]
        return str(self.one_of(operators, number))

    def at_work(self) -> list[Run]:
        """Runs whose agent still has a turn."""
        return self.runs(RunStatus.RUNNING, RunStatus.QUEUED, RunStatus.WAITING)

    def number_of_open(self, number: int) -> int:
        """The place among all packets of an open one."""
        chosen = self.one_of(self.packets("open"), number)
        return [each.pk for each in self.packets()].index(chosen.pk)

    def due(self) -> list[Run]:
        """Runs that a worker may take: queued, or held by one that is gone."""
        gone = [each for each in self.runs(RunStatus.RUNNING) if each.pk not in self.hands]
        return [*self.runs(RunStatus.QUEUED), *gone]

    def hops(self, *, publish: bool) -> list[tuple[Job, int]]:
        """Hops that wait: those of publications, or all others."""
        return [hop for hop in self.waiting if (hop[0] is Job.PUBLISH) == publish]

    def enrol(self) -> None:
        """Those who may answer have a passkey from now on."""
        for name in () if self.keys else SIGNERS:
            self.keys[name] = SoftKey()
            self.keys[name].kept_by(self.members[name].user)

    def take_hops(self) -> None:
        """What the portal asked for since; a run's own work is begun by `work` and `offer`."""
        hops = self.ground.walk.hops
        while hops:
            job, row_id = hops.popleft()
            if job in (*OPENING, Job.PUBLISH):
                self.waiting.append((job, row_id))

    def may_be_refused(self, act: Callable[[], object]) -> bool:
        """Do something that people may be refused; whether it was done. `refused` has the code."""
        try:
            act()
        except Refusal as refusal:
            self.refused = refusal.code
            return False
        return True

    def publisher(self) -> Membership | None:
        """Somebody who may settle what nobody knows, if anybody may."""
        names = [
            name
            for name, person in self.people.items()
            if person.there and not person.machine and "publisher" in person.roles
        ]
        return self.members[sorted(names)[0]] if names else None

    @staticmethod
    def one_of(there: Any, number: int) -> Any:
        """The choice that any number makes."""
        return there[number % len(there)]
