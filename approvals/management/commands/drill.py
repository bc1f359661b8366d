"""Attack the sandbox provider and the walk around it, and say whether every promise holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from approvals.drill.outside import DrillFailed, drill, keep, runtimes
from runs.drill import PROMISES, Finding, Report, by_promise
from runs.models import Drill

_WORDS = {"held": "held", "broken": "BROKEN", "untried": "untried"}


class Command(BaseCommand):
    """Exits with 1 if a promise was broken."""

    help = "Attack this installation's sandboxes with a compromised model, and report what held."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--provider",
            action="append",
            choices=("auto", "bubblewrap", "docker"),
            help="which to drill, several times for several (the configured one)",
        )
        parser.add_argument("--json", metavar="FILE", help="write the reports there (-: to here)")
        parser.add_argument("--only", action="append", default=[], help="attacks, by their keys")
        parser.add_argument(
            "--no-store", action="store_true", help="do not keep the reports for the pages"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        chosen = [(name, "") for name in options["provider"] or [settings.SANDBOX_PROVIDER]]
        if "docker" in [name for name, _ in chosen]:
            chosen += [("docker", runtime) for runtime in runtimes()]
        quiet = options["json"] == "-"
        # A part of a drill is for whoever looks into something, and no report.
        stored = not options["no_store"] and not options["only"]
        if stored:
            _a_place_for_reports()
        reports: list[Report] = []
        for name, runtime in chosen:
            say = sys.stderr.write if quiet else self.stdout.write
            named = "the first provider that proves it isolates" if name == "auto" else name
            say(f"Drill of {named}{f' with {runtime}' if runtime else ''}.\n")
            try:
                report = drill(
                    name,
                    runtime=runtime,
                    only=options["only"],
                    heard=lambda finding: self._heard(finding, quiet),
                )
            except DrillFailed as failed:
                raise CommandError(str(failed)) from failed
            reports.append(report)
            if stored:
                keep(report)
            if not quiet:
                self._print(report)
        self._write(options["json"], reports)
        broken = [each.provider for each in reports if not each.passed]
        if broken:
            raise CommandError(f"Promises were broken: {', '.join(broken)}. See above.")

    def _heard(self, finding: Finding, quiet: bool) -> None:
        if not quiet:
            words = f"  {_WORDS[finding.outcome]:<8} {finding.promise:>2}  {finding.key:<24}"
            self.stdout.write(f"{words} {finding.ms / 1000:6.1f} s  {finding.seen}")
            self.stdout.flush()

    def _print(self, report: Report) -> None:
        self.stdout.write(f"\n{report.provider} ({report.version}), {report.seconds:.0f} s")
        for number, words, findings in by_promise(report.findings):
            outcomes = {each.outcome for each in findings}
            word = "BROKEN" if "broken" in outcomes else "held" if "held" in outcomes else "untried"
            self.stdout.write(f"  {number:>2}  {word:<8} {words} ({len(findings)})")
        for each in report.measured:
            value = "" if each.value is None else f"{each.value:,.0f} {each.unit}  "
            self.stdout.write(f"      {each.name:<24} {value}{each.words}")
        missing = set(PROMISES) - {each.promise for each in report.findings}
        if missing:
            self.stdout.write(f"      not tried: {', '.join(map(str, sorted(missing)))}")

    def _write(self, target: str | None, reports: list[Report]) -> None:
        if not target:
            return
        text = json.dumps([each.to_data() for each in reports], indent=1) + "\n"
        if target == "-":
            self.stdout.write(text)
        else:
            Path(target).write_text(text, encoding="utf-8")


def _a_place_for_reports() -> None:
    """Raise before minutes of work if what they find could not be kept."""
    try:
        Drill.objects.exists()
    except DatabaseError as error:
        raise CommandError(
            f"No installation that could keep the report is found ({error}). If it was started "
            "with --data DIRECTORY, set DATA_DIR=DIRECTORY; or keep no report: --no-store"
        ) from error
