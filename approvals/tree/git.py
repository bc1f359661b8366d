"""Run git so that it knows nothing but one bare repository of ours."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from approvals.changes import (
    spell,
)
from approvals.tree.errors import GitFailed, ObjectMissing

GIT_TIMEOUT = 120
IS_OBJECT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def environment(bare: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment in which git knows nothing but the one repository."""
    return {
        "PATH": os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin"),
        "HOME": "/nonexistent",
        "XDG_CONFIG_HOME": "/nonexistent",
        "LC_ALL": "C",
        "TZ": "UTC",
        "GIT_DIR": os.fspath(bare),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "none",
        **(extra or {}),
    }


# Later gits read attributes of a bare repository from its HEAD; this points them at nothing.
# Older ones do not know the setting and do not look.
_EMPTY_TREES = {
    40: "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    64: "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}
_CONFIG = (
    "core.hooksPath=/dev/null",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.fsmonitor=false",
    "core.quotePath=off",
    "core.bare=true",
    "core.autocrlf=false",
    "core.safecrlf=false",
    "core.precomposeUnicode=false",
    "core.protectHFS=true",
    "core.protectNTFS=true",
    "core.bigFileThreshold=512m",
    "core.logAllRefUpdates=false",
    "fastimport.unpackLimit=0",
    "gc.auto=0",
    "maintenance.auto=false",
    "diff.external=",
    "diff.orderFile=/dev/null",
    "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
    "diff.relative=false",
    "diff.renameLimit=2000",
    "diff.suppressBlankEmpty=false",
    "i18n.commitEncoding=UTF-8",
    "commit.gpgSign=false",
)


def command(bare: Path, arguments: Sequence[str]) -> list[str]:
    """A git command line with every setting that could steer it set here."""
    settings = [*_CONFIG, f"safe.directory={os.fspath(bare)}"]
    return ["git", *(part for setting in settings for part in ("-c", setting)), *arguments]


def run(
    bare: Path,
    *arguments: str,
    data: bytes = b"",
    extra: Mapping[str, str] | None = None,
    ok: Sequence[int] = (0,),
) -> bytes:
    """Run one git command to its end and return what it wrote."""
    try:
        done = subprocess.run(
            command(bare, arguments),
            input=data,
            capture_output=True,
            env=environment(bare, extra),
            timeout=GIT_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise GitFailed(
            what=arguments[0], code="a time-out", detail=f"it took more than {GIT_TIMEOUT} s"
        ) from None
    if done.returncode not in ok:
        raise GitFailed(what=arguments[0], code=done.returncode, detail=last_words(done.stderr))
    return done.stdout


def last_words(stderr: bytes) -> str:
    """The last line git said, safe to show."""
    lines = stderr.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
    return spell(lines[-1][:300].encode())


def checked(name: str) -> str:
    """`name` if it is a full object name. Nothing else is ever passed to git as a revision."""
    if not IS_OBJECT.fullmatch(name):
        raise ObjectMissing(
            name=spell(name[:80].encode("utf-8", "replace")), kind="full object name"
        )
    return name


def attribute_source(name: str) -> dict[str, str]:
    """The environment in which git reads attributes of nothing, for objects named like `name`."""
    return {"GIT_ATTR_SOURCE": _EMPTY_TREES[len(name)]}
