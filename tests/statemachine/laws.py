"""What must hold after every step: the numbers are those of the design's list.

Each law compares the rows as they are stored, and what reached the outside, with the reference.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import connection

from approvals import bundle
from approvals.models import Decision, Packet, Publication
from approvals.verifier import verified
from portal.dsse import key_id
from portal.models import AuditEntry
from portal.signing import signing_key
from runs.fetching import repositories_of
from runs.models import Event, ToolCall
from tests.cast import git
from tests.statemachine.meeting import digest_of
from tests.statemachine.reference import APPROVE, ENDED, LawBroken, hold
from tests.statemachine.rules import RULES
from tests.statemachine.signed import is_signed
from tests.statemachine.state import Heard, State
from tests.statemachine.steps import Step

NO_TIME = timedelta(0)

# How a call may stand while its packet stands so. An ended run cancels what waits for it.
STANDS = {
    "open": {"waiting", "cancelled"},
    "approved": {"approved", "acting", "done", "failed", "unknown", "expired", "cancelled"},
    "denied": {"denied"},
    "changes_requested": {"changes_requested"},
    "expired": {"expired", "cancelled"},
    "cancelled": {"cancelled"},
    "withdrawn": {"cancelled", "withdrawn"},
}
Given = tuple[str, str, str, str, int | None]
"""Of an answer: whose it is and in whose name, what it says of which digest, carried from where."""
ACTED = ("done", "failed")
BEGUN = ("acting", "unknown", *ACTED)


def _named(packet: Packet) -> str:
    return f"packet {packet.number} ({packet.kind}, {packet.state})"


# --- The laws ---------------------------------------------------------------------------


def law_1_what_was_approved_is_what_happens(step: Step) -> None:
    world = step.world
    for key, packet in step.after.packets.items():
        asked, name = world.asked[key], _named(packet)
        hold(1, digest_of(packet.page) == packet.digest == asked.digest, f"{name} changed its page")
        used = step.before.packets[key].used_at if key in step.before.packets else None
        if packet.used_at is None:
            hold(1, used is None, f"{name} was used, and is not any more")
            continue
        if used is not None:
            hold(1, used == packet.used_at, f"{name} was used twice")
            continue
        hold(1, packet.state == "approved", f"{name} was used")
        hold(1, asked.in_time(world.now), f"{name} was used out of its time")
        # A network rule opens as it is approved, under whatever allows it then.
        same = packet.kind == "egress" or asked.rules == world.rules
        hold(1, same, f"{name} was used under other rules than it was approved under")
        for vote in asked.votes:
            read = asked if vote.carried is None else world.asked[vote.carried]
            hold(1, vote.digest == read.digest, f"{name} was used for another page than was read")
            hold(1, read.content == asked.content, f"{name} was used, and {vote} is of another")
        if asked.arguments is not None:
            wrote = packet.page["arguments"] == asked.arguments
            hold(1, wrote, f"{name} asks about what nobody wrote: {packet.page['arguments']}")
    for packet in step.after.packets.values():
        begun = packet.call_id and step.after.calls[packet.call_id].state in BEGUN
        hold(1, packet.used_at or not begun, f"the call of {_named(packet)} began without it")
    for request, call in _requests(step):
        packet = next(each for each in step.after.packets.values() if each.call_id == call.pk)
        asked_for = dict(packet.page["arguments"])
        hold(1, request.path == f"/do/{asked_for.pop('place')}", f"{call} went elsewhere")
        hold(1, json.loads(request.body) == asked_for, f"{call} was made with other arguments")
        hold(1, packet.used_at is not None, f"{_named(packet)} was done, and not used up")
    for branch in world.ground.forge.acts:
        of_it = [
            step.after.packets[each.packet_id]
            for each in step.after.publications.values()
            if each.branch == branch
        ]
        commits = {packet.page["arguments"]["commit"] for packet in of_it}
        hold(1, commits == {_commit(world, branch)}, f"{branch} is another commit")
        hold(1, any(each.used_at for each in of_it), f"{branch} was pushed, and nothing used up")


def _requests(step: Step) -> list[tuple[Any, ToolCall]]:
    """What reached the service, with the call it was for."""
    by_key = {
        str(uuid.uuid5(step.after.runs[call.run_id].public_id, call.call_id)): call
        for call in step.after.calls.values()
    }
    found = step.world.ground.walk.tracker.requests
    return [(each, by_key[each.headers["Idempotency-Key"]]) for each in found]


def _commit(world: State, branch: str) -> str:
    if branch not in world.commits:
        bare = repositories_of(world.cast.acme) / "adder.git"
        world.commits[branch] = git("rev-parse", branch, cwd=bare)
    return world.commits[branch]


def law_2_a_hop_is_a_hint(step: Step) -> None:
    """However often a hop comes, there is one packet of a call and one publication of a packet."""
    asked = Counter(each.call_id for each in step.after.packets.values() if each.call_id)
    hold(2, all(times == 1 for times in asked.values()), "a call has two packets")
    made = Counter(each.packet_id for each in step.after.publications.values())
    hold(2, all(times == 1 for times in made.values()), "a packet has two publications")
    open_now = Counter(
        each.run_id
        for each in step.after.packets.values()
        if (each.kind, each.state) == ("publication", "open")
    )
    hold(2, all(times == 1 for times in open_now.values()), "two candidates of one run are asked")
    if step.event == "lose_hops":
        hold(2, not step.moved(), "the loss of hops changed rows")


def law_3_nothing_happens_twice(step: Step) -> None:
    sent = Counter(call.pk for _, call in _requests(step))
    hold(3, all(times == 1 for times in sent.values()), f"a request was sent twice: {sent}")
    acts = step.world.ground.forge.acts
    hold(3, all(times == 1 for times in acts.values()), f"something was published twice: {acts}")
    if step.event == "late_worker":
        hold(3, not step.moved(), "a worker that had lost its run went on")
    for heard in step.heard:
        if heard.before in BEGUN:
            hold(3, heard.requests == 0, f"a call that was {heard.before} was made once more")


def law_4_unknown_is_said_to_be_unknown(step: Step) -> None:
    acts = step.world.ground.forge.acts
    for key, call in step.after.calls.items():
        was = step.before.calls[key].state if key in step.before.calls else ""
        if was == "unknown" and call.state != was:
            hold(4, step.event == "settle", f"{call} was settled by nobody")
        if was == "acting" and call.outward:
            hold(4, call.state in ("acting", "unknown"), f"{call} was acting, is {call.state}")
    for key, publication in step.after.publications.items():
        old = step.before.publications.get(key)
        if old is None or old.state == publication.state:
            continue
        name, now = f"publication {key}", publication.state
        if now == "done":
            hold(4, acts[publication.branch] == 1, f"{name} is done, and was not")
        if old.state == "unknown":
            hold(4, step.event.startswith("look"), f"{name} was settled by nobody")
        elif old.state == "acting" and old.sent_at is not None:
            known = now == "unknown" or step.world.acts_before[publication.branch] == 1
            hold(4, known, f"{name} may have been sent, and is {now}")


def law_5_it_fails_closed(step: Step) -> None:
    world = step.world
    for key, packet in step.after.packets.items():
        old = step.before.packets.get(key)
        was, name = old.state if old is not None else "", _named(packet)
        asked, run = world.asked[key], step.after.runs[packet.run_id]
        if packet.call_id is not None:
            call = step.after.calls[packet.call_id]
            hold(5, call.state in STANDS[packet.state], f"{name} has a call that is {call.state}")
        replaced = packet.state == "superseded"
        hold(5, replaced == asked.superseded, f"{name} does not stand as it was edited")
        if was == packet.state:
            continue
        hold(5, was in ("", "open"), f"{name} was {was} and is something else")
        if packet.kind == "resume":
            goes = {"approved": "queued", "denied": "failed", "expired": "expired"}
            after = goes.get(packet.state, run.status)
            hold(5, run.status == after, f"{name} is answered, and its run is {run.status}")
        if packet.state == "approved":
            if asked.wants.hold:
                hold(5, key in world.released, f"{name} was approved by {step.event} in its hold")
            else:
                hold(5, step.answer == APPROVE, f"{name} was approved by {step.event}")
                hold(5, world.now < asked.expires, f"{name} was approved after its time")
        elif packet.state == "expired":
            hold(5, world.now >= asked.expires, f"{name} expired before its time")
            hold(5, asked.held_until is None, f"{name} expired while it was held")
        elif packet.state == "superseded":
            hold(5, step.event == "edit", f"{name} came of {step.event}")
        elif packet.state in ("cancelled", "withdrawn"):
            ended = run.status == "cancelled" if packet.state == "cancelled" else True
            asked_for = step.event == "withdraw"
            over = run.status in ENDED or packet.kind == "egress" or asked_for
            hold(5, ended and over, f"{name} was closed, and its run is {run.status}")
        elif packet.state != "open":
            answer = {"denied": "deny"}.get(packet.state, "request_changes")
            hold(5, step.answer == answer, f"{name} came of {step.event}")
    for _, call in _requests(step):
        packet = next(each for each in step.after.packets.values() if each.call_id == call.pk)
        hold(5, packet.state == "approved", f"{_named(packet)} was carried out")
    for heard in step.heard:
        asked = world.asked[heard.packet]
        if asked.editor and heard.requests:
            own = asked.arguments == world.proposed[asked.call]
            said = "edited this call, and in the end" if own else "Edited: "
            hold(5, said in heard.told.words, "the agent did not hear of an edit")
        wanted = must_hear(step, heard)
        told = f"{heard.told.words}\n{heard.told.stopped}"
        hold(5, wanted in told, f"the agent heard {told!r}, and ought to hear {wanted!r}")


def law_5_a_test_does_nothing(step: Step) -> None:
    """A test packet has nothing behind it, its run never works, and in the end it is told."""
    tests = {key: each for key, each in step.after.packets.items() if each.canary is not None}
    fresh = len(tests.keys() - step.before.packets.keys())
    hold(5, fresh == step.world.test_due, f"{fresh} test packets came")
    told = Counter(
        AuditEntry.objects.filter(tenant=step.world.cast.acme, action="packet.canary").values_list(
            "subject", flat=True
        )
        if tests
        else ()
    )
    behind = {key: each.run_id for key, each in tests.items()}
    for calls in (step.after.calls, step.after.publications):
        acts = [each for each in calls.values() if each.run_id in behind.values()]
        hold(5, not acts, f"of a test packet came {acts}")
    for key, packet in tests.items():
        run, over = step.after.runs[packet.run_id], packet.state != "open"
        name = _named(packet)
        hold(5, run.canary and step.world.asked[key].test, f"{name} has a run that can work")
        still = () if over else ("waiting",)
        hold(5, run.status in ("cancelled", *still), f"the run of {name} is {run.status}")
        hold(5, packet.used_at is None and packet.held_until is None, f"{name} was used")
        hold(14, told[f"packet:{key}"] == over, f"{name} is a test, and the log does not say it")


def must_hear(step: Step, heard: Heard) -> str:
    """The word an agent must hear of its call, as people answered it."""
    world, packet = step.world, step.after.packets[heard.packet]
    asked = world.asked[packet.pk]
    last = asked.votes[-1] if asked.votes else None
    if step.before.runs[packet.run_id].cancel_asked_at is not None:
        return "cancelled"
    if heard.before in ACTED:
        return str(step.before.calls[heard.call].result)
    if heard.before in ("acting", "unknown"):
        return "lease_lost"
    if packet.state in ("denied", "changes_requested") and last is not None:
        word = "Denied" if packet.state == "denied" else "Changes requested"
        return f"{word} by {world.members[last.name].user.name}: Not like this."
    if packet.state == "withdrawn":
        name = world.members[asked.asker].user.name
        return f"Withdrawn by {name}, who asked for it: Not any more."
    if packet.state == "expired":
        return "Expired: nobody decided in time. This is not a denial"
    if packet.state != "approved":
        raise LawBroken(f"law 5: a worker goes on with {_named(packet)}")
    if not heard.in_time:
        return "Expired: the approval was not used in time"
    if asked.tool in RULES[heard.rules].denies:
        return "policy changed meanwhile and now denies this"
    if asked.rules != heard.rules:
        return "Held: policy changed after the approval"
    if asked.tool == "ask_person":
        return "yes"
    return '"number":7' if heard.fate == "well" else "lease_lost"


def law_6_nobody_approves_their_own(step: Step) -> None:
    world = step.world
    users = {member.user_id: name for name, member in world.members.items()}
    stored: dict[int, list[Given]] = {}
    rows = Decision.objects.filter(packet__tenant=world.cast.acme).select_related("carried_from")
    for each in rows.order_by("pk"):
        giver = users[each.on_behalf_of_id] if each.on_behalf_of_id else ""
        source = each.carried_from.packet_id if each.carried_from is not None else None
        answer = (users[each.person_id], giver, each.verdict, each.digest, source)
        stored.setdefault(each.packet_id, []).append(answer)
        _signed(world, each, users[each.person_id])
    for key, packet in step.after.packets.items():
        asked, name = world.asked[key], _named(packet)
        hold(6, set(packet.excluded) == asked.barred, f"{name} does not bar the right people")
        hold(6, not packet.self_approved, f"{name} is labelled self-approved, and no one is alone")
        hold(6, packet.needed == asked.wants.least, f"{name} needs {packet.needed} people")
        votes = [*asked.void, *asked.votes]
        given = [(each.name, each.giver, each.verdict, each.digest, each.carried) for each in votes]
        hold(6, packet.round == asked.round, f"{name} is in round {packet.round} of votes")
        if packet.state == "open":
            hold(6, packet.held_until == asked.held_until, f"{name} is held {packet.held_until}")
            stepped = asked.wants.relief[1] if asked.wants.relief and asked.relieved else NO_TIME
            hold(6, packet.escalated == stepped.seconds, f"{name} lets others stand in")
            hold(5, packet.reminded == asked.reminded, f"{name} was told {packet.reminded} times")
        else:
            hold(6, key not in world.released or packet.state == "approved", f"{name} was released")
        hold(6, stored.get(key, []) == given, f"{name} has other answers than were given")
        old = step.before.packets.get(key)
        if old is not None and old.state == "open" and step.answer == APPROVE:
            enough, new = asked.enough(world.people), len(given) > world.votes_before.get(key, 0)
            if packet.state == "approved":
                hold(6, enough, f"{name} was approved by {sorted(asked.counted(world.people))}")
            elif new and not asked.wants.hold:
                hold(6, not enough, f"{name} has all its approvals and stays {packet.state}")


def _signed(world: State, row: Decision, name: str) -> None:
    """An approval that a passkey must sign, is signed by the passkey of whoever gave it."""
    asked = world.asked[row.packet_id]
    if row.pk in world.checked or not asked.wants.passkey or row.verdict != APPROVE:
        return
    said: dict[str, Any] = {"digest": asked.digest, "verdict": APPROVE, "packet": row.packet_id}
    said |= {"person": row.person_id, "round": row.round}
    if row.on_behalf_of_id is not None:
        said["on_behalf_of"] = row.on_behalf_of_id
    signed = name in world.keys and is_signed(world.keys[name], row.signature, said)
    hold(6, signed, f"no passkey of {name}'s signed the approval of packet {row.packet_id}")
    world.checked.add(row.pk)


def law_7_a_tenant_sees_only_itself(step: Step) -> None:
    acme, globex = step.world.cast.acme.pk, step.world.cast.globex.pk
    eve = step.world.cast.eve.user_id
    names = ("packet", "call", "publication", "event", "decision", "decision by somebody")
    with connection.cursor() as cursor:
        cursor.execute(_CROSSED, [*(acme,) * 11, eve, globex, globex])
        *crossed, heard, runs = cursor.fetchone()
    for name, count in zip(names, crossed, strict=True):
        hold(7, count == 0, f"{count} times there is a {name} of another tenant")
    hold(7, heard == 1, "another tenant heard of it")
    hold(7, runs == 0, "another tenant has a run of it")


# One statement: this is asked after every step.
_OF_RUNS = "SELECT count(*) FROM {} a JOIN runs_run r ON r.id = a.run_id"
_OF_RUNS += " WHERE r.tenant_id = %s AND a.tenant_id <> %s"
_TABLES = [each._meta.db_table for each in (Packet, ToolCall, Publication, Event)]
_DECIDED = "SELECT count(*) FROM approvals_decision d JOIN approvals_packet p ON p.id = d.packet_id"
_DECIDED += " WHERE p.tenant_id = %s AND "
_CROSSED = "SELECT " + ", ".join(
    f"({each})"
    for each in (
        *(_OF_RUNS.format(table) for table in _TABLES),
        f"{_DECIDED} d.tenant_id <> %s",
        f"{_DECIDED} d.person_id = %s",
        "SELECT count(*) FROM portal_auditentry WHERE tenant_id = %s",
        "SELECT count(*) FROM runs_run WHERE tenant_id = %s",
    )
)


def law_14_evidence_is_chained(step: Step) -> None:
    world = step.world
    log = AuditEntry.objects.filter(tenant=world.cast.acme).order_by("seq")
    hashes = list(log.values_list("hash", flat=True))
    hold(14, hashes[: len(world.log)] == world.log, "a line of the audit log was changed")
    world.log = hashes
    words = {"approve": "approved", "deny": "denied", "request_changes": "changes_requested"}
    words |= {"edit": "edited", "carry": "vote_carried"}
    actions = [f"packet.{each}" for each in words.values()]
    told = Counter(log.filter(action__in=actions).values_list("action", flat=True))
    given = Counter(
        f"packet.{words['carry' if vote.carried is not None else vote.verdict]}"
        for asked in world.asked.values()
        for vote in (*asked.void, *asked.votes)
    )
    given["packet.edited"] = sum(bool(asked.editor) for asked in world.asked.values())
    hold(14, told == +given, f"the audit log tells of {told}, given were {given}")


def law_14_evidence_holds(world: State) -> None:
    """The export of everything, by the verifier that knows no database."""
    key = key_id(signing_key().public_key())
    report = verified(bundle.exported(world.cast.acme), [key])
    hold(14, report.status == 0, f"the exported evidence does not hold: {report.problems}")


Law = Callable[[Step], None]
LAWS: tuple[Law, ...] = (
    law_1_what_was_approved_is_what_happens,
    law_2_a_hop_is_a_hint,
    law_3_nothing_happens_twice,
    law_4_unknown_is_said_to_be_unknown,
    law_5_it_fails_closed,
    law_5_a_test_does_nothing,
    law_6_nobody_approves_their_own,
    law_7_a_tenant_sees_only_itself,
    law_14_evidence_is_chained,
)


def check(step: Step, *, whole: bool) -> None:
    """All of them; with `whole` the exported evidence too."""
    step.meet()
    for law in LAWS:
        law(step)
    if whole:
        law_14_evidence_holds(step.world)
