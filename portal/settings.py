"""Every setting, read from the environment, with the rules between them.

Without any variable set this is the embedded installation: everything lives
under DATA_DIR and `manage.py up` starts what is missing. The same code runs on
PostgreSQL and Redis when DATABASE_URL and BROKER_URL say so.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from portal.database import configured
from portal.env import (
    WrongValue,
    env_address,
    env_choice,
    env_database,
    env_flag,
    env_int,
    env_list,
    env_mail,
    env_path,
    env_prices,
    env_redis,
    env_seconds,
    env_secret,
    env_text,
    env_unit_prices,
)
from portal.keys import load_keys

# The ways to isolate a run that exist; `scripted` isolates nothing (see DEVELOPMENT).
PROVIDERS: tuple[Literal["auto", "bubblewrap", "docker", "scripted"], ...] = (
    "auto",
    "bubblewrap",
    "docker",
    "scripted",
)

BASE_DIR = Path(__file__).resolve().parent.parent

# --- Where things are -------------------------------------------------------
# All that this installation must not lose: database, keys, blobs, broker file.
DATA_DIR = env_path("DATA_DIR", BASE_DIR / "var")
BLOB_DIR = env_path("BLOB_DIR", DATA_DIR / "blobs")
# Bare copies of the repositories that contracts name. May be deleted any time.
SOURCE_CACHE_DIR = env_path("SOURCE_CACHE_DIR", DATA_DIR / "sources")

# --- Development ------------------------------------------------------------
# Lifts two protections on purpose: tracebacks in the browser become possible,
# and a sandbox that isolates nothing may be chosen. Never set it where strangers
# can reach the portal; portal.checks refuses that.
DEVELOPMENT = env_flag("DEVELOPMENT", False)
DEBUG = env_flag("DEBUG", False)
DEMO = env_flag("DEMO", False)

# --- Keys -------------------------------------------------------------------
KEYS_FILE = env_path("KEYS_FILE", DATA_DIR / "keys")
_keys = load_keys(KEYS_FILE)
SECRET_KEY = _keys.secret_key
FIELD_KEYS = list(_keys.field_keys)
SIGNING_KEYS = list(_keys.signing_keys)

# --- The address people use -------------------------------------------------
# One value decides what else must agree: host check, origins, cookie safety.
PUBLIC_ADDRESS = env_address("PUBLIC_URL", "http://127.0.0.1:8000")
PUBLIC_URL = PUBLIC_ADDRESS.origin
_loopback_names = ("127.0.0.1", "localhost", "[::1]") if PUBLIC_ADDRESS.loopback else ()
ALLOWED_HOSTS = env_list("ALLOWED_HOSTS", (PUBLIC_ADDRESS.host, *_loopback_names))
if "*" in ALLOWED_HOSTS:
    raise WrongValue("ALLOWED_HOSTS", "*", "Name the hosts; any host would allow forged links.")
CSRF_TRUSTED_ORIGINS = [PUBLIC_URL]

# Only behind a proxy that always sets X-Forwarded-Proto itself: from anyone else
# the header would make a plain request look like a secure one.
if env_flag("TRUST_PROXY", False):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_SSL_REDIRECT = PUBLIC_ADDRESS.secure
SECURE_HSTS_SECONDS = (
    env_int("HSTS_SECONDS", 31_536_000, at_least=0) if PUBLIC_ADDRESS.secure else 0
)
# Whether sister hosts and browser preload lists are bound too is for the owner of
# the domain to say, not for one application on it.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]

# --- Headers and cookies ----------------------------------------------------
CONTENT_SECURITY_POLICY: dict[str, Any] = {
    "DIRECTIVES": {
        "default-src": ["'none'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "img-src": ["'self'"],
        "font-src": ["'self'"],
        "connect-src": ["'self'"],
        "form-action": ["'self'"],
        "manifest-src": ["'self'"],
        "base-uri": ["'none'"],
        "frame-ancestors": ["'none'"],
    }
}
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"

# The __Host- prefix makes browsers refuse a cookie set by a sister host.
_cookie_prefix = "__Host-" if PUBLIC_ADDRESS.secure else ""
SESSION_COOKIE_NAME = f"{_cookie_prefix}imprimatur"
SESSION_COOKIE_SECURE = PUBLIC_ADDRESS.secure
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_AGE = env_seconds("SESSION_SECONDS", 12 * 3600, at_least=300)
CSRF_COOKIE_NAME = f"{_cookie_prefix}imprimatur-csrf"
CSRF_COOKIE_SECURE = PUBLIC_ADDRESS.secure
CSRF_COOKIE_HTTPONLY = True  # templates carry the token; no script needs the cookie
CSRF_COOKIE_SAMESITE = "Lax"

# --- Applications -----------------------------------------------------------
INSTALLED_APPS = [
    "portal",
    "runs",
    "approvals",
    "channels",
    "csp",
    "django_htmx",
    "lucide",
    "django.forms",  # its widget templates, for FORM_RENDERER
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",
    "servestatic.middleware.ServeStaticMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "portal.middleware.RefusalMiddleware",
]
ROOT_URLCONF = "portal.urls"
ASGI_APPLICATION = "portal.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "portal.context.shell",
            ],
        },
    }
]
FORM_RENDERER = "django.forms.renderers.TemplatesSetting"
# Who counts what the navigation shows beside its lines; the portal knows no other app.
SHELL_COUNTS = "approvals.queries.shell_counts"
# Who is told, inside the change, that a member has other roles now or has left.
ROLES_CHANGED = "approvals.delegation.roles_changed"

# --- People -----------------------------------------------------------------
AUTH_USER_MODEL = "portal.User"
AUTHENTICATION_BACKENDS = ["portal.sessions.People"]
LOGIN_URL = "/signin/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/signin/"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

# --- Language and time ------------------------------------------------------
LANGUAGE_CODE = "en"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"

# --- Static files -----------------------------------------------------------
STATIC_URL = "/static/"
# Without STATIC_ROOT the files are served from where they lie and browsers ask
# again after a minute. With it, `collectstatic` writes names that carry a digest
# there, and browsers keep them for good.
STATIC_ROOT: Path | None = env_path("STATIC_ROOT", Path()) if env_text("STATIC_ROOT") else None
SERVESTATIC_USE_FINDERS = STATIC_ROOT is None
SERVESTATIC_AUTOREFRESH = DEVELOPMENT
_static_storage = (
    "servestatic.storage.CompressedManifestStaticFilesStorage"
    if STATIC_ROOT
    else "django.contrib.staticfiles.storage.StaticFilesStorage"
)
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": _static_storage},
}

# --- Database ---------------------------------------------------------------
DATABASE = env_database("DATABASE_URL", f"sqlite:///{DATA_DIR / 'imprimatur.sqlite3'}")
# What a fresh PostgreSQL connection may see before `portal.tenancy.scope` names a
# tenant: workers and commands serve all of them, portal.asgi says "none".
ROW_SCOPE = env_choice("ROW_SCOPE", "*", ("*", "none"))
DATABASE_POOL = env_int("DATABASE_POOL", 12, at_least=2)
DATABASES = {"default": configured(DATABASE, row_scope=ROW_SCOPE, pool=DATABASE_POOL)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- Mail -------------------------------------------------------------------
# Reminders go out by mail too where somebody says through which server.
MAIL = env_mail("EMAIL_URL")
DEFAULT_FROM_EMAIL = env_text("EMAIL_FROM") or f"imprimatur@{PUBLIC_ADDRESS.host}"
if MAIL is not None:
    EMAIL_HOST, EMAIL_PORT = MAIL.host, MAIL.port
    EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = MAIL.user, MAIL.password
    EMAIL_USE_SSL, EMAIL_USE_TLS = MAIL.tls, MAIL.starttls
# A server that does not answer holds up one thread of one worker for so many seconds.
EMAIL_TIMEOUT = 10

# --- Broker, cache, live hints ----------------------------------------------
_valkey = f"unix://{DATA_DIR / 'valkey' / 'valkey.sock'}"
BROKER = env_redis("BROKER_URL", f"{_valkey}?db=0")
CHANNEL = env_redis("CHANNEL_URL", f"{_valkey}?db=0")
CACHE = env_redis("CACHE_URL", f"{_valkey}?db=1")
CHANNEL_URL = CHANNEL.for_client()
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": CACHE.for_client(),
        "KEY_PREFIX": "imprimatur",
    }
}
# Sessions are rows: signing somebody out must hold even when the cache is gone.
SESSION_ENGINE = "portal.sessions"

# --- Runs -------------------------------------------------------------------
# The longest a contract may let one stretch of work take. A task thread cannot
# be killed from outside, so the sandbox and the driver enforce it.
RUN_HARD_LIMIT = env_seconds("RUN_HARD_LIMIT", 3600, at_least=60)
# A worker that has not renewed its lease for this long is taken for dead and the
# run is given to another. Renewed three times in each lease, so that two lost
# heartbeats in a row do no harm.
RUN_LEASE = env_seconds("RUN_LEASE", 45, at_least=3)
RUN_HEARTBEAT = RUN_LEASE / 3
# How often the sweeper looks for rows whose next hop is overdue.
SWEEP_SECONDS = env_seconds("SWEEP_SECONDS", 3)
# Redis hands an unacknowledged message to another worker after this long, even
# while the first still works on it (celery/celery#5935). The lease makes that
# harmless; it must still not happen to every long run.
BROKER_VISIBILITY = env_seconds(
    "BROKER_VISIBILITY", RUN_HARD_LIMIT + 600, at_least=RUN_HARD_LIMIT + 60
)
# Threads of one worker process. Most of them wait for a sandbox or a model, so
# there are more than processors; they are only made when there is work.
CELERY_WORKER_CONCURRENCY = env_int("WORKER_THREADS", 12, at_least=2)
# How many of them runs may take; the rest is for hops of milliseconds.
WORKER_RUNS = env_int("WORKER_RUNS", max(1, CELERY_WORKER_CONCURRENCY - 4), at_least=1)
if WORKER_RUNS >= CELERY_WORKER_CONCURRENCY:
    raise WrongValue(
        "WORKER_RUNS",
        str(WORKER_RUNS),
        f"Leave a thread for the short hops: at most {CELERY_WORKER_CONCURRENCY - 1}, or raise "
        "WORKER_THREADS.",
    )
# The embedded worker carries beat in a thread; elsewhere exactly one beat runs
# beside the workers (`celery -A portal.celery beat`).
EMBEDDED_BEAT = env_flag("EMBEDDED_BEAT", False)
# After so many seconds without work a worker that has grown ends itself, to be
# started afresh by its supervisor (portal.rest). 0: never.
WORKER_REST = env_int("WORKER_REST", 0, at_least=0)
# Touched when the worker takes work, for whoever started it.
WORKER_READY_FILE = env_text("WORKER_READY_FILE")
# `auto` takes the first provider whose isolation is proved on this machine.
SANDBOX_PROVIDER = env_choice("SANDBOX_PROVIDER", "auto", PROVIDERS)
# Who answers `runs.agent` when it asks whether a tool call may happen.
RUN_JUDGE = "approvals.judge.TenantJudge"
# How often it is looked for bytes that no tenant keeps any longer.
RETENTION_SECONDS = 3600
# How often it is signed where the audit logs stand that went on.
CHECKPOINT_SECONDS = 3600
# How often it is asked whether people could still satisfy the rules in force: more often than each
# night, because a worker that ends and begins again would miss the one hour of a day.
QUORUM_SECONDS = 3600
# How often it is asked whether a test packet is due, which is the case once in weeks.
CANARY_SECONDS = 1800
# How long the host of a source is asked where its branch stands, when a run parks or goes on.
SOURCE_HEAD_SECONDS = 20

# Local sources and local publishing targets lie below this directory; a contract
# names them relative to it and can reach nothing else on this machine.
SOURCE_ROOT = env_path("SOURCE_ROOT", DATA_DIR / "repositories")
# Hosts with private addresses that brokered tools may reach, as host or host:port.
BROKER_PRIVATE_HOSTS = env_list("BROKER_PRIVATE_HOSTS", ())
# The same for what sandboxes reach through their proxy; without this no private,
# loopback or link-local address is reached, whatever a rule names.
EGRESS_PRIVATE_HOSTS = env_list("EGRESS_PRIVATE_HOSTS", ())
# Where the SQLite files lie that brokered tools may read: one folder for each tenant, by its
# short name.
BROKER_DATABASES = env_path("BROKER_DATABASES", DATA_DIR / "databases")
# The team's own functions that contracts may name, as function or tenant/function.
BROKER_TOOLS = env_list("BROKER_TOOLS", ())
# The address in the author line of published commits.
PUBLISH_EMAIL = env_text("PUBLISH_EMAIL") or "imprimatur@localhost.localdomain"

# --- Model ------------------------------------------------------------------
# Any endpoint that speaks the OpenAI Responses API. Without one, only contracts
# that name a recorded transcript can run.
MODEL_BASE_URL = env_text("MODEL_BASE_URL")
MODEL_API_KEY = env_secret("MODEL_API_KEY")
# How long a model may be silent before it is asked again.
MODEL_TIMEOUT = env_seconds("MODEL_TIMEOUT", 120)
# Millionths per token, as name=input/cached/output, separated by commas.
MODEL_PRICES = env_prices("MODEL_PRICES")
# Millionths per unit: compute=PER_SECOND,tool=PER_CALL,storage=PER_BYTE,egress=PER_BYTE.
UNIT_PRICES = env_unit_prices("UNIT_PRICES", ("compute", "tool", "storage", "egress"))
# The agents SDK sends traces to its maker unless told not to. Prompts and tool
# output are the tenants' own; the SDK reads this when it is first imported.
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"

# --- Celery -----------------------------------------------------------------
# Celery's command line reads BROKER_URL by itself and puts it before CELERY_BROKER_URL, without
# what was made of it here: the word for a unix socket, for instance. These two it leaves alone.
CELERY_BROKER_READ_URL = CELERY_BROKER_WRITE_URL = CELERY_BROKER_URL = BROKER.for_celery()
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": BROKER_VISIBILITY,
    # How often messages of dead workers are looked for; kombu's default is 100 s.
    "unacked_restore_interval": 5,
    "unacked_restore_throttle": 1,
    "socket_connect_timeout": 5,
    "socket_keepalive": BROKER.scheme != "unix",
    # Who hands a hop on asks twice at once and then leaves it to the sweep: a person who decided
    # would wait for kombu's four seconds of trying.
    "max_retries": 1,
    "interval_start": 0,
    "interval_step": 0.1,
}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None  # a broker that is away comes back
CELERY_TASK_DEFAULT_QUEUE = "imprimatur"
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
# The rows are the result. No result backend, no result, nothing to disagree with.
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_WORKER_SEND_TASK_EVENTS = False
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = "UTC"

# --- Logs -------------------------------------------------------------------
LOG_LEVEL = env_choice("LOG_LEVEL", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR"))
LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "plain": {
            "format": "{asctime} {levelname} {name}: {message}",
            "style": "{",
        }
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["console"], "level": LOG_LEVEL},
    "loggers": {
        # Every request of every open tab is not worth a line.
        "uvicorn.access": {"level": "WARNING"},
        "httpx": {"level": "WARNING"},
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},
        "celery.beat": {"level": "WARNING"},
        "django": {"handlers": [], "level": "INFO", "propagate": True},
    },
}
