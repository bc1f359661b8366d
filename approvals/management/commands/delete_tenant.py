"""Delete a tenant, vouched for by whoever runs commands here."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from approvals.deletion import delete_tenant
from portal.errors import Refusal
from portal.models import Tenant


class Command(BaseCommand):
    help = (
        "Delete a tenant: stop its runs, take its secrets back, remove its files. Its evidence "
        "stays for its auditors, and what is under hold stays whole."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("slug", help="the short name, as in its addresses")
        parser.add_argument("--confirm", default="", help="the same once more")

    def handle(self, *args: Any, **options: Any) -> None:
        tenant = Tenant.objects.filter(slug=options["slug"]).first()
        if tenant is None:
            raise CommandError(f"There is no tenant “{options['slug']}”.")
        try:
            delete_tenant(tenant, typed=options["confirm"])
        except Refusal as refused:
            raise CommandError(f"{refused} Say --confirm {tenant.slug}.") from refused
        self.stdout.write(f"{tenant.name} is deleted. The workers stop and remove what is left.")
