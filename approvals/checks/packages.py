"""Where packages come from and what runs when they are installed. Part of `control_files`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from approvals.changes import spell
from approvals.checks.base import READ_CHARS, Content, Notebook

# --- package.json ----------------------------------------------------------------------------

_LIFECYCLE = {
    "preinstall", "install", "postinstall", "preprepare", "prepare", "postprepare", "prepublish",
    "prepublishOnly", "prepack", "postpack", "preuninstall", "uninstall", "postuninstall",
    "dependencies", "preversion", "version", "postversion",
}  # fmt: skip


def package_json(content: Content, changed: set[bytes], notes: Notebook) -> None:
    if content.name != "package.json":
        return
    now, before = _json(content.data), _json(content.before or b"{}")
    if now is None:
        notes.warn("install time", content.shown, "is not JSON with one reading")
        return
    scripts, had = _table(now, "scripts"), _table(before or {}, "scripts")
    for name in sorted(_LIFECYCLE & scripts.keys()):
        if scripts[name] != had.get(name):
            line = _line_of(content.data, f'"{name}"')
            notes.warn("install time", content.shown,
                  f"the script “{name}” runs at install time and is changed", line)  # fmt: skip
    for key in ("gypfile", "bin", "overrides", "resolutions", "packageManager", "workspaces"):
        if key in now and now[key] != (before or {}).get(key):
            line = _line_of(content.data, f'"{key}"')
            notes.warn("install time", content.shown, f"“{key}” is new or changed", line)
    for group in ("dependencies", "devDependencies", "optionalDependencies", "peerDependencies"):
        old = _table(before or {}, group)
        for name, wanted in _table(now, group).items():
            if wanted != old.get(name) and re.match(
                r"(?:git|http|file|link|github:|npm:|\.|/)|[\w-]+/[\w.-]+$", str(wanted)
            ):
                line = _line_of(content.data, json.dumps(name))
                notes.warn("dependencies", content.shown,
                      "a dependency comes from an address, not the registry", line)  # fmt: skip


def _json(data: bytes) -> dict[str, Any] | None:
    """An object read in the only possible way: duplicate keys are no reading."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            raise ValueError("a key comes twice")
        return table

    try:
        value = json.loads(data, object_pairs_hook=once)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _table(value: dict[str, Any], key: str) -> dict[str, Any]:
    part = value.get(key)
    return part if isinstance(part, dict) else {}


def _line_of(data: bytes, text: str) -> int | None:
    at = data.find(text.encode())
    return None if at < 0 else data.count(b"\n", 0, at) + 1


# --- locks and where packages come from --------------------------------------------------------

LOCKS = {
    "package-lock.json": ("package.json",),
    "npm-shrinkwrap.json": ("package.json",),
    "yarn.lock": ("package.json",),
    "pnpm-lock.yaml": ("package.json", "pnpm-workspace.yaml"),
    "bun.lock": ("package.json",),
    "bun.lockb": ("package.json",),
    "poetry.lock": ("pyproject.toml",),
    "pdm.lock": ("pyproject.toml",),
    "uv.lock": ("pyproject.toml",),
    "pylock.toml": ("pyproject.toml",),
    "pipfile.lock": ("pipfile",),
    "cargo.lock": ("cargo.toml",),
    "go.sum": ("go.mod",),
    "gemfile.lock": ("gemfile",),
    "composer.lock": ("composer.json",),
    "mix.lock": ("mix.exs",),
    "pubspec.lock": ("pubspec.yaml",),
    "podfile.lock": ("podfile",),
    "package.resolved": ("package.swift",),
    "flake.lock": ("flake.nix",),
    "packages.lock.json": (),
    "gradle.lockfile": ("build.gradle", "build.gradle.kts"),
    "conan.lock": ("conanfile.txt", "conanfile.py"),
    "deno.lock": ("deno.json", "deno.jsonc"),
}
_HOST = re.compile(
    rb"\b(?:https?|git|ssh|ftp)(?:\+\w+)?://(?:[^/\s@\"']*@)?([A-Za-z0-9.-]+)", re.IGNORECASE
)
_HASH = re.compile(
    rb"--hash=|\"integrity\"|\bintegrity[: ]|\bchecksum\b|sha(?:256|384|512)[:-]", re.IGNORECASE
)
_REQUIREMENTS = re.compile(
    r"(?:.*/)?(?:[^/]*[-_.])?(?:requirements|constraints)(?:[-_.][^/]*)?\.(?:txt|in)"
    r"|(?:.*/)?requirements/[^/]+\.(?:txt|in)",
    re.IGNORECASE,
)
_INDEX = re.compile(
    r"--(?:extra-)?index-url|^\s*-i\s|--find-links|^\s*-f\s|--trusted-host|--no-index|git\+|"
    r"@\s*(?:https?|file):|^\s*(?:https?|file)://|^\s*(?:-e|--editable)\s"
)


def is_list(content: Content) -> bool:
    """Whether the file lists packages: a lock, a requirements file, a manifest of that kind."""
    return (
        content.name in LOCKS
        or content.name in ("go.mod", "gemfile", "pipfile")
        or _REQUIREMENTS.fullmatch(content.path.decode("utf-8", "replace")) is not None
    )


def dependencies(content: Content, changed: set[bytes], notes: Notebook) -> None:
    name = content.name
    if not is_list(content):
        return
    before = content.before or b""
    if name in LOCKS and not _manifest_changed(content.path, LOCKS[name], changed):
        notes.warn("dependencies", content.shown,
              "the lock changes and its manifest does not")  # fmt: skip
    hosts = {host.lower() for host in _HOST.findall(before)}
    for number, line in content.new_lines():
        for host in _HOST.findall(line):
            if content.before is not None and host.lower() not in hosts:
                hosts.add(host.lower())
                notes.warn("dependencies", content.shown,
                      f"a package comes from the new host {spell(host[:100])}", number)  # fmt: skip
        text = line[:READ_CHARS].decode("utf-8", "replace")
        if name not in LOCKS and _INDEX.search(text):
            notes.warn("dependencies", content.shown,
                  "a new line names another package index or an address", number)  # fmt: skip
    lost = len(_HASH.findall(before)) - len(_HASH.findall(content.data))
    if lost > 0 and _packages(content.data) >= _packages(before):
        notes.warn("dependencies", content.shown, f"{lost:,} hashes are gone")


def _manifest_changed(path: bytes, manifests: Iterable[str], changed: set[bytes]) -> bool:
    folder = path.rpartition(b"/")[0]
    names = {
        other.rpartition(b"/")[2].lower().decode("utf-8", "replace")
        for other in changed
        if other.rpartition(b"/")[0] == folder
    }
    return not names.isdisjoint(manifests)


def _packages(data: bytes) -> int:
    """A rough count of what is locked, to tell lost hashes from lost packages."""
    return len(re.findall(rb"(?m)==|\"version\"|^version\b|^\s{2}version|/go\.mod h1:", data))
