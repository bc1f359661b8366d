"""What a credential may do, and what one scope has beyond another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

ALL = "*"
"""As a resource: every one there is. Nothing narrower covers it."""

LEVELS = ("read", "write", "admin")
"""The levels of an action such as `contents:write`; each holds those before it."""


@dataclass(frozen=True)
class Scope:
    """What may be done, on which things, and to which hosts the secret may be sent.

    `actions` are permissions such as `contents:write`, OAuth scopes, or words that people chose.
    `resources` are repositories or paths; a source that does not tell things apart has none.
    `audience` holds `host` or `host:port`.
    """

    actions: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    audience: tuple[str, ...] = ()

    def beyond(self, other: Scope) -> list[str]:
        """What this scope has that `other` does not cover, in words; nothing where it is within."""
        more = [f"may do “{each}”" for each in self.actions if not _done(each, other.actions)]
        more += [f"reaches “{each}”" for each in self.resources if not _held(each, other.resources)]
        return more + [
            f"goes to “{each}”" for each in self.audience if not _sent(each, other.audience)
        ]

    def within(self, limit: Scope) -> Scope:
        """The part of this scope that `limit` covers."""
        resources = tuple(each for each in self.resources if _held(each, limit.resources))
        if ALL in self.resources and not resources:
            resources = limit.resources
        return Scope(
            tuple(each for each in self.actions if _done(each, limit.actions)),
            resources,
            tuple(each for each in self.audience if _sent(each, limit.audience)),
        )

    def sent_to(self, address: str) -> bool:
        """Whether the secret may be sent to that URL."""
        parts = urlsplit(address)
        return parts.hostname in self.audience or parts.netloc in self.audience

    def to_data(self) -> dict[str, Any]:
        """Plain JSON data, sorted, so that equal scopes have equal digests."""
        return {
            "actions": sorted(self.actions),
            "resources": sorted(self.resources),
            "audience": sorted(self.audience),
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Iterable[str]]) -> Scope:
        return cls(
            tuple(data.get("actions", ())),
            tuple(data.get("resources", ())),
            tuple(data.get("audience", ())),
        )


def _done(action: str, held: Iterable[str]) -> bool:
    name, _, level = action.rpartition(":")
    if level not in LEVELS:
        return action in held
    higher = LEVELS[LEVELS.index(level) :]
    return any(f"{name}:{each}" in held for each in higher)


def _held(resource: str, held: Iterable[str]) -> bool:
    folded = {each.casefold() for each in held}
    return ALL in folded or resource.casefold() in folded


def _sent(host: str, held: Iterable[str]) -> bool:
    return host in held or host.rpartition(":")[0] in held
