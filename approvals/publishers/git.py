"""Publish a branch to a plain git remote, by https, or by path on this machine.

Git does the work in a private room: an empty repository of its own that borrows
the approved objects, with no configuration, hook, prompt or credential helper
of anybody else. The credential travels in the environment of the git process,
bound to the one URL, so it is in no argument list and in no file.

A branch is only ever created. The push is conditional on the branch being
absent, so it cannot move what somebody else made in the meantime.
"""

from __future__ import annotations

import base64
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from approvals.publishers import (
    BaseChanged,
    ContentMismatch,
    Credential,
    Found,
    IntentRefused,
    OutcomeUnknown,
    PublicationIntent,
    Published,
    PublishError,
    RateLimited,
    RemoteBranch,
    TargetConflict,
    TargetKind,
    TargetRefused,
    TargetUnavailable,
    commit_bytes,
    commit_id,
)
from runs.gitcmd import PORTS, place_of

# How far below a foreign branch tip our commit is looked for.
_LOOK_DEPTH = 50
_HTTP_STATUS = re.compile(r"returned error: (\d{3})|\bHTTP (\d{3})\b")
_AUTHOR = re.compile(rb"^author (.*) <[^>]*> \d+ [+-]\d{4}$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class GitOptions:
    """How git is run and whom it may reach. The defaults reach https only."""

    timeout: float = 120.0
    # A path target must lie below one of these directories.
    local_roots: tuple[Path, ...] = ()
    # Plain http sends the credential in clear: for a server on loopback only.
    allow_http: bool = False
    # Where a host may be connected to; without it a host may be anywhere. Raises `PublishError`.
    reach: Callable[[str, int], str] | None = None
    proxy: str | None = None
    ca_file: Path | None = None
    # Waits between looks when it is not known whether a push arrived.
    look_again: tuple[float, ...] = (0.5, 2.0, 5.0)
    pause: Callable[[float], None] = time.sleep


class GitPublisher:
    """A `Publisher` that makes a branch at a plain git remote.

    Git has no pull requests, so nothing there can be a draft: the draft is the
    branch, and `Published.draft` is true because nothing was merged.
    """

    kind: TargetKind = "git"

    def __init__(self, options: GitOptions | None = None) -> None:
        self._options = options or GitOptions()

    def look(self, intent: PublicationIntent, credential: Credential | None) -> Found | None:
        return self._remote(intent, credential).look(intent)

    def publish(
        self, intent: PublicationIntent, bare_repo: Path, credential: Credential | None
    ) -> Published:
        remote = self._remote(intent, credential)
        pushed = remote.push(intent, bare_repo)
        try:
            read_back = remote.verify(intent)
        except ContentMismatch as error:
            error.left = f"The branch {intent.branch} was pushed."
            raise
        except PublishError as error:
            if pushed.existed:
                raise
            # The push was answered, so "failed" and "no effect" would both be wrong.
            raise OutcomeUnknown(
                act=f"the push of {commit_id(intent):.12} to {intent.branch}",
                target=str(intent.target),
                reason=f"it was accepted and could not be read back: {error}",
            ) from error
        return Published(
            url=None,
            branch=read_back.branch,
            commit=read_back.commit,
            tree=read_back.tree,
            draft=True,
            note=pushed.note,
            existed=pushed.existed,
        )

    def verify_remote(
        self, intent: PublicationIntent, credential: Credential | None
    ) -> RemoteBranch:
        return self._remote(intent, credential).verify(intent)

    def _remote(self, intent: PublicationIntent, credential: Credential | None) -> GitRemote:
        if intent.target.kind != "git":
            raise IntentRefused(
                reason=f"{intent.target} is not a git target",
                remedy="Choose the publisher that serves this kind of target.",
            )
        return GitRemote(intent.target.address, str(intent.target), credential, self._options)


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a push came to: whether the branch was there before, and a note for people."""

    existed: bool
    note: str = ""


class GitRemote:
    """One remote for the length of one call. Shared with the forge publishers."""

    def __init__(
        self, address: str, name: str, credential: Credential | None, options: GitOptions
    ) -> None:
        self._name = name
        self._options = options
        self._credential = credential
        self._protocol, self._url = _checked_address(address, options)
        if self._protocol == "file" and credential is not None:
            raise IntentRefused(
                reason="a path on this machine takes no credential",
                remedy="Remove the credential from the target, or use an https address.",
            )

    # --- What callers use -------------------------------------------------

    def look(self, intent: PublicationIntent) -> Found | None:
        """The branch if it holds our commit; see `Publisher.look`."""
        commit = commit_id(intent)
        with self._room(len(intent.tree_sha)) as room:
            head = self._head(room, intent.branch)
            if head is None:
                return None
            if head == commit:
                return Found(branch=intent.branch, commit=commit)
            if self._holds_below(room, intent.branch, head, commit):
                raise self._built_upon(intent, head)
        return None

    def push(self, intent: PublicationIntent, bare_repo: Path) -> Pushed:
        """Create the branch with exactly the approved commit, or find that it is there.

        Raises `TargetConflict` if the branch holds anything else,
        `BaseChanged` if the base no longer stands below it, and
        `OutcomeUnknown` if the push may have arrived and cannot be found.
        """
        commit = commit_id(intent)
        with self._room(len(intent.tree_sha), borrow=bare_repo) as room:
            ours, base = f"refs/heads/{intent.branch}", f"refs/heads/{intent.base_branch}"
            refs = self._refs(room, ours, base)
            head = refs.get(ours)
            if head == commit:
                return Pushed(existed=True, note="The branch was there already, with this commit.")
            if head is not None:
                raise self._foreign(intent, room, head)
            _gather(room, intent, commit)
            note = self._check_base(room, intent, refs.get(base))
            return self._create_branch(room, intent, commit, note)

    def verify(self, intent: PublicationIntent, *, or_ref: str = "") -> RemoteBranch:
        """Fetch the branch into an empty repository and compare it with what was approved.

        `or_ref` is where a forge keeps the commit when the branch was deleted.
        """
        commit = commit_id(intent)
        with self._room(len(intent.tree_sha)) as room:
            branch = f"refs/heads/{intent.branch}"
            refs = self._refs(room, branch, *([or_ref] if or_ref else []))
            ref = branch if branch in refs else or_ref
            if ref not in refs:
                raise ContentMismatch(where=f"at {self._name}", detail="the branch is not there")
            head = refs[ref]
            tree = self._tree_of(room, ref, head)
        if tree != intent.tree_sha or head != commit:
            raise ContentMismatch(
                where=f"at {self._name}",
                detail=f"branch {intent.branch} holds commit {head:.12} with tree {tree:.12}, "
                f"approved were commit {commit:.12} and tree {intent.tree_sha:.12}",
            )
        return RemoteBranch(branch=intent.branch, commit=head, tree=tree)

    # --- Asking the remote ------------------------------------------------

    def _head(self, room: _Room, branch: str) -> str | None:
        ref = f"refs/heads/{branch}"
        return self._refs(room, ref).get(ref)

    def _refs(self, room: _Room, *refs: str) -> dict[str, str]:
        done = self._talk(room, "ls-remote", "--refs", self._url, *refs)
        if done.code != 0:
            raise self._explain(done)
        # A pattern of ls-remote also matches the tail of a longer name.
        lines = (line.partition("\t") for line in done.text.splitlines())
        return {ref: sha for sha, _, ref in lines if ref in refs}

    def _fetch(self, room: _Room, ref: str, into: str, *depth: str) -> None:
        done = self._talk(
            room,
            *("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", *depth),
            *("--filter=tree:0", self._url, f"+{ref}:refs/room/{into}"),
        )
        if done.code != 0:
            raise self._explain(done)

    def _tree_of(self, room: _Room, ref: str, head: str) -> str:
        self._fetch(room, ref, "verify", "--depth=1")
        raw = room.git("cat-file", "commit", head).must("reading a commit back").out
        return raw[len(b"tree ") :].split(b"\n", 1)[0].decode("ascii", "replace")

    def _holds_below(self, room: _Room, branch: str, head: str, commit: str) -> bool:
        self._fetch(room, f"refs/heads/{branch}", "look", f"--depth={_LOOK_DEPTH}")
        done = room.git("rev-list", head).must("reading the branch's history")
        return commit in done.text.split()

    def _author_of(self, room: _Room, branch: str, head: str) -> str:
        """Who wrote the tip of a foreign branch, for the message; empty if it cannot be said."""
        try:
            self._fetch(room, f"refs/heads/{branch}", "foreign", "--depth=1")
        except PublishError:
            return ""
        match = _AUTHOR.search(room.git("cat-file", "commit", head).out)
        name = match[1].decode("utf-8", "replace") if match else ""
        return _shown(name)[:80]

    def _check_base(self, room: _Room, intent: PublicationIntent, head: str | None) -> str:
        """Refuse a base on which the approved diff would become another one."""
        if head == intent.base_commit:
            return ""
        change = ""
        if head is None:
            change = "is not there any more"
        elif intent.when_base_moved == "stale":
            change = f"moved to {head:.12} after the approval"
        else:
            self._fetch(room, f"refs/heads/{intent.base_branch}", "base")
            below = room.git("merge-base", "--is-ancestor", intent.base_commit, head)
            if below.code != 0:
                change = f"was rewritten: {head:.12} does not contain {intent.base_commit:.12}"
        if change:
            raise BaseChanged(base_branch=intent.base_branch, target=self._name, change=change)
        return (
            f"The base branch {intent.base_branch} moved to {head:.12} since the approval; "
            f"the branch stands on the approved base {intent.base_commit:.12}."
        )

    # --- The act ----------------------------------------------------------

    def _create_branch(
        self, room: _Room, intent: PublicationIntent, commit: str, note: str
    ) -> Pushed:
        ref = f"refs/heads/{intent.branch}"
        try:
            done = self._talk(
                room,
                *("push", "--porcelain", "--no-verify", "--no-signed", "--recurse-submodules=no"),
                # An empty expectation: the push holds only if the branch does not exist.
                *(f"--force-with-lease={ref}:", self._url, f"{commit}:{ref}"),
            )
        except TargetUnavailable as lost:
            return self._settle(room, intent, commit, note, reason=str(lost.facts["reason"]))
        if done.code == 0:
            return Pushed(existed=False, note=note)
        rejected = re.search(r"^!\t[^\t]*\t(.*)$", done.text, re.MULTILINE)
        if rejected is None and _before_any_effect(done.err):
            raise self._explain(done)
        if rejected is None:
            # The connection broke after the objects were on their way.
            return self._settle(room, intent, commit, note, reason=_reason(done.err))
        head = self._head(room, intent.branch)
        if head == commit:
            # A twin of this call came first. Same commit, same outcome.
            return Pushed(existed=True, note=note)
        if head is not None:
            raise self._foreign(intent, room, head)
        raise self._rejected(intent, rejected[1], done.err)

    def _settle(
        self, room: _Room, intent: PublicationIntent, commit: str, note: str, *, reason: str
    ) -> Pushed:
        """Look whether a push arrived that had no answer."""
        for wait in self._options.look_again:
            self._options.pause(wait)
            try:
                head = self._head(room, intent.branch)
            except PublishError:
                continue
            if head == commit:
                late = "The push had no answer, and was then found at the target."
                return Pushed(existed=False, note=f"{late} {note}".strip())
            if head is not None:
                raise self._foreign(intent, room, head)
        raise OutcomeUnknown(
            act=f"the push of {commit:.12} to {intent.branch}", target=self._name, reason=reason
        )

    # --- Saying what went wrong -------------------------------------------

    def _foreign(self, intent: PublicationIntent, room: _Room, head: str) -> TargetConflict:
        author = self._author_of(room, intent.branch, head)
        by = f" by {author}" if author else ""
        return TargetConflict(
            what=f"The branch {intent.branch} is there with another commit, {head:.12}{by},",
            target=self._name,
            remedy="Rename or delete that branch, or make a new packet with another branch name.",
        )

    def _built_upon(self, intent: PublicationIntent, head: str) -> TargetConflict:
        return TargetConflict(
            what=f"The branch {intent.branch} holds the approved commit with other commits "
            f"on top of it, up to {head:.12},",
            target=self._name,
            remedy="The publication happened and somebody added to it since; settle it by hand.",
        )

    def _rejected(self, intent: PublicationIntent, said: str, err: str) -> PublishError:
        if "directory file conflict" in said or "cannot lock ref" in said + err:
            return TargetConflict(
                what=f"A branch whose name is part of {intent.branch} is there",
                target=self._name,
                remedy="Make a new packet with another branch prefix.",
            )
        remote = [line[7:].strip() for line in err.splitlines() if line.startswith("remote:")]
        return TargetRefused(
            target=self._name,
            status="rejected",
            reason=_shown(" ".join([said, *remote])),
            remedy="Ask the owner of the target which rule for branches this meets.",
        )

    def _explain(self, done: _Done) -> PublishError:
        """Turn a failed conversation that had no effect into a typed error."""
        err = done.err
        status = _http_status(err)
        if "terminal prompts disabled" in err or "Authentication failed" in err:
            status = 401
        elif any(sign in err for sign in _NO_REPOSITORY):
            status = 404
        if status == 429:
            return RateLimited(target=self._name, retry_after=60)
        if status in _REFUSALS:
            reason, remedy = _REFUSALS[status]
            return TargetRefused(target=self._name, status=status, reason=reason, remedy=remedy)
        if 400 <= status < 500:
            return TargetRefused(
                target=self._name,
                status=status,
                reason=_reason(err),
                remedy="Ask the owner of the target what this meets, for example a limit of size.",
            )
        if 300 <= status < 400 or "redirect" in err:
            return TargetRefused(
                target=self._name,
                status=status or "redirect",
                reason="the address leads to another one, and redirects are not followed",
                remedy="Put the new address into the target and ask for a new approval.",
            )
        if "dubious ownership" in err:
            return TargetRefused(
                target=self._name,
                status="ownership",
                reason="the repository belongs to another user of this machine",
                remedy="Give the repository to the user the portal runs as, or use https.",
            )
        return TargetUnavailable(target=self._name, reason=_reason(err))

    # --- Running git ------------------------------------------------------

    @contextmanager
    def _room(self, id_length: int, *, borrow: Path | None = None) -> Iterator[_Room]:
        with tempfile.TemporaryDirectory(prefix="imprimatur-publish-") as place:
            room = _Room(Path(place), self._options)
            room.furnish("sha256" if id_length == 64 else "sha1", borrow)
            yield room

    def _talk(self, room: _Room, *args: str) -> _Done:
        done = room.git(*args, remote=(self._protocol, self._url, self._credential))
        if done.timed_out:
            raise TargetUnavailable(target=self._name, reason=done.err)
        return done


_NO_REPOSITORY = ("' not found", "not appear to be a git repository", "' does not exist")

_REFUSALS = {
    401: (
        "the credential is missing, wrong or expired",
        "Renew the credential of this target and try again.",
    ),
    403: (
        "the credential may not write there",
        "Give the credential write access to the contents of this repository.",
    ),
    404: (
        "there is no such repository, or the credential may not see it",
        "Check the address of the target and the repositories the credential covers.",
    ),
}


@dataclass(frozen=True, slots=True)
class _Done:
    code: int
    out: bytes
    err: str
    timed_out: bool = False

    @property
    def text(self) -> str:
        return self.out.decode("utf-8", "replace")

    def must(self, doing: str) -> _Done:
        """This, unless git failed at something that is local and ought to work."""
        if self.timed_out:
            raise TargetUnavailable(target="The portal's own repository", reason=self.err)
        if self.code != 0:
            raise ContentMismatch(where="at hand", detail=f"{doing}: {_reason(self.err)}")
        return self


@dataclass(frozen=True, slots=True)
class _Room:
    """A repository for one call, in a directory that nobody else may enter."""

    place: Path
    options: GitOptions
    git_dir: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "git_dir", self.place / "room.git")

    def furnish(self, object_format: str, borrow: Path | None) -> None:
        init = ("init", "--quiet", "--bare", "--template=", f"--object-format={object_format}")
        self.git(*init, str(self.git_dir)).must("making a repository")
        if borrow is None:
            return
        store = borrow.resolve() / "objects"
        if not store.is_dir():
            raise ContentMismatch(where="at hand", detail="the run's repository is not there")
        info = self.git_dir / "objects" / "info"
        info.mkdir(exist_ok=True)
        (info / "alternates").write_bytes(_c_quoted(store) + b"\n")
        if (shallow := borrow / "shallow").is_file():
            (self.git_dir / "shallow").write_bytes(shallow.read_bytes())

    def git(
        self,
        *args: str,
        stdin: Path | bytes = b"",
        stdout: Path | None = None,
        remote: tuple[str, str, Credential | None] | None = None,
    ) -> _Done:
        """Run git and wait. A run that takes too long is ended with all its children."""
        given = stdin.read_bytes() if isinstance(stdin, Path) else stdin
        with (
            tempfile.TemporaryFile(dir=self.place) as source,
            stdout.open("wb+") if stdout else tempfile.TemporaryFile(dir=self.place) as out,
            tempfile.TemporaryFile(dir=self.place) as err,
        ):
            source.write(given)
            source.seek(0)
            process = subprocess.Popen(
                ["git", *args],
                stdin=source,
                stdout=out,
                stderr=err,
                cwd=self.place,
                env=_environment(self, remote),
                start_new_session=True,
            )
            try:
                code = process.wait(self.options.timeout)
            except subprocess.TimeoutExpired:
                late = f"no answer within {self.options.timeout:g} seconds"
                return _Done(-1, b"", late, timed_out=True)
            finally:
                # Also after an exception of the worker: a push must not outlive its call.
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            for stream in (out, err):
                stream.seek(0)
            words = err.read(65_536).decode("utf-8", "replace")
            secrets = _secrets(remote[2] if remote else None)
            return _Done(code, b"" if stdout else out.read(), _without(words, secrets))


def _environment(room: _Room, remote: tuple[str, str, Credential | None] | None) -> dict[str, str]:
    """Git's whole environment: nothing is inherited but the search path."""
    config = [
        ("core.hooksPath", os.devnull),
        ("core.fsmonitor", "false"),
        ("core.askPass", ""),
        ("credential.helper", ""),
        ("gc.auto", "0"),
        ("maintenance.auto", "false"),
        ("push.followTags", "false"),
        ("submodule.recurse", "false"),
        ("http.followRedirects", "false"),
        ("http.lowSpeedLimit", "1"),
        ("http.lowSpeedTime", str(max(1, int(room.options.timeout)))),
        # Empty means none; otherwise git would read one from the environment.
        ("http.proxy", room.options.proxy or ""),
    ]
    protocol, url, credential = remote or ("none", "", None)
    if room.options.ca_file:
        config.append(("http.sslCAInfo", str(room.options.ca_file)))
    if room.options.reach is not None and protocol in PORTS:
        host, port = place_of(url)
        if address := room.options.reach(host, port):
            shown = f"[{address}]" if ":" in address else address
            config.append(("http.curloptResolve", f"{host}:{port}:{shown}"))
    if credential is not None:
        config.append((f"http.{url}.extraHeader", f"Authorization: {_authorization(credential)}"))
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(room.place),
        "XDG_CONFIG_HOME": str(room.place),
        "TMPDIR": str(room.place),
        "LC_ALL": "C",
        "GIT_DIR": str(room.git_dir),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_ALLOW_PROTOCOL": protocol,
        "GIT_CONFIG_COUNT": str(len(config)),
    }
    for number, (key, value) in enumerate(config):
        environment[f"GIT_CONFIG_KEY_{number}"] = key
        environment[f"GIT_CONFIG_VALUE_{number}"] = value
    return environment


def _gather(room: _Room, intent: PublicationIntent, commit: str) -> None:
    """Copy what will be sent into the room, hashing every byte of it anew.

    The objects the approval named may have been swapped on disk since. Git
    does not hash what it reads, so they are packed and indexed again: a byte
    that changed gives an object of another name, and the lists differ.
    """
    kind = room.git("cat-file", "-t", intent.base_commit)
    if kind.text.strip() != "commit":
        raise ContentMismatch(where="at hand", detail="the approved base commit is not there")
    kind = room.git("cat-file", "-t", intent.tree_sha)
    if kind.text.strip() != "tree":
        raise ContentMismatch(where="at hand", detail="the approved tree is not there")
    made = room.git("hash-object", "-w", "-t", "commit", "--stdin", stdin=commit_bytes(intent))
    if made.must("writing the commit").text.strip() != commit:
        raise ContentMismatch(where="at hand", detail="the commit got another id than planned")

    wanted = f"{commit}\n^{intent.base_commit}\n".encode()
    listing = ("rev-list", "--objects", "--no-object-names", "--stdin")
    names = room.git(*listing, stdin=wanted).must("listing the approved objects")
    pack = room.place / "approved.pack"
    packing = ("pack-objects", "--quiet", "--revs", "--stdout", "--no-reuse-object")
    room.git(*packing, stdin=wanted, stdout=pack).must("reading the approved objects")
    indexed = room.git("index-pack", "--strict", "--stdin", stdin=pack)
    name = indexed.must("hashing the approved objects").text.split()[-1]
    index = room.git_dir / "objects" / "pack" / f"pack-{name}.idx"
    held = room.git("show-index", stdin=index).must("listing the hashed objects")
    if {line.split()[1] for line in held.text.splitlines()} != set(names.text.split()):
        raise ContentMismatch(where="at hand", detail="an object does not hash to its own name")


def _checked_address(address: str, options: GitOptions) -> tuple[str, str]:
    """The protocol git may use and the address it gets; refuses all others."""
    if not address.isprintable() or not address or address.startswith("-"):
        raise _bad_address("the address is not a plain one")
    if "://" not in address or address.startswith("file://"):
        return "file", str(_local_path(address.removeprefix("file://"), options.local_roots))
    parts = urlsplit(address)
    if parts.scheme != "https" and not (parts.scheme == "http" and options.allow_http):
        raise _bad_address(f"{parts.scheme} is not a way the portal publishes by")
    if parts.username is not None or parts.password is not None:
        raise _bad_address("the address holds a user name or a credential")
    if not parts.hostname or parts.query or parts.fragment or not address.isascii():
        raise _bad_address("the address is not a plain one")
    return parts.scheme, address


def _local_path(path: str, roots: Collection[Path]) -> Path:
    place = Path(path)
    if not place.is_absolute():
        raise _bad_address("a path must be absolute")
    place = place.resolve()
    if not str(place).isprintable():
        raise _bad_address("the path it leads to is not a plain one")
    if not any(place.is_relative_to(root.resolve()) for root in roots):
        raise _bad_address("the path is outside the directories that may be published to")
    return place


def _bad_address(reason: str) -> IntentRefused:
    return IntentRefused(
        reason=reason,
        remedy="Give an https address without a credential in it, or a path the portal allows.",
    )


def _authorization(credential: Credential) -> str:
    if credential.scheme == "bearer":
        return f"Bearer {credential.token}"
    pair = f"{credential.username}:{credential.token}".encode("ascii")
    return f"Basic {base64.b64encode(pair).decode('ascii')}"


def _secrets(credential: Credential | None) -> Sequence[str]:
    if credential is None:
        return ()
    return (credential.token, _authorization(credential).partition(" ")[2])


def _without(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _before_any_effect(err: str) -> bool:
    """Whether git failed while it was still asking what is there.

    `unable to access` and the like end the discovery, which reads only; an
    answer of the 4xx kind says itself that nothing was taken. What fails later
    says that the call failed or the remote end hung up.
    """
    if 400 <= _http_status(err) < 500:
        return True
    if "RPC failed" in err or "hung up" in err or "unexpected disconnect" in err:
        return False
    signs = ("unable to access", "Authentication failed", "terminal prompts disabled")
    return any(sign in err for sign in signs) or "not found" in err


def _http_status(err: str) -> int:
    return next((int(a or b) for a, b in _HTTP_STATUS.findall(err)), 0)


def _reason(err: str) -> str:
    lines = [line for line in err.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("fatal:", "error:"))]
    return _shown((telling or lines or ["git gave no reason"])[0])


def _shown(text: str) -> str:
    """A remote's words, short and without anything that hides."""
    return "".join(c if c.isprintable() else " " for c in text).strip()[:300]


def _c_quoted(path: Path) -> bytes:
    """A path as git's alternates file wants it, whatever bytes it holds."""
    raw = os.fsencode(path)
    return b'"' + b"".join(_c_byte(byte) for byte in raw) + b'"'


def _c_byte(byte: int) -> bytes:
    if 32 <= byte < 127 and byte not in b'"\\':
        return bytes((byte,))
    return b"\\%03o" % byte
