"""System checks that refuse a deployment which would lose or leak something.

`manage.py check --deploy` asks all of them, `manage.py up` too. Those without
`deploy` only compare settings and are asked by every command.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis
from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from portal.keys import readable_by_others

TAG = "imprimatur"


@register(TAG)
def development_stays_at_home(
    app_configs: Sequence[AppConfig] | None, **kwargs: Any
) -> list[CheckMessage]:
    """Switches that open the machine to whoever can reach it."""
    found: list[CheckMessage] = []
    if settings.DEBUG and not settings.PUBLIC_ADDRESS.loopback:
        found.append(
            Error(
                "DEBUG shows settings and source to every visitor of a public address.",
                hint="Unset DEBUG, or set PUBLIC_URL to http://127.0.0.1:8000.",
                id="imprimatur.E001",
            )
        )
    if settings.DEVELOPMENT and not settings.PUBLIC_ADDRESS.loopback:
        found.append(
            Error(
                "DEVELOPMENT allows a sandbox that isolates nothing.",
                hint="Unset DEVELOPMENT on a machine that others can reach.",
                id="imprimatur.E002",
            )
        )
    if settings.SANDBOX_PROVIDER == "scripted" and not settings.DEVELOPMENT:
        found.append(
            Error(
                "The scripted sandbox isolates nothing.",
                hint="Set SANDBOX_PROVIDER to auto, bubblewrap or docker; "
                "for development only, set DEVELOPMENT=1.",
                id="imprimatur.E003",
            )
        )
    return found


@register(TAG)
def one_database_for_all_hosts(
    app_configs: Sequence[AppConfig] | None, **kwargs: Any
) -> list[CheckMessage]:
    """A file on this machine cannot be the truth for workers on another."""
    if settings.DATABASE.is_sqlite and not settings.BROKER.local:
        return [
            Error(
                "The broker is reachable from other machines, the database is a file on this one. "
                "A worker elsewhere would take a job and find no row.",
                hint="Set DATABASE_URL to a PostgreSQL server, or BROKER_URL to a local one.",
                id="imprimatur.E004",
            )
        ]
    return []


@register(TAG)
def messages_outlive_the_work(
    app_configs: Sequence[AppConfig] | None, **kwargs: Any
) -> list[CheckMessage]:
    """The times that must stand in this order: heartbeat, lease, hard limit, redelivery."""
    found: list[CheckMessage] = []
    options = settings.CELERY_BROKER_TRANSPORT_OPTIONS
    if options["visibility_timeout"] <= settings.RUN_HARD_LIMIT:
        found.append(
            Error(
                "The broker would hand a run to a second worker while the first may still work.",
                hint="Set BROKER_VISIBILITY above RUN_HARD_LIMIT.",
                id="imprimatur.E005",
            )
        )
    if settings.RUN_LEASE >= settings.RUN_HARD_LIMIT:
        found.append(
            Error(
                "A run of a dead worker would wait as long as the longest run may take.",
                hint="Set RUN_LEASE well below RUN_HARD_LIMIT; it is renewed while a worker lives.",
                id="imprimatur.E006",
            )
        )
    if settings.SWEEP_SECONDS > settings.RUN_LEASE:
        found.append(
            Warning(
                "Overdue work is looked for less often than leases end.",
                hint="Set SWEEP_SECONDS below RUN_LEASE.",
                id="imprimatur.W001",
            )
        )
    return found


@register(TAG, deploy=True)
def keys_are_there_and_private(
    app_configs: Sequence[AppConfig] | None, **kwargs: Any
) -> list[CheckMessage]:
    """Who reads the key file reads every stored secret."""
    path: Path = settings.KEYS_FILE
    if not settings.FIELD_KEYS:  # both kinds are read together, and SECRET_KEY refuses to be asked
        return [
            Error(
                "There are no keys to sign sessions and encrypt stored secrets with.",
                hint="Set SECRET_KEY and FIELD_KEYS (or their _FILE forms), "
                "or let `manage.py up` make a key file.",
                id="imprimatur.E007",
            )
        ]
    if path.exists() and readable_by_others(path):
        return [
            Error(
                f"The key file {path} can be read by others.",
                hint=f"Run: chmod 600 {path}",
                id="imprimatur.E008",
            )
        ]
    return []


@register(TAG, deploy=True)
def data_can_be_written(
    app_configs: Sequence[AppConfig] | None, **kwargs: Any
) -> list[CheckMessage]:
    """Directories that evidence goes to, and who else may look into them."""
    found: list[CheckMessage] = []
    for name in ("BLOB_DIR", "SOURCE_CACHE_DIR"):
        path: Path = getattr(settings, name)
        standing = next(each for each in (path, *path.parents) if each.exists())
        if not os.access(standing, os.W_OK | os.X_OK) or not standing.is_dir():
            found.append(
                Error(
                    f"{name} is {path}, and this user cannot write there.",
                    hint=f"Make {standing} writable for the user that runs the portal, "
                    f"or set {name} to a directory that is.",
                    id="imprimatur.E009",
                )
            )
        elif standing == path and _open_to_everybody(path):
            found.append(
                Warning(
                    f"{name} is {path}, and every user of this machine can look into it.",
                    hint=f"Run: chmod o-rwx {path}",
                    id="imprimatur.W002",
                )
            )
    return found


def _open_to_everybody(path: Path) -> bool:
    """Whether a stranger on this machine gets through all directories above, and in."""
    above = all(each.stat().st_mode & 0o001 for each in path.parents)
    return above and bool(path.stat().st_mode & 0o007)


@register(TAG, deploy=True)
def cookies_travel_encrypted(
    app_configs: Sequence[AppConfig] | None, **kwargs: Any
) -> list[CheckMessage]:
    """A session cookie over plain HTTP can be copied on the way."""
    if settings.PUBLIC_ADDRESS.secure or settings.PUBLIC_ADDRESS.loopback:
        return []
    return [
        Error(
            f"People reach the portal at {settings.PUBLIC_URL}, without encryption: "
            "their session cookies can be copied on the way.",
            hint="Put a TLS proxy in front and set PUBLIC_URL to its https address.",
            id="imprimatur.E010",
        )
    ]


@register(TAG, deploy=True)
def broker_keeps_what_it_is_given(
    app_configs: Sequence[AppConfig] | None, **kwargs: Any
) -> list[CheckMessage]:
    """A broker that evicts or forgets messages delays every hop until a sweep."""
    client = redis.Redis.from_url(
        settings.BROKER.for_client(), socket_connect_timeout=2, socket_timeout=2
    )
    try:
        facts = {**client.info("persistence"), **client.info("memory")}
    except redis.RedisError as error:
        return [
            Warning(
                f"The broker could not be asked how it keeps messages ({error}).",
                hint="Start it, check BROKER_URL, and ask again.",
                id="imprimatur.W003",
            )
        ]
    finally:
        client.close()
    found: list[CheckMessage] = []
    if not facts.get("aof_enabled"):
        found.append(
            Warning(
                "The broker forgets its messages when it is restarted; they wait for a sweep then.",
                hint="Set `appendonly yes` on the Redis or Valkey server.",
                id="imprimatur.W004",
            )
        )
    if facts.get("maxmemory") and facts.get("maxmemory_policy") != "noeviction":
        found.append(
            Error(
                "The broker throws messages away when its memory is full.",
                hint="Set `maxmemory-policy noeviction` on the Redis or Valkey server.",
                id="imprimatur.E011",
            )
        )
    return found


@register(TAG, deploy=True)
def static_files_were_collected(
    app_configs: Sequence[AppConfig] | None, **kwargs: Any
) -> list[CheckMessage]:
    """With STATIC_ROOT, every page needs the list of names that collectstatic writes."""
    if settings.STATIC_ROOT is None or (settings.STATIC_ROOT / "staticfiles.json").exists():
        return []
    return [
        Error(
            f"STATIC_ROOT is {settings.STATIC_ROOT}, and no files were collected there.",
            hint="Run: manage.py collectstatic --noinput",
            id="imprimatur.E012",
        )
    ]
