"""Run git in the outer runtime so that nothing in a repository or an address can steer it.

Nothing is inherited but the search path, the proxy and certificate variables of the deployment and
the ssh agent: no system or user configuration, no hooks, no prompts, no credential helpers, no
replaced objects, only the protocols the caller names. Every process has its own group, a deadline
and a limit on what it may write, pipes included: output goes through files.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

PROXIES = ("HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
INHERITED = (
    "PATH",
    *PROXIES,
    "HTTP_PROXY",
    "NO_PROXY",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "GIT_SSL_CAINFO",
    "SSH_AUTH_SOCK",
)
CONFIG = """\
[core]
\thooksPath = /dev/null
\tattributesFile = /dev/null
\texcludesFile = /dev/null
\tfsmonitor = false
\taskPass =
[credential]
\thelper =
[transfer]
\tfsckObjects = true
\tunpackLimit = 1
[protocol]
\tversion = 2
[http]
\tfollowRedirects = false
\tlowSpeedLimit = 1000
\tlowSpeedTime = 60
[gc]
\tauto = 0
[maintenance]
\tauto = false
[submodule]
\trecurse = false
[fetch]
\trecurseSubmodules = false
"""
MAX_MESSAGE = 4_000
PORTS = {"https": 443, "http": 80, "ssh": 22}

Reach: TypeAlias = Callable[[str, int], str]
"""Where a host may be connected to, or nothing where a proxy finds it. Raises `SourceRefused`."""


class SourceRefused(Exception):
    """The source was not fetched or not laid out. `code` is stable; the text says why and what to
    do; `retry_safe` says whether the same attempt may work later without anybody changing a thing.
    """

    def __init__(self, code: str, text: str, *, retry_safe: bool = False) -> None:
        self.code, self.text, self.retry_safe = code, text, retry_safe
        super().__init__(text)


@dataclass(frozen=True)
class Ran:
    """How a git process ended. `said` is its error text, shortened and without the credential."""

    status: int
    out: bytes
    said: str


@dataclass(frozen=True)
class Git:
    """How to run git for one source.

    `trusted` is a local repository that may belong to somebody else. `authorization` is the value
    of an HTTP header for exactly `url`; it travels in the environment of the process, never in an
    argument or a file.
    """

    repository: Path
    timeout: float
    protocols: tuple[str, ...] = ()
    trusted: Path | None = None
    url: str = ""
    authorization: str = field(default="", repr=False)
    max_bytes: int = 2 << 30
    reach: Reach | None = None
    pinned: str = ""
    """The address that the host of `url` was found at, and is connected to."""

    def held(self) -> Git:
        """The same for one conversation with its host, at the address that `reach` found for it.

        Raises what `reach` raises.
        """
        if self.reach is None or not self.url:
            return self
        host, port = place_of(self.url)
        return replace(self, pinned=self.reach(host, port))

    def run(self, *arguments: str, timeout: float | None = None, status: bool = False) -> Ran:
        """Run to the end. Raises `SourceRefused` for a failure unless `status` asks for it."""
        with (
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
            self.process(arguments, stdout=out, stderr=err) as process,
        ):
            try:
                process.wait(timeout or self.timeout)
            except subprocess.TimeoutExpired:
                raise timed_out(timeout or self.timeout) from None
            out.seek(0)
            err.seek(0)
            said = self.clean(err.read(64_000).decode("utf-8", "replace"))
            ran = Ran(process.returncode, out.read(), said)
        if ran.status and not status:
            raise failure(ran)
        return ran

    @contextmanager
    def process(
        self, arguments: Sequence[str], **streams: object
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A git process in its own group, which does not outlive the block."""
        if shutil.which("git") is None:
            raise SourceRefused(
                "source.no_git", "git is not installed on the portal's machine. Install it."
            )
        with tempfile.TemporaryDirectory(prefix="git-") as home:
            limit = ["sh", "-c", 'ulimit -f "$1" && shift && exec "$@"', "sh"]
            command = [*limit, str(self.max_bytes // 512), "git", *self.prefix(), *arguments]
            process = subprocess.Popen(  # type: ignore[call-overload]
                command,
                env=self.environment(Path(home)),
                cwd=home,
                start_new_session=True,
                **{"stdin": subprocess.DEVNULL, **streams},
            )
            try:
                yield process
            finally:
                if process.poll() is None:
                    kill_group(process)

    def prefix(self) -> list[str]:
        return ["--no-pager", f"--git-dir={self.repository}"]

    def environment(self, home: Path) -> dict[str, str]:
        """The whole environment. The configuration is a file, because git gives the variables that
        could carry it not to the process that serves a local repository."""
        config = CONFIG
        if self.trusted is not None:
            config += f"[safe]\n\tdirectory = {quote(self.trusted)}\n"
            config += f"\tdirectory = {quote(self.trusted / '.git')}\n"
        ssh = "ssh -oBatchMode=yes -oConnectTimeout=20 -oForwardAgent=no"
        if self.pinned:
            host, port = place_of(self.url)
            address = f"[{self.pinned}]" if ":" in self.pinned else self.pinned
            config += f'[http]\n\tcurloptResolve = "{host}:{port}:{address}"\n'
            name = host if port == PORTS["ssh"] else f"[{host}]:{port}"
            ssh += f" -oHostName={self.pinned} '-oHostKeyAlias={name}'"
        (home / "config").write_text(config)
        made: dict[str, str] = {name: os.environ[name] for name in INHERITED if name in os.environ}
        made |= {
            "HOME": str(home),
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": str(home / "config"),
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "false",
            "SSH_ASKPASS_REQUIRE": "never",
            "GIT_SSH_COMMAND": ssh,
            "GIT_ALLOW_PROTOCOL": ":".join(self.protocols) or "none",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_OPTIONAL_LOCKS": "0",
        }
        return {**made, **self.secret()}

    def secret(self) -> Mapping[str, str]:
        if not self.authorization:
            return {}
        return {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"http.{self.url}.extraHeader",
            "GIT_CONFIG_VALUE_0": f"Authorization: {self.authorization}",
        }

    def clean(self, said: str) -> str:
        """git's words without the credential, without control characters, and short."""
        for secret in [self.authorization, *self.authorization.split()]:
            if len(secret) > 6:
                said = said.replace(secret, "***")
        said = "".join(each for each in said if each == "\n" or each.isprintable())
        return said.strip()[:MAX_MESSAGE]


def place_of(url: str) -> tuple[str, int]:
    """Host and port of an address."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or PORTS[parts.scheme]


def quote(path: Path) -> str:
    """A value for a configuration file."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End the process and all it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def timed_out(seconds: float) -> SourceRefused:
    return SourceRefused(
        "source.timed_out",
        f"git did not finish within {seconds:.0f} seconds and was stopped. Try again, or check "
        "that the host answers and the repository is not too large.",
        retry_safe=True,
    )


# What git says in the C locale → code, sentence, may trying again help. First match wins.
FAILURES: tuple[tuple[str, str, str, bool], ...] = (
    (
        r"transport '([^']*)' not allowed",
        "source.protocol",
        "The address uses a protocol that is not allowed. Use https:// or ssh://.",
        False,
    ),
    (
        r"signal 25|File too large|exceeds maximum allowed size",
        "source.too_large",
        "The repository is larger than the portal fetches. Use a smaller one, or raise the limit.",
        False,
    ),
    (
        r"No space left on device|Disk quota exceeded",
        "source.no_space",
        "The portal's disk is full. Make room in the source cache.",
        True,
    ),
    (
        r"Authentication failed|could not read (?:Username|Password)|terminal prompts disabled"
        r"|Permission denied|returned error: 40[13]|Host key verification failed",
        "source.denied",
        "The host does not let the portal read this. Name a credential that may.",
        False,
    ),
    (
        r"returned error: 429|returned error: 5\d\d|Could not resolve host|Failed to connect"
        r"|Connection (?:refused|reset|timed out|closed)|Operation too slow|early EOF"
        r"|the remote end hung up|unexpected disconnect",
        "source.unreachable",
        "The host could not be reached or broke off. Try again; if it stays, check the address.",
        True,
    ),
    (
        r"redirect|returned error: 30\d",
        "source.redirect",
        "The address leads to another one. Write the final address into the contract.",
        False,
    ),
    (
        r"fsck error|bad object|index-pack failed|invalid (?:object|index-pack)|corrupt"
        r"|pack has|object file .* is empty|fatal: missing blob|did not send all necessary",
        "source.damaged",
        "The repository contains objects git refuses. Repair it there (git fsck shows them).",
        False,
    ),
    (
        r"not found|does not exist|not appear to be a git repository|returned error: 404"
        r"|Repository unavailable|not a git repository",
        "source.not_repository",
        "There is no git repository at that address. Check it, and whether a credential is needed.",
        False,
    ),
)


def failure(ran: Ran) -> SourceRefused:
    """The refusal for what git said."""
    said = ran.said or f"git ended with {ran.status}"
    for pattern, code, text, retry_safe in FAILURES:
        if re.search(pattern, ran.said, re.IGNORECASE):
            return SourceRefused(code, f"{text} git said: {last(said)}", retry_safe=retry_safe)
    return SourceRefused("source.git_failed", f"git failed and said: {last(said)}")


def last(said: str) -> str:
    """The line of git's words that names the reason."""
    lines = [line for line in said.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:", "ERROR"))]
    return (fatal or lines or [""])[-1][:300]
