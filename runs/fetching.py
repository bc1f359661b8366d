"""Fetch a contract's source in the outer runtime, with the credential it may use."""

from __future__ import annotations

import base64
from pathlib import Path

from django.conf import settings

from runs import credentials, source
from runs.contract import Contract
from runs.credentials.grants import SOURCE
from runs.models import Run
from runs.source import ResolvedSource, SourceRefused


def fetch_source(run: Run, contract: Contract) -> ResolvedSource:
    """The source at the run's commit, or at the contract's ref for a run that has none yet.

    Raises `SourceRefused`, also for a credential that is missing or meant for other hosts.
    """
    spec, cache = contract.source, Path(settings.SOURCE_CACHE_DIR)
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
        Path(settings.SOURCE_CACHE_DIR),
        root=Path(settings.SOURCE_ROOT),
        commit=run.source_commit or None,
        authorization=authorization,
    )


def source_head(run: Run, contract: Contract, *, timeout: float) -> str | None:
    """The commit or tag that the contract's ref names at its host now. Raises `SourceRefused`.

    None where that needs a credential: no secret is made only to look.
    """
    if contract.source.credential:
        return None
    return source.head(
        contract.source,
        Path(settings.SOURCE_CACHE_DIR),
        root=Path(settings.SOURCE_ROOT),
        timeout=timeout,
    )
