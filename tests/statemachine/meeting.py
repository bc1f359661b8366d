"""What the reference notes of a packet that is new: from what it knows of the run, not of the row.

Of the page it takes what nobody else can say: its digest, by another way than the portal's, which
version of the rules it was judged by, and whether two pages say the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import rfc8785

from approvals.models import Packet
from runs.models import Run
from tests.statemachine.reference import Asked, LawBroken, Wants
from tests.statemachine.rules import RULES
from tests.statemachine.state import State

EXPIRES = timedelta(minutes=60)
VALID_SECONDS = {"egress": 5 * 60}
A_CALL_IS_VALID = 10 * 60


def met(world: State, packet: Packet, run: Run) -> Asked:
    if packet.canary is not None:
        return _test(world, packet)
    rules, author = world.versions[packet.page["policy"]["version"]]
    tool = {"egress": "network", "publication": "publish"}.get(packet.kind, packet.page["tool"])
    users = {member.user_id: name for name, member in world.members.items()}
    asker = users[run.requested_by_id]
    barred = {users[run.requested_by_id], "olu", *([author] if author else [])}
    if packet.egress is not None and packet.egress.asked_by_id:
        asker = users[packet.egress.asked_by_id]
        barred.add(asker)
    editor, before, arguments = "", None, None
    call = packet.call.call_id if packet.call is not None else ""
    if packet.kind == "call":
        arguments = world.proposed[call]
    keys = {world.people[name].key for name in barred}
    if world.edited is not None:
        (editor, before, arguments), world.edited = world.edited, None
        keys |= {world.people[editor].key, *world.asked[before].barred}
    wants = RULES[rules].wants(tool)
    valid = VALID_SECONDS.get(packet.kind, A_CALL_IS_VALID)
    if packet.kind != "egress":
        valid = min(valid, round(wants.execute.total_seconds()))
    asked = Asked(
        kind=packet.kind,
        tool=tool,
        run=packet.run_id,
        digest=digest_of(packet.page),
        asker=asker,
        wants=wants,
        barred=frozenset(keys),
        opened=world.now,
        expires=world.now + min(EXPIRES, wants.decide),
        valid_seconds=valid,
        denied_before=_denied_before(world, packet, tool),
        word=_word(world, packet, wants, tool),
        remind_at=world.now + wants.remind if wants.remind is not None else None,
        rules=rules,
        call=call,
        arguments=arguments,
        differs=world.differs[packet.resumption_id] if packet.resumption_id else None,
        content=_content(packet.page),
        editor=editor,
        before=before,
    )
    asked.carry(_replaced_by(world, asked), world.people)
    return asked


def _word(world: State, packet: Packet, wants: Wants, tool: str) -> str:
    """What must be typed: of high risk the target's name, and what was denied before in the run."""
    target = str(packet.page.get("target", ""))
    if wants.risk == "high" and not wants.passkey:
        address = urlsplit(world.ground.walk.tracker.url).hostname
        return str(address) if packet.kind == "call" else target
    denied = _denied_before(world, packet, tool)
    return {"call": tool}.get(packet.kind, target) if denied else ""


def _denied_before(world: State, packet: Packet, tool: str) -> bool:
    return any(
        each.run == packet.run_id and each.tool == tool and each.denied
        for each in world.asked.values()
        if each.kind in ("call", "question")
    )


def _test(world: State, packet: Packet) -> Asked:
    """A test packet has all of one that there was, but its target and its time."""
    like = next(
        (
            each
            for each in world.asked.values()
            if each.can_be_likened and each.arguments == packet.page["arguments"]
        ),
        None,
    )
    if like is None:
        raise LawBroken("law 5: a test packet looks like none that people decided")
    host = urlsplit(packet.page["target"].rpartition(" ")[2]).hostname
    return replace(
        like,
        run=packet.run_id,
        digest=digest_of(packet.page),
        opened=world.now,
        expires=world.now + (like.expires - like.opened),
        content=_content(packet.page),
        word=str(host) if like.wants.risk == "high" else "",
        call="",
        arguments=None,
        test=True,
        votes=[],
        void=[],
        undone=0,
        approved_at=None,
        reminded=0,
        remind_at=None,
    )


def _replaced_by(world: State, asked: Asked) -> Iterator[tuple[int, Asked]]:
    """The packets whose place this one took, by people's edits alone, the latest first."""
    while asked.before is not None:
        key, asked = asked.before, world.asked[asked.before]
        yield key, asked


def _content(page: Any) -> str:
    """What a vote is about: the page without its times, its editor, and who is barred."""
    kept = {name: each for name, each in page.items() if name not in ("edited", "time")}
    kept["gate"] = {name: each for name, each in page["gate"].items() if name != "excluded"}
    return json.dumps(kept, sort_keys=True)


def digest_of(page: Any) -> str:
    return hashlib.sha256(rfc8785.dumps(page)).hexdigest()
