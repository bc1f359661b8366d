"""Secrets of Vault or OpenBao, over its HTTP API, which both share."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from runs.credentials.scope import Scope
from runs.credentials.sources.base import (
    ConfigWrong,
    Minted,
    MintRefused,
    MintUnknown,
    RevokeFailed,
    Secret,
    SourceSpec,
)
from runs.credentials.sources.wire import Answer, Wire, base_of

_PATH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)*")


class _Vault:
    """What both engines share. The source's secret is a token of Vault's."""

    narrows = False
    _named_by = "path"

    def __init__(self, spec: SourceSpec) -> None:
        self._spec = spec
        self._address = base_of("address", spec.text("address"))
        self._mount = self._path("mount")
        # The secret's path or role: what it is a secret of.
        self._place = f"{self._mount}/{self._path(self._named_by)}"
        self._wire = Wire(spec.private_hosts, (spec.secret,))

    def _path(self, name: str) -> str:
        path = self._spec.text(name).strip("/")
        if not _PATH.fullmatch(path):
            raise ConfigWrong(name, "Write a path of plain names, such as team/service.")
        return path

    def _headers(self) -> dict[str, str]:
        headers = {"X-Vault-Token": self._spec.secret, "X-Vault-Request": "true"}
        if namespace := self._spec.config.get("namespace", "").strip():
            headers["X-Vault-Namespace"] = namespace
        return headers

    def _read(self, path: str) -> Answer:
        return self._wire.mint(
            "Vault", "GET", f"{self._address}/v1/{path}", headers=self._headers()
        )

    def _field(self, data: object, name: str) -> str:
        value = data.get(name) if isinstance(data, dict) else None
        if not isinstance(value, str) or not value:
            raise MintRefused(f"Vault's answer has no field “{name}” that is a text.")
        return value

    def scope(self) -> Scope:
        return Scope(self._spec.actions, (self._place,), self._spec.audience)

    def scope_for(self, address: str, actions: Collection[str]) -> Scope:
        return self.scope()


class VaultSecret(_Vault):
    """A secret that lies in the KV engine, version 2.

    Config: `address`, `mount`, `path`, `field`, `username_field`, `namespace`; the last two may be
    empty. It is read anew for each use and cannot be taken back.
    """

    takes_back = False

    def __init__(self, spec: SourceSpec) -> None:
        super().__init__(spec)
        self._name = spec.text("field")

    def mint(self, wanted: Scope) -> Minted:
        answer = self._read(f"{self._mount}/data/{self._path('path')}")
        outer: Any = answer.data.get("data")
        data = outer.get("data") if isinstance(outer, dict) else None
        user = self._spec.config.get("username_field", "").strip()
        secret = Secret(self._field(data, self._name), self._field(data, user) if user else "")
        return Minted(secret, wanted)

    def revoke(self, secret: Secret, handle: Mapping[str, str]) -> None:
        """It stays where it is; whoever needs it elsewhere goes on."""


class VaultDynamic(_Vault):
    """A secret that Vault makes for a role, with a lease that can be ended.

    Config: `address`, `mount`, `role`, `field` (default `password`), `username_field` (default
    `username`), `namespace`.
    """

    takes_back = True
    _named_by = "role"

    def mint(self, wanted: Scope) -> Minted:
        answer = self._read(f"{self._mount}/creds/{self._path('role')}")
        lease, lives = answer.data.get("lease_id"), answer.data.get("lease_duration")
        if not isinstance(lease, str) or not lease:
            raise MintUnknown("Vault answered without a lease, so the secret cannot be taken back.")
        data, handle = answer.data.get("data"), {"lease_id": lease}
        try:
            value = self._field(data, self._spec.config.get("field") or "password")
        except MintRefused:
            # It was made all the same, and nobody can use it.
            self._give_back(handle)
            raise
        named = self._spec.config.get("username_field", "username").strip()
        user = data.get(named) if isinstance(data, dict) and named else None
        return Minted(
            Secret(value, user if isinstance(user, str) else ""),
            wanted,
            float(lives) if isinstance(lives, int | float) else None,
            handle,
        )

    def _give_back(self, handle: Mapping[str, str]) -> None:
        try:
            self.revoke(Secret(""), handle)
        except RevokeFailed as error:
            raise MintUnknown(f"A secret was made that cannot be used. {error}") from error

    def revoke(self, secret: Secret, handle: Mapping[str, str]) -> None:
        self._wire.revoke(
            "Vault",
            "PUT",
            f"{self._address}/v1/sys/leases/revoke",
            headers=self._headers(),
            body={"lease_id": handle["lease_id"]},
        )
