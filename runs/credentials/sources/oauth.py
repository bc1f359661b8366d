"""Access tokens for client credentials: RFC 6749 section 4.4, taken back by RFC 7009."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping
from urllib.parse import quote_plus

from runs.credentials.scope import Scope
from runs.credentials.sources.base import ConfigWrong, Minted, MintUnknown, Secret, SourceSpec
from runs.credentials.sources.wire import Wire, base_of


class OAuthClient:
    """One client of an authorization server. `actions` of the source are its scopes.

    Config: `token_url`, `client`, `revocation_url` (may be empty), `client_auth` (`basic`, which
    is the default, or `post`).
    """

    narrows = True

    def __init__(self, spec: SourceSpec) -> None:
        self._spec = spec
        self._token_url = base_of("token_url", spec.text("token_url"))
        self._client = spec.text("client")
        wanted = spec.config.get("revocation_url", "").strip()
        self._revocation_url = base_of("revocation_url", wanted) if wanted else ""
        self.takes_back = bool(wanted)
        self._auth = spec.config.get("client_auth") or "basic"
        if self._auth not in ("basic", "post"):
            raise ConfigWrong("client_auth", "Write basic or post.")
        for each in spec.actions:
            if not each.isascii() or not each.isprintable() or set(each) & set(' "\\'):
                raise ConfigWrong("actions", f"“{each}” cannot be an OAuth scope.")
        self._wire = Wire(spec.private_hosts, (spec.secret,))

    def scope(self) -> Scope:
        return Scope(self._spec.actions, (), self._spec.audience)

    def scope_for(self, address: str, actions: Collection[str]) -> Scope:
        whole = self.scope()
        return Scope(tuple(actions), (), whole.audience).within(whole) if actions else whole

    def mint(self, wanted: Scope) -> Minted:
        form = {"grant_type": "client_credentials"}
        if wanted.actions:
            form["scope"] = " ".join(wanted.actions)
        answer = self._wire.mint(
            "The authorization server",
            "POST",
            self._token_url,
            headers=self._headers(),
            form={**form, **self._in_form()},
        )
        token, kind = answer.data.get("access_token"), answer.data.get("token_type")
        if not isinstance(token, str) or not token:
            raise MintUnknown("The authorization server answered without a token.")
        if str(kind).casefold() != "bearer":
            raise MintUnknown("The authorization server gave a token of another type than bearer.")
        said = answer.data.get("scope")
        # RFC 6749 section 5.1: left out where it is the one that was asked for.
        given = tuple(said.split()) if isinstance(said, str) else wanted.actions
        lives = answer.data.get("expires_in")
        return Minted(
            Secret(token),
            Scope(given, (), wanted.audience),
            float(lives) if isinstance(lives, int | float) else None,
        )

    def revoke(self, secret: Secret, handle: Mapping[str, str]) -> None:
        form = {"token": secret.value, "token_type_hint": "access_token"}
        self._wire.revoke(
            "The authorization server",
            "POST",
            self._revocation_url,
            headers=self._headers(),
            form={**form, **self._in_form()},
        )

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if self._auth == "basic":
            # Both are form-encoded first: RFC 6749 section 2.3.1.
            pair = f"{quote_plus(self._client)}:{quote_plus(self._spec.secret)}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return headers

    def _in_form(self) -> dict[str, str]:
        if self._auth == "basic":
            return {}
        return {"client_id": self._client, "client_secret": self._spec.secret}
