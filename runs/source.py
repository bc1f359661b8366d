"""Fetch a job's source in the outer runtime and lay it out as plain files.

The sandbox gets files, never a repository: no `.git`, no remote, no credential, no hook. `resolve`
turns a contract's [source] into a commit and a tree in a bare repository below the cache;
`checkout` writes that commit as it is stored. Attributes, filters, end-of-line conversion and LFS
smudging do not happen.

The rules, each with its refusal (`SourceRefused`, with a code and a way out):

* **Addresses**: https, ssh, http; a path below the source root. An address or ref that begins with
  a hyphen, `ext::` and other helpers, a password in the address, redirects: refused.
* **Refs**: a branch, a tag, a full `refs/…` name or a full commit id. A name that is both a branch
  and a tag is refused as ambiguous; an abbreviated commit id is no ref.
* **Submodules**: refused, or left out and listed (`submodules = "leave-out"`).
* **LFS pointers**: refused, or kept as pointer files and listed (`lfs = "keep-pointers"`).
* **Links**: kept if they stay inside the tree, judged by following them; one that leads out is
  refused, or left out and listed (`links_out = "leave-out"`). Nothing is written through a link.
* **Paths**: must be UTF-8, and must not contain `..`, `.git` or a control character.
* **Sizes**: bytes on disk, number of files and bytes of the working tree are bounded.

Two fetches into one cache wait for each other (flock); a commit that is already there is used
without asking the network, so a run that was paused finds its source when the host is gone. For
the same reason a cache is one tenant's own, and what was fetched with a credential is found with
that credential alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from runs.contract import Source
from runs.contract.rules import git_ref, git_url, workspace_path
from runs.gitcmd import Git, Reach, SourceRefused
from runs.source_files import CheckoutInfo, Entry, LeftOut, judge_entries, write_entries

__all__ = [
    "CheckoutInfo",
    "LeftOut",
    "ResolvedSource",
    "SourceRefused",
    "checkout",
    "resolve",
]

COMMIT_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
PROTOCOLS = ("https", "ssh", "http")
MAX_LISTING = 200_000
GIVE_UP = frozenset({"source.too_large", "source.denied", "source.not_repository"})


@dataclass(frozen=True)
class ResolvedSource:
    """A commit, its tree, and the bare repository below the cache that holds both.

    `key` is the name of that repository, `spec` the rules it was asked for with.
    """

    spec: Source
    key: str
    commit: str
    tree: str

    def repository(self, cache: Path) -> Path:
        """The bare repository, for building a candidate against the commit."""
        return cache / f"{self.key}.git"


def resolve(
    spec: Source,
    cache: Path,
    *,
    root: Path | None = None,
    commit: str | None = None,
    authorization: str = "",
    timeout: float = 300,
    protocols: tuple[str, ...] = PROTOCOLS,
    max_bytes: int = 2 << 30,
    reach: Reach | None = None,
) -> ResolvedSource:
    """Fetch what the contract names and return its commit.

    `root` is the directory that `spec.path` is below; without one, paths are refused. `commit` pins
    an earlier result: then the ref is not asked again. `authorization` is the value of the HTTP
    header for this address; `reach` says where its host may be connected to, and without one it may
    be anywhere. Safe to repeat, and to call from several processes at once.
    """
    git, address, key = _git_for(
        spec, cache, root, authorization, timeout, protocols, max_bytes=max_bytes, reach=reach
    )
    ref = commit or spec.ref
    if fault := git_ref(ref):
        raise SourceRefused("source.bad_ref", " ".join(fault))
    with only_one(cache / f"{key}.lock", timeout):
        prepare(git)
        if not (COMMIT_ID.fullmatch(ref) and has_commit(git, ref)):
            ref = fetch(git, address, ref)
        found = peel(git, ref)
        # Kept under a ref of its own, so that no clean-up takes it from a waiting run.
        git.run("update-ref", f"refs/imprimatur/{found[0]}", found[0])
    return ResolvedSource(spec, key, *found)


def _key(spec: Source, address: str) -> str:
    """The name of an address in the cache, as it is reached with one credential, or with none."""
    return hashlib.sha256(f"{address}\n{spec.credential}".encode()).hexdigest()[:32]


def kept(spec: Source, cache: Path, commit: str) -> bool:
    """Whether the commit was fetched already, so that nobody needs to be asked for it."""
    if not spec.git:
        return False
    address, _ = address_of(spec, None, PROTOCOLS)
    repository = cache / f"{_key(spec, address)}.git"
    return repository.is_dir() and has_commit(Git(repository, 60), commit)


def _git_for(
    spec: Source,
    cache: Path,
    root: Path | None,
    authorization: str,
    timeout: float,
    protocols: tuple[str, ...] = PROTOCOLS,
    *,
    max_bytes: int = 2 << 30,
    reach: Reach | None = None,
) -> tuple[Git, str, str]:
    """How to run git for a source, its address, and the name of its repository in the cache."""
    address, trusted = address_of(spec, root, protocols)
    key = _key(spec, address)
    git = Git(
        cache / f"{key}.git",
        timeout,
        protocols=("file",) if trusted else protocols,
        trusted=trusted,
        url="" if trusted else address,
        authorization=authorization,
        max_bytes=max_bytes,
        reach=reach,
    )
    return git, address, key


def head(
    spec: Source,
    cache: Path,
    *,
    root: Path | None,
    authorization: str = "",
    timeout: float = 30,
    reach: Reach | None = None,
) -> str:
    """What the ref names at its host now; a commit names itself. Fetches nothing.

    Raises `SourceRefused`.
    """
    git, address, key = _git_for(spec, cache, root, authorization, timeout, reach=reach)
    if COMMIT_ID.fullmatch(spec.ref):
        return spec.ref
    if fault := git_ref(spec.ref):
        raise SourceRefused("source.bad_ref", " ".join(fault))
    with only_one(cache / f"{key}.lock", timeout):
        prepare(git)
    _, commit = _advertised(git, address, spec.ref)
    return commit


def checkout(
    resolved: ResolvedSource,
    cache: Path,
    dest: Path,
    *,
    max_files: int = 100_000,
    max_bytes: int = 1 << 30,
    timeout: float = 300,
) -> CheckoutInfo:
    """Write the commit's files into `dest`, which must not exist or be empty.

    Either everything is there or `SourceRefused` is raised and `dest` is as it was.
    """
    git = Git(resolved.repository(cache), timeout)
    listing = git.run("ls-tree", "-r", "-l", "-z", "--full-tree", resolved.commit).out
    records = listing.split(b"\0")
    if len(records) > MAX_LISTING:
        raise SourceRefused("source.too_many_files", f"The source has {len(records)} files.")
    entries = [Entry.read(record) for record in records if record]
    kept, left_out = judge_entries(git, entries, resolved.spec, max_files, max_bytes)
    return write_entries(git, kept, dest, left_out)


def tracked(resolved: ResolvedSource, cache: Path, *, timeout: float = 300) -> list[str]:
    """Every path of the commit. A name that is not UTF-8 is spelled as Python's `os.fsdecode`."""
    git = Git(resolved.repository(cache), timeout)
    listing = git.run("ls-tree", "-r", "-z", "--name-only", "--full-tree", resolved.commit).out
    return [os.fsdecode(name) for name in listing.split(b"\0") if name]


# --- Where the source is ------------------------------------------------------------------------


def address_of(
    spec: Source, root: Path | None, protocols: tuple[str, ...]
) -> tuple[str, Path | None]:
    """What git is given, and the local repository if it is one."""
    if spec.path:
        local = local_repository(spec.path, root)
        return str(local), local
    if fault := git_url(spec.git):
        raise SourceRefused("source.bad_address", " ".join(fault))
    if urlsplit(spec.git).scheme not in protocols:
        raise SourceRefused(
            "source.protocol",
            f"{urlsplit(spec.git).scheme}:// is not allowed here. "
            f"Use an address that begins with {'://, '.join(protocols)}://.",
        )
    return spec.git, None


def local_repository(path: str, root: Path | None) -> Path:
    """The repository below the root, links on the way included."""
    if root is None:
        raise SourceRefused(
            "source.no_root",
            "This portal has no source root, so the contract cannot name a path. "
            "Name an address under git, or ask for SOURCE_ROOT to be set.",
        )
    if fault := workspace_path(path):
        raise SourceRefused("source.bad_path", " ".join(fault))
    base = root.resolve()
    local = (base / path).resolve()
    if not local.is_relative_to(base):
        raise SourceRefused(
            "source.path_outside",
            f"{path} leads out of the source root. Move the repository below it.",
        )
    if not ((local / "HEAD").is_file() or (local / ".git").exists()):
        raise SourceRefused(
            "source.not_repository",
            f"There is no git repository at {path} below the source root. Check the path.",
        )
    return local


# --- Into the cache -----------------------------------------------------------------------------


@contextmanager
def only_one(path: Path, timeout: float) -> Iterator[None]:
    """Hold the cache of one source. A process that dies lets go by dying."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    deadline = time.monotonic() + timeout
    with path.open("a") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SourceRefused(
                        "source.busy",
                        "Another run is still fetching this source. Try again in a moment.",
                        retry_safe=True,
                    ) from None
                time.sleep(0.05)
        yield


def prepare(git: Git) -> None:
    """A bare repository without hooks; what a process that died left half-made is tidied."""
    tidy(git)
    if not (git.repository / "objects").is_dir() or not (git.repository / "HEAD").is_file():
        git.run("init", "--quiet", "--bare", "--template=", str(git.repository))


def tidy(git: Git) -> None:
    """Remove what a git that did not end well left behind. Call it only with the lock held.

    A lock of its own would refuse every later fetch: git never takes one for stale by itself.
    """
    for pattern in ("objects/pack/tmp_*", "*.lock", "refs/**/*.lock"):
        for left in git.repository.glob(pattern):
            left.unlink(missing_ok=True)


def has_commit(git: Git, commit: str) -> bool:
    return git.run("cat-file", "-e", f"{commit}^{{commit}}", status=True).status == 0


def fetch(git: Git, address: str, ref: str) -> str:
    """Fetch exactly one ref with its history and return where it is kept."""
    here = f"refs/imprimatur/fetch/{uuid.uuid4().hex}"
    wanted = ref if COMMIT_ID.fullmatch(ref) else advertised(git, address, ref)
    try:
        fetch_into(git, address, f"+{wanted}:{here}")
    except SourceRefused as refused:
        if not COMMIT_ID.fullmatch(ref) or refused.retry_safe or refused.code in GIVE_UP:
            raise
        # A host may not hand out a commit by its id; then it must be on some branch or tag.
        fetch_into(git, address, f"+refs/heads/*:{here}/heads/*", f"+refs/tags/*:{here}/tags/*")
        if not has_commit(git, ref):
            raise missing(address, ref) from None
        return ref
    commit = git.run("rev-parse", "--verify", "--end-of-options", here).out.decode().strip()
    git.run("update-ref", "-d", here)
    return commit


def fetch_into(git: Git, address: str, *refspecs: str) -> None:
    git = git.held()
    options = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance")
    try:
        git.run("fetch", *options, "--no-recurse-submodules", "--", address, *refspecs)
    except SourceRefused as refused:
        # A process that may write no more dies without a word; what it wrote tells why.
        pieces = list(git.repository.glob("objects/pack/tmp_*"))
        if any(piece.stat().st_size >= git.max_bytes // 512 * 512 for piece in pieces):
            raise SourceRefused(
                "source.too_large",
                f"The repository has more than {git.max_bytes} bytes, which is the most the portal "
                "fetches. Use a smaller one, or raise the limit.",
            ) from refused
        raise
    finally:
        tidy(git)


def advertised(git: Git, address: str, ref: str) -> str:
    """The one full name the remote has for the ref."""
    return _advertised(git, address, ref)[0]


def _advertised(git: Git, address: str, ref: str) -> tuple[str, str]:
    """The one full name the remote has for the ref, and the object it names."""
    names = [ref] if ref == "HEAD" or ref.startswith("refs/") else []
    names = names or [f"refs/heads/{ref}", f"refs/tags/{ref}"]
    listed = git.held().run("ls-remote", "--quiet", "--", address, *names)
    listing = listed.out.decode("utf-8", "replace")
    there = {
        name: found for found, _, name in (line.partition("\t") for line in listing.splitlines())
    }
    found = [name for name in names if name in there]
    if not found:
        raise missing(address, ref)
    if len(found) > 1:
        raise SourceRefused(
            "source.ref_ambiguous",
            f"{ref} is both a branch and a tag. Write refs/heads/{ref} or refs/tags/{ref}.",
        )
    return found[0], there[found[0]]


def missing(address: str, ref: str) -> SourceRefused:
    shown = address if "://" in address else Path(address).name
    return SourceRefused(
        "source.ref_missing",
        f"{shown} has no branch, tag or commit {ref}. Check the spelling, and that it was pushed; "
        "a commit is named by its full id.",
    )


def peel(git: Git, ref: str) -> tuple[str, str]:
    """Commit and tree of an object; a tag leads to what it tags."""
    commit = git.run(
        "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}", status=True
    )
    if commit.status:
        raise SourceRefused("source.not_commit", f"{ref} does not lead to a commit. Name a branch.")
    tree = git.run("rev-parse", "--verify", "--end-of-options", f"{ref}^{{tree}}")
    return commit.out.decode().strip(), tree.out.decode().strip()
