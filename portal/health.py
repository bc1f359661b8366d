"""Whether this process lives, and whether it could serve somebody."""

from __future__ import annotations

import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe


@never_cache
@require_safe
def livez(request: HttpRequest) -> HttpResponse:
    """The process answers. Asks nothing of others: a restart would not mend them."""
    return HttpResponse("alive\n", content_type="text/plain")


@never_cache
@require_safe
def readyz(request: HttpRequest) -> HttpResponse:
    """Database and broker answer too; 503 tells a load balancer to look elsewhere."""
    parts = {"database": _database_answers(), "broker": _broker_answers()}
    text = "".join(f"{name}: {'ok' if well else 'down'}\n" for name, well in parts.items())
    return HttpResponse(text, content_type="text/plain", status=200 if all(parts.values()) else 503)


def _database_answers() -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return False
    return True


def _broker_answers() -> bool:
    client = redis.Redis.from_url(
        settings.BROKER.for_client(), socket_timeout=2, socket_connect_timeout=2
    )
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
    finally:
        client.close()
