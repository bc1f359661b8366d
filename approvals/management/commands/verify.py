"""Check evidence: what this installation holds, or files that were exported from one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.core.management.base import BaseCommand, CommandError, CommandParser

from approvals import evidence, receipt
from approvals.bundle_form import lines_of
from approvals.verifier import verified
from approvals.verify_report import NoBundle, told
from portal.canonical import canonical
from portal.dsse import key_id, public_key
from portal.models import Tenant
from portal.signing import signing_keys


class Broken(Exception):
    """A file is not what was written. The text says where."""


class Command(BaseCommand):
    """Reads only. Ends with 1 as soon as anything is not as it was written."""

    help = "Check the evidence of every tenant here or, with files, what was exported anywhere."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "files",
            nargs="*",
            type=Path,
            help="bundles (.jsonl), receipts (.dsse.json) or packets (.json); no database is asked",
        )
        parser.add_argument(
            "--key",
            action="append",
            help="a public key the files must be signed with, as the Evidence page shows it; "
            "this installation's own if left out",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        keys = _keys(options["key"])
        self.stdout.write(f"Signed with {', '.join(map(key_id, keys))}.")
        files: list[Path] = options["files"]
        bad = sum(not self._file(each, keys) for each in files) if files else self._stored()
        if bad:
            raise CommandError("Not everything is as it was written; see above. Keep it as it is.")

    def _stored(self) -> int:
        bad = 0
        for tenant in Tenant.objects.order_by("slug"):
            report = evidence.examine(tenant)
            bad += len(report.problems)
            self.stdout.write(f"{report}: {'BROKEN' if report.problems else 'sound'}")
            for problem in report.problems:
                self.stderr.write(f"  {problem}")
        return bad

    def _file(self, path: Path, keys: Sequence[Ed25519PublicKey]) -> bool:
        try:
            self.stdout.write(f"{path}: {_checked(path, keys)}")
        except (Broken, NoBundle, OSError, ValueError) as error:
            self.stderr.write(f"{path}: BROKEN: {error}")
            return False
        return True


def _keys(given: Sequence[str] | None) -> list[Ed25519PublicKey]:
    try:
        return (
            [public_key(each) for each in given]
            if given
            else [each.public_key() for each in signing_keys()]
        )
    except ValueError:
        raise CommandError(
            "--key is no public key. Copy the 64 characters that the Evidence page shows."
        ) from None


def _checked(path: Path, keys: Sequence[Ed25519PublicKey]) -> str:
    """What a sound file says. Raises `Broken`, `NoBundle` or `ValueError`."""
    if path.suffix == ".jsonl":
        with path.open("rb") as file:
            report = verified(lines_of(file), map(key_id, keys))
        if not report.holds:
            raise Broken(told(report))
        return f"sound. {told(report)}"
    data = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise Broken("It is no receipt and no packet.")
    if "payloadType" in data:
        said = receipt.verify(data, keys)
        names = ", ".join(str(each.get("name")) for each in said.get("subject", ()))
        return f"sound, the receipt of {names}"
    digest = hashlib.sha256(canonical(data)).hexdigest()
    return f"a packet with the digest {digest}; decisions and receipts name it"
