"""A secret that is kept here, sealed. What it may do elsewhere is what people say it may."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from runs.credentials.scope import Scope
from runs.credentials.sources.base import Minted, Secret, SourceSpec


class StaticSecret:
    """The secret itself. Nothing is made for a use, so nothing can be narrowed or taken back."""

    narrows = False
    takes_back = False

    def __init__(self, spec: SourceSpec) -> None:
        self._spec = spec

    def scope(self) -> Scope:
        return Scope(self._spec.actions, (), self._spec.audience)

    def scope_for(self, address: str, actions: Collection[str]) -> Scope:
        return self.scope()

    def mint(self, wanted: Scope) -> Minted:
        return Minted(Secret(self._spec.secret, self._spec.config.get("username", "")), wanted)

    def revoke(self, secret: Secret, handle: Mapping[str, str]) -> None:
        """There is nobody to ask."""
