"""Installation tokens of a GitHub App, for some repositories and some permissions.

The App's private key signs a short JWT (RS256), the JWT asks for the token, and the token takes
itself back. `actions` of the source are permissions, such as `contents:write`; GitHub adds
`metadata:read` to every token, so it belongs to every scope.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from urllib.parse import urlsplit

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from runs.credentials.scope import ALL, LEVELS, Scope
from runs.credentials.sources.base import (
    ConfigWrong,
    Minted,
    MintRefused,
    MintUnknown,
    Secret,
    SourceSpec,
)
from runs.credentials.sources.wire import Wire, base_of

ALWAYS = "metadata:read"
_REPOSITORY = re.compile(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+")
# The parts of an address that name a repository: of the API, or of git.
_IN_ADDRESS = re.compile(
    r"^(?:/api/v3)?(?:/repos)?/([A-Za-z0-9._-]+/[A-Za-z0-9._-]+?)(?:\.git)?(?:/|$)"
)


class GitHubApp:
    """One installation of a GitHub App.

    Config: `app` (its id or client id), `installation`, `repositories` (`owner/name` separated by
    blanks, or `*`), `api` (default https://api.github.com).
    """

    narrows = True
    takes_back = True

    def __init__(self, spec: SourceSpec) -> None:
        self._spec = spec
        self._app = spec.text("app")
        self._installation = spec.text("installation")
        if not self._installation.isdigit():
            raise ConfigWrong("installation", "Give the number of the installation.")
        self._api = base_of("api", spec.config.get("api") or "https://api.github.com")
        self._repositories = tuple(sorted(set(spec.text("repositories").split())))
        for each in self._repositories:
            if each != ALL and not _REPOSITORY.fullmatch(each):
                raise ConfigWrong("repositories", f"“{each}” is no repository: write owner/name.")
        if ALL in self._repositories and len(self._repositories) > 1:
            raise ConfigWrong("repositories", "Give either * or a list.")
        if len({each.partition("/")[0].casefold() for each in self._repositories}) > 1:
            raise ConfigWrong("repositories", "An installation belongs to one owner.")
        for each in spec.actions:
            name, _, level = each.partition(":")
            if level not in LEVELS or not re.fullmatch(r"[a-z][a-z_]*", name):
                raise ConfigWrong(
                    "actions", f"“{each}” is no permission: write it like contents:write."
                )
        if not spec.actions:
            raise ConfigWrong("actions", "Name the permissions, such as contents:write.")
        self._wire = Wire(spec.private_hosts, (spec.secret,))

    def scope(self) -> Scope:
        actions = tuple(sorted({*self._spec.actions, ALWAYS}))
        return Scope(actions, self._repositories, self._spec.audience)

    def scope_for(self, address: str, actions: Collection[str]) -> Scope:
        whole = self.scope()
        wanted = (*actions, ALWAYS) if actions else whole.actions
        named = _IN_ADDRESS.match(urlsplit(address).path)
        resources = (named.group(1),) if named else whole.resources
        return Scope(tuple(dict.fromkeys(wanted)), resources, whole.audience).within(whole)

    def mint(self, wanted: Scope) -> Minted:
        if not wanted.resources or set(wanted.actions) <= {ALWAYS}:
            # GitHub takes what is left out for everything there is.
            raise MintRefused("Nothing of what was asked for belongs to the App.")
        body: dict[str, object] = {
            "permissions": dict(each.split(":", 1) for each in wanted.actions)
        }
        if ALL not in wanted.resources:
            body["repositories"] = [each.partition("/")[2] for each in wanted.resources]
        answer = self._wire.mint(
            "GitHub",
            "POST",
            f"{self._api}/app/installations/{self._installation}/access_tokens",
            headers=self._headers(self._signed()),
            body=body,
        )
        data = answer.data
        token, ends = data.get("token"), data.get("expires_at")
        if not isinstance(token, str) or not token:
            raise MintUnknown("GitHub answered without a token.")
        return Minted(Secret(token), _really(data, wanted), _seconds(ends))

    def revoke(self, secret: Secret, handle: Mapping[str, str]) -> None:
        self._wire.revoke(
            "GitHub",
            "DELETE",
            f"{self._api}/installation/token",
            401,  # it is not valid any more
            headers=self._headers(secret.value),
        )

    def _headers(self, token: str) -> dict[str, str]:
        return {
            "Authorization": f"Bearer {token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
        }

    def _signed(self) -> str:
        """A JWT that says that this is the App, for ten minutes at most."""
        now = int(time.time())
        # A minute back, because GitHub refuses what comes from the future.
        claims = {"iat": now - 60, "exp": now + 540, "iss": self._app}
        head = {"alg": "RS256", "typ": "JWT"}
        signed = ".".join(_base64(json.dumps(part).encode()) for part in (head, claims))
        signature = key_of(self._spec.secret).sign(
            signed.encode(), padding.PKCS1v15(), hashes.SHA256()
        )
        return f"{signed}.{_base64(signature)}"


def key_of(pem: str) -> RSAPrivateKey:
    """The private key of an App. Raises `ConfigWrong`."""
    try:
        key = load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError) as error:
        raise ConfigWrong("secret", "This is no private key in PEM form.") from error
    if not isinstance(key, RSAPrivateKey):
        raise ConfigWrong("secret", "A GitHub App signs with an RSA key.")
    return key


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _really(data: Mapping[str, object], wanted: Scope) -> Scope:
    """What the answer says the token may do; what it does not say counts as everything."""
    permissions, chosen = data.get("permissions"), data.get("repositories")
    actions = permissions.items() if isinstance(permissions, dict) else ()
    resources: tuple[str, ...] = (ALL,)
    if data.get("repository_selection") != "all" and isinstance(chosen, list):
        names = (each.get("full_name") if isinstance(each, dict) else None for each in chosen)
        resources = tuple(sorted(str(name or ALL) for name in names))
    return Scope(
        tuple(sorted(f"{name}:{level}" for name, level in actions)), resources, wanted.audience
    )


def _seconds(ends: object) -> float | None:
    try:
        then = datetime.fromisoformat(str(ends).replace("Z", "+00:00"))
    except ValueError:
        return None
    return (then - datetime.now(UTC)).total_seconds() if then.tzinfo else None
