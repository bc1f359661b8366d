"""Where secrets come from: kept here, or made elsewhere for one run and taken back after it.

    base         the protocol, what a source gets and gives, how it fails
    static       a secret that is kept here, sealed
    github_app   installation tokens of a GitHub App
    oauth        access tokens for client credentials (RFC 6749 4.4, RFC 7009)
    vault        secrets of Vault or OpenBao: KV version 2, and dynamic ones with a lease
    wire         one request and its answer, strictly

A source knows no framework and no table. What it is asked for and what it gave is written down by
`runs.credentials.grants`.
"""

from __future__ import annotations

from runs.credentials.sources.base import (
    ConfigWrong,
    CredentialSource,
    Minted,
    MintRefused,
    MintUnknown,
    RevokeFailed,
    Secret,
    SourceSpec,
)
from runs.credentials.sources.github_app import GitHubApp
from runs.credentials.sources.oauth import OAuthClient
from runs.credentials.sources.static import StaticSecret
from runs.credentials.sources.vault import VaultDynamic, VaultSecret

__all__ = [
    "SOURCES",
    "ConfigWrong",
    "CredentialSource",
    "MintRefused",
    "MintUnknown",
    "Minted",
    "RevokeFailed",
    "Secret",
    "SourceSpec",
    "source_for",
]

SOURCES: dict[str, type[CredentialSource]] = {
    "static": StaticSecret,
    "github_app": GitHubApp,
    "oauth": OAuthClient,
    "vault_kv": VaultSecret,
    "vault_dynamic": VaultDynamic,
}
"""Every kind of source, by the word that is stored."""


def source_for(kind: str, spec: SourceSpec) -> CredentialSource:
    """The source of one kind. Raises `ConfigWrong`."""
    return SOURCES[kind](spec)
