"""`manage.py reseal`: after a new key was put in front of FIELD_KEYS."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from portal.vault import SealBroken
from runs.resealing import reseal


class Command(BaseCommand):
    help = "Encrypt every stored secret with the first of FIELD_KEYS, so that the others can go."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            count = reseal()
        except SealBroken as broken:
            raise CommandError(str(broken)) from broken
        self.stdout.write(f"{count} stored secrets are encrypted with the first key.")
