"""Make the demo: people, a repository, a contract in force, and a first run."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from approvals import demo


class Command(BaseCommand):
    """Refuses to run where tenants exist: the demo is for an empty installation."""

    help = "Make the demo tenant with its people, repository, contract and a first run."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--refresh", action="store_true", help="only update addresses")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["refresh"]:
            demo.refresh()
            return
        try:
            demo.install()
        except demo.NotEmpty as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"The demo tenant “{demo.TENANT}” is there.")
