"""What `up` needs the application for, in one process: check, migrate, demo, links."""

from __future__ import annotations

import json
from typing import Any

from django.conf import settings
from django.core.checks import Error, run_checks
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from approvals import demo
from portal import checks
from portal.context import roles_in_words
from portal.embedded import Person, Report
from portal.models import Membership, Tenant
from portal.signin import make_link
from runs.sandbox import SandboxUnavailable, get_provider


class Command(BaseCommand):
    """Prints one JSON object: who can sign in, and which sandbox was proved."""

    help = "Bring this installation's data up to date and print sign-in links as JSON (for `up`)."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        self._refuse_what_would_leak()
        sandbox = self._prove_a_sandbox()
        try:
            call_command("migrate", interactive=False, verbosity=0)
        except DatabaseError as error:
            raise CommandError(
                f"The database cannot be used ({error}). Check DATABASE_URL, and that the server "
                "runs and lets this user create tables."
            ) from error
        if settings.DEMO and not Tenant.objects.exists():
            self.stderr.write("First start: making the demo.")
            demo.install()
        elif settings.DEMO:
            demo.refresh()
        report: Report = {"sandbox": sandbox, "people": self._links()}
        self.stdout.write(json.dumps(report))

    def _refuse_what_would_leak(self) -> None:
        found = run_checks(tags=[checks.TAG], include_deployment_checks=True)
        for each in found:
            self.stderr.write(f"{each.msg} {each.hint} ({each.id})")
        if any(isinstance(each, Error) for each in found):
            raise CommandError("This installation would lose or leak something; see above.")

    def _prove_a_sandbox(self) -> str:
        try:
            provider = get_provider(settings.SANDBOX_PROVIDER, data_dir=settings.DATA_DIR)
            report = provider.check()
        except SandboxUnavailable as error:
            raise CommandError(str(error)) from error
        return f"{report.provider} ({report.version})"

    def _links(self) -> list[Person]:
        """One link per demo person. Real people are invited from the members page."""
        if not settings.DEMO:
            return []
        addresses = [f"{short}@{demo.DOMAIN}" for _, short, _ in demo.PEOPLE]
        members = Membership.objects.select_related("user").filter(
            user__email__in=addresses, user__is_active=True
        )
        # The first membership of each: the one in the demo's main tenant.
        people = {each.user: each for each in members.order_by("-pk")}
        ordered = sorted(people.items(), key=lambda pair: addresses.index(pair[0].email))
        return [
            {"name": user.name, "role": roles_in_words(member), "path": make_link(user)}
            for user, member in ordered
        ]
