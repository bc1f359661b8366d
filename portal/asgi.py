"""The web process: pages over HTTP, hints over sockets."""

from __future__ import annotations

import gc
import os
from typing import Any

# Before the settings are read: on PostgreSQL this process sees no tenant's rows
# until the guarded door has named one.
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
os.environ.setdefault("ROW_SCOPE", "none")

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.core.asgi import get_asgi_application

# Loads the applications, so it must come before their sockets are imported.
files = get_asgi_application()

from approvals.urls import websocket_urlpatterns as approvals_sockets
from portal.pages import Site
from portal.sockets import straight
from runs.urls import websocket_urlpatterns as runs_sockets

# Consumers are no views; the routes of both are written with the same function.
sockets: list[Any] = [*runs_sockets, *approvals_sockets]

application = ProtocolTypeRouter(
    {
        "http": Site(files),
        # Without the origin check any site could open a socket with a visitor's cookie.
        "websocket": straight(AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(sockets)))),
    }
)

# All that is loaded by now stays for good. Going through it again and again held every tab up for
# as long as a page takes.
gc.collect()
gc.freeze()
