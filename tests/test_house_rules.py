"""House rules that a reader cannot be asked to remember, each with lines that keep and break it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from django.conf import settings

ROOT = Path(settings.BASE_DIR)
PRODUCT = ("portal/**/*.py", "runs/**/*.py", "approvals/**/*.py")
PAGES = ("templates/**/*.html",)
ASSETS = ("portal/static/**/*.js", "portal/static/**/*.css", "portal/static/**/*.svg")


@dataclass(frozen=True)
class Rule:
    """What may not be written where, why, and examples of both."""

    name: str
    pattern: str
    where: tuple[str, ...]
    why: str
    good: tuple[str, ...]
    bad: tuple[str, ...]
    # Files that may: each for a reason that stands in the file.
    may: tuple[str, ...] = ()

    def broken_by(self, text: str) -> Iterator[int]:
        """The lines that break it."""
        for match in re.finditer(self.pattern, text, re.MULTILINE):
            yield text.count("\n", 0, match.start()) + 1


RULES = (
    Rule(
        "no pictures left behind",
        r"\.screenshot\(",
        ("tests/**/*.py",),
        "Nobody looks at a picture that a test takes, and its folder is one machine's.",
        ('expect(page.get_by_role("heading")).to_be_visible()',),
        ('page.screenshot(path="/tmp/page.png")',),
        # This file, for its example.
        may=("tests/test_house_rules.py",),
    ),
    Rule(
        "no bare save",
        r"\.save\((?!\s*(?:update_fields=|force_insert=True|commit=False|using=self\._db))",
        PRODUCT,
        "It writes every field, so two people who change different ones lose one change.",
        (
            'run.save(update_fields=["status"])',
            "run.save(\n        update_fields=[",
            "receipt.save(force_insert=True)",
            "changed = form.save(commit=False)",
        ),
        ("run.save()", "run.save(\n    )", "form.save()", "run.save(using='other')"),
    ),
    Rule(
        "no tables in entry points",
        r"\.objects\b",
        ("*/views.py", "*/*_views.py", "*/consumers.py", "*/urls.py", "portal/sockets.py"),
        "Every row is reached through `access` or `queries`, where the tenant is asked.",
        ("run = access_run(request.membership, public_id)",),
        ("Run.objects.get(pk=1)", "type(found).objects.filter()"),
        # Asks whether the person behind a socket still exists; there is no tenant in that.
        may=("portal/sockets.py",),
    ),
    Rule(
        "no address of another host",
        r"https?://(?!www\.w3\.org/)",
        (*PAGES, *ASSETS),
        "Not one request may leave the host; a page that needs another one breaks without it.",
        ('<svg xmlns="http://www.w3.org/2000/svg">', 'href="/t/acme/queue/"'),
        ('<script src="https://cdn.example.com/x.js">', "url(http://fonts.example/a.woff)"),
    ),
    Rule(
        "no inline script",
        r"<script(?![^>]*\bsrc=)[^>]*>|\son[a-z]+\s*=\s*[\"']|javascript:",
        PAGES,
        "The content policy allows files of ours only, so that nothing injected can run.",
        ('<script src="{% static "a.js" %}" defer></script>', 'data-once="1"'),
        ("<script>alert(1)</script>", '<b onclick="x()">', '<a href="javascript:x()">'),
    ),
    Rule(
        "no inline style",
        r"<style\b|\sstyle\s*=\s*[\"']",
        PAGES,
        "The content policy allows style sheets of ours only.",
        ('<div class="style">',),
        ('<div style="color: red">', "<style>b { }</style>"),
    ),
    Rule(
        "nothing unescaped",
        r"\|\s*safe\b|\{%\s*autoescape\s+off|\bmark_safe\(",
        (*PAGES, *PRODUCT),
        "Whatever came from an agent is hostile. `format_html` escapes its arguments.",
        ("{{ text|shown }}", "format_html('<b>{}</b>', text)"),
        ("{{ text|safe }}", "{% autoescape off %}", "return mark_safe(text)"),
        # They put escaped parts together themselves; each place says why it may.
        may=(
            "portal/templatetags/ui.py",
            "approvals/templatetags/diffs.py",
            "approvals/templatetags/queue.py",
        ),
    ),
    Rule(
        "a person’s name is drawn",
        r"\{\{ (?:\w+\.)*(?:user|person|owner|author|actor|\w+_by|\w+_to)\.name"
        r"(?![^}]*\|named \}\})",
        PAGES,
        "It stands beside decisions: what hides in it, however it was stored, must show.",
        ("{{ run.requested_by.name|named }}", '{{ entry.actor.name|default:"nobody"|named }}'),
        (
            "{{ each.user.name }}",
            "by {{ run.requested_by.name|default:None }}",
            "{{ person.name }}",
        ),
    ),
    Rule(
        "no work left in a comment",
        r"\b(?:TODO|FIXME|XXX|HACK)\b",
        (*PRODUCT, *PAGES, *ASSETS, "tests/**/*.py"),
        "What is not done is an issue; what is not needed is deleted.",
        ("# The tenant's row is locked first.",),
        ("# TODO: later", "/* FIXME */"),
        may=("tests/test_house_rules.py",),
    ),
    Rule(
        "hints come from the story",
        r"\blive\.changed(?:_on_commit)?\(",
        ("*/views.py", "*/consumers.py", "*/queries.py", "*/access.py", "*/forms.py"),
        "A hint belongs to the write it tells of, in the same transaction.",
        ("live.run_topic(run.pk)",),
        ("live.changed(topic)", "live.changed_on_commit(topic)"),
        # Signing out is no write of ours: the session's row is Django's.
        may=("portal/views.py",),
    ),
    Rule(
        "nothing is printed",
        r"^\s*print\(",
        (
            "portal/**/*.py",
            "approvals/**/*.py",
            "runs/*.py",
            "runs/agent/*.py",
            "runs/contract/*.py",
        ),
        "Words for the operator go to the log, or to a command's own output.",
        ("logger.warning('…')", "self.stdout.write('…')"),
        ("print('here')",),
        # They talk to whoever started them in a terminal.
        may=("portal/supervise.py", "portal/embedded.py"),
    ),
    Rule(
        "no signals between our own parts",
        r"\bdjango\.(?:db\.models|core|dispatch)[.\w]*\bsignals?\b|@receiver\(",
        PRODUCT,
        "A write that happens somewhere else cannot be read where it is caused.",
        ("from celery import signals",),
        ("from django.db.models.signals import post_save", "@receiver(post_save)"),
    ),
)


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
def test_the_rule_knows_good_from_bad(rule: Rule) -> None:
    for line in rule.good:
        assert not list(rule.broken_by(line)), line
    for line in rule.bad:
        assert list(rule.broken_by(line)), line


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
def test_the_rule_is_kept(rule: Rule) -> None:
    broken = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in files_of(rule)
        for line in rule.broken_by(path.read_text(encoding="utf-8"))
    ]
    assert broken == [], rule.why


def files_of(rule: Rule) -> list[Path]:
    """The files a rule is for."""
    found = {path for pattern in rule.where for path in ROOT.glob(pattern)}
    excused = {ROOT / name for name in rule.may}
    return sorted(path for path in found - excused if "migrations" not in path.parts)
