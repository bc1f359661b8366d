"""Say one event of a run in words. Facts in, a line out; nothing is looked up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runs.states import DONE_ALREADY

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """One line of a timeline.

    `head` is what happened, `code` the tool or name it happened to, `text` the rest of the
    sentence, `sub` the small print. An empty `icon` is the live dot.
    """

    icon: str
    head: str
    tone: str = ""
    code: str = ""
    text: str = ""
    sub: str = ""
    # What exactly the agent asked for, in its own words.
    detail: str = ""


def _seconds(facts: Facts) -> str:
    ms = facts.get("duration_ms")
    if ms is None:
        return ""
    return f"{ms / 1000:.1f} s" if ms >= _SHOWN_MS else "below 0.1 s"


# Less than this would be drawn as 0.0 s, as if it had taken no time.
_SHOWN_MS = 50


def _size(count: int) -> str:
    return f"{count / 1_000_000:.1f} MB" if count >= 1_000_000 else f"{-(-count // 1000)} kB"


def _join(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _rules(facts: Facts) -> str:
    rules = facts.get("rules") or []
    if not rules:
        return "no rule allows it" if facts.get("result") is None else ""
    word = "rule" if len(rules) == 1 else "rules"
    version = facts.get("policy_version")
    return f"{word} {', '.join(map(str, rules))}" + (
        f", policy version {version}" if version else ""
    )


def _call(icon: str, head: str, tone: str = "") -> Callable[[Facts], Line]:
    def tell(facts: Facts) -> Line:
        return Line(
            icon, head, tone, code=str(facts.get("operation") or ""), sub=_join(_rules_if(facts))
        )

    return tell


def _rules_if(facts: Facts) -> str:
    return _rules(facts) if facts.get("rules") else ""


def _denied(facts: Facts) -> Line:
    if DONE_ALREADY in (facts.get("rules") or ()):
        return Line(
            "refresh-cw",
            "Not done again",
            code=str(facts.get("operation") or ""),
            sub=_join(str(facts.get("result") or ""), "the agent was told"),
        )
    return Line(
        "x",
        "Denied by policy",
        "danger",
        code=str(facts.get("operation") or ""),
        sub=_join(_rules(facts), str(facts.get("result") or ""), "the agent was told"),
    )


_HELD_BACK = {
    "call_changed": "what is stored of it is not what was judged",
    "arguments_changed": "its arguments are not the ones that were judged",
    "done_already": "it had been done already; the agent got the result of then",
    "policy_denies": "the policy of that moment denies it",
    "policy_not_evaluated": "the policy could not be evaluated",
    "policy_changed": "the policy changed after the approval",
    "not_approved": "its packet is not approved",
    "test_packet": "its packet is a test, which approves nothing",
    "other_kind": "its packet is about something else",
    "used_already": "its approval was used already",
    "before_approval": "the clock stands before its approval",
    "approval_ran_out": "its approval was not used in time",
    "shape_missing": "its packet does not say in which form it was sealed",
    "shape_unknown": "its packet was sealed in another form",
    "page_changed": "its packet changed after it was sealed",
    "decision_on_another_page": "a decision on its packet was made on another page",
    "wrongly_carried": "a vote that its packet carries over does not hold",
}


def _held_back(facts: Facts) -> Line:
    why = str(facts.get("why") or "")
    return Line(
        "refresh-cw" if why == "done_already" else "ban",
        "Not done again" if why == "done_already" else "Held back before it began",
        "" if why == "done_already" else "danger",
        code=str(facts.get("operation") or ""),
        sub=_HELD_BACK.get(why, f"it was {why.replace('_', ' ')}" if why else ""),
    )


def _finished(facts: Facts) -> Line:
    failed = facts.get("result") == "failed"
    code = facts.get("exit_code")
    return Line(
        "square-terminal",
        "Failed" if failed else "Done",
        "danger" if failed else "",
        code=str(facts.get("operation") or ""),
        sub=_join(f"exit {code}" if code is not None else "", _seconds(facts)),
    )


_ANSWERS = {
    "approved": ("check", "Approved", "done"),
    "denied": ("x", "Denied", "danger"),
    "changes_requested": ("undo-2", "Changes requested", "wait"),
    "expired": ("clock", "Expired", "ended"),
    "cancelled": ("square", "Cancelled", "ended"),
}


def _answered(facts: Facts) -> Line:
    result = str(facts.get("result") or "")
    icon, head, tone = _ANSWERS.get(result, ("check", result.capitalize() or "Answered", ""))
    return Line(icon, head, tone, code=str(facts.get("operation") or ""))


def _settled(facts: Facts) -> Line:
    happened = facts.get("result") == "done"
    return Line(
        "circle-question-mark",
        "Settled",
        code=str(facts.get("operation") or ""),
        text="it happened" if happened else "it did not happen",
        sub=f"said by {facts['by']}" if facts.get("by") else "",
    )


def _unclear(facts: Facts) -> Line:
    found = {
        "contradicting": "what is there contradicts itself",
        "unreachable": "the other side could not be asked",
    }
    return Line(
        "circle-question-mark",
        "Looked for, still unknown",
        "wait",
        code=str(facts.get("operation") or ""),
        text=found.get(str(facts.get("result")), ""),
        sub=f"said by {facts['by']}" if facts.get("by") else "",
    )


def _with(facts: Facts) -> str:
    """What the run works in; a narrowed one has nothing to name."""
    provider = facts.get("provider")
    return f"with {provider}" if provider and not facts.get("variant") else ""


def _sandbox(facts: Facts) -> Line:
    return Line(
        "box",
        "Begun without a sandbox" if facts.get("variant") else "Sandbox made",
        text=_with(facts),
        sub=_join(
            f"source {str(facts['source_commit'])[:12]}" if facts.get("source_commit") else "",
            f"manifest {str(facts['manifest_digest'])[:12]}"
            if facts.get("manifest_digest")
            else "",
            _seconds(facts),
        ),
    )


def _resumed(facts: Facts) -> str:
    """The answers to the two questions of a resume."""
    changed = facts.get("changed")
    if changed is None:
        return ""
    if not changed:
        return "the same job, everything still granted"
    return f"a person approved that {', '.join(dict.fromkeys(map(str, changed)))} changed"


def _restored(facts: Facts) -> Line:
    return Line(
        "play",
        "Resumed",
        "live",
        text=_with(facts),
        sub=_join("snapshot restored and equal", _resumed(facts), _seconds(facts)),
    )


def _checkpoint(facts: Facts) -> Line:
    size = facts.get("bytes") or 0
    left = facts.get("left_out") or []
    return Line(
        "camera",
        f"Checkpoint {facts.get('checkpoint', '')} saved",
        text="run state and snapshot, read back and equal",
        sub=_join(
            _size(size),
            f"{len(left)} could not be saved" if left else "",
            f"{facts['excluded']} left out by rule" if facts.get("excluded") else "",
        ),
    )


def _failed(facts: Facts) -> Line:
    safe = facts.get("retry_safe")
    return Line(
        "triangle-alert",
        "Failed",
        "danger",
        text=str(facts.get("result") or ""),
        sub=_join(
            f"boundary {facts['boundary']}" if facts.get("boundary") else "",
            str(facts.get("code") or ""),
            "trying again is safe" if safe else "trying again is not known to be safe",
        ),
    )


def _by(icon: str, head: str, tone: str = "") -> Callable[[Facts], Line]:
    def tell(facts: Facts) -> Line:
        reason = facts.get("reason") or ""
        return Line(
            icon, head, tone, text=f"by {facts['by']}" if facts.get("by") else "", sub=str(reason)
        )

    return tell


def _queued(facts: Facts) -> Line:
    """Only a person asks for a run; after a checkpoint it queues by itself."""
    if facts.get("by"):
        earlier = facts.get("restart_of")
        narrow = facts.get("variant")
        how = "goes on, with tools only, after" if narrow else "a clean restart of"
        again = f"{how} run {earlier}" if earlier else ""
        return Line("play", "Asked for", text=f"by {facts['by']}", sub=again)
    return Line("play", "In the queue again")


def _claimed(facts: Facts) -> Line:
    attempt = facts.get("attempt") or 1
    return Line("play", "A worker took the run", sub="" if attempt == 1 else f"attempt {attempt}")


def _model(facts: Facts) -> Line:
    words = [
        f"{facts[key]:,} tokens {word}"
        for key, word in (("input_tokens", "in"), ("output_tokens", "out"))
        if isinstance(facts.get(key), int)
    ]
    return Line("quote", "Model answered", sub=_join(str(facts.get("model") or ""), *words))


def _said(facts: Facts) -> Line:
    return Line("quote", "Agent", sub="not checked")


def _retry(facts: Facts) -> Line:
    return Line(
        "refresh-cw",
        "The model is asked again",
        "wait",
        sub=_join(
            str(facts.get("reason") or ""), f"in {facts['wait_s']} s" if facts.get("wait_s") else ""
        ),
    )


def _check(facts: Facts) -> Line:
    outcome = str(facts.get("result") or "")
    icon, tone = {
        "passed": ("circle-check", ""),
        "warned": ("triangle-alert", "wait"),
    }.get(outcome, ("triangle-alert", "danger"))
    return Line(
        icon, f"Check {outcome}", tone, code=str(facts.get("operation") or ""), sub=_seconds(facts)
    )


def _packet(icon: str, words: str, tone: str = "") -> Callable[[Facts], Line]:
    def tell(facts: Facts) -> Line:
        return Line(
            icon,
            words.format(facts.get("packet", "")),
            tone,
            text=_join(
                f"by {facts['by']}" if facts.get("by") else "",
                f"in the name of {facts['on_behalf_of']}" if facts.get("on_behalf_of") else "",
            ),
            sub=_join(
                f"on {str(facts['approval'])[:12]}" if facts.get("approval") else "",
                f"for {facts['stage']}" if facts.get("stage") else "",
                f"standing in as {facts['stood_in']}" if facts.get("stood_in") else "",
                f"places may be filled by people {facts['to']} too" if facts.get("to") else "",
                "more people are needed" if facts.get("result") == "open" else "",
                str(facts.get("reason") or ""),
                "self-approved" if facts.get("self_approved") else "",
            ),
        )

    return tell


def _edited(facts: Facts) -> Line:
    return Line(
        "pencil",
        f"Packet {facts.get('packet', '')} edited",
        "wait",
        text=f"by {facts['by']}" if facts.get("by") else "",
        sub=f"packet {facts.get('became', '')} asks in its place",
    )


def _vote_carried(facts: Facts) -> Line:
    return Line(
        "check",
        f"Vote carried over to packet {facts.get('packet', '')}",
        text=f"of {facts['by']}" if facts.get("by") else "",
        sub=f"given on packet {facts.get('from', '')} with the same content",
    )


def _votes_void(facts: Facts) -> Line:
    number = facts.get("votes")
    return Line(
        "ban",
        f"{'One vote' if number == 1 else f'{number} votes'} on packet {facts.get('from', '')} "
        f"{'is' if number == 1 else 'are'} void",
        "ended",
        sub=str(facts.get("reason") or ""),
    )


def _publication(icon: str, head: str, tone: str = "") -> Callable[[Facts], Line]:
    def tell(facts: Facts) -> Line:
        wait = facts.get("seconds")
        return Line(
            icon,
            head,
            tone,
            text=f"by {facts['by']}" if facts.get("by") else "",
            sub=_join(str(facts.get("result") or ""), f"again in {wait} s" if wait else ""),
        )

    return tell


def _checking(facts: Facts) -> Line:
    number = facts.get("candidate")
    return Line(
        "box", f"Candidate {number} taken" if number else "Candidate taken", sub="checks begin"
    )


def _place(facts: Facts) -> str:
    host, port = facts.get("host"), facts.get("port")
    return "other places" if host == "*" else f"{host}:{port}" if host else "what was no request"


_GIVERS = {"contract": "the contract", "agent": "the agent", "person": "a person"}


def _rule(icon: str, head: str, tone: str = "") -> Callable[[Facts], Line]:
    def tell(facts: Facts) -> Line:
        minutes = facts.get("minutes")
        return Line(
            icon,
            head,
            tone,
            code=_place(facts),
            text=f"by {facts['by']}" if facts.get("by") else "",
            sub=_join(f"for {minutes} min" if minutes else "", _rules_if(facts)),
        )

    return tell


def _cut(icon: str, head: str) -> Callable[[Facts], Line]:
    def tell(facts: Facts) -> Line:
        cut = facts.get("connections") or 0
        text = "1 connection was cut" if cut == 1 else f"{cut} connections were cut"
        return Line(icon, head, "ended", code=_place(facts), text=text if cut else "")

    return tell


def _opened(facts: Facts) -> Line:
    giver = _GIVERS.get(str(facts.get("origin")), "")
    return Line(
        "globe", "First used", code=_place(facts), sub=f"a rule of {giver}" if giver else ""
    )


def _blocked(facts: Facts) -> Line:
    times = facts.get("times") or 1
    return Line(
        "ban",
        "Blocked",
        "danger",
        code=_place(facts),
        text="" if times == 1 else f"{times:,} times so far",
        sub=str(facts.get("result") or ""),
    )


def _credential(icon: str, head: str, tone: str = "") -> Callable[[Facts], Line]:
    def tell(facts: Facts) -> Line:
        user = str(facts.get("operation") or "")
        return Line(
            icon,
            head,
            tone,
            code=str(facts.get("credential") or ""),
            text=f"for {user}" if user else "",
            sub=_join(
                ", ".join(map(str, (facts.get("credential_scope") or {}).get("actions", ()))),
                str(facts.get("result") or ""),
                f"by {facts['by']}" if facts.get("by") else "",
            ),
        )

    return tell


_WAYS = {
    "reconnect": "the same step is tried again",
    "repeat": "the same step is done again",
    "review": "people are asked again",
}


def _taken_up(facts: Facts) -> Line:
    seq = facts.get("checkpoint")
    way = _WAYS.get(str(facts.get("way")), "")
    if facts.get("way") == "restore" and seq:
        way = f"checkpoint {seq} is restored"
    return Line("undo", "Taken up again", "live", text=f"by {facts.get('by', '')}", sub=way)


def _handed(facts: Facts) -> Line:
    return Line(
        "users", "Handed to a person", "wait", text=f"{facts.get('to', '')}, by {facts.get('by')}"
    )


def _restarted(facts: Facts) -> Line:
    head = "Gone on with tools only" if facts.get("way") == "narrow" else "Restarted clean"
    return Line("refresh-cw", head, text=f"as run {facts.get('as')}, by {facts.get('by')}")


TELLERS: dict[str, Callable[[Facts], Line]] = {
    "run.queued": _queued,
    "run.claimed": _claimed,
    "run.running": _by("play", "Running", "live"),
    "run.waiting": _by("hourglass", "Waits for a person", "wait"),
    "run.released": _by("undo-2", "Given back to the queue", "wait"),
    "run.collecting": _by("box", "The agent finished"),
    "run.checking": _checking,
    "run.in_review": _by("stamp", "In review", "wait"),
    "run.publishing": _by("git-pull-request-draft", "Publishing", "live"),
    "run.published": _by("git-pull-request-draft", "Published", "done"),
    "run.denied": _by("x", "Publication denied", "danger"),
    "run.expired": _by("clock", "Expired undecided", "ended"),
    "run.cancel_asked": _by("square", "Stop is asked for", "wait"),
    "run.cancelled": _by("square", "Stop is confirmed", "ended"),
    "run.failed": _failed,
    "run.taken_up": _taken_up,
    "run.restarted": _restarted,
    "run.handed_over": _handed,
    "run.handled": _by("check", "The failure is dealt with", "done"),
    "resume.approved": _by("check", "Going on approved", "done"),
    "resume.denied": _by("x", "Going on denied", "danger"),
    "resume.expired": _by("clock", "Going on not decided in time", "ended"),
    "sandbox.started": _sandbox,
    "sandbox.restored": _restored,
    "checkpoint.saved": _checkpoint,
    "call.allowed": _call("circle-check", "Allowed"),
    "call.asked": _call("hourglass", "Asked", "wait"),
    "call.denied": _denied,
    "call.changed": _call("triangle-alert", "Refused, the arguments had changed", "danger"),
    "call.recognised": _call("refresh-cw", "Recognised as done already"),
    "call.edited": _call("pencil", "Edited by a person, its arguments are others", "wait"),
    "call.answered": _answered,
    "call.started": _call("square-terminal", "Begun"),
    "call.finished": _finished,
    "call.held_back": _held_back,
    "call.cancelled": _call("square", "Not made, the run ended", "ended"),
    "call.expired": _call("clock", "Approval not used in time", "ended"),
    "call.unknown": _call("circle-question-mark", "Outcome unknown", "wait"),
    "call.settled": _settled,
    "call.unclear": _unclear,
    "egress.asked": _rule("globe", "Network asked for", "wait"),
    "egress.granted": _rule("globe", "Network opened", "live"),
    "egress.denied": _rule("x", "Network denied", "danger"),
    "egress.refused_by_policy": _rule("x", "Network denied by policy", "danger"),
    "egress.unanswered": _rule("clock", "Network not decided in time", "ended"),
    "egress.revoked": _rule("ban", "Network taken back", "danger"),
    "egress.cut": _cut("ban", "Closed"),
    "egress.expired": _cut("clock", "Network time over"),
    "egress.held_back": _rule("ban", "Network not open, nobody opened it so", "danger"),
    "egress.opened": _opened,
    "egress.refused": _blocked,
    "credential.requested": _credential("key", "Credential asked for", "wait"),
    "credential.approved": _credential("key", "Credential approved", "done"),
    "credential.denied": _credential("x", "Credential denied", "danger"),
    "credential.changes_requested": _credential("undo-2", "Credential not needed so far", "ended"),
    "credential.unanswered": _credential("clock", "Credential not decided in time", "ended"),
    "credential.withdrawn": _credential("undo", "Credential not needed any more", "ended"),
    "credential.minted": _credential("key", "Secret made", "live"),
    "credential.used": _credential("key", "Credential used"),
    "credential.taken_back": _credential("ban", "Credential taken back", "danger"),
    "credential.revoked": _credential("check", "Secret taken back", "done"),
    "credential.revoke_failed": _credential(
        "triangle-alert", "Secret could not be taken back yet", "danger"
    ),
    "credential.ended": _credential("square", "Credential over", "ended"),
    "credential.expired": _credential("clock", "Credential’s time over", "ended"),
    "credential.refused": _credential("ban", "Credential refused", "danger"),
    "credential.lost": _credential(
        "circle-question-mark", "Perhaps a secret was made that nobody holds", "wait"
    ),
    "credential.settled": _credential("circle-check", "Settled what became of a secret", "done"),
    "model.answered": _model,
    "model.retry": _retry,
    "agent.message": _said,
    "check.finished": _check,
    "packet.opened": _packet("stamp", "Packet {} opened", "wait"),
    "packet.approved": _packet("check", "Packet {} approved", "done"),
    "packet.denied": _packet("x", "Packet {} denied", "danger"),
    "packet.changes_requested": _packet("undo-2", "Changes requested on packet {}", "wait"),
    "packet.escalated": _packet("users", "Others may decide packet {} too", "wait"),
    "packet.held": _packet("hourglass", "Packet {} waits before it takes effect", "wait"),
    "packet.undone": _packet("undo-2", "Approval of packet {} undone", "wait"),
    "packet.hold_ended": _packet("triangle-alert", "Approval of packet {} did not last", "danger"),
    "packet.released": _packet("check", "Packet {} takes effect", "done"),
    "packet.expired": _packet("clock", "Packet {} expired", "ended"),
    "packet.withdrawn": _packet("undo", "Packet {} withdrawn", "ended"),
    "packet.edited": _edited,
    "packet.vote_carried": _vote_carried,
    "packet.votes_void": _votes_void,
    "packet.superseded": _packet("refresh-cw", "Packet {} superseded", "ended"),
    "packet.canary": _packet("eye", "Packet {} was a test packet"),
    "packet.cancelled": _packet("square", "Packet {} cancelled", "ended"),
    "publication.started": _publication("send", "Publishing began", "live"),
    "publication.postponed": _publication("clock", "Publishing postponed", "wait"),
    "publication.unknown": _publication("circle-question-mark", "Outcome unknown", "wait"),
    "publication.failed": _publication("triangle-alert", "Not published", "danger"),
    "publication.retry_asked": _publication("refresh-cw", "Trying again is asked for", "wait"),
}


DETAIL_CHARS = 160
# Events that name a call whose arguments are worth a line.
JUDGED = frozenset({"call.allowed", "call.asked", "call.denied", "call.unknown"})
ANSWERED = "model.answered"
SAID = "agent.message"


def detail_of(kind: str, arguments: Facts) -> str:
    """The heart of a call's arguments on one line; what is cut is counted."""
    if kind == "shell":
        text = str(arguments.get("cmd", ""))
    elif kind == "stdin":
        text = str(arguments.get("chars", ""))
    elif kind == "view":
        text = str(arguments.get("path", ""))
    elif kind == "question":
        text = str(arguments.get("question", ""))
    elif kind == "patch":
        files = arguments.get("files") or []
        text = ", ".join(str(f.get("path", f)) if isinstance(f, Mapping) else str(f) for f in files)
    else:
        text = ", ".join(f"{name}: {value}" for name, value in sorted(arguments.items()))
    return shortened(text)


def shortened(text: str) -> str:
    """Text on one line; what is cut is counted."""
    line = " ".join(text.split())
    if len(line) <= DETAIL_CHARS:
        return line
    return f"{line[:DETAIL_CHARS]}… ({len(line) - DETAIL_CHARS:,} characters more)"


def tell(kind: str, facts: Facts) -> Line:
    """The line of one event. A kind without words of its own is shown by its name."""
    teller = TELLERS.get(kind)
    if teller is not None:
        return teller(facts)
    words = kind.replace(".", " ").replace("_", " ")
    operation = facts.get("operation")
    return Line(
        "circle",
        words[:1].upper() + words[1:],
        code=str(operation) if isinstance(operation, str) else "",
        sub=_join(
            str(facts["reason"]) if facts.get("reason") else "",
            str(facts["result"]) if isinstance(facts.get("result"), str) else "",
            _seconds(facts),
        ),
    )
