"""What is counted where no quota bounds a workspace."""

from __future__ import annotations

from pathlib import Path

from runs.sandbox.bubblewrap import _bytes_below, _more_files


def test_files_are_counted_as_far_as_it_matters(tmp_path: Path) -> None:
    deep = tmp_path / "deep" / "deeper"
    deep.mkdir(parents=True)
    for number in range(8):
        (deep / f"file {number}\n").touch()
    (deep / "away").symlink_to("/usr")
    assert _more_files(tmp_path, 10)
    assert not _more_files(tmp_path, 11)
    assert not _more_files(tmp_path / "not there", 0)


def test_bytes_are_those_on_the_disk(tmp_path: Path) -> None:
    before = _bytes_below(tmp_path)
    (tmp_path / "full").write_bytes(b"x" * 1_000_000)
    (tmp_path / "away").symlink_to("/usr")
    assert 1_000_000 <= _bytes_below(tmp_path) - before < 1_100_000
    assert _bytes_below(tmp_path / "not there") == 0
