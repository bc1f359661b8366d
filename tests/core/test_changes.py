"""Paths: their one text form, and those that leave the tree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from approvals.changes import (
    BadPath,
    Change,
    LeftOut,
    Status,
    is_dot_git,
    link_cycle_or_escape,
    link_leaves,
    odd_on_other_systems,
    spell,
    unsafe_path,
    unspell,
)


@given(
    st.binary(min_size=1, max_size=60)
    | st.text(min_size=1, max_size=30).map(lambda text: text.encode("utf-8", "replace"))
)
def test_every_path_can_be_spelled_and_read_back(path: bytes) -> None:
    spelled = spell(path)
    assert unspell(spelled) == path
    spelled.encode()  # no lone surrogate: it can be stored and digested


@pytest.mark.parametrize(
    ("path", "spelled"),
    [
        (b"src/app.py", "src/app.py"),
        (b"a\nb\t.txt", "a\\u{a}b\\u{9}.txt"),
        (b"back\\slash", "back\\\\slash"),
        (b"\xff.bin", "\\xff.bin"),
        ("invoice_\u202egpj.exe".encode(), "invoice_\\u{202e}gpj.exe"),
        ("docs/\u6392\u67e5.md".encode(), "docs/\u6392\u67e5.md"),
        ("\U0001f468\u200d\U0001f469.md".encode(), "\U0001f468\u200d\U0001f469.md"),
    ],
)
def test_a_spelling_shows_what_the_bytes_say(path: bytes, spelled: str) -> None:
    assert spell(path) == spelled


@pytest.mark.parametrize("spelled", ["a\\", "\\x41", "\\u{202E}", "a\nb", "\\u{110000}", "\\q"])
def test_only_spellings_are_read_back(spelled: str) -> None:
    with pytest.raises(BadPath):
        unspell(spelled)


@pytest.mark.parametrize(
    "path",
    [
        b"",
        b"/etc/passwd",
        b"../x",
        b"a/../../x",
        b"a//b",
        b"./a",
        b"a/",
        b"C:/x",
        b"..\\x",
        b"a\0b",
        b".git/config",
        b"lib/.GIT/hooks/post-checkout",
        b"git~1/config",
        b".git. /config",
        b".git::$INDEX_ALLOCATION/config",
        "sub/.g\u200cit/config".encode(),
        b"a\\.git\\config",
        b"x" * 300,
    ],
)
def test_a_path_that_leaves_or_reads_as_git_is_unsafe(path: bytes) -> None:
    assert unsafe_path(path)


@pytest.mark.parametrize(
    "path", [b".gitignore", b".github/ci.yml", b"a/..b/c", b"x b/x b/x", b".gitx", b"git", b"\xff"]
)
def test_an_ordinary_path_is_safe(path: bytes) -> None:
    assert unsafe_path(path) is None
    assert not any(is_dot_git(part) for part in path.split(b"/"))


def test_names_other_systems_cannot_hold_are_told() -> None:
    assert odd_on_other_systems(b"src/aux.c")
    assert odd_on_other_systems(b"ends .")
    assert odd_on_other_systems(b"a:b")
    assert odd_on_other_systems(b"src/auxiliary.c") is None


@pytest.mark.parametrize(
    ("path", "target"),
    [
        (b"leak", b"/etc/passwd"),
        (b"config.yml", b"../../etc/shadow"),
        (b"a/b", b"../../x"),
        (b"a", b""),
        (b"a", b".git/config"),
        (b"a", b"C:\\x"),
        (b"a", b"..\\x"),
        (b"a/b/c", b"x/../../../../y"),
    ],
)
def test_a_link_that_leaves(path: bytes, target: bytes) -> None:
    assert link_leaves(path, target)


def test_links_that_stay_and_links_that_leave_together() -> None:
    stay = {b"a/current": b"releases/1", b"b": b"a/../c", b"d/e": b"../f"}
    assert link_cycle_or_escape(stay) == {}
    climb = {b"a": b"b/c", b"d/e": b"../a/../.."}
    assert b"d/e" in link_cycle_or_escape(climb)
    together = {b"x": b"deep/er/y", b"deep/er/y": b"../..", b"z": b"x/.."}
    assert link_cycle_or_escape(together) == {b"z": "points out of the tree through another link"}
    ring = {b"a": b"b", b"b": b"a"}
    assert set(link_cycle_or_escape(ring)) == {b"a", b"b"}


def test_changes_go_to_data_and_back() -> None:
    change = Change(
        path=b"b\xff", old_path=b"a\n", status=Status.RENAMED, old_mode="100644",
        new_mode="100755", old_blob="1" * 40, new_blob="2" * 40, similarity=97, binary=False,
        added=1, removed=2, old_size=3, new_size=4,
    )  # fmt: skip
    assert Change.from_data(change.to_data()) == change
    left = LeftOut(b"x\xff/", "ignored", "because", count=3)
    assert LeftOut.from_data(left.to_data()) == left
