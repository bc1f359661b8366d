"""Where in a policy's text something stands, and which words of it our schema does not know.

Cedar says what is wrong with a policy and not where. This reads the text once more, as tokens, and
finds the facts, actions and entity types that are misspelt, each with its line and column and with
what may stand there instead. It never accepts anything: what Cedar refuses stays refused.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice, pairwise
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["word", "text", "number", "sign"]

_TOKEN = re.compile(
    r"(?P<blank>\s+|//[^\n]*)"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"
    r'|(?P<text>"(?:[^"\\]|\\.)*")'
    r"|(?P<number>[0-9]+)"
    r"|(?P<sign>::|&&|\|\||==|!=|<=|>=|.)",
    re.DOTALL,
)
_COMPARED = frozenset({"==", "!=", "<", "<=", ">", ">="})
_LITERALS = {"text": "String", "number": "Long"}
EFFECTS = ("permit", "forbid")
FUNCTIONS = ("ip", "decimal", "datetime", "duration")
METHODS = ("contains", "containsAll", "containsAny", "isEmpty")

# Cedar's reader follows nesting by calling itself and has no limit of its own: past the end of the
# stack the process is gone, and not just the request. It met that end at 650 brackets and 12,000
# signs; 1,000 steps of a path after `has` took half a gigabyte.
MOST_BRACKETS = 50
MOST_SIGNS = 2_000
MOST_STEPS = 20
_DEEPER = frozenset({"&&", "||", "+", "-", "*", "!", ".", "(", "[", "{", "if"})


@dataclass(frozen=True, slots=True)
class Token:
    """One word, text, number or sign; `start` counts characters from the text's beginning."""

    kind: Kind
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def value(self) -> str:
        """A text without its quotes."""
        return self.text[1:-1] if self.kind == "text" else self.text


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that cannot stand where it stands. `start` is its place in the text."""

    about: Literal["fact", "action", "type", "value", "attribute"]
    name: str
    start: int
    reason: str
    remedy: str


@dataclass(frozen=True)
class Vocabulary:
    """What the schema knows: facts with their types by action, and the entity types.

    A group of actions has the facts of its members.
    """

    facts: Mapping[str, Mapping[str, str]]
    types: Sequence[str]

    @property
    def types_of_facts(self) -> dict[str, str]:
        return {name: kind for facts in self.facts.values() for name, kind in facts.items()}


def tokens(text: str) -> list[Token]:
    """All but blanks and comments."""
    found = []
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind in ("word", "text", "number", "sign"):
            found.append(Token(kind, match.group(), match.start()))  # type: ignore[arg-type]
    return found


def statements(found: Iterable[Token]) -> list[list[Token]]:
    """The rules of a text, each with the semicolon that ends it."""
    rules: list[list[Token]] = [[]]
    for token in found:
        rules[-1].append(token)
        if token.text == ";":
            rules.append([])
    return rules if rules[-1] else rules[:-1]


def place(text: str, start: int) -> tuple[int, int]:
    """Line and column, both counted from 1."""
    return text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)


def too_deep(text: str) -> int | None:
    """Where a text nests deeper than may be put to Cedar, if it does anywhere."""
    brackets = signs = steps = 0
    before = ""
    for token in tokens(text):
        if token.text == ";":
            signs = 0
        elif token.kind != "text" and token.text in _DEEPER:
            signs += 1
        if token.text in ("(", "[", "{"):
            brackets += 1
        elif token.text in (")", "]", "}"):
            brackets = max(0, brackets - 1)
        if token.text == ".":
            steps += 1
        elif before != ".":
            steps = 0
        if brackets > MOST_BRACKETS or signs > MOST_SIGNS or steps > MOST_STEPS:
            return token.start
        before = token.text
    return None


# --- Words the schema does not know ---------------------------------------------------------------


def faults(rule: Sequence[Token], known: Vocabulary, most: int) -> list[Fault]:
    """The misspelt facts, actions and entity types of one rule, `most` of each, in order."""
    ways = (_types(rule, known), _facts(rule, known), _attributes(rule))
    found = [fault for way in ways for fault in islice(way, most)]
    return sorted(found, key=lambda each: each.start)


def annotation(rule: Sequence[Token], name: str) -> int:
    """Where the annotation of that name stands, or else the rule."""
    for one, other in pairwise(rule):
        if one.text == "@" and other.text == name:
            return one.start
    return rule[0].start


def name_of(rule: Sequence[Token]) -> str:
    """What its `@id` says, or nothing."""
    for at, token in enumerate(rule[:-3]):
        if token.text == "@" and rule[at + 1].text == "id" and rule[at + 3].kind == "text":
            return rule[at + 3].value
    return ""


def _types(rule: Sequence[Token], known: Vocabulary) -> Iterator[Fault]:
    """`Agent::"x"` and `principal is Agent`, with namespaces where somebody wrote them."""
    at = 0
    while at < len(rule):
        first = rule[at]
        after_is = at > 0 and rule[at - 1].text == "is"
        path = _path(rule, at)
        at += max(1, len(path))
        if not path or not (after_is or len(path) > 1):
            continue
        ends_with_id = path[-1].kind == "text"
        name = "".join(each.text for each in path[: -2 if ends_with_id else None])
        if name == "Action" and ends_with_id:
            if _plain(path[-1]) and path[-1].value not in known.facts:
                yield _unknown_action(path[-1], known)
        elif name not in known.types:
            where = f"There is no entity type `{name}`."
            remedy = _instead(name, known.types, "Entity types")
            yield Fault("type", name, first.start, where, remedy)


def _path(rule: Sequence[Token], at: int) -> Sequence[Token]:
    """The tokens of `A`, `A::B` or `A::B::"id"` that begin there."""
    end = at
    if rule[at].kind != "word":
        return ()
    while end + 2 < len(rule) and rule[end + 1].text == "::":
        end += 2
        if rule[end].kind != "word":
            break
    return rule[at : end + 1]


def _unknown_action(token: Token, known: Vocabulary) -> Fault:
    remedy = _instead(token.value, list(known.facts), "Actions")
    return Fault("action", token.value, token.start, f"There is no action {token.text}.", remedy)


def _plain(token: Token) -> bool:
    """Whether it means what it looks like; a text with escapes is left to Cedar."""
    return "\\" not in token.text


def _facts(rule: Sequence[Token], known: Vocabulary) -> Iterator[Fault]:
    types, there = known.types_of_facts, _facts_there(rule, known)
    for at, name in facts_named(rule):
        token, kind = rule[at], types.get(name)
        if not _plain(token):
            continue
        if kind is None:
            remedy = _instead(name, there, "Facts")
            yield Fault("fact", name, token.start, f"There is no fact `{name}`.", remedy)
        elif (literal := _compared_with(rule, at)) is not None and _LITERALS[literal.kind] != kind:
            reason = f"`{name}` is a {kind}, and is compared with {literal.text[:40]}."
            yield Fault("value", name, literal.start, reason, f"Compare it with a {kind}.")


def _facts_there(rule: Sequence[Token], known: Vocabulary) -> list[str]:
    """The facts of the actions a rule names, or all of them where it names none."""
    named = [
        token.value
        for at, token in enumerate(rule)
        if at > 1 and rule[at - 1].text == "::" and rule[at - 2].text == "Action"
    ]
    there = {name for action in named for name in known.facts.get(action, ())}
    return sorted(there or known.types_of_facts)


def _attributes(rule: Sequence[Token]) -> Iterator[Fault]:
    """`principal.x` and `resource has x`: what is known lies in the context alone."""
    for at, token in enumerate(rule[:-3]):
        sign, name, after = rule[at + 1 : at + 4]
        if token.text not in ("principal", "resource", "action") or sign.text not in (".", "has"):
            continue
        if name.kind in ("word", "text") and after.text != "(":
            reason = f"A {token.text} has no attributes, so no `{name.value}`."
            remedy = "Facts lie in the context: context.tool, for example."
            yield Fault("attribute", name.value, name.start, reason, remedy)


def facts_named(rule: Sequence[Token]) -> Iterator[tuple[int, str]]:
    """Places and names of facts: `context.x`, `context["x"]`, `context has x`."""
    for at, token in enumerate(rule[:-2]):
        if token.text != "context" or (at and rule[at - 1].text == "."):
            continue
        sign, name = rule[at + 1], rule[at + 2]
        kinds = {".": ("word",), "has": ("word", "text"), "[": ("text",)}.get(sign.text, ())
        if name.kind in kinds:
            yield at + 2, name.value


def _compared_with(rule: Sequence[Token], at: int) -> Token | None:
    """The literal the fact at this place is compared with, where the rule does just that."""
    if rule[at - 1].text == "has":
        return None
    after = at + (2 if rule[at - 1].text == "[" else 1)
    if after + 1 >= len(rule) or rule[after].text not in _COMPARED:
        return None
    literal = rule[after + 1]
    return literal if literal.kind in _LITERALS else None


def _instead(name: str, known: Sequence[str], kind: str) -> str:
    """What may stand there: the nearest word first, then all of them."""
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    meant = f"Did you mean `{near[0]}`? " if near else ""
    return f"{meant}{kind}: {', '.join(known)}."


# --- Text that is no Cedar ------------------------------------------------------------------------


def grammar_fault(text: str, why: str, parse: Callable[[str], str]) -> tuple[int, str, str]:
    """Place, reason and remedy of a text that Cedar could not read.

    `parse` gives Cedar's complaint about a text, empty where it has none; `why` is that about
    the whole text.
    """
    every = tokens(text)
    for rule in statements(every):
        if any(token.text == '"' for token in rule):
            start = next(token.start for token in rule if token.text == '"')
            return start, "The text that begins here has no end.", 'Close it with ".'
        source = text[rule[0].start : rule[-1].end]
        complaint = parse(source)
        if complaint:
            return _grammar_fault(text, rule, complaint, parse)
    return (every[-1].start if every else 0), f"This is not Cedar: {why}.", "Mend it there."


def _grammar_fault(
    text: str, rule: Sequence[Token], why: str, parse: Callable[[str], str]
) -> tuple[int, str, str]:
    if _unfinished(why):
        remedy = "Close what is open and end the rule with a semicolon."
        return rule[-1].start, "The rule is not finished here.", remedy
    if why.startswith("unexpected token"):
        start = rule[0].start
        # Parsers read from the left: the first beginning that cannot be gone on with ends in
        # the token that does not fit.
        at = bisect_left(
            range(len(rule)),
            True,
            key=lambda last: not _unfinished(parse(text[start : rule[last].end])),
        )
        token = rule[min(at, len(rule) - 1)]
        remedy = "Look for a sign, a bracket or a semicolon that is missing before it."
        return token.start, f"`{token.text[:60]}` cannot stand here.", remedy
    for named, known, kind in (
        (r"invalid policy effect: (\S+)", EFFECTS, "Effects"),
        (r"`(.+)` is not a valid function", FUNCTIONS, "Functions"),
        (r"`(.+)` is not a valid method", METHODS, "Methods"),
    ):
        match = re.fullmatch(named, why)
        token_found = match and next((t for t in rule if t.text == match[1]), None)
        if match and token_found:
            reason = f"`{match[1]}` is not known."
            return token_found.start, reason, _instead(match[1], known, kind)
    match = re.fullmatch(r'expected an entity uid with type `Action` but got `(.+)::".*"`', why)
    if match:
        name = match[1].split("::")[0]
        start = next((t.start for t, u in pairwise(rule) if t.text == name and u.text == "::"), -1)
        if start >= 0:
            reason = f"There is no entity type `{match[1]}` of actions."
            return start, reason, 'Write Action::"…".'
    return rule[0].start, f"This is not Cedar: {why}.", "Mend this rule."


def _unfinished(why: str) -> bool:
    return why.startswith("unexpected end of input")
