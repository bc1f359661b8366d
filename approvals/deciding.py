"""Settle a packet: one person's answer to one digest, and what follows from it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import QuerySet, Subquery

from approvals import (
    attention,
    bounds,
    carried,
    confirm,
    delegation,
    egress,
    errors,
    publication,
    resume,
    scopes,
    seal,
    signatures,
    signing,
)
from approvals.counting import (
    hold_still,
    needed_permission,
    quorum_of,
    routes_of,
    seats_of,
    voters_with,
)
from approvals.demands import hold_of
from approvals.effects import begin_hold, end_packet, tell
from approvals.judge import TenantJudge, policy_in_force
from approvals.models import Decision, Packet
from approvals.quorum import listed
from approvals.reminding import escalate
from approvals.states import PacketKind, PacketState, Verdict, after
from portal import audit, passkeys, statements
from portal.canonical import digest
from portal.clock import database_now
from portal.errors import BadInput, NotAllowed, NotFound, Refusal
from portal.models import Membership, Tenant, User
from portal.statements import given
from portal.visible import says_something
from runs import grants, lifecycle
from runs.agent.port import ProposedCall
from runs.judging import judge_network
from runs.lifecycle import Draft, append_events, run_facts
from runs.models import Run, ToolCall
from runs.states import CallState

COMMENT_LIMIT = 10_000


@dataclass(frozen=True)
class Answer:
    """What one person sends: the verdict, the digest it was made on, words, the form's token.

    `typed` is what the page asks to type where approving needs a second look, and `passkey` what
    the browser returned where a passkey is asked for, as JSON. `view` is what the page carried
    since it was made, and `claims` what it says was on screen, as JSON; they decide nothing.
    """

    verdict: Verdict
    seen: str
    comment: str = ""
    token: str = ""
    typed: str = ""
    passkey: str = ""
    view: str = ""
    claims: str = ""
    # Whose right is used, by primary key, where somebody decides in another's name.
    behalf: int = 0


# What a person may send back: the agent can propose it anew. The rest is wanted as it is, or not.
TAKES_CHANGES = (PacketKind.CALL, PacketKind.PUBLICATION)


def settle_packet(public_id: uuid.UUID, answer: Answer, *, member: Membership) -> Decision:
    """Record one person's answer, and return it with its packet. All of it is saved, or none is.

    Raises a refusal of `approvals.errors` that says what to do next. A refusal that may be
    somebody's attempt leaves a line in the audit log, with the digests.
    """
    try:
        return _settle(public_id, answer, member=member)
    except _TELLING as refusal:
        _note_refusal(public_id, answer, member, refusal)
        raise


_TELLING = (
    errors.PacketChanged,
    errors.PacketDamaged,
    errors.OwnRequest,
    errors.MachineMayNotDecide,
    delegation.NotInTheirName,
    passkeys.PasskeyRefused,
    passkeys.PasskeyCopied,
)


@transaction.atomic(durable=True)
def _note_refusal(
    public_id: uuid.UUID, answer: Answer, member: Membership, refusal: Refusal
) -> None:
    packet = Packet.objects.get(tenant_id=member.tenant_id, public_id=public_id)
    audit.record(
        "packet.decision_refused",
        tenant=member.tenant,
        subject=packet,
        actor=member.user,
        code=refusal.code,
        verdict=answer.verdict.value,
        seen=answer.seen[:64],
        digest=packet.digest,
    )


@transaction.atomic(durable=True)
def _settle(public_id: uuid.UUID, answer: Answer, *, member: Membership) -> Decision:
    run, packet = locked_packet(public_id, member)
    # Both rows are locked from here on, so these checks hold until we commit. Who answers is read
    # now: roles may have gone while this waited.
    present = still_member(member)
    with lifecycle.together(run):
        return _answer(run, packet, answer, present)


def _answer(run: Run, packet: Packet, answer: Answer, present: Membership) -> Decision:
    read_at = packet.tenant.audit_seq
    holder = delegation.holder_of(packet, present, answer.behalf) if answer.behalf else present
    _may_decide(packet, answer, present, holder)
    votes = packet.answers()
    if (earlier := _earlier(packet, votes, present, holder)) is not None:
        same = earlier.token == answer.token and earlier.verdict == answer.verdict
        if answer.token and same and earlier.place == holder.user_id:
            earlier.packet = packet
            return earlier
        raise errors.AlreadyDecided(number=packet.number, verdict=earlier.verdict)
    now = database_now()
    still_decidable(packet, answer, run, now)
    self_approved = _four_eyes(packet, answer, present, holder)
    acknowledged, signature = 0, None
    if answer.verdict is Verdict.APPROVE:
        # Before anything of the tenant is locked, as a line of its log does: whoever removes the
        # key locks it in this order.
        signature = signing.signature_of(packet, answer.passkey, present.user, answer.behalf)
    widened = escalate(packet, run, now)
    if answer.verdict is Verdict.APPROVE:
        _counts(packet, holder)
        demand_allowed(packet, run, votes)
        acknowledged = _acknowledged(packet, answer)
    given_for = {}
    if holder is not present:
        delegation.holder_of(packet, present, answer.behalf, sure=True)
        given_for = {"on_behalf_of": holder.user}
    vote = Decision(
        tenant=packet.tenant,
        packet=packet,
        person=present.user,
        **given_for,
        verdict=answer.verdict.value,
        digest=answer.seen,
        round=packet.round,
        comment=answer.comment,
        token=answer.token,
        signature=signature,
        self_approved=self_approved,
        attention=attention.measured(packet, present.user, answer.view, answer.claims),
        decided_at=now,
    )
    statements.insert(vote)
    votes.append(vote)
    quorum = quorum_of(packet)
    voters = voters_with(packet, votes, holder) if answer.verdict is Verdict.APPROVE else {}
    state = after(PacketState(packet.state), answer.verdict, reached=quorum.reached(voters))
    if state is None:
        raise errors.AlreadySettled(number=packet.number, state=packet.state, by="")
    filled = quorum.filled(voters)
    stage = {}
    if holder.user_id in filled:
        place = quorum.stages[filled[holder.user_id]]
        stage["stage"] = place.name
        if stood_in := place.stands_in(voters[holder.user_id]):
            stage["stood_in"] = stood_in
    append_events(
        run,
        [
            Draft(
                f"packet.{_WORDS[answer.verdict]}",
                run_facts(run)
                | {
                    "packet": packet.number,
                    "approval": answer.seen,
                    "by": present.user.name,
                    **{name: each.name for name, each in given_for.items()},
                    "result": state.value,
                    "self_approved": self_approved,
                    **stage,
                },
            )
        ],
    )
    line = audit.record(
        f"packet.{_WORDS[answer.verdict]}",
        tenant=packet.tenant,
        subject=packet,
        actor=present.user,
        digest=answer.seen,
        result=state.value,
        comment=answer.comment[:2000],
        round=packet.round,
        self_approved=self_approved,
        **{name: each.pk for name, each in given_for.items()},
        **({"acknowledged": acknowledged} if acknowledged else {}),
        **({"attention": digest(vote.attention)} if vote.attention else {}),
        **stage,
        # Who fills which stage can shift while others answer, so the last answer tells it of all.
        **(seats_of(packet) if state is PacketState.APPROVED else {}),
        **({"signature": digest(signature)} if signature else {}),
        **({"key": signatures.key_of(signature)} if signature else {}),
    )
    if line.seq - read_at > 1 + widened:
        _demand_as_read(packet, answer, present, holder)
    if state is PacketState.APPROVED and (hold := hold_of(packet.page["gate"])):
        begin_hold(packet, run, now + timedelta(seconds=hold))
    elif state is not PacketState.OPEN:
        end_packet(
            packet,
            run,
            state,
            answer.comment,
            present.user,
            now,
            self_approved=any(each.self_approved for each in votes),
        )
    tell(packet)
    return vote


_WORDS = {
    Verdict.APPROVE: "approved",
    Verdict.DENY: "denied",
    Verdict.REQUEST_CHANGES: "changes_requested",
}


def still_member(member: Membership) -> Membership:
    """The membership as it is now: it may have been taken away since the page was opened."""
    present = _PRESENT.first(tenant=member.tenant_id, user=member.user_id)
    if present is None:
        raise NotFound
    return present


_PRESENT = statements.Query(
    lambda: Membership.objects.select_related("tenant", "user").filter(
        tenant=given("tenant", Tenant), user=given("user", User), user__is_active=True
    )
)


def _demand_as_read(
    packet: Packet, answer: Answer, present: Membership, holder: Membership
) -> None:
    """Raise unless those who answer may still do so, and as what this answer was counted.

    For an answer whose line is written, which locks the tenant, and that stands behind lines which
    were not there when the packet was read. Roles change under that lock, each with a line of its
    own: so where no line came between, nothing did, and behind a line that takes a role away no
    answer stands that took it.
    """
    fresh = still_member(present)
    named = delegation.holder_of(packet, fresh, answer.behalf) if answer.behalf else fresh
    packet.tenant.one_person = fresh.tenant.one_person
    _may_decide(packet, answer, fresh, named)
    _four_eyes(packet, answer, fresh, named)
    if (fresh.roles, named.roles) != (present.roles, holder.roles):
        raise errors.RolesChanged(number=packet.number)


def _counts(packet: Packet, member: Membership) -> None:
    """Raise unless the approval of this member can count; hold still who belongs to what."""
    quorum = quorum_of(packet)
    hold_still(packet)
    if quorum.routes and not quorum.counts(routes_of(member)):
        wanted = listed([stage.whose for stage in quorum.stages], "or")
        raise errors.CountsForNothing(number=packet.number, wanted=wanted)


def locked_packet(public_id: uuid.UUID, member: Membership) -> tuple[Run, Packet]:
    """Run and packet, locked in this order everywhere: two hops never wait for each other."""
    mine = {"tenant": member.tenant_id, "packet": public_id}
    run = _LOCKED_RUN.first(**mine)
    if run is None:
        raise NotFound
    (packet,) = _LOCKED.all(**mine)
    return run, packet


def _of_tenant() -> QuerySet[Packet]:
    return Packet.objects.filter(
        tenant=given("tenant", Tenant), public_id=given("packet", Packet, "public_id")
    )


# A packet is of one run as long as there is one.
_LOCKED_RUN = statements.Query(
    lambda: lifecycle.lockable().filter(pk=Subquery(_of_tenant().values("run")))
)
_LOCKED = statements.Query(lambda: lockable(_of_tenant()))


def lockable(packets: QuerySet[Packet]) -> QuerySet[Packet]:
    """Packets to be locked, each with its tenant and its call: most of them are about one.

    Whatever else one is about is read when it is needed: PostgreSQL takes longer to plan for every
    kind at once than for all the rest of a decision.
    """
    return packets.select_for_update(no_key=True, of=("self",)).select_related("tenant", "call")


def _earlier(
    packet: Packet, votes: Sequence[Decision], member: Membership, holder: Membership
) -> Decision | None:
    """This member's own answer. Raises `VoiceUsed` for one of whoever counts as one with them."""
    people = {member.user_id, holder.user_id}
    voices = [each for each in votes if people & {each.person_id, each.on_behalf_of_id}]
    for each in voices:
        if each.person_id != member.user_id:
            mine = each.on_behalf_of_id == member.user_id
            of = "your name" if mine else f"the name of {holder.user.name}"
            whose = f" in {of}" if each.on_behalf_of_id in people else ""
            raise delegation.VoiceUsed(name=each.person.name, number=packet.number, whose=whose)
    return voices[0] if voices else None


def _may_decide(packet: Packet, answer: Answer, member: Membership, holder: Membership) -> None:
    if member.user.is_machine:
        raise errors.MachineMayNotDecide
    wanted = needed_permission(packet.kind, answer.verdict)
    if not any(holder.may(each) for each in wanted):
        raise NotAllowed(permission=wanted[0].value)
    if answer.verdict is Verdict.REQUEST_CHANGES and packet.kind not in TAKES_CHANGES:
        raise BadInput(
            reason="Changes can be requested of a call or a publication. Approve or deny this one; "
            "nothing was decided."
        )
    if not re.fullmatch(r"[0-9a-f]{64}", answer.seen):
        raise errors.NeedsDigest
    if not answer.token.isprintable():
        raise BadInput(reason="The form's token is none of ours. Reload the page and decide there.")
    if len(answer.comment) > COMMENT_LIMIT:
        raise errors.WordsTooLong(length=f"{len(answer.comment):,}", limit=f"{COMMENT_LIMIT:,}")
    if "\x00" in answer.comment:
        raise BadInput(reason="The comment holds a NUL character. Remove it; nothing was decided.")
    words_needed = answer.verdict is not Verdict.APPROVE or packet.kind == PacketKind.QUESTION
    if words_needed and not says_something(answer.comment):
        raise errors.NeedsWords


def still_decidable(packet: Packet, answer: Answer, run: Run, now: datetime) -> None:
    """Raise unless a locked packet is open, in time, and the one that the answer is about."""
    if PacketState(packet.state) is not PacketState.OPEN:
        last = packet.decisions.select_related("person").order_by("-decided_at").first()
        by = f" by {last.person.name}, {last.decided_at:%H:%M} UTC" if last else ""
        raise errors.AlreadySettled(
            number=packet.number, state=packet.state.replace("_", " "), by=by
        )
    if not run.is_live:
        raise errors.RunOver(number=run.number, state=run.status, packet=packet.number)
    if packet.held_until is not None:
        raise errors.PacketHeld(
            number=packet.number, at=f"{packet.held_until:%Y-%m-%d %H:%M:%S} UTC"
        )
    if now >= (until := bounds.decided_until(packet)):
        raise errors.PacketExpired(number=packet.number, at=f"{until:%Y-%m-%d %H:%M:%S} UTC")
    if answer.seen != packet.digest:
        raise errors.PacketChanged(seen=answer.seen, stored=packet.digest)
    if answer.verdict is Verdict.APPROVE and not whole(packet):
        raise damage(packet)(number=packet.number)


def damage(packet: Packet) -> type[errors.PacketDamaged]:
    match seal.fault(packet.page, packet.digest):
        case seal.Fault.SHAPE_MISSING:
            return errors.PacketWithoutShape
        case seal.Fault.SHAPE_UNKNOWN:
            return errors.PacketOfOtherShape
    return errors.PacketDamaged


def whole(packet: Packet) -> bool:
    """Whether page and digest still fit, and the rows that will be acted on still fit the page."""
    if not seal.intact(packet.page, packet.digest):
        return False
    if not bounds.kept(packet):
        return False
    if packet.credential is not None and not scopes.fits(packet, packet.credential):
        return False
    if packet.call is not None:
        call = packet.call
        now = digest({"tool": call.tool, "arguments": call.arguments, "target": call.target})
        of_run = call.run_id == packet.run_id
        return of_run and {call.arguments_digest, packet.page["arguments_digest"]} == {now}
    if packet.egress is not None:
        return egress.fits(packet, packet.egress)
    if packet.resumption is not None:
        return resume.fits(packet, packet.resumption)
    if packet.candidate is not None:
        return bool(
            publication.candidate_digest(packet.candidate) == packet.page["candidate"]["digest"]
        )
    return True


def _four_eyes(packet: Packet, answer: Answer, member: Membership, holder: Membership) -> bool:
    """Whether this is a self-approval that a one-person tenant declared. Raises `OwnRequest`.

    In another's name neither of the two may be excluded, and there nothing bends that.
    """
    people = {member.user.person_id, holder.user.person_id}
    if answer.verdict is not Verdict.APPROVE or not people & {*packet.excluded}:
        return False
    if packet.tenant.one_person and holder is member:
        return True
    raise errors.OwnRequest(number=packet.number)


def demand_allowed(packet: Packet, run: Run, votes: Sequence[Decision]) -> None:
    """Ask policy again: what it denies now is not approved, whatever it said before.

    Nor is it on the strength of an earlier vote that no passkey signed where one was demanded.
    `votes` are the packet's answers that count, read since it was locked.
    """
    if packet.blocked:
        raise errors.ApprovalBlocked(number=packet.number, reason=packet.blocked)
    for _, why in signing.unsigned(packet, votes):
        raise errors.VoteNotSigned(number=packet.number, reason=why)
    for _, why in carried.faults(packet, votes):
        raise errors.VoteNotCarried(number=packet.number, reason=why)
    contract = lifecycle.contract_of(run)
    if packet.call is not None:
        call = packet.call
        judged = TenantJudge().judge(
            run, contract, proposed(call), target=call.target, outward=call.outward
        )
        denied, reason, version = (
            judged.state is CallState.REFUSED,
            judged.reason,
            judged.policy_version,
        )
    elif packet.egress is not None:
        judged = judge_network(run, contract, grants.ask_of(packet.egress))
        denied, reason, version = (
            judged.state is CallState.REFUSED,
            judged.reason,
            judged.policy_version,
        )
    elif packet.candidate is not None:
        in_force = policy_in_force(run.tenant_id)
        facts = publication.publish_facts(run, contract, packet.candidate)
        verdict = publication.judge(in_force, facts)
        denied, reason = verdict.effect == "deny", verdict.reason
        version = in_force.number if in_force else 0
        receipts = list(packet.candidate.receipts.all())
        # Asked of the receipts themselves: the row only repeats it.
        why = publication.why_blocked(contract, packet.candidate, receipts, verdict)
        if why and not denied:
            raise errors.ApprovalBlocked(number=packet.number, reason=why)
    elif packet.resumption is not None:
        denied = policy_in_force(run.tenant_id) is None
        reason, version = "The tenant has no policy in force, so nothing goes on.", 0
    else:
        return
    if denied:
        raise errors.PolicyNowDenies(version=version, reason=reason)


def _acknowledged(packet: Packet, answer: Answer) -> int:
    """How many findings the person says they saw. Raises `NeedsTyped` if they do not say so."""
    word, findings = confirm.typed_word(packet), len(confirm.to_acknowledge(packet))
    if word and answer.typed.strip() != word:
        why = confirm.why_typed(packet)
        raise errors.NeedsTyped(why=why, word=word)
    return findings


def proposed(call: ToolCall) -> ProposedCall:
    """A stored call in the words of the agent's port."""
    return ProposedCall(
        call_id=call.call_id,
        tool=call.tool,
        kind=call.kind,  # type: ignore[arg-type]
        arguments=call.arguments,
        raw="",
    )
