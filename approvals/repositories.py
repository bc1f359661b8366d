"""Private bare repositories: the source's objects beside what a candidate adds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from approvals.models import Candidate
from portal import blobs
from runs.contract import Contract
from runs.fetching import cache_of, fetch_source
from runs.models import Run

_ENV = {
    "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


def _git(bare: Path, *arguments: str, data: bytes = b"") -> bytes:
    done = subprocess.run(
        [
            "git",
            "-c",
            "core.hooksPath=/dev/null",
            "-c",
            f"safe.directory={bare}",
            f"--git-dir={bare}",
            *arguments,
        ],
        input=data,
        capture_output=True,
        check=True,
        env=_ENV,
        timeout=120,
    )
    return done.stdout


def bare_with_base(run: Run, contract: Contract, bare: Path) -> Path:
    """A new bare repository at `bare` that can read the source commit of the run.

    It borrows the cache's objects (alternates) and writes its own, so that the
    shared cache never holds anything an agent made.
    """
    resolved = fetch_source(run, contract)
    subprocess.run(
        ["git", "init", "--quiet", "--bare", "--template=", str(bare)],
        check=True,
        capture_output=True,
        env=_ENV,
        timeout=60,
    )
    alternates = bare / "objects" / "info" / "alternates"
    alternates.parent.mkdir(parents=True, exist_ok=True)
    alternates.write_text(f"{resolved.repository(cache_of(run.tenant_id)) / 'objects'}\n")
    return bare


def bare_with_candidate(run: Run, contract: Contract, candidate: Candidate, bare: Path) -> Path:
    """The same with the candidate's own objects in it, read from the verified blob store."""
    bare_with_base(run, contract, bare)
    pack = blobs.get(candidate.tenant_id, candidate.pack_blob)
    if pack:
        _git(bare, "unpack-objects", "-q", data=pack)
    return bare


def pack_of(bare: Path, tree: str, base_tree: str) -> bytes:
    """A pack of the objects of `tree` that `base_tree` does not have; empty when there are none."""
    listed = _git(bare, "rev-list", "--objects", "--no-object-names", tree, f"^{base_tree}").split()
    if not listed:
        return b""
    return _git(
        bare, "pack-objects", "-q", "--stdout", "--threads=1", data=b"\n".join(listed) + b"\n"
    )
