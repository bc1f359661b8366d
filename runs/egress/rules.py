"""What a run may reach, and whether one attempt is within it. Plain data in, a decision out."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

Source: TypeAlias = Literal["contract", "grant"]

CONNECT = "CONNECT"
READING = ("GET", "HEAD")
"""What a rule for plain HTTP permits when nobody asked for more."""

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(?:{_LABEL}\.)*{_LABEL}")
# Whatever a server might read as a way out of a folder, or as an encoding of one.
_DETOUR = re.compile(r"//|\\|%(?:2e|2f|5c|25|00)|(?:^|/)\.{1,2}(?:;[^/]*)?(?:/|$)|;", re.IGNORECASE)


class Why(StrEnum):
    """Why an attempt was refused or cut short. Stable: pages, events and tests use the values."""

    NOT_LISTED = "not_listed"
    OVER = "over"
    METHOD = "method"
    PATH = "path"
    NOT_PLAIN = "not_plain"
    NOT_TUNNEL = "not_tunnel"
    BYTES = "bytes"
    CONNECTIONS = "connections"
    BUSY = "busy"
    BAD_REQUEST = "bad_request"
    UNRESOLVED = "unresolved"
    ADDRESS = "address"
    UNREACHABLE = "unreachable"
    NOT_TLS = "not_tls"
    NO_NAME = "no_name"
    OTHER_NAME = "other_name"
    HIDDEN_NAME = "hidden_name"
    EARLY_DATA = "early_data"
    REVOKED = "revoked"
    EXPIRED = "expired"
    IDLE = "idle"


WORDS: Mapping[str, str] = {
    Why.NOT_LISTED: "no rule of this run names it",
    Why.OVER: "the rule for it is over",
    Why.METHOD: "the rule does not permit this method",
    Why.PATH: "the rule does not permit this path",
    Why.NOT_PLAIN: "the rule is for TLS, and this was plain HTTP",
    Why.NOT_TUNNEL: "the rule is for plain HTTP, and this was a tunnel",
    Why.BYTES: "the rule's bytes are used up",
    Why.CONNECTIONS: "too many connections of this rule were open",
    Why.BUSY: "too many connections of this run were open",
    Why.BAD_REQUEST: "it was no request that a proxy may pass on",
    Why.UNRESOLVED: "the name could not be resolved",
    Why.ADDRESS: "the name leads to an address that no sandbox may reach",
    Why.UNREACHABLE: "nothing answered there",
    Why.NOT_TLS: "the tunnel did not begin with TLS",
    Why.NO_NAME: "the tunnel's TLS named no host",
    Why.OTHER_NAME: "the tunnel's TLS named another host",
    Why.HIDDEN_NAME: "the tunnel's TLS hid the name of its host",
    Why.EARLY_DATA: "the tunnel's TLS offered early data, behind which another name could follow",
    Why.REVOKED: "the rule was taken back",
    Why.EXPIRED: "the rule's time was over",
    Why.IDLE: "nothing was said for too long",
}


@dataclass(frozen=True)
class Limits:
    """What all traffic of one rule together may use. `bytes` counts both directions."""

    bytes: int = 100_000_000
    connections: int = 16
    """Open at once."""


@dataclass(frozen=True)
class Rule:
    """One destination that a run may reach, why, and until when (seconds since 1970).

    `key` names the rule to those who made it. With `methods` or `path` a rule permits plain HTTP
    alone, because inside a tunnel neither can be seen; without `methods` every method passes.
    """

    key: str
    host: str
    port: int
    purpose: str
    expires_at: float
    source: Source = "contract"
    tls: bool = True
    plain: bool = True
    methods: tuple[str, ...] = ()
    path: str = ""
    limits: Limits = field(default_factory=Limits)
    used_bytes: int = 0
    """By earlier proxies of the run."""


@dataclass(frozen=True)
class Wanted:
    """One attempt: a tunnel (`CONNECT`, no path) or one plain request."""

    host: str
    port: int
    method: str
    path: str = ""


@dataclass(frozen=True)
class Decision:
    """The rule that permits it, or why none does."""

    rule: Rule | None
    why: Why | None = None


def decide(rules: Iterable[Rule], wanted: Wanted, now: float) -> Decision:
    """The first rule that permits the attempt. Without one, the reason that came nearest."""
    nearest: Why = Why.NOT_LISTED
    for rule in rules:
        if (rule.host, rule.port) != (wanted.host, wanted.port):
            continue
        why = _why_not(rule, wanted, now)
        if why is None:
            return Decision(rule)
        nearest = why
    return Decision(None, nearest)


def _why_not(rule: Rule, wanted: Wanted, now: float) -> Why | None:
    if now >= rule.expires_at:
        return Why.OVER
    if wanted.method == CONNECT:
        return None if rule.tls and not rule.methods and not rule.path else Why.NOT_TUNNEL
    if not rule.plain:
        return Why.NOT_PLAIN
    if rule.methods and wanted.method not in rule.methods:
        return Why.METHOD
    return None if below(rule.path, wanted.path) else Why.PATH


def below(prefix: str, target: str) -> bool:
    """Whether the path of a request target lies below a prefix, whoever reads it.

    A prefix is a folder or a file: `/simple` permits `/simple` and `/simple/x`, not `/simpler`.
    Under a prefix no path may hold what one server reads as a detour and another does not.
    """
    if prefix in ("", "/"):
        return True
    path = target.partition("?")[0]
    if _DETOUR.search(path):
        return False
    folder = prefix if prefix.endswith("/") else f"{prefix}/"
    return path == prefix or path.startswith(folder)


def host_of(text: str) -> str | None:
    """A host as rules spell it: lower case, no final dot, a literal address in its one form.

    None if it is neither a name nor an address.
    """
    text = text.lower()
    if text.startswith("[") and text.endswith("]") and "%" not in text:
        try:
            return str(ipaddress.IPv6Address(text[1:-1]))
        except ValueError:
            return None
    text = text.removesuffix(".")
    return text if len(text) <= 253 and _HOST.fullmatch(text) else None


def is_address(host: str) -> bool:
    """Whether a host is a literal address, which TLS never names."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def place(host: str, port: int) -> str:
    """`host:port` as it is written everywhere."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
