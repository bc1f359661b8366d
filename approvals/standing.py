"""Who must decide a packet, who is there already, and what one reader counts as, in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.utils import timezone

from approvals import carrying, delegation, times
from approvals.counting import needed_permission, quorum_of, routes_of, voters_of
from approvals.models import Decision, Packet
from approvals.quorum import Fallback, Quorum, Stage, Voters, listed, whose_of
from approvals.states import PacketKind, PacketState, Verdict
from portal.models import Membership
from portal.roles import Permission


@dataclass(frozen=True)
class InName:
    """Somebody whose right to decide this member has, by primary key, and until when."""

    person: int
    name: str
    until: datetime
    may_approve: bool
    may_hold_back: bool


@dataclass(frozen=True)
class Standing:
    """What one member is to one packet, in words, and which answers are open to them."""

    words: str
    may_approve: bool
    may_hold_back: bool
    answered: Decision | None = None
    self_approval: bool = False
    may_undo: bool = False
    # Those in whose names this member may answer; and whether they may as themselves.
    names: tuple[InName, ...] = ()
    as_oneself: bool = True

    @property
    def may_answer(self) -> bool:
        return self.may_approve or self.may_hold_back

    @property
    def form(self) -> str:
        """Which form this member gets: a page that was drawn with another one is out of date.

        Nothing without one.
        """
        if not self.may_answer:
            return ""
        acts = ["approve"] * self.may_approve + ["hold-back"] * self.may_hold_back
        people = ["0"] * self.as_oneself + [str(each.person) for each in self.names]
        return " ".join(acts + people)


ROLE_NEEDED = {Permission.PUBLISH: "publisher", Permission.DECIDE: "reviewer"}


def standing_of(packet: Packet, member: Membership) -> Standing:
    """The same rules as `settle_packet`, asked beforehand so that the page can explain them."""
    own = _own_standing(packet, member)
    if packet.held_until is not None or packet.state != PacketState.OPEN or own.answered:
        return own
    names, words = [], [own.words]
    for each in delegation.received(member, timezone.now()):
        if not delegation.is_for(each, packet):
            continue
        giver, until = each.giver, f"{each.ends_at:%d %b %Y %H:%M} UTC"
        if delegation.voices_of(packet, giver.user_id, member.user_id).exists():
            words.append(f"You decide for {giver.user.name}, who counts here already.")
            continue
        barred = {giver.user.person_id, member.user.person_id} & {*packet.excluded}
        may_approve = (
            not barred
            and any(giver.may(one) for one in needed_permission(packet.kind, Verdict.APPROVE))
            and quorum_of(packet).counts(routes_of(giver))
        )
        may_hold_back = any(giver.may(one) for one in needed_permission(packet.kind, Verdict.DENY))
        words.append(f"You decide for {giver.user.name} until {until}.")
        if giver.user.person_id in packet.excluded:
            words.append(f"{giver.user.name} may not approve this, so nor may you in that name.")
        if may_approve or may_hold_back:
            names.append(
                InName(giver.user_id, giver.user.name, each.ends_at, may_approve, may_hold_back)
            )
    if len(words) == 1:
        return own
    return replace(
        own,
        words=" ".join(words),
        names=tuple(names),
        as_oneself=own.may_answer,
        may_approve=own.may_approve or any(each.may_approve for each in names),
        may_hold_back=own.may_hold_back or any(each.may_hold_back for each in names),
    )


def _own_standing(packet: Packet, member: Membership) -> Standing:
    """What a member is in their own right."""
    if packet.held_until is not None:
        holder = delegation.whoever_undoes(packet, member)
        words = "It is approved, and can be undone."
        if holder is not None and holder != member.user:
            words = f"It is approved, and you can undo it in the name of {holder.name}."
        return Standing(words, False, False, may_undo=holder is not None)
    own = delegation.voices_of(packet, member.user_id).select_related("person").first()
    if own is not None:
        who = "You have" if own.person_id == member.user_id else f"{own.person.name} has"
        whose = "" if own.person_id == member.user_id else " in your name"
        words = f"{who} answered{whose}. A person counts once."
        return Standing(words, False, False, own)
    if member.user.is_machine:
        return Standing("This is a machine account. It can ask and never decides.", False, False)
    approving = needed_permission(packet.kind, Verdict.APPROVE)
    holding = needed_permission(packet.kind, Verdict.DENY)
    may_approve = any(member.may(each) for each in approving)
    may_hold_back = any(member.may(each) for each in holding)
    role = ROLE_NEEDED.get(approving[0], approving[0].value)
    if not may_approve and not may_hold_back:
        return Standing(f"You may read it. Deciding needs the role {role}.", False, False)
    counts = quorum_of(packet).counts(routes_of(member))
    if member.user.person_id in packet.excluded:
        if packet.tenant.one_person:
            return Standing(
                "You asked for this yourself. This tenant has one person, so you may approve it; "
                "it is labelled self-approved everywhere.",
                may_approve and counts,
                may_hold_back,
                self_approval=True,
            )
        return Standing(
            "You asked for this, edited it, own the agent or wrote the rule, so approving is for "
            "somebody else. You may still hold it back.",
            False,
            may_hold_back,
        )
    if not may_approve:
        return Standing(
            f"You count as a reviewer: you may hold it back. Approving needs the role {role}.",
            False,
            True,
        )
    return Standing(_place_of(packet, member, role), counts, may_hold_back)


def _place_of(packet: Packet, member: Membership, role: str) -> str:
    """What the approval of somebody who may give one would be."""
    quorum, voters = quorum_of(packet), voters_of(packet)
    person, routes = member.user.person_id, routes_of(member)
    if not quorum.counts(routes):
        wanted = listed([stage.whose for stage in quorum.stages], "or")
        return f"Approving is for people {wanted}. You may still hold it back."
    last = packet.needed > 1 and packet.needed - len(voters) <= 1
    if quorum.stages:
        if not quorum.helps(person, routes, voters):
            return "Your place is filled already: approving would only stand by for it."
        last = bool(voters) and quorum.reached({**voters, person: routes})
        words = "Your approval fills a place." if quorum.eligible(routes) else "You may approve it."
    else:
        words = f"You count as {role}."
    return f"{words}{' Yours is the last answer needed.' if last else ''}"


# --- The sentence ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reader:
    """Whoever reads a sentence and may approve: by primary key, with their routes."""

    person: int
    routes: Collection[str]


def approver_word(kind: str) -> str:
    """Who approves a packet of this kind."""
    return "publisher" if kind == PacketKind.PUBLICATION else "reviewer"


def _name_for(stage: Stage, routes: Collection[str]) -> str:
    """What somebody counts as in a stage: a member of it, or somebody who stands in."""
    stood_in = stage.stands_in(routes)
    return f"{stood_in}, standing in for {stage.name}" if stood_in else stage.name


def stage_sentence(
    quorum: Quorum, voters: Voters, others: str, reader: Reader | None = None
) -> str:
    """`Needs one of Security and one of Owners; you count as Security.`"""
    parts = [f"Needs {quorum.wanted(others)}"]
    if voters:
        still = quorum.still(voters, others)
        parts.append(f"{still} still missing" if still else "all of them are there")
    if reader is not None:
        places = [quorum.stages[at] for at in quorum.eligible(reader.routes)]
        names = [_name_for(each, reader.routes) for each in places]
        if reader.person in voters:
            parts.append("you have approved")
        elif not quorum.counts(reader.routes):
            parts.append("you count for nothing here")
        else:
            parts.append(f"you count as {listed(names, 'or') or 'one more'}")
    return "; ".join(parts) + "."


def stand_ins(gate: Mapping[str, Any], taken: int) -> list[str]:
    """`After 2 hours undecided, people of Owners may fill places too.`

    Each step that comes still, and of those that were taken the reason.
    """
    sentences = []
    for step in times.steps(gate):
        names = {
            each["route"]: whose_of(Fallback(each["route"], each["name"]))
            for stage in gate["stages"]
            for each in stage.get("fallbacks", ())
            if each["after_seconds"] == step
        }
        who, span = f"people {listed(list(names.values()), 'or')}", times.said(step)
        if step <= taken:
            sentences.append(f"Nobody decided within {span}, so {who} may fill places too.")
        else:
            sentences.append(f"After {span} undecided, {who} may fill places too.")
    return sentences


def need_sentence(packet: Packet, member: Membership | None = None) -> str:
    """Who must decide, as a sentence; with what the member counts as where there are stages."""
    if packet.kind == PacketKind.QUESTION and not quorum_of(packet).stages:
        return "One reviewer answers."
    role, quorum = approver_word(packet.kind), quorum_of(packet)
    if quorum.stages:
        if packet.state != PacketState.OPEN:
            return stage_sentence(quorum, {}, role)
        told = stage_sentence(quorum, voters_of(packet), role, _reader(packet, member))
        return " ".join([told, *stand_ins(packet.page["gate"], packet.escalated)])
    among = [each for each in quorum.roles if each != role]
    wanted = f", among them one with the role {', '.join(among)}," if among else ""
    if packet.needed == 1:
        return f"One {role}{wanted} who did not ask for it."
    return f"{packet.needed} different {role}s{wanted} who did not ask for it."


def _reader(packet: Packet, member: Membership | None) -> Reader | None:
    if member is None or not any(
        member.may(each) for each in needed_permission(packet.kind, Verdict.APPROVE)
    ):
        return None
    excluded = member.user.person_id in packet.excluded and not packet.tenant.one_person
    return None if excluded else Reader(member.user.person_id, routes_of(member))


def row_sentence(row: Mapping[str, Any], voters: Voters, reader: Reader | None) -> str:
    """The sentence of an open packet in a list, from its heading; nothing without stages."""
    gate = row["heading"].get("gate")
    if gate is None or row["state"] != PacketState.OPEN or not gate.get("stages"):
        return ""
    if reader is not None and reader.person in row["excluded"]:
        reader = None
    quorum = Quorum.of_gate(gate, row["escalated"])
    return stage_sentence(quorum, voters, approver_word(row["kind"]), reader)


# --- Votes and places -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Vote:
    """An answer, and what it counts for where a gate has stages.

    `why` says why it is void, and `carried` from which packet it was carried over to this one.
    """

    decision: Decision
    stage: str = ""
    why: str = ""
    carried: Packet | None = None

    @property
    def void(self) -> bool:
        return bool(self.why)


def votes_of(packet: Packet) -> list[Vote]:
    """Every answer, oldest first, with the stage it fills: now, or when it was approved."""
    decisions = list(
        packet.decisions.select_related("person", "on_behalf_of", "carried_from__packet").order_by(
            "decided_at"
        )
    )
    quorum, gone = quorum_of(packet), carrying.fates(packet)
    if not quorum.stages:
        return [_vote(each, packet, gone) for each in decisions]
    names = {stage.route: stage.name for stage in quorum.stages}
    voters: Voters = {}
    stood_in: dict[int, str] = {}
    if packet.state == PacketState.OPEN:
        voters = voters_of(packet)
        seats = quorum.filled(voters)
        filled = {person: quorum.stages[at].name for person, at in seats.items()}
        for person, at in seats.items():
            if name := quorum.stages[at].stands_in(voters[person]):
                stood_in[person] = f", standing in as {name}"
    else:
        filled = {person: names.get(route, route) for person, route in packet.filled}
    votes = []
    for each in decisions:
        words, void = "", each.round != packet.round
        if not void and each.verdict == Verdict.APPROVE:
            if each.place in filled:
                words = f"for {filled[each.place]}{stood_in.get(each.place, '')}"
            elif packet.state == PacketState.OPEN:
                counts = quorum.counts(voters.get(each.place, ()))
                words = "fills no stage" if counts else "does not count any more"
        votes.append(_vote(each, packet, gone, words))
    return votes


def _vote(each: Decision, packet: Packet, gone: Mapping[int, str], stage: str = "") -> Vote:
    undone = "since the approval was undone" if each.round != packet.round else ""
    source = each.carried_from
    return Vote(each, stage, undone or gone.get(each.pk, ""), source.packet if source else None)


def empty_places(packet: Packet) -> list[str]:
    """What every approval that is missing would be: `One of Security`, `One more`."""
    if packet.state != PacketState.OPEN:
        return []
    quorum, voters = quorum_of(packet), voters_of(packet)
    places = [
        f"One {stage.whose}"
        for stage, missing in zip(quorum.stages, quorum.missing(voters), strict=True)
        for _ in range(missing)
    ]
    return places + ["One more"] * quorum.still_free(voters)
