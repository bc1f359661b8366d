"""The drill as an operator starts it: green here, beside an installation, and shown to tenants."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as live
from django.core.management import call_command
from django.core.management.base import CommandError

from approvals.drill import attacks, outside, recovery
from portal.keys import make_keys
from portal.models import AuditEntry, Tenant
from runs.drill import PROMISES, Attack, Report, resources
from runs.models import Drill, Run
from runs.sandbox.base import remove_tree
from tests.cast import Cast, make_drill
from tests.hostile.conftest import REAL
from tests.visits import Visitor

HERE = Path(__file__).resolve().parents[2]
EVERY: list[Attack[Any]] = [*attacks.ATTACKS, *recovery.ATTACKS, *resources.ATTACKS]
KEYS = {each.key for each in EVERY}


def test_every_promise_is_attacked_and_every_attack_has_a_name_of_its_own() -> None:
    assert {each.promise for each in EVERY} == set(PROMISES)
    assert len(KEYS) == len(EVERY)


@pytest.mark.parametrize("provider", REAL)
def test_every_promise_holds_on(
    provider: str, cast: Cast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By what it made itself: another drill may go on beside it.
    made, make = list[Path](), tempfile.mkdtemp

    def making(*given: Any, **named: Any) -> str:
        made.append(Path(make(*given, **named)))
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", making)
    before = (Tenant.objects.count(), Run.objects.count(), AuditEntry.objects.count())
    file = tmp_path / "report.json"
    call_command("drill", provider=[provider], json=str(file), verbosity=0)
    [data] = json.loads(file.read_text())
    assert [each for each in data["findings"] if each["outcome"] != "held"] == []
    assert {each["key"] for each in data["findings"]} == KEYS
    assert data["passed"]
    kept = Drill.objects.get()
    assert Report.read(kept.report) == Report.read(data)
    assert {each.name for each in Report.read(data).measured} >= {
        "start to first command",
        "one command",
        "removal",
        "network",
        "limits",
        "image",
    }
    # Beside an installation in use: not a row of it was touched, and nothing is left.
    assert (Tenant.objects.count(), Run.objects.count(), AuditEntry.objects.count()) == before
    drilled = [folder for folder in made if folder.name.startswith("imprimatur-drill-")]
    assert [folder.exists() for folder in drilled] == [False]


@pytest.mark.bubblewrap
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_what_bubblewrap_keeps_apart_it_keeps_for_an_unprivileged_user_too() -> None:
    """Everything but what asks more of the walk than of the sandbox."""
    python = Path(f"/usr/bin/python3.{sys.version_info.minor}")
    readable = all(parent.stat().st_mode & 0o001 for parent in [HERE, *HERE.parents])
    if not python.exists() or not readable:
        pytest.skip("no Python of this version, or no copy of the source, that anybody may read")
    nobody = 64_000 + random.randint(0, 999)
    keys = ["forbidden-path", "read-only-input", "repository-instruction", "cancel"]
    keys += [each.key for each in resources.ATTACKS]
    folder = Path(tempfile.mkdtemp(prefix="imprimatur-nobody-", dir="/tmp"))
    try:
        environment = outside.environment(folder, "bubblewrap", "")
        # Before Python 3.11.3 a client of ours wants this by another name.
        (folder / "more").mkdir()
        (folder / "more/async_timeout.py").write_text("from asyncio import timeout\n")
        for each in (folder, *folder.rglob("*")):
            os.chown(each, nobody, nobody)
        packages = next(path for path in sys.path if path.endswith("site-packages"))
        ran = subprocess.run(
            [
                *("setpriv", f"--reuid={nobody}", f"--regid={nobody}", "--clear-groups"),
                *(str(python), "-m", "approvals.drill.inside", str(folder), *keys),
            ],
            cwd=HERE,
            env={
                **environment,
                "PATH": "/usr/bin:/bin",
                "HOME": str(folder),
                "PYTHONPATH": f"{HERE}:{packages}:{folder}/more",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        remove_tree(folder)
    assert ran.returncode == 0, ran.stderr[-3000:]
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    findings = [line["finding"] for line in lines if "finding" in line]
    assert {each["key"] for each in findings} == set(keys)
    assert [each for each in findings if each["outcome"] != "held"] == []
    # Whoever may bound less is told so.
    assert lines[0]["check"]["weaker"]


def test_a_drill_knows_nothing_of_the_installation_it_stands_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "a-key-of-the-installation"
    for name in ("MODEL_API_KEY", "DATABASE_URL", "BROKER_URL", "SECRET_KEY", "FIELD_KEYS"):
        monkeypatch.setenv(name, secret)
    environment = outside.environment(tmp_path, "bubblewrap", "")
    assert secret not in environment.values()
    assert str(live.DATA_DIR) not in " ".join(environment.values())
    assert Path(environment["DATA_DIR"]).is_relative_to(tmp_path)


def test_the_process_of_a_drill_refuses_to_run_on_an_installation(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    ran = subprocess.run(
        [sys.executable, "-m", "approvals.drill.inside", str(tmp_path)],
        cwd=HERE,
        env={**os.environ, "DATA_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "portal.settings"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "manage.py drill" in ran.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["keys"]


def test_without_a_place_for_its_report_nothing_is_attacked(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    left = {"DATABASE_URL", "SECRET_KEY", "FIELD_KEYS"}
    ran = subprocess.run(
        [sys.executable, "manage.py", "drill"],
        cwd=HERE,
        env={**{k: v for k, v in os.environ.items() if k not in left}, "DATA_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert "DATA_DIR=DIRECTORY" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_broken_promise_fails_the_command_and_is_kept(
    cast: Cast, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report.read(make_drill(outcome="broken").report)
    monkeypatch.setattr("approvals.management.commands.drill.drill", lambda *_, **__: report)
    with pytest.raises(CommandError, match="bubblewrap"):
        call_command("drill", provider=["bubblewrap"])
    assert "BROKEN" in capsys.readouterr().out
    assert not Drill.objects.latest("pk").passed


def test_a_provider_that_cannot_isolate_has_no_report(cast: Cast) -> None:
    with pytest.raises(outside.DrillFailed):
        outside.drill("scripted")
    assert not Drill.objects.exists()


# --- Pages -------------------------------------------------------------------------------


def test_tenants_see_their_providers_side_by_side(cast: Cast) -> None:
    make_drill("docker", "broken")
    make_drill("bubblewrap", "broken")
    newest = make_drill("bubblewrap")
    page = Visitor(cast.vic).get("/t/acme/sandboxes/").content.decode()
    assert page.index(">bubblewrap</th>") < page.index(">docker</th>")
    assert f"/t/acme/sandboxes/{newest.public_id}/" in page
    row = page[page.index("Resources are bounded") :].partition("</tr>")[0]
    assert row.index("Held") < row.index("Broken")
    assert "26 ms" in page
    assert "same image, byte for byte" in page


def test_the_report_says_what_each_attack_tried_and_what_was_seen(cast: Cast) -> None:
    drill = make_drill(outcome="broken")
    page = Visitor(cast.vic).get(f"/t/acme/sandboxes/{drill.public_id}/").content.decode()
    assert "1 promise of 1 did not hold." in page
    assert "takes memory" in page
    assert "120 &lt;MB&gt;" in page


def test_before_the_first_drill_the_page_says_how_to_start_one(cast: Cast) -> None:
    page: Any = Visitor(cast.vic).get("/t/acme/sandboxes/")
    assert "manage.py drill" in page.content.decode()
