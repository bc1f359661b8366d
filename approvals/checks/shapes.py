"""Shapes of secrets that the scanner library leaves away, because alone they are not certain.

A library for whole histories must be quiet; a gate for one candidate may be stricter. Here are
assignments of passwords and the like, credentials in headers and connection strings, and tokens
whose shape the library only takes together with the name of the service. No value leaves this
module but by its place.
"""

from __future__ import annotations

import base64
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """A pattern with one group, the value. `needs` are bytes without which it cannot match."""

    rule: str
    what: str
    needs: bytes
    pattern: re.Pattern[bytes]


@dataclass(frozen=True, slots=True)
class Found:
    """A value by its place in the content."""

    rule: str
    what: str
    start: int
    end: int


def _shape(rule: str, what: str, needs: bytes, pattern: bytes) -> Shape:
    return Shape(rule, what, needs, re.compile(pattern))


_END = rb"(?![A-Za-z0-9_-])"
_SHAPES = (
    _shape("aws-key-id", "an AWS access key id", b"IA", rb"\b((?:AKIA|ASIA)[A-Z0-9]{16})\b"),
    _shape(
        "aws-secret", "an AWS secret key or session token", b"=",
        rb"(?i:aws_?(?:secret_?access_?key|session_?token|security_?token))[\"']?\s{0,5}[=:]\s{0,5}"
        rb"[\"']?([A-Za-z0-9/+=]{40,2000})",
    ),
    _shape("telegram", "a Telegram bot token", b":AA", rb"\b(\d{8,10}:AA[A-Za-z0-9_-]{33})" + _END),
    _shape(
        "discord-webhook", "a Discord webhook address", b"/webhooks/",
        rb"discord(?:app)?\.com/api/webhooks/(\d{15,20}/[A-Za-z0-9_-]{60,80})",
    ),
    _shape(
        "discord-bot", "a Discord bot token", b".",
        rb"\b([MNO][A-Za-z\d_-]{23,27}\.[\w-]{6}\.[\w-]{27,40})" + _END,
    ),
    _shape("google-secret", "a Google secret", b"GOCSPX-", rb"\b(GOCSPX-[\w-]{24,32})" + _END),
    _shape("google-refresh", "a Google refresh token", b"1//0", rb"\b(1//0[\w-]{40,200})"),
    _shape("google-access", "a Google access token", b"ya29.", rb"\b(ya29\.[\w-]{30,400})"),
    _shape(
        "firebase", "a Firebase server key", b":APA91b",
        rb"\b([\w-]{8,20}:APA91b[\w-]{100,180})",
    ),
    _shape("mailgun", "a Mailgun key", b"key-", rb"\b(key-[0-9a-f]{32})\b"),
    _shape("mailchimp", "a Mailchimp key", b"-us", rb"\b([0-9a-f]{32}-us\d{1,2})\b"),
    _shape("new-relic", "a New Relic key", b"NRAK-", rb"\b(NRAK-[A-Z0-9]{27})\b"),
    _shape("notion", "a Notion secret", b"secret_", rb"\b(secret_[A-Za-z0-9]{43})\b"),
    _shape("notion", "a Notion secret", b"ntn_", rb"\b(ntn_[A-Za-z0-9]{40,50})\b"),
    _shape("nuget", "a NuGet key", b"oy2", rb"\b(oy2[a-z0-9]{43})\b"),
    _shape("stripe-test", "a Stripe key", b"k_test_", rb"\b((?:sk|rk)_test_[A-Za-z0-9]{16,120})\b"),
    _shape("webhook-secret", "a webhook secret", b"whsec_", rb"\b(whsec_[A-Za-z0-9+/=]{24,80})"),
    _shape("dropbox", "a Dropbox token", b"sl.", rb"\b(sl\.[A-Za-z0-9_-]{100,200})" + _END),
    _shape("facebook", "a Facebook token", b"EAA", rb"\b(EAA[A-Za-z0-9]{90,250})\b"),
    _shape(
        "azure-sas", "an Azure shared access signature", b"sig=",
        rb"[?&;]sig=([A-Za-z0-9%/+]{40,100}={0,2})",
    ),
    _shape(
        "azure-client", "an Azure client secret", b"Q~",
        rb"(?<![\w~.-])([\w~.-]{3}\dQ~[\w~.-]{31,34})(?![\w~.-])",
    ),
    _shape(
        "authorization", "a credential in a header", b"uthorization",
        rb"(?i:authorization)[\"']?\s{0,3}[:=,]\s{0,3}[\"']?(?i:basic|bearer|token)\s+"
        rb"([A-Za-z0-9._~+/=-]{16,2000})",
    ),
    _shape(
        "docker-auth", "a registry credential", b'"auth"',
        rb'"auth"\s{0,5}:\s{0,5}"([A-Za-z0-9+/]{16,400}={0,2})"',
    ),
    _shape(
        "netrc", "a password for a machine", b"machine",
        rb"\bmachine\s+\S+\s+login\s+\S+\s+password\s+(\S{6,200})",
    ),
    _shape("otp", "a one-time password seed", b"otpauth://", rb"otpauth://\S{0,300}?secret=([A-Z2-7]{16,64})"),
    _shape(
        "password-hash", "a password hash", b"$",
        rb"(\$(?:apr1|1|5|6|y|2[abxy])\$(?:\d\d\$|rounds=\d+\$)?[./A-Za-z0-9$]{20,120})",
    ),
    _shape(
        "pgpass", "a database password", b":",
        rb"(?m)^[\w.*-]{1,100}:(?:\d{2,5}|\*):[\w*-]{1,60}:[\w*-]{1,60}:(\S{8,100})$",
    ),
)  # fmt: skip

_KEYWORD = re.compile(
    rb"(?i)passw(?:or)?d|passwd|passphrase|pwd|secret|token|api[_-]?key|access[_-]?key|"
    rb"auth[_-]?key|private[_-]?key|account[_-]?key|signing[_-]?key|encryption[_-]?key|credential"
)
_ASSIGNED = re.compile(
    rb"([A-Za-z0-9_.-]{0,30})[\"'`]?\]?(\s{0,5}(?:=>|:=|=|:)\s{0,5})"
    rb"(?:[A-Za-z]{0,2}([\"'`])([^\"'`\r\n]{8,256})[\"'`]|([^\s\"'`,;#&<>{}()\[\]|]{8,256}))"
)
_MOST_ASSIGNMENTS = 20_000  # of one file
_CONFIG = (
    ".env", ".ini", ".cfg", ".conf", ".config", ".properties", ".yml", ".yaml", ".toml", ".npmrc",
    ".netrc", ".pypirc", ".sh", ".bash", ".tfvars", ".service", ".txt", "dockerfile", "makefile",
)  # fmt: skip
_NOT_A_SECRET = re.compile(
    rb"(?i)example|change.?me|place.?holder|your[_-]|xxxx|\*\*\*|dummy|redacted|not.?a.?secret|"
    rb"insert|todo|fixme|^[<{$%]|\$[{(]|\{\{|%[(s]|</?[a-z_-]+>|environ|getenv|process\.|config\.|settings\.|self\.|"
    rb"\[(?:user|pass)|^test|testpass|pass(?:word)?123?$|^hunter|lorem|sample|fake|mock|^my-?secret"
)
_NAME_ONLY = re.compile(
    rb"(?i)type|name|url|uri|path|file|izer|field|label|id|ref|hash|length|ttl|limit|expir"
)
_WORDS = re.compile(rb"[A-Za-z]+\d{0,3}(?:[-_.:/][A-Za-z]*\d{0,3})*")


def shapes_in(data: bytes, path: bytes) -> Iterator[Found]:
    """Values of every shape in `data`, in the order of the shapes. `path` tells a config file."""
    for shape in _SHAPES:
        if shape.needs not in data:
            continue
        if shape.rule == "pgpass" and not path.rpartition(b"/")[2].endswith(b"pgpass"):
            continue
        for match in shape.pattern.finditer(data):
            value = match.group(1)
            if not is_placeholder(value) and entropy(value) >= 2.5 and _fits(shape.rule, value):
                yield Found(shape.rule, shape.what, *match.span(1))
    yield from _assignments(data, path)


def _fits(rule: str, value: bytes) -> bool:
    if rule in ("docker-auth", "authorization") and not re.search(rb"[0-9=._-]", value):
        return False
    if rule == "docker-auth":
        try:
            return b":" in base64.b64decode(value, validate=True)
        except ValueError:
            return False
    return True


def _assignments(data: bytes, path: bytes) -> Iterator[Found]:
    name = path.rpartition(b"/")[2].lower().decode("latin-1")
    config = "." not in name.lstrip(".") or name.endswith(_CONFIG) or name.startswith(".env")
    looked_at = past = 0
    for keyword in _KEYWORD.finditer(data):
        if keyword.start() < past:
            continue
        match = _ASSIGNED.match(data, keyword.end())
        if match is None:
            continue
        tail, between, quote, quoted, bare = match.groups()
        if tail and _NAME_ONLY.search(tail.lower()):
            continue
        value = quoted if quoted is not None else bare
        if quote is None:
            before = data[max(0, keyword.start() - 1) : keyword.start()]
            in_string = between == b"=" and before in (b";", b"?", b"&")
            if not (config or in_string):
                continue
        start, end = match.span(4 if quoted is not None else 5)
        looked_at += 1
        if looked_at > _MOST_ASSIGNMENTS:
            yield Found("assignment", "more assignments than can be looked at", start, len(data))
            return
        if looks_secret(value):
            past = end
            yield Found("assignment", "a password, key or token set to a value", start, end)


def is_placeholder(value: bytes) -> bool:
    """Whether the value only stands where a secret would: a name, a variable, a dummy."""
    plain = value.strip(b"[]()\"' ").lower()
    words = {b"password", b"secret", b"pass", b"passwd", b"token", b"user", b"username", b"pw", b""}
    return plain in words or _NOT_A_SECRET.search(value) is not None or len(set(value)) < 4


def looks_secret(value: bytes) -> bool:
    """Whether a value set to a telling name is likely one: mixed, long enough, no mere word."""
    letters = re.search(rb"[A-Za-z]", value) is not None
    others = re.search(rb"[0-9]|[^\w./:-]", value) is not None
    if not (letters and others) or re.search(rb"\s", value) or _WORDS.fullmatch(value):
        return False
    # Patterns, paths and addresses are set to such names as well.
    if value.startswith((b"(", b"[", b"/", b"./", b"~", b"http:", b"https:", b"urn:", b"file:")):
        return False
    if re.fullmatch(rb"[A-Z0-9]+(?:_[A-Z0-9]+)+", value) or is_placeholder(value):
        return False
    return entropy(value) >= 2.9


def entropy(value: bytes) -> float:
    """Shannon entropy in bits for each byte."""
    if not value:
        return 0.0
    total = len(value)
    return -sum(n / total * math.log2(n / total) for n in Counter(value).values())
