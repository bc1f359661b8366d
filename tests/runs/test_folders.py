"""Working folders: whose process is gone loses them, and nobody else does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runs import folders
from runs.folders import reap_folders, working_folder
from runs.sandbox.base import remove_tree


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Path:
    settings.DATA_DIR = tmp_path
    return tmp_path / "work"


def test_a_folder_in_use_is_left_alone(home: Path) -> None:
    with working_folder("take") as folder:
        assert reap_folders() == []
        assert folder.is_dir()
    assert list(home.iterdir()) == []


def test_a_folder_whose_owner_is_tidying_up_is_not_taken_for_a_dead_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sweep may come at any moment of the removal, and must not call its owner dead."""
    reaped: list[str] = []

    def remove_slowly(path: Path) -> None:
        for each in sorted(path.iterdir()):
            remove_tree(each)
            with monkeypatch.context() as again:
                again.setattr(folders, "remove_tree", remove_tree)
                reaped.extend(reap_folders())
        remove_tree(path)

    with working_folder("take") as folder:
        (folder / "source" / "inside").mkdir(parents=True)
        (folder / "take").mkdir()
        monkeypatch.setattr(folders, "remove_tree", remove_slowly)
    assert reaped == []
    assert not folder.exists()


def test_what_a_dead_worker_left_goes(home: Path) -> None:
    with working_folder("take"):
        pass
    left = home / "take-left"
    left.mkdir()
    (left / "source").write_text("a tenant's")
    assert reap_folders() == ["working folder take-left"]
    assert list(home.iterdir()) == []
