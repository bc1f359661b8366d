"""One sequence: the events that may happen, done through the portal, and noted for the reference.

`tests.statemachine.machine` plays them and lets the laws look at what came of each. What an event
names by number is chosen among what is there, so that any number means something.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from approvals import delegation, policies, publishing
from approvals.delegation import Wanted
from approvals.models import PolicyVersion
from portal import people
from portal.models import Membership, User
from runs import lifecycle
from tests.statemachine.answers import Answers
from tests.statemachine.reference import ANSWERING, Handed, LawBroken
from tests.statemachine.refusals import objections_to_ending, objections_to_handing
from tests.statemachine.rules import RULES
from tests.statemachine.state import AUTHORS, MOVABLE, ROLES, SPANS, TOOLS, VOTERS


class World(Answers):
    """What people do beside answering: roles, policies, rights that are handed over, desks."""

    def change_roles(self, person: int, roles: int) -> None:
        """A role is given or taken."""
        name = MOVABLE[person % len(MOVABLE)]
        if not self.people[name].inside:
            return
        wanted = set(ROLES[roles % len(ROLES)])
        people.set_roles(self.members[name].pk, sorted(wanted), member=self.cast.max)
        lost = bool((self.people[name].roles - wanted) & ANSWERING)
        self.people[name].roles = wanted
        for each in self.handed.values():
            # Whoever loses a right to decide hands it to nobody any more; and nothing is in the
            # hands of somebody who decides nothing.
            taker = each.taker == name and not wanted & ANSWERING
            each.over = each.over or (lost and (each.giver == name or taker))

    def leave(self, person: int) -> None:
        """Somebody leaves the tenant, or comes back as reviewer and publisher."""
        name = MOVABLE[person % len(MOVABLE)]
        user = User.objects.get(pk=self.members[name].user_id)
        if self.people[name].inside:
            people.remove_member(self.members[name].pk, member=self.cast.max)
        else:
            roles = ["reviewer", "publisher"]
            self.members[name] = people.add_member(
                user.name, user.email, roles, member=self.cast.max
            )
            self.people[name].roles = set(roles)
        # A membership that ended took its groups with it, and what was handed over.
        self.people[name].groups.clear()
        for each in self.handed.values():
            each.over = each.over or name in (each.giver, each.taker)
        self.people[name].inside = not self.people[name].inside

    def switch(self, person: int) -> None:
        """An account is switched off, or on again."""
        name = MOVABLE[person % len(MOVABLE)]
        self.people[name].active = not self.people[name].active
        User.objects.filter(pk=self.members[name].user_id).update(
            is_active=self.people[name].active
        )

    def hand_over(
        self, giver: int, taker: int, span: str, *, later: bool = False, tool: int = -1
    ) -> None:
        """Somebody lets another decide in their name for so long, at once or a little `later`."""
        names = VOTERS[giver % len(VOTERS)], VOTERS[taker % len(VOTERS)]
        begins = self.now + timedelta(seconds=SPANS["a hold"] if later else 0)
        ends = begins + timedelta(seconds=SPANS[span])
        tools = frozenset({TOOLS[tool % len(TOOLS)]} if tool >= 0 else ())
        wanted = Wanted(self.members[names[1]].pk, begins, ends, tools=sorted(tools))
        expected = objections_to_handing(self.people[names[0]], self.people[names[1]])
        made: list[int] = []
        self._expect(
            f"{names[0]}'s handing over to {names[1]}",
            expected,
            lambda: made.append(delegation.hand_over(wanted, member=self.members[names[0]]).pk),
        )
        if made:
            self.handed[made[0]] = Handed(*names, begins, ends, tools)

    def take_back(self, number: int, person: int) -> None:
        """Somebody ends what was handed over, which those two may, and an admin."""
        key = self.one_of(sorted(self.handed), number)
        handed, name = self.handed[key], VOTERS[person % len(VOTERS)]
        if handed.over:
            return
        expected = objections_to_ending(handed, self.people, name)
        self._expect(
            f"{name}'s taking back",
            expected,
            lambda: delegation.end(key, member=self.members[name]),
        )
        handed.over = not expected

    def change_policy(self, rules: str, author: int, *, approve: bool = True) -> None:
        """One admin writes a version; its author may not decide it, and the other one does."""
        if any(each.passkey for each in RULES[rules].demands.values()):
            self.enrol()
        self._policy(
            author,
            lambda member: policies.propose_policy(RULES[rules].text, member=member),
            rules,
            approve=approve,
        )

    def roll_back(self, number: int, author: int) -> None:
        """An earlier version comes back, which is a decision like another."""
        earlier = PolicyVersion.objects.filter(tenant=self.cast.acme).order_by("number")
        version = self.one_of(list(earlier), number)
        rules = self.versions[version.number][0]
        self._policy(author, lambda member: policies.go_back(version, member=member), rules)

    def _policy(
        self,
        author: int,
        write: Callable[[Membership], PolicyVersion],
        rules: str,
        *,
        approve: bool = True,
    ) -> None:
        names = (AUTHORS[author % 2], AUTHORS[1 - author % 2])
        written: list[PolicyVersion] = []
        if not self.may_be_refused(lambda: written.append(write(self.members[names[0]]))):
            # The same text again, or more people than there are any more.
            known = (policies.SamePolicy.code, "approvals.policy_refused")
            assert self.refused in known, self.refused
            return
        (version,) = written
        self.versions[version.number] = (rules, names[0])

        def decide(name: str) -> object:
            return policies.decide_policy(
                version, approve=approve, seen=version.digest, member=self.members[name]
            )

        if self.may_be_refused(lambda: decide(names[0])):
            raise LawBroken(f"law 6: {names[0]} put an own policy in force")
        decide(names[1])
        if approve:
            self.rules = rules

    def cancel(self, run: int) -> None:
        """Somebody asks for a stop."""
        chosen = self.one_of(self.runs(), run)
        self.may_be_refused(lambda: lifecycle.ask_cancel(chosen, member=self.cast.olu))

    def settle(self, call: int, *, happened: bool) -> None:
        """A person says what became of a call of which nobody knows it."""
        chosen = self.one_of(self.unknown_calls(), call)
        settler = self.publisher()
        if settler is not None:
            lifecycle.settle_unknown_call(
                chosen, happened=happened, note="I looked.", member=settler
            )

    def look(self, publication: int, then: str) -> None:
        """A person settles a publication of which nobody knows whether it happened."""
        chosen = self.one_of(self.publications("unknown"), publication)
        settler = self.publisher()
        if settler is None:
            return
        if then == "look":
            publishing.reconcile(chosen.public_id, member=settler)
        elif then == "try again":
            publishing.try_again(chosen.public_id, member=settler)
        else:
            publishing.give_up(chosen.public_id, member=settler, note="No.")
