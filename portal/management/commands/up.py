"""Start the embedded installation (manage.py takes a shorter way to the same function)."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from portal import embedded


class Command(BaseCommand):
    """Lists `up` among the commands and lets `call_command` reach it."""

    help = "Start web, worker, scheduler and broker on this machine, with a demo on first start."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        embedded.add_options(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        sys.exit(embedded.run(argparse.Namespace(**options)))
