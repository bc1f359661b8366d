"""Which publisher serves which target."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings

from approvals.publishers import IntentRefused, Publisher, TargetUnavailable
from approvals.publishers.git import GitOptions, GitPublisher
from approvals.publishers.github import GitHubOptions, GitHubPublisher
from runs.broker.addresses import is_listed
from runs.contract import Target
from runs.fetching import reach
from runs.gitcmd import SourceRefused

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def publisher_for(target: Target) -> Publisher:
    """A publisher for a contract's target. It keeps nothing between calls.

    Plain http carries a credential in clear and is allowed to loopback only.
    """
    address = target.api or target.url
    git = GitOptions(
        local_roots=(Path(settings.SOURCE_ROOT),),
        allow_http=urlsplit(address).hostname in _LOOPBACK,
        reach=_reach,
    )
    if target.kind == "git":
        return GitPublisher(git)
    if not target.api:
        return GitHubPublisher(GitHubOptions(git=git))
    return GitHubPublisher(
        GitHubOptions(api_url=target.api.rstrip("/"), git_url=git_url_of(target.api), git=git)
    )


def _reach(host: str, port: int) -> str:
    """Where a target's host is connected to: the same question as for a source."""
    try:
        address = reach(host, port)
    except SourceRefused as refused:
        if refused.retry_safe:
            raise TargetUnavailable(target=f"{host}:{port}", reason=refused.text) from refused
        raise IntentRefused(
            reason=f"{host} has a private address",
            remedy="List it in BROKER_PRIVATE_HOSTS if this deployment means it.",
        ) from refused
    if not address and not is_listed(host, port):
        # Nothing is published through a proxy, so none knows the name either.
        raise TargetUnavailable(target=f"{host}:{port}", reason="its name could not be resolved")
    return address


def git_url_of(api: str) -> str:
    """Where a GitHub server serves git: one of one's own beside /api/v3, else without `api.`."""
    parts = urlsplit(api)
    host = parts.netloc if parts.path.strip("/") else parts.netloc.removeprefix("api.")
    return f"{parts.scheme}://{host}"
