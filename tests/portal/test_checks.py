"""System checks: each finds what it is for, says the way out, and is quiet otherwise."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import CheckMessage
from pytest_django.fixtures import Settings

from portal import checks
from portal.env import env_address, env_redis, parse_database
from tests.services import Valkey, free_port

Check = Callable[[Any], list[CheckMessage]]


def ids(check: Check) -> list[str | None]:
    found = check(None)
    assert all(each.hint for each in found), "every finding says the way out"
    return [each.id for each in found]


PUBLIC = env_address("", "https://imprimatur.example.com")
PLAIN = env_address("", "http://imprimatur.example.com")
LOCAL = env_address("", "http://127.0.0.1:8000")


def test_development_stays_at_home(settings: Settings) -> None:
    settings.SANDBOX_PROVIDER = "auto"
    settings.DEBUG = settings.DEVELOPMENT = True
    settings.PUBLIC_ADDRESS = LOCAL
    assert ids(checks.development_stays_at_home) == []
    settings.PUBLIC_ADDRESS = PUBLIC
    assert ids(checks.development_stays_at_home) == ["imprimatur.E001", "imprimatur.E002"]


def test_a_sandbox_that_isolates_nothing_needs_the_switch(settings: Settings) -> None:
    settings.SANDBOX_PROVIDER = "scripted"
    settings.DEVELOPMENT = True
    assert ids(checks.development_stays_at_home) == []
    settings.DEVELOPMENT = False
    assert ids(checks.development_stays_at_home) == ["imprimatur.E003"]


def test_one_database_for_all_hosts(settings: Settings) -> None:
    settings.BROKER = env_redis("", "redis://broker.example:6379/0")
    settings.DATABASE = parse_database("", "postgresql://db.example/it")
    assert ids(checks.one_database_for_all_hosts) == []
    settings.DATABASE = parse_database("", "sqlite:////srv/it.db")
    assert ids(checks.one_database_for_all_hosts) == ["imprimatur.E004"]
    settings.BROKER = env_redis("", "redis://127.0.0.1:6379/0")
    assert ids(checks.one_database_for_all_hosts) == []


def test_times_stand_in_order(settings: Settings) -> None:
    assert ids(checks.messages_outlive_the_work) == []
    settings.SWEEP_SECONDS = settings.RUN_LEASE + 1
    assert ids(checks.messages_outlive_the_work) == ["imprimatur.W001"]
    settings.SWEEP_SECONDS = 1
    settings.RUN_LEASE = settings.RUN_HARD_LIMIT
    assert ids(checks.messages_outlive_the_work) == ["imprimatur.E006"]
    settings.RUN_LEASE = 45
    settings.CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": settings.RUN_HARD_LIMIT}
    assert ids(checks.messages_outlive_the_work) == ["imprimatur.E005"]


def test_keys_are_there_and_private(settings: Settings, tmp_path: Path) -> None:
    settings.KEYS_FILE = tmp_path / "keys"
    settings.KEYS_FILE.write_text("")
    settings.KEYS_FILE.chmod(0o600)
    assert ids(checks.keys_are_there_and_private) == []
    settings.KEYS_FILE.chmod(0o640)
    assert ids(checks.keys_are_there_and_private) == ["imprimatur.E008"]
    settings.FIELD_KEYS = []
    assert ids(checks.keys_are_there_and_private) == ["imprimatur.E007"]


def test_data_can_be_written(settings: Settings, tmp_path: Path) -> None:
    settings.SOURCE_CACHE_DIR = tmp_path / "later" / "sources"
    settings.BLOB_DIR = tmp_path / "blobs"
    settings.BLOB_DIR.mkdir(mode=0o700)
    assert ids(checks.data_can_be_written) == []
    (tmp_path / "file").write_text("")
    settings.BLOB_DIR = tmp_path / "file" / "blobs"
    assert ids(checks.data_can_be_written) == ["imprimatur.E009"]


def test_blobs_that_everybody_can_read_are_found(settings: Settings) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        settings.BLOB_DIR = Path(home) / "blobs"
        settings.BLOB_DIR.mkdir(mode=0o755)
        assert ids(checks.data_can_be_written) == []  # nobody gets as far as that
        Path(home).chmod(0o755)
        assert ids(checks.data_can_be_written) == ["imprimatur.W002"]


def test_cookies_travel_encrypted(settings: Settings) -> None:
    for address, expected in ((LOCAL, []), (PUBLIC, []), (PLAIN, ["imprimatur.E010"])):
        settings.PUBLIC_ADDRESS = address
        assert ids(checks.cookies_travel_encrypted) == expected


def test_the_broker_keeps_what_it_is_given(settings: Settings, valkey: Valkey) -> None:
    assert ids(checks.broker_keeps_what_it_is_given) == []
    settings.BROKER = env_redis("", f"redis://127.0.0.1:{free_port()}/0")
    assert ids(checks.broker_keeps_what_it_is_given) == ["imprimatur.W003"]


def test_a_forgetful_broker_is_found(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    facts: dict[str, Any] = {"aof_enabled": 0, "maxmemory": 0, "maxmemory_policy": "allkeys-lru"}
    monkeypatch.setattr("redis.Redis.info", lambda self, section: facts)
    assert ids(checks.broker_keeps_what_it_is_given) == ["imprimatur.W004"]
    facts |= {"aof_enabled": 1, "maxmemory": 1 << 30}
    assert ids(checks.broker_keeps_what_it_is_given) == ["imprimatur.E011"]
    facts |= {"maxmemory_policy": "noeviction"}
    assert ids(checks.broker_keeps_what_it_is_given) == []


def test_static_files_were_collected(settings: Settings, tmp_path: Path) -> None:
    assert ids(checks.static_files_were_collected) == []
    settings.STATIC_ROOT = tmp_path
    assert ids(checks.static_files_were_collected) == ["imprimatur.E012"]
    (tmp_path / "staticfiles.json").write_text("{}")
    assert ids(checks.static_files_were_collected) == []
