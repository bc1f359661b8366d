"""Let somebody who lost every passkey and code begin anew, vouched for by whoever runs this."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal.models import User
from portal.passkey_account import forget_all


class Command(BaseCommand):
    help = (
        "Remove all passkeys and recovery codes of a person who lost them. Make sure first that "
        "it is the person who asks: whoever signs in next can add a passkey."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("email", help="the person's e-mail address")

    def handle(self, *args: Any, **options: Any) -> None:
        user = User.objects.filter(email__iexact=options["email"]).first()
        if user is None:
            raise CommandError(f"Nobody has the address {options['email']}.")
        removed = forget_all(user)
        self.stdout.write(f"{removed} removed. {user.name} adds a new one after signing in.")
