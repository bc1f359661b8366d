"""Publish a draft pull request to GitHub, or to a GitHub Enterprise server.

The commit goes by git over https and not by the Git Data API. A push carries
exactly the approved objects, is hashed again by the receiver, creates the
branch only if it is absent, and is the code that plain git targets use too;
the API would take the content apart into one request per blob, encoded, rate
limited, and without a way to say "only if absent" together with the content.

The pull request is one POST. Only an answer that says draft, head and base as
approved is believed. When no answer comes, the publisher looks before it says
that it does not know.
"""

from __future__ import annotations

import json
import math
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx

from approvals.publishers import (
    BaseChanged,
    Credential,
    DraftNotKept,
    DraftsUnsupported,
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
    body_marker,
    commit_id,
)
from approvals.publishers.git import GitOptions, GitRemote
from portal.line import Line
from runs.egress.addresses import pinned
from runs.gitcmd import place_of

_API_VERSION = "2022-11-28"
_ANSWER_LIMIT = 16 << 20
_LONGEST_WAIT = 86_400


@dataclass(frozen=True, slots=True)
class GitHubOptions:
    """Where the host is and how long to wait for it. The defaults are github.com."""

    api_url: str = "https://api.github.com"
    git_url: str = "https://github.com"
    timeout: float = 30.0
    git: GitOptions = field(default_factory=GitOptions)
    # Waits between looks when a pull request had no answer.
    look_again: tuple[float, ...] = (1.0, 3.0, 8.0)
    pause: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        schemes = ("https", "http") if self.git.allow_http else ("https",)
        for url in (self.api_url, self.git_url):
            parts = urlsplit(url)
            if parts.scheme not in schemes or not parts.hostname or parts.username is not None:
                raise ValueError(f"{url!r} is not a plain https address of a GitHub host.")


class GitHubPublisher:
    """A `Publisher` that opens draft pull requests, within one repository.

    The credential needs to write contents and pull requests of that repository
    and nothing else.
    """

    kind: TargetKind = "github"

    def __init__(self, options: GitHubOptions | None = None) -> None:
        self._options = options or GitHubOptions()

    def look(self, intent: PublicationIntent, credential: Credential | None) -> Found | None:
        remote = self._remote(intent, credential)
        with _Conversation(self._options, intent, credential) as api:
            found = api.find_pull()
        return found or remote.look(intent)

    def publish(
        self, intent: PublicationIntent, bare_repo: Path, credential: Credential | None
    ) -> Published:
        remote = self._remote(intent, credential)
        with _Conversation(self._options, intent, credential) as api:
            if found := api.find_pull():
                return self._linked(intent, found, remote)
            pushed = remote.push(intent, bare_repo)
            try:
                remote.verify(intent)
                found, existed = api.open_draft()
            except PublishError as error:
                error.left = f"The branch {intent.branch} is there with the approved commit."
                raise
        if existed:
            return self._linked(intent, found, remote)
        return _published(intent, found, note=f"{found.note} {pushed.note}".strip(), existed=False)

    def verify_remote(
        self, intent: PublicationIntent, credential: Credential | None
    ) -> RemoteBranch:
        return self._remote(intent, credential).verify(intent)

    def _linked(self, intent: PublicationIntent, found: Found, remote: GitRemote) -> Published:
        """The publication as an earlier call or a person made it, read back all the same."""
        # The host keeps a pull request's commit after the branch was deleted.
        remote.verify(intent, or_ref=f"refs/pull/{found.number}/head")
        return _published(intent, found, note=found.note, existed=True)

    def _remote(self, intent: PublicationIntent, credential: Credential | None) -> GitRemote:
        if intent.target.kind != "github":
            raise IntentRefused(
                reason=f"{intent.target} is not a GitHub target",
                remedy="Choose the publisher that serves this kind of target.",
            )
        address = f"{self._options.git_url.rstrip('/')}/{intent.target.address}.git"
        return GitRemote(address, str(intent.target), credential, self._options.git)


def _published(intent: PublicationIntent, found: Found, *, note: str, existed: bool) -> Published:
    return Published(
        url=found.url,
        branch=found.branch,
        commit=found.commit,
        tree=intent.tree_sha,
        draft=bool(found.draft),
        note=note,
        number=found.number,
        existed=existed,
    )


# --- The conversation with the API ----------------------------------------


class _NoAnswer(Exception):
    """A request went out, or may have, and nothing that can be read came back."""


class _Malformed(Exception):
    """An answer lacks what its description promises."""


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: httpx.Headers
    data: Any

    @property
    def words(self) -> str:
        """All that the host says in an error, in one line."""
        data = self.data if isinstance(self.data, Mapping) else {}
        errors = data.get("errors")
        said = [data.get("message"), *(errors if isinstance(errors, list) else [])]
        texts = [item.get("message") if isinstance(item, Mapping) else item for item in said]
        line = "; ".join(text.strip() for text in texts if isinstance(text, str) and text.strip())
        return "".join(c if c.isprintable() else " " for c in line)[:300]

    def names_field(self, name: str) -> bool:
        errors = self.data.get("errors") if isinstance(self.data, Mapping) else None
        return isinstance(errors, list) and any(
            isinstance(item, Mapping) and item.get("field") == name for item in errors
        )


@dataclass(frozen=True, slots=True)
class _Pull:
    """The few facts about a pull request that decide anything."""

    number: int
    state: Literal["open", "closed", "merged"]
    draft: bool
    head_repository: str
    head_ref: str
    head_sha: str
    base_ref: str
    body: str

    @classmethod
    def read(cls, data: Any) -> _Pull:
        """Read one from an answer; raises `_Malformed` if it is not one."""
        try:
            repository = data["head"]["repo"]
            pull = cls(
                number=data["number"],
                state="merged" if data.get("merged_at") else data["state"],
                draft=data.get("draft") is True,
                # Null when a fork was deleted: then it is no branch of this repository.
                head_repository=repository["full_name"] if repository else "",
                head_ref=data["head"]["ref"],
                head_sha=data["head"]["sha"],
                base_ref=data["base"]["ref"],
                body=data.get("body") or "",
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise _Malformed(f"a pull request lacks {error}") from None
        texts = (pull.head_repository, pull.head_ref, pull.head_sha, pull.base_ref, pull.body)
        if type(pull.number) is not int or not all(isinstance(text, str) for text in texts):
            raise _Malformed("a pull request has fields of another type")
        if pull.state not in ("open", "closed", "merged"):
            raise _Malformed("a pull request has an unknown state")
        return pull


class _Conversation:
    """The requests of one call, about one intent."""

    def __init__(
        self, options: GitHubOptions, intent: PublicationIntent, credential: Credential | None
    ) -> None:
        self._options = options
        self._intent = intent
        self._commit = commit_id(intent)
        self._name = str(intent.target)
        self._pulls = f"/repos/{intent.target.address}/pulls"
        if credential is None:
            reason, remedy = "no credential was given", "Add a credential to this target."
            raise TargetRefused(target=self._name, status=401, reason=reason, remedy=remedy)
        parts, base = urlsplit(options.api_url), options.api_url
        host = parts.hostname or ""
        if options.git.reach and (address := options.git.reach(*place_of(base))):
            base = pinned(base, address)
        self._line = Line()
        # The name that was approved, at the very address that was looked at.
        self._extensions = {"sni_hostname": host, "trace": self._line.trace}
        self._client = httpx.Client(
            base_url=base,
            headers={
                "Host": parts.netloc,
                "Accept": "application/vnd.github+json",
                # What is packed could be a thousand times as long as what was counted.
                "Accept-Encoding": "identity",
                "Authorization": f"Bearer {credential.token}",
                "User-Agent": "imprimatur",
                "X-GitHub-Api-Version": _API_VERSION,
            },
            timeout=options.timeout,
            # A redirect would carry the credential or the act somewhere else.
            follow_redirects=False,
            # No proxy, certificate or .netrc from the worker's environment.
            trust_env=False,
            proxy=options.git.proxy,
            verify=_trust(options.git.ca_file),
        )

    def __enter__(self) -> _Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._line.close()

    # --- Looking ----------------------------------------------------------

    def find_pull(self) -> Found | None:
        """The pull request with our commit, in whatever state it is by now.

        Raises `TargetConflict` if our marker is on one that no longer stands
        for what was approved, and any of the errors of a failed question.
        """
        moved: _Pull | None = None
        for pull in self._list_pulls():
            marked = body_marker(self._intent.marker) in pull.body
            fits = pull.head_sha == self._commit and pull.base_ref == self._intent.base_branch
            if fits:
                return self._found(pull, marked=marked)
            moved = moved or (pull if marked else None)
        if moved is not None:
            raise TargetConflict(
                what=f"Pull request {moved.number} was opened by this publication and has changed "
                f"since: it now offers {moved.head_sha:.12} for {moved.base_ref}",
                target=self._name,
                remedy="Settle it by hand: close it, or keep it as another person's work.",
            )
        return None

    def _list_pulls(self) -> list[_Pull]:
        owner = self._intent.target.address.partition("/")[0]
        answer = self._read(
            self._pulls,
            {"head": f"{owner}:{self._intent.branch}", "state": "all", "per_page": "100"},
        )
        if not isinstance(answer.data, list):
            raise TargetUnavailable(target=self._name, reason="its answer was not a list")
        try:
            pulls = [_Pull.read(item) for item in answer.data]
        except _Malformed as error:
            raise TargetUnavailable(target=self._name, reason=str(error)) from None
        # A host that does not know the filter lists everything.
        here = self._intent.target.address.casefold()
        return [
            pull
            for pull in pulls
            if pull.head_ref == self._intent.branch and pull.head_repository.casefold() == here
        ]

    def _found(self, pull: _Pull, *, marked: bool) -> Found:
        notes = []
        if not marked:
            notes.append("It was opened by somebody else, with the approved commit.")
        if pull.state != "open":
            notes.append(f"It is {pull.state} by now.")
        elif not pull.draft:
            notes.append("It is not a draft.")
        return Found(
            branch=self._intent.branch,
            commit=pull.head_sha,
            # Built and not taken from the answer: it becomes a link in the portal.
            url=f"{self._options.git_url.rstrip('/')}/{self._intent.target.address}"
            f"/pull/{pull.number}",
            number=pull.number,
            draft=pull.draft,
            state=pull.state,
            note=" ".join(notes),
        )

    def _read(self, path: str, query: Mapping[str, str]) -> _Answer:
        try:
            answer = self._ask("GET", path, params=query)
        except (_NoAnswer, _Malformed) as error:
            raise TargetUnavailable(target=self._name, reason=str(error)) from None
        if answer.status == 200:
            return answer
        if answer.status >= 500:
            raise TargetUnavailable(target=self._name, reason=f"status {answer.status}")
        raise self._refusal(answer)

    # --- The act ----------------------------------------------------------

    def open_draft(self) -> tuple[Found, bool]:
        """Open the draft, or find that it is open; true if it was there before.

        Raises `DraftsUnsupported` and never asks for anything but a draft.
        """
        order = {
            "title": self._intent.title,
            "body": self._intent.body,
            "head": self._intent.branch,
            "base": self._intent.base_branch,
            "draft": True,
        }
        try:
            answer = self._ask("POST", self._pulls, body=order)
            if answer.status == 201:
                return self._found(self._confirmed(_Pull.read(answer.data)), marked=True), False
        except (_NoAnswer, _Malformed) as error:
            return self._settle(str(error)), False
        if answer.status >= 500:
            return self._settle(f"status {answer.status}"), False
        if answer.status == 422:
            return self._unprocessable(answer), True
        raise self._refusal(answer)

    def _confirmed(self, pull: _Pull) -> _Pull:
        """The new pull request, if it is the one that was asked for."""
        where = f"Pull request {pull.number} was opened"
        if not pull.draft:
            raise DraftNotKept(
                what=f"{where} as ready for review although a draft was asked for",
                target=self._name,
                remedy="Close it or convert it to a draft by hand, at once.",
            )
        if (pull.head_sha, pull.base_ref) != (self._commit, self._intent.base_branch):
            raise TargetConflict(
                what=f"{where} and offers {pull.head_sha:.12} for {pull.base_ref}, "
                f"not {self._commit:.12} for {self._intent.base_branch},",
                target=self._name,
                remedy="Somebody changed the branch in the same moment; settle it by hand.",
            )
        return pull

    def _settle(self, reason: str) -> Found:
        """Look whether a pull request was opened whose answer did not come."""
        for wait in self._options.look_again:
            self._options.pause(wait)
            try:
                found = self.find_pull()
            except (RateLimited, TargetUnavailable, TargetRefused):
                continue
            if found is None:
                continue
            if found.state == "open" and not found.draft:
                raise DraftNotKept(
                    what=f"Pull request {found.number} was opened as ready for review although "
                    "a draft was asked for",
                    target=self._name,
                    remedy="Close it or convert it to a draft by hand, at once.",
                )
            late = "The pull request had no answer, and was then found at the target."
            return replace(found, note=f"{late} {found.note}".strip())
        raise OutcomeUnknown(
            act=f"the opening of a draft pull request for {self._intent.branch}",
            target=self._name,
            reason=reason,
        )

    def _unprocessable(self, answer: _Answer) -> Found:
        """Tell the 422s apart: there already, no drafts, no base, or something else."""
        said = answer.words.casefold()
        if "already exists" in said:
            if found := self.find_pull():
                return found
            raise TargetConflict(
                what=f"A pull request for {self._intent.branch} is there with another commit",
                target=self._name,
                remedy="Close it, or make a new packet with another branch name.",
            )
        if "draft" in said and ("not supported" in said or "not available" in said):
            raise DraftsUnsupported(target=self._name, branch=self._intent.branch)
        if answer.names_field("base"):
            raise BaseChanged(
                base_branch=self._intent.base_branch,
                target=self._name,
                change="is not there any more",
            )
        if "no commits between" in said:
            raise BaseChanged(
                base_branch=self._intent.base_branch,
                target=self._name,
                change="already contains the approved commit",
            )
        raise TargetRefused(
            target=self._name,
            status=422,
            reason=answer.words or "the host did not say why",
            remedy="Ask the owner of the repository which rule this meets.",
        )

    # --- Refusals ---------------------------------------------------------

    def _refusal(self, answer: _Answer) -> PublishError:
        """A typed error for an answer that says that nothing was done."""
        wait = self._wait(answer)
        if wait is not None:
            return RateLimited(target=self._name, retry_after=wait)
        if 300 <= answer.status < 400:
            reason = "the repository was renamed or moved, and redirects are not followed"
            remedy = "Put the new name into the target and ask for a new approval."
        elif answer.status in _REFUSALS:
            reason, remedy = _REFUSALS[answer.status]
            reason = f"{reason} (“{answer.words}”)" if answer.words else reason
        else:
            reason = answer.words or "the host did not say why"
            remedy = "Ask the owner of the repository which rule this meets."
        if answer.headers.get("x-github-sso"):
            remedy = "Authorise the credential for the organisation's single sign-on."
        return TargetRefused(target=self._name, status=answer.status, reason=reason, remedy=remedy)

    def _wait(self, answer: _Answer) -> int | None:
        """How many seconds the host asks us to wait, or None if this is no limit."""
        if answer.status not in (403, 429):
            return None
        after = answer.headers.get("retry-after", "")
        if after.isdecimal():
            return min(max(1, int(after)), _LONGEST_WAIT)
        reset = answer.headers.get("x-ratelimit-reset", "")
        if answer.headers.get("x-ratelimit-remaining") == "0" and reset.isdecimal():
            return min(max(1, math.ceil(int(reset) - self._options.now())), _LONGEST_WAIT)
        if answer.status == 429 or "rate limit" in answer.words.casefold():
            return 60
        return None

    # --- One request ------------------------------------------------------

    def _ask(
        self,
        method: Literal["GET", "POST"],
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None,
    ) -> _Answer:
        """Send one request. Raises `TargetUnavailable` only if it was surely not sent."""
        try:
            with (
                self._line.within(self._options.timeout),
                self._client.stream(
                    method, path, params=params, json=body, extensions=self._extensions
                ) as response,
            ):
                raw = b""
                for part in response.iter_raw():
                    raw += part
                    if len(raw) > _ANSWER_LIMIT:
                        raise _Malformed("its answer was too long")
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            raise TargetUnavailable(target=self._name, reason=type(error).__name__) from None
        except httpx.TimeoutException:
            raise _NoAnswer(f"no answer within {self._options.timeout:g} seconds") from None
        except httpx.TransportError as error:
            raise _NoAnswer(f"the connection was lost: {type(error).__name__}") from None
        try:
            data = json.loads(raw) if raw else None
        except (ValueError, RecursionError):
            # An error page of something in front of the host; only its status counts.
            if response.is_success:
                raise _Malformed("its answer was not JSON") from None
            data = None
        return _Answer(response.status_code, response.headers, data)


_REFUSALS = {
    401: (
        "the credential is missing, wrong or expired",
        "Renew the credential of this target and try again.",
    ),
    403: (
        "the credential may not do this",
        "Give the credential write access to contents and pull requests of this repository.",
    ),
    404: (
        "there is no such repository, or the credential may not see it",
        "Check the name of the repository and the repositories the credential covers.",
    ),
}


def _trust(ca_file: Path | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
