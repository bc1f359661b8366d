"""The content of the demo: a small project with a real bug, its contract, and a recorded repair.

`project/` is a program of our own whose bug one of its tests shows; it is left unrepaired on
purpose. `make_repository` turns it into the bare repository the demo's contract names as source
and as publishing target. The recording answers an approval and a denial of its one outward call,
and one request for changes after that.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from portal.demo.tracker import FOLDER, token_in
from portal.env import env_text

HERE = Path(__file__).parent
PROJECT = HERE / "project"
REPOSITORY = "tideline.git"
RECORDING = "repair-tariff-limits"
TRACKER = "tracker"
"""The name of the tracker's address and of its credential, in the contract and in the tenant."""
NOWHERE = "http://127.0.0.1:9"
"""Where nothing answers: an installation that runs no tracker. The agent is told, and goes on."""


def contract_text() -> str:
    """The demo's contract as TOML."""
    return (HERE / "contract.toml").read_text("utf-8")


def transcript() -> bytes:
    """The recording the contract names."""
    return (HERE / "transcript.json").read_bytes()


def values() -> dict[str, str]:
    """The addresses the contract refers to by name. `manage.py up` says where its tracker is."""
    return {TRACKER: env_text("DEMO_TRACKER_URL") or NOWHERE}


def tracker_token(data: Path) -> str:
    """The tracker's token in this installation; it goes into the vault as a credential."""
    return token_in(data / FOLDER)


def make_repository(root: Path) -> str:
    """Make the bare repository below `root` if it is not there, and return its commit on main.

    The commit is the same on every machine: its files, author and date are fixed. Safe to repeat:
    a repository that has the branch is left as it is, whatever was published into it since.
    """
    bare = root / REPOSITORY
    if not (bare / "HEAD").exists():
        root.mkdir(parents=True, exist_ok=True)
        git(bare, "init", "--quiet", "--bare", "--template=", "--initial-branch=main", str(bare))
    there = git(bare, "for-each-ref", "--format=%(objectname)", "refs/heads/main")
    if there:
        return there
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        git(bare, f"--work-tree={PROJECT}", "add", "--all", ".", extra=index)
        tree = git(bare, "write-tree", extra=index)
    commit = git(bare, "commit-tree", tree, "-m", "Release 0.4.0")
    git(bare, "update-ref", "refs/heads/main", commit)
    return commit


def git(bare: Path, *arguments: str, extra: dict[str, str] | None = None) -> str:
    """Run git on our own files, with no configuration but the one given here."""
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "Tideline",
        "GIT_AUTHOR_EMAIL": "team@tideline.example",
        "GIT_AUTHOR_DATE": "2026-01-05T09:00:00Z",
        "GIT_COMMITTER_NAME": "Tideline",
        "GIT_COMMITTER_EMAIL": "team@tideline.example",
        "GIT_COMMITTER_DATE": "2026-01-05T09:00:00Z",
        **(extra or {}),
    }
    settings = ("-c", "core.fileMode=false", "-c", "core.autocrlf=false", "-c", "safe.directory=*")
    command = ["git", f"--git-dir={bare}", *settings, *arguments]
    where = PROJECT if extra else bare.parent
    ran = subprocess.run(command, env=environment, cwd=where, capture_output=True, check=True)
    return ran.stdout.decode().strip()
