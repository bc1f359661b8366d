"""What the README promises a newcomer is what the machine does."""

from __future__ import annotations

import re

import pytest
from django.conf import settings

README = (settings.BASE_DIR / "README.md").read_text()
COMMANDS = re.findall(r"^python3 -m venv .*$", README, re.MULTILINE)


def test_there_are_two_commands_and_each_is_one_line() -> None:
    start, test = COMMANDS
    assert start.endswith(".venv/bin/python manage.py up")
    assert test.endswith(".venv/bin/python -m pytest")


def test_the_check_of_changes_ends_with_the_same_command() -> None:
    script = (settings.BASE_DIR / ".ci" / "run").read_text().rstrip().splitlines()
    assert script[-2:] == ["export IMPRIMATUR_REQUIRE=all", COMMANDS[1]]


def test_every_setting_is_explained() -> None:
    code = "".join(
        (settings.BASE_DIR / "portal" / name).read_text() for name in ("settings.py", "keys.py")
    )
    read = set(re.findall(r'env_\w+\(\s*"([A-Z_]+)"', code))
    assert "DATABASE_URL" in read
    unexplained = {name for name in read if f"`{name}`" not in README}
    unexplained -= {name for name in unexplained if f"`{name}=" in README}
    assert not unexplained


@pytest.mark.parametrize("name", ["runtime", "dev"])
def test_every_requirement_has_its_hash_and_no_address(name: str) -> None:
    text = (settings.BASE_DIR / "requirements" / f"{name}.txt").read_text()
    assert "://" not in text
    pinned = re.findall(r"^([a-z0-9][\w.-]*)(?:\[[\w,-]+\])?==", text, re.MULTILINE)
    blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(pinned) == len(blocks) > 50
    assert all("--hash=sha256:" in block for block in blocks)
