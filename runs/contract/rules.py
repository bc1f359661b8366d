"""The rules for single values of a contract: one function each, returning what is wrong or None.

Each rule is stated where it is enforced, and each refusal says what to write instead.
"""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import urlsplit

from runs.contract.fields import Fault, did_you_mean, quoted
from runs.egress.rules import METHODS, below

SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
TOOL_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
REPOSITORY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38})/[A-Za-z0-9._-]{1,100}")
HOST = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
)
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

CREDENTIAL_NAME = re.compile(
    r"(?i)(?:^|_)(?:token|secret|passw(?:or)?d|passphrase|api_?key|access_?key|private_?key|"
    r"credentials?|auth|cookie|session_?id|dsn)(?:_|$)"
)
# Beginnings that services give their secrets, so that people and scanners recognise them.
CREDENTIAL_SHAPE = re.compile(
    r"(?:\b(?:gh[pousr]_|github_pat_|glpat-|sk-(?:proj-|ant-)?|xox[abprs]-|AKIA|ASIA|AIza|hf_|"
    r"npm_|pypi-|dop_v1_|shpat_|SG\.)[A-Za-z0-9_.-]{16,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\."
    r"|\b[a-z][a-z0-9+.-]{0,20}://[^/\s:@]{0,100}:[^/\s@]{1,200}@"
)
RANDOM_LOOKING = re.compile(r"[A-Za-z0-9+/_=-]{32,}")

BY_REFERENCE = (
    'Write a reference instead, { reference = "name" }, and store the value in the portal; '
    "a value that only the outer runtime needs belongs to a tool's or the source's `credential`."
)


def slug(text: str) -> Fault | None:
    """A short name: it becomes part of branch names and addresses."""
    if SLUG.fullmatch(text):
        return None
    return (
        f"{quoted(text)} is not a short name.",
        "Use lower-case letters, digits and single hyphens, at most 64 characters.",
    )


def tool_name(text: str) -> Fault | None:
    """Model providers refuse function names with dots, so ours have none."""
    if TOOL_NAME.fullmatch(text):
        return None
    return (
        f"{quoted(text)} is not a tool name.",
        "Begin with a lower-case letter, then letters, digits and underscores: create_issue.",
    )


def version(text: str) -> Fault | None:
    if VERSION.fullmatch(text):
        return None
    return (
        f"{quoted(text)} is not a version.",
        "Use letters, digits, dots and hyphens, as in 1.4.0.",
    )


def variable(text: str) -> Fault | None:
    """A name of an environment variable that may be set at all."""
    if not VARIABLE.fullmatch(text):
        return (
            f"{quoted(text)} is not the name of an environment variable.",
            "Use letters, digits and underscores, and do not begin with a digit.",
        )
    if text.startswith("LD_") or text in {"BASH_ENV", "ENV", "IFS", "SHELLOPTS"}:
        return f"{text} changes how every command starts.", "Remove it."
    return None


def workspace_path(text: str) -> Fault | None:
    """Paths in the workspace are relative, go down only, and mean the same on every system."""
    if text.startswith(("/", "~", "\\")) or re.match(r"[A-Za-z]:", text):
        return (
            f"{quoted(text)} is an absolute path.",
            "Write it from the workspace down: input/spec.md.",
        )
    if "\\" in text:
        return f"{quoted(text)} contains a backslash.", "Separate folders with /."
    parts = text.split("/")
    if ".." in parts:
        return f"{quoted(text)} leaves its folder with `..`.", "Write the path without `..`."
    if any(part in {"", "."} for part in parts):
        return (
            f"{quoted(text)} has an empty part.",
            "Write single slashes, none at the end, and no `.`.",
        )
    if any(part.casefold().rstrip(" .") == ".git" for part in parts):
        return (
            f"{quoted(text)} is inside `.git`.",
            "Git's own files cannot be written; choose another path.",
        )
    if any(len(part.encode()) > 255 for part in parts):
        return "A part of the path is longer than 255 bytes.", "Shorten it."
    return None


def glob(text: str) -> Fault | None:
    """A pattern inside `repo/`: `**` crosses folders, `*` and `?` do not."""
    found = workspace_path(text.removesuffix("/"))
    if found:
        return found
    if "[" in text or "{" in text or "!" in text:
        return f"{quoted(text)} uses a pattern that is not known.", "Use only *, ? and **."
    if any("**" in part and part != "**" for part in text.split("/")):
        return f"{quoted(text)} has ** beside other characters.", "Let ** stand alone: src/**/*.py."
    return None


def git_ref(text: str) -> Fault | None:
    """A branch, tag or commit; nothing git could read as an option or an expression."""
    if text.startswith("-"):
        return (
            f"{quoted(text)} begins with a hyphen and would be read as an option.",
            "Name a branch, tag or commit.",
        )
    bad = re.search(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//", text)
    ends = text.endswith((".", "/", ".lock")) or text.startswith("/") or text == "@"
    parts_bad = any(p.startswith(".") or p.endswith(".lock") for p in text.split("/"))
    if bad or ends or parts_bad:
        return (
            f"{quoted(text)} is not the name of a branch, tag or commit.",
            "Write main, v1.2.0 or a full commit id.",
        )
    return None


def branch_prefix(text: str) -> Fault | None:
    return git_ref(text + "x")


def git_url(text: str) -> Fault | None:
    """https or ssh; http only to this machine; no password, since many read a contract."""
    if re.match(r"[\w.-]+@[\w.-]+:", text):
        return f"{quoted(text)} is in scp form.", "Write ssh://git@host/path/repository.git."
    return web_url(text, ("https", "ssh", "http"))


def web_url(text: str, schemes: tuple[str, ...] = ("https", "http")) -> Fault | None:
    """A complete address with a host, of an allowed kind, with nothing secret in it."""
    try:
        parts = urlsplit(text)
        host, _port = parts.hostname or "", parts.port
    except ValueError:
        return f"{quoted(text)} cannot be read as an address.", "Write https://host/path."
    if parts.scheme not in schemes or not host or not re.fullmatch(r"[!-~]+", text):
        return f"{quoted(text)} is not an address that may be used.", f"Begin with {schemes[0]}://."
    if (
        host.startswith("-")
        or (parts.username or "").startswith("-")
        or parts.path.startswith("/-")
    ):
        return (
            f"{quoted(text)} has a part that would be read as an option.",
            "Remove the leading hyphen.",
        )
    if parts.password is not None or (parts.username and parts.scheme != "ssh"):
        return "The address contains a user name or password.", "Remove it and name a `credential`."
    if parts.scheme == "http" and host not in LOOPBACK:
        return f"{quoted(text)} is not encrypted.", "Use https://."
    if parts.query or parts.fragment:
        return f"{quoted(text)} has a part after ? or #.", "Remove it."
    return None


def repository(text: str) -> Fault | None:
    if REPOSITORY.fullmatch(text) and not text.endswith((".git", "/.", "/..")):
        return None
    return f"{quoted(text)} is not a repository on GitHub.", "Write owner/name."


def host(text: str) -> Fault | None:
    """An exact host name. Patterns are refused: a rule names what it opens."""
    if HOST.fullmatch(text) and len(text) <= 253:
        return None
    return f"{quoted(text)} is not a host name.", "Write it in lower case and without * or port."


def method(text: str) -> Fault | None:
    """A method of plain HTTP; `CONNECT` opens tunnels and is none."""
    if text in METHODS:
        return None
    return f"{quoted(text)} is not a method.", f"Write some of {', '.join(METHODS)}."


def url_path(text: str) -> Fault | None:
    """A folder or file on a server, written in the one way in which it is compared."""
    plain = re.fullmatch(r"/[A-Za-z0-9._~!$&'()*+,=:@/-]*", text)
    if plain and below(text, text):
        return None
    return (
        f"{quoted(text)} is not the path of a folder or file.",
        "Begin with /, and use no .., //, %, ? or ;.",
    )


def title(text: str) -> Fault | None:
    """Only the three placeholders that exist may stand in braces."""
    for found in re.findall(r"\{([^{}]*)\}", text):
        if found not in {"name", "outcome", "run"}:
            return (
                f"{{{found}}} is not known. {did_you_mean(found, ['name', 'outcome', 'run'])}",
                "Use {name}, {outcome} or {run}.",
            )
    if "{" in re.sub(r"\{[^{}]*\}", "", text) or "}" in re.sub(r"\{[^{}]*\}", "", text):
        return "A brace is left open.", "Write {name}, {outcome} or {run}."
    return None


def hidden_character(text: str) -> Fault | None:
    """A contract is read before it is approved, so nothing in it may be invisible."""
    for at, each in enumerate(text):
        if each in "\n\t" or (" " <= each <= "~"):
            continue
        if unicodedata.category(each) in {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}:
            return (
                f"It contains the invisible character U+{ord(each):04X} at position {at + 1}.",
                "Remove it; what cannot be seen cannot be reviewed.",
            )
    return None


def credential_shape(text: str) -> Fault | None:
    """Text with the shape of a known kind of secret is refused wherever it stands."""
    if not CREDENTIAL_SHAPE.search(text):
        return None
    return "It contains something with the shape of a secret.", f"Remove it. {BY_REFERENCE}"


def literal_value(name: str, value: str) -> Fault | None:
    """An environment value written out must not be, or look like, a credential."""
    if CREDENTIAL_NAME.search(name) and value:
        return f"{name} is the name of a credential, and its value is written out.", BY_REFERENCE
    long = RANDOM_LOOKING.fullmatch(value)
    mixed = any(c.isdigit() for c in value) and any(c.isalpha() for c in value)
    if long and mixed and not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", value):
        return "The value looks like a random secret.", BY_REFERENCE
    return None
