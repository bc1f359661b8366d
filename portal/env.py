"""Read environment values and refuse the ones that cannot be right.

Each reader takes the variable's name and a default, and raises `WrongValue`
with one sentence for what is wrong and one for the way out. Nothing is guessed:
a value that is neither understood nor absent stops the start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

Word = TypeVar("Word", bound=str)

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})


class WrongValue(Exception):
    """A setting has a value the program cannot work with."""

    def __init__(self, name: str, value: str | None, remedy: str) -> None:
        self.name = name
        shown = "is not set" if value is None else f"is {value!r}"
        super().__init__(f"{name} {shown}. {remedy}")


def env_text(name: str, default: str = "") -> str:
    """The value as it stands, stripped."""
    return os.environ.get(name, default).strip()


def env_choice(name: str, default: Word, among: tuple[Word, ...]) -> Word:
    """One of a few words."""
    value = env_text(name, default)
    for word in among:
        if word == value:
            return word
    raise WrongValue(name, value, f"Set it to one of {', '.join(among)}.")


def env_flag(name: str, default: bool) -> bool:
    """Yes or no."""
    value = env_text(name, "1" if default else "0").lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise WrongValue(name, value, "Set it to 1 or 0.")


def env_int(name: str, default: int, *, at_least: int, unit: str = "a whole number") -> int:
    """A whole number not below `at_least`. The default is held to the rule too."""
    value = env_text(name, str(default))
    remedy = f"Set it to {unit}, {at_least} or more."
    if not (value.isascii() and value.isdigit()):
        raise WrongValue(name, value, remedy)
    if int(value) < at_least:
        raise WrongValue(name, value, remedy)
    return int(value)


def env_seconds(name: str, default: int, *, at_least: int = 1) -> int:
    """A duration in whole seconds."""
    return env_int(name, default, at_least=at_least, unit="whole seconds")


def env_path(name: str, default: Path) -> Path:
    """An absolute path; a relative one counts from where the process starts."""
    value = env_text(name)
    return Path(value).expanduser().absolute() if value else default


def env_list(name: str, default: tuple[str, ...] = ()) -> list[str]:
    """Comma separated words; empty ones are dropped."""
    value = env_text(name)
    if not value:
        return list(default)
    return [word.strip() for word in value.split(",") if word.strip()]


def env_secret(name: str) -> str:
    """A secret from NAME, or from the file that NAME_FILE names; "" where neither is set.

    The file form keeps the secret out of the process table and of crash reports.
    """
    direct, file = env_text(name), env_text(f"{name}_FILE")
    if direct and file:
        raise WrongValue(f"{name}_FILE", file, f"Set {name} or {name}_FILE, not both.")
    if not file:
        return direct
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongValue(f"{name}_FILE", file, f"Name a readable text file ({error}).") from error


@dataclass(frozen=True)
class WebAddress:
    """Where people reach the portal: scheme, host and port, never a path."""

    scheme: str
    host: str
    port: int | None

    @property
    def origin(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + (f":{self.port}" if self.port else "")

    @property
    def secure(self) -> bool:
        return self.scheme == "https"

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether the name can only mean this machine."""
    return host in {"localhost", "::1", ""} or host.startswith("127.")


def env_address(name: str, default: str) -> WebAddress:
    """An http(s) origin such as https://imprimatur.example.com."""
    value = env_text(name, default)
    remedy = "Set it to an origin without a path, such as https://imprimatur.example.com."
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise WrongValue(name, value, remedy) from error
    extra = parts.username or parts.password or parts.query or parts.fragment
    if parts.scheme not in {"http", "https"} or not host or extra or parts.path not in {"", "/"}:
        raise WrongValue(name, value, remedy)
    return WebAddress(parts.scheme, host, port)


@dataclass(frozen=True)
class MailUrl:
    """A server that takes mail, in the words of no framework."""

    host: str
    port: int
    user: str = ""
    password: str = field(default="", repr=False)
    # `smtps`: encrypted from the beginning; `smtp+tls`: once the server has greeted.
    tls: bool = False
    starttls: bool = False


_MAIL_PORTS = {"smtp": 25, "smtps": 465, "smtp+tls": 587}
_MAIL_REMEDY = (
    "Set it to smtp://host:25, smtps://user:password@host:465 or smtp+tls://user:password@host:587."
)


def env_mail(name: str) -> MailUrl | None:
    """Where mail is handed in, or None. With a password it may lie in the file NAME_FILE names."""
    value = env_secret(name)
    if not value:
        return None
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError as error:
        raise WrongValue(name, _hidden(value), _MAIL_REMEDY) from error
    extra = parts.query or parts.fragment or parts.path not in {"", "/"}
    if parts.scheme not in _MAIL_PORTS or not parts.hostname or extra:
        raise WrongValue(name, _hidden(value), _MAIL_REMEDY)
    return MailUrl(
        parts.hostname,
        port or _MAIL_PORTS[parts.scheme],
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        tls=parts.scheme == "smtps",
        starttls=parts.scheme == "smtp+tls",
    )


@dataclass(frozen=True)
class DatabaseUrl:
    """Which database, in the words of no framework."""

    engine: str  # "sqlite" or "postgresql"
    name: str
    user: str = ""
    password: str = field(default="", repr=False)
    host: str = ""
    port: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_sqlite(self) -> bool:
        return self.engine == "sqlite"


# What may stand after the question mark, because libpq knows it and it is safe to hand on.
_POSTGRES_OPTIONS = frozenset(
    {"sslmode", "sslrootcert", "sslcert", "sslkey", "connect_timeout", "application_name"}
)
_DATABASE_REMEDY = (
    "Set it to sqlite:////absolute/path/to/file or to "
    "postgresql://user:password@host:5432/name (a socket directory as ?host=/run/postgresql)."
)


def _hidden(url: str) -> str:
    """The URL as it may be shown: without its password."""
    head, at, tail = url.rpartition("@")
    if not at:
        return url
    scheme, slashes, login = head.partition("://")
    user = login.partition(":")[0]
    return f"{scheme}{slashes}{user}:***@{tail}" if ":" in login else url


def env_database(name: str, default: str) -> DatabaseUrl:
    """The database a variable names."""
    return parse_database(name, env_text(name, default))


def parse_database(name: str, value: str) -> DatabaseUrl:
    """A database URL. Unknown schemes and options are refused, not ignored."""
    try:
        parts = urlsplit(value)
        port = str(parts.port or "")
    except ValueError as error:
        raise WrongValue(name, _hidden(value), _DATABASE_REMEDY) from error
    if parts.scheme == "sqlite":
        path = unquote(parts.path)
        # Three slashes and a name would mean "relative to wherever this started".
        if parts.netloc or not path.startswith("//") or parts.query:
            raise WrongValue(name, value, _DATABASE_REMEDY)
        return DatabaseUrl("sqlite", path[1:])
    database = unquote(parts.path.lstrip("/"))
    options = dict(parse_qsl(parts.query))
    host = options.pop("host", unquote(parts.hostname or ""))
    unknown = sorted(set(options) - _POSTGRES_OPTIONS)
    if parts.scheme not in {"postgres", "postgresql"} or not database or "/" in database:
        raise WrongValue(name, _hidden(value), _DATABASE_REMEDY)
    if unknown:
        known = ", ".join(sorted({*_POSTGRES_OPTIONS, "host"}))
        raise WrongValue(name, _hidden(value), f"After the question mark only {known} may stand.")
    return DatabaseUrl(
        "postgresql",
        database,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        host=host,
        port=port,
        options=options,
    )


@dataclass(frozen=True)
class RedisUrl:
    """One Redis or Valkey, spelled as each library wants it."""

    scheme: str  # "redis", "rediss" or "unix"
    netloc: str = field(repr=False)
    host: str
    path: str
    database: int

    @property
    def local(self) -> bool:
        return self.scheme == "unix" or is_loopback(self.host)

    def for_client(self) -> str:
        """As redis-py, Django's cache and channels_redis read it."""
        if self.scheme == "unix":
            return f"unix://{quote(self.path)}?db={self.database}"
        return f"{self.scheme}://{self.netloc}/{self.database}"

    def for_celery(self) -> str:
        """As kombu reads it, which has its own word for a unix socket."""
        if self.scheme == "unix":
            return f"redis+socket://{quote(self.path)}?virtual_host={self.database}"
        return f"{self.scheme}://{self.netloc}/{self.database}"


_REDIS_REMEDY = (
    "Set it to redis://host:6379/0, rediss://user:password@host:6379/0, "
    "or unix:///path/to/valkey.sock?db=0."
)


def env_redis(name: str, default: str) -> RedisUrl:
    """A Redis or Valkey URL; `redis+socket://` and `unix://` mean the same."""
    value = env_text(name, default)
    try:
        parts = urlsplit(value)
        _ = parts.port  # raises for a port that is not a number
        options = dict(parse_qsl(parts.query))
        if parts.scheme in {"unix", "redis+socket"}:
            number = options.pop("db", options.pop("virtual_host", "0"))
            path, scheme = unquote(parts.path), "unix"
        else:
            number = parts.path.lstrip("/") or "0"
            path, scheme = "", parts.scheme
        database = int(number)
    except ValueError as error:
        raise WrongValue(name, _hidden(value), _REDIS_REMEDY) from error
    whole = path.startswith("/") if scheme == "unix" else bool(parts.hostname)
    if scheme not in {"redis", "rediss", "unix"} or not whole or options or database < 0:
        raise WrongValue(name, _hidden(value), _REDIS_REMEDY)
    return RedisUrl(scheme, parts.netloc, parts.hostname or "", path, database)


def env_prices(name: str) -> dict[str, tuple[Decimal, Decimal, Decimal]]:
    """Prices of models: `name=input/cached/output` with commas between, in millionths a token."""
    prices: dict[str, tuple[Decimal, Decimal, Decimal]] = {}
    for part in env_list(name):
        model, _, amounts = part.rpartition("=")
        try:
            numbers = [Decimal(amount) for amount in amounts.split("/")]
        except InvalidOperation:
            numbers = []
        if (
            not model
            or len(numbers) != 3
            or any(not each.is_finite() or each < 0 for each in numbers)
        ):
            raise WrongValue(name, part, "Write each model as name=input/cached/output.")
        prices[model.strip()] = (numbers[0], numbers[1], numbers[2])
    return prices


def env_unit_prices(name: str, kinds: tuple[str, ...]) -> dict[str, Decimal]:
    """Prices per unit: `kind=price`, separated by commas, in millionths."""
    prices: dict[str, Decimal] = {}
    for part in env_list(name):
        kind, _, amount = part.partition("=")
        try:
            price = Decimal(amount)
        except InvalidOperation:
            price = Decimal(-1)
        if kind not in kinds or not price.is_finite() or price < 0:
            raise WrongValue(name, part, f"Write kind=price; the kinds are {', '.join(kinds)}.")
        prices[kind] = price
    return prices
