"""Turn what a sandbox left behind into a git tree, and say exactly what it changes.

The directory is hostile. Nothing in it is ever run, followed or believed: files are read through
directory handles that do not follow links, hashed here, and written into a bare repository of ours
as raw objects. Git reads no attributes, filters, hooks, or configuration of the machine, the person
or the candidate. `git diff --raw` on the two trees is the judge of what changed; nothing is listed
that it does not list and nothing it lists is left away.

The rules that need a sentence:

* **`.git` at the top** is the workspace's own repository. It is left out and listed.
* **Nested repositories**: a `.git` further down (directory or file, in any spelling that some file
  system reads as `.git`) is left out and listed as blocking; the files beside it are taken like any
  others. A tree can hold no `.git`, and what lies in one would escape review.
* **Submodules**: a workspace has no gitlink, so a candidate can neither add nor move one. A gitlink
  of the source stays as it is while nothing, or an empty directory, stands in its place. Files in
  its place replace it, which is listed. Nothing is ever fetched.
* **Links of the source that lead out of it** are never laid out in a workspace either, and stay as
  they are while nothing stands in their place.
* **LFS pointers** are the small text files they are. No filter runs and no object is fetched.
* **Attributes**: `.gitattributes` is content like any other. `-diff`, `filter`, `text`, `eol`,
  `working-tree-encoding` and the rest change neither what is stored nor how it is shown.
* **Ignored files**: a file that is new and that the *source commit's* own `.gitignore` files ignore
  is left out and counted, as are the caches of well-known tools. The candidate's own ignore files
  have no say, and a file the source tracks is never ignored.
* **Modes**: a file is executable if its owner may execute it. Other bits are not part of a tree.
* **Links** are stored as links, their target as content. None is followed, wherever it points.
* **Devices, sockets and pipes** are left out and listed as blocking.
* **Empty directories** do not exist in a tree.
* **Limits**: too many files, too many bytes, a single file too large, paths too deep or too long:
  the whole directory is refused (`TreeRefused`), because a part of it would be a lie.

The same directory and base always give the same tree, changes and list of what was left out.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING

from approvals.changes import (
    EXECUTABLE,
    FILE,
    GITLINK,
    NO_MODE,
    SYMLINK,
    Change,
    LeftOut,
    Status,
    is_dot_git,
    link_cycle_or_escape,
    spell,
    unsafe_path,
)
from portal.errors import Refusal

if TYPE_CHECKING:
    from hashlib import _Hash

GIT_TIMEOUT = 120
_OBJECT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# What well-known tools write beside the source and can write again. Only new files are concerned.
_CACHES = {
    b"__pycache__",
    b".pytest_cache",
    b".mypy_cache",
    b".ruff_cache",
    b".hypothesis",
    b".tox",
    b".nox",
}
_CACHE_SUFFIXES = (b".pyc", b".pyo")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ENTER = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
_CHUNK = 1 << 20


# --- refusals --------------------------------------------------------------------------------


class TreeRefused(Refusal):
    """The directory cannot become a candidate, as a whole."""

    code = "approvals.tree_refused"
    status = 422
    text = "No candidate was made, because {reason}. {remedy}"


class MaterialiseRefused(Refusal):
    """A tree cannot be written to a directory without leaving it or losing something."""

    code = "approvals.materialise_refused"
    status = 422
    text = (
        "The tree was not written out, because “{path}” {reason}. "
        "Ask the agent to remove or rename it."
    )


class ObjectMissing(Refusal):
    """The repository does not hold what it was asked for."""

    code = "approvals.object_missing"
    status = 409
    text = (
        "The object {name} is not in the repository, or is no {kind}. "
        "The source or candidate store is incomplete; take the candidate again."
    )


class GitFailed(Refusal):
    """Git itself failed. This is ours to mend, not the agent's."""

    code = "approvals.git_failed"
    status = 500
    text = (
        "git {what} ended with {code}: {detail}. Nothing was changed. "
        "Try again; if it stays so, tell an admin."
    )


# --- git, alone ------------------------------------------------------------------------------


def _environment(bare: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
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


def _command(bare: Path, arguments: Sequence[str]) -> list[str]:
    settings = [*_CONFIG, f"safe.directory={os.fspath(bare)}"]
    return ["git", *(part for setting in settings for part in ("-c", setting)), *arguments]


def _git(
    bare: Path,
    *arguments: str,
    data: bytes = b"",
    extra: Mapping[str, str] | None = None,
    ok: Sequence[int] = (0,),
) -> bytes:
    """Run one git command to its end and return what it wrote."""
    try:
        done = subprocess.run(
            _command(bare, arguments),
            input=data,
            capture_output=True,
            env=_environment(bare, extra),
            timeout=GIT_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise GitFailed(
            what=arguments[0], code="a time-out", detail=f"it took more than {GIT_TIMEOUT} s"
        ) from None
    if done.returncode not in ok:
        raise GitFailed(what=arguments[0], code=done.returncode, detail=_tail(done.stderr))
    return done.stdout


def _tail(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
    return spell(lines[-1][:300].encode())


def _checked(name: str) -> str:
    """`name` if it is a full object name. Nothing else is ever passed to git as a revision."""
    if not _OBJECT.fullmatch(name):
        raise ObjectMissing(
            name=spell(name[:80].encode("utf-8", "replace")), kind="full object name"
        )
    return name


def _attribute_source(name: str) -> dict[str, str]:
    return {"GIT_ATTR_SOURCE": _EMPTY_TREES[len(name)]}


# --- reading ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a tree. `size` is None for a submodule."""

    path: bytes
    mode: str
    blob: str
    size: int | None


def tree_of(bare: Path, commit: str) -> str:
    """The tree of a commit (or of a tree: itself). Raises `ObjectMissing`."""
    line = _git(
        bare, "rev-parse", "--verify", "--quiet", f"{_checked(commit)}^{{tree}}", ok=(0, 1, 128)
    )
    if not line:
        raise ObjectMissing(name=commit, kind="commit or tree")
    return line.decode().strip()


def list_tree(bare: Path, tree: str) -> tuple[Entry, ...]:
    """Every file of a tree, in git's own order."""
    out = _git(bare, "ls-tree", "-r", "-z", "-l", "--full-tree", tree_of(bare, tree))
    entries = []
    for record in out.split(b"\0")[:-1]:
        facts, path = record.split(b"\t", 1)
        mode, _, blob, size = facts.split()
        entries.append(
            Entry(path, mode.decode(), blob.decode(), None if size == b"-" else int(size))
        )
    return tuple(entries)


def read_blob(bare: Path, blob: str, *, max_bytes: int | None = None) -> bytes:
    """The content of one blob; at most `max_bytes` of it. Raises `ObjectMissing`."""
    with open_blobs(bare) as blobs:
        data = blobs.read(blob)
    return data if max_bytes is None else data[:max_bytes]


class Blobs(Mapping[str, bytes]):
    """The blobs of one repository by name, read when asked for and not kept.

    Use `open_blobs`, which ends the process behind it.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def read(self, blob: str) -> bytes:
        """One blob. Raises `ObjectMissing` where there is none of that name."""
        kind, data = self._ask(_checked(blob))
        if kind != b"blob":
            raise ObjectMissing(name=blob, kind="file content")
        return data

    def _ask(self, name: str) -> tuple[bytes, bytes]:
        asked, answer = self._pipes()
        asked.write(name.encode() + b"\n")
        asked.flush()
        head = answer.readline().split()
        if len(head) != 3:
            if head[-1:] == [b"missing"]:
                return b"", b""
            raise GitFailed(what="cat-file", code="no answer", detail="the process ended early")
        size = int(head[2])
        data = answer.read(size)
        if len(data) != size or answer.read(1) != b"\n":
            raise GitFailed(what="cat-file", code="a short answer", detail=f"for {name}")
        return head[1], data

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        if self._process.stdin is None or self._process.stdout is None:
            raise GitFailed(what="cat-file", code="no pipes", detail="the process was not started")
        return self._process.stdin, self._process.stdout

    def __getitem__(self, blob: str) -> bytes:
        try:
            return self.read(blob)
        except ObjectMissing:
            raise KeyError(blob) from None

    def __iter__(self) -> Iterator[str]:
        """Nothing: the names to ask for come from the list of changes."""
        return iter(())

    def __len__(self) -> int:
        return 0

    def __contains__(self, blob: object) -> bool:
        return isinstance(blob, str) and bool(_OBJECT.fullmatch(blob)) and self._ask(blob)[0] != b""


@contextmanager
def open_blobs(bare: Path) -> Iterator[Blobs]:
    """Read many blobs with one process."""
    process = subprocess.Popen(
        _command(bare, ["cat-file", "--batch"]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_environment(bare),
    )
    try:
        yield Blobs(process)
    finally:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(GIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def list_changes(bare: Path, base: str, head: str) -> tuple[Change, ...]:
    """Everything that differs between two commits or trees, as git's raw diff lists it.

    Mode-only changes, pure renames, binary files, links, deletions, changes of type and moved
    submodules are each one entry. Renames are found at 50 % likeness.
    """
    old, new = tree_of(bare, base), tree_of(bare, head)
    out = _git(
        bare, "diff-tree", "-r", "-z", "--raw", "--numstat", "--no-abbrev", *_DIFF, old, new,
        extra=_attribute_source(old),
    )  # fmt: skip
    fields = iter(out.split(b"\0"))
    raw: list[tuple[bytes, bytes, bytes | None]] = []
    numbers: list[bytes] = []
    for record in fields:
        if record.startswith(b":"):
            first = next(fields)
            second = next(fields) if record.split()[4][:1] == b"R" else None
            path, old_path = (first, None) if second is None else (second, first)
            raw.append((record[1:], path, old_path))
        elif record:
            added, removed, path = record.split(b"\t", 2)
            if not path:  # a rename: the two paths follow
                next(fields)
                next(fields)
            numbers.append(added + b" " + removed)
    if len(raw) != len(numbers):
        raise GitFailed(what="diff-tree", code="two lists", detail="raw and counted lines differ")
    sizes = _sizes(bare, [facts.split() for facts, _, _ in raw])
    return tuple(
        _change(facts.split(), path, old_path, counted.split(), sizes)
        for (facts, path, old_path), counted in zip(raw, numbers, strict=True)
    )


_DIFF = (
    "-M50%",
    "-l2000",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--no-relative",
    "--ignore-submodules=none",
    "--submodule=short",
    "--diff-algorithm=histogram",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--full-index",
)


def _sizes(bare: Path, raw: Sequence[Sequence[bytes]]) -> dict[str, int]:
    wanted = {
        facts[2 + side].decode()
        for facts in raw
        for side in (0, 1)
        if facts[side].decode() not in (NO_MODE, GITLINK)
    }
    if not wanted:
        return {}
    asked = "".join(f"{name}\n" for name in sorted(wanted)).encode()
    sizes: dict[str, int] = {}
    for line in _git(bare, "cat-file", "--batch-check", data=asked).splitlines():
        name, *rest = line.decode().split()
        if len(rest) != 2:
            raise ObjectMissing(name=name, kind="file content")
        sizes[name] = int(rest[1])
    return sizes


def _change(
    facts: Sequence[bytes],
    path: bytes,
    old_path: bytes | None,
    counted: Sequence[bytes],
    sizes: Mapping[str, int],
) -> Change:
    old_mode, new_mode, old_blob, new_blob, letter = (fact.decode() for fact in facts)
    binary = counted[0] == b"-"
    return Change(
        path=path,
        old_path=old_path,
        status=Status(letter[0]),
        old_mode=old_mode,
        new_mode=new_mode,
        old_blob=old_blob,
        new_blob=new_blob,
        similarity=int(letter[1:]) if letter[1:] else None,
        binary=binary,
        added=None if binary else int(counted[0]),
        removed=None if binary else int(counted[1]),
        old_size=None if old_mode in (NO_MODE, GITLINK) else sizes[old_blob],
        new_size=None if new_mode in (NO_MODE, GITLINK) else sizes[new_blob],
    )


def patch(
    bare: Path,
    base: str,
    head: str,
    *,
    context: int = 3,
    binary: bool = False,
    ignore_whitespace: bool = False,
) -> bytes:
    """The whole difference as git prints it, sections in the order of `list_changes`.

    With `binary` the bytes of binary files are in it, so that it can be applied elsewhere.
    `ignore_whitespace` is for a second view only: what it leaves away must be counted beside it.
    """
    old, new = tree_of(bare, base), tree_of(bare, head)
    options = [f"-U{context}", *(["--binary"] if binary else [])]
    options += ["-w", "--ignore-cr-at-eol"] if ignore_whitespace else []
    return _git(
        bare, "diff-tree", "-r", "-p", *_DIFF, *options, old, new, extra=_attribute_source(old)
    )


# --- taking ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """What a directory may hold before it is refused as a whole."""

    files: int = 50_000
    total_bytes: int = 512 << 20
    file_bytes: int = 64 << 20
    depth: int = 100


@dataclass(frozen=True, slots=True)
class TakenTree:
    """A tree in the repository, and what it is against its base."""

    tree: str
    base_commit: str
    base_tree: str
    changes: tuple[Change, ...]
    left_out: tuple[LeftOut, ...]
    files: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Found:
    """One file or link found in a directory; `name` is the last part, `parent` an open handle."""

    path: bytes
    mode: str
    size: int
    parent: int
    name: bytes

    def content(self) -> Iterator[bytes]:
        """Its bytes. Only while the walk stands on it."""
        if self.mode == SYMLINK:
            yield os.readlink(self.name, dir_fd=self.parent)
            return
        handle = _open(self.name, self.parent)
        try:
            while chunk := os.read(handle, _CHUNK):
                yield chunk
        finally:
            os.close(handle)


def _open(name: bytes, parent: int) -> int:
    """Open a regular file for reading, never through a link."""
    try:
        return os.open(name, _READ, dir_fd=parent)
    except PermissionError:
        # The agent took its own right to read away; the copy is ours, so it can be given back.
        os.chmod(name, 0o600, dir_fd=parent)
        return os.open(name, _READ, dir_fd=parent)


def walk(root: Path, limits: TreeLimits, left_out: list[LeftOut]) -> Iterator[Found]:
    """Every regular file and link under `root`, sorted, no link followed.

    What cannot be part of a tree is added to `left_out`. Raises `TreeRefused` at a limit.
    """
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield from _walk(handle, b"", limits, left_out, 0)
    finally:
        os.close(handle)


def _walk(
    parent: int, prefix: bytes, limits: TreeLimits, left_out: list[LeftOut], depth: int
) -> Iterator[Found]:
    if depth > limits.depth:
        raise TreeRefused(
            reason=f"“{spell(prefix)[:200]}” lies more than {limits.depth} directories deep",
            remedy="Ask the agent to remove it.",
        )
    for name in sorted(os.fsencode(entry) for entry in os.listdir(parent)):
        path = prefix + name
        if is_dot_git(name):
            left_out.append(_repository(path, depth))
            continue
        if reason := unsafe_path(path):
            raise TreeRefused(
                reason=f"the path “{spell(path)[:200]}” {reason}",
                remedy="Ask the agent to rename or remove it.",
            )
        facts = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISDIR(facts.st_mode):
            child = _enter(name, parent)
            try:
                yield from _walk(child, path + b"/", limits, left_out, depth + 1)
            finally:
                os.close(child)
        elif stat.S_ISREG(facts.st_mode):
            mode = EXECUTABLE if facts.st_mode & stat.S_IXUSR else FILE
            yield Found(path, mode, facts.st_size, parent, name)
        elif stat.S_ISLNK(facts.st_mode):
            yield Found(path, SYMLINK, facts.st_size, parent, name)
        else:
            left_out.append(
                LeftOut(path, "special", "a device, socket or pipe is no content", blocking=True)
            )


def _enter(name: bytes, parent: int) -> int:
    try:
        return os.open(name, _ENTER, dir_fd=parent)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=parent)
        return os.open(name, _ENTER, dir_fd=parent)


def _repository(path: bytes, depth: int) -> LeftOut:
    if path == b".git":
        return LeftOut(path, "own repository", "the workspace's own git directory is no content")
    if depth and path.endswith(b"/.git"):
        text = "a repository inside the repository: its history and settings cannot be reviewed"
        return LeftOut(path, "nested repository", text, blocking=True)
    text = "some file systems read this name as git's own directory"
    return LeftOut(path, "reads as .git", text, blocking=True)


def build_tree(
    exported: Path, bare: Path, base_commit: str, *, limits: TreeLimits | None = None
) -> TakenTree:
    """Take `exported` as a tree against `base_commit` and write its objects into `bare`.

    Writes objects only: no ref, no index, nothing outside the object store, and nothing at all in
    `exported` beyond giving its owner back the right to read. Safe to repeat and to run twice at
    once. Raises `TreeRefused`, `ObjectMissing` or `GitFailed`.
    """
    limits = limits or TreeLimits()
    base_tree = tree_of(bare, base_commit)
    base = {entry.path: entry for entry in list_tree(bare, base_tree)}
    left_out: list[LeftOut] = []
    taking = _Taking(limits, base, hashlib.sha1 if len(base_tree) == 40 else hashlib.sha256)
    for found in walk(exported, limits, left_out):
        taking.add(found)
    ignored = _ignored(bare, base, [path for path in taking.entries if path not in base])
    left_out += _summary(ignored)
    for path in ignored:
        taking.entries.pop(path)
    _keep_absent(bare, base, taking.entries)
    fresh = {
        blob: path
        for path, (_, blob) in taking.entries.items()
        if blob not in taking.known and path in taking.sizes
    }
    _store(bare, exported, limits, fresh)
    tree = _write_tree(bare, taking.entries)
    return TakenTree(
        tree=tree,
        base_commit=base_commit,
        base_tree=base_tree,
        changes=list_changes(bare, base_tree, tree),
        left_out=tuple(sorted(left_out, key=lambda item: (item.path, item.reason))),
        files=len(taking.entries),
        total_bytes=sum(taking.sizes.get(path, 0) for path in taking.entries),
    )


def unchanged(bare: Path, base_commit: str) -> TakenTree:
    """The base itself, of a run that had no workspace to change. Raises as `build_tree` does."""
    base_tree = tree_of(bare, base_commit)
    return TakenTree(
        tree=base_tree,
        base_commit=base_commit,
        base_tree=base_tree,
        changes=(),
        left_out=(),
        files=0,
        total_bytes=0,
    )


@dataclass(slots=True)
class _Taking:
    """What the walk has gathered so far."""

    limits: TreeLimits
    base: Mapping[bytes, Entry]
    algorithm: Callable[[bytes], _Hash]
    entries: dict[bytes, tuple[str, str]] = field(default_factory=dict)
    sizes: dict[bytes, int] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    total: int = 0

    def __post_init__(self) -> None:
        self.known = {entry.blob for entry in self.base.values() if entry.mode != GITLINK}

    def add(self, found: Found) -> None:
        if found.size > self.limits.file_bytes:
            raise TreeRefused(
                reason=f"“{spell(found.path)[:200]}” has {found.size:,} bytes and the limit for "
                f"one file is {self.limits.file_bytes:,}",
                remedy="Ask the agent to leave it out, or raise the limit.",
            )
        self.total += found.size
        if len(self.entries) >= self.limits.files or self.total > self.limits.total_bytes:
            raise TreeRefused(
                reason=f"the workspace holds more than {self.limits.files:,} files or "
                f"{self.limits.total_bytes:,} bytes",
                remedy="Ask the agent to remove what it does not offer, or raise the limit.",
            )
        blob, size = _hash(found, self.algorithm)
        self.entries[found.path] = (found.mode, blob)
        self.sizes[found.path] = size


def _hash(found: Found, algorithm: Callable[[bytes], _Hash]) -> tuple[str, int]:
    """Git's name for the content as it is now, and its true length."""
    body = algorithm(b"blob %d\0" % found.size)
    size = 0
    for chunk in found.content():
        body.update(chunk)
        size += len(chunk)
    if size != found.size:
        raise _moving(found.path)
    return body.hexdigest(), size


def _moving(path: bytes) -> TreeRefused:
    return TreeRefused(
        reason=f"“{spell(path)[:200]}” changed while it was read",
        remedy="Nothing may run in the sandbox any more; take the candidate again.",
    )


def _keep_absent(
    bare: Path, base: Mapping[bytes, Entry], entries: dict[bytes, tuple[str, str]]
) -> None:
    """Carry over what a workspace is never given: the source's submodules and links out of it."""
    absent = {
        path: entry
        for path, entry in base.items()
        if path not in entries and entry.mode in (GITLINK, SYMLINK)
    }
    if any(entry.mode == SYMLINK for entry in absent.values()):
        leaving = _leaving(bare, base.values())
    for path, entry in absent.items():
        if entry.mode == SYMLINK and path not in leaving:
            continue
        inside = path + b"/"
        if any(other.startswith(inside) for other in entries):
            continue
        # A file where a directory of the path was: the entry has no place any more.
        if any(path.startswith(other + b"/") for other in entries):
            continue
        entries[path] = (entry.mode, entry.blob)


def _leaving(bare: Path, entries: Iterable[Entry]) -> dict[bytes, str]:
    with open_blobs(bare) as blobs:
        links = {entry.path: blobs.read(entry.blob) for entry in entries if entry.mode == SYMLINK}
    return link_cycle_or_escape(links)


def _ignored(bare: Path, base: Mapping[bytes, Entry], new: Sequence[bytes]) -> dict[bytes, str]:
    """Which new paths the source commit's own ignore files, or our list of caches, leave out."""
    ignored = {path: "tool cache" for path in new if _is_cache(path)}
    rest = [path for path in new if path not in ignored]
    rules = [
        entry
        for path, entry in base.items()
        if entry.mode in (FILE, EXECUTABLE) and path.rpartition(b"/")[2] == b".gitignore"
    ]
    if not rest or not rules:
        return ignored
    with tempfile.TemporaryDirectory(prefix="ignore-") as folder, open_blobs(bare) as blobs:
        for entry in rules:
            target = os.path.join(os.fsencode(folder), entry.path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "xb") as out:
                out.write(blobs.read(entry.blob))
        out_bytes = _git(
            bare,
            "-c", "core.bare=false",
            "check-ignore", "--no-index", "-z", "--stdin",
            data=b"".join(b"./" + path + b"\0" for path in rest),
            extra={"GIT_WORK_TREE": folder},
            ok=(0, 1),
        )  # fmt: skip
    for path in out_bytes.split(b"\0")[:-1]:
        ignored[path.removeprefix(b"./")] = "ignored"
    return ignored


def _is_cache(path: bytes) -> bool:
    return path.endswith(_CACHE_SUFFIXES) or not _CACHES.isdisjoint(path.split(b"/")[:-1])


_LEFT_OUT_TEXT = {
    "ignored": "new, and ignored by the source's own .gitignore",
    "tool cache": "new, and only a cache that a tool can write again",
}


def _summary(ignored: Mapping[bytes, str]) -> list[LeftOut]:
    """One line for each directory and reason, so that a thousand cache files are one line."""
    groups: dict[tuple[bytes, str], list[bytes]] = {}
    for path, reason in ignored.items():
        groups.setdefault((path.rpartition(b"/")[0], reason), []).append(path)
    lines = []
    for (folder, reason), paths in groups.items():
        shown = paths[0] if len(paths) == 1 else (folder + b"/" if folder else b"./")
        lines.append(LeftOut(shown, reason, _LEFT_OUT_TEXT[reason], count=len(paths)))
    return lines


def _store(bare: Path, exported: Path, limits: TreeLimits, fresh: Mapping[str, bytes]) -> None:
    """Write the blobs that the base does not hold, and make sure they are what was hashed.

    The stream carries lengths and bytes, never a name from the sandbox, so no name can be read as
    anything else, and no filter or attribute applies.
    """
    if not fresh:
        return
    wanted = {path: blob for blob, path in fresh.items()}
    with tempfile.TemporaryDirectory(prefix="objects-") as folder:
        marks = Path(folder) / "marks"
        process = subprocess.Popen(
            _command(
                bare,
                ["fast-import", "--quiet", "--done", f"--export-marks={marks}"],
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=_environment(bare),
            cwd=folder,
        )
        order: list[str] = []
        broken = False
        try:
            if process.stdin is None:
                raise GitFailed(what="fast-import", code="no pipe", detail="it was not started")
            for found in walk(exported, limits, []):
                if (blob := wanted.get(found.path)) is not None:
                    order.append(blob)
                    _send(process.stdin, found, len(order))
            process.stdin.write(b"done\n")
        except BrokenPipeError:
            broken = True
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            stderr = b""
            if process.stdin is not None:
                with suppress(BrokenPipeError):
                    process.stdin.close()
            if process.stderr is not None:
                stderr = process.stderr.read()
                process.stderr.close()
            code = process.wait(GIT_TIMEOUT)
        if code or broken:
            raise GitFailed(what="fast-import", code=code, detail=_tail(stderr))
        written = dict(line.split() for line in marks.read_text().splitlines())
    for number, blob in enumerate(order, 1):
        if written.get(f":{number}") != blob:
            raise _moving(fresh[blob])
    if len(order) != len(wanted):
        raise _moving(next(path for path, blob in wanted.items() if blob not in order))


def _send(pipe: IO[bytes], found: Found, number: int) -> None:
    pipe.write(b"blob\nmark :%d\ndata %d\n" % (number, found.size))
    sent = 0
    for chunk in found.content():
        sent += len(chunk)
        if sent > found.size:
            break
        pipe.write(chunk)
    if sent != found.size:
        raise _moving(found.path)
    pipe.write(b"\n")


def _write_tree(bare: Path, entries: Mapping[bytes, tuple[str, str]]) -> str:
    """Write the tree objects through an index of their own. Raises `GitFailed`."""
    listing = b"".join(
        b"%s %s %s\t%s\0"
        % (mode.encode(), b"commit" if mode == GITLINK else b"blob", blob.encode(), path)
        for path, (mode, blob) in sorted(entries.items())
    )
    with tempfile.TemporaryDirectory(prefix="index-") as folder:
        own = {"GIT_INDEX_FILE": os.path.join(folder, "index")}
        if listing:
            _git(bare, "update-index", "-z", "--index-info", data=listing, extra=own)
        else:
            _git(bare, "read-tree", "--empty", extra=own)
        tree = _git(bare, "write-tree", extra=own).decode().strip()
    written = {entry.path: (entry.mode, entry.blob) for entry in list_tree(bare, tree)}
    if written != dict(entries):
        raise GitFailed(what="write-tree", code="another tree", detail="a path was not stored")
    return tree


# --- giving back -----------------------------------------------------------------------------


def materialise(bare: Path, tree: str, dest: Path, *, source: str = "") -> int:
    """Write a tree into the new directory `dest` for a fresh sandbox; returns the number of files.

    `dest` must not exist or be empty. Every path and link is judged before the first byte is
    written: a path or link that leaves, a name that reads as `.git`, or two paths that this file
    system takes for one, and `MaterialiseRefused` is raised. A submodule becomes an empty
    directory; nothing is fetched. Nothing that is already there is ever written through.

    A link that leaves and that `source` (a commit or tree) already has at the same place is left
    out instead, as it was when the workspace was made.
    """
    entries = list_tree(bare, tree)
    had = {(e.path, e.blob) for e in list_tree(bare, source)} if source else set()
    with open_blobs(bare) as blobs:
        links = {entry.path: blobs.read(entry.blob) for entry in entries if entry.mode == SYMLINK}
        for entry in entries:
            if reason := unsafe_path(entry.path):
                raise MaterialiseRefused(path=spell(entry.path), reason=reason)
        leaving = link_cycle_or_escape(links)
        for entry in entries:
            if entry.path in leaving and (entry.path, entry.blob) not in had:
                raise MaterialiseRefused(path=spell(entry.path), reason=leaving[entry.path])
        entries = tuple(entry for entry in entries if entry.path not in leaving)
        dest.mkdir(parents=True, exist_ok=True)
        if os.listdir(dest):
            raise MaterialiseRefused(path=dest.name, reason="is a directory that is not empty")
        root = os.open(dest, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Links last, so that no file can be written through one.
            for entry in sorted(entries, key=lambda entry: (entry.mode == SYMLINK, entry.path)):
                _place(root, entry, blobs, links)
        finally:
            os.close(root)
    return len(entries)


def _place(root: int, entry: Entry, blobs: Blobs, links: Mapping[bytes, bytes]) -> None:
    *folders, name = entry.path.split(b"/")
    parent = os.dup(root)
    try:
        for folder in folders:
            parent = _step(parent, folder)
        if entry.mode == GITLINK:
            os.mkdir(name, 0o755, dir_fd=parent)
        elif entry.mode == SYMLINK:
            os.symlink(links[entry.path], name, dir_fd=parent)
        else:
            mode = 0o755 if entry.mode == EXECUTABLE else 0o644
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(name, flags, mode, dir_fd=parent), "wb") as out:
                os.fchmod(out.fileno(), mode)
                out.write(blobs.read(entry.blob))
    except FileExistsError:
        raise MaterialiseRefused(
            path=spell(entry.path), reason="meets another path of the same name on this file system"
        ) from None
    except (NotADirectoryError, OSError) as error:
        raise MaterialiseRefused(
            path=spell(entry.path), reason=f"cannot be written here ({error.strerror})"
        ) from None
    finally:
        os.close(parent)


def _step(parent: int, folder: bytes) -> int:
    with suppress(FileExistsError):
        os.mkdir(folder, 0o755, dir_fd=parent)
    child = os.open(folder, _ENTER, dir_fd=parent)
    os.close(parent)
    return child


@dataclass(frozen=True, slots=True)
class Author:
    """Who a commit is said to be by."""

    name: str
    email: str


def make_commit(
    bare: Path, tree: str, parent: str, message: str, author: Author, date: datetime
) -> str:
    """Write one commit and return its name. The same arguments always give the same commit.

    Author and committer are the same person and moment. No ref is touched, no hook runs and
    nothing is signed.
    """
    for value in (author.name, author.email):
        if not value.strip() or set(value) & set("<>\n\r\0"):
            raise TreeRefused(
                reason=f"“{spell(value.encode())}” cannot be an author in git",
                remedy="Set a name and an address without angle brackets or line breaks.",
            )
    if "\0" in message or not message.strip():
        raise TreeRefused(
            reason="the commit message is empty or holds a NUL", remedy="Write a message."
        )
    if date.tzinfo is None:
        raise ValueError("a commit needs a time with its zone")
    moment = f"{int(date.astimezone(UTC).timestamp())} +0000"
    who = {
        "GIT_AUTHOR_NAME": author.name,
        "GIT_AUTHOR_EMAIL": author.email,
        "GIT_AUTHOR_DATE": moment,
        "GIT_COMMITTER_NAME": author.name,
        "GIT_COMMITTER_EMAIL": author.email,
        "GIT_COMMITTER_DATE": moment,
    }
    out = _git(
        bare,
        "commit-tree",
        tree_of(bare, tree),
        "-p",
        _checked(parent),
        data=message.encode(),
        extra=who,
    )
    return out.decode().strip()
