"""Values from the environment: read as meant, or refused with the way out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from portal.env import (
    MailUrl,
    WrongValue,
    env_address,
    env_choice,
    env_database,
    env_flag,
    env_int,
    env_list,
    env_mail,
    env_path,
    env_redis,
    env_seconds,
    env_secret,
)


def read(monkeypatch: pytest.MonkeyPatch, value: str, reader: Callable[[str], object]) -> object:
    monkeypatch.setenv("IT", value)
    return reader("IT")


@pytest.mark.parametrize(
    ("value", "reader", "meant"),
    [
        ("yes", lambda name: env_flag(name, False), True),
        (" OFF ", lambda name: env_flag(name, True), False),
        ("7", lambda name: env_int(name, 1, at_least=0), 7),
        ("90", lambda name: env_seconds(name, 1, at_least=60), 90),
        ("b", lambda name: env_choice(name, "a", ("a", "b")), "b"),
        (" a.example , ,b.example", lambda name: env_list(name), ["a.example", "b.example"]),
        ("", lambda name: env_list(name, ("x",)), ["x"]),
        ("/srv/data", lambda name: env_path(name, Path("/var")), Path("/srv/data")),
        ("", lambda name: env_path(name, Path("/var")), Path("/var")),
    ],
)
def test_values_are_read_as_meant(
    monkeypatch: pytest.MonkeyPatch,
    value: str,
    reader: Callable[[str], object],
    meant: object,
) -> None:
    assert read(monkeypatch, value, reader) == meant


@pytest.mark.parametrize(
    ("value", "reader", "remedy"),
    [
        ("maybe", lambda name: env_flag(name, False), "Set it to 1 or 0."),
        ("-1", lambda name: env_int(name, 1, at_least=0), "Set it to a whole number, 0 or more."),
        ("1e3", lambda name: env_int(name, 1, at_least=0), "Set it to a whole number, 0 or more."),
        ("٣", lambda name: env_int(name, 1, at_least=0), "Set it to a whole number, 0 or more."),
        ("59", lambda name: env_seconds(name, 60, at_least=60), "whole seconds, 60 or more."),
        ("c", lambda name: env_choice(name, "a", ("a", "b")), "Set it to one of a, b."),
        ("ftp://h", lambda name: env_address(name, ""), "https://imprimatur.example.com"),
        ("https://h/path", lambda name: env_address(name, ""), "an origin without a path"),
        ("https://u:p@h", lambda name: env_address(name, ""), "an origin without a path"),
        ("http://h:port", lambda name: env_address(name, ""), "an origin without a path"),
        ("mysql://h/db", lambda name: env_database(name, ""), "postgresql://user:password@host"),
        ("sqlite:///here.db", lambda name: env_database(name, ""), "sqlite:////absolute/path"),
        ("postgresql://h", lambda name: env_database(name, ""), "postgresql://user:password@host"),
        ("postgresql://h/db?nope=1", lambda name: env_database(name, ""), "sslmode"),
        ("http://h:6379", lambda name: env_redis(name, ""), "redis://host:6379/0"),
        ("mail.example.com:25", lambda name: env_mail(name), "smtp://host:25"),
        ("smtp://h:many", lambda name: env_mail(name), "smtp://host:25"),
        ("smtp://h/inbox", lambda name: env_mail(name), "smtp://host:25"),
        ("smtp://:25", lambda name: env_mail(name), "smtp://host:25"),
        ("redis://h/one", lambda name: env_redis(name, ""), "redis://host:6379/0"),
        ("unix://relative.sock", lambda name: env_redis(name, ""), "unix:///path"),
        ("redis://h/0?retry=1", lambda name: env_redis(name, ""), "redis://host:6379/0"),
    ],
)
def test_nonsense_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, value: str, reader: Callable[[str], object], remedy: str
) -> None:
    with pytest.raises(WrongValue) as refused:
        read(monkeypatch, value, reader)
    assert str(refused.value).startswith(f"IT is {value!r}. ")
    assert remedy in str(refused.value)


def test_a_default_is_held_to_the_rule_too() -> None:
    with pytest.raises(WrongValue, match=r"RUN_LEASE is '60'\. Set it to whole seconds, 1860"):
        env_seconds("RUN_LEASE", 60, at_least=1860)


def test_a_refusal_never_shows_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IT", "postgresql://me:very-hidden@host/db?nope=1")
    with pytest.raises(WrongValue) as refused:
        env_database("IT", "")
    assert "very-hidden" not in str(refused.value)
    assert "me:***@host" in str(refused.value)

    monkeypatch.setenv("IT", "redis://:very-hidden@host:6379/zero")
    with pytest.raises(WrongValue) as refused:
        env_redis("IT", "")
    assert "very-hidden" not in str(refused.value)


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    public = env_address("IT", "https://imprimatur.example.com/")
    assert (public.origin, public.secure, public.loopback) == (
        "https://imprimatur.example.com",
        True,
        False,
    )
    local = env_address("IT", "http://[::1]:8000")
    assert (local.origin, local.secure, local.loopback) == ("http://[::1]:8000", False, True)


def test_databases() -> None:
    assert env_database("IT", "sqlite:////srv/it.db").name == "/srv/it.db"
    found = env_database("IT", "postgres://a%40b:p%2Fw@db.example:5433/it?sslmode=require")
    assert (found.engine, found.user, found.password) == ("postgresql", "a@b", "p/w")
    assert (found.host, found.port, found.name) == ("db.example", "5433", "it")
    assert found.options == {"sslmode": "require"}
    assert "p/w" not in repr(found)
    assert env_database("IT", "postgresql://me@/it?host=/run/pg").host == "/run/pg"


@pytest.mark.parametrize(
    "spelled", ["unix:///run/a%20b.sock?db=2", "redis+socket:///run/a%20b.sock?virtual_host=2"]
)
def test_a_socket_is_spelled_as_each_library_wants_it(spelled: str) -> None:
    found = env_redis("IT", spelled)
    assert found.for_client() == "unix:///run/a%20b.sock?db=2"
    assert found.for_celery() == "redis+socket:///run/a%20b.sock?virtual_host=2"
    assert found.local


def test_a_server_keeps_its_login() -> None:
    found = env_redis("IT", "rediss://user:word@cache.example:6380/3")
    assert found.for_client() == found.for_celery() == "rediss://user:word@cache.example:6380/3"
    assert not found.local
    assert "word" not in repr(found)


def test_a_secret_comes_from_its_variable_or_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert env_secret("IT") == ""
    file = tmp_path / "secret"
    file.write_text("from-file\n")
    monkeypatch.setenv("IT_FILE", str(file))
    assert env_secret("IT") == "from-file"

    monkeypatch.setenv("IT", "direct")
    with pytest.raises(WrongValue, match="Set IT or IT_FILE, not both"):
        env_secret("IT")

    monkeypatch.delenv("IT")
    monkeypatch.setenv("IT_FILE", str(tmp_path / "absent"))
    with pytest.raises(WrongValue, match="Name a readable text file"):
        env_secret("IT")


def test_mail_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EMAIL_URL", raising=False)
    assert env_mail("EMAIL_URL") is None
    read = {
        "smtp://relay": MailUrl("relay", 25),
        "smtps://me%40here:p%2Fw@h": MailUrl("h", 465, "me@here", "p/w", tls=True),
        "smtp+tls://me:pw@h:2587": MailUrl("h", 2587, "me", "pw", starttls=True),
    }
    for value, meant in read.items():
        monkeypatch.setenv("EMAIL_URL", value)
        assert env_mail("EMAIL_URL") == meant
    assert "pw" not in repr(meant)
    monkeypatch.setenv("EMAIL_URL", "http://me:pw@h")
    with pytest.raises(WrongValue) as refused:
        env_mail("EMAIL_URL")
    assert "pw" not in str(refused.value)
