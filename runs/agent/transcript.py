"""A recorded transcript: what a model said, kept as a file and played again without a model.

The pages that show a run driven by one say so: they show `label` and the word *recorded*.

# The file, version 1

UTF-8 JSON, one object:

    {
      "format": "imprimatur-transcript",
      "version": 1,
      "label": "Repair of the slug function",       shown on the pages
      "model": "the model that was recorded",       shown, and named in usage
      "agent": "repairer",                          must equal the contract's agent name
      "turns": [TURN, ...],
      "after_last": "Nothing more was recorded."    optional
    }

A TURN answers one message from a person: the first one the task itself, the second one the first
request for changes, and so on. When a message comes that no turn is left for, the agent answers
`after_last`, or the run fails when there is none.

    TURN = {"steps": [STEP | CHOICE, ...]}

A STEP is one response of the model. The last step of a turn should only speak: a turn ends when
the agent calls nothing.

    STEP = {
      "expects": [EXPECTATION, ...],                optional: else the run fails, and says so
      "output":  [ITEM, ...],
      "usage":   {"input_tokens": 900, "cached_tokens": 0, "output_tokens": 60}    optional
    }

A CHOICE takes the first branch whose `when` holds, so that one transcript can go on both after an
approval and after a denial. A branch without `when` always holds. The steps after a choice follow
whichever branch was taken.

    CHOICE = {"choose": [{"when": [EXPECTATION, ...], "steps": [...]}, ...]}

An EXPECTATION looks at the output the agent got for an earlier call:

    EXPECTATION = {"call": "c1", "contains": "1 failed"} | {"call": "c1", "lacks": "Traceback"}

ITEMs, in the order the model wrote them:

    {"type": "message", "text": TEXT}
    {"type": "call", "id": "c1", "tool": "exec_command", "arguments": {"cmd": "ls"}}
    {"type": "call", "id": "c2", "tool": "apply_patch", "arguments": {"patch": TEXT}}
    {"type": "call", "id": "c3", "tool": "exec_command", "raw": "{not even JSON"}

`raw` gives the arguments exactly as a model would have written them, malformed ones included.
Ids of calls are unique in the whole file. TEXT is a string or a list of lines. Two spellings
inside `arguments` are filled in while playing: `{"$session_of": "c1"}` is the session id of the
process that call c1 left running, `{"$output_of": "c1"}` the whole output of call c1.

# Playing

Where to go on is read from the conversation itself and never from memory: the player is given
all that was said, matches it with the file from the start, and answers with the first step that
has no counterpart yet. So a run that was paused in one process goes on in another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

FORMAT = "imprimatur-transcript"
VERSION = 1
MAX_BYTES = 4 * 1024 * 1024

_SESSION_LINE = re.compile(r"^Process running with session ID (\d+)$", re.MULTILINE)


class TranscriptRefused(Exception):
    """The file is not a transcript. Each problem is `where: what is wrong and what is wanted`."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class TranscriptMismatch(Exception):
    """What happens is not what was recorded; the transcript cannot go on from here."""


@dataclass(frozen=True)
class Expectation:
    """Something about the output of an earlier call that must hold."""

    call: str
    text: str
    present: bool

    def holds(self, outputs: Mapping[str, str]) -> bool:
        """A call without an output fulfils nothing."""
        output = outputs.get(self.call)
        return output is not None and (self.text in output) is self.present

    def __str__(self) -> str:
        verb = "contain" if self.present else "lack"
        return f"the output of call {self.call!r} should {verb} {self.text!r}"


@dataclass(frozen=True)
class Usage:
    """Tokens of one response."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True)
class Message:
    """Text the model says."""

    text: str


@dataclass(frozen=True)
class Call:
    """A tool the model calls. Exactly one of `arguments` and `raw` is given."""

    id: str
    tool: str
    arguments: Mapping[str, Any] | None
    raw: str | None

    def written(self, outputs: Mapping[str, str]) -> dict[str, Any]:
        """The arguments with what earlier calls left filled in."""
        filled = _fill(dict(self.arguments or {}), outputs)
        assert isinstance(filled, dict)  # noqa: S101 - a dict stays one
        return filled


Item: TypeAlias = Message | Call


@dataclass(frozen=True)
class Step:
    """One response of the model."""

    where: str
    output: tuple[Item, ...]
    expects: tuple[Expectation, ...] = ()
    usage: Usage = Usage()


@dataclass(frozen=True)
class Branch:
    """One way to go on."""

    when: tuple[Expectation, ...]
    steps: tuple[Step | Choice, ...]


@dataclass(frozen=True)
class Choice:
    """A place where the way depends on what happened."""

    where: str
    branches: tuple[Branch, ...]


@dataclass(frozen=True)
class Transcript:
    """A whole file, checked."""

    label: str
    model: str
    agent: str
    turns: tuple[tuple[Step | Choice, ...], ...]
    after_last: str | None = None

    def tools(self) -> frozenset[str]:
        """Names of all tools that any step calls."""
        return frozenset(
            item.tool
            for turn in self.turns
            for step in _all_steps(turn)
            for item in step.output
            if isinstance(item, Call)
        )


# ---------------------------------------------------------------------------------------------
# Where to go on
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """One thing of the conversation so far, as the player sees it."""

    kind: Literal["person", "message", "call", "output"]
    id: str = ""
    text: str = ""


def next_step(transcript: Transcript, conversation: Sequence[Said]) -> Step:
    """The response to give now.

    Raises `TranscriptMismatch` when the conversation is not one this transcript made, when an
    expectation does not hold, and when nothing is left to say.
    """
    turns: list[list[Said]] = []
    for said in conversation:
        if said.kind == "person":
            turns.append([])
        elif not turns:
            raise TranscriptMismatch("The conversation does not begin with a message of a person.")
        else:
            turns[-1].append(said)
    if not turns:
        raise TranscriptMismatch("The conversation holds no message of a person.")
    outputs: dict[str, str] = {}
    step: Step | None = None
    for number, turn in enumerate(turns):
        step = _walk(transcript, number, turn, outputs, last=number == len(turns) - 1)
    if step is None:
        raise TranscriptMismatch(f"Turn {len(turns)} of the transcript is over.")
    return step


def _walk(
    transcript: Transcript,
    number: int,
    conversation: Sequence[Said],
    outputs: dict[str, str],
    *,
    last: bool,
) -> Step | None:
    """Match one turn's conversation. The step that has no counterpart yet, if there is one."""
    made = [said for said in conversation if said.kind in ("message", "call")]
    outputs.update({said.id: said.text for said in conversation if said.kind == "output"})
    at = 0
    for step in _steps_taken(_turn(transcript, number), outputs):
        if at == len(made):
            if not last:
                return None
            broken = [str(wanted) for wanted in step.expects if not wanted.holds(outputs)]
            if broken:
                raise TranscriptMismatch(_mismatch(step, broken, outputs))
            return step
        for item in step.output:
            if at == len(made):
                raise TranscriptMismatch(f"{step.where}: only a part of this step was said.")
            _compare(step, item, made[at])
            at += 1
    if at < len(made):
        raise TranscriptMismatch(
            f"turns[{number}]: the conversation says more than was recorded, from "
            f"{made[at].kind} {made[at].id!r} on."
        )
    if last:
        raise TranscriptMismatch(
            f"turns[{number}]: the agent is asked to go on, but nothing more was recorded. "
            "The last step of a turn must not call a tool."
        )
    return None


def _turn(transcript: Transcript, number: int) -> tuple[Step | Choice, ...]:
    if number < len(transcript.turns):
        return transcript.turns[number]
    if transcript.after_last is None:
        raise TranscriptMismatch(
            f"Message {number + 1} of a person came, but the transcript has "
            f"{len(transcript.turns)} turns and no 'after_last'."
        )
    return (Step(where="after_last", output=(Message(transcript.after_last),)),)


def _steps_taken(steps: Sequence[Step | Choice], outputs: Mapping[str, str]) -> Iterator[Step]:
    for entry in steps:
        if isinstance(entry, Step):
            yield entry
            continue
        for branch in entry.branches:
            if all(wanted.holds(outputs) for wanted in branch.when):
                yield from _steps_taken(branch.steps, outputs)
                break
        else:
            raise TranscriptMismatch(f"{entry.where}: no branch holds. {_shown(outputs)}")


def _compare(step: Step, item: Item, said: Said) -> None:
    if isinstance(item, Call):
        if said.kind != "call" or said.id != item.id:
            raise TranscriptMismatch(
                f"{step.where}: call {item.id!r} was recorded, but the conversation has "
                f"{said.kind} {said.id!r}. Was it made by another transcript?"
            )
    elif said.kind != "message":
        raise TranscriptMismatch(
            f"{step.where}: a message was recorded, but the conversation has "
            f"{said.kind} {said.id!r}. Was it made by another transcript?"
        )


def _mismatch(step: Step, broken: Sequence[str], outputs: Mapping[str, str]) -> str:
    return f"{step.where}: {'; '.join(broken)}. {_shown(outputs)}"


def _shown(outputs: Mapping[str, str]) -> str:
    """The last output, shortened: mostly the one that surprises."""
    if not outputs:
        return "No call has an output yet."
    call, text = list(outputs.items())[-1]
    shortened = text if len(text) <= 300 else f"{text[:300]}…"
    return f"The last output, of call {call!r}, was: {shortened!r}"


def _fill(value: Any, outputs: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        if set(value) == {"$session_of"}:
            found = _SESSION_LINE.search(outputs.get(value["$session_of"], ""))
            if found is None:
                raise TranscriptMismatch(
                    f"Call {value['$session_of']!r} left no process running, but a later call "
                    "wants its session id."
                )
            return int(found.group(1))
        if set(value) == {"$output_of"}:
            if value["$output_of"] not in outputs:
                raise TranscriptMismatch(f"Call {value['$output_of']!r} has no output yet.")
            return outputs[value["$output_of"]]
        return {key: _fill(inner, outputs) for key, inner in value.items()}
    if isinstance(value, list):
        return [_fill(inner, outputs) for inner in value]
    return value


def outputs_of(conversation: Sequence[Said]) -> dict[str, str]:
    """The output of each call so far, by call id."""
    return {said.id: said.text for said in conversation if said.kind == "output"}


# ---------------------------------------------------------------------------------------------
# Reading the file
# ---------------------------------------------------------------------------------------------


def load(data: bytes) -> Transcript:
    """Read a transcript. Raises `TranscriptRefused` with all problems found."""
    if len(data) > MAX_BYTES:
        raise TranscriptRefused([f"the file: larger than {MAX_BYTES} bytes"])
    try:
        document = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise TranscriptRefused([f"byte {error.start}: not UTF-8"]) from error
    except json.JSONDecodeError as error:
        raise TranscriptRefused([f"line {error.lineno}: not JSON: {error.msg}"]) from error
    except RecursionError as error:
        raise TranscriptRefused(["the file: nested too deeply"]) from error
    reader = _Reader()
    transcript = reader.transcript(document)
    if reader.problems:
        raise TranscriptRefused(reader.problems)
    return transcript


@dataclass
class _Reader:
    """Reads leniently and collects what is wrong, so that one look shows all of it."""

    problems: list[str] = field(default_factory=list)
    calls: set[str] = field(default_factory=set)

    def transcript(self, document: Any) -> Transcript:
        top = self.object(
            document,
            "the file",
            required={"format", "version", "label", "model", "agent", "turns"},
            optional={"after_last"},
        )
        if top.get("format") != FORMAT:
            self.problem("format", f"must be {FORMAT!r}")
        if top.get("version") != VERSION:
            self.problem("version", f"must be {VERSION}, the only version this program reads")
        turns = self.array(top.get("turns"), "turns")
        return Transcript(
            label=self.string(top.get("label"), "label"),
            model=self.string(top.get("model"), "model"),
            agent=self.string(top.get("agent"), "agent"),
            turns=tuple(self.turn(turn, f"turns[{n}]") for n, turn in enumerate(turns)),
            after_last=None
            if top.get("after_last") is None
            else self.text(top["after_last"], "after_last"),
        )

    def turn(self, value: Any, where: str) -> tuple[Step | Choice, ...]:
        turn = self.object(value, where, required={"steps"}, optional={"note"})
        steps = self.steps(turn.get("steps"), f"{where}.steps")
        if steps and isinstance(steps[-1], Step):
            called = [item.id for item in steps[-1].output if isinstance(item, Call)]
            if called:
                self.problem(
                    steps[-1].where,
                    f"the last step of a turn calls {called[0]!r}; end with one that only speaks",
                )
        return steps

    def steps(self, value: Any, where: str) -> tuple[Step | Choice, ...]:
        entries = self.array(value, where)
        return tuple(self.entry(entry, f"{where}[{n}]") for n, entry in enumerate(entries))

    def entry(self, value: Any, where: str) -> Step | Choice:
        if isinstance(value, dict) and "choose" in value:
            choice = self.object(value, where, required={"choose"}, optional={"note"})
            branches = self.array(choice.get("choose"), f"{where}.choose")
            return Choice(
                where=where,
                branches=tuple(
                    self.branch(branch, f"{where}.choose[{n}]") for n, branch in enumerate(branches)
                ),
            )
        step = self.object(value, where, required={"output"}, optional={"expects", "usage", "note"})
        expects = self.expectations(step.get("expects", []), f"{where}.expects")
        items = self.array(step.get("output"), f"{where}.output")
        return Step(
            where=where,
            output=tuple(self.item(item, f"{where}.output[{n}]") for n, item in enumerate(items)),
            expects=expects,
            usage=self.usage(step.get("usage", {}), f"{where}.usage"),
        )

    def branch(self, value: Any, where: str) -> Branch:
        branch = self.object(value, where, required={"steps"}, optional={"when", "note"})
        when = self.expectations(branch.get("when", []), f"{where}.when")
        steps = branch.get("steps")
        return Branch(when=when, steps=() if steps == [] else self.steps(steps, f"{where}.steps"))

    def expectations(self, value: Any, where: str) -> tuple[Expectation, ...]:
        if value == []:
            return ()
        entries = self.array(value, where)
        return tuple(self.expectation(entry, f"{where}[{n}]") for n, entry in enumerate(entries))

    def expectation(self, value: Any, where: str) -> Expectation:
        wanted = self.object(value, where, required={"call"}, optional={"contains", "lacks"})
        if ("contains" in wanted) == ("lacks" in wanted):
            self.problem(where, "give exactly one of 'contains' and 'lacks'")
        call = self.string(wanted.get("call"), f"{where}.call")
        if call and call not in self.calls:
            self.problem(f"{where}.call", f"no earlier step makes a call {call!r}")
        present = "contains" in wanted
        text = wanted.get("contains" if present else "lacks")
        return Expectation(call=call, text=self.string(text, where), present=present)

    def item(self, value: Any, where: str) -> Item:
        kind = value.get("type") if isinstance(value, dict) else None
        if kind == "message":
            message = self.object(value, where, required={"type", "text"}, optional=set())
            return Message(text=self.text(message.get("text"), f"{where}.text"))
        if kind != "call":
            self.problem(f"{where}.type", "must be 'message' or 'call'")
            return Message(text="")
        call = self.object(
            value, where, required={"type", "id", "tool"}, optional={"arguments", "raw"}
        )
        if ("arguments" in call) == ("raw" in call):
            self.problem(where, "give exactly one of 'arguments' and 'raw'")
        identifier = self.string(call.get("id"), f"{where}.id")
        if identifier in self.calls:
            self.problem(f"{where}.id", f"{identifier!r} is used twice; ids of calls are unique")
        self.calls.add(identifier)
        tool = self.string(call.get("tool"), f"{where}.tool")
        return Call(
            id=identifier,
            tool=tool,
            arguments=self.arguments(call["arguments"], tool, f"{where}.arguments")
            if "arguments" in call
            else None,
            raw=self.string(call["raw"], f"{where}.raw", empty=True) if "raw" in call else None,
        )

    def arguments(self, value: Any, tool: str, where: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self.problem(where, "must be an object")
            return {}
        if tool == "apply_patch" and "patch" in value:
            return {**value, "patch": self.text(value["patch"], f"{where}.patch")}
        return value

    def usage(self, value: Any, where: str) -> Usage:
        names = {"input_tokens", "cached_tokens", "output_tokens"}
        usage = self.object(value, where, required=set(), optional=names)
        for name in sorted(set(usage) & names):
            number = usage[name]
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                self.problem(f"{where}.{name}", "must be a whole number, 0 or more")
                usage = {**usage, name: 0}
        return Usage(**{name: usage[name] for name in names & set(usage)})

    def object(
        self, value: Any, where: str, *, required: set[str], optional: set[str]
    ) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self.problem(where, "must be an object")
            return {}
        for name in sorted(required - set(value)):
            self.problem(where, f"lacks {name!r}")
        for name in sorted(set(value) - required - optional):
            known = ", ".join(sorted(required | optional))
            self.problem(where, f"has an unknown member {name!r}; known are {known}")
        return value

    def array(self, value: Any, where: str) -> Sequence[Any]:
        if not isinstance(value, list) or not value:
            self.problem(where, "must be a list with at least one entry")
            return []
        return value

    def string(self, value: Any, where: str, *, empty: bool = False) -> str:
        if not isinstance(value, str) or (not value and not empty):
            self.problem(where, "must be a text" if empty else "must be a text that is not empty")
            return ""
        return value

    def text(self, value: Any, where: str) -> str:
        if isinstance(value, list) and all(isinstance(line, str) for line in value):
            value = "\n".join(value)
        return self.string(value, where)

    def problem(self, where: str, what: str) -> None:
        self.problems.append(f"{where}: {what}")


def _all_steps(entries: Sequence[Step | Choice]) -> Iterator[Step]:
    for entry in entries:
        if isinstance(entry, Step):
            yield entry
        else:
            for branch in entry.branches:
                yield from _all_steps(branch.steps)
