"""Which publisher serves which target."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings

from approvals.publishers import Publisher
from approvals.publishers.git import GitOptions, GitPublisher
from approvals.publishers.github import GitHubOptions, GitHubPublisher
from runs.contract import Target

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def publisher_for(target: Target) -> Publisher:
    """A publisher for a contract's target. It keeps nothing between calls.

    Plain http carries a credential in clear and is allowed to loopback only.
    """
    address = target.api or target.url
    git = GitOptions(
        local_roots=(Path(settings.SOURCE_ROOT),),
        allow_http=urlsplit(address).hostname in _LOOPBACK,
    )
    if target.kind == "git":
        return GitPublisher(git)
    if not target.api:
        return GitHubPublisher(GitHubOptions(git=git))
    return GitHubPublisher(
        GitHubOptions(api_url=target.api.rstrip("/"), git_url=git_url_of(target.api), git=git)
    )


def git_url_of(api: str) -> str:
    """Where a GitHub server serves git: one of one's own beside /api/v3, else without `api.`."""
    parts = urlsplit(api)
    host = parts.netloc if parts.path.strip("/") else parts.netloc.removeprefix("api.")
    return f"{parts.scheme}://{host}"
