"""Fetch a contract's source in the outer runtime, with the credential it may use."""

from __future__ import annotations

import base64
import os
import shutil
import socket
from pathlib import Path

from django.conf import settings

from portal.models import Tenant
from runs import credentials, source
from runs.broker.addresses import is_listed
from runs.contract import Contract
from runs.credentials.grants import SOURCE
from runs.egress.addresses import why_refused
from runs.gitcmd import PROXIES
from runs.models import Run
from runs.source import ResolvedSource, SourceRefused


def repositories_of(tenant: Tenant) -> Path:
    """Where the bare repositories lie that this tenant's contracts may name by path."""
    return Path(settings.SOURCE_ROOT) / tenant.slug


def cache_of(tenant_id: int) -> Path:
    """What was fetched for this tenant. A commit is taken from here without asking its host, so
    nobody may find here what somebody else had the right to fetch."""
    return Path(settings.SOURCE_CACHE_DIR) / str(tenant_id)


def reach(host: str, port: int) -> str:
    """Where a source's host is connected to: a private address only where the deployment lists it.

    The tenant wrote the name, and git connects to the very address that was looked at. Where the
    deployment has a proxy, a name that this machine does not know is left to it. Raises
    `SourceRefused`.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        if is_listed(host, port) or any(os.environ.get(name) for name in PROXIES):
            return ""
        raise SourceRefused(
            "source.unreachable", f"The name {host} could not be resolved.", retry_safe=True
        ) from error
    address = str(found[0][4][0])
    if why_refused(address) and not is_listed(host, port):
        raise SourceRefused(
            "source.private_address",
            f"{host} resolves to {address}, which is not a public address. "
            "List it in BROKER_PRIVATE_HOSTS if this deployment means it.",
        )
    return address


def forget_sources(tenant_id: int) -> None:
    """Remove what this machine fetched for a tenant. Safe to repeat."""
    shutil.rmtree(cache_of(tenant_id), ignore_errors=True)


def fetch_source(run: Run, contract: Contract) -> ResolvedSource:
    """The source at the run's commit, or at the contract's ref for a run that has none yet.

    Raises `SourceRefused`, also for a credential that is missing or meant for other hosts.
    """
    spec, cache = contract.source, cache_of(run.tenant_id)
    here = run.source_commit and source.kept(spec, cache, run.source_commit)
    if here or not (spec.credential and spec.git):
        return _resolved(run, contract, "")
    try:
        with credentials.use(
            run,
            spec.credential,
            address=spec.git,
            consumer=SOURCE,
            actions=("contents:read",),
        ) as secret:
            pair = base64.b64encode(f"x-access-token:{secret.value}".encode()).decode()
            return _resolved(run, contract, f"Basic {pair}")
    except credentials.CredentialRefused as refused:
        raise SourceRefused("source.credential", str(refused)) from refused


def _resolved(run: Run, contract: Contract, authorization: str) -> ResolvedSource:
    return source.resolve(
        contract.source,
        cache_of(run.tenant_id),
        root=repositories_of(run.tenant),
        commit=run.source_commit or None,
        authorization=authorization,
        reach=reach,
    )


def source_head(run: Run, contract: Contract, *, timeout: float) -> str | None:
    """The commit or tag that the contract's ref names at its host now. Raises `SourceRefused`.

    None where that needs a credential: no secret is made only to look.
    """
    if contract.source.credential:
        return None
    return source.head(
        contract.source,
        cache_of(run.tenant_id),
        root=repositories_of(run.tenant),
        timeout=timeout,
        reach=reach,
    )
