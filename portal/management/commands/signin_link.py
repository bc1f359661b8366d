"""Make a one-time sign-in link for a person, vouched for by whoever runs commands here."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal.models import User
from portal.signin import LIFETIME, make_link


class Command(BaseCommand):
    help = "Print a one-time sign-in link for a person; earlier unused ones of theirs stop working."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("email", help="the person's e-mail address")

    def handle(self, *args: Any, **options: Any) -> None:
        user = User.objects.filter(email__iexact=options["email"], is_active=True).first()
        if user is None:
            raise CommandError(
                f"Nobody with the address {options['email']} can sign in. "
                "A tenant admin can add the person on the People page."
            )
        hours = int(LIFETIME.total_seconds() // 3600)
        self.stdout.write(f"{settings.PUBLIC_URL}{make_link(user)}")
        self.stderr.write(f"For {user.name}. It works once, within {hours} hours.")
