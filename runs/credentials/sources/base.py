"""The protocol of a credential source, what it is told, and how it fails."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from runs.credentials.scope import Scope


class ConfigWrong(Exception):
    """A source cannot be made of this. `name` is the field, the text says what to do."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class MintRefused(Exception):
    """No secret was made, and that is certain."""


class MintUnknown(Exception):
    """The request was sent and no answer came: there may be a secret that nobody holds."""


class RevokeFailed(Exception):
    """The secret could not be taken back now. Try again later."""


@dataclass(frozen=True)
class Secret:
    """What a service wants to see. Its repr shows nothing, so that no log and no trace does."""

    value: str = field(repr=False)
    # For services that want a name as well.
    username: str = field(default="", repr=False)


@dataclass(frozen=True)
class Minted:
    """A secret that was made, with what it really may do, whatever was asked for.

    `seconds` is how long it lives by itself, None where the source does not say. `handle` is what
    taking it back needs beside the secret.
    """

    secret: Secret
    scope: Scope
    seconds: float | None = None
    handle: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceSpec:
    """What a source is made of. `secret` is the key it mints with, or the secret itself."""

    config: Mapping[str, str]
    actions: tuple[str, ...] = ()
    audience: tuple[str, ...] = ()
    secret: str = field(default="", repr=False)
    # Hosts with private addresses that this deployment lets the outer runtime reach.
    private_hosts: frozenset[str] = frozenset()

    def text(self, name: str) -> str:
        """A setting that must be there. Raises `ConfigWrong`."""
        value = self.config.get(name, "").strip()
        if not value:
            raise ConfigWrong(name, "This is needed.")
        return value


class CredentialSource(Protocol):
    """One place secrets come from."""

    narrows: bool
    """Whether a secret can be made for less than the whole scope."""

    takes_back: bool
    """Whether a secret can be made worthless before its time."""

    def __init__(self, spec: SourceSpec) -> None:
        """Raises `ConfigWrong`. Asks nobody."""
        ...

    def scope(self) -> Scope:
        """The widest scope a secret of this source can have."""
        ...

    def scope_for(self, address: str, actions: Collection[str]) -> Scope:
        """The scope that a use at `address` needs; with `actions`, no others."""
        ...

    def mint(self, wanted: Scope) -> Minted:
        """Make a secret with at most that scope. Raises `MintRefused` and `MintUnknown`."""
        ...

    def revoke(self, secret: Secret, handle: Mapping[str, str]) -> None:
        """Make a secret worthless; one that is so already is no failure. Raises `RevokeFailed`."""
        ...
