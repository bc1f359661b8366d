"""The settings as a whole: wrong ones stop the start, right ones agree with each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from django.conf import settings

_ASK = """
import json
from django.conf import settings
names = {names!r}
print(json.dumps({{name: getattr(settings, name, None) for name in names}}, default=str))
"""


def started(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter with these variables."""
    return subprocess.run(
        (sys.executable, *arguments),
        env={**os.environ, **environment},
        cwd=settings.BASE_DIR,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def values(*names: str, **environment: str) -> dict[str, Any]:
    """What the settings are with these variables."""
    outcome = started("-c", _ASK.format(names=names), **environment)
    assert outcome.returncode == 0, outcome.stderr
    found: dict[str, Any] = json.loads(outcome.stdout)
    return found


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"RUN_LEASE": "soon"}, "RUN_LEASE is 'soon'. Set it to whole seconds, 3 or more."),
        ({"RUN_HARD_LIMIT": "900", "BROKER_VISIBILITY": "900"}, "whole seconds, 960 or more."),
        ({"SANDBOX_PROVIDER": "none"}, "Set it to one of auto, bubblewrap, docker, scripted."),
        ({"ALLOWED_HOSTS": "*"}, "Name the hosts; any host would allow forged links."),
        ({"DATABASE_URL": "oracle://x/y"}, "Set it to sqlite:////absolute/path/to/file"),
    ],
)
def test_a_wrong_value_is_one_sentence_and_no_traceback(
    environment: dict[str, str], words: str
) -> None:
    outcome = started("manage.py", "check", **environment)
    assert outcome.returncode == 1
    assert outcome.stderr.startswith("manage.py: ")
    assert words in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_one_address_decides_what_must_agree() -> None:
    names = (
        *("SESSION_COOKIE_SECURE", "CSRF_COOKIE_SECURE", "SECURE_SSL_REDIRECT"),
        *("SESSION_COOKIE_NAME", "ALLOWED_HOSTS", "CSRF_TRUSTED_ORIGINS", "SECURE_HSTS_SECONDS"),
    )
    public = values(*names, PUBLIC_URL="https://imprimatur.example.com")
    assert public["SESSION_COOKIE_SECURE"] is True
    assert public["CSRF_COOKIE_SECURE"] is True
    assert public["SECURE_SSL_REDIRECT"] is True
    assert public["SECURE_HSTS_SECONDS"] > 0
    assert public["SESSION_COOKIE_NAME"].startswith("__Host-")
    assert public["ALLOWED_HOSTS"] == ["imprimatur.example.com"]
    assert public["CSRF_TRUSTED_ORIGINS"] == ["https://imprimatur.example.com"]

    local = values(*names, PUBLIC_URL="http://127.0.0.1:8123")
    assert local["SESSION_COOKIE_SECURE"] is False
    assert local["SECURE_HSTS_SECONDS"] == 0
    assert "localhost" in local["ALLOWED_HOSTS"]


def test_the_content_policy_lets_nothing_in() -> None:
    directives = settings.CONTENT_SECURITY_POLICY["DIRECTIVES"]
    assert directives["default-src"] == ["'none'"]
    assert directives["frame-ancestors"] == ["'none'"]
    assert directives["base-uri"] == ["'none'"]
    assert {source for sources in directives.values() for source in sources} == {
        "'none'",
        "'self'",
    }


def test_the_sdk_sends_no_traces() -> None:
    asked = "import portal.settings, os; print(os.environ['OPENAI_AGENTS_DISABLE_TRACING'])"
    outcome = started("-c", asked, OPENAI_AGENTS_DISABLE_TRACING="0")
    assert outcome.stdout.strip() == "1"


def test_both_databases_are_told_what_they_need() -> None:
    sqlite = values("DATABASES", DATABASE_URL="sqlite:////srv/it.db")["DATABASES"]["default"]
    assert sqlite["OPTIONS"]["transaction_mode"] == "IMMEDIATE"
    assert "journal_mode=WAL" in sqlite["OPTIONS"]["init_command"]
    assert "synchronous=FULL" in sqlite["OPTIONS"]["init_command"]

    url = "postgresql://me@db.example/it"
    postgresql = values("DATABASES", DATABASE_URL=url, ROW_SCOPE="none")["DATABASES"]["default"]
    options = postgresql["OPTIONS"]["options"]
    # From the first to the one before it: no tenant's rows.
    assert "-c imprimatur.first_tenant=1 -c imprimatur.last_tenant=0 " in options
    assert "-c lock_timeout=20s" in options
    assert postgresql["OPTIONS"]["pool"]["max_size"] == 12
