"""Wiring that must be in place before the first model or task is loaded."""

from __future__ import annotations

from django.apps import AppConfig

# Both imports work by being made: the first makes our Celery application the
# current one in every process, the second registers the system checks.
from portal import celery as celery
from portal import checks as checks


class PortalConfig(AppConfig):
    """The foundation both other apps stand on."""

    name = "portal"
