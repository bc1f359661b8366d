"""Whether enough of the right people approved: counted from a packet's sealed gate.

A gate wants so many people, and perhaps *stages*: each wants some of one group, or some who hold
one role. A person fills one seat of one stage, whatever they belong to, so this is a matching of
people with seats: three stages of one person need three people. It knows no framework.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Voters: TypeAlias = Mapping[int, Collection[str]]
"""People by primary key, in the order they approved, each with their routes.

A route is what a person may count as: `group:12` by the group's key, `role:admin`.
"""
_NOBODYS_KEY = -1
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def number_word(number: int) -> str:
    """`one`, `two`; digits where a word would be longer than it helps."""
    return _WORDS[number] if number < len(_WORDS) else str(number)


def listed(words: Sequence[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


@dataclass(frozen=True)
class Fallback:
    """Whoever has this route may fill a stage's places too, by now."""

    route: str
    name: str


@dataclass(frozen=True)
class Stage:
    """So many people who have this route; `name` is what people call it."""

    route: str
    name: str
    people: int
    fallbacks: tuple[Fallback, ...] = ()

    @property
    def words(self) -> str:
        """`one of Security`, `two with the role admin`."""
        return f"{number_word(self.people)} {self.whose}"

    @property
    def whose(self) -> str:
        """`of Security`; `of Security or of Owners` where those stand in."""
        return listed([whose_of(self), *map(whose_of, self.fallbacks)], "or")

    @property
    def routes(self) -> tuple[str, ...]:
        """Any one of these lets somebody fill a place."""
        return (self.route, *(each.route for each in self.fallbacks))

    def takes(self, routes: Collection[str]) -> bool:
        """Whether somebody with these routes may fill a place."""
        return any(route in routes for route in self.routes)

    def stands_in(self, routes: Collection[str]) -> str:
        """What somebody with these routes stands in as; nothing if they belong to the stage."""
        if self.route in routes:
            return ""
        return next((each.name for each in self.fallbacks if each.route in routes), "")


def whose_of(party: Stage | Fallback) -> str:
    """`of Security`, `with the role admin`."""
    of_role = party.route.startswith("role:")
    return f"with the role {party.name}" if of_role else f"of {party.name}"


@dataclass(frozen=True)
class Quorum:
    """What a gate wants: people, stages, and roles that somebody among the people must hold."""

    people: int = 1
    stages: tuple[Stage, ...] = ()
    roles: tuple[str, ...] = ()

    @classmethod
    def of_gate(cls, gate: Mapping[str, Any], waited: float = 0) -> Quorum:
        """As `approvals.demands` sealed it. A gate without stages, or older than them, has none.

        Whoever stands in after so many seconds does so once a packet has `waited` as long.
        """
        return cls(
            people=int(gate["needed"]),
            stages=tuple(
                Stage(
                    str(each["route"]),
                    str(each["name"]),
                    int(each["people"]),
                    tuple(
                        Fallback(str(one["route"]), str(one["name"]))
                        for one in each.get("fallbacks", ())
                        if one["after_seconds"] <= waited
                    ),
                )
                for each in gate.get("stages", ())
            ),
            roles=tuple(map(str, gate.get("roles", ()))),
        )

    @property
    def seats(self) -> int:
        """How many people the stages want together."""
        return sum(stage.people for stage in self.stages)

    @property
    def free(self) -> int:
        """How many people are wanted beside those of the stages, whoever they are."""
        return max(0, self.people - self.seats)

    @property
    def routes(self) -> list[str]:
        """Where only these make a person count: what they are. Else empty.

        Without stages everybody who is wanted is free to be anybody.
        """
        if self.free:
            return []
        also = [f"role:{role}" for role in self.roles]
        return sorted({*(route for stage in self.stages for route in stage.routes), *also})

    def eligible(self, routes: Collection[str]) -> list[int]:
        """The stages that somebody with these routes may count for, by their places."""
        return [at for at, stage in enumerate(self.stages) if stage.takes(routes)]

    def counts(self, routes: Collection[str]) -> bool:
        """Whether the approval of somebody with these routes can ever be of use here."""
        only = self.routes
        return not only or any(route in routes for route in only)

    def filled(self, voters: Voters) -> dict[int, int]:
        """Which stage each person fills, as many seats as can be filled at once.

        Whoever has a seat keeps one when another person comes, though perhaps of another stage.
        """
        sitting: dict[int, int] = {}
        for person in voters:
            self._seat(person, voters, sitting, set())
        return sitting

    def _seat(self, person: int, voters: Voters, sitting: dict[int, int], tried: set[int]) -> bool:
        """Give the person a seat, moving those who sit where it takes that (Kuhn's way)."""
        for at in self.eligible(voters[person]):
            if at in tried:
                continue
            tried.add(at)
            there = [each for each, stage in sitting.items() if stage == at]
            if len(there) < self.stages[at].people:
                sitting[person] = at
                return True
            for other in there:
                if self._seat(other, voters, sitting, tried):
                    sitting[person] = at
                    return True
        return False

    def reached(self, voters: Voters) -> bool:
        """Whether these people are enough."""
        return (
            len(voters) >= self.people
            and len(self.filled(voters)) == self.seats
            and not self.missing_roles(voters)
        )

    def missing_roles(self, voters: Voters) -> list[str]:
        held = {route for routes in voters.values() for route in routes}
        return [role for role in self.roles if f"role:{role}" not in held]

    def missing(self, voters: Voters) -> list[int]:
        """How many seats of each stage are empty, by the stages' places."""
        taken = list(self.filled(voters).values())
        return [stage.people - taken.count(at) for at, stage in enumerate(self.stages)]

    def helps(self, person: int, routes: Collection[str], voters: Voters) -> bool:
        """Whether the approval of this person brings these people nearer to being enough."""
        if person in voters:
            return False
        more = {**voters, person: routes}
        if len(self.filled(more)) > len(self.filled(voters)):
            return True
        if set(self.missing_roles(voters)) - set(self.missing_roles(more)):
            return True
        return self.still_free(voters) > self.still_free(more)

    def still_free(self, voters: Voters) -> int:
        """How many more people are wanted than the empty seats of the stages."""
        return max(0, self.people - len(voters) - sum(self.missing(voters)))

    # --- In words ---------------------------------------------------------------------------------

    def wanted(self, others: str) -> str:
        """`one of Security and one of Owners`; `others` is what everybody else is called."""
        parts = [stage.words for stage in self.stages]
        if self.free:
            plural = "" if self.free == 1 else "s"
            more = "more " if self.stages else ""
            parts.append(f"{number_word(self.free)} {more}{others}{plural}")
        among = "".join(f", among them one with the role {role}" for role in self.roles)
        return f"{listed(parts)}{among}"

    def still(self, voters: Voters, others: str) -> str:
        """What is missing after these approvals, or nothing: `one of Owners is`."""
        empty = self.missing(voters)
        moving = [at for at in range(len(self.stages)) if self._open(at, voters)]
        if moving == [at for at, seats in enumerate(empty) if seats]:
            parts = [f"{number_word(empty[at])} {self.stages[at].whose}" for at in moving]
        else:
            # People could move to other stages, so each of these would do.
            where = listed([self.stages[at].whose for at in moving], "or")
            parts = [f"{number_word(sum(empty))} {where}"]
        if free := self.still_free(voters):
            parts.append(f"{number_word(free)} {others}{'' if free == 1 else 's'}")
        parts += [f"somebody with the role {role}" for role in self.missing_roles(voters)]
        if not parts:
            return ""
        lone = len(parts) == 1 and (sum(empty) + free or 1) == 1
        return f"{listed(parts)} {'is' if lone else 'are'}"

    def _open(self, at: int, voters: Voters) -> bool:
        """Whether somebody who has only this stage's route would find a seat."""
        more = {**voters, _NOBODYS_KEY: (self.stages[at].route,)}
        return len(self.filled(more)) > len(self.filled(voters))

    def why_not(self, voters: Voters) -> str:
        """Why even all of these people together are not enough, or nothing where they are."""
        for stage in self.stages:
            there = sum(stage.takes(routes) for routes in voters.values())
            if there < stage.people:
                who = {0: "nobody there", 1: "one person there"}.get(
                    there, f"{number_word(there)} there"
                )
                return f"It needs {stage.words}, and {who} may approve."
        if len(filled := self.filled(voters)) < self.seats:
            names = listed([stage.name for stage in self.stages])
            return (
                f"It needs {number_word(self.seats)} different people for {names}, and those who "
                f"may approve overlap: they can fill {number_word(len(filled))} of these seats."
            )
        if len(voters) < self.people:
            return (
                f"It needs {number_word(self.people)} "
                f"{'person' if self.people == 1 else 'people'}, and "
                f"{number_word(len(voters)) if voters else 'nobody'} may approve."
            )
        if lacking := self.missing_roles(voters):
            return f"Nobody who may approve holds the role {listed(lacking, 'or')}."
        return ""
