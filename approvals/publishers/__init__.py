"""What a publisher is: the one place where something approved leaves the portal.

This module is core: plain data, no framework, no network. `git` and `github`
beside it are the edges that act. A publisher is called with an intent that was
written down before the act, uses only names that follow from that intent, and
looks for its own earlier result first, so calling it again is safe.

The commit is a pure function of the intent (`commit_id`). It can be shown on
the packet before anyone decides, and found again afterwards by name.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Literal, Protocol

TargetKind = Literal["git", "github"]

# A pull request body longer than this is refused by GitHub. One limit for every
# target, so that a packet does not depend on where it goes.
BODY_LIMIT = 65_536
TITLE_LIMIT = 256
MESSAGE_LIMIT = 16_384

MARKER_TRAILER = "Imprimatur-Publication"

_MARKER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{7,127}")
_OBJECT_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_BRANCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,199}")
_REPOSITORY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38})/[A-Za-z0-9._-]{1,100}")
_EMAIL = re.compile(r"[^\s<>@]+@[^\s<>@]+")


# --- Errors ---------------------------------------------------------------


class PublishError(Exception):
    """The publisher did not reach its end, and says why and what to do next.

    Subclasses set `code` (stable, for rows, tests and logs), `retry_safe`
    (whether the same call may simply be made again) and `text` (one sentence
    for the reason, one for the way out, with the constructor's keyword
    arguments in braces). Nothing here ever holds a credential.
    """

    code: ClassVar[str]
    retry_safe: ClassVar[bool] = False
    boundary: ClassVar[Literal["control"]] = "control"
    text: ClassVar[str]

    def __init__(self, **facts: object) -> None:
        self.facts = facts
        # What this call did make before it ended, for the record; empty if nothing.
        self.left = ""
        super().__init__(self.text.format(**facts))


class IntentRefused(PublishError):
    """The intent itself is not one that can be published. Nothing was sent."""

    code = "publish.intent_refused"
    text = "The publication was not started, because {reason}. {remedy}"


class ContentMismatch(PublishError):
    """The bytes at hand, or the bytes read back, are not the approved ones."""

    code = "publish.content_mismatch"
    text = (
        "The content {where} is not the content that was approved ({detail}). "
        "Nothing more was done. Take the candidate again and ask for a new approval."
    )


class BaseChanged(PublishError):
    """The base branch no longer allows the approved diff to be what is merged."""

    code = "publish.base_changed"
    text = (
        "The base branch {base_branch} at {target} {change}. "
        "Run the job again on the present base and ask for a new approval."
    )


class TargetConflict(PublishError):
    """Something that is not ours stands where the publication should go."""

    code = "publish.target_conflict"
    text = "{what} at {target}. Nothing of it was changed. {remedy}"


class DraftNotKept(TargetConflict):
    """The host made a pull request, and it is not a draft as was asked."""

    code = "publish.draft_not_kept"


class DraftsUnsupported(PublishError):
    """The host cannot make drafts here. A ready pull request is never made instead."""

    code = "publish.drafts_unsupported"
    text = (
        "{target} does not support draft pull requests, so none was opened: the approval was "
        "for a draft. The branch {branch} is there with the approved commit and may be deleted. "
        "Use a repository or plan that has drafts, or approve another target."
    )


class TargetRefused(PublishError):
    """The target said no: who we are, what we may do, or that it does not exist."""

    code = "publish.target_refused"
    text = "{target} refused the publication ({status}): {reason}. {remedy}"

    def __init__(self, *, status: int | str, **facts: object) -> None:
        self.status = status
        super().__init__(status=status, **facts)


class RateLimited(PublishError):
    """The target asks us to wait. Nothing was done by the call that met the limit."""

    code = "publish.rate_limited"
    retry_safe = True
    text = (
        "{target} limits how often it may be asked. "
        "The publication can be tried again in {retry_after} seconds."
    )

    def __init__(self, *, retry_after: int, **facts: object) -> None:
        self.retry_after = retry_after
        super().__init__(retry_after=retry_after, **facts)


class TargetUnavailable(PublishError):
    """The target could not be asked, and the act that failed had no effect."""

    code = "publish.target_unavailable"
    retry_safe = True
    text = "{target} could not be reached or did not work ({reason}). It can be tried again."


class OutcomeUnknown(PublishError):
    """The act may have happened, and looking for it gave no answer.

    Never retried blindly. `look` settles it later, or a person does.
    """

    code = "publish.outcome_unknown"
    text = (
        "It is not known whether {act} happened at {target} ({reason}). "
        "Look again later with 'reconcile', or look at the target and settle it by hand."
    )


# --- Data -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Credential:
    """A secret for one call. It is given at call time and kept nowhere.

    Git servers get it as `username:token` in a Basic header (`scheme="basic"`)
    or as a Bearer header; a forge's API always gets it as Bearer.
    """

    token: str = field(repr=False)
    username: str = "x-access-token"
    scheme: Literal["basic", "bearer"] = "basic"

    def __post_init__(self) -> None:
        if not self.token or not self.token.isascii() or not self.token.isprintable():
            raise ValueError("A credential's token must be printable ASCII and not empty.")
        if not self.username.isascii() or not self.username.isprintable() or ":" in self.username:
            raise ValueError("A credential's username must be printable ASCII without a colon.")


@dataclass(frozen=True, slots=True)
class Target:
    """Where to publish. `address` is a URL or a path for git, `owner/name` for GitHub."""

    kind: TargetKind
    address: str

    def __str__(self) -> str:
        return self.address if self.kind == "git" else f"{self.kind}:{self.address}"


@dataclass(frozen=True, slots=True)
class PublicationIntent:
    """All that an approved publication will do, written down before it is done.

    `body` is sent as it stands and must hold `body_marker(marker)`;
    `commit_message` must end with `message_trailer(marker)`. `text.compose_body`
    and `text.compose_message` make both. `committed_at` is fixed with the
    intent, so that the commit's id follows from it. Raises `IntentRefused`.
    """

    marker: str
    target: Target
    branch: str
    base_branch: str
    base_commit: str
    tree_sha: str
    commit_message: str
    title: str
    body: str
    author_name: str
    author_email: str
    committed_at: datetime
    # What to do when the base branch only gained commits since the approval: a
    # three-dot diff is still the approved one. A rewritten or deleted base is
    # never published against.
    when_base_moved: Literal["publish", "stale"] = "publish"

    def __post_init__(self) -> None:
        for reason, broken in self._faults():
            if broken:
                raise IntentRefused(
                    reason=reason,
                    remedy="Make a new packet from a corrected contract or candidate.",
                )

    def _faults(self) -> tuple[tuple[str, bool], ...]:
        name_and_mail = (self.author_name, self.author_email)
        return (
            ("its marker is not a plain token", not _MARKER.fullmatch(self.marker)),
            ("its target is not a known kind", self.target.kind not in ("git", "github")),
            (
                "its target is not of the form owner/name",
                self.target.kind == "github" and not is_repository(self.target.address),
            ),
            (
                f"its branch name {self.branch!r} is not a plain branch name",
                not _BRANCH.fullmatch(self.branch) or not is_branch_name(self.branch),
            ),
            (
                f"its base branch {self.base_branch!r} is not a branch name",
                not is_branch_name(self.base_branch),
            ),
            ("its branch is the base branch itself", self.branch == self.base_branch),
            ("its base commit is not a full commit id", not _OBJECT_ID.fullmatch(self.base_commit)),
            ("its tree is not a full tree id", not _OBJECT_ID.fullmatch(self.tree_sha)),
            (
                "its tree and its base commit use different hashes",
                len(self.tree_sha) != len(self.base_commit),
            ),
            ("its time has no zone", self.committed_at.tzinfo is None),
            (
                "its author is not a plain name and mail address",
                not self.author_name.strip()
                or any(c in "<>" or not c.isprintable() for text in name_and_mail for c in text)
                or not _EMAIL.fullmatch(self.author_email),
            ),
            (
                f"its title is empty, longer than {TITLE_LIMIT} characters or not one line",
                not self.title.strip()
                or len(self.title) > TITLE_LIMIT
                or not self.title.isprintable(),
            ),
            (f"its body is longer than {BODY_LIMIT} characters", len(self.body) > BODY_LIMIT),
            ("its body lacks its marker", body_marker(self.marker) not in self.body),
            (
                f"its commit message is longer than {MESSAGE_LIMIT} characters",
                len(self.commit_message) > MESSAGE_LIMIT,
            ),
            (
                "its commit message lacks its marker as the last line",
                self.commit_message.rstrip("\n").split("\n")[-1] != message_trailer(self.marker),
            ),
            ("its commit message holds a NUL character", "\0" in self.commit_message),
            (
                "its texts hold characters that cannot be written as UTF-8",
                not _is_utf8(self.commit_message, self.title, self.body, self.author_name),
            ),
        )


@dataclass(frozen=True, slots=True)
class Found:
    """Something of ours that already stands at the target.

    On a forge, `state="branch"` is half of a publication: the branch is there
    and the pull request is not. `publish` may be called and makes the rest.
    """

    branch: str
    commit: str
    # For a forge: the pull request, or None while only the branch is there.
    url: str | None = None
    number: int | None = None
    draft: bool | None = None
    state: Literal["branch", "open", "closed", "merged"] = "branch"
    note: str = ""


@dataclass(frozen=True, slots=True)
class Published:
    """The end of a publication, read back from the target and not assumed.

    `existed` says that an earlier call, or a person, had made it and this call
    only linked it. `note` is for people and may be empty.
    """

    url: str | None
    branch: str
    commit: str
    tree: str
    draft: bool
    note: str = ""
    number: int | None = None
    existed: bool = False


@dataclass(frozen=True, slots=True)
class RemoteBranch:
    """What the remote holds under the branch's name, as read back."""

    branch: str
    commit: str
    tree: str


class Publisher(Protocol):
    """One kind of target. Synchronous, thread-safe, and without state between calls."""

    kind: TargetKind

    def look(self, intent: PublicationIntent, credential: Credential | None) -> Found | None:
        """Find what stands at the target with our commit or our marker; change nothing.

        None means that nothing of ours is there (a foreign branch of the same
        name included). Raises `TargetConflict` if our marker is on something
        that no longer holds our commit.
        """
        ...

    def publish(
        self, intent: PublicationIntent, bare_repo: Path, credential: Credential | None
    ) -> Published:
        """Make the branch (and, on a forge, the draft pull request), or link what is there.

        `bare_repo` holds the tree and the base commit; it is read and not
        written. Raises a `PublishError`; after `OutcomeUnknown` only `look` may
        follow until the outcome is settled.
        """
        ...

    def verify_remote(
        self, intent: PublicationIntent, credential: Credential | None
    ) -> RemoteBranch:
        """Read the remote branch again; raise `ContentMismatch` unless it is the approved tree."""
        ...


# --- Names that follow from the intent ------------------------------------


def body_marker(marker: str) -> str:
    """The line of a pull request's body by which a publisher knows its own work."""
    return f"<!-- imprimatur-publication: {marker} -->"


def message_trailer(marker: str) -> str:
    """The last line of the commit message, for the same purpose."""
    return f"{MARKER_TRAILER}: {marker}"


def commit_bytes(intent: PublicationIntent) -> bytes:
    """The commit object of an intent, byte for byte as git stores it."""
    when = int(intent.committed_at.astimezone(UTC).timestamp())
    person = f"{intent.author_name} <{intent.author_email}> {when} +0000"
    message = intent.commit_message.rstrip("\n") + "\n"
    return (
        f"tree {intent.tree_sha}\n"
        f"parent {intent.base_commit}\n"
        f"author {person}\n"
        f"committer {person}\n"
        f"\n{message}"
    ).encode()


def commit_id(intent: PublicationIntent) -> str:
    """The id the commit will have at the target; known before anything is sent."""
    body = commit_bytes(intent)
    # Git's object names are what they are; this is identity, not a signature.
    digest = hashlib.sha256() if len(intent.tree_sha) == 64 else hashlib.sha1(usedforsecurity=False)
    digest.update(b"commit %d\0" % len(body))
    digest.update(body)
    return digest.hexdigest()


def is_repository(address: str) -> bool:
    """Whether this is a plain `owner/name` that is safe inside a URL path."""
    name = address.partition("/")[2]
    return bool(_REPOSITORY.fullmatch(address)) and name not in (".", "..", ".git")


def is_branch_name(name: str) -> bool:
    """Git's own rules for a branch name, and that it cannot be taken for an option."""
    if not name or len(name) > 255 or name[0] in "-/" or name[-1] in "/." or name == "@":
        return False
    if any(bad in name for bad in ("..", "//", "@{", "\\")):
        return False
    if any(ord(c) < 33 or ord(c) == 127 or c in "~^:?*[" or not c.isprintable() for c in name):
        return False
    parts = name.split("/")
    return not any(part.startswith(".") or part.endswith(".lock") for part in parts)


def _is_utf8(*texts: str) -> bool:
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError:
        return False
    return True
