"""How brokered calls end, and what of an answer crosses to the sandbox."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from portal.canonical import canonical
from portal.redact import MASK, printable

MAX_DEPTH = 50


class BrokerRefused(Exception):
    """Nothing was sent. The text says why and is meant for the agent and the run page."""


class BrokerUnknown(Exception):
    """Something was sent and no answer came: it may have had its effect."""


class BrokerFailed(Exception):
    """Something was sent that changes nothing, and no usable answer came."""


@dataclass(frozen=True)
class Plan:
    """One call as it will be carried out, without its credential.

    `target` is where it goes; permissions are compared with it. `address` is the URL that a
    credential would be sent to. `page` is the rest of what a packet shows of the call and its
    digest covers.
    """

    target: str
    address: str
    page: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """What came of a call that was carried out.

    `words` go to the agent, secrets not yet taken out. `receipt` holds no payload: digests and
    counts, stored with the call and in its last event.
    """

    ok: bool
    words: str
    receipt: Mapping[str, Any] = field(default_factory=dict)


def too_deep(value: Any) -> bool:
    """Whether lists and objects are nested deeper than everything that reads them goes."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [inner for each in level for inner in _inside(each)]
    return bool(level)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def listed(body: Any, wanted: Iterable[str], masked: Sequence[str]) -> dict[str, Any]:
    """Only the fields of `body` that the contract lists, those in `masked` hidden.

    A dotted name goes into objects, and into every entry of lists on the way.
    """
    for name in masked:
        body = _hidden(body, name.split("."))
    found = {name: _taken(body, name.split(".")) for name in wanted}
    return {name: value for name, value in found.items() if value is not None}


def _taken(value: Any, path: list[str]) -> Any:
    if not path:
        return value
    if isinstance(value, list):
        taken = [_taken(each, path) for each in value]
        return taken if any(each is not None for each in taken) else None
    return _taken(value.get(path[0]), path[1:]) if isinstance(value, dict) else None


def _hidden(value: Any, path: list[str]) -> Any:
    if not path:
        return MASK
    if isinstance(value, list):
        return [_hidden(each, path) for each in value]
    if not isinstance(value, dict) or path[0] not in value:
        return value
    return {**value, path[0]: _hidden(value[path[0]], path[1:])}


def written(answer: Mapping[str, Any]) -> str:
    """The answer in its one spelling, so that its digest can be computed again from the text."""
    try:
        return canonical(dict(answer)).decode()
    except ValueError:
        # A number that no reader of JSON is sure to read alike, or half a character.
        return printable(json.dumps(answer, ensure_ascii=False, sort_keys=True))
